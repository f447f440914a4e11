"""What is found within one budget against a setting: the rounds, λ, or how many scores item vectors are fitted to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.compare import rows_of, search_together
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.measures import bootstrap_interval, top_k_recall
from crossknn.evaluate.study_results import STEPS, Curve, Indexed, Point, SamplingStudy, Sweep
from crossknn.indexing.builder import PSEUDO_QUERIES
from crossknn.indexing.index import DEFAULT_FACTORS, Index
from crossknn.indexing.pair_scoring import STEP
from crossknn.indexing.sampling import PerItem, PerQuery, Sampling
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.cur import AdaCur
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Progress, Rows

ROUNDS: Final = (1, 2, 5, 10, 20)
MIXES: Final = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)

Shares = dict[int, tuple[float, float, float]]
"""For each k the share of the true top k that was found, and the two ends of its interval."""


class Trial:
    """Measures what strategies find within one budget on the queries of a bench, many queries at a time."""

    def __init__(
        self, bench: Bench, *, budget: int, ks: Sequence[int], rounds: int = 10, progress: Progress | None = None
    ) -> None:
        self.bench = bench
        self.budget = budget
        self.ks = ks
        self.rounds = min(rounds, budget)
        self.first = bench.offer.default
        self.progress = progress
        self._truth = truth_rows(bench.task.scores, max(ks))
        self._step, self._done, self._total = "", 0, 0

    def begin(self, step: str, strategies: int) -> None:
        """Report the searches of so many strategies as one step."""
        self._step, self._done, self._total = step, 0, strategies * len(self._truth)

    def measure(self, searcher: Searcher, strategy: Strategy) -> Shares:
        """What one strategy finds."""
        found: list[Rows] = []
        for some in search_together(searcher, self.bench.task.queries, strategy, k=self.budget):
            found += [rows_of(hits) for hits in some]
            self._done += len(some)
            if self.progress is not None:
                self.progress(self._step, self._done, self._total)
        shares = {k: top_k_recall(self._truth, found, k) for k in self.ks}
        return {k: (float(share.mean()), *bootstrap_interval(share)) for k, share in shares.items()}

    def curves(self, name: str, values: Sequence[float], found: Sequence[Shares]) -> list[Curve]:
        """For each k what was found with each value."""
        return [
            Curve(name, k, [Point(value, *shares[k]) for value, shares in zip(values, found, strict=True)])
            for k in self.ks
        ]

    def rerank(self, values: Sequence[float]) -> list[Curve]:
        """What reranking finds, which has none of these values."""
        found = self.measure(self.bench.searcher("encoder"), Rerank(self.budget, self.first))
        return self.curves(f"rerank, {self.first}", values, [found] * len(values))


def study_rounds(trial: Trial) -> Sweep:
    """Recall against the number of rounds; one round is reranking, with a prior that of its order."""
    values = [rounds for rounds in ROUNDS if rounds <= trial.budget]
    offer, makers = trial.bench.offer, dict[str, tuple[Searcher, Callable[..., Strategy]]]()
    makers["axn"] = trial.bench.searcher("encoder"), Axn
    if offer.fitted:
        makers["axn, fitted"] = trial.bench.searcher("fitted"), Axn
    if offer.cur:
        makers["adacur"] = trial.bench.searcher("cur"), AdaCur
    if offer.signals:
        makers["posterior"] = trial.bench.searcher("encoder"), Posterior
    if offer.signals and offer.fitted:
        makers["posterior, prior"] = trial.bench.searcher("prior"), Posterior
    trial.begin("study rounds", len(makers) * len(values) + 1)
    curves = []
    for name, (searcher, make) in makers.items():
        strategies = [make(trial.budget, rounds, first=trial.first) for rounds in values]
        curves += trial.curves(name, values, [trial.measure(searcher, strategy) for strategy in strategies])
    return Sweep(trial.budget, curves, trial.rerank(values))


def study_mix(trial: Trial) -> Sweep:
    """Recall of Axn against λ."""
    searcher = trial.bench.searcher("encoder")
    trial.begin("study mix", len(MIXES) + 1)
    found = [trial.measure(searcher, Axn(trial.budget, trial.rounds, mix, trial.first)) for mix in MIXES]
    return Sweep(trial.budget, trial.curves("axn", MIXES, found), trial.rerank(MIXES))


def study_sampling(trial: Trial) -> SamplingStudy:
    """Recall of Axn with vectors fitted to scores per item and to as many per query, and what these indexes cost."""
    seed, planned = trial.bench.seed, plan_calls(trial.bench)
    axn = Axn(trial.budget, trial.rounds, first=trial.first)
    trial.begin("study sampling", 2 * len(planned) + 1)
    runs: list[tuple[Indexed, Shares]] = []
    for calls in planned:
        by_item = _build(trial, PerItem(calls, seed=seed), f"score per item, {calls} calls each")
        equal = max(1, round(by_item.report.calls / len(by_item.queries)))
        by_query = _build(trial, PerQuery(equal, seed=seed), f"score per query, {equal:,} calls each")
        for name, index in (("per item", by_item), ("per query", by_query)):
            found = trial.measure(trial.bench.search_with(index), axn)
            runs.append((_describe(index, name, trial.bench), found))
    unfitted = trial.measure(trial.bench.searcher("encoder"), axn)
    known = trial.bench.task.speed is not None
    return SamplingStudy(
        calls=_against(trial, runs, unfitted, lambda index: index.calls_per_item),
        seconds=_against(trial, runs, unfitted, lambda index: sum(index.seconds.values())) if known else None,
        indexes=[index for index, _ in runs],
    )


def _against(
    trial: Trial, runs: Sequence[tuple[Indexed, Shares]], unfitted: Shares, cost: Callable[[Indexed], float]
) -> Sweep:
    """What was found with each index against what it cost, and what is found without one."""
    costs, curves = sorted(cost(index) for index, _ in runs), []
    for way in ("per item", "per query"):
        mine = [(cost(index), found) for index, found in runs if index.sampling == way]
        curves += trial.curves(f"axn, {way}", [at for at, _ in mine], [found for _, found in mine])
    return Sweep(trial.budget, curves, trial.curves("axn", [costs[0], costs[-1]], [unfitted] * 2))


def plan_calls(bench: Bench) -> list[int]:
    """The calls per item of the sampling study: up to twice those that fitted vectors may cost."""
    most = min(2 * bench.calls_per_item, len(bench.task.train) or PSEUDO_QUERIES)
    return [2**power for power in range(1, most.bit_length())]


def _build(trial: Trial, sampling: Sampling, step: str) -> Index:
    report = trial.progress

    def count(done_step: str, done: int, total: int) -> None:
        if report is not None and done_step == STEP:
            report(step, done, total)

    return trial.bench.build(replace(DEFAULT_FACTORS, seed=trial.bench.seed), sampling, progress=count)


def _describe(index: Index, sampling: str, bench: Bench) -> Indexed:
    calls, seconds, speed = index.report.calls, dict(index.report.seconds), bench.task.speed
    if speed is None:
        seconds.pop("score")
    else:  # scores may have been in the work folder
        seconds["score"] = speed.per_call * calls
    steps: dict[str, float] = {step: seconds[step] for step in STEPS if step in seconds}
    return Indexed(sampling, calls, calls / len(bench.task.items), steps)
