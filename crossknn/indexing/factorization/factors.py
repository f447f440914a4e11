"""Fitted factors of an index, including CUR: item vectors, and what gives vectors to new items and queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.indexing.factorization.inductive import Inductive, InductiveFit
from crossknn.indexing.factorization.transductive import Transductive, solve_items
from crossknn.indexing.score_matrix import SparseScores
from crossknn.storage.json_values import read_as
from crossknn.storage.safetensors import check_array
from crossknn.types import Progress, Vectors

if TYPE_CHECKING:
    from crossknn.indexing.factorization.trainer import FitReport
    from crossknn.strategies.normalization import Normalization

Kind = Literal["transductive", "inductive", "cur"]
ITEMS, TRAIN, NETS = "fitted.items", "fitted.queries", "nets."  # names of the arrays on disk, never to change
NO_VECTORS = np.empty((0, 0), np.float32)


class StoredFactors(TypedDict):
    """What `Factors.facts` gives."""

    kind: Kind
    ridge: float
    with_encoder: bool


@dataclass(frozen=True)
class Cur:
    """The paper's dense matrix R (anchor queries × items), whose columns are the item vectors.

    These are raw scores in a space without query vectors, so searches start with λ = 0. An item's vector takes
    4 · anchors bytes; while scores are collected, each pair takes about 60.

    Args:
        anchors: Train queries scored against all items: calls per item.
    """

    anchors: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("anchors", self.anchors)

    def choose_anchors(self, queries: list[str]) -> list[str]:
        """A random subset of the train queries, in their order."""
        if len(queries) <= self.anchors:
            return queries
        chosen = np.random.default_rng(self.seed).choice(len(queries), self.anchors, replace=False)
        return [queries[number] for number in np.sort(chosen)]


Method = Transductive | Inductive | Cur


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

    def vectors_of(
        self, encoded: NDArray[Any], entries: SparseScores | None, normalization: Normalization
    ) -> NDArray[Any]:
        """Vectors of new items from the encoder's by the nets, or else from their scores, too."""
        if self.nets is not None:
            return to_float16(self.nets.encode_items(encoded))
        if entries is None:
            raise InputError(f"New items need scores to get {self.kind} vectors.")
        if self.kind == "cur":
            return _columns(entries)
        start = encoded if self.with_encoder else np.zeros((len(encoded), self.items.shape[1]), np.float32)
        return to_float16(solve_items(normalized(entries, normalization), self.train, start, ridge=self.ridge))

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
        facts = read_as(StoredFactors, facts, "factors")
        state = {name.removeprefix(NETS): array for name, array in arrays.items() if name.startswith(NETS)}
        nets = InductiveFit(state) if facts["kind"] == "inductive" else None
        for name in (ITEMS, TRAIN):
            check_array(name, arrays[name], (None, None), np.floating)
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
        return Factors("cur", _columns(entries), NO_VECTORS, with_encoder=False), None
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
    """The vectors as stored; an error if a value overflows."""
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.float16)
    if not np.isfinite(stored).all():
        raise InputError("The fitted vectors overflow float16: the fit diverged. Lower `learning_rate`.")
    return stored


def _columns(entries: SparseScores) -> Vectors:
    """(items, anchors) float32: the item vectors, from the scores of all pairs."""
    n_queries, n_items = entries.pairs.n_queries, entries.pairs.n_items
    if len(entries) != n_queries * n_items:
        raise InputError(f"CUR needs all {n_queries * n_items} pairs of anchors and items, got {len(entries)}.")
    vectors: Vectors = np.empty((n_items, n_queries), np.float32)
    vectors[entries.pairs.rows, entries.pairs.queries] = entries.scores
    return vectors
