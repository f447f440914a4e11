"""HTTP client of a scoring endpoint: keep-alive connections, one deadline per request, retries, and their cost."""

from __future__ import annotations

import logging
import os
import random
import socket
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult
from urllib.request import getproxies, proxy_bypass

from crossknn._imports import import_extra
from crossknn.errors import ScorerError
from crossknn.scorers.remote.cost import CostTracker, Usage

if TYPE_CHECKING:
    import httpx

KEY_VARIABLE = "CROSSKNN_API_KEY"
PLAIN_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "identity",
    "user-agent": "crossknn",
}
MAX_RESPONSE_BYTES = 2**26
MAX_ERROR_BYTES = 2**14  # of the body of an error response
MAX_QUOTED_CHARACTERS = 300  # of a server's error message
INITIAL_BACKOFF = 0.5  # seconds, doubled after each attempt
MAX_BACKOFF = 60.0
KEY_HINT = f"Set `api_key` or the environment variable {KEY_VARIABLE}."
REFUSED = (400, 413, 422)  # statuses of a request that the server cannot use, maybe because of one pair
STATUS_HINTS = {
    401: KEY_HINT,
    403: KEY_HINT,
    404: "Check the URL and the name of the model.",
}

logger = logging.getLogger(__name__)


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


class Connection:
    """A keep-alive connection whose socket is shut down once a request passes its deadline."""

    def __init__(self, transport: httpx.HTTPTransport) -> None:
        self.transport = transport
        self.expired = False
        self._socket: socket.socket | None = None

    def on_event(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember the socket of a new connection; called by httpx for each step of a request."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.expired:
                self.expire()

    def expire(self) -> None:
        """End the request in flight, whatever it is waiting for."""
        self.expired = True
        if self._socket is not None:
            with suppress(OSError):  # closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # of TLS too: its own would race with a read


class HttpClient:
    """POST requests to one URL from any number of threads, each on a connection of its own.

    Redirects are not followed. Proxies come from the environment and are never used for this machine itself. Error
    messages mask all `headers` but the plain ones, and `costs` are charged before each attempt; see `RemoteScorer`.
    """

    def __init__(
        self, url: SplitResult, headers: Mapping[str, str], *, timeout: float, retries: int, costs: CostTracker
    ) -> None:
        self._httpx = import_extra("httpx", extra="remote")
        self._url = url
        self._name = f"{url.scheme}://{url.netloc}{url.path}"  # the query string may hold a key
        self._headers = dict(headers)
        self._secrets = find_secrets(headers)
        self._timeout = timeout
        self._retries = retries
        self._costs = costs
        self._proxy = find_proxy(url)
        self._verify = ssl.create_default_context() if url.scheme == "https" else False
        self._idle: deque[Connection] = deque()
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets all settings, the key included, and opens its own connections."""
        settings: dict[str, Any] = {"timeout": self._timeout, "retries": self._retries, "costs": self._costs}
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
            wait = backoff(attempt) if result.retry_after is None else result.retry_after
            if not result.retryable or attempt > self._retries or wait > MAX_BACKOFF or stop.wait(wait):
                raise self._error(result, attempt)
            logger.info("%s %s; attempt %d follows", self._name, result.reason, attempt + 1)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._take().transport.close()

    def _error(self, failure: Failure, attempts: int) -> ScorerError:
        reason = failure.reason + (f" ({attempts} attempts)" if attempts > 1 else "")
        message = f"{self._name} {reason}.{failure.hint and ' '}{failure.hint}"
        return RefusedRequest(message, reason) if failure.status in REFUSED else ScorerError(message)

    def _attempt(self, body: bytes, usage: Usage) -> bytes | Failure:
        """Send the request once; an attempt that is surely not billed is not charged."""
        self._costs.charge(usage)
        connection = self._take()
        try:
            response, content = self._exchange(connection, body)
        except self._httpx.TransportError as error:
            if isinstance(error, self._httpx.ConnectError | self._httpx.ConnectTimeout):  # never sent
                self._costs.adjust(Usage() - usage)
            if connection.expired or isinstance(error, self._httpx.TimeoutException):
                return Failure(f"did not respond within {self._timeout:g} seconds", retryable=True)
            reason = self._quote(str(error)) or type(error).__name__
            return Failure(f"cannot be reached: {reason}", "CERTIFICATE_VERIFY_FAILED" not in reason)
        finally:
            self._idle.append(connection)  # after an error it opens anew
        if response.status_code == 200:
            return content
        self._costs.adjust(Usage() - usage)
        return self._http_failure(response, content)

    def _exchange(self, connection: Connection, body: bytes) -> tuple[httpx.Response, bytes]:
        connection.expired = False
        timer = threading.Timer(self._timeout, connection.expire)  # httpx limits each read, not the whole request
        timer.daemon = True
        timer.start()
        try:
            timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)
            extensions = {"timeout": timeouts, "trace": connection.on_event}
            request = self._httpx.Request(
                "POST", self._url.geturl(), headers=self._headers, content=body, extensions=extensions
            )
            response = connection.transport.handle_request(request)
            try:
                content = _read_bounded(response)
            finally:
                response.close()
        finally:
            timer.cancel()
            timer.join()  # so that it cannot end the connection's next request
        if connection.expired:
            raise self._httpx.ReadTimeout("the deadline passed within the response")
        return response, content

    def _take(self) -> Connection:
        if self._process != os.getpid():  # a forked process must not use its parent's connections
            self._idle, self._process = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            limits = self._httpx.Limits(max_connections=1, keepalive_expiry=None)
            return Connection(self._httpx.HTTPTransport(verify=self._verify, proxy=self._proxy, limits=limits))

    def _http_failure(self, response: httpx.Response, content: bytes) -> Failure:
        status = response.status_code
        hint = STATUS_HINTS.get(status, "")
        if 300 <= status < 400:
            target = self._quote(response.headers.get("location", "nowhere"))
            hint = f"It redirects to {target}: use that URL if you trust it."
        retry_after = parse_retry_after(response.headers.get("retry-after"))
        if retry_after is not None and retry_after > MAX_BACKOFF:
            hint = f"The server demands a wait of {retry_after:,.0f} seconds."
        quoted = self._quote(content.decode("utf-8", "replace")) or "an empty body"
        retryable = status in (408, 429) or status >= 500
        return Failure(f"responded with {status}: {quoted}", retryable, retry_after, hint, status)

    def _quote(self, text: str) -> str:
        """A server's message on one line, shortened, with secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, "•••")
        line = " ".join(text.split())
        return line if len(line) <= MAX_QUOTED_CHARACTERS else line[: MAX_QUOTED_CHARACTERS - 1] + "…"


def _read_bounded(response: httpx.Response) -> bytes:
    """The body, truncated where it is far too long; closing the response then drops the connection."""
    limit = MAX_RESPONSE_BYTES if response.status_code == 200 else MAX_ERROR_BYTES
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > limit:
            break
    return bytes(content[:limit])


def backoff(attempt: int) -> float:
    """Seconds to wait after this attempt: exponential, with jitter so that clients do not return together."""
    return min(INITIAL_BACKOFF * 2.0 ** (attempt - 1), MAX_BACKOFF) * random.uniform(0.5, 1.0)  # noqa: S311


def parse_retry_after(value: str | None) -> float | None:
    """The seconds of a Retry-After header, which is a number or a date; None if it is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def find_proxy(url: SplitResult) -> str | None:
    """The proxy of the environment (`https_proxy`, `no_proxy`, …) for this URL."""
    host = str(url.hostname)
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Whether the host is this machine itself."""
    return host in ("localhost", "::1") or host.startswith("127.")


def find_secrets(headers: Mapping[str, str]) -> list[str]:
    """Every word of a header that may be a secret, longest first."""
    words = {word for name, value in headers.items() if name not in PLAIN_HEADERS for word in value.split()}
    return sorted((word for word in words if len(word) >= 6 and word != "Bearer"), key=len, reverse=True)
