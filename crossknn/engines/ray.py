"""The engine that lets the workers of a Ray cluster do the jobs of a build."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any

from crossknn._checks import check_positive
from crossknn._imports import import_extra
from crossknn.engines.ray import Room, connect, find_resources
from crossknn.engines.ray_workers import Crew
from crossknn.errors import InputError
from crossknn.types import Encoder, Job, Model, Result, Scorer


@dataclass(frozen=True)
class RayEngine:
    """Workers on the nodes of a Ray cluster, each with its own model; this process hands out jobs and writes all files.

    address          HOST:PORT of the cluster, which this machine must be part of; "auto" for one that was started here,
                     "local" for a new one on this machine alone. None: the one that this process is connected to, that
                     of RAY_ADDRESS, one that was started here, or a new one
    workers          how many, at most; None: one for each GPU of the cluster, or where it has none for each CPU
    cpus_per_worker  what Ray counts for each, and from 1 on how many threads it computes with. Below 1, a worker for
                     each CPU leaves room for other work
    gpus_per_worker  None: 1 where the cluster has GPUs. Half a GPU lets two workers share one
    in_flight        jobs that each worker has at once: one it does, and others whose texts have come already
    start_timeout    seconds to wait while no worker has opened its model
    connect_timeout  seconds to wait for an answer from `address`
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
            raise InputError(f'address must be HOST:PORT, "auto" or "local". Got {self.address!r} instead.')
        if self.workers is not None:
            check_positive("workers", self.workers)
        check_positive("in_flight", self.in_flight)
        for name in ("start_timeout", "connect_timeout"):
            _check_above_zero(name, getattr(self, name))
        _check_share("cpus_per_worker", self.cpus_per_worker)
        if self.gpus_per_worker:
            _check_share("gpus_per_worker", self.gpus_per_worker)

    def check(self, *models: Scorer | Encoder) -> None:
        """An error unless the cluster is there, has room for a worker, and these models can be sent to it."""
        ray, _ = self.connect()
        for model in models:
            _pickle(ray, model)

    def run(
        self, function: Callable[..., Result], model: Model, jobs: Iterable[Job]
    ) -> Generator[tuple[int, Result], None, None]:
        """The number and the result of every job, as they are done; without jobs no worker is started."""
        left = iter(jobs)
        first = next(left, None)
        if first is None:
            return
        ray, room = self.connect()
        pickled, size = _pickle(ray, model), self.workers or room.workers
        with Crew(ray, room, size=size, in_flight=self.in_flight, start_timeout=self.start_timeout) as crew:
            yield from crew.run(function, pickled, model.fingerprint, chain([first], left))

    def connect(self) -> tuple[Any, Room]:
        """The module `ray`, connected to the cluster, and its room for workers."""
        ray = connect(self.address, timeout=self.connect_timeout)
        return ray, find_resources(ray, cpus=self.cpus_per_worker, gpus=self.gpus_per_worker)


def _pickle(ray: Any, model: Scorer | Encoder) -> bytes:
    try:
        return bytes(ray.cloudpickle.dumps(model))
    except Exception as error:  # whatever an object's own methods raise
        raise InputError(
            f"{type(model).__name__} cannot be sent to the workers of a Ray cluster, since it cannot be pickled "
            f"({error}). Give it a __reduce__ that says how to open it there, or build without this engine."
        ) from error


def _check_above_zero(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise InputError(f"{name} must be a number above 0. Got {value!r} instead.")


def _check_share(name: str, value: float) -> None:
    _check_above_zero(name, value)
    if value > 1 and value != int(value):
        raise InputError(f"{name} must be a whole number if it is above 1. Got {value!r} instead.")
