"""The HTTP server of a service: sockets, startup, signals and graceful shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn

from crossknn.errors import InputError
from crossknn.serve.app import make_app
from crossknn.serve.connection import ConnectionConfig
from crossknn.serve.monitoring import LoopErrors
from crossknn.serve.service import Service

BACKLOG = 2048  # connections that may wait to be accepted
CANCEL_SECONDS = 0.5  # for the responses of cancelled requests


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on this address, so that no other server can; port 0 picks a free one.

    Connections wait until the server runs.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        raise InputError(
            f"the address {host}:{port} cannot be used ({error.strerror or error}). Choose another `host` or `port`."
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    host: str = bound.getsockname()[0]
    return host == "::1" or host.startswith("127.")


class Server(uvicorn.Server):
    """The HTTP server of a service, for `run(sockets=[…])`; `on_start` is called once it accepts connections."""

    def __init__(self, service: Service, *, on_start: Callable[[], None] = lambda: None) -> None:
        super().__init__(ConnectionConfig(service, make_app(service)))
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio's own backlog limits its accepts per turn, too
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.server_state.tasks:  # cancelled at the end of the grace period
            await asyncio.wait(self.server_state.tasks, timeout=CANCEL_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def run(service: Service, bound: socket.socket, *, on_start: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, with a graceful shutdown. SIGHUP checks for a newer index."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again after a clean shutdown
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: service.watcher.wake())
    Server(service, on_start=on_start).run(sockets=[bound])
