"""One setting of each strategy for all k and budgets, chosen on dev queries, with the best of every cell beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.compare import Result, rows_of, search_together
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.contenders import Entry, Offer, check_different, default_names, read_entries, with_baselines
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.measures import bootstrap_interval, top_k_recall
from crossknn.evaluate.report.format import PERCENT, percent
from crossknn.search.results import Hits
from crossknn.types import Progress, Scores

# What is tried, the settings that hold without tuning first: of candidates that find as much, the first is chosen.
RETRIEVERS: Final = ("fused", "bm25", "dense")  # those that the data have
LEARNING_RATES: Final[Mapping[str, Sequence[float]]] = {"ce": (0.1, 0.5, 1.0), "mse": (1e-3, 1e-2, 1e-4)}  # the paper's
GRIDS: Final[Mapping[str, Mapping[str, Sequence[float | str]]]] = {
    "rerank": {"retriever": RETRIEVERS},
    "axn": {"mix": (0.5, 0.0, 0.2, 0.8), "first": RETRIEVERS},
    "anncur": {"share": (0.5, 0.25, 0.75)},
    "adacur": {"first": RETRIEVERS},
    "gar": {"neighbors": (8, 4, 16), "first": RETRIEVERS},
    "posterior": {},  # nothing to tune
}
DEV_STEP: Final = "tune on dev queries"
ORACLE_STEP: Final = "search for the oracle"

Cells = dict[tuple[int, int], "Cell"]
"""What was found by budget and k."""


class Cell(NamedTuple):
    """What was found of the true top k within a budget."""

    recall: NDArray[np.float64]  # (queries,)
    calls: float


class Family(NamedTuple):
    """A strategy as it was named, and the candidates that its name leaves open."""

    plain: Entry
    candidates: Sequence[Entry]

    @property
    def tuned(self) -> bool:
        return len(self.candidates) > 1

    @property
    def name(self) -> str:
        return f"{self.plain.family}, tuned" if self.tuned else self.plain.contender.name


def default_families(offer: Offer) -> list[str]:
    """The names that are compared by default, with reranking once: its retriever is tuned."""
    return ["rerank", *(name for name in default_names(offer) if not name.startswith("rerank"))]


def make_families(
    names: Sequence[str], offer: Offer, *, budgets: Sequence[int], rounds: int = 10, seed: int = 0
) -> list[Family]:
    """What the names mean, in their order, with all candidates; the settings in a name stay as they are."""
    families: list[Family] = []
    for name in names:
        plain = read_entries(name, offer, budgets=budgets, rounds=rounds, seed=seed)
        texts = _candidates(name, plain[0].settings, offer)
        tried = [read_entries(text, offer, budgets=budgets, rounds=rounds, seed=seed) for text in texts]
        families += map(Family, plain, zip(*tried, strict=True))
    check_different([family.name for family in families])
    if not any(family.tuned for family in families):
        raise InputError("there is nothing to tune: every strategy is set by its name. Leave a setting open.")
    return families


def _candidates(name: str, given: Mapping[str, Any], offer: Offer) -> list[str]:
    """The name with each combination of the settings that it leaves open."""
    kind = name.partition(":")[0]
    grid = {"learning_rate": LEARNING_RATES[given.get("loss", "ce")]} if kind == "tour" else GRIDS[kind]
    tuned = {
        setting: [value for value in values if values is not RETRIEVERS or value in offer.retrievers]
        for setting, values in grid.items()
        if setting not in given and not (setting == "share" and "anchors" in given)
    }
    return [
        ":".join([name, *(f"{setting}={value}" for setting, value in zip(tuned, values, strict=True))])
        for values in product(*tuned.values())
    ]


def run_tuned(
    bench: Bench,
    families: Sequence[Family],
    *,
    budgets: Sequence[int],
    ks: Sequence[int],
    command: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Every strategy with the setting that finds most on the dev queries, and an oracle beside it.

    What a setting finds is its mean recall over all budgets and k. An oracle has the best candidate of each budget and
    k on the very queries that are asked, so nobody can have it: no finding is about one, and none is a baseline.
    """
    task = bench.task
    if task.dev is None:
        raise InputError("tuning needs a task with dev queries. Got one without.")
    on_dev = _Trial(bench, DEV_STEP, task.dev.queries, task.dev.scores, budgets, ks, progress)
    choices = list(_choose(families, on_dev))
    entries = with_baselines([choice.entry for choice in choices])
    comparison = bench.run(entries, budgets=budgets, ks=ks, command=command)
    asked = _Trial(bench, ORACLE_STEP, task.queries, task.scores, budgets, ks, progress)
    others = iter(asked.run([entry for choice in choices for entry in choice.others]))
    results: list[Result] = []
    for choice in choices:
        own = [result for result in comparison.results if result.strategy == choice.entry.contender.name]
        if choice.others:
            own = [replace(result, settings=choice.entry.settings) for result in own]
            found = [(entry, next(others)) for entry in choice.others]
            own += [_best(result, found, f"{choice.entry.family}, oracle") for result in own]
        results += own
    facts = {choice.entry.contender.name: choice.fact for choice in choices if choice.others}
    return replace(comparison, results=results, data={**comparison.data, **facts})


class _Choice(NamedTuple):
    """What is run of a family: an entry, the candidates that were not chosen, and why."""

    entry: Entry
    others: Sequence[Entry]
    fact: str


def _choose(families: Sequence[Family], trial: _Trial) -> Iterator[_Choice]:
    """The best candidate of each family; what has only one is run as it was named."""
    tried = iter(trial.run([entry for family in families if family.tuned for entry in family.candidates]))
    for family in families:
        if not family.tuned:
            yield _Choice(family.plain, [], "")
            continue
        found = [_mean(next(tried)) for _ in family.candidates]
        best = found.index(max(found))
        chosen = family.candidates[best]
        named = replace(chosen.contender, name=family.name)
        yield _Choice(
            chosen._replace(contender=named, family=family.plain.family),
            [entry for place, entry in enumerate(family.candidates) if place != best],
            f"{_typed(chosen)}, the best of {len(found)} settings on the dev queries "
            f"({percent(found[best])}{PERCENT} on average)",
        )


def _typed(entry: Entry) -> str:
    """The entry as `--strategies` takes it."""
    name = entry.family.partition(",")[0]
    return ":".join([name, *(f"{setting}={value}" for setting, value in entry.settings.items())])


def _mean(cells: Cells) -> float:
    """The mean recall over all cells; the same for the same numbers in any order."""
    return math.fsum(float(cell.recall.mean()) for cell in cells.values()) / len(cells)


def _best(tuned: Result, others: Sequence[tuple[Entry, Cells]], name: str) -> Result:
    """The best candidate of one budget and k, the tuned one included; its time was not measured."""
    cell = tuned.budget, tuned.k
    entry, found = max(((entry, cells[cell]) for entry, cells in others), key=lambda one: float(one[1].recall.mean()))
    oracle = replace(tuned, strategy=name, baseline=tuned.baseline or tuned.strategy, seconds={}, oracle=True)
    recall = float(found.recall.mean())
    if recall <= tuned.recall:
        return oracle
    low, high = bootstrap_interval(found.recall)
    return replace(oracle, recall=recall, low=low, high=high, calls=found.calls, settings=entry.settings)


@dataclass(frozen=True)
class _Trial:
    """Queries that candidates are tried on."""

    bench: Bench
    step: str
    queries: Sequence[str]
    scores: Scores  # (queries, items)
    budgets: Sequence[int]
    ks: Sequence[int]
    progress: Progress | None

    def run(self, entries: Sequence[Entry]) -> list[Cells]:
        """What each entry finds."""
        truth = truth_rows(self.scores, max(self.ks))
        plan = [(entry, budget) for entry in entries for budget in self.budgets]
        tried: list[Cells] = [{} for _ in entries]
        for number, (entry, budget) in enumerate(plan):
            found = self._search(entry, budget, number, len(plan))
            rows, calls = [rows_of(hits) for hits in found], float(np.mean([hits.calls for hits in found]))
            for k in self.ks:
                tried[number // len(self.budgets)][budget, k] = Cell(top_k_recall(truth, rows, k), calls)
        return tried

    def _search(self, entry: Entry, budget: int, number: int, plan: int) -> list[Hits]:
        """The hits of all queries, which hold every row that was scored."""
        searcher, found = self.bench.searcher(entry.vectors), list[Hits]()
        for some in search_together(searcher, self.queries, entry.contender.make(budget), k=budget):
            found += some
            if self.progress:
                self.progress(self.step, number * len(self.queries) + len(found), plan * len(self.queries))
        return found
