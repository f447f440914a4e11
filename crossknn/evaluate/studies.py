"""Studies of a benchmark: recall against rounds, λ and offline calls, latency, score distributions and quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.evaluate.benchmark import Bench, RecallTrial
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.contenders import VectorSource
from crossknn.evaluate.measures import bootstrap_interval
from crossknn.evaluate.quality import Quality
from crossknn.indexing.builder import DEFAULT_FACTORS, PSEUDO_QUERIES, Build
from crossknn.indexing.index import Index
from crossknn.indexing.pair_scoring import STEP as SCORE_STEP
from crossknn.indexing.sampling import PerItem, PerQuery, Sampling
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.cur import AdaCur
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Progress

STUDY_NAMES: Final = ("rounds", "mix", "sampling", "latency", "distributions", "quality")
ROUNDS: Final = (1, 2, 5, 10, 20)
MIXES: Final = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
MAX_PAIRS: Final = 200_000  # of queries and items that distributions are drawn from
HISTOGRAM_BINS: Final = 60
RECALL: Final = "true top {}"  # the name of its recall among other measures

HistogramOf = Literal["scores", "similarities", "scaled scores"]
Recalls = dict[int, tuple[float, float, float, tuple[float, ...]]]
"""Recall by k, with the two ends of its confidence interval and the recall of each query."""


@dataclass(frozen=True)
class Point:
    """Recall at one value of a setting, with its 95 % confidence interval."""

    at: float
    recall: float
    low: float
    high: float
    per_query: tuple[float, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Curve:
    """Recall of one strategy for one `k`, for every value of a setting."""

    strategy: str
    k: int
    points: Sequence[Point]


@dataclass(frozen=True)
class Sweep:
    """Recall within one budget, against a setting."""

    budget: int
    curves: Sequence[Curve]  # one per k for each strategy with the setting
    levels: Sequence[Curve]  # constant ones, of strategies without it, to compare with


@dataclass(frozen=True)
class Indexed:
    """An index built for the sampling study."""

    sampling: str  # "per item" or "per query"
    calls: int
    calls_per_item: float
    seconds: Mapping[str, float]  # by step; "score" is computed from the scorer's speed, and left out if unknown


@dataclass(frozen=True)
class SamplingStudy:
    """Recall with vectors fitted to more and more scores, for each sampling design."""

    calls: Sweep  # against offline calls per item
    seconds: Sweep | None  # against the seconds of indexing; None if the scorer's speed is unknown
    indexes: Sequence[Indexed]


@dataclass(frozen=True)
class Times:
    """Seconds per query that a strategy spends in each part of a search within a budget."""

    strategy: str
    budget: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class LatencyStudy:
    """Times of all strategies at all budgets."""

    times: Sequence[Times]


@dataclass(frozen=True)
class Histogram:
    """A density between consecutive `edges`, with an area of 1."""

    of: HistogramOf
    edges: Sequence[float]
    density: Sequence[float]


@dataclass(frozen=True)
class DistributionStudy:
    """The cross-encoder's scores and the encoder's similarities of the same pairs.

    With α and β, two more histograms have the scaled scores β (score − α) and the similarities between shared edges.
    """

    histograms: Sequence[Histogram]
    pairs: int
    alpha: float | None = None
    beta: float | None = None


@dataclass(frozen=True)
class QualityStudy:
    """Relevance by judgments together with recall of the true top k, for all strategies and budgets."""

    levels: Sequence[Quality]


@dataclass(frozen=True)
class Studies:
    """The studies of a comparison, and the reasons why requested ones could not be made."""

    rounds: Sweep | None = None
    mix: Sweep | None = None
    sampling: SamplingStudy | None = None
    latency: LatencyStudy | None = None
    distributions: DistributionStudy | None = None
    quality: QualityStudy | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def strategies(self) -> list[str]:
        """The distinct names on all curves and levels."""
        sweeps = [self.rounds, self.mix, self.sampling and self.sampling.calls]
        curves = (curve for sweep in sweeps if sweep for curve in [*sweep.curves, *sweep.levels])
        return list(dict.fromkeys(curve.strategy for curve in curves))

    def to_json(self) -> dict[str, Any]:
        """The studies by name, as JSON can hold them, without values per query."""
        found = asdict(self, dict_factory=lambda pairs: {name: value for name, value in pairs if name != "per_query"})
        return {name: value for name, value in found.items() if value}


def parse_studies(text: str) -> list[str]:
    """The studies in a comma-separated list; "none" is no study."""
    names = [name.strip() for name in text.split(",")]
    if names == ["none"]:
        return []
    if not set(names) <= set(STUDY_NAMES):
        raise invalid("studies", f"none, or comma-separated names among {', '.join(STUDY_NAMES)}", text)
    return names


def run_studies(
    bench: Bench,
    comparison: Comparison,
    names: Sequence[str] = STUDY_NAMES,
    *,
    rounds: int = 10,
    progress: Progress | None = None,
) -> Studies:
    """Make these studies, as far as the data of the benchmark allow.

    Those of recall are within the middle one of the comparison's budgets, for each of its k. `rounds` is for
    strategies whose rounds are not studied.
    """
    budget = comparison.budgets[len(comparison.budgets) // 2]
    trial = Trial(bench, budget=budget, ks=comparison.ks, rounds=rounds, progress=progress)
    makers: dict[str, Callable[[], Any]] = {
        "rounds": partial(study_rounds, trial),
        "mix": partial(study_mix, trial),
        "sampling": partial(study_sampling, trial),
        "latency": partial(study_latency, comparison),
        "distributions": partial(study_distributions, bench),
        "quality": partial(study_quality, comparison),
    }
    left_out = {name: reason for name in names if (reason := why_not(name, bench, budget))}
    return Studies(**{name: makers[name]() for name in names if name not in left_out}, left_out=left_out)


def why_not(name: str, bench: Bench, budget: int) -> str | None:
    """Why a study cannot be made within this budget; None if it can."""
    if name in ("rounds", "mix") and budget == 1:
        return "one call has one round"
    if name == "quality" and bench.task.judged is None:
        return "there are no relevance judgments"
    if name == "sampling" and not bench.task.can_learn:
        return "there are no train queries"
    if name == "sampling" and not bench.calls_per_item:
        return "no offline calls per item were allowed (--index-calls-per-item)"
    if name == "sampling" and not plan_calls(bench):
        return "one train query is too few"
    return None


def sources_of(studies: Sequence[str], bench: Bench) -> set[VectorSource]:
    """The item vectors that these studies need."""
    found: set[VectorSource] = {"encoder"} if {*studies} & {"rounds", "mix", "sampling", "distributions"} else set()
    if "rounds" in studies:
        available = bench.available
        made: dict[VectorSource, bool] = {
            "fitted": available.fitted,
            "cur": available.cur,
            "prior": available.signals and available.fitted,
        }
        found |= {vectors for vectors, possible in made.items() if possible}
    return found


def study_builds(bench: Bench) -> list[Build]:
    """The builds of the sampling study, not run yet; those per query score about as many pairs."""
    if not (bench.task.can_learn and bench.calls_per_item):
        return []
    return [bench.prepare_fit(PerItem(calls, seed=bench.seed)) for calls in plan_calls(bench) for _ in range(2)]


class Trial(RecallTrial):
    """Recall of strategies within one budget on the test queries."""

    def __init__(
        self, bench: Bench, *, budget: int, ks: Sequence[int], rounds: int = 10, progress: Progress | None = None
    ) -> None:
        super().__init__(bench.task.queries, bench.task.scores, ks, progress)
        self.bench = bench
        self.budget = budget
        self.rounds = min(rounds, budget)
        self.first = bench.available.default_retriever

    def measure(self, searcher: Searcher, strategy: Strategy) -> Recalls:
        """The recall of one strategy."""
        recall = {k: cell.recall for k, cell in self.search(searcher, strategy, self.budget).items()}
        return {
            k: (float(values.mean()), *bootstrap_interval(values), tuple(values.tolist()))
            for k, values in recall.items()
        }

    def curves(self, name: str, values: Sequence[float], recalls: Sequence[Recalls]) -> list[Curve]:
        """The curve of each k, from the recall at each value."""
        return [
            Curve(name, k, [Point(value, *recall[k]) for value, recall in zip(values, recalls, strict=True)])
            for k in self.ks
        ]

    def rerank_levels(self, values: Sequence[float]) -> list[Curve]:
        """The constant curves of reranking."""
        recall = self.measure(self.bench.searcher("encoder"), Rerank(self.budget, self.first))
        return self.curves(f"rerank, {self.first}", values, [recall] * len(values))


def study_rounds(trial: Trial) -> Sweep:
    """Recall against the number of rounds; one round is reranking."""
    values = [rounds for rounds in ROUNDS if rounds <= trial.budget]
    available = trial.bench.available
    plan: list[tuple[str, VectorSource, Callable[..., Strategy], bool]] = [
        ("axn", "encoder", Axn, True),
        ("axn, fitted", "fitted", Axn, available.fitted),
        ("adacur", "cur", AdaCur, available.cur),
        ("posterior", "encoder", Posterior, available.signals),
        ("posterior, prior", "prior", Posterior, available.signals and available.fitted),
    ]
    made = [(name, trial.bench.searcher(vectors), make) for name, vectors, make, possible in plan if possible]
    trial.start("study rounds", len(made) * len(values) + 1)
    curves = []
    for name, searcher, make in made:
        strategies = [make(trial.budget, rounds, first=trial.first) for rounds in values]
        curves += trial.curves(name, values, [trial.measure(searcher, strategy) for strategy in strategies])
    return Sweep(trial.budget, curves, trial.rerank_levels(values))


def study_mix(trial: Trial) -> Sweep:
    """Recall of Axn against λ."""
    searcher = trial.bench.searcher("encoder")
    trial.start("study mix", len(MIXES) + 1)
    recalls = [trial.measure(searcher, Axn(trial.budget, trial.rounds, mix, trial.first)) for mix in MIXES]
    return Sweep(trial.budget, trial.curves("axn", MIXES, recalls), trial.rerank_levels(MIXES))


def study_sampling(trial: Trial) -> SamplingStudy:
    """Recall of Axn with vectors fitted to scores sampled per item and to as many sampled per query."""
    seed, planned = trial.bench.seed, plan_calls(trial.bench)
    axn = Axn(trial.budget, trial.rounds, first=trial.first)
    trial.start("study sampling", 2 * len(planned) + 1)
    runs: list[tuple[Indexed, Recalls]] = []
    for calls in planned:
        by_item = _build(trial, PerItem(calls, seed=seed), f"score per item, {calls} calls each")
        equal = max(1, round(by_item.report.calls / len(by_item.queries)))
        by_query = _build(trial, PerQuery(equal, seed=seed), f"score per query, {equal:,} calls each")
        for name, index in (("per item", by_item), ("per query", by_query)):
            recall = trial.measure(trial.bench.search_with(index), axn)
            runs.append((_describe(index, name, trial.bench), recall))
    unfitted = trial.measure(trial.bench.searcher("encoder"), axn)
    by_seconds = None
    if trial.bench.task.speed is not None:
        by_seconds = _against(trial, runs, unfitted, lambda index: sum(index.seconds.values()))
    by_calls = _against(trial, runs, unfitted, lambda index: index.calls_per_item)
    return SamplingStudy(by_calls, by_seconds, [index for index, _ in runs])


def _against(
    trial: Trial, runs: Sequence[tuple[Indexed, Recalls]], unfitted: Recalls, cost: Callable[[Indexed], float]
) -> Sweep:
    """Recall with each index against its cost, and recall without one."""
    costs, curves = sorted(cost(index) for index, _ in runs), []
    for design in ("per item", "per query"):
        own = [(cost(index), recall) for index, recall in runs if index.sampling == design]
        curves += trial.curves(f"axn, {design}", [at for at, _ in own], [recall for _, recall in own])
    return Sweep(trial.budget, curves, trial.curves("axn", [costs[0], costs[-1]], [unfitted] * 2))


def plan_calls(bench: Bench) -> list[int]:
    """The calls per item of the sampling study: powers of two up to twice those of fitted vectors."""
    largest = min(2 * bench.calls_per_item, len(bench.task.train) or PSEUDO_QUERIES)
    return [2**power for power in range(1, largest.bit_length())]


def _build(trial: Trial, sampling: Sampling, step: str) -> Index:
    report = trial.progress

    def count_calls(done_step: str, done: int, total: int) -> None:
        if report is not None and done_step == SCORE_STEP:
            report(step, done, total)

    return trial.bench.build(replace(DEFAULT_FACTORS, seed=trial.bench.seed), sampling, progress=count_calls)


def _describe(index: Index, sampling: str, bench: Bench) -> Indexed:
    """Seconds by step, without encoding, which is the same for all indexes."""
    calls, speed = index.report.calls, bench.task.speed
    steps = {step: seconds for step, seconds in index.report.seconds.items() if not step.startswith("encode")}
    del steps["score"]
    if speed is not None:  # computed, because scores may come from the work folder
        steps = {"score": speed.per_call * calls, **steps}
    return Indexed(sampling, calls, calls / len(bench.task.items), steps)


def study_latency(comparison: Comparison) -> LatencyStudy:
    """The times of every strategy within every budget."""
    names = comparison.attainable.strategies
    costs = [comparison.cost(name, budget) for budget in comparison.budgets for name in names]
    return LatencyStudy([Times(cost.strategy, cost.budget, dict(cost.seconds)) for cost in costs if cost])


def study_quality(comparison: Comparison) -> QualityStudy:
    """Relevance by the judgments, together with the recall of the same searches."""
    levels = []
    for quality in comparison.quality:
        if quality.budget == 0:  # a first stage alone scores nothing
            continue
        recall = {RECALL.format(k): _recall(comparison, quality, k) for k in comparison.ks}
        levels.append(Quality(quality.strategy, quality.budget, {**recall, **quality.values}, quality.first_stage))
    return QualityStudy(levels)


def _recall(comparison: Comparison, quality: Quality, k: int) -> float:
    if quality.budget is None:
        return 1.0
    result = comparison.result(quality.strategy, quality.budget, k)
    if result is None:
        raise InputError(f"{quality.strategy!r} has a quality within {quality.budget} calls, but no recall.")
    return result.recall


def study_distributions(bench: Bench) -> DistributionStudy:
    """The cross-encoder's scores and the encoder's similarities of all test queries with random items."""
    task, searcher = bench.task, bench.searcher("encoder")
    drawn = min(len(task.items), max(1, MAX_PAIRS // len(task.queries)))
    rows = np.sort(np.random.default_rng(bench.seed).choice(len(task.items), drawn, replace=False))
    texts = task.items.texts_of(rows)
    items = task.encoder.encode_items(texts) if searcher.index is None else searcher.index.vectors[rows]
    scores = np.asarray(task.scores[:, rows], np.float64).ravel()
    similarities = (task.encoder.encode_queries(task.queries) @ np.asarray(items, np.float32).T).ravel()
    histograms = [_histogram("scores", scores, scores), _histogram("similarities", similarities, similarities)]
    scale = searcher.normalization
    if scale is None:
        return DistributionStudy(histograms, len(scores))
    scaled = scale.normalize(scores)
    both = np.concatenate([scaled, similarities])
    histograms += [_histogram("scaled scores", scaled, both), _histogram("similarities", similarities, both)]
    return DistributionStudy(histograms, len(scores), scale.alpha, scale.beta)


def _histogram(of: HistogramOf, values: NDArray[Any], range_values: NDArray[Any]) -> Histogram:
    """The densities of `values` between edges that cover `range_values`."""
    edges = np.histogram_bin_edges(range_values, HISTOGRAM_BINS)
    return Histogram(of, edges.tolist(), np.histogram(values, edges, density=True)[0].tolist())
