"""Dense retrieval: the largest inner products with a dual encoder's query vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.encoders.base import check_vectors
from crossknn.encoders.item_encoding import encode_items
from crossknn.errors import InputError
from crossknn.retrievers.base import BaseRetriever
from crossknn.types import Encoder, Mask, Proposal, VectorSearch
from crossknn.vectors.exact import ExactSearch

if TYPE_CHECKING:
    from crossknn.items.items import Items


class Dense(BaseRetriever):
    """Search over the items' vectors with the encoder's query vectors.

    Args:
        encoder: Encodes queries and, if there are no `vectors`, the items.
        vectors: The items' vectors, (items, dim), or a `VectorSearch` over them. Default: `fit` encodes the items and
            keeps the vectors in memory as float16.
        device: The torch device on which an array is searched; a `VectorSearch` has its own.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        vectors: NDArray[Any] | VectorSearch | None = None,
        device: str | None = None,
        name: str = "dense",
    ) -> None:
        super().__init__(name)
        if not isinstance(encoder, Encoder):
            raise InputError(f"`encoder` must be an Encoder, got {type(encoder).__name__}.")
        if isinstance(vectors, np.ndarray):
            if vectors.ndim != 2:
                raise InputError(f"`vectors` must have shape (items, dim), got {vectors.shape}.")
        elif vectors is not None and not isinstance(vectors, VectorSearch):
            raise InputError(f"`vectors` must be an array or a VectorSearch, got {type(vectors).__name__}.")
        self.encoder = encoder
        self.device = device
        self._vectors = vectors
        self._search: VectorSearch | None = None

    def fit(self, items: Items) -> Self:
        vectors = encode_items(items, self.encoder) if self._vectors is None else self._vectors
        if len(vectors) != len(items):
            raise InputError(f"`vectors` must hold one vector per item ({len(items)}), got {len(vectors)}.")
        search = ExactSearch(vectors, device=self.device) if isinstance(vectors, np.ndarray) else vectors
        dim = self.encoder.encode_queries([]).shape[1]
        if dim != search.dim:
            raise InputError(
                f"The items' vectors have {search.dim} dimensions and the encoder's queries {dim}. "
                "Use the encoder that made the vectors."
            )
        self._search = search
        self.n_items = len(items)
        return self

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        if not len(queries) or self._search is None:
            return []
        vectors = check_vectors(self.encoder.encode_queries(queries), queries, dim=self._search.dim)
        return self._search.search(vectors, n, allowed=allowed)
