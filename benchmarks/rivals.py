"""Posterior search beside the rivals of 2023 to 2026, at equal calls, each with settings chosen on train queries.

    python -m benchmarks.rivals <score folder>... --out benchmarks/results/rivals.json

The last fifth of each folder's train queries are dev queries: the settings of a strategy are those of its search space
(`crossknn bench --tune`) with the highest mean recall on them over all k with 25 and 100 calls. Recall is the share of
the exact top k found within the budget, in percent. Differences are to `Posterior` at equal offline calls, paired over
queries, with 95 % intervals. Strategies with "prior" and the one with "8" learn from 8 calls per item; "all" from all
train scores. Milliseconds are processor time of single queries, with default settings and scores
looked up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.posterior import CALLS_PER_ITEM, summarise
from benchmarks.result_files import write_result
from crossknn.evaluate.benchmark import Bench, RecallTrial
from crossknn.evaluate.contenders import ResolvedStrategy, VectorSource
from crossknn.evaluate.measures import paired_difference
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.evaluate.tuning import Candidates, choose, make_candidates
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.gaussian_process import GaussianProcess
from crossknn.strategies.gp import Gp, standardized_features
from crossknn.strategies.posterior.prior import NOISE_VARIANCE, Prior
from crossknn.strategies.registry import STRATEGIES
from crossknn.types import Proposal

KS, BUDGETS = (1, 10, 100), (10, 25, 50, 100, 200, 500)
TUNED_BUDGETS = (25, 100)  # the search space is tried with these
LEARNED = (", prior", ", 8", ", all")  # ends of names
LEFT_OUT = ("gp, mean query, prior",)  # this mean ignores the prior
BESIDE = "adacur"
NAMES = (
    "rerank",
    "posterior",
    "gp:mean=signals",
    "gp:mean=query",
    "axn",
    "gar",
    "quam",
    "rgs",
    "ore",
    "feedback",
    "tour:loss=ce",
    "tour:loss=ce:rounds=2",
)
RESIDUAL_QUERIES = 60
RBF_VARIANCES = (0.0, 1.0)  # for scores of variance 1, or in units of the prior's noise / 0.2
RESIDUALS: tuple[VectorSource, ...] = ("encoder", "prior")
SOME = ((10, 100), (100, 500))
TIMED, TIMED_BUDGET = 20, 100  # queries


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
    """A strategy with its chosen settings, and the indexes that it learns from."""

    name: str
    chosen: ResolvedStrategy
    bench: Bench


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"sets": []}
    for folder in options.folders:
        task = read_matrix(folder, queries=options.queries, tune=True)
        if task.dev is None:
            raise SystemExit(f"{folder}: needs train queries.")
        report["sets"].append({})
        for found in measure_set(shorten(task, options.dev_queries), options):
            report["sets"][-1] = found
            write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--queries", type=int, default=150, help="at most this many, the first, of the test queries")
    parser.add_argument("--dev-queries", type=int, default=20, help="at most this many of the dev queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rivals.json"))
    return parser.parse_args()


def shorten(task: Task, dev_queries: int) -> Task:
    assert task.dev is not None
    dev = task.dev._replace(queries=task.dev.queries[:dev_queries], scores=task.dev.scores[:dev_queries])
    return replace(task, dev=dev)


def measure_set(task: Task, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The result so far, after every strategy."""
    few = Bench(task, calls_per_item=CALLS_PER_ITEM, anchors=CALLS_PER_ITEM, seed=options.seed)
    many = Bench(task, anchors=len(task.train), seed=options.seed)
    dev = task.dev
    assert dev is not None
    found: dict[str, Any] = {
        "set": task.name,
        "items": len(task.items),
        "train_queries": len(task.train),
        "dev_queries": len(dev.queries),
        "test_queries": len(task.queries),
        "chosen": {},
        "search_space": {},
        f"milliseconds_at_{TIMED_BUDGET}": {},
    }
    shares: dict[tuple[str, int, int], np.ndarray] = {}
    trial = RecallTrial(task.queries, task.scores, KS)
    for name, chosen, bench in chain(tune(few, NAMES), tune(few, ("rbe",), ", 8"), tune(many, ("rbe",), ", all")):
        began = time.perf_counter()
        searcher = bench.searcher(chosen.vectors)
        for budget in BUDGETS:
            cells = trial.search(searcher, chosen.contender.make(budget), budget)
            shares |= {(name, k, budget): 100 * cell.recall for k, cell in cells.items()}
        milliseconds = time_of_search(searcher, task, STRATEGIES[chosen.kind](budget=TIMED_BUDGET))
        print(task.name, name, f"{time.perf_counter() - began:.0f} s", flush=True)
        found["chosen"][name] = dict(chosen.settings)
        found["search_space"][chosen.kind] = dict(STRATEGIES[chosen.kind].grid({}))
        found[f"milliseconds_at_{TIMED_BUDGET}"][name] = milliseconds
        names = list(found["chosen"])
        if "posterior, prior" in names:
            found["cells"] = [compare_cell(shares, names, k, budget) for k in KS for budget in BUDGETS]
            yield found
    some = RecallTrial(task.queries[:RESIDUAL_QUERIES], task.scores[:RESIDUAL_QUERIES], KS)
    found["rbf_on_the_residual"] = {name: add_kernel(few, some, name) for name in RESIDUALS}
    yield found


def tune(bench: Bench, names: Sequence[str], suffix: str = "") -> Iterator[Side]:
    """Each strategy with its best settings on the dev queries."""
    families: list[Candidates] = []
    for name in names:  # beside another, because a name that leaves nothing to tune is refused alone
        families += make_candidates([name, BESIDE], bench.available, budgets=BUDGETS)[:-1]
    families = [one for one in families if one.named.vectors != "fitted" and one.named.family not in LEFT_OUT]
    for family in families:
        began = time.perf_counter()
        (choice,) = choose(bench, [family], budgets=TUNED_BUDGETS, ks=KS)
        print(family.name, choice.description, f"{time.perf_counter() - began:.0f} s", flush=True)
        yield Side(family.named.family + suffix, choice.chosen, bench)


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
            cell[f"{rbf:g} − without"] = difference(found[rbf, k, budget], found[0.0, k, budget])
        cells.append(cell)
    return cells


def time_of_search(searcher: Searcher, task: Task, strategy: Strategy) -> float:
    """Milliseconds of processor time per single query, with scores looked up: the median, after one to warm up."""
    times = []
    for query in [task.queries[0], *task.queries[:TIMED]]:
        began = time.process_time()
        searcher.search(query, k=10, strategy=strategy)
        times.append(1000 * (time.process_time() - began))
    return round(float(np.median(times[1:])), 1)


def compare_cell(
    shares: dict[tuple[str, int, int], np.ndarray], names: Sequence[str], k: int, budget: int
) -> dict[str, Any]:
    """The recall of every side, and its difference to posterior search at equal offline calls and to reranking."""
    cell: dict[str, Any] = {"k": k, "budget": budget, "recall": {}, "− posterior": {}, "− rerank": {}}
    for name in names:
        mine = shares[name, k, budget]
        cell["recall"][name] = summarise(mine)
        other = "posterior, prior" if name.endswith(LEARNED) else "posterior"
        if name != other:
            cell["− posterior"][name] = difference(mine, shares[other, k, budget])
        if name != "rerank":
            cell["− rerank"][name] = difference(mine, shares["rerank", k, budget])
    return cell


def difference(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    found = paired_difference(ours, theirs)
    return {part: round(getattr(found, part), 1) for part in ("mean", "low", "high")}


if __name__ == "__main__":
    main()
