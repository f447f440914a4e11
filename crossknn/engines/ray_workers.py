"""A pool of Ray workers that each hold one model, and are replaced when they are lost."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self

from crossknn.errors import EngineError, InputError
from crossknn.types import Job, Result

MAX_LOSSES: Final = 3  # of workers, before a job is given up, or a slot of the pool where none could open the model
RESULTS_KEPT: Final = "All finished results are kept."

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerResources:
    """What one worker takes of its node, and how many such workers the cluster has room for."""

    cpus: float
    gpus: float
    max_workers: int


class ModelActor:
    """What runs in a worker's process."""

    def open(self, pickled: bytes, *, with_gpu: bool) -> str:
        """Open the model and return its fingerprint."""
        if not with_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides only those of other workers
        self._model = pickle.loads(pickled)  # noqa: S301 (from the process that started this one)
        return str(self._model.fingerprint)

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
    """Up to `size` workers with the same model, each with up to `in_flight` jobs.

    The jobs of a worker that is lost are handed out again, and another worker is started in its place.
    """

    def __init__(
        self, ray: Any, resources: WorkerResources, *, size: int, in_flight: int, start_timeout: float
    ) -> None:
        self._ray = ray
        options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "scheduling_strategy": "SPREAD"}
        self._with_gpu = resources.gpus > 0
        self._start_actor = ray.remote(ModelActor).options(**options, max_restarts=0, max_task_retries=0).remote
        self._size, self._in_flight, self._start_timeout = size, in_flight, start_timeout
        self._workers: list[_Worker] = []
        self._running: dict[Any, tuple[_Worker, Job | None]] = {}  # by reference to the result; None: opens its model
        self._waiting: deque[Job] = deque()
        self._losses: Counter[int] = Counter()  # by number of the job
        self._failures: list[int] = []  # of slots whose last worker was lost before it had opened the model
        self._ready_at = time.monotonic()  # when a worker with an open model was last seen
        errors = ray.exceptions
        self._lost_errors = (
            errors.RayActorError,
            errors.ObjectLostError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            self._kill(worker)

    def run(
        self, function: Callable[..., Result], pickled: bytes, fingerprint: str, jobs: Iterable[Job]
    ) -> Iterator[tuple[int, Result]]:
        """The number and the result of every job, as they are done."""
        model, remaining = self._ray.put(pickled), iter(jobs)
        while True:
            self._waiting.extend(islice(remaining, max(0, self._size * self._in_flight - self._unfinished)))
            if not self._unfinished:
                return
            while len(self._workers) < min(self._size, self._unfinished):
                self._start(model)
            self._hand_out(function)
            yield from self._collect(fingerprint)

    @property
    def _unfinished(self) -> int:
        """How many jobs were taken and are not done."""
        return len(self._waiting) + sum(worker.jobs for worker in self._workers)

    def _start(self, model: Any) -> None:
        worker = _Worker(self._start_actor(), failures=self._failures.pop() if self._failures else 0)
        self._workers.append(worker)
        self._running[worker.actor.open.remote(model, with_gpu=self._with_gpu)] = (worker, None)

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

    def _collect(self, fingerprint: str) -> Iterator[tuple[int, Any]]:
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
                _check_fingerprint(result, fingerprint)
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
            self._count_failure(worker, error)
        self._waiting.extendleft(reversed(jobs))
        logger.warning("a Ray worker was lost; its %d jobs run again (%s)", len(jobs), first_line(error))

    def _count_failure(self, worker: _Worker, error: Exception) -> None:
        """Go on with fewer workers where no worker of a slot can open the model; an error after the last slot."""
        if worker.failures + 1 < MAX_LOSSES:
            self._failures.append(worker.failures + 1)
            return
        self._size -= 1
        if not self._size:
            raise _given_up("Opening the model", error)

    def _kill(self, worker: _Worker) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)


def _check_fingerprint(found: str, expected: str) -> None:
    if found != expected:
        raise InputError(
            f"A worker opened another model than this process: its fingerprint is {found!r}, not {expected!r}. "
            "Put the same files on every node, and name the dtype if only some have a GPU."
        )


def _given_up(what: str, error: Exception) -> EngineError:
    return EngineError(
        f"{what} was given up after {MAX_LOSSES} Ray workers were lost, the last with: {first_line(error)} "
        f"Do workers have enough memory? {RESULTS_KEPT}"
    )


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
