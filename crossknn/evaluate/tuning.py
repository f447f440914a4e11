"""Grid search on dev queries: one setting of each strategy for all k and budgets, and the oracle's for each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from crossknn.errors import InputError
from crossknn.evaluate.benchmark import Bench, CellRecall, RecallTrial
from crossknn.evaluate.comparison import Comparison, Result
from crossknn.evaluate.contenders import (
    AvailableData,
    ResolvedStrategy,
    assign_baselines,
    check_distinct,
    resolve_strategy,
)
from crossknn.evaluate.measures import bootstrap_interval
from crossknn.evaluate.report.formats import PERCENT, percent
from crossknn.strategies.base import RETRIEVERS
from crossknn.strategies.registry import STRATEGIES
from crossknn.types import Progress

RecallGrid = dict[tuple[int, int], CellRecall]
"""Recall by budget and k."""


class Candidates(NamedTuple):
    """A strategy as it was named, and all combinations of the settings that its name leaves open."""

    named: ResolvedStrategy
    candidates: Sequence[ResolvedStrategy]

    @property
    def tuned(self) -> bool:
        return len(self.candidates) > 1

    @property
    def name(self) -> str:
        return f"{self.named.family}, tuned" if self.tuned else self.named.contender.name


class Choice(NamedTuple):
    """The chosen candidate, the others, and how it was chosen."""

    chosen: ResolvedStrategy
    others: Sequence[ResolvedStrategy] = ()
    description: str = ""


def make_candidates(
    names: Sequence[str], available: AvailableData, *, budgets: Sequence[int], rounds: int = 10, seed: int = 0
) -> list[Candidates]:
    """The candidates of each name, in the order of the names; settings in a name are kept."""
    made: list[Candidates] = []
    for name in names:
        named = resolve_strategy(name, available, budgets=budgets, rounds=rounds, seed=seed)
        specs = _expand(name, named[0].settings, available)
        resolved = [resolve_strategy(spec, available, budgets=budgets, rounds=rounds, seed=seed) for spec in specs]
        made += map(Candidates, named, zip(*resolved, strict=True))
    check_distinct([one.name for one in made])
    if not any(one.tuned for one in made):
        raise InputError("there is nothing to tune: the names give all settings. Leave a setting open.")
    return made


def _expand(name: str, given: Mapping[str, Any], available: AvailableData) -> list[str]:
    """The name with each combination of the settings that it leaves open."""
    tuned = {
        setting: [value for value in values if values is not RETRIEVERS or value in available.retrievers]
        for setting, values in STRATEGIES[name.partition(":")[0]].grid(given).items()
        if setting not in given
    }
    return [
        ":".join([name, *(f"{setting}={value}" for setting, value in zip(tuned, values, strict=True))])
        for values in product(*tuned.values())
    ]


def choose(
    bench: Bench,
    strategies: Sequence[Candidates],
    *,
    budgets: Sequence[int],
    ks: Sequence[int],
    progress: Progress | None = None,
) -> list[Choice]:
    """The candidate of each strategy with the highest mean recall over all budgets and k on the dev queries."""
    dev = bench.task.dev
    if dev is None:
        raise InputError("tuning needs a task with dev queries, got one without.")
    candidates = [candidate for one in strategies if one.tuned for candidate in one.candidates]
    tried = iter(
        _try(RecallTrial(dev.queries, dev.scores, ks, progress), "tune on dev queries", bench, candidates, budgets)
    )
    return [_choose(strategy, tried) for strategy in strategies]


def run_tuned(
    bench: Bench,
    strategies: Sequence[Candidates],
    *,
    budgets: Sequence[int],
    ks: Sequence[int],
    command: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare every strategy with the candidate of highest mean recall on the dev queries, next to its oracle.

    The mean is over all budgets and k. An oracle is the best candidate for each budget and k on the test queries, an
    upper bound that is not attainable: findings are never about an oracle, and none is a baseline.
    """
    task = bench.task
    choices = choose(bench, strategies, budgets=budgets, ks=ks, progress=progress)
    chosen = assign_baselines([choice.chosen for choice in choices])
    comparison = bench.run(chosen, budgets=budgets, ks=ks, command=command)
    on_test = RecallTrial(task.queries, task.scores, ks, progress)
    candidates = [candidate for choice in choices for candidate in choice.others]
    others = iter(_try(on_test, "search for the oracle", bench, candidates, budgets))
    results: list[Result] = []
    for choice in choices:
        own = [result for result in comparison.results if result.strategy == choice.chosen.contender.name]
        if choice.others:
            own = [replace(result, settings=choice.chosen.settings) for result in own]
            grids = [(candidate, next(others)) for candidate in choice.others]
            own += [_oracle(result, grids, f"{choice.chosen.family}, oracle") for result in own]
        results += own
    facts = {choice.chosen.contender.name: choice.description for choice in choices if choice.others}
    return replace(comparison, results=results, data={**comparison.data, **facts})


def _try(
    trial: RecallTrial, step: str, bench: Bench, candidates: Sequence[ResolvedStrategy], budgets: Sequence[int]
) -> list[RecallGrid]:
    """The recall of each candidate."""
    trial.start(step, len(candidates) * len(budgets))
    grids: list[RecallGrid] = [{} for _ in candidates]
    for candidate, grid in zip(candidates, grids, strict=True):
        for budget in budgets:
            found = trial.search(bench.searcher(candidate.vectors), candidate.contender.make(budget), budget)
            grid |= {(budget, k): cell for k, cell in found.items()}
    return grids


def _choose(strategy: Candidates, tried: Iterator[RecallGrid]) -> Choice:
    """The best of the candidates, whose recall comes next; what has only one runs as it was named."""
    if not strategy.tuned:
        return Choice(strategy.named)
    means = [_mean_recall(next(tried)) for _ in strategy.candidates]
    best = means.index(max(means))
    chosen = strategy.candidates[best]
    spec = ":".join([chosen.kind, *(f"{setting}={value}" for setting, value in chosen.settings.items())])
    return Choice(
        chosen._replace(contender=replace(chosen.contender, name=strategy.name), family=strategy.named.family),
        [candidate for place, candidate in enumerate(strategy.candidates) if place != best],
        f"{spec}, the best of {len(means)} settings on the dev queries ({percent(means[best])}{PERCENT} on average)",
    )


def _mean_recall(grid: RecallGrid) -> float:
    """The mean over all cells, exactly the same for the same numbers in any order."""
    return math.fsum(float(cell.recall.mean()) for cell in grid.values()) / len(grid)


def _oracle(tuned: Result, others: Sequence[tuple[ResolvedStrategy, RecallGrid]], name: str) -> Result:
    """The best candidate for one budget and k, including the tuned one; its time was not measured."""
    cells = [(candidate, grid[tuned.budget, tuned.k]) for candidate, grid in others]
    candidate, found = max(cells, key=lambda cell: float(cell[1].recall.mean()))
    oracle = replace(tuned, strategy=name, baseline=tuned.baseline or tuned.strategy, seconds={}, oracle=True)
    recall = float(found.recall.mean())
    if recall <= tuned.recall:
        return oracle
    low, high = bootstrap_interval(found.recall)
    return replace(
        oracle,
        recall=recall,
        low=low,
        high=high,
        calls=found.calls,
        settings=candidate.settings,
        per_query=tuple(found.recall.tolist()),
    )
