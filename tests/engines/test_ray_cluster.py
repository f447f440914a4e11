"""Two Ray nodes on loopback: they build the index together, and one of them may die."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.world import CHUNK, World, wait_until
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux: addresses of loopback, /proc")
# A lost node is noticed within a second, not after half a minute.
FAST_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


class Node:
    """A Ray node with one CPU: `ray start` and all processes that come of it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder.with_suffix(".log")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        command += ["--object-store-memory=80000000", f"--temp-dir={folder}", *options]
        with self.log.open("wb") as log:
            environment = {**os.environ, **FAST_HEALTH_CHECKS}
            self.process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        wait_until(lambda: "Ray runtime started" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def pids(self) -> list[int]:
        """Its processes, children first."""
        return _descendants(self.process.pid)

    def kill(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _descendants(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*(one for child in children for one in _descendants(child)), pid]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return probe.getsockname()[1]


@pytest.fixture
def cluster(short_folder):
    """The address of a cluster, and its nodes: 127.0.0.2, the head, and 127.0.0.3."""
    address = f"127.0.0.2:{free_port()}"
    nodes = []
    try:
        port = address.rpartition(":")[2]
        head = ["--head", "--node-ip-address=127.0.0.2", f"--port={port}", "--include-dashboard=false"]
        nodes.append(Node(Path(short_folder, "h"), *head))
        nodes[0].wait()
        nodes.append(Node(Path(short_folder, "w"), f"--address={address}", "--node-ip-address=127.0.0.3"))
        nodes[1].wait()
        yield address, *nodes
    finally:
        for node in reversed(nodes):
            node.kill()


@pytest.fixture
def driver(cluster, tmp_path):
    """A build on both nodes, in a process of its own."""
    command = [sys.executable, "-m", "tests.engines.driver", cluster[0], tmp_path, str(4 * CHUNK)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_two_nodes_build_the_index_although_a_worker_and_then_a_node_are_killed(local, cluster, driver, tmp_path):
    world, (_, head, other) = World(tmp_path), cluster

    def on(node):
        return [pid for pid in dict.fromkeys(world.scoring_pids()) if pid in node.pids()]

    wait_until(lambda: len(world.scored()) == 6 * CHUNK)  # both workers are in the middle of a call
    assert (len(on(head)), len(on(other))) == (1, 1)
    os.kill(on(head)[0], signal.SIGKILL)
    wait_until(lambda: len(world.scored()) == 7 * CHUNK)  # another worker has taken its place
    assert (len(on(head)), len(on(other))) == (1, 1)  # there is no room for two on a node
    other.kill()
    world.release()
    _, output = driver.communicate(timeout=60)
    assert driver.returncode == 0, output
    assert output.count("a Ray worker was lost") == 2
    assert world.files() == local.files()
    assert world.scored_twice() == 2 * CHUNK  # what the two were scoring
