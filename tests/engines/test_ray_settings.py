"""Settings of a Ray engine, and clusters that cannot be reached; none is started here."""

import socket
import subprocess
import sys

import pytest

import crossknn as ck
from crossknn.engines.ray import RayEngine, find_resources
from crossknn.testing import MatrixScorer

SCORER = MatrixScorer([[1.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": ""}, '`address` must be HOST:PORT, "auto" or "local", got'),
        ({"workers": 0}, "`workers` must be a positive integer, got 0."),
        ({"in_flight": 0}, "`in_flight` must be a positive integer, got 0."),
        ({"cpus_per_worker": 0}, "`cpus_per_worker` must be a positive number, got 0."),
        ({"cpus_per_worker": 1.5}, "`cpus_per_worker` must be an integer if it is greater than 1, got 1.5."),
        ({"gpus_per_worker": -1}, "`gpus_per_worker` must be a positive number, got -1."),
        ({"start_timeout": "long"}, "`start_timeout` must be a positive number of seconds"),
        ({"connect_timeout": float("inf")}, "`connect_timeout` must be a positive number of seconds"),
    ],
)
def test_settings_are_checked_when_made(options, message):
    with pytest.raises(ck.InputError, match=message):
        RayEngine(**options)


@pytest.fixture
def silent_port():
    """A port where something listens that is no Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:{port}", r"No Ray cluster could be reached at 127.0.0.1:\d+ \(no answer within 4 seconds\). Start"),
        ("nonsense", "No Ray cluster could be reached at nonsense .*nonsense"),
        ("ray://127.0.0.1:10001", "`address` must be HOST:PORT of a cluster that this machine is part of, got 'ray://"),
    ],
)
def test_a_cluster_that_is_not_there_is_an_error_soon(address, message, silent_port):
    timeout = 60 if address == "nonsense" else 4  # Ray's own answer may come late on a busy machine
    engine = RayEngine(address=address.format(port=silent_port), connect_timeout=timeout)
    with pytest.raises(ck.InputError, match=message):
        engine.check(SCORER)


class Nodes:
    """The nodes of a cluster."""

    def __init__(self, *resources):
        self._nodes = [{"Alive": True, "Resources": one} for one in resources]

    def nodes(self):
        return [*self._nodes, {"Alive": False, "Resources": {"CPU": 1000, "GPU": 1000}}]


@pytest.mark.parametrize(
    ("cpus", "gpus", "found"),
    [
        (0.5, None, (1, 6)),  # a worker for each GPU
        (0.5, 0.5, (0.5, 12)),
        (4, 1, (1, 4)),  # the second node has CPUs for two only
        (0.5, 0, (0, 25)),  # a worker for each CPU
        (4, 0, (0, 6)),
    ],
)
def test_workers_per_node(cpus, gpus, found):
    nodes = Nodes({"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 4}, {"CPU": 1}, {})
    resources = find_resources(nodes, cpus=cpus, gpus=gpus)
    assert (resources.cpus, resources.gpus, resources.max_workers) == (cpus, *found)


def test_without_gpus_none_are_reserved():
    assert find_resources(Nodes({"CPU": 2}), cpus=0.5, gpus=None).gpus == 0


def test_without_ray_the_error_says_what_to_install():
    code = "import sys; sys.modules['ray'] = None\nimport crossknn as ck\nck.RayEngine()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtra: ray could not be imported" in done.stderr
    assert done.stderr.strip().endswith("pip install 'crossknn[ray]'")
