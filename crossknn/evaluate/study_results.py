"""What the studies of a benchmark found, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from crossknn.evaluate.compare import Quality

FOUND: Final = "true top {}"  # the share found of it, beside other measures
STEPS: Final = ("score", "factorise", "sample pairs", "normalise")  # of a build; encoding is the same for all
SCORES: Final = "scores"
SIMILARITIES: Final = "similarities"
SCALED: Final = "scaled scores"


@dataclass(frozen=True)
class Point:
    """The share of the true top k that was found with one value of a setting, and its 95 % interval."""

    at: float
    recall: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """What one strategy found of the true top `k`, for every value of a setting."""

    strategy: str
    k: int
    points: Sequence[Point]


@dataclass(frozen=True)
class Sweep:
    """What is found within one budget, against a setting.

    curves  of every strategy that has the setting, for each k
    levels  of strategies without it, to compare with: the same at every value
    """

    budget: int
    curves: Sequence[Curve]
    levels: Sequence[Curve]


@dataclass(frozen=True)
class Indexed:
    """An index that was built for the sampling study.

    sampling        how its pairs were chosen: "per item" or "per query"
    calls           scores that it was built from
    calls_per_item  their mean over the items
    seconds         by step; "score" is computed from the scorer's speed, and left out where nobody knows it
    """

    sampling: str
    calls: int
    calls_per_item: float
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class SamplingStudy:
    """What is found with vectors fitted to more and more scores, for each way to choose the pairs that are scored.

    calls    against offline calls per item
    seconds  against the seconds of building the index; None where nobody knows how long scoring takes
    indexes  that were built
    """

    calls: Sweep
    seconds: Sweep | None
    indexes: Sequence[Indexed]


@dataclass(frozen=True)
class Times:
    """Seconds per query that a strategy spends in each part of a search within a budget."""

    strategy: str
    budget: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class LatencyStudy:
    """Where the time of a query goes."""

    times: Sequence[Times]


@dataclass(frozen=True)
class Histogram:
    """How often values of a kind are between two `edges`: one density for each gap, with an area of 1 in all."""

    of: str
    edges: Sequence[float]
    density: Sequence[float]


@dataclass(frozen=True)
class DistributionStudy:
    """The cross-encoder's scores and the encoder's similarities of the same pairs.

    histograms   of the scores and of the similarities as they are; where α and β are known also of the scaled
                 scores, and of the similarities between the same edges
    pairs        how many were drawn
    alpha, beta  scaled scores are β (score − α); None where nobody estimated them
    """

    histograms: Sequence[Histogram]
    pairs: int
    alpha: float | None = None
    beta: float | None = None


@dataclass(frozen=True)
class QualityStudy:
    """By the judgments and beside the exact top k: what every strategy found within every budget."""

    levels: Sequence[Quality]


@dataclass(frozen=True)
class Studies:
    """The studies that were made, and for each that was asked for and not made why."""

    rounds: Sweep | None = None
    mix: Sweep | None = None
    sampling: SamplingStudy | None = None
    latency: LatencyStudy | None = None
    distributions: DistributionStudy | None = None
    quality: QualityStudy | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def strategies(self) -> list[str]:
        """The names on all curves and levels, each once."""
        sweeps = [self.rounds, self.mix, self.sampling and self.sampling.calls]
        curves = (curve for sweep in sweeps if sweep for curve in [*sweep.curves, *sweep.levels])
        return list(dict.fromkeys(curve.strategy for curve in curves))

    def to_json(self) -> dict[str, Any]:
        """What was made, by name, as JSON can hold it."""
        return {name: value for name, value in asdict(self).items() if value}
