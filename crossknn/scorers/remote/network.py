"""Connections for httpcore, each request on which has one deadline and a maximum number of bytes to receive."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, unquote

import httpcore

RECORD_BYTES = 2**14  # of TLS

Address = tuple[Any, ...]  # as `socket.getaddrinfo` returns it
Result = TypeVar("Result")


class RequestBounds:
    """What is left for the request in flight: seconds until its deadline, and bytes to receive."""

    def __init__(self) -> None:
        self.start(0.0, 0)

    def start(self, seconds: float, max_bytes: int) -> None:
        """Begin a request."""
        self._ends = time.monotonic() + seconds
        self._bytes_left = max_bytes
        self.sent = False  # whether any of it may have reached the server; on an event loop only

    def seconds_left(self) -> float:
        """More than 0, or `TimeoutError`."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        return left

    @property
    def exceeded(self) -> bool:
        """Whether the server has sent more than allowed."""
        return self._bytes_left < 0

    def count(self, received: int) -> None:
        """Count received bytes, or raise `OSError` if they are too many."""
        self._bytes_left -= received
        if self.exceeded:
            raise OSError("the response is too long")


class Channel(Protocol):
    """Bytes in and out; errors are `OSError`."""

    socket: socket.socket

    def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end."""

    def send(self, data: bytes) -> None:
        """Send all of it."""


class SocketChannel:
    """A socket that waits until the deadline at most, however often the other side sends a byte."""

    def __init__(self, connected: socket.socket, bounds: RequestBounds) -> None:
        self.socket = connected
        self._bounds = bounds

    def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end."""
        self.socket.settimeout(self._bounds.seconds_left())
        data = self.socket.recv(max_bytes)
        self._bounds.count(len(data))
        return data

    def send(self, data: bytes) -> None:
        """Send all of it."""
        rest = memoryview(data)
        while rest:
            self.socket.settimeout(self._bounds.seconds_left())
            rest = rest[self.socket.send(rest) :]


class TlsChannel:
    """TLS over another channel, which may be TLS itself: a proxy's."""

    def __init__(self, channel: Channel, context: ssl.SSLContext, host: str | None) -> None:
        self.socket = channel.socket
        self._channel = channel
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._run(self.tls.do_handshake)

    def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end."""
        with suppress(ssl.SSLEOFError):  # many servers hang up without a word; HTTP knows where a response ends
            return self._run(lambda: self.tls.read(max_bytes))
        return b""

    def send(self, data: bytes) -> None:
        """Send all of it."""
        for start in range(0, len(data), RECORD_BYTES):
            part = data[start : start + RECORD_BYTES]
            self._run(lambda part=part: self.tls.write(part))  # type: ignore[misc]

    def _run(self, step: Callable[[], Result]) -> Result:
        """Take a step of the protocol, and carry bytes to and fro until it is done."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._channel.send(self._outgoing.read())
                data = self._channel.receive(RECORD_BYTES)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                self._channel.send(self._outgoing.read())
                return result


class Stream(httpcore.NetworkStream):
    """A channel as httpcore uses it, whose timeouts for single steps give way to the deadline."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        """The next bytes; none at the end."""
        with httpcore_errors(httpcore.ReadTimeout, httpcore.ReadError):
            return self._channel.receive(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        """Send all of it."""
        with httpcore_errors(httpcore.WriteTimeout, httpcore.WriteError):
            self._channel.send(buffer)

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> Stream:
        """The same stream, encrypted."""
        with httpcore_errors(httpcore.ConnectTimeout, httpcore.ConnectError):
            try:
                return Stream(TlsChannel(self._channel, ssl_context, server_hostname))
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the socket."""
        self._channel.socket.close()

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for."""
        if info == "ssl_object":
            return getattr(self._channel, "tls", None)
        if info == "is_readable":  # while idle: the server has hung up
            return is_readable(self._channel.socket)
        return None


class Backend(httpcore.NetworkBackend):
    """Opens connections within the bounds of the request that needs them."""

    def __init__(self, bounds: RequestBounds) -> None:
        self._bounds = bounds

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> Stream:
        """A connection to the first address of the host that answers."""
        with httpcore_errors(httpcore.ConnectTimeout, httpcore.ConnectError):
            addresses = resolve(host, port, self._bounds.seconds_left())
            return Stream(SocketChannel(self._connect(addresses), self._bounds))

    def _connect(self, addresses: list[Address]) -> socket.socket:
        for left in range(len(addresses), 0, -1):
            family, kind, protocol, _, address = addresses[-left]
            connected = socket.socket(family, kind, protocol)
            try:
                connected.settimeout(self._bounds.seconds_left() / left)  # time for the others, too
                connected.connect(address)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except BaseException as error:
                connected.close()
                if left == 1 or not isinstance(error, OSError):
                    raise
            else:
                return connected
        raise OSError("the host has no address")


class AsyncStream(httpcore.AsyncNetworkStream):
    """A stream of an event loop that counts what it receives; the client keeps its deadline."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, bounds: RequestBounds) -> None:
        self._stream = stream
        self._bounds = bounds

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes; none at the end."""
        data = await self._stream.read(max_bytes, timeout)
        with httpcore_errors(httpcore.ReadTimeout, httpcore.ReadError):
            self._bounds.count(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it."""
        self._bounds.sent = True
        await self._stream.write(buffer, timeout)

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> AsyncStream:
        """The same stream, encrypted."""
        return AsyncStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._bounds)

    async def aclose(self) -> None:
        """Close the socket."""
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for."""
        return self._stream.get_extra_info(info)


class AsyncBackend(httpcore.AsyncNetworkBackend):
    """Opens connections of an event loop."""

    def __init__(self, bounds: RequestBounds) -> None:
        self._backend = httpcore.AnyIOBackend()
        self._bounds = bounds

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncStream:
        """A connection to the first address of the host that answers."""
        stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return AsyncStream(stream, self._bounds)


@contextmanager
def httpcore_errors(timeout: type[Exception], other: type[Exception]) -> Iterator[None]:
    """Raise httpcore's errors in the place of `TimeoutError` and `OSError`."""
    try:
        yield
    except TimeoutError as error:
        raise timeout(str(error)) from error
    except OSError as error:
        raise other(str(error)) from error


def resolve(host: str, port: int, seconds: float) -> list[Address]:
    """The addresses of a host, or `OSError`; a name server that is silent is not waited for longer."""
    found: Future[list[Address]] = Future()

    def look_up() -> None:
        try:
            found.set_result([*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)])
        except Exception as error:
            found.set_exception(error)

    Thread(target=look_up, daemon=True).start()
    return found.result(seconds)


def is_readable(sock: socket.socket) -> bool:
    """Whether bytes, or an end, are there to be read."""
    if sock.fileno() < 0:
        return True
    if hasattr(select, "poll"):  # `select` knows no file descriptor above 1,023
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def open_pool(
    proxy: SplitResult | None, context: ssl.SSLContext | None, bounds: RequestBounds, *, asynchronous: bool = False
) -> Any:
    """A pool of one kept connection, direct or through a proxy, each of whose requests is held to `bounds`."""
    backend, prefix = (AsyncBackend(bounds), "Async") if asynchronous else (Backend(bounds), "")
    settings: dict[str, Any] = {"ssl_context": context, "max_connections": 1, "network_backend": backend}
    if proxy is None:
        return getattr(httpcore, f"{prefix}ConnectionPool")(**settings)
    if proxy.username is not None:
        settings["proxy_auth"] = (unquote(proxy.username), unquote(proxy.password or ""))
    address = httpcore.URL(scheme=proxy.scheme, host=str(proxy.hostname), port=proxy.port, target="/")
    if proxy.scheme == "https":
        settings["proxy_ssl_context"] = ssl.create_default_context()
    kind = "SOCKSProxy" if proxy.scheme.startswith("socks") else "HTTPProxy"
    return getattr(httpcore, f"{prefix}{kind}")(proxy_url=address, **settings)
