"""Fitted factors of an index: item vectors, and what gives vectors to new items and queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.indexing.factorization.cur import Cur, columns
from crossknn.indexing.factorization.inductive import Inductive, InductiveFit
from crossknn.indexing.factorization.transductive import Transductive, solve_items
from crossknn.indexing.score_matrix import SparseScores
from crossknn.types import Progress, Vectors

if TYPE_CHECKING:
    from crossknn.indexing.factorization.trainer import FitReport
    from crossknn.strategies.normalization import Normalization

Method = Transductive | Inductive | Cur
Kind = Literal["transductive", "inductive", "cur"]
ITEMS, TRAIN, NETS = "fitted.items", "fitted.queries", "nets."  # names of the arrays on disk, never to change
NO_VECTORS = np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Factors:
    """Vectors fitted to the scores.

    Attributes:
        items: (items, dim).
        train: (train queries, dim) of a transductive fit, against which new items are fitted; else empty.
        nets: The MLPs of an inductive fit.
        ridge: The pull of a new item's vector toward the encoder's (transductive).
        with_encoder: Whether the encoder's query vectors live in the same space.
    """

    kind: Kind
    items: NDArray[Any]
    train: NDArray[Any]
    nets: InductiveFit | None = None
    ridge: float = 1.0
    with_encoder: bool = True

    def query_vectors(self, vectors: Vectors) -> Vectors:
        """The encoder's query vectors, mapped to the space of `items`."""
        if not self.with_encoder:
            raise InputError(
                f"{self.kind} vectors have no query vectors: search with Axn(mix=0), AnnCur or AdaCur instead."
            )
        return vectors if self.nets is None else self.nets.encode_queries(vectors)

    def item_vectors(self, vectors: Vectors) -> Vectors:
        """The encoder's vectors of unscored items, mapped to the space of `items`."""
        return vectors if self.nets is None else self.nets.encode_items(vectors)

    @property
    def needs_scores(self) -> bool:
        """Whether a new item needs scores to get a vector."""
        return self.kind != "inductive"

    def vectors_of(
        self, encoded: NDArray[Any], entries: SparseScores | None, normalization: Normalization
    ) -> NDArray[Any]:
        """Vectors of new items from the encoder's, and from their scores if `needs_scores`."""
        if self.nets is not None:
            return to_float16(self.item_vectors(encoded))
        if entries is None:
            raise InputError(f"New items need scores to get {self.kind} vectors.")
        if self.kind == "cur":
            return columns(entries)
        start = encoded if self.with_encoder else np.zeros((len(encoded), self.items.shape[1]), np.float32)
        return to_float16(solve_items(normalized(entries, normalization), self.train, start, ridge=self.ridge))

    def with_items(self, items: NDArray[Any]) -> Factors:
        """The same fit with other item vectors."""
        return replace(self, items=items)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that an index saves."""
        nets = {} if self.nets is None else self.nets.state()
        return {ITEMS: self.items, TRAIN: self.train, **{NETS + name: array for name, array in nets.items()}}

    def facts(self) -> dict[str, Any]:
        """The JSON values that an index saves."""
        return {"kind": self.kind, "ridge": self.ridge, "with_encoder": self.with_encoder}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Self:
        """The factors that `arrays` and `facts` were saved from."""
        state = {name.removeprefix(NETS): array for name, array in arrays.items() if name.startswith(NETS)}
        nets = InductiveFit(state) if facts["kind"] == "inductive" else None
        return cls(facts["kind"], arrays[ITEMS], arrays[TRAIN], nets, facts["ridge"], facts["with_encoder"])


def fit_factors(
    method: Method,
    entries: SparseScores,
    query_vectors: NDArray[Any],
    item_vectors: NDArray[Any],
    normalization: Normalization,
    *,
    progress: Progress | None = None,
) -> tuple[Factors, FitReport | None]:
    """Factorize the score matrix, normalized except for CUR."""
    if isinstance(method, Cur):
        return Factors("cur", columns(entries), NO_VECTORS, with_encoder=False), None
    scaled = normalized(entries, normalization)
    if isinstance(method, Inductive):
        nets = method.fit(scaled, query_vectors, item_vectors, progress=progress)
        return Factors("inductive", to_float16(nets.encode_items(item_vectors)), NO_VECTORS, nets), nets.report
    with_encoder = method.init == "encoder"
    fit = method.fit(scaled, *((query_vectors, item_vectors) if with_encoder else ()), progress=progress)
    items = to_float16(fit.item_vectors)
    return Factors("transductive", items, fit.query_vectors, None, method.ridge, with_encoder), fit.report


def normalized(entries: SparseScores, normalization: Normalization) -> SparseScores:
    """The entries on the scale of the encoder's inner products."""
    return SparseScores(entries.pairs, normalization.normalize(entries.scores).astype(np.float32))


def to_float16(vectors: Vectors) -> NDArray[np.float16]:
    """The vectors as stored.

    Raises:
        InputError: If a value overflows.
    """
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.float16)
    if not np.isfinite(stored).all():
        raise InputError("The fitted vectors overflow float16: the fit diverged. Lower `learning_rate`.")
    return stored
