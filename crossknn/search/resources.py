"""What a searcher searches with: retrievers, item vectors and query vectors, each made on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from crossknn._checks import check_signals, invalid
from crossknn.encoders.base import CachedEncoder, check_vectors
from crossknn.encoders.item_encoding import encode_items
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.cache import CandidateCache
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.registry import RetrieverRegistry
from crossknn.strategies.base import SearchContext
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import SIGNALS
from crossknn.types import AugmentableSearch, Encoder, Mask, Progress, Retriever, Vectors, VectorSearch
from crossknn.vectors.base import AugmentedSearch
from crossknn.vectors.exact import ExactSearch

if TYPE_CHECKING:
    import torch

    from crossknn.indexing.factorization.factors import Factors


class SearchResources:
    """Retrievers and vectors of an index, or of plain items; safe for several threads. Arguments as of `Searcher`."""

    def __init__(
        self,
        items: Items,
        index: Index | None,
        *,
        encoder: Encoder | None,
        vectors: VectorSearch | NDArray[Any] | torch.Tensor | None,
        retrievers: Iterable[Retriever],
        signals: Sequence[str] | None,
        store: Callable[[Any], VectorSearch] | None,
        device: str | None,
        progress: Progress | None,
    ) -> None:
        self._items = items
        self._index = index
        self._encoder = encoder if encoder is None or isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)
        self._store = store or partial(ExactSearch, device=device)
        self._progress = progress
        self._device = device
        if vectors is None and index is not None:
            vectors = index.vectors
        self._encoder_vectors = None if vectors is None else self._as_search(vectors)
        self._factors = None if index is None else index.factors
        self._fitted_vectors = None if self._factors is None else self._as_search(self._factors.items)
        self._augmented: VectorSearch | None = None
        self._lock = threading.RLock()
        self.prior = None if index is None else index.prior
        self._retrievers = RetrieverRegistry(items, own=retrievers, fitted=self._fitted_retrievers(), device=device)
        self.signals = self._choose_signals(signals)

    def _fitted_retrievers(self) -> dict[str, Callable[[], Retriever]]:
        fitted: dict[str, Callable[[], Retriever]] = {"dense": self._make_dense}
        if self._index is not None:
            index = self._index
            fitted["bm25"] = lambda: index.bm25
        if self._factors is not None:
            fitted["fitted"] = partial(self._make_fitted, self._factors)
        return fitted

    def _choose_signals(self, given: Sequence[str] | None) -> tuple[str, ...]:
        if given is None:
            return SIGNALS if self.prior is None else self.prior.signals
        names = check_signals(given, self._retrievers.names)
        if self.prior is not None and names != self.prior.signals:
            learned = ", ".join(self.prior.signals)
            raise invalid("signals", f"left out: the index has a prior that was learned from {learned}", given)
        return names

    @property
    def rankable_signals(self) -> list[str]:
        """The signals that can be computed here: "dense" needs an encoder or a retriever of that name."""
        own = self._retrievers.own_names
        return [name for name in self.signals if name != "dense" or self._encoder or name in own]

    def candidates(self, queries: Sequence[str], allowed: Mask | None) -> CandidateCache:
        """The proposals of retrievers for the queries of one search."""
        on_gpu = self._device is not None and self._device != "cpu"  # else the encoder needs the cores
        return CandidateCache(queries, self.retriever, allowed, side_by_side=on_gpu)

    def retriever(self, name: str | None = None) -> Retriever:
        """The retriever of this name, fitted; None is the default one."""
        if name in self.signals and name not in self._retrievers.names:
            raise InputError(
                f"there is no retriever named {name!r}, which the prior of the index needs: pass yours in `retrievers`."
            )
        if name is None:
            return self._retrievers.first_stage(dense=self._encoder is not None)
        return self._retrievers.get(name)

    def matches(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The (start, end) of each text's words that BM25 matches; none where it was not used."""
        lexical = [retriever for retriever in self._retrievers.ready.copy().values() if isinstance(retriever, Bm25)]
        return lexical[0].matches(query, texts) if lexical else [[] for _ in texts]

    def _make_dense(self) -> Retriever:
        return Dense(self._require_encoder("the dense retriever"), vectors=self.encoder_vectors()).fit(self._items)

    def _make_fitted(self, factors: Factors) -> Retriever:
        encoder = _FactorsEncoder(self._require_encoder("the fitted retriever"), factors)
        return Dense(encoder, vectors=self._fitted_vectors, name="fitted").fit(self._items)

    def encoder_vectors(self) -> VectorSearch:
        """Search over the encoder's item vectors."""
        with self._lock:
            if self._encoder_vectors is None:
                encoder = self._require_encoder("a search with item vectors")
                self._encoder_vectors = self._as_search(encode_items(self._items, encoder, progress=self._progress))
            return self._encoder_vectors

    def item_vectors(self) -> VectorSearch:
        """What strategies search: the vectors learned from scores, or else the encoder's."""
        return self._fitted_vectors or self.encoder_vectors()

    def augmented_vectors(self) -> VectorSearch:
        """The item vectors extended by the prior's latent factors and bias."""
        if self.prior is None:
            return self.item_vectors()
        with self._lock:
            if self._augmented is None:
                vectors = self.item_vectors()
                extend = (
                    vectors.with_columns
                    if isinstance(vectors, AugmentableSearch)
                    else partial(AugmentedSearch, vectors)
                )
                self._augmented = extend(*self.prior.item_columns)
            return self._augmented

    def _as_search(self, vectors: VectorSearch | NDArray[Any] | torch.Tensor) -> VectorSearch:
        search = vectors if isinstance(vectors, VectorSearch) else self._store(vectors)
        if not isinstance(search, VectorSearch):
            raise InputError(f"`store` must make a VectorSearch from an array, it made {type(search).__name__}.")
        if len(search) != len(self._items):
            raise InputError(f"there must be one vector per item ({len(self._items)}), got {len(search)}.")
        return search

    @property
    def has_query_vectors(self) -> bool:
        """Whether queries have vectors in the space of `item_vectors`."""
        return self._encoder is not None and (self._factors is None or self._factors.with_encoder)

    def query_vectors(self, queries: Sequence[str]) -> Vectors:
        """The query vectors in the space of `item_vectors`."""
        vectors = self.encode_queries(queries)
        return vectors if self._factors is None else self._factors.query_vectors(vectors)

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """The encoder's query vectors."""
        encoder = self._require_encoder("a query vector")
        return check_vectors(encoder.encode_queries(queries), queries, dim=self.encoder_vectors().dim)

    def context(
        self,
        queries: Sequence[str],
        candidates: CandidateCache,
        allowed: Mask | None,
        *,
        normalization: Normalization | None,
        k: int | None,
    ) -> SearchContext:
        """What a strategy sees of these queries."""
        return SearchContext(
            queries=len(queries),
            items=len(self._items),
            propose=candidates,
            retrieve_ahead=candidates.retrieve_ahead,
            query_vectors=partial(self.query_vectors, queries) if self.has_query_vectors else None,
            item_vectors=self.item_vectors,
            augmented_vectors=self.augmented_vectors,
            allowed=allowed,
            normalization=normalization,
            prior=self.prior,
            recall_calibration=None if self._index is None else self._index.recall_calibration,
            signals=self.signals,
            k=k,
        )

    def _require_encoder(self, what: str) -> Encoder:
        if self._encoder is None:
            raise InputError(f"{what} needs an encoder: Searcher(items, scorer=…, encoder=SentenceEncoder(…)).")
        return self._encoder


class _FactorsEncoder:
    """An encoder in the space of the fitted item vectors."""

    def __init__(self, encoder: Encoder, factors: Factors) -> None:
        self._encoder = encoder
        self._factors = factors

    @property
    def fingerprint(self) -> str:
        return f"{self._encoder.fingerprint}+{self._factors.kind}"

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return self._factors.query_vectors(self._encoder.encode_queries(texts))

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        return self._factors.item_vectors(self._encoder.encode_items(texts))
