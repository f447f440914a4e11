"""The rows of largest inner product with a dual encoder's query vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.encoders.base import check_vectors
from crossknn.encoders.item_encoding import encode_items
from crossknn.errors import InputError
from crossknn.retrievers.base import check_fitted, check_name, check_request
from crossknn.types import Encoder, Mask, Proposal, VectorSearch

if TYPE_CHECKING:
    from crossknn.items.items import Items


class Dense:
    """Exact search over the items' vectors with `encoder`'s query vectors.

    `vectors` are the items' vectors, (items, dim), or a `VectorSearch` over them; without them `fit`
    encodes the items and keeps the vectors in memory as float16. `device` is where an array is
    searched; a `VectorSearch` has its own.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        vectors: NDArray[Any] | VectorSearch | None = None,
        device: str | None = None,
        name: str = "dense",
    ) -> None:
        if not isinstance(encoder, Encoder):
            raise InputError(f"encoder must be an Encoder. Got {type(encoder).__name__} instead.")
        if isinstance(vectors, np.ndarray):
            if vectors.ndim != 2:
                raise InputError(f"vectors must have shape (items, dim). Got {vectors.shape} instead.")
        elif vectors is not None and not isinstance(vectors, VectorSearch):
            raise InputError(f"vectors must be an array or a VectorSearch. Got {type(vectors).__name__} instead.")
        self.encoder = encoder
        self.device = device
        self.name = check_name(name)
        self.n_items: int | None = None
        self._vectors = vectors
        self._search: VectorSearch | None = None

    def fit(self, items: Items) -> Self:
        vectors = encode_items(items, self.encoder) if self._vectors is None else self._vectors
        if len(vectors) != len(items):
            raise InputError(f"there must be one vector per item ({len(items)}). Got {len(vectors)} instead.")
        search = self._make_search(vectors)
        dim = self.encoder.encode_queries([]).shape[1]
        if dim != search.dim:
            raise InputError(
                f"the items' vectors have {search.dim} dimensions and the encoder's queries {dim}: "
                "they must come from the same encoder."
            )
        self._search = search
        self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        check_request(check_fitted(self.n_items, self.name), queries, n, allowed)
        if not len(queries) or self._search is None:
            return []
        vectors = check_vectors(self.encoder.encode_queries(queries), queries, dim=self._search.dim)
        return self._search.search(vectors, n, allowed=allowed)

    def _make_search(self, vectors: NDArray[Any] | VectorSearch) -> VectorSearch:
        if not isinstance(vectors, np.ndarray):
            return vectors
        from crossknn.vectors.exact import ExactSearch

        return ExactSearch(vectors, device=self.device)
