"""What every request passes: its id, the key, the size of its body; and what is logged and counted of it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossknn.serve.backpressure import ClientDisconnected
from crossknn.serve.http_errors import HttpError, http_error_of, too_large
from crossknn.serve.logs import place_of
from crossknn.serve.metrics import Metrics
from crossknn.serve.settings import Settings

SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
PORT: Final = re.compile(r":\d*$")
OPEN: Final = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")
LEFT: Final = 499  # logged where a client did not wait for its answer
POLICY: Final = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

log = logging.getLogger(__name__)


class RequestMiddleware:
    """An ASGI app around another."""

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
        passage = _Passage(send, _choose_id(headers))
        scope["passage"] = passage
        try:
            self._check_host(headers)
            self._check_key(scope["method"], scope["path"], headers)
            await self._app(scope, self._limited(headers, receive), passage.send)
        except ClientDisconnected:
            passage.status = LEFT
        except asyncio.CancelledError:  # the server has no more time for it
            await passage.refuse(HttpError(503, "not_ready", "the service ends.", retry_after=5), scope, receive)
        except Exception as error:
            await passage.refuse(error, scope, receive)
        finally:
            self._record(scope, passage, time.monotonic() - start)

    def _check_host(self, headers: Headers) -> None:
        name = PORT.sub("", headers.get("host", "")).lower()
        if self._settings.hosts is not None and name not in self._settings.hosts:
            raise HttpError(421, "wrong_host", f"this server is not called {name!a:.80}: see --allow-host.")

    def _check_key(self, method: str, path: str, headers: Headers) -> None:
        key = self._settings.api_key
        is_open = path in OPEN or path.startswith("/page/")
        is_open |= self._settings.public_info and path in ("/info", "/metrics")
        if key is None or (is_open and method in ("GET", "HEAD")):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
            raise HttpError(401, "unauthorized", "an API key is needed: send the header Authorization: Bearer KEY.")

    def _limited(self, headers: Headers, receive: Receive) -> Receive:
        """`receive`, with an error where a body grows past its limit, whatever its headers say."""
        limit = self._settings.limits.body_bytes
        told = headers.get("content-length", "")
        if told.isdecimal() and int(told) > limit:
            raise too_large("the body", limit, got=int(told))
        size = 0

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, too_large("the body", limit).message)
            return message

        return receive_some

    def _record(self, scope: Scope, passage: _Passage, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.count_request(route, passage.status, seconds)
        facts = {
            "request_id": passage.request_id,
            "method": scope["method"],
            "route": route,
            "status": passage.status,
            "seconds": round(seconds, 6),
            **passage.facts,
        }
        if self._settings.log_queries:
            facts |= passage.texts
        quiet = route in ("/healthz", "/readyz", "/metrics") and passage.status == 200
        log.log(logging.DEBUG if quiet else logging.INFO, "request", extra=facts)


class _Passage:
    """One request on its way: its id, how it was answered, and what the log may say about it.

    facts  for every log
    texts  only where texts may be logged
    """

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.facts: dict[str, Any] = {}
        self.texts: dict[str, Any] = {}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Content-Security-Policy"] = POLICY
        await self._send(message)

    def note_error(self, error: Exception) -> None:
        """Errors of the server are told by type and place; their messages may hold texts."""
        self.facts["error"] = place_of(error)
        self.texts["detail"] = str(error)

    async def refuse(self, error: Exception, scope: Scope, receive: Receive) -> None:
        """Answer with an error, unless an answer has begun."""
        if self.status:
            self.note_error(error)
            return
        refusal = http_error_of(error)
        if refusal.status >= 500:
            self.note_error(error)
        response = JSONResponse(refusal.body(self.request_id), refusal.status, refusal.headers)
        await response(scope, receive, self.send)


def _choose_id(headers: Headers) -> str:
    """The client's own, if it is sane."""
    given = headers.get("x-request-id", "")
    return given if SANE_ID.fullmatch(given) else uuid.uuid4().hex
