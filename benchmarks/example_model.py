"""The embedded cross-encoder against the dual encoder and BM25, on held-out queries.

Two questions: which sense of the marked word does a sentence use, and which sense does the last part of a definition
belong to, when the items show only the parts before it? Every side ranks all of the first `--senses` senses for the
same queries in the same run: the cross-encoder by exact search, the others by their own order. One sense counts as
right, so accuracy is how often it comes first, and nDCG@10 is 1 / log2(1 + rank) up to rank 10.

    python -m benchmarks.example_model --senses 13000 --queries 200 --out benchmarks/results/example_model.json
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

from benchmarks.result_files import write_result
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.measures import bootstrap_interval
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.dense import Dense
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.types import Retriever, Scorer
from crossknn.vectors.ranking import top_rows
from tools.training_lists import TrainingQuery, phrases, read_corpus, rows_held_out, sentences


def main() -> None:
    options = read_options()
    corpus = read_corpus()
    rng = random.Random(options.seed)
    tests = {
        "sentences": sentences(corpus, "test", rng),
        "phrases": phrases(corpus, sorted(rows_held_out(corpus))),
    }
    scorer = CrossEncoder(options.scorer, device=options.device, dtype=options.dtype)
    encoder = SentenceEncoder(options.encoder, device=options.device)
    report: dict[str, Any] = {"senses": options.senses, "seed": options.seed}
    for kind, queries in tests.items():
        inside = [query for query in queries if query.positives[0] < options.senses]
        chosen = rng.sample(inside, min(options.queries, len(inside)))
        items = Items(corpus.texts[queries[0].form * corpus.senses :][: options.senses])
        report[kind] = {"queries": len(chosen), **compare_sides(scorer, encoder, items, chosen)}
    report |= {"dtype": options.dtype, "scorer": scorer.fingerprint}
    for path in options.training:
        report.setdefault("training", {})[path.stem] = json.loads(path.read_text())
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        write_result(options.out, report, options)


def compare_sides(
    scorer: Scorer, encoder: SentenceEncoder, items: Items, chosen: list[TrainingQuery]
) -> dict[str, dict[str, Any]]:
    queries, right = [query.text for query in chosen], np.array([query.positives[0] for query in chosen])
    sides = {
        "cross-encoder, exact search": lambda: ranks_by_score(scorer, items, queries, right),
        "dual encoder": lambda: ranks_by(Dense(encoder), items, queries, right),
        "bm25": lambda: ranks_by(Bm25(), items, queries, right),
    }
    found = {}
    for name, side in sides.items():
        began = time.perf_counter()
        found[name] = {**measure(side()), "seconds": round(time.perf_counter() - began, 1)}
    return found


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scorer", default="embedded")
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--senses", type=int, default=13_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--training", type=Path, nargs="*", default=[], help="what tools.train_example wrote, to keep beside"
    )
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def ranks_by_score(scorer: Scorer, items: Items, queries: list[str], right: np.ndarray) -> np.ndarray:
    texts = list(items.texts)
    ranks = []
    for query, row in zip(queries, right, strict=True):
        order = top_rows(scorer.score([query] * len(texts), texts), len(texts)).rows
        ranks.append(int(np.flatnonzero(order == row)[0]))
    return np.array(ranks)


def ranks_by(retriever: Retriever, items: Items, queries: list[str], right: np.ndarray) -> np.ndarray:
    """The place of the right sense in the retriever's order; last where it was not proposed at all."""
    ranks = []
    for proposal, row in zip(retriever.fit(items).retrieve(queries, len(items)), right, strict=True):
        found = np.flatnonzero(proposal.rows == row)
        ranks.append(int(found[0]) if len(found) else len(items))
    return np.array(ranks)


def measure(ranks: np.ndarray) -> dict[str, Any]:
    """Means with 95 % intervals over the queries."""
    gains = np.where(ranks < 10, 1 / np.log2(ranks + 2.0), 0.0)
    found: dict[str, Any] = {}
    for name, values in (("accuracy", (ranks == 0).astype(float)), ("ndcg_at_10", gains)):
        low, high = bootstrap_interval(values)
        found[name] = {"mean": round(float(values.mean()), 4), "low": round(low, 4), "high": round(high, 4)}
    return found


if __name__ == "__main__":
    main()
