"""The service without HTTP: a scorer and an encoder for many threads, the index of now, and what a request may ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossknn import __version__
from crossknn.encoders.cached import CachedEncoder
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.search.searcher import Filter, Searcher
from crossknn.serve.admission import Admission
from crossknn.serve.dynamic_batching import MergingScorer
from crossknn.serve.http_errors import HttpError, too_large
from crossknn.serve.live_index import LiveIndex, Loaded, Watcher
from crossknn.serve.metrics import Metrics
from crossknn.serve.request_schemas import SearchRequest
from crossknn.serve.response_schemas import Info, ResultAnswer, result_answer
from crossknn.serve.settings import Settings
from crossknn.serve.strategies import make_strategy, offered
from crossknn.strategies.base import Strategy
from crossknn.types import Encoder, Progress, Scorer, Scores, Vectors

K, BUDGET = 10, 100  # of a search that sets none
AT_ONCE = 1e-6  # seconds left to a search whose deadline passed while it waited


class Service:
    """Answers requests from many threads at once.

    source        the folder of an index, which is taken anew when it is replaced; or an `Index` or `Items`
    scorer        called by one thread, with batches merged from all requests
    encoder       called by one thread at a time; None where there is none
    vectors       of `Items`, if you have them
    device        where item vectors are searched: "cpu" (default) or "cuda"
    check_models  refuse an index that these models did not build
    progress      called as `progress(step, done, total)` while items are encoded
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
        self.scorer = MergingScorer(
            scorer,
            max_pairs=self.settings.batch_pairs,
            timeout=self.settings.scorer_timeout,
            on_batch=self.metrics.count_batch,
            on_wait=self.metrics.count_wait,
        )

        def open_(found: Index | Items) -> Searcher:
            return Searcher(
                found,
                scorer=self.scorer,
                encoder=self._encoder,
                vectors=vectors,
                device=device,
                check_models=check_models,
                progress=progress,
            )

        self.shelf = LiveIndex(Path(source) if isinstance(source, str) else source, open_)
        self.admission = Admission(running=self.settings.running, waiting=self.settings.waiting)
        self.watcher = Watcher(self.shelf, self.settings.poll)
        self.ending = False
        self._watch_numbers()

    def start(self) -> None:
        """Look for newer indexes from now on."""
        self.watcher.start()

    def close(self) -> None:
        """End at once; let requests end before."""
        self.ending = True
        self.watcher.stop()
        self.admission.close()
        self.scorer.close()

    def why_not_ready(self) -> str | None:
        """Why requests would fail now; None where they would not."""
        if self.ending:
            return "the service ends."
        if self.scorer.stalled:
            return f"the scorer has not answered for more than {self.scorer.timeout:g} seconds."
        return None

    def search(
        self, request: SearchRequest, *, began: float, cancelled: threading.Event
    ) -> tuple[list[ResultAnswer], Strategy, Loaded]:
        """The results of a search that began then by `time.monotonic`, and what found them, from what."""
        current = self.shelf.current
        searcher = current.searcher
        k, budget = self._sizes(request.k, request.budget)
        strategy = self._choose(request, searcher, budget)
        self._check_search(request)
        found = searcher.search_many(
            request.asked,
            k=k,
            strategy=strategy,
            filter=_filter_of(request),
            deadline=max(self._deadline(request) - (time.monotonic() - began), AT_ONCE),
            rank_by=request.rank_by,
            stop_at=request.stop_at,
            cancelled=cancelled,
        )
        self.metrics.count_search(found)
        results = [result_answer(hits, searcher.items, explain=request.explain, texts=request.texts) for hits in found]
        return results, strategy, current

    def score(self, queries: Sequence[str], items: Sequence[str], *, cancelled: threading.Event) -> Scores:
        """The scores of pairs that a client gave."""
        limit = self.settings.limits.pairs
        if len(items) > limit:
            raise too_large("a request for scores", limit, "pairs", got=len(items))
        self._check_texts("query", queries)
        self._check_texts("item", items)
        scores = self.scorer.score(queries, items, cancelled=cancelled)
        self.metrics.count_calls(len(scores))
        return scores

    def info(self) -> Info:
        """What is served, what may be asked, and what is done unless told otherwise."""
        current = self.shelf.current
        searcher, index = current.searcher, current.searcher.index
        factors = None if index is None else index.factors
        limits = self.settings.limits
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
            "strategies": offered(searcher, limits.budget),
            "limits": asdict(limits),
            "defaults": self._defaults(searcher),
        }

    def _defaults(self, searcher: Searcher) -> dict[str, Any]:
        k, budget = self._sizes(None, None)
        return {"k": k, "budget": budget, "strategy": type(searcher.default_strategy(budget)).__name__.lower()}

    def _sizes(self, k: int | None, budget: int | None) -> tuple[int, int]:
        """What was asked for, if it is allowed; for None the default."""
        limits = self.settings.limits
        for name, value, most in (("k", k, limits.k), ("budget", budget, limits.budget)):
            if value is not None and value > most:
                raise InputError(f"{name} must be at most {most} here. Got {value} instead.")
        calls = budget or min(BUDGET, limits.budget)
        return k or min(K, limits.k, calls), calls

    def _choose(self, request: SearchRequest, searcher: Searcher, budget: int) -> Strategy:
        most = self.settings.limits.budget
        if request.named is None:
            return searcher.default_strategy(budget)
        strategy = make_strategy(*request.named, budget=budget, most=most)
        if strategy.budget is None and len(searcher.items) > most:
            raise InputError(
                f"exact search would take {len(searcher.items):,} calls per query, and {most:,} are allowed. "
                "Choose another strategy."
            )
        return strategy

    def _check_search(self, request: SearchRequest) -> None:
        limits = self.settings.limits
        if len(request.asked) > limits.queries:
            raise too_large("a search", limits.queries, "queries", got=len(request.asked))
        self._check_texts("query", request.asked)
        ids = () if request.filter is None else request.filter.ids or ()
        if len(ids) > limits.filter_ids:
            raise too_large("a filter", limits.filter_ids, "ids", got=len(ids))

    def _check_texts(self, what: str, texts: Sequence[str]) -> None:
        limit = self.settings.limits.text_bytes
        for place, text in enumerate(texts):
            size = len(text.encode())
            if size > limit:
                raise too_large(f"{what} {place}", limit, got=size)

    def _deadline(self, request: SearchRequest) -> float:
        most = self.settings.limits.deadline
        if request.deadline is not None and request.deadline > most:
            raise InputError(f"deadline must be at most {most:g} seconds here. Got {request.deadline:g} instead.")
        return most if request.deadline is None else request.deadline

    def _watch_numbers(self) -> None:
        watch, total = self.metrics.watch, self.metrics.watch_total
        watch("running", "Requests that are worked on.", lambda: self.admission.running)
        watch("waiting", "Requests that wait for their turn.", lambda: self.admission.waiting)
        watch("waiting_pairs", "Pairs that wait for their scores.", lambda: self.scorer.waiting_pairs)
        watch("ready", "1 where requests are answered.", lambda: self.why_not_ready() is None)
        watch("items", "Items of the index.", lambda: len(self.shelf.current.searcher.items))
        total("index_swaps", "Newer indexes that were taken.", lambda: self.shelf.swaps)
        total("index_refusals", "Newer indexes that were refused.", lambda: self.shelf.refusals)
        self.metrics.watch_cache(self.scorer.scorer)

    def check_ready(self) -> None:
        """A refusal where the service is not ready."""
        reason = self.why_not_ready()
        if reason is not None:
            raise HttpError(503, "not_ready", reason, retry_after=5)


def _filter_of(request: SearchRequest) -> Filter | None:
    if request.filter is None:
        return None
    prefix = request.filter.prefix
    return request.filter.ids if prefix is None else lambda id_: id_.startswith(prefix)
