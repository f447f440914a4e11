"""Calibration of scores: Platt scaling from the scores of judged items to probabilities of relevance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_number, invalid, is_finite
from crossknn.errors import InputError
from crossknn.storage.atomic import disk_errors, write_atomic
from crossknn.storage.json_values import parse_json, read_as
from crossknn.storage.regular_files import open_regular

FORMAT, VERSION = "crossknn score calibration", 1
MIN_JUDGED: Final = 10  # relevant items, and as many others
MAX_FILE_BYTES: Final = 65_536
STEPS, MIN_STEP = 100, 1e-10
RIDGE: Final = 1e-6

Judgment = tuple[str, str, bool | int | float]
"""A query, the id of an item, and whether it is relevant: a grade above 0 is."""
Judgments = Iterable[Judgment] | Mapping[str, Mapping[str, int | float]]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ScoreCalibration:
    """Platt scaling: the probability of relevance is `1 / (1 + exp(−(slope · score + intercept)))`.

    Made by `Searcher.fit_calibration`; a JSON file keeps it.

    Attributes:
        slope: Positive.
        intercept: The log-odds at score 0.
        scorer: Fingerprint of the cross-encoder whose scores these are.
        relevant, irrelevant: Judgments that it was fitted to.
    """

    slope: float
    intercept: float
    scorer: str
    relevant: int
    irrelevant: int

    def __post_init__(self) -> None:
        check_number("slope", self.slope)
        if not is_finite(self.intercept):
            raise invalid("intercept", "a finite number", self.intercept)

    @classmethod
    def fit(cls, scores: NDArray[Any], relevant: NDArray[np.bool_], *, scorer: str) -> Self:
        """The maximum-likelihood fit with Platt's smoothed targets, by Newton's method."""
        positive, negative = check_judged(relevant)
        wide = scores.astype(np.float64)
        center, spread = wide.mean(), wide.std() or 1.0
        targets = np.where(relevant, (positive + 1) / (positive + 2), 1 / (negative + 2))
        slope, intercept = _fit_logistic((wide - center) / spread, targets)
        if slope <= 0:
            raise InputError(
                "the scores of relevant items are not higher than those of others, so that no probability follows from "
                "them. Check the judgments, or take another cross-encoder."
            )
        return cls(
            slope=float(slope / spread),
            intercept=float(intercept - slope * center / spread),
            scorer=scorer,
            relevant=positive,
            irrelevant=negative,
        )

    def probabilities(self, scores: NDArray[Any]) -> Array:
        """Of being relevant, for items with these scores."""
        with np.errstate(over="ignore"):  # of a steep slope: the probability is 0 or 1
            log_odds = self.slope * np.asarray(scores, np.float64) + self.intercept
        chances: Array = 0.5 + 0.5 * np.tanh(log_odds / 2)
        return chances

    def score_at(self, probability: float) -> float:
        """The score that has this probability, which lies between 0 and 1."""
        return float((np.log(probability) - np.log1p(-probability) - self.intercept) / self.slope)

    def save(self, path: str | Path) -> None:
        """Write the JSON file: an object with `format`, `version`, and these attributes."""
        data = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2)
        with disk_errors(Path(path), "the calibration cannot be written"):
            write_atomic(Path(path), f"{data}\n".encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The calibration in a file."""
        with disk_errors(Path(path), "the calibration cannot be read"), open_regular(Path(path)) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        try:
            if len(data) > MAX_FILE_BYTES:
                raise ValueError("it is too large")
            found = parse_json(data)
            header = (found.pop("format", None), found.pop("version", None)) if isinstance(found, dict) else ()
            if header != (FORMAT, VERSION):
                raise ValueError(f"its format and version must be {FORMAT!r} and {VERSION}")
            calibration: Self = read_as(cls, found)
        except ValueError as error:
            raise InputError(f"{path}: not a calibration of crossknn ({error}). Fit it again.") from error
        return calibration

    def check_scorer(self, fingerprint: str) -> None:
        """Raise `InputError` unless these are the scores of this cross-encoder."""
        if fingerprint != self.scorer:
            raise InputError(
                f"the calibration belongs to another scorer (fingerprint {self.scorer!r}), got {fingerprint!r}. "
                "Fit it again for this one."
            )


def check_judged(relevant: NDArray[np.bool_]) -> tuple[int, int]:
    """The numbers of relevant and other judgments, if there are enough of both."""
    positive, negative = int(relevant.sum()), int((~relevant).sum())
    if min(positive, negative) < MIN_JUDGED:
        raise InputError(
            f"`judgments` must have at least {MIN_JUDGED} relevant items and {MIN_JUDGED} others, "
            f"got {positive} and {negative}."
        )
    return positive, negative


def _fit_logistic(inputs: Array, targets: Array) -> tuple[float, float]:
    """Slope and intercept of a logistic regression on targets between 0 and 1."""
    columns = np.column_stack([inputs, np.ones(len(inputs))])

    def loss(weights: Array) -> float:
        logits = columns @ weights
        return float((np.logaddexp(0, logits) - targets * logits).sum() + RIDGE * weights @ weights / 2)

    weights = np.zeros(2)
    for _ in range(STEPS):
        chance = 0.5 + 0.5 * np.tanh(columns @ weights / 2)
        gradient = columns.T @ (targets - chance) - RIDGE * weights
        hessian = (columns * (chance * (1 - chance))[:, None]).T @ columns + RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        while loss(weights + step) > loss(weights) and np.abs(step).max() >= MIN_STEP:
            step /= 2
        weights = weights + step
        if np.abs(step).max() < MIN_STEP:
            break
    return float(weights[0]), float(weights[1])


def group_judgments(judgments: Judgments) -> dict[str, dict[str, bool]]:
    """By query and id of an item whether it is relevant."""
    if isinstance(judgments, Mapping):
        judgments = [(query, id_, grade) for query, graded in judgments.items() for id_, grade in graded.items()]
    grouped: dict[str, dict[str, bool]] = {}
    for place, judgment in enumerate(judgments):
        if not isinstance(judgment, tuple | list) or len(judgment) != 3:
            raise InputError(f"judgment {place} must be a query, an item's id and its relevance, got {judgment!r}.")
        query, id_, grade = judgment
        if not isinstance(grade, bool | np.bool_) and not is_finite(grade):
            raise InputError(f"the relevance of judgment {place} must be true, false or a number, got {grade!r}.")
        relevant = bool(grade > 0)
        if grouped.setdefault(query, {}).setdefault(str(id_), relevant) is not relevant:
            raise InputError(f"judgment {place} contradicts an earlier one of query {query!r} and item {id_!r}.")
    return grouped
