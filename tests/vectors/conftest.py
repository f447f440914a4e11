"""A PostgreSQL server for each module of tests that needs one."""

from collections.abc import Iterator

import pytest

from tests.vectors.postgres_server import Server


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
