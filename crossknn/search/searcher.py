"""An index or items, a scorer and whatever proposes candidates, put together for searching."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, check_signals
from crossknn.encoders.base import check_vectors
from crossknn.encoders.item_encoding import encode_items
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.cache import CandidateCache
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.registry import BUILT_IN
from crossknn.retrievers.simple import Random
from crossknn.retrievers.tfidf import TfIdf
from crossknn.search.fusion import ScoreFusion, check_rank_by
from crossknn.search.rank_weights import SCORE, check_weights, equal_weights, fit_weights
from crossknn.search.results import Hits, best_hits
from crossknn.search.round_scorer import RoundScorer
from crossknn.search.trace import join
from crossknn.strategies.base import QueryResult, SearchContext, Strategy, drive
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import SIGNALS
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import (
    AugmentableSearch,
    Encoder,
    Mask,
    Progress,
    Retriever,
    Rows,
    Scorer,
    SharedScorer,
    Vectors,
    VectorSearch,
)
from crossknn.vectors.augmented import AugmentedSearch
from crossknn.vectors.exact import ExactSearch

if TYPE_CHECKING:
    import torch

    from crossknn.indexing.factorization.factors import Factors

Filter = Collection[str] | Callable[[str], bool]
"""Ids that may be found, or a test on an id. It holds in every round."""
TOGETHER = 64  # queries that weights are fitted on side by side


class Searcher:
    """Searches an index, or plain items, for the highest scores of `scorer`.

    items          an `Index`, which brings vectors, α and β; or `Items`
    scorer         any `Scorer`; called once per round for all queries of a search
    encoder        any `Encoder`; without one there are no item vectors and no "dense" retriever
    vectors        the items' vectors if you have them: an array, a tensor or a `VectorSearch`.
                   Without them the items are encoded when they are first needed
    retrievers     your own, beside "dense", "bm25", "tfidf", "random", "fused" (reciprocal rank of dense and
                   BM25) and, with an index that has them, "fitted" (the vectors learned from scores), which
                   are made when a strategy first names them; one of the same name takes the place of the built-in
    normalization  α and β for `Axn` and `Tour`; `fit_normalization` estimates them
    signals        names of the retrievers whose evidence `Posterior` and `rank_by="fused"` use, by default "dense" and
                   "bm25". The prior of an index has its own, and needs your retrievers of these names
    rank_weights   how much "score" and each retriever, by its name, count in `rank_by="fused"`; without them the score
                   and the signals count the same. `fit_rank_weights` learns them from judgments
    store          what searches vectors that are given or made as arrays, those that an index learned, too: a function
                   of an array, such as `FaissSearch`. By default `ExactSearch` on `device`
    device         where the item vectors are searched: "cpu" (default) or "cuda"
    check_models   refuse a scorer or encoder that the index was not built with
    progress       called as `progress(step, done, total)` while encoding and scoring

    A searcher may be used from several threads; the scorer is called by one at a time, unless it is a `SharedScorer`.
    """

    def __init__(
        self,
        items: Items | Index,
        *,
        scorer: Scorer,
        encoder: Encoder | None = None,
        vectors: VectorSearch | NDArray[Any] | torch.Tensor | None = None,
        retrievers: Iterable[Retriever] = (),
        normalization: Normalization | None = None,
        signals: Sequence[str] | None = None,
        rank_weights: Mapping[str, float] | None = None,
        store: Callable[[Any], VectorSearch] | None = None,
        device: str | None = None,
        check_models: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.index = items if isinstance(items, Index) else None
        if isinstance(items, Index):
            if check_models:
                items.check_models(scorer=scorer, encoder=encoder)
            vectors = items.vectors if vectors is None else vectors
            normalization = normalization or items.normalization
            items = items.items
        if not isinstance(items, Items):
            raise InputError(
                f"items must be an Index or Items, as from Items.from_path(…). Got {type(items).__name__} instead."
            )
        self.items = items
        self.scorer = scorer
        self.encoder = encoder
        self._encoder = None if encoder is None else _Remembering(encoder)
        self.normalization = normalization
        self.rank_weights = None if rank_weights is None else check_weights(rank_weights)
        self._store = store or partial(ExactSearch, device=device)
        self._progress = progress
        self._vectors = None if vectors is None else self._as_search(vectors)
        self._factors = None if self.index is None else self.index.factors
        self._fitted_vectors = None if self._factors is None else self._as_search(self._factors.items)
        self._profiles: VectorSearch | None = None
        self._own = {retriever.name: retriever for retriever in retrievers}
        self._signals = self._choose_signals(signals)
        self._fitted: dict[str, Retriever] = {}
        self._making = threading.RLock()
        self._scoring = threading.Lock()

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
    ) -> Hits:
        """The `k` best items for one query; see `search_many`."""
        return self._search([query], k, budget, strategy, filter, deadline, rank_by, stop_at, None)[0]

    def search_many(
        self,
        queries: Sequence[str],
        *,
        k: int = 10,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> list[Hits]:
        """The `k` best items for each query, all queries side by side, one scorer call per round.

        `strategy` defaults to `Posterior(budget)`, without an encoder and with CUR vectors to `Rerank(budget)`, and
        `budget` to 100 calls per query; give one or the other.
        `deadline` is in seconds for the whole call: when it is over, the best so far come back and
        `hits.stopped` is "deadline".
        `rank_by` is the order of what was scored, of which the first `k` come back: by "score", or "fused", by the
        score and what retrievers say together (`rank_weights`).
        `stop_at` ends each query's search as soon as that share of its true top `k` is expected to be found
        (`hits.expected_recall`); the strategy must be `Posterior`.
        `cancelled` ends the search after its current slice once another thread sets it.
        """
        return self._search(queries, k, budget, strategy, filter, deadline, rank_by, stop_at, cancelled)

    async def asearch(
        self,
        query: str,
        *,
        k: int = 10,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
    ) -> Hits:
        """`search` without blocking the event loop. Cancelling the task ends the search after its current slice."""
        cancelled = threading.Event()
        try:
            found = await asyncio.to_thread(
                self._search, [query], k, budget, strategy, filter, deadline, rank_by, stop_at, cancelled
            )
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return found[0]

    def fit_normalization(self, queries: Sequence[str], *, items_per_query: int = 100, seed: int = 0) -> Normalization:
        """Estimate α and β from calls on `queries` (the paper: 100 train queries) and keep them for `Axn`.

        Each query is scored against `items_per_query` random items.
        """
        check_positive("items_per_query", items_per_query)
        queries = self._check_queries(queries)
        if not queries:
            raise InputError("α and β need at least one train query. Got none.")
        sampled = Random(seed=seed).fit(self.items).retrieve(queries, items_per_query)
        query_vectors, search = self._encode_queries(queries), self._item_vectors()
        rows = [proposal.rows for proposal in sampled]
        answered = self._answerer(queries, total_calls=sum(map(len, rows)))(rows)
        estimates = [search.take(mine) @ vector for mine, vector in zip(rows, query_vectors, strict=True)]
        self.normalization = Normalization.fit(np.concatenate(answered.scores), np.concatenate(estimates))
        return self.normalization

    def fit_rank_weights(
        self,
        queries: Sequence[str],
        relevant: Sequence[Collection[str]],
        *,
        budget: int | None = None,
        strategy: Strategy | None = None,
    ) -> dict[str, float]:
        """Learn from judged queries how much the score and each retriever count, and keep it for `rank_by="fused"`.

        `relevant` holds the ids of each query's relevant items. Every query is searched as `search_many` does.
        """
        queries = self._check_queries(queries)
        rows = self._relevant_rows(queries, relevant)
        chosen = self._choose_strategy(strategy, budget, 1)
        judged = []
        for start in range(0, len(queries), TOGETHER):
            part = queries[start : start + TOGETHER]
            proposed = CandidateCache(part, self._find_retriever, None)
            order = ScoreFusion(self._weights, proposed)
            found, _ = self._drive(chosen, self._space(part, proposed, None, None), part)
            for number, one in enumerate(found):
                scored = join(one.rows)
                columns = order.columns(number, scored, join(one.scores))
                judged.append((columns, np.isin(scored, rows[start + number])))
        self.rank_weights = dict(zip(self._weights, fit_weights(judged).tolist(), strict=True))
        return self.rank_weights

    def _relevant_rows(self, queries: Sequence[str], relevant: Sequence[Collection[str]]) -> list[Rows]:
        if not queries or len(relevant) != len(queries):
            raise InputError(
                "relevant must hold the ids of each query's relevant items, for at least one query. "
                f"Got {len(relevant)} for {len(queries)} queries."
            )
        if isinstance(relevant, str) or any(isinstance(ids, str) for ids in relevant):
            raise InputError("relevant must hold a list of ids for each query. Got a string instead.")
        return [self.items.rows_of(ids) for ids in relevant]

    def _search(
        self,
        queries: Sequence[str],
        k: int,
        budget: int | None,
        strategy: Strategy | None,
        filter: Filter | None,
        deadline: float | None,
        rank_by: str,
        stop_at: float | None,
        cancelled: threading.Event | None,
    ) -> list[Hits]:
        start = time.monotonic()
        queries = self._check_queries(queries)
        check_rank_by(rank_by)
        chosen = self._choose_strategy(strategy, budget, k, stop_at)
        if deadline is not None and not deadline > 0:
            raise InputError(f"deadline must be a positive number of seconds. Got {deadline!r} instead.")
        allowed = None if filter is None else self.items.mask(filter)
        proposed = CandidateCache(queries, self._find_retriever, allowed)
        order = ScoreFusion(self._weights, proposed) if rank_by != SCORE else None
        space = self._space(queries, proposed, allowed, k)
        ends = None if deadline is None else start + deadline
        found, score_seconds = self._drive(chosen, space, queries, ends=ends, cancelled=cancelled)
        times = {
            "seconds": time.monotonic() - start,
            "score_seconds": score_seconds,
            "solve_seconds": space.solving.seconds,
        }
        return [
            best_hits(
                query,
                one,
                self.items,
                k,
                ranks=partial(proposed.ranks, number),
                fuse=None if order is None else partial(order.fuse, number),
                traced=chosen.budget is not None,
                **times,
            )
            for number, (query, one) in enumerate(zip(queries, found, strict=True))
        ]

    def _drive(
        self,
        strategy: Strategy,
        space: SearchContext,
        queries: Sequence[str],
        *,
        ends: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> tuple[list[QueryResult], float]:
        """What the strategy scored for each query, and the seconds spent in the scorer."""
        most = len(queries) * min(strategy.budget or space.reachable, space.reachable)
        answerer = self._answerer(queries, total_calls=most, ends=ends, cancelled=cancelled)
        return drive(strategy, space, answerer), answerer.seconds

    def _answerer(
        self,
        queries: Sequence[str],
        *,
        total_calls: int,
        ends: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> RoundScorer:
        scorer, turn = self._take_turn(cancelled, ends)
        return RoundScorer(
            scorer,
            self.items,
            queries,
            turn=turn,
            ends=ends,
            cancelled=cancelled,
            progress=self._progress,
            total_calls=total_calls,
        )

    def _take_turn(
        self, cancelled: threading.Event | None, ends: float | None
    ) -> tuple[Scorer, AbstractContextManager[object]]:
        """The scorer for one search, and what to enter before it is called."""
        if isinstance(self.scorer, SharedScorer):
            return self.scorer.for_caller(cancelled, ends), nullcontext()
        return self.scorer, self._scoring

    def _space(
        self, queries: Sequence[str], proposed: CandidateCache, allowed: Mask | None, k: int | None
    ) -> SearchContext:
        return SearchContext(
            queries=len(queries),
            items=len(self.items),
            propose=proposed,
            query_vectors=(lambda: self._fitted_queries(queries)) if self.has_query_vectors else None,
            item_vectors=self._searched_vectors,
            item_profiles=self._item_profiles,
            allowed=allowed,
            normalization=self.normalization,
            prior=None if self.index is None else self.index.prior,
            signals=self._signals,
            k=k,
        )

    def prepare(self, *retrievers: str) -> None:
        """Do now what the first search would do: encode the items, fit these retrievers (default: the default one)."""
        for name in retrievers or (self._default_retriever,):
            self._retriever(name)
        if self.encoder:
            self._item_vectors()

    def default_strategy(self, budget: int = Posterior.budget) -> Strategy:
        """What a search does that names no strategy: `Posterior`, or `Rerank` where there are no query vectors."""
        check_positive("budget", budget)
        return Posterior(budget, min(Posterior.rounds, budget)) if self.has_query_vectors else Rerank(budget)

    def _choose_strategy(
        self, strategy: Strategy | None, budget: int | None, k: int, stop_at: float | None = None
    ) -> Strategy:
        check_positive("k", k)
        if strategy is None:
            strategy = self.default_strategy(Posterior.budget if budget is None else budget)
        elif budget is not None:
            raise InputError("give either a budget or a strategy, which has a budget of its own.")
        if not isinstance(strategy, Strategy):
            raise InputError(f"strategy must be a Strategy such as Axn(budget=100). Got {strategy!r} instead.")
        if strategy.budget is not None and k > strategy.budget:
            raise InputError(
                f"k must be at most the budget ({strategy.budget}): only scored items are returned. Got {k} instead."
            )
        return strategy if stop_at is None else _stopping(strategy, stop_at)

    @property
    def _default_retriever(self) -> str:
        return "fused" if self.encoder else "bm25"

    @property
    def _weights(self) -> dict[str, float]:
        """Of the fused order."""
        if self.rank_weights is not None:
            return self.rank_weights
        return equal_weights([name for name in self._signals if name != "dense" or self.encoder or name in self._own])

    def _choose_signals(self, given: Sequence[str] | None) -> tuple[str, ...]:
        """The names of the retrievers whose evidence is used."""
        learned = None if self.index is None or self.index.prior is None else self.index.prior.signals
        if given is None:
            return learned or SIGNALS
        names = check_signals(given, self._known)
        if learned is not None and learned != names:
            raise InputError(
                f"the prior of the index was learned from {', '.join(learned)}: leave signals out. Got {given!r}."
            )
        return names

    def _find_retriever(self, name: str | None) -> Retriever:
        return self._retriever(name or self._default_retriever)

    def _retriever(self, name: str) -> Retriever:
        with self._making:
            if name not in self._fitted:
                own = self._own.get(name)
                if name == "bm25" and own is None and self.index is not None:
                    self._fitted[name] = self.index.bm25  # which may be fitted already
                else:
                    self._fitted[name] = (own or self._built_in(name)).fit(self.items)
            return self._fitted[name]

    def _built_in(self, name: str) -> Retriever:
        if name == "fused":
            return Fused([self._retriever("dense"), self._retriever("bm25")])
        if name == "dense":
            return Dense(self._need_encoder("the dense retriever"), vectors=self._item_vectors())
        if name == "fitted" and self._factors is not None:
            return Dense(
                _Fitted(self._need_encoder("the fitted retriever"), self._factors),
                vectors=self._fitted_vectors,
                name=name,
            )
        simple: dict[str, Callable[[], Retriever]] = {"bm25": Bm25, "tfidf": TfIdf, "random": Random}
        if name not in simple:
            why = " The prior of the index needs it: give yours in retrievers=[…]." * (name in self._signals)
            known = ", ".join(sorted(self._known))
            raise InputError(f"there is no retriever named {name!r}. Known here: {known}.{why}")
        return simple[name]()

    @property
    def _known(self) -> set[str]:
        """The names of all retrievers there are."""
        return {*self._own, *BUILT_IN, "random", *(["fitted"] if self._factors else [])}

    def _item_vectors(self) -> VectorSearch:
        with self._making:
            if self._vectors is None:
                encoder = self._need_encoder("a search with item vectors")
                self._vectors = self._as_search(encode_items(self.items, encoder, progress=self._progress))
            return self._vectors

    def _searched_vectors(self) -> VectorSearch:
        """What strategies search: the vectors learned from scores, or the encoder's."""
        return self._fitted_vectors or self._item_vectors()

    def _item_profiles(self) -> VectorSearch:
        """The same with what the prior knows of every item beside them."""
        prior = None if self.index is None else self.index.prior
        if prior is None:
            return self._searched_vectors()
        with self._making:
            if self._profiles is None:
                vectors = self._searched_vectors()
                wide = vectors.beside if isinstance(vectors, AugmentableSearch) else partial(AugmentedSearch, vectors)
                self._profiles = wide(*prior.beside)
            return self._profiles

    def _as_search(self, vectors: VectorSearch | NDArray[Any] | torch.Tensor) -> VectorSearch:
        search = vectors if isinstance(vectors, VectorSearch) else self._store(vectors)
        if not isinstance(search, VectorSearch):
            raise InputError(f"store must make a VectorSearch of an array. It made {type(search).__name__} instead.")
        if len(search) != len(self.items):
            raise InputError(f"there must be one vector per item ({len(self.items)}). Got {len(search)} instead.")
        return search

    def _encode_queries(self, queries: Sequence[str]) -> Vectors:
        encoder = self._need_encoder("a query vector")
        return check_vectors(encoder.encode_queries(queries), queries, dim=self._item_vectors().dim)

    @property
    def has_query_vectors(self) -> bool:
        """Whether queries have vectors in the space that strategies search."""
        return self.encoder is not None and (self._factors is None or self._factors.with_encoder)

    def _fitted_queries(self, queries: Sequence[str]) -> Vectors:
        """The query vectors in the space of the vectors that a strategy searches."""
        vectors = self._encode_queries(queries)
        return vectors if self._factors is None else self._factors.query_vectors(vectors)

    def _need_encoder(self, what: str) -> Encoder:
        if self._encoder is None:
            raise InputError(f"{what} needs an encoder: Searcher(items, scorer=…, encoder=SentenceEncoder(…)).")
        return self._encoder

    @staticmethod
    def _check_queries(queries: Sequence[str]) -> list[str]:
        if isinstance(queries, str):
            raise InputError("search_many takes a list of queries. For one query use search.")
        for position, query in enumerate(queries):
            if not isinstance(query, str) or not query.strip():
                raise InputError(f"a query must be a string with something in it. Query {position} is {query!r}.")
        return list(queries)


def _stopping(strategy: Strategy, stop_at: float) -> Strategy:
    if not isinstance(strategy, Posterior):
        raise InputError(
            "stop_at goes with Posterior, which knows how much it has found and needs an encoder. "
            f"Got {strategy!r} instead."
        )
    return replace(strategy, stop_at=stop_at)


class _Fitted:
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


class _Remembering:
    """An encoder that keeps the vectors of its last queries: a retriever and a strategy often want the same ones."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._last: tuple[list[str], Vectors] | None = None  # replaced whole, so that threads need no lock

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        last, wanted = self._last, list(texts)
        if last is None or last[0] != wanted:
            last = self._last = (wanted, self._encoder.encode_queries(wanted))
        return last[1]

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        return self._encoder.encode_items(texts)
