"""The service without HTTP: models shared by many threads, a live index, limits, and the work behind each route."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import numpy as np

from crossknn import __version__
from crossknn._checks import invalid
from crossknn.encoders.base import CachedEncoder
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.scorers.base import innermost
from crossknn.scorers.cached import Cached
from crossknn.search.calibration import ScoreCalibration
from crossknn.search.options import DEFAULT_BUDGET, choose_k
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.search.tracing import RERANKER_MODEL, RERANKER_QUERY, in_sampled_trace, start_span
from crossknn.serve.backpressure import RequestQueue
from crossknn.serve.dynamic_batching import BatchingScorer
from crossknn.serve.http_errors import HttpError, check_size, not_ready
from crossknn.serve.live_index import IndexWatcher, LiveIndex, LoadedIndex
from crossknn.serve.monitoring import Metrics
from crossknn.serve.schemas import IdFilter, Info, SearchRequest, SearchResponse, query_response
from crossknn.serve.search_batching import SearchBatching
from crossknn.serve.settings import Settings
from crossknn.storage.search_log import SearchLog
from crossknn.strategies.base import Strategy
from crossknn.strategies.registry import (
    STRATEGIES,
    Setting,
    make_strategy,
    requirements_of,
    settings_of,
    strategy_to_dict,
)
from crossknn.types import Encoder, Filter, Progress, Scorer, Scores, Vectors

EXAMPLE_QUERIES, EXAMPLE_WORDS = 3, 6
MAX_CONDITIONS = 64  # in a filter: each takes milliseconds over a million items
GPU_BATCH_QUERIES = 64  # searched together, where the scorer is on a GPU
MIN_DEADLINE = 1e-6  # seconds for a search whose deadline passed while it was queued
# Requests have fields of their own for budget and stop_at, and an extreme learning rate makes numbers overflow.
HIDDEN_SETTINGS: Final = ("budget", "estimates", "stop_at", "learning_rate")


class Service:
    """Answers requests from many threads. Arguments that are not listed are those of `Searcher`.

    Args:
        source: The folder of an index, which is reloaded when it is replaced; or an `Index` or `Items`.
        scorer: Called from one thread, with batches merged from all requests.
        encoder: Called by one thread at a time.
        settings: Limits, concurrency, access and logging.
    """

    def __init__(
        self,
        source: str | Path | Index | Items,
        *,
        scorer: Scorer,
        encoder: Encoder | None = None,
        settings: Settings | None = None,
        vectors: Vectors | None = None,
        calibration: ScoreCalibration | str | Path | None = None,
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
            calibration=calibration,
            device=device,
            check_models=check_models,
            progress=progress or False,
        )
        learn, size = self.settings.learn, self.settings.learn_mb << 20
        self._batching = SearchBatching(
            self.settings.batch_queries or (GPU_BATCH_QUERIES if _is_on_gpu(scorer) else 1),
            on_batch=self.metrics.searched_together.observe,
        )
        self._search_log = None if learn is None else SearchLog(learn, scorer=scorer.fingerprint, max_bytes=size)
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

    def search(self, request: SearchRequest, *, request_id: str, start: float, cancelled: Event) -> SearchResponse:
        """Search for a request that arrived at `start` (of `time.monotonic`)."""
        index, options = self._plan(request, start)
        if self._may_batch(request):
            found = self._search_together(index, request, options, cancelled)
        else:
            found = index.searcher.search_many(request.all_queries, **options, cancelled=cancelled)
        self._record(found)
        return _response(found, index, request, options["strategy"], request_id)

    def _may_batch(self, request: SearchRequest) -> bool:
        """Whether others may share the request's search: it has no deadline, filter or trace of its own."""
        own = request.deadline is not None or request.filter is not None or in_sampled_trace()
        return self._batching.max_queries > 1 and not own

    def _search_together(
        self, index: LoadedIndex, request: SearchRequest, options: dict[str, Any], cancelled: Event
    ) -> list[Hits]:
        ends = time.monotonic() + options.pop("deadline")

        def search(queries: Sequence[str], ends: float, cancelled: Event) -> list[Hits]:
            deadline = max(ends - time.monotonic(), MIN_DEADLINE)
            return index.searcher.search_many(queries, **options, deadline=deadline, cancelled=cancelled)

        values = {**options, "strategy": strategy_to_dict(options["strategy"]), "index": index.identity}
        key = json.dumps(values, sort_keys=True)
        return self._batching.run(key, request.all_queries, ends, cancelled, search)

    def stream(
        self, request: SearchRequest, *, request_id: str, start: float, cancelled: Event
    ) -> Iterator[tuple[bool, SearchResponse]]:
        """Search for a request of one query: after each round whether the search is over, and what it has found."""
        index, options = self._plan(request, start)
        for hits in index.searcher.stream(request.all_queries[0], **options, cancelled=cancelled):
            if hits.final:
                self._record([hits])
            yield hits.final, _response([hits], index, request, options["strategy"], request_id)

    def _plan(self, request: SearchRequest, start: float) -> tuple[LoadedIndex, dict[str, Any]]:
        """The index that a request searches, and the options of the search; an error if they exceed a limit."""
        self._check_limits(request)
        index = self.live_index.current
        strategy = self._strategy(request, index.searcher, request.budget or self._default_budget)
        deadline = request.deadline or self.settings.limits.deadline
        return index, {
            "k": request.k or self._default_k(strategy.budget),
            "strategy": strategy,
            "filter": _filter_of(request),
            "deadline": max(deadline - (time.monotonic() - start), MIN_DEADLINE),
            "rank_by": request.rank_by,
            "stop_at": request.stop_at,
            "min_score": request.min_score,
            "min_probability": request.min_probability,
            "diversity": request.diversity,
        }

    def _record(self, found: Sequence[Hits]) -> None:
        self.metrics.count_search(found)
        if self._search_log is not None:
            for hits in found:
                self._search_log.append(hits.query, *hits.scored())

    def score(self, queries: Sequence[str], items: Sequence[str], *, cancelled: Event) -> Scores:
        """The raw scores of pairs."""
        check_size("a request for scores", len(items), self.settings.limits.pairs, "pairs")
        self._check_texts("query", queries)
        self._check_texts("item", items)
        span = start_span("scoring", "RERANKER")
        with span.active():
            span.set_query(RERANKER_QUERY, queries)
            span.set({RERANKER_MODEL: self.scorer.fingerprint, "crossknn.pairs": len(queries)})
            scores = self.scorer.score(queries, items, cancelled=cancelled)
        self.metrics.calls.inc(len(scores))
        return scores

    def info(self) -> Info:
        """The index and models that are served, the strategies on offer, limits and defaults."""
        current = self.live_index.current
        searcher, index = current.searcher, current.searcher.index
        factors = None if index is None else index.factors
        budget = self._default_budget
        default = strategy_to_dict(searcher.default_strategy(budget))["name"]
        return {
            "version": __version__,
            "title": self.settings.title,
            "example_queries": self._example_queries(searcher.items),
            "items": len(searcher.items),
            "fields": searcher.items.fields,
            "index": {
                "identity": current.identity,
                "dim": None if index is None else int(index.vectors.shape[1]),
                "prior": index is not None and index.prior is not None,
                "factors": None if factors is None else factors.kind,
                "calls": None if index is None else index.report.calls,
            },
            "scorer": self.scorer.fingerprint,
            "encoder": None if searcher.encoder is None else searcher.encoder.fingerprint,
            "strategies": _offered_strategies(searcher, self.settings.limits.budget),
            "limits": asdict(self.settings.limits),
            "defaults": {"k": self._default_k(budget), "budget": budget, "strategy": default},
        }

    def _example_queries(self, items: Items) -> list[str]:
        """Those of the settings, or the first words of some items; these are none for everyone to see."""
        if self.settings.example_queries is not None:
            return list(self.settings.example_queries)
        if self.settings.api_key is not None and self.settings.public_info:
            return []
        rows = np.linspace(0, len(items), 2 * EXAMPLE_QUERIES + 1).astype(int)[1::2]
        openings = [" ".join(text.split()[:EXAMPLE_WORDS]) for text in items.texts_of(rows)]
        return [opening for opening in dict.fromkeys(openings) if opening]

    @property
    def _default_budget(self) -> int:
        """That of a searcher, within the limits."""
        return min(DEFAULT_BUDGET, self.settings.limits.budget)

    def _default_k(self, budget: int | None) -> int:
        """That of a searcher, within the limits."""
        return min(choose_k(None, budget), self.settings.limits.k)

    def _check_limits(self, request: SearchRequest) -> None:
        limits, queries = self.settings.limits, request.all_queries
        for name, unit in (("k", ""), ("budget", ""), ("deadline", " seconds")):
            value, limit = getattr(request, name), getattr(limits, name)
            if value is not None and value > limit:
                raise invalid(name, f"at most {limit:.10g}{unit} on this server", value)
        check_size("a search", len(queries), limits.queries, "queries")
        self._check_texts("query", queries)
        if isinstance(request.filter, IdFilter):
            check_size("a filter", len(request.filter.ids or ()), limits.filter_ids, "ids")
        elif request.filter is not None:
            _check_filter(request.filter, max_values=limits.filter_ids)

    def _check_texts(self, kind: str, texts: Sequence[str]) -> None:
        for place, text in enumerate(texts):
            check_size(f"{kind} {place}", len(text.encode()), self.settings.limits.text_bytes)

    def _strategy(self, request: SearchRequest, searcher: Searcher, budget: int) -> Strategy:
        """The strategy that a request names, with its settings checked; by default that of the searcher."""
        if request.strategy_and_settings is None:
            return searcher.default_strategy(budget)
        name, settings = request.strategy_and_settings
        known, limit = _request_settings(name), self.settings.limits.budget
        for setting in settings:
            if setting not in known:
                takes = f"its settings are {', '.join(known)}" if known else "it has no settings"
                raise InputError(f"the strategy {name!r} has no setting {setting!r:.80}; {takes}.")
        if request.budget is not None and "budget" not in settings_of(STRATEGIES[name]):
            raise InputError(f"the strategy {name!r} has no budget. Leave `budget` out.")
        strategy = make_strategy(name, settings, budget=budget)
        if settings.get("neighbors", 0) > limit:
            raise invalid("neighbors", f"at most {limit}", settings["neighbors"])
        if strategy.budget is None and len(searcher.items) > limit:
            raise InputError(
                f"exact search needs {len(searcher.items):,} calls per query, more than this server's limit of "
                f"{limit:,}. Choose another strategy."
            )
        return strategy

    def _add_metrics(self) -> None:
        gauge, total = self.metrics.add_gauge, self.metrics.add_total
        gauge("running", "Requests that are running.", lambda: self.queue.running)
        gauge("waiting", "Requests in the queue.", lambda: self.queue.queued)
        gauge("waiting_pairs", "Pairs that wait for their scores.", lambda: self.scorer.queued_pairs)
        gauge("ready", "1 if requests are answered, else 0.", lambda: self.scorer.unavailable is None)
        gauge("items", "Items in the index.", lambda: len(self.live_index.current.searcher.items))
        total("index_swaps", "Reloads of a newer index.", lambda: self.live_index.reloads)
        total("index_refusals", "Newer indexes that could not be used.", lambda: self.live_index.failed_reloads)
        if isinstance(scorer := self.scorer.scorer, Cached):
            total("cache_hits", "Scores read from the cache.", lambda: scorer.hits)
            total("cache_misses", "Scores that the scorer had to compute.", lambda: scorer.misses)


def _is_on_gpu(scorer: Scorer) -> bool:
    return str(getattr(innermost(scorer), "device", "cpu")).startswith("cuda")


def _response(
    found: Sequence[Hits], index: LoadedIndex, request: SearchRequest, strategy: Strategy, request_id: str
) -> SearchResponse:
    results = [query_response(hits, index.searcher, request) for hits in found]
    return {"results": results, "strategy": repr(strategy), "index": index.identity, "request_id": request_id}


def _filter_of(request: SearchRequest) -> Filter | None:
    if not isinstance(request.filter, IdFilter):
        return request.filter
    prefix = request.filter.prefix
    return request.filter.ids if prefix is None else lambda id_: id_.startswith(prefix)


def _check_filter(filter: Mapping[str, Any], *, max_values: int) -> None:
    """Raise `HttpError` 413 for too many names or values in a filter, however deep; an empty condition counts as one.

    It ends at the first that is too many: a request may have a million.
    """
    conditions, values, rest = 0, 0, list[Any]([filter])
    while rest:
        part = rest.pop()
        inside = list(part.values() if isinstance(part, Mapping) else part)
        conditions += max(1, len(inside)) if isinstance(part, Mapping) else 0
        values += 0 if isinstance(part, Mapping) else len(inside)
        for count, limit, unit in ((conditions, MAX_CONDITIONS, "conditions"), (values, max_values, "values")):
            if count > limit:
                raise HttpError(413, "too_large", f"a filter must have at most {limit:,} {unit}.")
        rest += [one for one in inside if isinstance(one, dict | list)]


def _request_settings(name: str) -> dict[str, Setting]:
    """The settings of a strategy that a request may set."""
    known = settings_of(STRATEGIES[name])
    return {setting: about for setting, about in known.items() if setting not in HIDDEN_SETTINGS}


def _offered_strategies(searcher: Searcher, max_budget: int) -> list[dict[str, Any]]:
    """The strategies that a searcher can run within the largest budget, as /info lists them."""
    factors = None if searcher.index is None else searcher.index.factors
    available = {
        "query_vectors": searcher.has_query_vectors,
        "item_vectors": searcher.index is not None or searcher.encoder is not None,
        "cur_factors": factors is not None and factors.kind == "cur",
    }
    return [
        {
            "name": name,
            "title": kind.__name__,
            "by_default": getattr(kind, "by_default", True),
            "settings": {
                setting: {"default": about.default, "type": about.type_name}
                for setting, about in _request_settings(name).items()
            },
        }
        for name, kind in STRATEGIES.items()
        if all(available[requirement] for requirement in requirements_of(kind))
        and ("budget" in settings_of(kind) or len(searcher.items) <= max_budget)
    ]
