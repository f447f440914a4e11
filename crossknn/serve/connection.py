"""HTTP connections with limits on their number and on the time that clients take to send and to read."""

from __future__ import annotations

import asyncio
import uuid
from http import HTTPStatus
from pathlib import Path
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from crossknn.errors import InputError
from crossknn.serve.http_errors import HttpError, error_response, not_ready
from crossknn.serve.middleware import RequestMiddleware
from crossknn.serve.service import Service

SPARE_CONNECTIONS: Final = 32  # beyond the limit, which get status 503; any more are closed at once
SPARE_SECONDS: Final = 1.0  # for one of them to send its headers, and for a refused client to hang up
ACCEPTS_PER_TURN: Final = 16  # connections that the event loop accepts before it does something else
RESERVED_FILES: Final = 192  # open files for the index, logs, spare connections and those just accepted
CHECK_SECONDS: Final = 0.5  # between two checks of a connection, at most
OPEN_FILES: Final = Path("/dev/fd")
MAX_HEADER_BYTES: Final = 65_536  # of a request, its first line included
MAX_PIPELINED_BYTES: Final = 1_048_576  # of requests that follow the one in progress


class ConnectionConfig(uvicorn.Config):
    """The configuration of an HTTP server whose connections have the limits of a service."""

    def __init__(self, service: Service, app: ASGIApp) -> None:
        settings = service.settings
        super().__init__(
            app,
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=ACCEPTS_PER_TURN,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_graceful_shutdown=max(1, round(settings.grace)),
        )
        self.count_ended = service.metrics.count_ended
        self.max_connections = connection_limit(settings.connections)
        self.overloaded = RequestMiddleware(_refuse_overload, settings=settings, metrics=service.metrics)
        self.seconds = {
            "headers": settings.header_timeout,
            "body": settings.body_timeout,
            "response": settings.write_timeout,
            "refused": SPARE_SECONDS,
        }


async def _refuse_overload(_: Scope, __: Receive, ___: Send) -> None:
    raise not_ready("too many connections.", close=True)


def connection_limit(wanted: int) -> int:
    """At most `wanted`, and no more than the process may open files beside those that the service needs."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are not files
        return wanted
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return wanted
    free = allowed - len(list(OPEN_FILES.iterdir())) - RESERVED_FILES
    if free < 1:
        needed = allowed - free + 1
        raise InputError(f"the limit of open files is {allowed}; the server needs {needed}. Raise it with `ulimit -n`.")
    return min(wanted, free)


class Connection(H11Protocol):
    """One connection, which ends if its client takes too long for a request's headers or body, or to read a response.

    The time of each counts from its beginning, whatever the client sends or reads meanwhile. While the app works on a
    request, no time counts.
    """

    config: ConnectionConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refused = False
        self._seconds = self.config.seconds
        excess = len(self.connections) - self.config.max_connections
        if excess > 0:
            self.config.count_ended("limit")
            self._seconds = self._seconds | {"headers": SPARE_SECONDS}
            self.app = self.config.overloaded
        if excess > SPARE_CONNECTIONS:
            transport.abort()
        self._check_seconds = min(CHECK_SECONDS, *(seconds / 4 for seconds in self._seconds.values()))
        self._stage = self._current_stage()
        self._stage_start = self.loop.time()
        self._check = self.loop.call_later(self._check_seconds, self._check_time)

    def connection_lost(self, exc: Exception | None) -> None:
        self._check.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > MAX_PIPELINED_BYTES:
            self.config.count_ended("invalid")
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are no request; uvicorn's method for it."""
        self.config.count_ended("invalid")
        received = self.conn.trailing_data[0]
        if len(received) <= MAX_HEADER_BYTES:
            self._refuse(HttpError(400, "bad_request", msg))
        elif b"\n" in received:
            self._refuse(HttpError(431, "too_large", f"the headers must have at most {MAX_HEADER_BYTES:,} bytes."))
        else:
            self._refuse(HttpError(414, "too_large", f"the URL must have at most {MAX_HEADER_BYTES:,} bytes."))

    def _check_time(self) -> None:
        """End the connection if its stage has lasted too long, and check again later."""
        stage, now = self._current_stage(), self.loop.time()
        if stage != self._stage:
            self._stage, self._stage_start = stage, now
        name, _ = stage
        if name is not None and now - self._stage_start > self._seconds[name]:
            self._end(name)
        self._check = self.loop.call_later(self._check_seconds, self._check_time)

    def _end(self, stage: str) -> None:
        """End a connection whose stage has lasted too long."""
        if stage == "refused":
            self.transport.abort()
            return
        self.config.count_ended(stage)
        if stage == "response":
            self.transport.abort()
        elif stage == "headers" and not self.conn.trailing_data[0]:
            self.transport.close()  # without a response: no request has begun
        else:
            self._refuse(HttpError(408, "timeout", f"the {stage} took longer than {self._seconds[stage]:g} seconds."))

    def _current_stage(self) -> tuple[str | None, object]:
        """What the client has to do, if anything, and the request that it belongs to."""
        if self._refused:
            return "refused", None
        if self.transport.get_write_buffer_size():
            return "response", self.cycle
        if self.conn.their_state is h11.SEND_BODY:
            return "body", self.cycle
        if self.conn.their_state is h11.IDLE:
            return "headers", self.cycle
        return None, self.cycle

    def _refuse(self, error: HttpError) -> None:
        """Respond in place of the app, unless a response has begun, and close the connection.

        What the client still sends is read for a while, as closing at once could take the response from it.
        """
        busy = self.cycle is not None and not self.cycle.response_complete
        if self.transport.is_closing() or (busy and self.cycle.response_started):
            self.transport.close()
            return
        response = error_response(error, uuid.uuid4().hex)
        head = [f"HTTP/1.1 {error.status_code} {HTTPStatus(error.status_code).phrase}".encode()]
        head += [name + b": " + value for name, value in (*response.raw_headers, (b"connection", b"close"))]
        self.transport.write(b"\r\n".join([*head, b"", bytes(response.body)]))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._refused = True
        if busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
