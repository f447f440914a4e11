"""The Ray engine: the connection to a cluster, and a pool of workers that each hold one model."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from crossknn._checks import check_number, check_positive, check_seconds, invalid
from crossknn._imports import import_extra
from crossknn.errors import EngineError, InputError
from crossknn.types import Encoder, Job, Model, Result, Scorer

START_CLUSTER: Final = (
    "Start one with `ray start --head` and give its address, or leave the address out to use this machine alone."
)
MAX_LOSSES: Final = 3  # of workers, before a job is given up, or a slot of the pool where none could open the model
RESULTS_KEPT: Final = "All finished results are kept."
_connected: dict[str | None, str] = {}  # clusters this process connected to: the address given, and Ray's own

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerResources:
    """What one worker takes of its node, and how many such workers the cluster has room for."""

    cpus: float
    gpus: float
    max_workers: int


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
        check_seconds("start_timeout", self.start_timeout)
        check_seconds("connect_timeout", self.connect_timeout)
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
        if first is not None:
            yield from WorkerPool(self, model).run(function, chain([first], remaining))

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


class ModelActor:
    """What runs in a worker's process."""

    def open(self, pickled: bytes, fingerprint: str, *, with_gpu: bool) -> None:
        """Open the model, which must have this fingerprint."""
        if not with_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides only those of other workers
        self._model = pickle.loads(pickled)  # noqa: S301 (from the process that started this one)
        if (found := self._model.fingerprint) != fingerprint:
            raise InputError(
                f"A worker opened another model than this process: its fingerprint is {found!r}, not {fingerprint!r}. "
                "Put the same files on every node, and name the dtype if only some have a GPU."
            )

    def work(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run one job."""
        return function(self._model, *arguments)


@dataclass(eq=False)
class _Worker:
    """A worker as the pool sees it."""

    actor: Any
    failures: int  # workers lost in its slot before they had opened the model
    ready: bool = False  # whether its model is open
    jobs: int = 0  # in flight


class WorkerPool:
    """Workers of an engine with the same model.

    The jobs of a worker that is lost are handed out again, and another worker is started in its place.
    """

    def __init__(self, engine: RayEngine, model: Scorer | Encoder) -> None:
        self._ray, resources = engine.connect()
        self._pickled, self._fingerprint = self._ray.put(_pickle(self._ray, model)), model.fingerprint
        self._size = engine.workers or resources.max_workers
        self._in_flight, self._start_timeout = engine.in_flight, engine.start_timeout
        self._with_gpu = resources.gpus > 0
        options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "scheduling_strategy": "SPREAD"}
        options |= {"max_restarts": 0, "max_task_retries": 0}
        self._start_actor = self._ray.remote(ModelActor).options(**options).remote
        self._workers: list[_Worker] = []
        self._running: dict[Any, tuple[_Worker, Job | None]] = {}  # by reference to the result; None: opens its model
        self._waiting: deque[Job] = deque()
        self._losses: Counter[int] = Counter()  # by number of the job
        self._failures: list[int] = []  # of slots whose last worker was lost before it had opened the model
        self._ready_at = time.monotonic()  # when a worker with an open model was last seen
        errors = self._ray.exceptions
        self._lost_errors = (
            errors.RayActorError,
            errors.ObjectLostError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
        )

    def run(self, function: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        """The number and the result of every job, as they are done; then the workers are ended."""
        remaining = iter(jobs)
        try:
            while True:
                self._waiting.extend(islice(remaining, max(0, self._size * self._in_flight - self._unfinished)))
                if not self._unfinished:
                    return
                while len(self._workers) < min(self._size, self._unfinished):
                    self._start()
                self._hand_out(function)
                yield from self._collect()
        finally:
            for worker in self._workers:
                self._kill(worker)

    @property
    def _unfinished(self) -> int:
        """How many jobs were taken and are not done."""
        return len(self._waiting) + sum(worker.jobs for worker in self._workers)

    def _start(self) -> None:
        worker = _Worker(self._start_actor(), failures=self._failures.pop() if self._failures else 0)
        self._workers.append(worker)
        opened = worker.actor.open.remote(self._pickled, self._fingerprint, with_gpu=self._with_gpu)
        self._running[opened] = (worker, None)

    def _hand_out(self, function: Callable[..., Any]) -> None:
        """Give jobs to workers with room for them, first to those with the fewest."""
        while self._waiting:
            free = [worker for worker in self._workers if worker.ready and worker.jobs < self._in_flight]
            if not free:
                return
            worker = min(free, key=lambda one: one.jobs)
            job = self._waiting.popleft()
            self._running[worker.actor.work.remote(function, *job[1])] = (worker, job)
            worker.jobs += 1

    def _collect(self) -> Iterator[tuple[int, Any]]:
        """The results that have arrived, after waiting for one; errors are raised after all results."""
        failure, lost = None, {}
        for reference in self._wait():
            worker, job = self._running[reference]
            try:
                result = self._ray.get(reference)
            except self._lost_errors as error:
                lost[worker] = error
                continue
            except self._ray.exceptions.RayTaskError as error:
                failure = failure or error
                continue
            del self._running[reference]
            if job is None:
                worker.ready = True
            else:
                worker.jobs -= 1
                yield job[0], result
        if failure is not None:
            raise failure.cause from failure
        for worker, reason in lost.items():
            self._replace(worker, reason)

    def _wait(self) -> list[Any]:
        """References to all results that have arrived, once there is one."""
        references, timeout = list(self._running), None
        if any(worker.ready for worker in self._workers):
            self._ready_at = time.monotonic()
        else:
            timeout = max(0.0, self._ready_at + self._start_timeout - time.monotonic())
        if not self._ray.wait(references, num_returns=1, timeout=timeout)[0]:
            free = self._ray.available_resources()
            raise EngineError(
                f"No worker of the Ray cluster had opened its model after {self._start_timeout:g} seconds. Free now: "
                f"{free.get('CPU', 0.0):g} CPUs and {free.get('GPU', 0.0):g} GPUs. Wait until there is room, or raise "
                f"`start_timeout` if the model takes longer. {RESULTS_KEPT}"
            )
        found: list[Any] = self._ray.wait(references, num_returns=len(references), timeout=0)[0]
        return found

    def _replace(self, worker: _Worker, error: Exception) -> None:
        """Take back the jobs of a lost worker; the next round of `run` starts another one."""
        self._kill(worker)
        self._workers.remove(worker)
        lost = {reference: job for reference, (owner, job) in self._running.items() if owner is worker}
        for reference in lost:
            del self._running[reference]
        jobs = [job for job in lost.values() if job is not None]
        for number, _ in jobs:
            self._losses[number] += 1
            if self._losses[number] == MAX_LOSSES:
                raise _given_up(f"Job {number}", error)
        if not worker.ready:
            if worker.failures + 1 < MAX_LOSSES:
                self._failures.append(worker.failures + 1)
            else:  # no worker of this slot can open the model: go on with fewer slots
                self._size -= 1
                if not self._size:
                    raise _given_up("Opening the model", error)
        self._waiting.extendleft(reversed(jobs))
        logger.warning("a Ray worker was lost; its %d jobs run again (%s)", len(jobs), first_line(error))

    def _kill(self, worker: _Worker) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)


def _given_up(what: str, error: Exception) -> EngineError:
    return EngineError(
        f"{what} was given up after {MAX_LOSSES} Ray workers were lost, the last with: {first_line(error)} "
        f"Do workers have enough memory? {RESULTS_KEPT}"
    )


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
