"""A small Ray on this machine, started once per file that wants it; it leaves nothing behind."""

import os
import secrets

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before anything imports Ray
os.environ.setdefault("RAY_worker_niceness", "0")  # or workers starve beside other tests
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))  # or it would be written to the home folder

import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.world import World


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A folder for Ray's sockets, whose paths may have 107 bytes only."""
    yield from _short_folder()


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """The module `ray`, connected to a cluster of one node with two CPUs."""
    import ray

    for folder in _short_folder():
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=80_000_000,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
        )
        yield ray
        ray.shutdown()


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> World:
    """What a build without an engine makes: all others must make the same."""
    world = World(tmp_path_factory.mktemp("local"))
    world.build()
    return world


def _short_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="ck-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
