"""What item vectors are worth: recall of `Axn` and `Rerank` by where the vectors come from, and what they cost.

The paper's Figure 1 and its table of indexing times, on other data. For each set: the exact scores of some test
queries (all items), then one index per way of building it, each from the same train queries, its calls and its
seconds by step, and the recall of both strategies with its vectors.

    python -m benchmarks.index_quality <set>... --scorer <folder> --out benchmarks/results/index_quality.json
    python -m benchmarks.index_quality example --scorer embedded

DE     the dual encoder's vectors                       MF_ind   its vectors through nets fitted to scores
MF_trns free vectors, fitted to scores                  DE_dstl  the dual encoder, fine-tuned on scores
"/Q" is 100 items per train query, the dual encoder's nearest; "/I" is 8 train queries per item, at random. A set is
what `crossknn bench set` takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.scoring_speed import surroundings
from crossknn import example
from crossknn.cli.common import Dtype, load_scorer
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.datasets import Dataset
from crossknn.evaluate.known import KnownScores
from crossknn.evaluate.measures import bootstrap_interval, top_k_recall
from crossknn.evaluate.tasks import marks_of
from crossknn.index import Index
from crossknn.indexing.building import Build
from crossknn.indexing.distill import Distillation
from crossknn.indexing.factors import Method
from crossknn.indexing.inductive import Inductive
from crossknn.indexing.sampling import PerItem, PerQuery, Sampling
from crossknn.indexing.transductive import Transductive
from crossknn.items import Items
from crossknn.ranking import top_rows
from crossknn.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.rerank import Rerank
from crossknn.types import Scorer

MEASURED = ((1, 100), (10, 100), (100, 500))  # (k, budget)
MIXES = (0.0, 0.5, 0.8)


@dataclass
class Set:
    name: str
    items: Items
    train: list[str]
    test: list[str]
    scores: np.ndarray  # (test queries, items), exact


def main() -> None:
    options = read_options()
    scorer = load_scorer(options.scorer, device=options.device, dtype=Dtype(options.dtype), cache=None)
    encoder = SentenceEncoder(options.encoder, device=options.device)
    settings = ("seed", "rounds", "dtype", "preset", "per_query", "per_item")
    report: dict[str, Any] = {**{name: getattr(options, name) for name in settings}, "sets": []}
    report |= surroundings(options)
    for name in options.sets:
        report["sets"].append(measure_set(read_set(name, scorer, options), scorer, encoder, options))
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help='BEIR folders and the like, or "example" for the embedded one')
    parser.add_argument("--scorer", required=True)
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--train-split", default="train", help='"pseudo" for generated queries')
    parser.add_argument("--train", type=int, default=500, help="train queries")
    parser.add_argument("--test", type=int, default=100, help="test queries, each scored against all items")
    parser.add_argument("--senses", type=int, default=15_000, help="of the embedded example")
    parser.add_argument("--per-query", type=int, default=100, help='items per train query of "/Q"')
    parser.add_argument("--per-item", type=int, default=8, help='train queries per item of "/I"')
    parser.add_argument("--preset", default="paper", help="settings of the fits, such as paper-scidocs")
    parser.add_argument("--rounds", type=int, default=10, help="of Axn")
    parser.add_argument("--without", nargs="*", default=[], help="ways of building to leave out, such as DE_dstl/Q")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/index_quality.json"))
    return parser.parse_args()


def read_set(name: str, scorer: Scorer, options: argparse.Namespace) -> Set:
    """Items, train and test queries drawn by the seed, and the exact scores of the latter."""
    if name == "example":
        items = example.senses(options.senses)
        queries = {split: [query.text for query in example.queries(split, among=items)] for split in ("train", "test")}
    else:
        data = Dataset.open(name, seed=options.seed, **marks_of(scorer))
        items = data.items
        queries = {"train": list(data.split(options.train_split).texts), "test": list(data.split("test").texts)}
    rng = np.random.default_rng(options.seed)
    drawn = {
        split: [found[place] for place in rng.permutation(len(found))[: getattr(options, split)]]
        for split, found in ((split, list(dict.fromkeys(found))) for split, found in queries.items())
    }
    began, texts_of_items = time.perf_counter(), list(items.texts)
    scores = np.stack([scorer.score([query] * len(items), texts_of_items) for query in drawn["test"]])
    print(f"{name}: {scores.size:,} exact scores in {time.perf_counter() - began:.0f} s", flush=True)
    return Set(Path(name).name, items, drawn["train"], drawn["test"], scores)


def measure_set(data: Set, scorer: Scorer, encoder: SentenceEncoder, options: argparse.Namespace) -> dict[str, Any]:
    per_query, per_item = PerQuery(items=options.per_query, retriever="dense"), PerItem(queries=options.per_item)
    nets = options.preset if options.preset in Inductive.PRESETS else "paper"  # which has none for ZeShEL
    ways: dict[str, tuple[Sampling | None, Method | None]] = {
        "DE": (None, None),
        "MF_trns/Q": (per_query, Transductive.preset(options.preset)),
        "MF_trns/I": (per_item, Transductive.preset(options.preset)),
        "MF_trns ALS/I": (per_item, Transductive(method="als")),
        "MF_ind/Q": (per_query, Inductive.preset(nets)),
        "MF_ind/I": (per_item, Inductive.preset(nets)),
    }
    first = Build(data.items, scorer=scorer, encoder=encoder, device=options.device)
    vectors = first.vectors  # encoded once, counted for all
    records = []
    for name, (sampling, factors) in ways.items():
        if name not in options.without:
            settings = {"sampling": sampling, "factors": factors, "device": options.device}
            build = Build(data.items, scorer=scorer, encoder=encoder, queries=data.train, **settings)
            build.vectors = vectors
            build.seconds |= first.seconds
            records.append(measure_index(name, Index.of(build.run(), scorer, encoder), data, scorer, encoder, options))
    if "DE_dstl/Q" not in options.without:
        records.append(distil(data, per_query, scorer, encoder, vectors, options))
    queries, items = data.scores.shape
    return {
        "set": data.name,
        "items": items,
        "test_queries": queries,
        "train_queries": len(data.train),
        "ways": records,
    }


def distil(
    data: Set,
    per_query: PerQuery,
    scorer: Scorer,
    encoder: SentenceEncoder,
    vectors: np.ndarray,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The dual encoder fine-tuned on G's scores, and its vectors of all items."""
    sampled = {"sampling": per_query, "factors": Transductive(), "device": options.device}
    build = Build(data.items, scorer=scorer, encoder=encoder, queries=data.train, **sampled)
    build.vectors = vectors
    entries = build.score()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        settings = Distillation.preset("paper", device=options.device)
        settings.fit(entries, encoder, data.train, data.items, Path(folder) / "encoder")
        taught = SentenceEncoder(Path(folder) / "encoder", device=options.device)
        seconds = {**build.seconds, "fine-tune": time.perf_counter() - began}
        index = Index.build(
            data.items, scorer=scorer, encoder=taught, queries=data.train, factors=None, device=options.device
        )
        record = measure_index("DE_dstl/Q", index, data, scorer, taught, options)
    record["calls"] += len(entries)
    record["seconds"] = {**seconds, **{f"{step} again": took for step, took in record["seconds"].items()}}
    return record


def measure_index(
    name: str, index: Index, data: Set, scorer: Scorer, encoder: SentenceEncoder, options: argparse.Namespace
) -> dict[str, Any]:
    lines = dict(zip(data.test, data.scores, strict=True))
    known = KnownScores(lines, data.items.texts, fingerprint=scorer.fingerprint)
    searcher = Searcher(index, scorer=known, encoder=encoder, device=options.device)
    own = "dense" if index.factors is None else "fitted"
    truth = [top_rows(line, 100).rows for line in data.scores]
    recall: dict[str, dict[str, Any]] = {}
    for k, budget in MEASURED:
        strategies: dict[str, Strategy] = {"Rerank": Rerank(budget, own)}
        strategies |= {f"Axn λ={mix:g}": Axn(budget, options.rounds, mix, "dense") for mix in MIXES}
        for strategy, made in strategies.items():
            found = searcher.search_many(data.test, k=budget, strategy=made)
            shares = 100 * top_k_recall(truth, [np.array([hit.row for hit in hits]) for hits in found], k)
            low, high = bootstrap_interval(shares)
            recall.setdefault(strategy, {})[f"{k}@{budget}"] = {
                "mean": round(float(shares.mean()), 1),
                "low": round(low, 1),
                "high": round(high, 1),
            }
    print(data.name, name, {s: [v["mean"] for v in found.values()] for s, found in recall.items()}, flush=True)
    fit = index.report.fit
    return {
        "vectors": name,
        "calls": index.report.calls,
        "items_never_scored": index.report.coverage.never_scored,
        "seconds": {step: round(took, 2) for step, took in index.report.seconds.items()},
        "held_out_r2": None if fit is None else fit["held_out_r2"],
        "recall": recall,
    }


if __name__ == "__main__":
    main()
