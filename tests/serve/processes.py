"""Servers in processes of their own, and connections to them."""

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO


@dataclass
class ServerProcess:
    process: subprocess.Popen
    url: str
    log: TextIO

    def stop(self) -> list[dict[str, Any]]:
        """End the server with SIGTERM; the lines of its log, which are all JSON."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        self.log.seek(0)
        return [json.loads(line) for line in self.log]


@contextmanager
def slow_server(seconds=0.0, *, files=None, **settings) -> Iterator[ServerProcess]:
    """A server whose scorer takes `seconds` per batch, and which may open so many files."""
    command = [sys.executable, "-m", "tests.serve.slow_server", str(seconds), json.dumps(settings)]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield ServerProcess(process, process.stdout.readline().strip(), log)
        finally:
            process.kill()


def connect(url) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def read_all(connection) -> bytes:
    """What the server sends until it closes the connection."""
    received = b""
    try:
        while data := connection.recv(65_536):
            received += data
    except ConnectionResetError:
        pass
    return received
