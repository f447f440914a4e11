"""Report of a build: what it scored and learned, and how well that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from crossknn.indexing.factorization.trainer import FitReport
from crossknn.indexing.recall_calibration import CalibrationReport
from crossknn.indexing.score_matrix import Pairs
from crossknn.indexing.teaching.teach import TeachReport
from crossknn.storage.json_values import read_as


@dataclass(frozen=True, slots=True)
class Coverage:
    """The distribution of a build's calls over the items."""

    calls: int
    items: int
    never_scored: int  # items
    fewest: int  # calls per item
    median: float
    most: int

    @classmethod
    def of(cls, pairs: Pairs) -> Coverage:
        counts = np.bincount(pairs.rows, minlength=pairs.n_items)
        if not len(counts):
            return cls(0, 0, 0, 0, 0.0, 0)
        return cls(
            calls=len(pairs),
            items=pairs.n_items,
            never_scored=int((counts == 0).sum()),
            fewest=int(counts.min()),
            median=float(np.median(counts)),
            most=int(counts.max()),
        )

    @property
    def calls_per_item(self) -> float:
        return self.calls / self.items if self.items else 0.0


@dataclass(frozen=True)
class BuildReport:
    """What a build did, and how well the factors fit the scores.

    Attributes:
        cut_from_items: Whether the train queries are pseudo-queries.
        calls: Scores the index was built from, including those of items added later.
        calls_made: Calls of this run; the other scores came from the work folder.
        coverage: Of the build; items added or removed later do not change it.
        factors: The kind of the fitted vectors, or None for the encoder's.
        fit: None where nothing was trained.
        seconds: Of each step, in this run.
        teaching: None where the encoder is as it came.
        calibration: Of expected recall; None where there is none.
        not_calibrated: Why a calibration that was wanted was left out.
    """

    items: int
    queries: int
    cut_from_items: bool
    calls: int
    calls_made: int
    coverage: Coverage
    factors: str | None
    fit: FitReport | None
    seconds: Mapping[str, float] = field(default_factory=dict)
    teaching: TeachReport | None = None
    calibration: CalibrationReport | None = None
    not_calibrated: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-compatible values, as an index saves it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The report that `as_dict` gave; `ValueError` names what has another type."""
        report: Self = read_as(cls, values, "report")
        return report

    def __str__(self) -> str:
        coverage, fit = self.coverage, self.fit
        lines = [
            f"{self.items:,} items, {self.queries:,} train queries" + " cut from the items" * self.cut_from_items,
            f"{self.calls:,} calls, {self.calls_made:,} of them in this run: {coverage.calls_per_item:.1f} per item "
            f"({coverage.fewest} to {coverage.most}), {coverage.never_scored:,} items never scored",
            f"item vectors: {'the encoder’s' if self.factors is None else self.factors}",
        ]
        if self.teaching is not None:
            lines.append(f"encoder: {self.teaching}")
        if fit is not None and fit["held_out_error"] is not None and fit["held_out_error_before"] is not None:
            r2 = "" if fit["held_out_r2"] is None else f"; R² {fit['held_out_r2']:.2f}"
            lines.append(
                f"error on {fit['held_out_entries']:,} held-out scores: {fit['held_out_error']:.4f}, "
                f"before the fit {fit['held_out_error_before']:.4f}{r2} (epoch {fit['best_epoch']} of {fit['epochs']})"
            )
        if self.calibration is not None or self.not_calibrated is not None:
            lines.append(f"expected recall: {self.calibration or f'not calibrated, {self.not_calibrated}'}")
        lines.append("seconds: " + ", ".join(f"{step} {took:.1f}" for step, took in self.seconds.items()))
        return "\n".join(lines)
