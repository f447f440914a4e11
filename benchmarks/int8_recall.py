"""What rounding to int8 costs: float32 and int8 score the same items for the same queries; how alike are their orders?

Two cross-encoders: the given one on a BEIR folder (the relevant items of the drawn test queries, and others at random),
and the embedded one on the embedded example. Overlaps are shares of float32's top k that int8 has in its own top k, and
in its top 2k, where a second pass in float32 would find them.

    python -m benchmarks.int8_recall --model <folder> --texts <BEIR folder> --out benchmarks/results/int8_recall.json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.result_files import write_result
from crossknn.evaluate.measures import top_k_recall
from crossknn.example import wordnet as example
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.vectors.ranking import top_rows

TOPS = (1, 10, 100)


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    rng = random.Random(options.seed)
    sets = {
        "embedded, example": ("embedded", *draw_example(options, rng)),
        f"{options.model.name}, {options.texts.name}": (options.model, *draw_beir(options, rng)),
    }
    report: dict[str, Any] = {"seed": options.seed, "max_item_tokens": options.max_item_tokens}
    for name, (model, queries, items) in sets.items():
        report[name] = compare(model, queries, items, options)
        print(name, json.dumps(report[name]), flush=True)
    if options.out:
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a sequence-classification model")
    parser.add_argument("--texts", type=Path, required=True, help="BEIR folder")
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--max-item-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None, help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="where to write the result as JSON")
    parser.set_defaults(device="cpu")
    return parser.parse_args()


def draw_example(options: argparse.Namespace, rng: random.Random) -> tuple[list[str], list[str]]:
    senses = example.senses(options.items)
    asked = [query.text for query in example.queries("test", among=senses)]
    return rng.sample(asked, min(options.queries, len(asked))), list(senses.texts)


def draw_beir(options: argparse.Namespace, rng: random.Random) -> tuple[list[str], list[str]]:
    corpus, asked = read_by_id(options.texts / "corpus.jsonl"), read_by_id(options.texts / "queries.jsonl")
    judged = [line.split("\t") for line in (options.texts / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    chosen = rng.sample(sorted({query for query, *_ in judged}), options.queries)
    relevant = sorted({item for query, item, _ in judged if query in chosen})
    others = rng.sample(sorted(corpus.keys() - relevant), max(0, min(options.items, len(corpus)) - len(relevant)))
    return [asked[query] for query in chosen], [corpus[item] for item in relevant + others]


def read_by_id(path: Path) -> dict[str, str]:
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {record["_id"]: f"{record.get('title') or ''} {record['text']}".strip() for record in records}


def compare(model: str | Path, queries: list[str], items: list[str], options: argparse.Namespace) -> dict[str, Any]:
    scores, seconds = {}, {}
    for dtype in ("float32", "int8"):
        scorer = CrossEncoder(model, device="cpu", dtype=dtype, max_item_tokens=options.max_item_tokens)
        began = time.process_time()
        flat = scorer.score([query for query in queries for _ in items], items * len(queries))
        seconds[dtype] = round(time.process_time() - began, 1)
        scores[dtype] = flat.reshape(len(queries), len(items))
    apart = np.abs(scores["int8"] - scores["float32"])
    correlations = [spearmanr(*rows).statistic for rows in zip(*scores.values(), strict=True)]
    return {
        "queries": len(queries),
        "items": len(items),
        "tokens_per_pair": round(scorer.counts.tokens / scorer.counts.passes, 1),
        "processor_s": seconds,
        "in_top_k": {k: overlap(scores, k, k) for k in TOPS},
        "in_top_2k": {k: overlap(scores, k, 2 * k) for k in TOPS},
        "spearman": round(float(np.mean(correlations)), 5),
        "largest_difference": round(float(apart.max()), 4),
        "rms_difference": round(float(np.sqrt(np.square(apart).mean())), 4),
        "deviation_of_scores": round(float(scores["float32"].std()), 3),
    }


def overlap(scores: dict[str, np.ndarray], k: int, looked_at: int) -> float:
    """The mean share of float32's top `k` in int8's top `looked_at`."""
    truth = [top_rows(row, k).rows for row in scores["float32"]]
    found = [top_rows(row, looked_at).rows for row in scores["int8"]]
    return round(float(top_k_recall(truth, found, k).mean()), 4)


if __name__ == "__main__":
    main()
