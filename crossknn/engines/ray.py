"""The engine that runs jobs on the workers of a Ray cluster, and the connection to the cluster."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from crossknn._checks import check_number, check_positive, invalid
from crossknn._imports import import_extra
from crossknn.engines.ray_workers import WorkerPool, WorkerResources, first_line
from crossknn.errors import InputError
from crossknn.types import Encoder, Job, Model, Result, Scorer

START_CLUSTER: Final = (
    "Start one with `ray start --head` and give its address, or leave the address out to use this machine alone."
)
_connected: dict[str | None, str] = {}  # clusters this process connected to: the address given, and Ray's own


@dataclass(frozen=True)
class RayEngine:
    """Workers on the nodes of a Ray cluster, each with its own model; this process hands out jobs and writes all files.

    Args:
        address: HOST:PORT of a cluster that this machine is part of; "auto" for one that was started here, "local" for
            a new one on this machine alone. By default the cluster that this process is connected to, that of
            RAY_ADDRESS, one that was started here, or a new one.
        workers: The maximum number; by default one for each GPU of the cluster, or without GPUs for each CPU.
        cpus_per_worker: What Ray reserves for each, and from 1 on its number of threads. Below 1, a worker for each
            CPU leaves room for other work.
        gpus_per_worker: By default 1 where the cluster has GPUs. With 0.5, two workers share a GPU.
        in_flight: Jobs that each worker has at a time: one that runs, and others whose texts have arrived already.
        start_timeout: Seconds to wait while no worker has opened its model.
        connect_timeout: Seconds to wait for an answer from `address`.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_worker: float = 0.5
    gpus_per_worker: float | None = None
    in_flight: int = 2
    start_timeout: float = 300.0
    connect_timeout: float = 20.0

    def __post_init__(self) -> None:
        import_extra("ray", extra="ray")
        if self.address is not None and (not isinstance(self.address, str) or not self.address):
            raise invalid("address", 'HOST:PORT, "auto" or "local"', self.address)
        if self.workers is not None:
            check_positive("workers", self.workers)
        check_positive("in_flight", self.in_flight)
        check_number("start_timeout", self.start_timeout)
        check_number("connect_timeout", self.connect_timeout)
        _check_share("cpus_per_worker", self.cpus_per_worker)
        if self.gpus_per_worker:
            _check_share("gpus_per_worker", self.gpus_per_worker)

    def check(self, *models: Scorer | Encoder) -> None:
        """An error unless the cluster is reachable, has room for a worker, and these models can be sent to it."""
        ray, _ = self.connect()
        for model in models:
            _pickle(ray, model)

    def run(
        self, function: Callable[..., Result], model: Model, jobs: Iterable[Job]
    ) -> Generator[tuple[int, Result], None, None]:
        """The number and the result of every job, as they are done; without jobs no worker is started."""
        remaining = iter(jobs)
        first = next(remaining, None)
        if first is None:
            return
        ray, resources = self.connect()
        pickled, size = _pickle(ray, model), self.workers or resources.max_workers
        with WorkerPool(ray, resources, size=size, in_flight=self.in_flight, start_timeout=self.start_timeout) as pool:
            yield from pool.run(function, pickled, model.fingerprint, chain([first], remaining))

    def connect(self) -> tuple[Any, WorkerResources]:
        """The module `ray`, connected to the cluster, and the resources of a worker."""
        ray = _connect(self.address, timeout=self.connect_timeout)
        return ray, find_resources(ray, cpus=self.cpus_per_worker, gpus=self.gpus_per_worker)


def _check_share(name: str, value: float) -> None:
    check_number(name, value)
    if value > 1 and value != int(value):
        raise invalid(name, "an integer if it is greater than 1", value)


def _pickle(ray: Any, model: Scorer | Encoder) -> bytes:
    try:
        return bytes(ray.cloudpickle.dumps(model))
    except Exception as error:  # whatever an object's own methods raise
        raise InputError(
            f"{type(model).__name__} cannot be sent to the workers of a Ray cluster, since it cannot be pickled "
            f"({error}). Give it a __reduce__ that opens it there, or build without this engine."
        ) from error


def _connect(address: str | None, *, timeout: float) -> Any:
    """The module `ray`, connected to a cluster."""
    ray = import_extra("ray", extra="ray")
    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", connected) and _connected.get(address) != connected:
            raise InputError(
                f"This process is connected to the Ray cluster at {connected} already, not to {address!r}. "
                "Leave `address` out, or call ray.shutdown() first."
            )
        return ray
    target = address or os.environ.get("RAY_ADDRESS")
    if target not in (None, "auto", "local"):
        _check_reachable(target, timeout)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here
    try:
        ray.init(address=target, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise InputError(
            f"No Ray cluster could be reached or started ({first_line(error)}). {START_CLUSTER}"
        ) from error
    _connected[address] = ray.get_runtime_context().gcs_address
    return ray


def _check_reachable(address: str, timeout: float) -> None:
    """An error unless a cluster answers soon: Ray itself tries for minutes."""
    if "://" in address:
        hint = "Run `ray start --address HOST:PORT` here first, or build on a machine of the cluster."
        raise invalid("address", "HOST:PORT of a cluster that this machine is part of", address, hint)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)  # noqa: S603
        if not done.returncode:
            return
        reason = "".join((done.stderr or done.stdout).strip().splitlines()[-1:])
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout:g} seconds"
    raise InputError(f"No Ray cluster could be reached at {address} ({reason}). {START_CLUSTER}")


def find_resources(ray: Any, *, cpus: float, gpus: float | None) -> WorkerResources:
    """Room for one worker per GPU, or without GPUs per CPU; an error if there is none."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if gpus is None:
        gpus = 1.0 if any(node.get("GPU", 0) >= 1 for node in nodes) else 0.0
    workers = sum(_count_workers(node, cpus, gpus) for node in nodes)
    if not workers:
        found = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise InputError(
            f"No node of the Ray cluster has the {cpus:g} CPUs and {gpus:g} GPUs of a worker. The nodes have {found}. "
            "Lower `cpus_per_worker` and `gpus_per_worker`, or start larger nodes."
        )
    return WorkerResources(cpus, gpus, workers)


def _count_workers(node: Mapping[str, float], cpus: float, gpus: float) -> int:
    node_cpus, node_gpus = node.get("CPU", 0.0), node.get("GPU", 0.0)
    if node_cpus < cpus or node_gpus < gpus:
        return 0
    if gpus:
        return int(min(node_gpus / gpus, node_cpus / cpus))
    return max(1, int(node_cpus / max(1.0, cpus)))
