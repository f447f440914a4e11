"""The command line in processes that are killed, starved or told another time.

Processes are forked from one that has imported everything and run nothing, so that each starts at once.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from secrets import token_hex
from typing import Any

from crossknn.cli import main
from crossknn.scorers.cross_encoder import CrossEncoder

TIMEOUT = 120.0  # seconds after which a command counts as hung
PRELOADED = ("torch", "sentence_transformers", "bm25s", "scipy.sparse", "pyarrow.parquet", "crossknn.search.searcher")

server = get_context("forkserver")
server.set_forkserver_preload([__name__, *PRELOADED, "crossknn.indexing.builder"])


@dataclass(frozen=True)
class Conditions:
    """What a command runs under."""

    watched: Path | None = None  # each touch of this folder is a step, as are syncs and calls of the scorer
    kill_at: int | None = None  # the step, from 1, at which the process is killed
    delay: float = 0.0  # seconds from that step to the kill
    file_limit: int | None = None  # bytes that a file may have
    open_files: int | None = None  # how many files and connections may be open
    output: Path | None = None  # where standard output goes
    clock_jumps: tuple[float, ...] = ()  # seconds that are added to the wall clock, in turn, at every look at it


UNDISTURBED = Conditions()


@dataclass
class Outcome:
    """What a command did."""

    code: int | None  # None: it hung
    output: str
    errors: str
    seconds: float
    steps: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)  # of the scorer: the keys of their pairs

    @property
    def paid(self) -> Counter[str]:
        """How often each pair was scored."""
        return Counter(pair for call in self.calls for pair in call)


def start(arguments: list[object], logs: Path, conditions: Conditions = UNDISTURBED) -> Running:
    """Begin a command; its output and what it did are kept in the folder `logs`."""
    return Running(arguments, logs, conditions)


def run(arguments: list[object], logs: Path, conditions: Conditions = UNDISTURBED) -> Outcome:
    """Run a command to its end, or to that of the process."""
    return start(arguments, logs, conditions).finish()


class Running:
    """A process with a command."""

    def __init__(self, arguments: list[object], logs: Path, conditions: Conditions) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._log, self._conditions, self._began = logs / token_hex(6), conditions, time.monotonic()
        self._notices, sender = server.Pipe(duplex=False)
        given = [str(argument) for argument in arguments]
        self.process = server.Process(target=_execute, args=(given, self._log, conditions, sender))
        self.process.start()
        sender.close()

    def wait_for(self, pattern: str, timeout: float = TIMEOUT) -> str:
        """What the pattern's group matches in the standard error of the command, once it is there."""
        ends = time.monotonic() + timeout
        while (found := re.search(pattern, self.errors)) is None:
            if not self.process.is_alive() or time.monotonic() > ends:
                raise RuntimeError(f"the command said no {pattern!r}: {self.errors[-600:]}")
            time.sleep(0.05)
        return found[1]

    @property
    def errors(self) -> str:
        """The standard error so far."""
        return self._read("err")

    def finish(self, timeout: float = TIMEOUT) -> Outcome:
        if self._conditions.kill_at is not None:
            wait([self._notices, self.process.sentinel], timeout)
            if self.process.is_alive():
                time.sleep(self._conditions.delay)
                self.process.kill()
        self.process.join(timeout)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        seconds = time.monotonic() - self._began
        lines = [line.split(" ", 1) for line in self._read("log").split("\n")[:-1]]
        steps = [rest for what, rest in lines if what == "step"]
        calls = [rest.split() for what, rest in lines if what == "call"]
        return Outcome(code, self._read("out"), self._read("err"), seconds, steps, calls)

    def _read(self, suffix: str) -> str:
        path = self._log.with_suffix(f".{suffix}")
        return path.read_text(errors="replace") if path.exists() else ""


def _execute(arguments: list[str], log: Path, conditions: Conditions, notices: Connection) -> None:
    """What the process does."""
    for number, path in ((1, conditions.output or log.with_suffix(".out")), (2, log.with_suffix(".err"))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = _Steps(os.open(log.with_suffix(".log"), os.O_WRONLY | os.O_CREAT), conditions, notices)
    steps.watch()
    if conditions.clock_jumps:
        _jump(conditions.clock_jumps)
    if conditions.file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (conditions.file_limit, resource.RLIM_INFINITY))
    if conditions.open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (conditions.open_files, conditions.open_files))
    sys.argv = ["crossknn", *arguments]
    try:
        main()
    finally:
        if conditions.kill_at is not None:  # it ended before that step, or before the kill came
            notices.send(0)
            time.sleep(TIMEOUT)


class _Steps:
    """Notes the steps of this process, and has it killed at one."""

    def __init__(self, log: int, conditions: Conditions, notices: Connection) -> None:
        self._log, self._conditions, self._notices, self._count = log, conditions, notices, 0

    def watch(self) -> None:
        sync, score = os.fsync, CrossEncoder.score

        def counted_sync(handle: Any) -> None:
            self._step("sync")
            sync(handle)

        def counted_score(scorer: Any, queries: Any, items: Any) -> Any:
            self._step("score")
            if sys._getframe(1).f_code.co_name != "measure":  # of the speed of a model of one's own, to estimate times
                self._note(f"call {' '.join(_key(*pair) for pair in zip(queries, items, strict=True))}")
            scores = score(scorer, queries, items)
            self._step("scored")
            return scores

        os.fsync, CrossEncoder.score = counted_sync, counted_score  # type: ignore[assignment, method-assign]
        if self._conditions.watched is not None:
            sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (event == "open" or event.startswith("os.")) and str(self._conditions.watched) in str(arguments[:1]):
            self._step(event)

    def _step(self, what: str) -> None:
        self._note(f"step {what}")
        self._count += 1
        if self._count == self._conditions.kill_at:
            if not self._conditions.delay:
                os.kill(os.getpid(), signal.SIGKILL)
            self._notices.send(self._count)

    def _note(self, line: str) -> None:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit[0] == resource.RLIM_INFINITY:
            os.write(self._log, f"{line}\n".encode())


def _jump(jumps: tuple[float, ...]) -> None:
    """Have the wall clock go to and fro."""
    now, looks = time.time, iter(range(sys.maxsize))

    def jumping() -> float:
        return now() + jumps[next(looks) % len(jumps)]

    time.time = jumping
    time.time_ns = lambda: int(jumping() * 1e9)


def _key(query: str, item: str) -> str:
    return blake2b(f"{query}\n{item}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
