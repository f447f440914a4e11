"""What is known about a query's scores before the first call: `Prior`, fitted once per index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Proposal, Rows, Scores

SIGNALS: Final = ("dense", "bm25")  # the retrievers whose evidence is used where nobody names others
DEPTH: Final = 10_000  # rows that a retriever is asked for; those behind count as equal
SOFT: Final = 10.0  # ranks below this differ little
PER_SIGNAL: Final = 2  # columns
TRAITS: Final = 16  # that are learned of every item
VECTOR, COLUMN, CONSTANT, NOISE = 0.3, 0.1, 1.0, 0.2  # variances of a general prior, where scores have 1
ARRAYS: Final = ("center", "spread", "weights", "variances", "inductive")
PLAIN: Final = ("intercept", "noise", "low", "rise", "most")

Columns = NDArray[np.float32]  # (rows, signals × 2)


@dataclass(frozen=True)
class Prior:
    """A model of scores: `f(q, i) = m_q(i) + γ_q(i) (w·φ_q(i) + ε)`, with `w ~ N(0, I)` and `ε ~ N(0, noise)`.

    The mean m is linear in what retrievers say (`weights`, of columns brought to mean 0 and deviation 1) and has each
    item's own `bias`. The features φ are the item's vector, those columns, the bias and a constant, each with the
    variance that its weight has from query to query, and the item's `traits`. γ is how much further scores of items
    that retrievers find good lie from the mean than those of others: it grows with what they say, from 1.

    signals    the retrievers' names
    center     (columns,) and `spread`: mean and deviation of the columns
    weights    (columns,)
    intercept  the score where all columns are at their mean
    bias       (items,) by how much an item's scores are above what retrievers say, on average over queries
    traits     (items, TRAITS) float16: what some queries like more than others, as train queries' scores told, in
               units in which a query's weights have variance 1; (items, 0) where nothing was learned
    inductive  (dim + 1,) the bias of an item that was never scored, from its vector and a constant
    variances  (columns + 3,) of the vector, of each column, of the bias (brought to deviation 1), of the constant
    noise      variance of what the model cannot explain
    low        γ begins to grow where the retrievers say more than this, as a score,
    rise       by so much for every unit of score,
    most       up to this
    fitted     whether it is on the scale of scores; else on that of scores less their mean, over their deviation
    """

    signals: tuple[str, ...]
    center: NDArray[np.float64]
    spread: NDArray[np.float64]
    weights: NDArray[np.float64]
    intercept: float
    bias: Scores
    traits: NDArray[Any]
    inductive: NDArray[np.float64]
    variances: NDArray[np.float64]
    noise: float
    low: float
    rise: float
    most: float
    fitted: bool = True

    @classmethod
    def general(cls, signals: Sequence[str]) -> Self:
        """What may be believed of any cross-encoder without a score: retrievers are right on average.

        Columns are brought to mean 0 and deviation 1 for each query (`strategies.heard`).
        """
        width = PER_SIGNAL * len(signals)
        return cls(
            signals=tuple(signals),
            center=np.zeros(width),
            spread=np.ones(width),
            weights=np.full(width, 1 / width),
            intercept=0.0,
            bias=np.empty(0, np.float32),
            traits=np.empty((0, 0), np.float16),
            inductive=np.zeros(0),
            variances=np.array([VECTOR, *[COLUMN] * width, 0.0, CONSTANT]),
            noise=NOISE,
            low=0.0,
            rise=0.0,
            most=1.0,
            fitted=False,
        )

    @property
    def vector_variance(self) -> float:
        return float(self.variances[0])

    @property
    def beside(self) -> tuple[NDArray[Any], Columns]:
        """What it knows of every item beside its vector: (items, TRAITS) and (items, 1), traits and biases."""
        return self.traits, self.bias[:, None]

    @cached_property
    def bias_scale(self) -> float:
        """By which a bias becomes a feature."""
        return float(np.sqrt(self.variances[-2]) / (self.bias.std() or 1.0)) if len(self.bias) else 0.0

    @property
    def constant(self) -> float:
        """The feature that all items have alike."""
        return float(np.sqrt(self.variances[-1]))

    def take(self, rows: Rows) -> Self:
        """The same prior for these items only."""
        return replace(self, bias=self.bias[rows], traits=self.traits[rows])

    def add(self, vectors: NDArray[Any]) -> Self:
        """The same prior for further items, too: they have the bias that their vectors let expect, and no traits."""
        bias = vectors.astype(np.float32) @ self.inductive[:-1].astype(np.float32) + np.float32(self.inductive[-1])
        blank = np.zeros((len(vectors), self.traits.shape[1]), self.traits.dtype)
        return replace(self, bias=np.append(self.bias, bias), traits=np.concatenate([self.traits, blank]))

    def facts(self) -> dict[str, Any]:
        """All but bias and traits, as JSON can hold it."""
        numbers = {name: getattr(self, name).tolist() for name in ARRAYS}
        plain = {name: getattr(self, name) for name in PLAIN}
        return {"signals": list(self.signals), **plain, **numbers}

    @classmethod
    def load(cls, bias: NDArray[Any], traits: NDArray[Any], facts: Mapping[str, Any]) -> Self:
        """What `facts` was taken from; arrays that are mapped stay so."""
        arrays = {name: np.array(facts[name], np.float64) for name in ARRAYS}
        plain = {name: float(facts[name]) for name in PLAIN}
        values: dict[str, Any] = {**arrays, **plain}
        values |= {"bias": np.asarray(bias, np.float32), "traits": np.asarray(traits, np.float16)}
        return cls(signals=tuple(facts["signals"]), **values)


def grow(said: NDArray[Any], *, low: float, rise: float, most: float) -> NDArray[Any]:
    """γ: 1 up to `low`, then rising, up to `most`."""
    return np.minimum(1 + rise * np.maximum(said - low, 0), most)


def columns_at(proposals: Sequence[Proposal], ranks: Sequence[Rows]) -> Columns:
    """(rows, signals × 2): what each retriever's proposal says about rows with these places in it.

    By retriever its estimate, where large ones count as their logarithm, and how early it comes. What was not
    proposed, and has its length for a place (`ranking.places_in`), counts as the last that was.
    """
    return np.concatenate([_columns(*both) for both in zip(proposals, ranks, strict=True)], axis=1)


def estimates_at(proposal: Proposal, places: Rows) -> Scores:
    """What the proposer says of the rows at these places; of those it did not propose, what it says of its last."""
    if not len(proposal):
        return np.zeros(len(places), np.float32)
    return np.append(proposal.estimates, proposal.estimates[-1])[places]


def _columns(proposal: Proposal, ranks: Rows) -> Columns:
    if not len(proposal):
        return np.zeros((len(ranks), PER_SIGNAL), np.float32)
    estimates = estimates_at(proposal, ranks)
    return np.column_stack([np.arcsinh(estimates), -np.log(ranks + SOFT)]).astype(np.float32)
