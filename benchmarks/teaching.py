"""What teaching brings: recall per call with the encoder as it came and with the taught one, on several sets.

    python -m benchmarks.teaching <set>... --scorer <folder> --encoder <folder>

For each set: exact scores of some test queries, then `Index.build` without and with teaching, default settings, from
the same train queries; the recall of every strategy with either, at several budgets. A set is a BEIR folder, or one
with `texts.json.xz` (`item_ids`, `items`, `test`, `train`). Sets that the file has already are kept.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.posterior import summarise
from benchmarks.result_files import write_result
from benchmarks.sets import Drawn, Set, add_options, open_scorer, read_set
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.comparison import rows_of
from crossknn.evaluate.ground_truth import exact_scores, truth_rows
from crossknn.evaluate.matrices import precomputed_scorer
from crossknn.evaluate.measures import top_k_recall
from crossknn.indexing.index import Index
from crossknn.indexing.teaching.settings import Teaching
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Scorer

KS = (1, 10, 100)
BUDGETS = (25, 50, 100, 125, 200, 500)
BASELINE_BUDGETS = (100, 200, 500)  # of Axn, whose settings are many
MIXES, FIRST = (0.0, 0.5, 0.8), ("dense", "bm25")
ROUNDS = 10


def main() -> None:
    options = read_options()
    scorer = open_scorer(options)
    encoder = SentenceEncoder(options.encoder, device=options.device, dtype="float32")
    report: dict[str, Any] = {"sets": {}}
    if options.out.exists():
        report = json.loads(options.out.read_text())
    for name in options.sets:
        texts = (Path(name) / "texts.json.xz").exists()
        data = read_texts(Path(name), options) if texts else read_set(name, scorer, options)
        record = report["sets"].setdefault(data.name, {})
        for way, measured in measure_set(data, scorer, encoder, options):
            record[way] = measured
            write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    add_options(parser, train=1_000_000, test=100)
    parser.add_argument("--prior", action="store_true", help="also with a prior over the taught vectors")
    parser.add_argument(
        "--change",
        nargs="*",
        default=[],
        help='other settings of teaching, such as {"evidence": 0} or {"student": "adapter"}',
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/teaching_h200.json"))
    return parser.parse_args()


def read_texts(folder: Path, options: argparse.Namespace) -> Set:
    with lzma.open(folder / "texts.json.xz", "rt", encoding="utf-8") as file:
        content = json.load(file)
    rng = np.random.default_rng(options.seed)
    texts = list(dict.fromkeys(query["text"] for query in content["test"]))
    test = [texts[at] for at in rng.permutation(len(texts))[: options.test]]
    train = [query["text"] for query in content["train"] if query["text"] not in set(test)]
    return Set(folder.name, Items(content["items"], ids=content["item_ids"]), Drawn(train, []), Drawn(test, []))


def measure_set(
    data: Set, scorer: Scorer, encoder: SentenceEncoder, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each way of building, with its calls, seconds and recall."""
    queries = data.test.texts
    began = time.perf_counter()
    scores = np.array(exact_scores(data.items, queries, scorer, options.work))
    print(f"{data.name}: {scores.size:,} exact scores in {time.perf_counter() - began:.0f} s", flush=True)
    yield "facts", {"items": len(data.items), "train_queries": len(data.train.texts), "test_queries": len(queries)}
    ways: dict[str, dict[str, Any]] = {"encoder": {"factors": None, "teach": False}, "taught": {}}
    for text in options.change:
        changes = json.loads(text)
        student = changes.pop("student", "encoder")
        default = Teaching.default(len(data.items), student=student, device=options.device)
        ways[f"taught, {text}"] = {"teach": replace(default, **changes)}
    if options.prior:
        ways["taught, prior"] = {"prior": True}
    for way, settings in ways.items():
        began = time.perf_counter()
        index = Index.build(
            data.items,
            scorer=scorer,
            encoder=encoder,
            queries=data.train.texts,
            work_dir=options.work / f"{data.name}.work",
            device=options.device,
            **{"prior": False, **settings},
        )
        took = time.perf_counter() - began
        own = index.choose_encoder(encoder, device=options.device)
        searcher = Searcher(
            index,
            scorer=precomputed_scorer(
                np.array(scores), queries=queries, items=data.items.texts, fingerprint=index.scorer
            ),
            encoder=PrecomputedEncoder(queries=(queries, own.encode_queries(queries)), fingerprint=index.encoder),
            device=options.device,
            check_models=False,
        )
        teaching = index.report.teaching
        print(data.name, way, f"{took:.0f} s", index.report, teaching and dict(teaching.seconds), sep="\n", flush=True)
        yield (
            way,
            {
                "calls": index.report.calls,
                "build_seconds": round(took, 1),
                "seconds": {step: round(value, 1) for step, value in index.report.seconds.items()},
                "teaching": None if teaching is None else describe(teaching.as_dict()),
                "recall": measure(searcher, queries, truth_rows(scores, max(KS)), way),
            },
        )


def describe(teaching: dict[str, Any]) -> dict[str, Any]:
    rounded = {name: round(value, 1) for name, value in teaching["seconds"].items()}
    return {**teaching, "seconds": rounded, "pairs_per_s": round(teaching["pairs"] / teaching["training_seconds"])}


def measure(searcher: Searcher, queries: list[str], truth: list[np.ndarray], way: str) -> dict[str, Any]:
    """Recall of the top k by strategy and budget."""
    recall: dict[str, dict[str, Any]] = {}
    for budget in BUDGETS:
        for name, strategy in strategies(budget).items():
            hits = searcher.search_many(queries, k=budget, strategy=strategy)
            rows = [rows_of(one) for one in hits]
            for k in KS:
                if k <= budget:
                    found = 100 * top_k_recall(truth, rows, k)
                    recall.setdefault(name, {})[f"{k}@{budget}"] = summarise(found)
    shown = {name: [cell["mean"] for cell in cells.values()] for name, cells in recall.items()}
    print(way, shown, flush=True)
    return recall


def strategies(budget: int) -> dict[str, Strategy]:
    chosen: dict[str, Strategy] = {f"Rerank {name}": Rerank(budget, name) for name in ("dense", "bm25", "fused")}
    if budget in BASELINE_BUDGETS:
        chosen |= {f"Axn {name} λ={mix:g}": Axn(budget, ROUNDS, mix, name) for mix in MIXES for name in FIRST}
    return {**chosen, "Posterior": Posterior(budget, ROUNDS)}


if __name__ == "__main__":
    main()
