"""Posterior search beside the rivals of 2023 to 2026, at equal calls, each with settings chosen on train queries.

    python -m benchmarks.rivals <score folder>[=<cross-encoder>]... --out benchmarks/results/rivals.json

The last fifth of each folder's train queries are dev queries: the settings of a strategy are those of its search space
(`crossknn bench --tune`) with the highest mean recall on them over all k with 25 and 100 calls. Recall is the share of
the exact top k found within the budget, in percent, and nDCG@10 is by judgments, where there are any. Differences are
paired over queries: to `Posterior` at equal offline calls, and to fused reranking. Each has its own 95 % interval, and
`shown` says whether it stands among all comparisons of the set (`benchmarks.simultaneous`). Strategies with "prior" or
"fitted" and the one with "8" learn from 8 calls per item; "all" from all train scores. Milliseconds are processor time
of single queries, with scores looked up. What a strategy found is kept in the work folder at once: run it again after
an interruption. More than 500 calls are made on sets of at most 10,000 items.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kept_parts import KeptParts, describe_folder
from benchmarks.posterior import CALLS_PER_ITEM, summarise
from benchmarks.result_files import write_result
from benchmarks.simultaneous import compare_all
from crossknn.evaluate.benchmark import FIRST_STAGES, Bench, RecallTrial
from crossknn.evaluate.comparison import rows_of, search_in_batches
from crossknn.evaluate.contenders import VectorSource
from crossknn.evaluate.ground_truth import truth_hits, truth_rows
from crossknn.evaluate.measures import measure_quality, top_k_recall
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.evaluate.tuning import Candidates, choose, make_candidates
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.gaussian_process import GaussianProcess
from crossknn.strategies.gp import Gp, standardized_features
from crossknn.strategies.posterior.prior import NOISE_VARIANCE, Prior
from crossknn.strategies.registry import STRATEGIES
from crossknn.types import Proposal

KS, BUDGETS = (1, 10, 100), (10, 25, 50, 100, 200, 500, 1000)
LARGE, LARGE_ITEMS = 500, 10_000  # more calls only on sets of at most so many items
TUNED_BUDGETS = (25, 100)  # the search space is tried with these
LEARNED = (", prior", ", fitted", ", 8", ", all")  # ends of names
LEFT_OUT = ("gp, mean query, prior",)  # this mean ignores the prior
BESIDE = "adacur"
FUSED, POSTERIOR, WITH_PRIOR = "rerank, fused", "posterior", "posterior, prior"
MEASURE, DEPTH = "nDCG@10", 10
SCORER = "MiniLM-L6"  # of folders that name no other
NAMES = (
    "rerank:retriever=fused",
    "posterior",
    "rerank",
    "axn",
    "gar",
    "quam",
    "rgs",
    "ore",
    "feedback",
    "tour:loss=ce",
    "tour:loss=ce:rounds=2",
    "gp:mean=signals",
    "gp:mean=query",
)
FROM_ALL = ("adacur", "rbe")
RESIDUAL_QUERIES, RESIDUAL_ITEMS = 60, 10_000  # at most
RBF_VARIANCES = (0.0, 1.0)  # for scores of variance 1, or in units of the prior's noise / 0.2
RESIDUALS: tuple[VectorSource, ...] = ("encoder", "prior")
SOME = ((10, 100), (100, 500))
TIMED, TIMED_BUDGET = 10, 100  # queries

Shares = dict[tuple[str, int, int], np.ndarray]  # of every query, by strategy, k and budget
Quality = dict[tuple[str, int], np.ndarray]  # of every query, by strategy and budget


@dataclass(frozen=True, repr=False)
class Residual(Gp):
    """All features of posterior search as a linear kernel, and an RBF kernel of variance `rbf` beside them.

    With 0 this is posterior search without its hedge and its model check, on the candidates alone.
    """

    rbf: float = 0.0

    def make_process(
        self, vectors: np.ndarray, prior: Prior, lists: Sequence[Proposal], rows: np.ndarray
    ) -> GaussianProcess:
        signals = standardized_features(prior, lists, rows) * np.sqrt(prior.signal_variances)
        columns = [vectors[:-1] * np.sqrt(prior.vector_variance), signals]
        columns.append(np.full((len(rows), 1), np.sqrt(prior.constant_variance)))
        if prior.fitted:
            columns += [prior.latent_factors[rows], prior.bias_scale * prior.bias[rows, None]]
        features = np.concatenate(columns, axis=1)
        features = np.concatenate([features, np.zeros_like(features[:1])])  # the query has none
        rbf = self.rbf * prior.noise / NOISE_VARIANCE
        return GaussianProcess(vectors, rbf, 1.0, length_scale=1.0, noise=prior.noise, features=features)


class Side(NamedTuple):
    """A strategy that is searched with once its settings are chosen, and the indexes that it learns from."""

    name: str
    family: Candidates
    bench: Bench


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"sets": []}
    for given in options.folders:
        folder, _, scorer = given.partition("=")
        report["sets"].append(measure_folder(Path(folder), scorer or SCORER, options))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="of exact scores, each with the name of the cross-encoder behind =")
    parser.add_argument("--queries", type=int, default=300, help="at most this many, the first, of the test queries")
    parser.add_argument("--dev-queries", type=int, default=30, help="at most this many of the dev queries")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, metavar="CALLS")
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="only those with these names, such as axn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path(".bench/rivals"), help="folder of what is found so far")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rivals.json"))
    return parser.parse_args()


def measure_folder(folder: Path, scorer: str, options: argparse.Namespace) -> dict[str, Any]:
    task = read_matrix(folder, queries=options.queries, tune=True)
    if task.dev is None:
        raise SystemExit(f"{folder}: needs train queries.")
    task = shorten(task, options.dev_queries)
    inputs = [describe_folder(folder), options.queries, options.dev_queries, options.seed]
    return measure_set(task, scorer, KeptParts(options.work / f"{task.name}-{scorer}", inputs), options)


def shorten(task: Task, dev_queries: int) -> Task:
    assert task.dev is not None
    dev = task.dev._replace(queries=task.dev.queries[:dev_queries], scores=task.dev.scores[:dev_queries])
    return replace(task, dev=dev)


def measure_set(task: Task, scorer: str, kept: KeptParts, options: argparse.Namespace) -> dict[str, Any]:
    few = Bench(task, calls_per_item=CALLS_PER_ITEM, anchors=CALLS_PER_ITEM, seed=options.seed)
    many = Bench(task, anchors=len(task.train), seed=options.seed)
    dev = task.dev
    assert dev is not None
    budgets = [budget for budget in options.budgets if budget <= LARGE or len(task.items) <= LARGE_ITEMS]
    found: dict[str, Any] = {
        "set": task.name,
        "scorer": scorer,
        "items": len(task.items),
        "train_queries": len(task.train),
        "dev_queries": len(dev.queries),
        "test_queries": len(task.queries),
        "chosen": {},
        "search_space": {},
        "offline_calls_per_item": {},
        f"milliseconds_at_{TIMED_BUDGET}": {},
    }
    shares, quality = Shares(), Quality()
    sides = chain(
        families(few, NAMES, options),
        families(few, ("rbe",), options, ", 8"),
        families(many, FROM_ALL, options, ", all"),
    )
    for side in sides:
        tuned = kept.get(f"{side.name}, settings", partial(tune_side, side))
        found["chosen"][side.name] = tuned["settings"]
        found["search_space"][side.family.named.kind] = tuned["search_space"]
        found["offline_calls_per_item"][side.name] = tuned["offline"]
        found[f"milliseconds_at_{TIMED_BUDGET}"][side.name] = tuned["milliseconds"]
        for budget in budgets:
            part = kept.get(f"{side.name}, {budget}", partial(measure_side, side, tuned["choice"], budget))
            shares |= {(side.name, k, budget): np.array(part["recall"][str(k)]) for k in KS}
            if part["quality"]:
                quality[side.name, budget] = np.array(part["quality"])
    if len(task.items) <= RESIDUAL_ITEMS:
        some = RecallTrial(task.queries[:RESIDUAL_QUERIES], task.scores[:RESIDUAL_QUERIES], KS)
        found["rbf_on_the_residual"] = {
            name: kept.get(f"residual, {name}", partial(add_kernel, few, some, name)) for name in RESIDUALS
        }
    return found | compare_sides(shares, quality) | judge_orders(few)


def families(bench: Bench, names: Sequence[str], options: argparse.Namespace, suffix: str = "") -> Iterator[Side]:
    """Each strategy with its candidates."""
    found: list[Candidates] = []
    for name in names:  # beside another, because a name that leaves nothing to tune is refused alone
        others = [name, BESIDE] if name != BESIDE else [name]
        found += make_candidates(others, bench.available, budgets=options.budgets)[: -1 if name != BESIDE else None]
    for one in found:
        wanted = options.strategies is None or one.named.kind in (*options.strategies, "rerank", "posterior")
        if one.named.family not in LEFT_OUT and wanted:
            yield Side(one.named.family + suffix, one, bench)


def tune_side(side: Side) -> dict[str, Any]:
    """The best settings on the dev queries, by their place among the candidates too, and what a search takes."""
    bench, began = side.bench, time.perf_counter()
    (choice,) = choose(bench, [side.family], budgets=TUNED_BUDGETS, ks=KS)
    chosen = choice.chosen
    settings = [dict(one.settings) for one in side.family.candidates]
    searcher = bench.searcher(chosen.vectors)
    offline = 0 if searcher.index is None else searcher.index.report.calls
    print(bench.task.name, side.name, choice.description, f"{time.perf_counter() - began:.0f} s", flush=True)
    return {
        "choice": settings.index(dict(chosen.settings)),
        "settings": dict(chosen.settings),
        "search_space": dict(STRATEGIES[chosen.kind].grid({})),
        "offline": round(offline / len(bench.task.items), 1),
        "milliseconds": time_of_search(searcher, bench.task, chosen.contender.make),
    }


def measure_side(side: Side, choice: int, budget: int) -> dict[str, Any]:
    """Recall and nDCG@10 of each query, in percent."""
    task, chosen, began = side.bench.task, side.family.candidates[choice], time.perf_counter()
    found = search_in_batches(
        side.bench.searcher(chosen.vectors), task.queries, chosen.contender.make(budget), k=budget
    )
    hits = list(chain(*found))  # all scored rows
    rows, truth = [rows_of(one) for one in hits], truth_rows(task.scores, max(KS))
    recall = {k: (100 * top_k_recall(truth, rows, k)).round(3).tolist() for k in KS}
    quality = [] if task.judged is None else ndcg(task, [one.ids for one in hits]).round(3).tolist()
    print(task.name, side.name, budget, f"{time.perf_counter() - began:.0f} s", flush=True)
    return {"recall": {str(k): values for k, values in recall.items()}, "quality": quality}


def ndcg(task: Task, ids: Sequence[Sequence[str]]) -> np.ndarray:
    """(queries,) in percent."""
    assert task.judged is not None
    return 100 * measure_quality(task.judged, [one[:DEPTH] for one in ids], measures=[MEASURE])[MEASURE]


def judge_orders(bench: Bench) -> dict[str, Any]:
    """The nDCG@10 of exact search, and of retrievers without the cross-encoder; nothing without judgments."""
    task = bench.task
    if task.judged is None:
        return {}
    exact = [hits.ids for hits in truth_hits(task.items, task.queries, task.scores, DEPTH)]
    orders = {"exact": summarise(ndcg(task, exact))}
    for name in FIRST_STAGES:
        if name in task.retriever_names:
            proposed = bench.searcher("encoder").retriever(name).retrieve(task.queries, DEPTH)
            orders[name] = summarise(ndcg(task, [task.items.ids_of(one.rows) for one in proposed]))
    return {"quality_of_orders": orders}


def time_of_search(searcher: Searcher, task: Task, make: Callable[[int], Strategy]) -> float:
    """Milliseconds of processor time per single query, with scores looked up: the median, after one to warm up."""
    times, strategy = [], make(TIMED_BUDGET)
    for query in [task.queries[-1], *task.queries[:TIMED]]:
        began = time.process_time()
        searcher.search(query, k=10, strategy=strategy)
        times.append(1000 * (time.process_time() - began))
    return round(float(np.median(times[1:])), 1)


def compare_sides(shares: Shares, quality: Quality) -> dict[str, Any]:
    """Recall and nDCG@10 of every side, with differences to posterior search and to fused reranking."""
    cells, comparisons = compare_recall(shares)
    judged, judged_comparisons = compare_quality(quality)
    return {"comparisons": {"recall": comparisons, "quality": judged_comparisons}, "cells": cells, "quality": judged}


def compare_recall(shares: Shares) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    pairs = {
        (base, name, k, budget): (mine, shares[other, k, budget])
        for (name, k, budget), mine in shares.items()
        for base, other in baselines_of(name)
    }
    differences, facts = compare_each_baseline(pairs)
    cells: list[dict[str, Any]] = []
    for k, budget in dict.fromkeys((k, budget) for _, k, budget in shares):
        sides = {name: mine for (name, *cell), mine in shares.items() if cell == [k, budget]}
        cell: dict[str, Any] = {"k": k, "budget": budget}
        cell["recall"] = {name: summarise(mine) for name, mine in sides.items()}
        for base in facts:
            found = {name: differences.get((base, name, k, budget)) for name in sides}
            cell[f"− {base}"] = {name: one for name, one in found.items() if one is not None}
        cells.append(cell)
    return cells, facts


def compare_quality(quality: Quality) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    pairs = {
        (base, name, budget): (mine, quality[other, budget])
        for (name, budget), mine in quality.items()
        for base, other in baselines_of(name)
    }
    differences, facts = compare_each_baseline(pairs)
    records = []
    for (name, budget), mine in quality.items():
        found = {base: differences.get((base, name, budget)) for base in facts}
        gaps = {f"− {base}": one for base, one in found.items() if one is not None}
        records.append({"strategy": name, "budget": budget, MEASURE: summarise(mine), **gaps})
    return records, facts


def baselines_of(name: str) -> Iterator[tuple[str, str]]:
    """What a side is compared with: posterior search at equal offline calls, and fused reranking."""
    other = WITH_PRIOR if name.endswith(LEARNED) else POSTERIOR
    if name != other:
        yield POSTERIOR, other
    if name != FUSED:
        yield FUSED, FUSED


def compare_each_baseline(pairs: dict[Any, tuple[np.ndarray, np.ndarray]]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The differences of all pairs, and by baseline how many there are and the common critical value."""
    differences: dict[Any, Any] = {}
    facts: dict[str, Any] = {}
    for base in dict.fromkeys(pair[0] for pair in pairs):
        mine = {pair: values for pair, values in pairs.items() if pair[0] == base}
        found, critical = compare_all(mine)
        differences |= found
        facts[base] = {"comparisons": len(mine), "critical_t": round(critical, 2)}
    return differences, facts


def add_kernel(bench: Bench, trial: RecallTrial, vectors: VectorSource) -> list[dict[str, Any]]:
    """What an RBF kernel beside posterior search's features adds to its recall."""
    cells, found = [], {}
    for rbf in RBF_VARIANCES:
        for k, budget in SOME:
            searched = trial.search(bench.searcher(vectors), Residual(budget, rbf=rbf), budget)
            found[rbf, k, budget] = 100 * searched[k].recall
    for k, budget in SOME:
        cell: dict[str, Any] = {"k": k, "budget": budget, "without": summarise(found[0.0, k, budget])}
        for rbf in RBF_VARIANCES[1:]:
            pair = (found[rbf, k, budget], found[0.0, k, budget])
            cell[f"{rbf:g} − without"] = compare_all({"": pair})[0][""]
        cells.append(cell)
    return cells


if __name__ == "__main__":
    main()
