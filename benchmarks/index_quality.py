"""What item vectors are worth: recall of each strategy by where the vectors come from, and what they cost.

The paper's Figure 1 and its table of indexing times, on other data, with posterior search beside them. For each set:
the exact scores of some test queries (all items), then one index per way of building it, each from the same train
queries, its calls and its seconds by step, and the recall of every strategy with its vectors.

    python -m benchmarks.index_quality <set>... --scorer <folder> --out benchmarks/results/index_quality.json
    python -m benchmarks.index_quality example --scorer embedded

DE     the dual encoder's vectors                       MF_ind   its vectors through nets fitted to scores
MF_trns free vectors, fitted to scores                  DE_dstl  the dual encoder, fine-tuned on scores
"/Q" is 100 items per train query, the dual encoder's nearest; "/I" is 8 train queries per item, at random. "prior" is
that of `Index.build(prior=True)`, 8 calls per item. A set is what `crossknn bench set` takes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.posterior import summarise
from benchmarks.result_files import write_result
from benchmarks.sets import Set, add_options, open_scorer, read_set
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.comparison import rows_of
from crossknn.evaluate.ground_truth import exact_scores, truth_rows
from crossknn.evaluate.matrices import precomputed_scorer
from crossknn.evaluate.measures import top_k_recall
from crossknn.indexing.builder import Build
from crossknn.indexing.distillation import Distillation
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerItem, PerQuery
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Scorer

MEASURED = {100: (1, 10), 500: (100,)}  # k by budget
MIXES = (0.0, 0.5, 0.8)
WARM_UP = [f"{length} " * length for length in range(1, 129)]  # texts of all lengths


def main() -> None:
    options = read_options()
    scorer = open_scorer(options)
    encoder = warmed(SentenceEncoder(options.encoder, device=options.device))
    settings = ("seed", "rounds", "dtype", "preset", "per_query", "per_item", "max_query_tokens", "max_item_tokens")
    report: dict[str, Any] = {**{name: getattr(options, name) for name in settings}, "sets": []}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for name in options.sets:
            data = read_set(name, scorer, options)
            began = time.perf_counter()
            scores = exact_scores(data.items, data.test.texts, scorer, options.work)
            print(f"{data.name}: {scores.size:,} exact scores in {time.perf_counter() - began:.0f} s", flush=True)
            facts = {"set": data.name, "items": len(data.items), "train_queries": len(data.train.texts)}
            one = {**facts, "test_queries": len(scores), "ways": []}
            report["sets"].append(one)
            for index, record, used in build_all(data, encoder, options):
                one["ways"].append(record)
                recall = pool.submit(measure, index, data.test.texts, used, np.array(scores), options.rounds)
                recall.add_done_callback(partial(note, record, report, options))


def note(
    record: dict[str, Any], report: dict[str, Any], options: argparse.Namespace, recall: Future[dict[str, Any]]
) -> None:
    """Write down what a search found, as soon as it is there."""
    record["recall"] = recall.result()
    means = {strategy: [cell["mean"] for cell in cells.values()] for strategy, cells in record["recall"].items()}
    print(record["vectors"], record["seconds"], means, flush=True)
    write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help='BEIR folders and the like, or "example" for the embedded one')
    add_options(parser, train=500, test=100)
    parser.add_argument("--per-query", type=int, default=100, help='items per train query of "/Q"')
    parser.add_argument("--per-item", type=int, default=8, help='train queries per item of "/I"')
    parser.add_argument("--preset", default="paper", help="settings of the fits, such as paper-scidocs")
    parser.add_argument("--rounds", type=int, default=10, help="of Axn")
    parser.add_argument("--without", nargs="*", default=[], help="ways of building to leave out, such as DE_dstl/Q")
    parser.add_argument("--workers", type=int, default=1, help="processes that search, while others are built")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/index_quality.json"))
    return parser.parse_args()


def warmed(encoder: SentenceEncoder) -> SentenceEncoder:
    """What a device does once only is not counted."""
    encoder.encode_items(WARM_UP)
    return encoder


def fresh_scorer(options: argparse.Namespace) -> Scorer:
    """One that has tokenised no item yet, so that every way of building pays for that."""
    scorer = open_scorer(options)
    scorer.score(WARM_UP, WARM_UP)
    return scorer


def build_all(
    data: Set, encoder: SentenceEncoder, options: argparse.Namespace
) -> Iterator[tuple[Path, dict[str, Any], PrecomputedEncoder]]:
    """Per way of building: the folder of its index, calls and seconds, and what its encoder makes of test queries."""
    per_query, per_item = PerQuery(items=options.per_query, retriever="dense"), PerItem(queries=options.per_item)
    nets = options.preset if options.preset in Inductive.PRESETS else "paper"  # which has none for ZeShEL
    ways: dict[str, dict[str, Any]] = {
        "DE": {},
        "MF_trns/Q": {"sampling": per_query, "factors": Transductive.preset(options.preset)},
        "MF_trns/I": {"sampling": per_item, "factors": Transductive.preset(options.preset)},
        "MF_trns ALS/I": {"sampling": per_item, "factors": Transductive(method="als")},
        "MF_ind/Q": {"sampling": per_query, "factors": Inductive.preset(nets)},
        "MF_ind/I": {"sampling": per_item, "factors": Inductive.preset(nets)},
        "DE, prior": {"prior": True},
    }
    first = Build(data.items, scorer=fresh_scorer(options), encoder=encoder, device=options.device)
    vectors = first.vectors  # encoded once, counted for all
    folder = Path(tempfile.mkdtemp(dir=options.work))
    for name, settings in ways.items():
        if name not in options.without:
            scorer = fresh_scorer(options)
            build = Build(
                data.items,
                scorer=scorer,
                encoder=encoder,
                queries=data.train.texts,
                device=options.device,
                **settings,
            )
            build.vectors = vectors
            build.seconds |= first.seconds
            index = Index.from_build(build)
            yield keep(index, folder, name), describe(name, index), remember(encoder, data)
    if "DE_dstl/Q" not in options.without:
        yield from distil(data, per_query, encoder, vectors, folder, options)


def distil(
    data: Set,
    per_query: PerQuery,
    encoder: SentenceEncoder,
    vectors: np.ndarray,
    folder: Path,
    options: argparse.Namespace,
) -> Iterator[tuple[Path, dict[str, Any], PrecomputedEncoder]]:
    """The dual encoder fine-tuned on G's scores, and its vectors of all items, as they are and with a prior."""
    scorer = fresh_scorer(options)
    sampled = {"sampling": per_query, "factors": Transductive(), "device": options.device}
    build = Build(data.items, scorer=scorer, encoder=encoder, queries=data.train.texts, **sampled)
    build.vectors = vectors
    entries = build.score()
    began = time.perf_counter()
    settings = Distillation.preset("paper", device=options.device)
    fitted = settings.fit(entries, encoder, data.train.texts, data.items, folder / "encoder")
    taught = SentenceEncoder(folder / "encoder", device=options.device)
    seconds = {**build.seconds, "fine-tune": time.perf_counter() - began}
    for name, prior in (("DE_dstl/Q", False), ("DE_dstl/Q, prior", True)):
        index = Index.build(
            data.items,
            scorer=scorer,
            encoder=taught,
            queries=data.train.texts,
            factors=None,
            prior=prior,
            device=options.device,
        )
        record = describe(name, index)
        record["calls"] += len(entries)
        record["seconds"] = {step: round(took, 2) for step, took in seconds.items()} | {
            f"{step} again": took for step, took in record["seconds"].items()
        }
        record["epochs"] = fitted.report["epochs"]
        yield keep(index, folder, name), record, remember(taught, data)


def describe(name: str, index: Index) -> dict[str, Any]:
    fit = index.report.fit
    return {
        "vectors": name,
        "calls": index.report.calls,
        "items_never_scored": index.report.coverage.never_scored,
        "seconds": {step: round(took, 2) for step, took in index.report.seconds.items()},
        "held_out_r2": None if fit is None else fit["held_out_r2"],
    }


def keep(index: Index, folder: Path, name: str) -> Path:
    path = folder / name.replace("/", "-")
    index.save(path)
    return path


def remember(encoder: SentenceEncoder, data: Set) -> PrecomputedEncoder:
    vectors = encoder.encode_queries(data.test.texts)
    return PrecomputedEncoder(queries=(data.test.texts, vectors), fingerprint=encoder.fingerprint)


def measure(
    folder: Path, queries: list[str], encoder: PrecomputedEncoder, scores: np.ndarray, rounds: int
) -> dict[str, Any]:
    """The recall of each strategy with an index; runs in a process of its own."""
    torch.set_num_threads(1)
    index = Index.load(folder)
    known = precomputed_scorer(scores, queries=queries, items=index.items.texts, fingerprint=index.scorer)
    searcher = Searcher(index, scorer=known, encoder=encoder, check_models=False)  # the vectors come from a file
    own = "dense" if index.factors is None else "fitted"
    truth = truth_rows(scores, 100)
    recall: dict[str, dict[str, Any]] = {}
    for budget, ks in MEASURED.items():
        strategies: dict[str, Strategy] = {"Rerank": Rerank(budget, own)}
        strategies |= {f"Axn λ={mix:g}": Axn(budget, rounds, mix, "dense") for mix in MIXES}
        strategies["Posterior"] = Posterior(budget, rounds)
        for strategy, made in strategies.items():
            rows = [rows_of(hits) for hits in searcher.search_many(queries, k=budget, strategy=made)]
            shares = {k: 100 * top_k_recall(truth, rows, k) for k in ks}
            recall.setdefault(strategy, {}).update({f"{k}@{budget}": summarise(found) for k, found in shares.items()})
    return recall


if __name__ == "__main__":
    main()
