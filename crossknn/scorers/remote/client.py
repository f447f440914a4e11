"""HTTP client of a scoring endpoint: keep-alive connections, one deadline per request, retries, and their cost."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import SplitResult, quote, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

from crossknn._imports import import_extra
from crossknn.errors import InputError, ScorerError
from crossknn.scorers.remote.cost import CostTracker, Usage
from crossknn.scorers.remote.redaction import Redaction, find_secrets

if TYPE_CHECKING:
    from crossknn.scorers.remote.network import RequestBounds

KEY_VARIABLE = "CROSSKNN_API_KEY"
PLAIN_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "identity",
    "user-agent": "crossknn",
}
MIN_RESPONSE_BYTES = 2**22  # allowed for the response to any request, head and body
MAX_RESPONSE_BYTES = 2**26
RESPONSE_PER_REQUEST = 8  # bytes that a response may have for each of its request: servers return texts, escaped
MAX_ERROR_BYTES = 2**14  # of the body of an error response
MAX_QUOTED_CHARACTERS = 300  # of a server's error message
INITIAL_BACKOFF = 0.5  # seconds, doubled after each attempt
MAX_BACKOFF = 60.0
KEY_HINT = f"Set `api_key` or the environment variable {KEY_VARIABLE}."
DEFAULT_PORTS = {"http": 80, "https": 443}
PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
REFUSED = (400, 413, 422)  # statuses of a request that the server cannot use, maybe because of one pair
STATUS_HINTS = {
    401: KEY_HINT,
    403: KEY_HINT,
    404: "Check the URL and the name of the model.",
}

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RefusedRequest(ScorerError):
    """A request that the server cannot use, maybe because of one pair; `reason` is what the server did."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt gave no scores."""

    reason: str  # what the server did
    retryable: bool
    retry_after: float | None = None  # seconds, as the server demands
    hint: str = ""
    status: int | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response whose body has been read."""

    status: int
    headers: Mapping[str, str]  # by lowercase name
    content: bytes


@dataclass(frozen=True, slots=True)
class Connection:
    """A kept connection, and what its request in flight may still use."""

    pool: Any  # httpcore.ConnectionPool or AsyncConnectionPool
    bounds: RequestBounds


class PerLoop(Generic[T]):
    """Something that belongs to an event loop, made when a loop first needs it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process has other loops."""
        return PerLoop, (self._make,)

    def get(self) -> T:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._make()
        return self._made[loop]


class HttpClient:
    """Requests to one URL, POST unless another method is given, from any number of threads, each on its own connection.

    Redirects are not followed. Proxies come from the environment and are never used for this machine itself. Error
    messages mask the values of all `headers` but the plain ones, of the query string, and a proxy's password. `costs`
    are charged before each attempt; see `RemoteScorer`. `hints` say what to do about statuses.
    """

    def __init__(
        self,
        url: SplitResult,
        headers: Mapping[str, str],
        *,
        timeout: float,
        retries: int,
        costs: CostTracker,
        hints: Mapping[int, str] = STATUS_HINTS,
        min_response_bytes: int = MIN_RESPONSE_BYTES,
        method: str = "POST",
    ) -> None:
        self._httpcore = import_extra("httpcore", extra="remote")
        self._errors = (
            self._httpcore.NetworkError,
            self._httpcore.TimeoutException,
            self._httpcore.ProtocolError,
            self._httpcore.ProxyError,
        )
        self._unsent = (self._httpcore.ConnectError, self._httpcore.ConnectTimeout, self._httpcore.ProxyError)
        self._url = url
        self._target = self._httpcore.URL(
            scheme=url.scheme, host=str(url.hostname), port=url.port, target=request_target(url)
        )
        self._name = f"{url.scheme}://{url.netloc}{url.path}"  # the query string may hold a key
        self._headers = {"host": host_header(url), **headers}
        self._timeout = timeout
        self._retries = retries
        self._costs = costs
        self._hints = hints
        self._min_response_bytes = min_response_bytes
        self._method = method
        self._proxy = find_proxy(url)
        plain = {*PLAIN_HEADERS, "host"}
        self._redaction = Redaction(find_secrets(headers, plain, url, self._proxy))
        self._context = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: deque[Connection] = deque()
        self._async_idle = PerLoop[deque[Connection]](deque)
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets all settings, the key included, and opens its own connections."""
        settings: dict[str, Any] = {"timeout": self._timeout, "retries": self._retries, "costs": self._costs}
        settings |= {"hints": self._hints, "min_response_bytes": self._min_response_bytes, "method": self._method}
        return partial(HttpClient, self._url, self._headers, **settings), ()

    def post(self, body: bytes, usage: Usage, stop: threading.Event) -> bytes:
        """The response to a request, each attempt of which may be billed as `usage`, or `ScorerError`.

        `stop` ends the wait for the next attempt early.
        """
        attempt = 0
        while True:
            attempt += 1
            result = self._attempt(body, usage)
            if isinstance(result, bytes):
                return result
            if stop.wait(self._wait(result, attempt)):
                raise self._error(result, attempt)
            logger.info("%s %s; attempt %d follows", self._name, result.reason, attempt + 1)

    async def apost(self, body: bytes, usage: Usage, stop: asyncio.Event) -> bytes:
        """`post` on an event loop."""
        attempt = 0
        while True:
            attempt += 1
            result = await self._aattempt(body, usage)
            if isinstance(result, bytes):
                return result
            wait = self._wait(result, attempt)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait)
                raise self._error(result, attempt)
            logger.info("%s %s; attempt %d follows", self._name, result.reason, attempt + 1)

    def _wait(self, failure: Failure, attempt: int) -> float:
        """Seconds before the next attempt, or the error where none follows."""
        wait = backoff(attempt) if failure.retry_after is None else failure.retry_after
        if not failure.retryable or attempt > self._retries or wait > MAX_BACKOFF:
            raise self._error(failure, attempt)
        return wait

    def close(self) -> None:
        """Close the idle connections; those of an event loop close with it."""
        while self._idle:
            self._take().pool.close()

    def _error(self, failure: Failure, attempts: int) -> ScorerError:
        reason = failure.reason + (f" ({attempts} attempts)" if attempts > 1 else "")
        message = f"{self._name} {reason}.{failure.hint and ' '}{failure.hint}"
        return RefusedRequest(message, reason) if failure.status in REFUSED else ScorerError(message)

    def _attempt(self, body: bytes, usage: Usage) -> bytes | Failure:
        """Send the request once; an attempt that is surely not billed is not charged."""
        self._costs.charge(usage)
        connection = self._take()
        try:
            response = self._exchange(connection, body)
        except self._errors as error:
            return self._failed(error, usage, connection.bounds, sent=not isinstance(error, self._unsent))
        finally:
            self._idle.append(connection)  # after an error it opens anew
        return self._received(response, usage)

    async def _aattempt(self, body: bytes, usage: Usage) -> bytes | Failure:
        """`_attempt` on an event loop, where the deadline is that of the whole exchange."""
        self._costs.charge(usage)
        idle = self._async_idle.get()
        connection = idle.pop() if idle else self._open(asynchronous=True)
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._aexchange(connection, body)
        except (TimeoutError, *self._errors) as error:
            return self._failed(error, usage, connection.bounds, sent=connection.bounds.sent)
        finally:
            idle.append(connection)
        return self._received(response, usage)

    def _failed(self, error: Exception, usage: Usage, bounds: RequestBounds, *, sent: bool) -> Failure:
        if not sent:
            self._costs.adjust(Usage() - usage)
        return self._network_failure(error, exceeded=bounds.exceeded)

    def _received(self, response: HttpResponse, usage: Usage) -> bytes | Failure:
        if response.status == 200:
            return response.content
        self._costs.adjust(Usage() - usage)
        return self._http_failure(response)

    def _exchange(self, connection: Connection, body: bytes) -> HttpResponse:
        response = connection.pool.handle_request(self._start(connection, body))
        try:
            return _read_head(response, _read_body(response))
        finally:
            response.close()

    async def _aexchange(self, connection: Connection, body: bytes) -> HttpResponse:
        response = await connection.pool.handle_async_request(self._start(connection, body))
        try:
            return _read_head(response, await _aread_body(response))
        finally:
            await response.aclose()

    def _start(self, connection: Connection, body: bytes) -> Any:
        """A request, for which the bounds of its connection begin."""
        allowed = min(self._min_response_bytes + RESPONSE_PER_REQUEST * len(body), MAX_RESPONSE_BYTES)
        connection.bounds.start(self._timeout, allowed)
        return self._httpcore.Request(
            self._method,
            self._target,
            headers={**self._headers, "content-length": str(len(body))},
            content=body,
            extensions={"timeout": {"pool": self._timeout}},
        )

    def _take(self) -> Connection:
        if self._process != os.getpid():  # a forked process must not use its parent's connections
            self._idle, self._process = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def _open(self, *, asynchronous: bool = False) -> Connection:
        from crossknn.scorers.remote.network import RequestBounds, open_pool

        if asynchronous:
            import_extra("anyio", extra="remote")  # httpcore needs it then
        bounds = RequestBounds()
        return Connection(open_pool(self._proxy, self._context, bounds, asynchronous=asynchronous), bounds)

    def _network_failure(self, error: Exception, *, exceeded: bool) -> Failure:
        if isinstance(error, TimeoutError | self._httpcore.TimeoutException):
            return Failure(f"did not respond within {self._timeout:g} seconds", retryable=True)
        if exceeded:
            return Failure("sent a response far longer than the scores of this request", retryable=False)
        reason = self.quote(str(error)) or type(error).__name__
        if isinstance(error, self._httpcore.ProtocolError):
            return Failure(f"sent no valid HTTP response: {reason}", retryable=True)
        return Failure(f"cannot be reached: {reason}", "CERTIFICATE_VERIFY_FAILED" not in reason)

    def _http_failure(self, response: HttpResponse) -> Failure:
        status = response.status
        hint = self._hints.get(status, "")
        if 300 <= status < 400:
            target = self.quote(response.headers.get("location", "nowhere"))
            hint = f"It redirects to {target}: use that URL if you trust it."
        retry_after = parse_retry_after(response.headers.get("retry-after"), response.headers.get("date"))
        if retry_after is not None and retry_after > MAX_BACKOFF:
            hint = f"The server demands a wait of {retry_after:,.0f} seconds."
        quoted = self.quote(response.content.decode("utf-8", "replace")) or "an empty body"
        retryable = status in (408, 429) or status >= 500
        return Failure(f"responded with {status}: {quoted}", retryable, retry_after, hint, status)

    def quote(self, text: str) -> str:
        """What a server says on one line, shortened, with secrets masked and nothing that a terminal would obey."""
        line = " ".join(self._redaction.mask(text).split())
        line = "".join(character if character.isprintable() else "\ufffd" for character in line)
        return line if len(line) <= MAX_QUOTED_CHARACTERS else line[: MAX_QUOTED_CHARACTERS - 1] + "…"


def _read_head(response: Any, content: bytes) -> HttpResponse:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    return HttpResponse(response.status, headers, content)


def _read_body(response: Any) -> bytes:
    """The body; that of an error is truncated, and closing the response then drops the connection."""
    content = bytearray()
    for chunk in response.iter_stream():
        content += chunk
        if response.status != 200 and len(content) > MAX_ERROR_BYTES:
            return bytes(content[:MAX_ERROR_BYTES])
    return bytes(content)


async def _aread_body(response: Any) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_stream():
        content += chunk
        if response.status != 200 and len(content) > MAX_ERROR_BYTES:
            return bytes(content[:MAX_ERROR_BYTES])
    return bytes(content)


def request_target(url: SplitResult) -> str:
    """The path and the query string as a request line has them."""
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return quote(target, safe="!$%&'()*+,/:;=?@[]~")


def host_header(url: SplitResult) -> str:
    """The host, with its port unless that is the scheme's."""
    host = f"[{url.hostname}]" if ":" in str(url.hostname) else str(url.hostname)
    return host if url.port in (None, DEFAULT_PORTS[url.scheme]) else f"{host}:{url.port}"


def backoff(attempt: int) -> float:
    """Seconds to wait after this attempt: exponential, with jitter so that clients do not return together."""
    return min(INITIAL_BACKOFF * 2.0 ** (attempt - 1), MAX_BACKOFF) * random.uniform(0.5, 1.0)  # noqa: S311


def parse_retry_after(value: str | None, date: str | None = None) -> float | None:
    """The seconds of a Retry-After header, a number or a date by the server's clock; None if it is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value.strip()[:18])
    until, now = _parse_date(value), _parse_date(date) or datetime.now(UTC)
    return None if until is None else max(0.0, (until - now).total_seconds())


def _parse_date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value or "")
    except (ValueError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC)


def find_proxy(url: SplitResult) -> SplitResult | None:
    """The proxy of the environment (`https_proxy`, `no_proxy`, …) for this URL."""
    host = str(url.hostname)
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy:
        return None
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        known = parts.scheme in PROXY_SCHEMES and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known:  # it may hold a password
        raise InputError(f"The environment's proxy for {url.scheme} must be an http, https or socks5 URL with a host.")
    if parts.scheme.startswith("socks") and find_spec("socksio") is None:
        raise InputError("The environment's proxy needs the package socksio: pip install 'httpcore[socks]'.")
    return parts


def is_loopback(host: str) -> bool:
    """Whether the host is this machine itself."""
    return host in ("localhost", "::1") or host.startswith("127.")
