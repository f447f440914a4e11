"""Base of scorers behind an HTTP server: pairs in batches, several requests in flight at once, and their cost."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np

from crossknn._checks import check_positive, check_seconds, invalid, is_finite
from crossknn.errors import InputError, PartialScores, ScorerError
from crossknn.models.fingerprints import function_fingerprint
from crossknn.models.specs import ModelSpec, public_url
from crossknn.scorers.base import RankMixin, check_pairs, describe_pair
from crossknn.scorers.inference.pairs import max_over_windows
from crossknn.scorers.remote.client import KEY_VARIABLE, PLAIN_HEADERS, HttpClient, PerLoop, RefusedRequest, is_loopback
from crossknn.scorers.remote.cost import CostTracker, Usage
from crossknn.scorers.remote.long_items import ItemWindows
from crossknn.scorers.remote.request_run import RequestRun
from crossknn.scorers.remote.responses import MAX_SCORE, Response
from crossknn.types import Rows, Scores

PAIR_HINT = "Change the item or leave it out, shorten it with `max_item_chars`, or set a `fallback_score`."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Size, number and time of requests; the arguments of `RemoteScorer`."""

    batch_size: int
    concurrency: int
    timeout: float
    retries: int

    def __post_init__(self) -> None:
        check_positive("batch_size", self.batch_size)
        check_positive("concurrency", self.concurrency)
        check_seconds("timeout", self.timeout)
        if not isinstance(self.retries, int) or isinstance(self.retries, bool) or self.retries < 0:
            raise invalid("retries", "a nonnegative integer", self.retries)


class HttpScorer(RankMixin, ABC):
    """A scorer behind an HTTP server; a subclass writes its requests and reads its responses.

    Args:
        endpoint: The URL of every request.
        model: The model's name, for servers that need one.
        headers: All headers of every request.
        limits: Of each request.
        costs: What requests cost.
        windows: What is sent of long items.
        fallback_score: The score of a pair that the server does not score; None for an error.
        settings: All settings of the subclass that change scores, as JSON carries them.
        fingerprint: The user's own, instead of one from the settings.
        spec_settings: The arguments of the subclass that change scores, for `spec`.
        omitted: Arguments that `spec` leaves out because they may hold a secret.

    Attributes:
        spec: How to open the scorer again, as an index remembers it; without key, headers and query string.
        fallbacks: How many pairs (or windows) have got `fallback_score`.
    """

    kind: ClassVar[str]  # how fingerprints begin
    request_hint: ClassVar[str]  # what to do when the server accepts no request at all
    mixed: bool = False  # whether a request may have pairs of several queries
    remote: ClassVar[bool] = True  # every call is a round trip, which a search with fewer rounds saves

    def __init__(
        self,
        endpoint: SplitResult,
        *,
        model: str | None,
        headers: Mapping[str, str],
        limits: RequestLimits,
        costs: CostTracker,
        windows: ItemWindows,
        fallback_score: float | None,
        settings: Sequence[Any],
        fingerprint: str | None,
        spec_settings: Mapping[str, Any],
        omitted: Sequence[str],
    ) -> None:
        self.url = f"{endpoint.scheme}://{endpoint.netloc}{endpoint.path}"
        shared = {"model": model, "fallback_score": fallback_score, "fingerprint": fingerprint, **asdict(windows)}
        self.spec = ModelSpec.of(self, str(public_url(self.url)), shared | dict(spec_settings), omitted=omitted)
        self.model = model
        self.limits = limits
        self._costs = costs
        self._windows = windows
        self._fallback_score = check_fallback(fallback_score)
        self._accepted = False  # whether the server has scored any pair
        self._semaphores = PerLoop(partial(asyncio.Semaphore, limits.concurrency))
        self.fallbacks = 0
        self._client = HttpClient(endpoint, headers, timeout=limits.timeout, retries=limits.retries, costs=costs)
        if fingerprint is None:
            scored = [endpoint.scheme, endpoint.query, *settings]
            scored += [] if windows == ItemWindows() else [asdict(windows)]
            scored += [] if fallback_score is None else [{"fallback_score": self._fallback_score}]
            digest = blake2b(json.dumps(scored, sort_keys=True).encode(), digest_size=8).hexdigest()
            self.fingerprint = f"{self.kind}:{endpoint.netloc}{endpoint.path}#{model or ''}:{digest}"
        else:
            self.fingerprint = function_fingerprint(fingerprint)

    @property
    def spent(self) -> float:
        """The cost so far in this process; requests whose response was lost count, for they may be billed."""
        return self._costs.spent

    @property
    def tokens(self) -> int:
        """The tokens so far in this process, as the server reports them, or estimated where it does not."""
        return self._costs.used.tokens

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One score per pair, in the order given."""
        call = self._plan(queries, items)
        try:
            call.run.run(partial(self._send, call), concurrency=self.limits.concurrency)
            error = self._conclude(call)
        except BaseException as interrupt:
            error = interrupt
        return self._finish(call, error)

    async def ascore(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """`score` without blocking the event loop; `concurrency` holds for all that is awaited on it."""
        call = self._plan(queries, items)
        try:
            await call.run.arun(partial(self._asend, call), concurrency=self.limits.concurrency)
            error = self._conclude(call)
        except BaseException as interrupt:
            error = interrupt
        return self._finish(call, error)

    def _plan(self, queries: Sequence[str], items: Sequence[str]) -> _Call:
        """The requests for these pairs; an error if they would cost too much."""
        check_pairs(queries, items)
        texts, pair = self._windows.split(items)
        text_queries = [queries[row] for row in pair.tolist()]
        batches = _group_pairs(text_queries, self.limits.batch_size, mixed=self.mixed)
        self._costs.check(
            self._expected_usage([text_queries[at] for at in batch], [texts[at] for at in batch]) for batch in batches
        )
        return _Call(queries, items, text_queries, texts, pair, RequestRun(batches, accepted=self._accepted))

    def _conclude(self, call: _Call) -> BaseException | None:
        """The error of a call whose requests are over, if it has one."""
        self._accepted = self._accepted or call.run.accepted  # another thread may have set it
        return self._find_error(call.run, call.text_queries, [call.items[row] for row in call.pair.tolist()])

    def _finish(self, call: _Call, error: BaseException | None) -> Scores:
        """The scores of a call, or its error with the scores so far."""
        scores = max_over_windows(call.run.scores, call.pair, len(call.items))  # NaN where a window has no score
        if error is None:
            return scores
        so_far = self._partial_scores(error, call.queries, call.items, scores)
        if isinstance(error, ScorerError):
            raise so_far from error
        raise error from so_far

    def _partial_scores(
        self, error: BaseException, queries: Sequence[str], items: Sequence[str], scores: Scores
    ) -> PartialScores:
        done = np.flatnonzero(~np.isnan(scores)).tolist()
        return PartialScores(
            f"{error} {len(done):,} of {len(scores):,} pairs of this call were scored.",
            fingerprint=self.fingerprint,
            queries=[queries[position] for position in done],
            items=[items[position] for position in done],
            scores=scores[done].tolist(),
        )

    def close(self) -> None:
        """Close the connections to the server; the next call of `score` opens new ones."""
        self._client.close()

    @abstractmethod
    def _request_body(self, queries: Sequence[str], items: Sequence[str]) -> bytes:
        """The request for the scores of these pairs."""

    @abstractmethod
    def _read_response(self, content: bytes, count: int) -> Response:
        """The response to a request of `count` pairs, or `ValueError` that says what is wrong with it."""

    @abstractmethod
    def _expected_usage(self, queries: Sequence[str], items: Sequence[str]) -> Usage:
        """What a request of these pairs will be billed as, at most."""

    def _find_error(self, run: RequestRun, queries: Sequence[str], items: Sequence[str]) -> BaseException | None:
        """The error of a run, if it has one; else pairs without a score get `fallback_score`, or are the error."""
        if isinstance(run.error, RefusedRequest):
            return ScorerError(f"{run.error} {self.request_hint}")
        if run.error is not None or not run.unscored:
            return run.error
        first = min(run.unscored)
        more = f" and {len(run.unscored) - 1:,} more" if len(run.unscored) > 1 else ""
        pair = describe_pair(queries[first], items[first])
        message = f"{self.url} gave no score for {pair}{more}: it {run.unscored[first]}."
        if self._fallback_score is None or not run.accepted:
            return ScorerError(f"{message} {PAIR_HINT if run.accepted else self.request_hint}")
        logger.warning("%s The score is `fallback_score`, %g.", message, self._fallback_score)
        run.scores[list(run.unscored)] = self._fallback_score
        self.fallbacks += len(run.unscored)
        return None

    def _send(self, call: _Call, batch: list[int], stop: threading.Event) -> Response:
        request = self._request(call, batch)
        return self._receive(request, self._client.post(request.body, request.expected, stop))

    async def _asend(self, call: _Call, batch: list[int], stop: asyncio.Event) -> Response:
        request = self._request(call, batch)
        async with self._semaphores.get():
            content = await self._client.apost(request.body, request.expected, stop)
        return self._receive(request, content)

    def _request(self, call: _Call, batch: list[int]) -> _Request:
        queries, items = ([texts[position] for position in batch] for texts in (call.text_queries, call.texts))
        return _Request(queries, items, self._expected_usage(queries, items), self._request_body(queries, items))

    def _receive(self, request: _Request, content: bytes) -> Response:
        queries, items, expected, _ = request
        try:
            response = self._read_response(content, len(items))
        except ValueError as error:
            more = f" and {len(items) - 1} more" if len(items) > 1 else ""
            pair = describe_pair(queries[0], items[0])
            reason = self._client.quote(str(error))  # the error itself may hold a secret, and is not chained
            raise ScorerError(f"{self.url} returned an invalid response for {pair}{more}: {reason}.") from None
        units = expected.units if response.units is None else response.units
        tokens = expected.tokens if response.tokens is None else response.tokens
        self._costs.adjust(Usage(units, tokens) - expected)
        unscored = {position: self._client.quote(reason) for position, reason in response.unscored.items()}
        return replace(response, unscored=unscored)


class _Call(NamedTuple):
    """A call of `score`: its pairs, the texts that are sent for them, and the requests."""

    queries: Sequence[str]
    items: Sequence[str]
    text_queries: list[str]
    texts: list[str]
    pair: Rows  # of each text
    run: RequestRun


class _Request(NamedTuple):
    queries: list[str]
    items: list[str]
    expected: Usage
    body: bytes


def _group_pairs(queries: Sequence[str], batch_size: int, *, mixed: bool) -> list[list[int]]:
    """The positions of the pairs of each request: at most `batch_size`, of one query unless requests are `mixed`."""
    positions: dict[str, list[int]] = {}
    for position, query in enumerate(queries):
        positions.setdefault("" if mixed else query, []).append(position)
    return [
        found[start : start + batch_size] for found in positions.values() for start in range(0, len(found), batch_size)
    ]


def check_fallback(score: float | None) -> float | None:
    """The score, if it is a finite number or None."""
    if score is None:
        return None
    if not is_finite(score) or not abs(score) <= MAX_SCORE:
        raise invalid("fallback_score", "a finite number", score)
    return float(score)


def is_url(name: str) -> bool:
    """Whether a scorer of this name is behind a server."""
    return name.lower().startswith(("http://", "https://"))


def parse_url(url: str, model: str | None, *, requirement: str) -> tuple[SplitResult, str | None]:
    """The URL without its fragment, and the model, which the fragment may name; errors say what is required."""
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


def check_fields(fields: Mapping[str, Any] | None, *, reserved: Collection[str]) -> dict[str, Any]:
    """A copy of the fields as JSON carries them, if none of them is `reserved`."""
    fields = dict(fields or {})
    taken = sorted({"model", *reserved} & set(fields))
    if taken:
        raise InputError(f"`fields` must not contain {taken[0]!r}, which every request sets itself.")
    try:
        copied: dict[str, Any] = json.loads(json.dumps(fields, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"`fields` must map names to JSON values: {error}.") from error
    return copied


def given_names(**arguments: object) -> list[str]:
    """The names of the arguments that are given."""
    return [name for name, value in arguments.items() if value]


def make_headers(url: SplitResult, api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """All headers of a request, with lowercase names; those of the user override the others."""
    key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
    merged = dict(PLAIN_HEADERS)
    if key:
        merged["authorization"] = f"Bearer {key}"
    merged |= {name.lower(): value for name, value in (headers or {}).items()}
    for name, value in merged.items():  # the value may be a secret: no message shows it
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise InputError(f"`headers` must have names of letters, digits and '-', got {name!r}.")
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            source = "api_key" if name == "authorization" else "headers"
            raise InputError(f"`{source}` must be ASCII text on one line; the header {name!r} is not.")
    if "authorization" in merged and url.scheme == "http" and not is_loopback(str(url.hostname)):
        logger.warning("The API key is sent to %s without encryption.", url.hostname)
    return merged
