"""Results of a comparison and of its studies, as plain numbers that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

TIME_PARTS: Final = ("scorer", "solve", "search")
RECALL: Final = "true top {}"  # the name of its recall among other measures
SCORES: Final = "scores"
SIMILARITIES: Final = "similarities"
SCALED: Final = "scaled scores"


@dataclass(frozen=True)
class Result:
    """The recall of one strategy for one budget and k, and its cost; means over the queries.

    Attributes:
        recall: Share of the true top `k` among the scored items, with `low` and `high` as its 95 % confidence interval.
        calls: Calls per query.
        seconds: Seconds per query in the "scorer", in the strategy's own computation ("solve") and in everything else
            ("search"). Parts that are unknown are left out.
        settings: The chosen settings of a tuned strategy.
        oracle: Whether they were chosen on the test queries, for this budget and k alone.
    """

    strategy: str
    baseline: str | None
    budget: int
    k: int
    recall: float
    low: float
    high: float
    calls: float
    seconds: dict[str, float]
    settings: Mapping[str, Any] | None = None
    oracle: bool = False

    @property
    def total_seconds(self) -> float | None:
        """Seconds per query in total; None where a part is unknown."""
        return sum(self.seconds[part] for part in TIME_PARTS) if self.seconds.keys() >= set(TIME_PARTS) else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them; the last two only if something was tuned."""
        fields = {**vars(self), "seconds": dict(self.seconds)}
        if self.settings is None:
            del fields["settings"], fields["oracle"]
        else:
            fields["settings"] = dict(self.settings)
        return fields


@dataclass(frozen=True)
class Quality:
    """Relevance of a strategy's hits within a budget, by measure; means over the queries."""

    strategy: str
    budget: int | None  # None for exact search
    values: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {"strategy": self.strategy, "budget": self.budget, **self.values}


@dataclass(frozen=True)
class Point:
    """Recall at one value of a setting, with its 95 % confidence interval."""

    at: float
    recall: float
    low: float
    high: float


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

    of: str
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
        """The studies by name, as JSON can hold them."""
        return {name: value for name, value in asdict(self).items() if value}
