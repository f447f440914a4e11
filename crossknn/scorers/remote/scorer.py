"""A cross-encoder behind a server with a `/rerank` endpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.scorers.inference.pairs import LongItems
from crossknn.scorers.remote.cost import CostTracker, Usage, estimate_tokens
from crossknn.scorers.remote.http_scorer import (
    HttpScorer,
    RequestLimits,
    check_fields,
    given_names,
    make_headers,
    parse_url,
)
from crossknn.scorers.remote.long_items import ItemWindows
from crossknn.scorers.remote.providers import PROVIDERS, choose_provider, parse_response, to_logits
from crossknn.scorers.remote.responses import Response

PROBABILITY_CHECK_SCORES = 100  # how many scores between 0 and 1 give rise to a warning
URL_REQUIREMENT = "the URL of a rerank endpoint, such as 'http://localhost:8080/rerank'"

logger = logging.getLogger(__name__)


class RemoteScorer(HttpScorer):
    """The scores of a server: text-embeddings-inference, vLLM, Jina, Cohere, Voyage, and others with their dialects.

    The pairs of a call are grouped by query into requests, several of which are in flight at once; vLLM's /score takes
    pairs of many queries in one. When a request fails for good, `PartialScores` carries the scores so far.

    Args:
        url: The rerank endpoint; the model's name may follow a `#`.
        model: The model's name, for servers that need one.
        dialect: "tei", "vllm", "vllm-score", "jina", "cohere", "voyage", "mixedbread", "nim" or "deepinfra"; or "auto"
            to go by the URL.
        api_key: Sent as a bearer token; by default `CROSSKNN_API_KEY` of the environment, "" for none.
        headers: Further headers of every request.
        fields: Further fields of every request.
        logits: Whether the server returns probabilities, to be turned back into logits; by default as the dialect does.
        batch_size: Items per request at most; by default as the dialect prefers.
        concurrency: Requests in flight at once.
        timeout: Seconds for one attempt, from connecting to the last byte of the response.
        retries: Further attempts after a timeout, a lost connection, or a status 408, 429 or 5xx, with exponential
            back-off or as the server's Retry-After demands.
        price_per_1000: The price of 1,000 pairs (Cohere: searches, of up to 100 pairs each), for `spent`.
        price_per_million_tokens: The price of a million tokens, for servers that bill them.
        spend_limit: Requests that would make `spent` exceed this are not sent.
        max_item_chars: The characters of an item that are sent at most; by default all of it, and servers truncate.
        long_items: "cut" sends the beginning of longer items; "max" sends overlapping windows and takes the largest
            score.
        stride: Characters between the starts of two windows; by default half of `max_item_chars`.
        fallback_score: The score of a pair that the server does not score: one that it refuses (status 400, 413 or 422)
            even alone, or whose score is null or NaN. By default such a pair is an error, raised when all others are
            scored.
        fingerprint: Names the model where the URL does not: a server may move, or change what it serves. By default
            the URL, the model and a hash of every setting that changes scores; never the key.

    Attributes:
        url: The endpoint, without a query string: it may hold a key.
        dialect: The provider whose requests and responses are used.
        fallbacks: How many pairs (or windows) have got `fallback_score`.
    """

    kind = "remote"
    request_hint = "If the server speaks another dialect, set `dialect`; if the item is too long, set `max_item_chars`."

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        dialect: str = "auto",
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
        logits: bool | None = None,
        batch_size: int | None = None,
        concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 4,
        price_per_1000: float | None = None,
        price_per_million_tokens: float | None = None,
        spend_limit: float | None = None,
        max_item_chars: int | None = None,
        long_items: LongItems = "cut",
        stride: int | None = None,
        fallback_score: float | None = None,
        fingerprint: str | None = None,
    ) -> None:
        endpoint, model = parse_url(url, model, requirement=URL_REQUIREMENT)
        self._provider = choose_provider(dialect, host=str(endpoint.hostname), path=endpoint.path, model=model)
        self.dialect = self._provider.name
        self.mixed = self._provider.form == "pairs"
        self.logits = self._provider.probabilities if logits is None else bool(logits)
        own = {name for provider in PROVIDERS.values() for name in (provider.query_field, provider.items_field)}
        self._fields = check_fields(fields, reserved=own)
        self._scores_checked = 0
        batch_size = self._provider.batch_size if batch_size is None else batch_size
        super().__init__(
            endpoint,
            model=model,
            headers=make_headers(endpoint, api_key, headers),
            limits=RequestLimits(batch_size, concurrency, timeout, retries),
            costs=CostTracker(price_per_1000, price_per_million_tokens, spend_limit),
            windows=ItemWindows(max_item_chars, long_items, stride),
            fallback_score=fallback_score,
            settings=[self.dialect, self.logits, self._fields],
            fingerprint=fingerprint,
            spec_settings={"dialect": self.dialect, "logits": self.logits},
            omitted=given_names(headers=headers, fields=fields),
        )

    def __repr__(self) -> str:
        return f"RemoteScorer({self.url!r}, model={self.model!r}, dialect={self.dialect!r})"

    def _request_body(self, queries: Sequence[str], items: Sequence[str]) -> bytes:
        return self._provider.request_body(queries, items, model=self.model, fields=self._fields)

    def _read_response(self, content: bytes, count: int) -> Response:
        response = parse_response(content, count)
        if self._provider.items_per_unit == 1:
            response = replace(response, units=None)
        if self.logits:
            return replace(response, scores=to_logits(response.scores))
        self._warn_of_probabilities(response.scores)
        return response

    def _expected_usage(self, queries: Sequence[str], items: Sequence[str]) -> Usage:
        return Usage(self._provider.billed_units(len(items)), estimate_tokens(queries, items))

    def _warn_of_probabilities(self, scores: NDArray[np.float64]) -> None:
        """Log a warning, once, if the first scores all lie between 0 and 1."""
        if self._scores_checked >= PROBABILITY_CHECK_SCORES:
            return
        if ((scores < 0) | (scores > 1)).any():
            self._scores_checked = PROBABILITY_CHECK_SCORES
            return
        self._scores_checked += len(scores)
        if self._scores_checked >= PROBABILITY_CHECK_SCORES:
            logger.warning("%s seems to return probabilities, and strategies need logits: set logits=True.", self.url)
