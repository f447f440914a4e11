"""Is expected recall right with and without calibration, what does stopping by it save, and what does the guard cost?

    python -m benchmarks.stopping <score folder>... --out benchmarks/results/stopping.json

Every test query is searched with 500 calls in 20 rounds, by an index with a prior and one without. After each round the
expected recall of the top k, with and without the calibration on train queries, stands beside the measured one. A
search that stops at an expected recall is compared with the fixed budget that finds as much on average. The guard,
which follows a retriever where the model does not fit, is counted, and recall without it measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.plots import render_png
from benchmarks.posterior import CALLS_PER_ITEM, Shares, build, search
from benchmarks.result_files import write_result
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import QUERY_BATCH
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.measures import top_k_recall
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.indexing.index import Index
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Flow, FlowResult, SearchContext
from crossknn.strategies.posterior.calibration import calibration_error, reliability_bins
from crossknn.strategies.posterior.diagnostics import expected_recall
from crossknn.strategies.posterior.session import PosteriorSession
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.types import Rows

KS, BUDGETS, STOPS = (1, 10, 100), (25, 50, 100, 200, 500), (0.8, 0.9, 0.95, 0.99)
WATCHED = Posterior(500, 20, stop_at=1.0)  # expects recall after each round; goes on unless all is surely found
FEWEST = 10  # searches of a bin that is drawn


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"watched": repr(WATCHED), "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(read_matrix(folder, queries=options.queries)))
        write_result(options.out, report, options)
    options.out.with_suffix(".png").write_bytes(draw(report["sets"]))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/stopping.json"))
    return parser.parse_args()


def measure_set(task: Task) -> dict[str, Any]:
    bench = Bench(task)
    indexes = {
        "no prior": bench.build(None, None, calibrate=True),
        "prior": build(bench, CALLS_PER_ITEM, calibrate=True),
    }
    sides = {name: measure_side(task, name, index, bench.search_with(index)) for name, index in indexes.items()}
    return {"set": task.name, "items": len(task.items), "test_queries": len(task.queries), "sides": sides}


def measure_side(task: Task, name: str, index: Index, searcher: Searcher) -> dict[str, Any]:
    fixed, guard = measure_guard(task, searcher)
    assert index.recall_calibration is not None
    assert index.report.calibration is not None
    fit = {**asdict(index.recall_calibration), **asdict(index.report.calibration)}
    found: dict[str, Any] = {"calibration": fit, "guard": guard, "top": []}
    for k in KS:
        calibrated, uncalibrated = watch(task, searcher, k)
        curve = [round(float(fixed[k, budget].mean()), 1) for budget in BUDGETS]
        found["top"].append(
            {
                "k": k,
                "fixed": dict(zip(BUDGETS, curve, strict=True)),
                "uncalibrated": describe(uncalibrated, curve),
                "calibrated": describe(calibrated, curve),
            }
        )
        print(task.name, name, json.dumps(found["top"][-1]), flush=True)
    return found


def measure_guard(task: Task, searcher: Searcher) -> tuple[Shares, list[dict[str, Any]]]:
    """Recall within fixed budgets; for each how many queries the guard took over at least once, and what it adds."""
    shares: Shares = {}
    records = []
    for budget in BUDGETS:
        cells = [(k, budget) for k in KS]
        with counting() as unfit:
            shares |= search(task, searcher, Posterior, cells)
        with patch.object(PosteriorSession, "misfits", lambda session: np.zeros(len(session), np.bool_)):
            without = search(task, searcher, Posterior, cells)
        added = {f"top {k}": round(float((shares[k, budget] - without[k, budget]).mean()), 2) for k in KS}
        guarded = round(100 * sum(map(len, unfit)) / len(task.queries), 1)
        records.append({"budget": budget, "guarded_percent": guarded, **added})
    return shares, records


@contextmanager
def counting() -> Iterator[list[set[int]]]:
    """For each search of some queries, which of them followed a retriever in some round after the first."""
    found: dict[int, tuple[PosteriorSession, set[int]]] = {}
    misfits = PosteriorSession.misfits

    def count(session: PosteriorSession) -> np.ndarray:
        which = misfits(session)
        found.setdefault(id(session), (session, set()))[1].update(np.flatnonzero(which).tolist())
        return which

    followed: list[set[int]] = []
    with patch.object(PosteriorSession, "misfits", count):
        yield followed
    followed += [mine for _, mine in found.values()]


class Course(NamedTuple):
    """Of every query after each round: calls so far, and expected and measured recall."""

    calls: np.ndarray  # (queries, rounds)
    expected: np.ndarray
    measured: np.ndarray


@dataclass
class Watch:
    """`WATCHED`, and what it asked for and expected, round by round."""

    budget: int = WATCHED.budget
    asked: list[list[Rows]] = field(default_factory=list)
    expected: list[list[float]] = field(default_factory=list)
    uncalibrated: list[list[float]] = field(default_factory=list)

    def flow(self, context: SearchContext) -> Flow:
        def expect(counts: np.ndarray) -> None:
            above, k = torch.from_numpy(counts), min(context.k or 0, context.reachable)
            best = torch.where(torch.isinf(above), -torch.inf, 0.0)
            self.uncalibrated.append(expected_recall(above, best, k).tolist())

        flow = WATCHED.flow(replace(context, on_counts=expect))
        ask = next(flow)
        while True:
            self.asked.append([proposal.rows for proposal in ask.proposals])
            scores = yield ask
            try:
                ask = flow.send(scores)
            except StopIteration as end:
                result: FlowResult = end.value
                self.expected.append(result.expected_recall or [])
                return result
            self.expected.append(ask.expected_recall or [])


def watch(task: Task, searcher: Searcher, k: int) -> tuple[Course, Course]:
    """With and without calibration."""
    truth, parts = truth_rows(task.scores, k), []
    for start in range(0, len(task.queries), QUERY_BATCH):
        watched = Watch()
        searcher.search_many(task.queries[start : start + QUERY_BATCH], k=k, strategy=watched)
        parts.append(follow(watched, truth[start : start + QUERY_BATCH], k))
    calls, calibrated, uncalibrated, measured = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Course(calls, calibrated, measured), Course(calls, uncalibrated, measured)


def follow(watched: Watch, truth: Sequence[Rows], k: int) -> tuple[np.ndarray, ...]:
    """(queries, rounds) calls, recall expected with and without calibration, and recall measured.

    A search that ended stays where it is.
    """
    rounds = [min(number, len(watched.asked) - 1) for number in range(WATCHED.rounds)]
    so_far = [[np.concatenate(rows) for rows in zip(*watched.asked[: last + 1], strict=True)] for last in rounds]
    return (
        np.array([[len(rows) for rows in scored] for scored in so_far]).T,
        np.array([watched.expected[last] for last in rounds]).T,
        np.array([watched.uncalibrated[last] for last in rounds]).T,
        np.array([top_k_recall(truth, scored, k) for scored in so_far]).T,
    )


def describe(course: Course, curve: list[float]) -> dict[str, Any]:
    """The reliability of expected recall over all queries and rounds, and what stopping by it saves."""
    bins = [
        {
            "searches": one.searches,
            "expected": round(100 * one.expected, 1),
            "measured": round(100 * one.measured, 1),
        }
        for one in reliability_bins(course.expected, course.measured)
    ]
    return {
        "calibration_error": round(100 * calibration_error(course.expected, course.measured), 2),
        "bins": bins,
        "stops": [stop(course, at, curve) for at in STOPS],
    }


def stop(course: Course, at: float, curve: list[float]) -> dict[str, Any]:
    """What a search that stops at an expected recall costs and finds, and the fixed budget that finds as much."""
    enough = course.expected >= at
    last = np.where(enough.any(1), enough.argmax(1), course.expected.shape[1] - 1)
    queries = np.arange(len(last))
    calls = round(float(course.calls[queries, last].mean()), 1)
    found = round(100 * float(course.measured[queries, last].mean()), 1)
    return {"stop_at": at, "calls": calls, "measured": found, **compare_fixed(calls, found, curve)}


def compare_fixed(calls: float, found: float, curve: list[float]) -> dict[str, float | None]:
    """The smallest fixed budget that finds as much, between those measured, and the share of it that is saved."""
    levels, first = np.unique(np.maximum.accumulate(curve), return_index=True)
    if not levels[0] <= found <= levels[-1]:
        return {"fixed_budget": None, "saved_percent": None}
    same = float(np.exp(np.interp(found, levels, np.log(BUDGETS)[first])))
    return {"fixed_budget": round(same, 1), "saved_percent": round(100 * (1 - calls / same), 1)}


def draw(sets: list[dict[str, Any]]) -> bytes:
    """Measured against expected recall as a PNG, one panel per set with and without an index."""
    from matplotlib.figure import Figure

    panels = [(one["set"], name, side) for one in sets for name, side in one["sides"].items()]
    figure = Figure(figsize=(2.8 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (name, kind, side) in zip(axes, panels, strict=True):
        axis.set_title(f"{name}, {kind}", fontsize=10)
        axis.plot([0, 100], [0, 100], color="#999999", linewidth=1.2, label="perfect calibration")
        for top, (marker, color) in zip(side["top"], (("o", "C0"), ("^", "C1"), ("D", "C2")), strict=True):
            for fit, style in (("uncalibrated", "dotted"), ("calibrated", "solid")):
                shown = [one for one in top[fit]["bins"] if one["searches"] >= FEWEST]
                points = [one["expected"] for one in shown], [one["measured"] for one in shown]
                look = {"marker": marker, "color": color, "linestyle": style, "markersize": 4}
                axis.plot(*points, label=f"top {top['k']}, {fit}", **look)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("measured recall, %")
    figure.supxlabel("expected recall, %", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return render_png(figure)


if __name__ == "__main__":
    main()
