"""What a factorisation leaves in an index: item vectors that fit the scores, and what new items and queries need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    from crossknn.indexing.factorization.trainer import Report
    from crossknn.strategies.normalization import Normalization

Method = Transductive | Inductive | Cur
Kind = Literal["transductive", "inductive", "cur"]
ITEMS, TRAIN, NETS = "fitted.items", "fitted.queries", "nets."


@dataclass(frozen=True)
class Factors:
    """Fitted vectors.

    items          (items, dim)
    train          (train queries, dim) of a transductive fit, to fit new items against; else empty
    nets           of an inductive fit
    ridge          how strongly a new item's vector is held to the encoder's (transductive)
    with_encoder   whether the encoder's query vectors live in the same space
    """

    kind: Kind
    items: NDArray[Any]
    train: NDArray[Any]
    nets: InductiveFit | None = None
    ridge: float = 1.0
    with_encoder: bool = True

    def query_vectors(self, vectors: Vectors) -> Vectors:
        """The query vectors that belong to `items`, from those of the encoder."""
        if not self.with_encoder:
            raise InputError(
                f"{self.kind} vectors have no query vectors: only Axn(mix=0), AnnCur and AdaCur can search with them."
            )
        return vectors if self.nets is None else self.nets.encode_queries(vectors)

    def item_vectors(self, vectors: Vectors) -> Vectors:
        """The nearest to fitted vectors of items without scores, from those of the encoder."""
        return vectors if self.nets is None else self.nets.encode_items(vectors)

    @property
    def needs_scores(self) -> bool:
        """Whether a new item must be scored before it has a vector."""
        return self.kind != "inductive"

    def vectors_of(
        self, encoded: NDArray[Any], entries: SparseScores | None, normalization: Normalization
    ) -> NDArray[Any]:
        """Vectors of new items from the encoder's, and where it `needs_scores` from their entries."""
        if self.nets is not None:
            return as_stored(self.item_vectors(encoded))
        if entries is None:
            raise InputError(f"new items need scores before they have {self.kind} vectors.")
        if self.kind == "cur":
            return columns(entries)
        start = encoded if self.with_encoder else np.zeros((len(encoded), self.items.shape[1]), np.float32)
        return as_stored(solve_items(normalized(entries, normalization), self.train, start, ridge=self.ridge))

    def with_items(self, items: NDArray[Any]) -> Factors:
        """The same fit with other item vectors."""
        return Factors(self.kind, items, self.train, self.nets, self.ridge, self.with_encoder)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is saved of it, beside `facts`."""
        nets = {} if self.nets is None else self.nets.state()
        return {ITEMS: self.items, TRAIN: self.train, **{NETS + name: array for name, array in nets.items()}}

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "ridge": self.ridge, "with_encoder": self.with_encoder}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Self:
        """What `arrays` and `facts` were taken from."""
        state = {name.removeprefix(NETS): array for name, array in arrays.items() if name.startswith(NETS)}
        nets = InductiveFit.from_state(state) if facts["kind"] == "inductive" else None
        return cls(facts["kind"], arrays[ITEMS], arrays[TRAIN], nets, facts["ridge"], facts["with_encoder"])


def fit_factors(
    method: Method,
    entries: SparseScores,
    query_vectors: NDArray[Any],
    item_vectors: NDArray[Any],
    normalization: Normalization,
    *,
    progress: Progress | None = None,
) -> tuple[Factors, Report | None]:
    """Factorise the entries; scores are normalised for it, but for CUR's."""
    if isinstance(method, Cur):
        return Factors("cur", columns(entries), _nothing(), with_encoder=False), None
    scaled = normalized(entries, normalization)
    if isinstance(method, Inductive):
        nets = method.fit(scaled, query_vectors, item_vectors, progress=progress)
        return Factors("inductive", as_stored(nets.encode_items(item_vectors)), _nothing(), nets), nets.report
    started = method.init == "encoder"
    start = (query_vectors, item_vectors) if started else (None, None)
    fit = method.fit(scaled, *start, progress=progress)
    factors = Factors(
        "transductive", as_stored(fit.item_vectors), fit.query_vectors, ridge=method.ridge, with_encoder=started
    )
    return factors, fit.report


def normalized(entries: SparseScores, normalization: Normalization) -> SparseScores:
    """The entries on the scale of the encoder's estimates."""
    return SparseScores(entries.pairs, normalization.normalize(entries.scores).astype(np.float32))


def as_stored(vectors: Vectors) -> NDArray[np.float16]:
    """Half of the bytes; an error where a number is too large for it."""
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.float16)
    if not np.isfinite(stored).all():
        raise InputError("the fitted vectors are too long for float16: the fit went astray. Lower learning_rate.")
    return stored


def _nothing() -> Vectors:
    return np.empty((0, 0), np.float32)
