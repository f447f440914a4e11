"""Server-sent events: the response to a request that is answered piece by piece from a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import Event
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from crossknn.serve.backpressure import ClientDisconnected
from crossknn.serve.http_errors import encode_json, error_content, http_error_of

EVENT_STREAM: Final = "text/event-stream"
Emit = Callable[[str, object], None]
"""Takes the name of an event and its data, from any thread."""


class EventStream(Response):
    """Sends the events of `work`, which runs in the service's queue.

    An event that could not be sent yet is replaced by the next one: each has all that is known. An error after the
    first event is an event itself; before it, a response as to any other request.

    Args:
        run: Runs work in the queue until it is done or the client has gone.
        work: Emits events until `cancelled` is set.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        run: Callable[[Callable[[Event], None]], Awaitable[None]],
        work: Callable[[Event, Emit], None],
        *,
        request_id: str,
    ) -> None:
        # A cache would keep what is new each time, and nginx would hold the events back.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._run, self._work, self._request_id = run, work, request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the events as they come."""
        self._loop, self._changed, self._unsent = asyncio.get_running_loop(), asyncio.Event(), b""
        running = asyncio.ensure_future(self._run(lambda cancelled: self._work(cancelled, self._emit)))
        running.add_done_callback(lambda _: self._changed.set())
        started = False
        try:
            async for event in self._events(running):
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    started = True
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await running
        except ClientDisconnected:
            raise
        except Exception as error:
            if started:
                event = format_event("error", error_content(http_error_of(error), self._request_id))
                await send({"type": "http.response.body", "body": event})
            raise
        else:
            await send({"type": "http.response.body", "body": b""})
        finally:
            running.cancel()

    async def _events(self, running: asyncio.Future[None]) -> AsyncIterator[bytes]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            event, self._unsent = self._unsent, b""
            if event:
                yield event
            if running.done() and not self._unsent:
                return

    def _emit(self, name: str, data: object) -> None:
        event = format_event(name, data)
        self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: bytes) -> None:
        self._unsent = event
        self._changed.set()


def format_event(name: str, data: object) -> bytes:
    """An event with JSON data, which has no line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + encode_json(data) + b"\n\n"
