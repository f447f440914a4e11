"""The service without HTTP: models shared by many threads, a live index, limits, and the work behind each route."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from crossknn import __version__
from crossknn._checks import invalid
from crossknn.encoders.base import CachedEncoder
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.search.searcher import Filter, Searcher
from crossknn.serve.backpressure import RequestQueue
from crossknn.serve.dynamic_batching import BatchingScorer
from crossknn.serve.http_errors import not_ready, too_large
from crossknn.serve.live_index import IndexWatcher, LiveIndex, LoadedIndex
from crossknn.serve.metrics import Metrics
from crossknn.serve.schemas import Info, QueryResponse, SearchRequest, query_response
from crossknn.serve.settings import Settings
from crossknn.serve.strategies import offered_strategies, requested_strategy
from crossknn.strategies.base import Strategy
from crossknn.strategies.registry import strategy_to_dict
from crossknn.types import Encoder, Progress, Scorer, Scores, Vectors

DEFAULT_K, DEFAULT_BUDGET = 10, 100
MIN_DEADLINE = 1e-6  # seconds for a search whose deadline passed while it was queued


class Service:
    """Answers requests from many threads.

    Args:
        source: The folder of an index, which is reloaded when it is replaced; or an `Index` or `Items`.
        scorer: Any scorer; called from one thread, with batches merged from all requests.
        encoder: Any encoder, if there is one; called by one thread at a time.
        settings: Limits, concurrency, access and logging.
        vectors: The item vectors of `Items`, if you have them.
        device: Where item vectors are searched: "cpu" (default) or "cuda".
        check_models: Reject an index that was built with other models.
        progress: Called as `progress(step, done, total)` while items are encoded.
    """

    def __init__(
        self,
        source: str | Path | Index | Items,
        *,
        scorer: Scorer,
        encoder: Encoder | None = None,
        settings: Settings | None = None,
        vectors: Vectors | None = None,
        device: str | None = None,
        check_models: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.metrics = Metrics()
        self._encoder = None if encoder is None else CachedEncoder(encoder)
        self.scorer = BatchingScorer(
            scorer,
            max_pairs=self.settings.batch_pairs,
            timeout=self.settings.scorer_timeout,
            on_batch=self.metrics.count_batch,
            on_wait=self.metrics.scorer_wait.observe,
        )
        open_searcher = partial(
            Searcher,
            scorer=self.scorer,
            encoder=self._encoder,
            vectors=vectors,
            device=device,
            check_models=check_models,
            progress=progress,
        )
        self.live_index = LiveIndex(Path(source) if isinstance(source, str) else source, open_searcher)
        self.watcher = IndexWatcher(self.live_index, self.settings.poll)
        self.queue = RequestQueue(max_running=self.settings.running, max_queued=self.settings.waiting)
        self._add_metrics()

    def start(self) -> None:
        """Start to watch for newer indexes."""
        self.watcher.start()

    def close(self) -> None:
        """Stop at once; requests that still run fail."""
        self.watcher.stop()
        self.queue.close()
        self.scorer.close()

    def check_ready(self) -> None:
        """Raise `HttpError` 503 unless requests can be answered."""
        if (reason := self.scorer.unavailable) is not None:
            raise not_ready(reason)

    def search(
        self, request: SearchRequest, *, start: float, cancelled: threading.Event
    ) -> tuple[list[QueryResponse], Strategy, LoadedIndex]:
        """Search for a request that arrived at `start` (of `time.monotonic`).

        Returns:
            The results, the strategy that found them, and the index that was searched.
        """
        index = self.live_index.current
        k, budget = self._k_and_budget(request.k, request.budget)
        strategy = self._strategy(request, index.searcher, budget)
        self._check_sizes(request)
        found = index.searcher.search_many(
            request.all_queries,
            k=k,
            strategy=strategy,
            filter=_filter_of(request),
            deadline=max(self._deadline(request) - (time.monotonic() - start), MIN_DEADLINE),
            rank_by=request.rank_by,
            stop_at=request.stop_at,
            cancelled=cancelled,
        )
        self.metrics.count_search(found)
        items = index.searcher.items
        results = [query_response(hits, items, explain=request.explain, texts=request.texts) for hits in found]
        return results, strategy, index

    def score(self, queries: Sequence[str], items: Sequence[str], *, cancelled: threading.Event) -> Scores:
        """The raw scores of pairs."""
        limit = self.settings.limits.pairs
        if len(items) > limit:
            raise too_large("a request for scores", limit, "pairs", size=len(items))
        self._check_texts("query", queries)
        self._check_texts("item", items)
        scores = self.scorer.score(queries, items, cancelled=cancelled)
        self.metrics.calls.inc(len(scores))
        return scores

    def info(self) -> Info:
        """The index and models that are served, the strategies on offer, limits and defaults."""
        current = self.live_index.current
        searcher, index = current.searcher, current.searcher.index
        factors = None if index is None else index.factors
        limits = self.settings.limits
        k, budget = self._k_and_budget(None, None)
        default = strategy_to_dict(searcher.default_strategy(budget))["name"]
        return {
            "version": __version__,
            "items": len(searcher.items),
            "index": {
                "identity": current.identity,
                "dim": None if index is None else int(index.vectors.shape[1]),
                "prior": index is not None and index.prior is not None,
                "factors": None if factors is None else factors.kind,
                "calls": None if index is None else index.report.calls,
            },
            "scorer": self.scorer.fingerprint,
            "encoder": None if self._encoder is None else self._encoder.fingerprint,
            "strategies": offered_strategies(searcher, limits.budget),
            "limits": asdict(limits),
            "defaults": {"k": k, "budget": budget, "strategy": default},
        }

    def _k_and_budget(self, k: int | None, budget: int | None) -> tuple[int, int]:
        """Both checked against the limits; None stands for the default."""
        limits = self.settings.limits
        for name, value, limit in (("k", k, limits.k), ("budget", budget, limits.budget)):
            if value is not None and value > limit:
                raise invalid(name, f"at most {limit} on this server", value)
        calls = budget or min(DEFAULT_BUDGET, limits.budget)
        return k or min(DEFAULT_K, limits.k, calls), calls

    def _strategy(self, request: SearchRequest, searcher: Searcher, budget: int) -> Strategy:
        limit = self.settings.limits.budget
        if request.strategy_and_settings is None:
            return searcher.default_strategy(budget)
        strategy = requested_strategy(*request.strategy_and_settings, budget=budget, max_budget=limit)
        if strategy.budget is None and len(searcher.items) > limit:
            raise InputError(
                f"exact search needs {len(searcher.items):,} calls per query, more than this server's limit of "
                f"{limit:,}. Choose another strategy."
            )
        return strategy

    def _deadline(self, request: SearchRequest) -> float:
        limit = self.settings.limits.deadline
        if request.deadline is not None and request.deadline > limit:
            raise invalid("deadline", f"at most {limit:g} seconds on this server", request.deadline)
        return limit if request.deadline is None else request.deadline

    def _check_sizes(self, request: SearchRequest) -> None:
        limits, queries = self.settings.limits, request.all_queries
        if len(queries) > limits.queries:
            raise too_large("a search", limits.queries, "queries", size=len(queries))
        self._check_texts("query", queries)
        ids = () if request.filter is None else request.filter.ids or ()
        if len(ids) > limits.filter_ids:
            raise too_large("a filter", limits.filter_ids, "ids", size=len(ids))

    def _check_texts(self, kind: str, texts: Sequence[str]) -> None:
        limit = self.settings.limits.text_bytes
        for place, text in enumerate(texts):
            size = len(text.encode())
            if size > limit:
                raise too_large(f"{kind} {place}", limit, size=size)

    def _add_metrics(self) -> None:
        gauge, total = self.metrics.add_gauge, self.metrics.add_total
        gauge("running", "Requests that are running.", lambda: self.queue.running)
        gauge("waiting", "Requests in the queue.", lambda: self.queue.queued)
        gauge("waiting_pairs", "Pairs that wait for their scores.", lambda: self.scorer.queued_pairs)
        gauge("ready", "1 if requests are answered, else 0.", lambda: self.scorer.unavailable is None)
        gauge("items", "Items in the index.", lambda: len(self.live_index.current.searcher.items))
        total("index_swaps", "Reloads of a newer index.", lambda: self.live_index.reloads)
        total("index_refusals", "Newer indexes that could not be used.", lambda: self.live_index.failed_reloads)
        self.metrics.add_cache(self.scorer.scorer)


def _filter_of(request: SearchRequest) -> Filter | None:
    if request.filter is None:
        return None
    prefix = request.filter.prefix
    return request.filter.ids if prefix is None else lambda id_: id_.startswith(prefix)
