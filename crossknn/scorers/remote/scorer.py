"""A cross-encoder behind a server with a `/rerank` endpoint."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_number, check_positive, invalid
from crossknn.errors import InputError, PartialScores, ScorerError
from crossknn.models.fingerprints import function_fingerprint
from crossknn.scorers.base import RankMixin, check_pairs, describe_pair
from crossknn.scorers.remote.client import KEY_VARIABLE, PLAIN_HEADERS, CostTracker, RerankClient, is_loopback
from crossknn.scorers.remote.providers import PROVIDERS, choose_provider, parse_response, to_logits
from crossknn.types import Scores

PROBABILITY_CHECK_SCORES = 100  # how many scores between 0 and 1 give rise to a warning

logger = logging.getLogger(__name__)


class RemoteScorer(RankMixin):
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
        spend_limit: Requests that would make `spent` exceed this are not sent.
        fingerprint: Names the model where the URL does not: a server may move, or change what it serves. By default
            the URL, the model and a hash of every setting that changes scores; never the key.

    Attributes:
        url: The endpoint, without a query string: it may hold a key.
        dialect: The provider whose requests and responses are used.
    """

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
        spend_limit: float | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self._url, self.model = parse_url(url, model)
        self.url = f"{self._url.scheme}://{self._url.netloc}{self._url.path}"
        self._provider = choose_provider(dialect, host=str(self._url.hostname), path=self._url.path, model=self.model)
        self.dialect = self._provider.name
        self.logits = self._provider.probabilities if logits is None else bool(logits)
        self.batch_size = self._provider.batch_size if batch_size is None else batch_size
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        check_positive("batch_size", self.batch_size)
        check_positive("concurrency", concurrency)
        check_number("timeout", timeout)
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise invalid("retries", "a nonnegative integer", retries)
        self._fields = _check_fields(fields or {})
        merged = _make_headers(self._url, api_key, headers or {})
        self._costs = CostTracker(price_per_1000, spend_limit)
        self.fingerprint = self._own_fingerprint() if fingerprint is None else function_fingerprint(fingerprint)
        self._client = RerankClient(self._url, merged, timeout=timeout, retries=retries, costs=self._costs)
        self._scores_checked = 0

    def __repr__(self) -> str:
        return f"RemoteScorer({self.url!r}, model={self.model!r}, dialect={self.dialect!r})"

    @property
    def spent(self) -> float:
        """The cost so far in this process; requests whose response was lost count, for they may be billed."""
        return self._costs.spent

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One score per pair, in the order given."""
        check_pairs(queries, items)
        batches = _group_pairs(queries, self.batch_size, mixed=self._provider.form == "pairs")
        self._costs.check(sum(self._provider.billed_units(len(batch)) for batch in batches))
        scores, error = self._score_batches(batches, queries, items)
        if isinstance(error, ScorerError):
            done = np.flatnonzero(~np.isnan(scores)).tolist()
            raise PartialScores(
                f"{error} {len(done):,} of {len(scores):,} pairs of this call were scored.",
                fingerprint=self.fingerprint,
                queries=[queries[position] for position in done],
                items=[items[position] for position in done],
                scores=scores[done].tolist(),
            ) from error
        if error is not None:
            raise error
        return scores

    def close(self) -> None:
        """Close the connections to the server; the next call of `score` opens new ones."""
        self._client.close()

    def _score_batches(
        self, batches: list[list[int]], queries: Sequence[str], items: Sequence[str]
    ) -> tuple[Scores, BaseException | None]:
        """The scores of all pairs, NaN where missing, and the first error.

        After an error no request begins, and those in flight are waited for.
        """
        scores = np.full(len(queries), np.nan, np.float32)
        pending = deque(batches)
        stop = threading.Event()
        errors: list[BaseException] = []

        def work() -> None:
            while not stop.is_set():
                try:
                    batch = pending.popleft()
                except IndexError:
                    return
                try:
                    batch_queries, batch_items = ([texts[at] for at in batch] for texts in (queries, items))
                    scores[batch] = self._send(batch_queries, batch_items, stop)
                except BaseException as error:
                    errors.append(error)
                    stop.set()

        # Daemons, which an executor's threads are not: an interrupted program must not wait for a server.
        workers = [threading.Thread(target=work, daemon=True) for _ in range(min(self.concurrency, len(batches)))]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            stop.set()
        return scores, errors[0] if errors else None

    def _send(self, queries: list[str], items: list[str], stop: threading.Event) -> Scores:
        body = self._provider.request_body(queries, items, model=self.model, fields=self._fields)
        units = self._provider.billed_units(len(items))
        content = self._client.post(body, units, stop)
        try:
            scores, billed_units = parse_response(content, len(items))
            scores = to_logits(scores) if self.logits else scores
        except ValueError as error:
            pair = describe_pair(queries[0], items[0])
            raise ScorerError(
                f"{self.url} returned an invalid response for {pair} and {len(items) - 1} more: {error}."
            ) from error
        if billed_units is not None and self._provider.items_per_unit > 1:
            self._costs.adjust(billed_units - units)
        self._warn_of_probabilities(scores)
        return scores.astype(np.float32)

    def _warn_of_probabilities(self, scores: NDArray[np.float64]) -> None:
        """Log a warning, once, if the first scores all lie between 0 and 1."""
        if self.logits or self._scores_checked >= PROBABILITY_CHECK_SCORES:
            return
        if ((scores < 0) | (scores > 1)).any():
            self._scores_checked = PROBABILITY_CHECK_SCORES
            return
        self._scores_checked += len(scores)
        if self._scores_checked >= PROBABILITY_CHECK_SCORES:
            logger.warning("%s seems to return probabilities, and strategies need logits: set logits=True.", self.url)

    def _own_fingerprint(self) -> str:
        settings = [self._url.scheme, self._url.query, self.dialect, self.logits, self._fields]
        digest = blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()
        return f"remote:{self._url.netloc}{self._url.path}#{self.model or ''}:{digest}"


def _group_pairs(queries: Sequence[str], batch_size: int, *, mixed: bool) -> list[list[int]]:
    """The positions of the pairs of each request: at most `batch_size`, of one query unless requests are `mixed`."""
    positions: dict[str, list[int]] = {}
    for position, query in enumerate(queries):
        positions.setdefault("" if mixed else query, []).append(position)
    return [
        found[start : start + batch_size] for found in positions.values() for start in range(0, len(found), batch_size)
    ]


def is_url(name: str) -> bool:
    """Whether a scorer of this name is behind a server."""
    return name.lower().startswith(("http://", "https://"))


def parse_url(url: str, model: str | None) -> tuple[SplitResult, str | None]:
    """The URL without its fragment, and the model, which the fragment may name."""
    requirement = "the URL of a rerank endpoint, such as 'http://localhost:8080/rerank'"
    if not isinstance(url, str) or not is_url(url) or not (url.isascii() and url.isprintable()) or " " in url:
        if "@" in str(url):  # it may hold a password
            raise InputError(f"`url` must be {requirement}, got one with a user name or a password.")
        raise invalid("url", requirement, url)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port  # an invalid port raises only when it is read
        host.encode("idna")
    except ValueError as error:
        raise InputError(f"`url` must be {requirement}, got one that cannot be parsed: {error}.") from error
    if "@" in parts.netloc or not host:
        raise InputError(f"`url` must be {requirement}, with a host and no password: use `api_key` or `headers`.")
    fragment = unquote(parts.fragment) or None
    if fragment and model:
        raise InputError(f"The model is named twice, {fragment!r} in `url` and {model!r} in `model`. Omit one.")
    return parts._replace(fragment=""), model or fragment


def _check_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the fields as JSON carries them."""
    own = {name for provider in PROVIDERS.values() for name in (provider.query_field, provider.items_field)}
    reserved = sorted({"model", *own} & set(fields))
    if reserved:
        raise InputError(f"`fields` must not contain {reserved[0]!r}, which every request sets itself.")
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(fields), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"`fields` must map names to JSON values: {error}.") from error
    return copied


def _make_headers(url: SplitResult, api_key: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    """All headers of a request, with lowercase names; those of the user override the others."""
    key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
    merged = dict(PLAIN_HEADERS)
    if key:
        merged["authorization"] = f"Bearer {key}"
    merged |= {name.lower(): value for name, value in headers.items()}
    for name, value in merged.items():  # the value may be a secret: no message shows it
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise InputError(f"`headers` must have names of letters, digits and '-', got {name!r}.")
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            source = "api_key" if name == "authorization" else "headers"
            raise InputError(f"`{source}` must be ASCII text on one line; the header {name!r} is not.")
    if "authorization" in merged and url.scheme == "http" and not is_loopback(str(url.hostname)):
        logger.warning("The API key is sent to %s without encryption.", url.hostname)
    return merged
