"""The workers of a run on a Ray cluster: each holds one model, is handed jobs, and is replaced when it is lost."""

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

from crossknn.engines.ray import Room, first_line
from crossknn.errors import EngineError, InputError
from crossknn.types import Job, Result

LOSSES: Final = 3  # workers that a job may cost before it is given up, or a place in the crew before one can open
KEPT: Final = "Everything that was finished is kept."

logger = logging.getLogger(__name__)


class Worker:
    """What runs in a worker's process."""

    def open(self, pickled: bytes, *, with_gpu: bool) -> str:
        """Open the model and tell its fingerprint."""
        if not with_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides only those of other workers
        self._model = pickle.loads(pickled)  # noqa: S301 (of the process that started this one)
        return str(self._model.fingerprint)

    def work(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """One job."""
        return function(self._model, *arguments)


@dataclass(eq=False)
class _Member:
    """A worker as the crew sees it."""

    actor: Any
    failures: int  # workers that were lost in its place before they had opened the model
    ready: bool = False  # whether its model is open
    jobs: int = 0  # in flight


class Crew:
    """At most `size` workers with the same model, each with at most `in_flight` jobs: one it does, others that wait.

    Jobs of a worker that is lost are handed out again, and another worker is started in its place.
    """

    def __init__(self, ray: Any, room: Room, *, size: int, in_flight: int, start_timeout: float) -> None:
        self._ray = ray
        options = {"num_cpus": room.cpus, "num_gpus": room.gpus, "scheduling_strategy": "SPREAD"}
        self._with_gpu = room.gpus > 0
        self._hire = ray.remote(Worker).options(**options, max_restarts=0, max_task_retries=0).remote
        self._size, self._in_flight, self._start_timeout = size, in_flight, start_timeout
        self._members: list[_Member] = []
        self._doing: dict[Any, tuple[_Member, Job | None]] = {}  # by reference to the result; None: opening the model
        self._waiting: deque[Job] = deque()
        self._losses: Counter[int] = Counter()  # by number of the job
        self._failures: list[int] = []  # of places whose last worker was lost before it had opened the model
        self._ready_at = time.monotonic()  # when there last was a worker with an open model
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
        for member in self._members:
            self._end(member)

    def run(
        self, function: Callable[..., Result], pickled: bytes, fingerprint: str, jobs: Iterable[Job]
    ) -> Iterator[tuple[int, Result]]:
        """The number and the result of every job, as they are done."""
        model, left = self._ray.put(pickled), iter(jobs)
        while True:
            self._waiting.extend(islice(left, max(0, self._size * self._in_flight - self._taken)))
            if not self._taken:
                return
            while len(self._members) < min(self._size, self._taken):
                self._start(model)
            self._hand_out(function)
            yield from self._collect(fingerprint)

    @property
    def _taken(self) -> int:
        """How many jobs were taken and are not done."""
        return len(self._waiting) + sum(member.jobs for member in self._members)

    def _start(self, model: Any) -> None:
        member = _Member(self._hire(), failures=self._failures.pop() if self._failures else 0)
        self._members.append(member)
        self._doing[member.actor.open.remote(model, with_gpu=self._with_gpu)] = (member, None)

    def _hand_out(self, function: Callable[..., Any]) -> None:
        """Give jobs to workers that have room for them, first to those that have least to do."""
        while self._waiting:
            free = [member for member in self._members if member.ready and member.jobs < self._in_flight]
            if not free:
                return
            member = min(free, key=lambda one: one.jobs)
            job = self._waiting.popleft()
            self._doing[member.actor.work.remote(function, *job[1])] = (member, job)
            member.jobs += 1

    def _collect(self, fingerprint: str) -> Iterator[tuple[int, Any]]:
        """What is done by now, at least one thing; an error comes after all results."""
        failure, lost = None, {}
        for reference in self._wait():
            member, job = self._doing[reference]
            try:
                result = self._ray.get(reference)
            except self._lost_errors as error:
                lost[member] = error
                continue
            except self._ray.exceptions.RayTaskError as error:
                failure = failure or error
                continue
            del self._doing[reference]
            if job is None:
                self._welcome(member, result, fingerprint)
            else:
                member.jobs -= 1
                yield job[0], result
        if failure is not None:
            raise failure.cause from failure
        for member, reason in lost.items():
            self._lose(member, reason)

    def _wait(self) -> list[Any]:
        """References to all results that are there, once there is one."""
        references, timeout = list(self._doing), None
        if any(member.ready for member in self._members):
            self._ready_at = time.monotonic()
        else:
            timeout = max(0.0, self._ready_at + self._start_timeout - time.monotonic())
        if not self._ray.wait(references, num_returns=1, timeout=timeout)[0]:
            free = {name: self._ray.available_resources().get(name, 0.0) for name in ("CPU", "GPU")}
            raise EngineError(
                f"no worker of the Ray cluster had opened its model after {self._start_timeout:g} seconds. Free now: "
                f"{free['CPU']:g} CPUs and {free['GPU']:g} GPUs. Wait until there is room, or give a larger "
                f"start_timeout if models take longer. {KEPT}"
            )
        found: list[Any] = self._ray.wait(references, num_returns=len(references), timeout=0)[0]
        return found

    def _welcome(self, member: _Member, found: str, wanted: str) -> None:
        if found != wanted:
            raise InputError(
                f"a worker opened another model than this process: its fingerprint is {found!r}, not {wanted!r}. "
                "Put the same files on every node, and name the dtype if only some have a GPU."
            )
        member.ready = True

    def _lose(self, member: _Member, error: Exception) -> None:
        """Take back the jobs of a worker that is gone; the next round starts another one."""
        self._end(member)
        self._members.remove(member)
        mine = {reference: job for reference, (who, job) in self._doing.items() if who is member}
        for reference in mine:
            del self._doing[reference]
        jobs = [job for job in mine.values() if job is not None]
        for number, _ in jobs:
            self._losses[number] += 1
            if self._losses[number] == LOSSES:
                raise _given_up(f"job {number}", error)
        if not member.ready:
            self._count_failure(member, error)
        self._waiting.extendleft(reversed(jobs))
        logger.warning(
            "a worker of the Ray cluster was lost; its %d jobs are done again (%s)", len(jobs), first_line(error)
        )

    def _count_failure(self, member: _Member, error: Exception) -> None:
        """Go on with fewer workers where one place cannot be filled; an error if that was the last."""
        if member.failures + 1 < LOSSES:
            self._failures.append(member.failures + 1)
            return
        self._size -= 1
        if not self._size:
            raise _given_up("opening the model", error)

    def _end(self, member: _Member) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(member.actor)


def _given_up(what: str, error: Exception) -> EngineError:
    return EngineError(
        f"{what} was given up after {LOSSES} workers of the Ray cluster were lost with it, the last like this: "
        f"{first_line(error)} Does a worker have memory enough? {KEPT}"
    )
