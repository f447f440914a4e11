"""POST requests to one URL, over connections that stay open."""

from __future__ import annotations

import os
import ssl
import time
from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection, IncompleteRead
from socket import socket
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

ANSWER_BYTES = 2**26  # of an answer, at most
ERROR_BYTES = 2**14  # of what a server says about an error
PIECE_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered, cut where it is far too long."""

    status: int
    headers: Message
    body: bytes


class HttpPosts:
    """Posts to one URL from any number of threads, each on a connection of its own while it lasts.

    Redirects are not followed. Proxies come from the environment (`https_proxy`, `no_proxy`, …) and are never used
    for this machine itself.
    """

    def __init__(self, url: SplitResult, headers: Mapping[str, str], *, timeout: float) -> None:
        self._url = url
        self._headers = dict(headers)
        self._timeout = timeout
        self._proxy = _find_proxy(url)
        self._target = urlunsplit(("", "", url.path or "/", url.query, ""))
        if self._proxy is not None and url.scheme == "http":
            self._target = urlunsplit((url.scheme, url.netloc, url.path or "/", url.query, ""))
            self._headers |= _proxy_headers(self._proxy)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: deque[HTTPConnection] = deque()
        self._process = os.getpid()

    def post(self, body: bytes) -> Reply:
        """The answer, whatever its status; `OSError` or `HTTPException` where none came within the timeout."""
        connection = self._take()
        if connection.sock is not None:
            try:
                return self._exchange(connection, body)
            except (ConnectionResetError, BrokenPipeError):
                pass  # the server has closed it while it was idle: open another
        return self._exchange(connection, body)

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._take().close()

    def _take(self) -> HTTPConnection:
        if self._process != os.getpid():  # those of a parent process are not ours to use
            self._idle, self._process = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def _open(self) -> HTTPConnection:
        place = self._proxy or self._url
        host, port = str(place.hostname), place.port
        if self._tls is None:
            return HTTPConnection(host, port, timeout=self._timeout)
        connection = HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)
        if self._proxy is not None:
            connection.set_tunnel(str(self._url.hostname), self._url.port or 443, _proxy_headers(self._proxy))
        return connection

    def _exchange(self, connection: HTTPConnection, body: bytes) -> Reply:
        ends = time.monotonic() + self._timeout
        try:
            if connection.sock is not None:
                connection.sock.settimeout(self._timeout)
            connection.request("POST", self._target, body, self._headers)
            stream = connection.sock  # the connection forgets it where the server closes after its answer
            with connection.getresponse() as response:
                data, whole = _read(response, stream, ends)
        except BaseException:
            connection.close()
            raise
        if whole:
            self._idle.append(connection)
        else:
            connection.close()
        return Reply(response.status, response.headers, data)


def _read(response: HTTPResponse, stream: socket, ends: float) -> tuple[bytes, bool]:
    """The body, and whether it is whole; the time is that of all of it, not of each piece."""
    most = ANSWER_BYTES if response.status == 200 else ERROR_BYTES
    data = bytearray()
    while len(data) <= most:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        stream.settimeout(left)
        piece = response.read1(PIECE_BYTES)
        if not piece:
            if response.length:
                raise IncompleteRead(bytes(data[:PIECE_BYTES]), response.length)
            return bytes(data), True
        data += piece
    return bytes(data[:most]), False


def _find_proxy(url: SplitResult) -> SplitResult | None:
    host = str(url.hostname)
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    return urlsplit(found if "://" in found else f"http://{found}") if found else None


def is_loopback(host: str) -> bool:
    """Whether it is this machine itself."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"proxy-authorization": f"Basic {b64encode(login.encode()).decode()}"}
