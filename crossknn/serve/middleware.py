"""Request middleware: request ids, host and key checks, body limits, error responses, logs and metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossknn.search.tracing import incoming_trace
from crossknn.serve.backpressure import ClientDisconnected
from crossknn.serve.http_errors import MAX_MESSAGE, HttpError, check_size, error_response, http_error_of, not_ready
from crossknn.serve.monitoring import Metrics, error_location
from crossknn.serve.settings import Settings

VALID_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
PORT: Final = re.compile(r":\d*$")
PUBLIC_PATHS: Final = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")
CLIENT_CLOSED_REQUEST: Final = 499  # nginx's status for a client that disconnected before its response
CONTENT_SECURITY_POLICY: Final = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

log = logging.getLogger(__name__)


class RequestMiddleware:
    """An ASGI middleware; the app finds the state of its request in `scope["exchange"]`."""

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        headers = Headers(scope=scope)
        exchange = Exchange(send, _request_id(headers))
        # The server leaves out the body of a response to HEAD.
        inner = {**scope, "exchange": exchange, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        try:
            _check_framing(headers)
            self._check_host(headers)
            self._check_key(scope["method"], scope["path"], headers)
            with incoming_trace(headers):
                await self._app(inner, self._limit_body(headers, receive, exchange), exchange.send)
        except ClientDisconnected:
            exchange.status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:  # the grace period of the shutdown is over
            await exchange.send_error(not_ready("the server is shutting down."), scope, receive)
        except Exception as error:
            await exchange.send_error(error, scope, receive)
        finally:
            self._record(scope["method"], inner.get("route"), exchange, time.monotonic() - start)

    def _check_host(self, headers: Headers) -> None:
        name = PORT.sub("", headers.get("host", "")).lower()
        if self._settings.hosts is not None and name not in self._settings.hosts:
            raise HttpError(421, "wrong_host", f"unknown host {name!a:.80}. Allow it with --allow-host.")

    def _check_key(self, method: str, path: str, headers: Headers) -> None:
        key = self._settings.api_key
        public = path in PUBLIC_PATHS or path.startswith("/page/")
        public |= self._settings.public_info and path in ("/info", "/metrics")
        if key is None or (public and method in ("GET", "HEAD")):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
            raise HttpError(401, "unauthorized", "missing or wrong API key. Send the header Authorization: Bearer KEY.")

    def _limit_body(self, headers: Headers, receive: Receive, exchange: Exchange) -> Receive:
        """`receive` with an error where the body exceeds its limit, whatever its Content-Length says."""
        limit = self._settings.limits.body_bytes
        declared = headers.get("content-length", "")
        if declared.isdecimal():
            check_size("the body", int(declared), limit)
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            exchange.disconnected |= message["type"] == "http.disconnect"
            received += len(message.get("body", b""))
            if received > limit:
                raise HttpError(413, "too_large", f"the body must have at most {limit:,} bytes.")
            return message

        return receive_limited

    def _record(self, method: str, matched: object, exchange: Exchange, seconds: float) -> None:
        route = getattr(matched, "path", "other")
        self._metrics.count_request(route, exchange.status, seconds)
        fields = {
            "request_id": exchange.request_id,
            "method": method,
            "route": route,
            "status": exchange.status,
            "seconds": round(seconds, 6),
            **exchange.log_fields,
        }
        if self._settings.log_queries:
            fields |= exchange.private_log_fields
        quiet = route in ("/healthz", "/readyz", "/metrics") and exchange.status == 200
        log.log(logging.DEBUG if quiet else logging.INFO, "request", extra=fields)


class Exchange:
    """One request and its response."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0  # of the response; 0 before it
        self.disconnected = False  # whether the client has gone
        self.log_fields: dict[str, Any] = {}
        self.private_log_fields: dict[str, Any] = {}  # logged only where the log may contain queries

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        await self._send(message)

    async def send_error(self, error: Exception, scope: Scope, receive: Receive) -> None:
        """Respond with an error, unless the response has begun; errors of the server are logged."""
        if self.disconnected and not self.status:
            self.status = CLIENT_CLOSED_REQUEST
            return
        failure = http_error_of(error)
        if self.status or failure.status_code >= 500:
            self.log_fields["error"] = error_location(error)
            self.private_log_fields["detail"] = str(error)[:MAX_MESSAGE]
        if not self.status:
            response = error_response(failure, self.request_id)
            if scope["method"] == "OPTIONS" and failure.status_code == 405:
                response = Response(status_code=204, headers=failure.headers)
            await response(scope, receive, self.send)


def _check_framing(headers: Headers) -> None:
    """Refuse requests whose end servers may see in different places, which smuggles a second one past a proxy."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise HttpError(400, "bad_request", "a request has either Content-Length or Transfer-Encoding.", close=True)


def _request_id(headers: Headers) -> str:
    """The client's own if it is valid, else a random one."""
    given = headers.get("x-request-id", "")
    return given if VALID_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
