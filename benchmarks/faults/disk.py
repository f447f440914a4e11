"""Disks that are full or read-only at every stage, and output that cannot be written."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import crossknn as ck
from benchmarks.faults.commands import Conditions, Outcome, run
from benchmarks.faults.kills import STAGES, Stage, hits_of
from benchmarks.faults.report import Report, expect
from benchmarks.faults.world import BUDGET, CHUNK, MODELS, World

TRIALS = 8  # for each stage
LARGE = 256 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


class Disk:
    """A small file system in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={LARGE}", "tmpfs", str(path))

    def fill(self, left: int) -> None:
        """Leave this many bytes free."""
        _mount("-o", f"remount,size={self._used() + left // PAGE * PAGE}", str(self.path))

    def free(self) -> None:
        _mount("-o", f"remount,rw,size={LARGE}", str(self.path))

    def make_read_only(self) -> None:
        _mount("-o", "remount,ro", str(self.path))

    def close(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)
        self.path.rmdir()

    def _used(self) -> int:
        found = os.statvfs(self.path)
        return (found.f_blocks - found.f_bfree) * found.f_frsize


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def disk(path: Path) -> Iterator[Disk]:
    made = Disk(path)
    try:
        yield made
    finally:
        made.close()


def can_mount(world: World) -> bool:
    try:
        with disk(world.path("probe")):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def try_disks(report: Report, world: World) -> None:
    stages = {name: STAGES[name](world) for name in ("build", "teach", "save", "add", "learn")}
    mounts = can_mount(world)
    for name, stage in stages.items():
        trials = full_trials if mounts else limited_trials
        report.try_all(f"full, {name}", trials(stage, random.Random(f"{world.seed} full {name}")))
    if mounts:
        report.try_all("full, cache", full_cache_trials(world))
        for name, stage in stages.items():
            report.try_all("read-only", [partial(read_only, stage, name)])
        report.try_all("read-only", [partial(read_only_searches, world)])
    else:
        report.skip("full, cache", "file systems cannot be mounted here")
        report.skip("read-only", "file systems cannot be mounted here")
    report.try_all("output that cannot be written", output_trials(world))


def full_trials(stage: Stage, moments: random.Random) -> Iterator[Callable[[], str]]:
    """Disks with too little room for what the command writes."""
    largest = _written(stage)
    count = 2 if stage.world.quick else TRIALS
    for number in range(count):
        left = int(largest * (number + moments.random()) / count)
        yield partial(full, stage, f"disk-{number}", left)


def _written(stage: Stage) -> int:
    """Bytes that the command needs at most: what is there at its end, twice."""
    path = stage.world.path(f"stage-{id(stage)}-undisturbed")
    return 2 * sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def full(stage: Stage, name: str, left: int) -> str:
    with disk(stage.world.path(f"{id(stage)}-{name}")) as small:
        path = small.path / "index.ck"
        stage.prepare(path)
        small.fill(left)
        refused = stage.run(path)
        if refused.code == 0:
            expect(stage.content(path) == stage.after, "the index is another than on a large disk")
            return "there was room"
        expect(refused.code == 2, f"{left} bytes left: the command ended with {refused.code}: {refused.errors[-400:]}")
        _check_sentence(refused)
        stage.check_between(path)
        leftovers = [file.name for file in stage.done(path).glob(".*.tmp")] if stage.done(path).is_dir() else []
        expect(not leftovers, f"{left} bytes left: the refused save has left {leftovers}")
        small.free()
        again = stage.check_again(path, hits=False)
        twice = len(set(again.paid) & set(refused.paid))
        expect(twice <= CHUNK, f"{left} bytes left: {twice} pairs were paid twice, more than a chunk of {CHUNK}")
    return "refused, then resumed"


def limited_trials(stage: Stage, moments: random.Random) -> Iterator[Callable[[], str]]:
    """Where no disk can be made: no file may be larger than some size."""
    count = 2 if stage.world.quick else TRIALS

    def trial(name: str, limit: int) -> str:
        path = stage.new_path(name)
        refused = stage.run(path, file_limit=limit)
        if refused.code == 0:
            return "there was room"
        expect(refused.code == 2, f"files of {limit} bytes: ended with {refused.code}: {refused.errors[-400:]}")
        _check_sentence(refused)
        stage.check_between(path)
        stage.check_again(path, hits=False)
        return "refused, then resumed"

    for number in range(count):
        limit = int(_written(stage) / 4 * (number + moments.random()) / count)
        yield partial(trial, f"limit-{number}", limit)


def full_cache_trials(world: World) -> Iterator[Callable[[], str]]:
    """A cache on a full disk: what was committed is kept."""
    index, count = world.built("plain"), 2 if world.quick else TRIALS // 2
    whole = _search(world, index, "--cache", world.path("whole.db"))

    def trial(number: int) -> str:
        with disk(world.path(f"cache-{number}")) as small:
            cache = small.path / "scores.db"
            small.fill(number * 2 * PAGE)
            refused = _search(world, index, "--cache", cache)
            if refused.code == 0:
                return "there was room"
            expect(refused.code == 2, f"the search ended with {refused.code}: {refused.errors[-400:]}")
            _check_sentence(refused)
            small.free()
            again = _search(world, index, "--cache", cache)
            expect(again.code == 0, f"the search failed with room: {again.errors[-400:]}")
            expect(hits_of(again.output) == hits_of(whole.output), "other hits than on a large disk")
            twice = set(again.paid) & set(refused.paid)
            expect(twice <= set(refused.calls[-1] if refused.calls else ()), "committed calls were paid twice")
        return "refused, then resumed"

    return (partial(trial, number) for number in range(count))


def read_only(stage: Stage, name: str) -> str:
    with disk(stage.world.path(f"{id(stage)}-read-only")) as medium:
        path = medium.path / "index.ck"
        stage.prepare(path)
        medium.make_read_only()
        refused = stage.run(path)
        expect(refused.code == 2, f"{name}: the command ended with {refused.code}: {refused.errors[-400:]}")
        _check_sentence(refused)
        expect(not refused.calls, f"{name}: pairs were scored before the folder was found to be read-only")
        medium.free()
        stage.check_between(path)
        stage.check_again(path, hits=False)
    return "refused, then done"


def read_only_searches(world: World) -> str:
    """Reading needs no writing."""
    source = world.built("plain")
    with disk(world.path("read-only")) as medium:
        folder = medium.path / "index.ck"
        shutil.copytree(source, folder)
        medium.make_read_only()
        for command in ("verify", "info"):
            expect(run([command, folder], world.logs).code == 0, f"`crossknn {command}` failed")
        ck.Index.load(folder).verify()
        found, known = _search(world, folder), _search(world, source)
        expect(found.code == 0, f"the search failed: {found.errors[-400:]}")
        expect(hits_of(found.output) == hits_of(known.output), "other hits from a read-only folder")
        refused = _search(world, folder, "--cache", medium.path / "scores.db")
        expect(refused.code == 2, f"a cache in a read-only folder: {refused.code}")
        _check_sentence(refused)
    return "read"


def output_trials(world: World) -> Iterator[Callable[[], None]]:
    index = world.built("plain")
    search: list[object] = ["search", index, world.queries[0], "--budget", 10, *MODELS]
    commands: list[list[object]] = [["info", index], ["verify", index], search, [*search, "--json"], ["--help"]]

    def trial(command: list[object]) -> None:
        outcome = run(command, world.logs, Conditions(output=Path("/dev/full")))
        expect(outcome.code not in (0, None), f"{command[0]}: ended with {outcome.code} though nothing was written")
        expect("Traceback" not in outcome.errors, f"{command[0]}: a traceback: {outcome.errors[-300:]}")

    return (partial(trial, command) for command in commands)


def _search(world: World, index: Path, *options: object) -> Outcome:
    given = ["--queries", world.path("test.txt"), "--budget", BUDGET, *options, *MODELS, "--json"]
    return run(["search", index, *given], world.logs)


def _check_sentence(refused: Outcome) -> None:
    expect("Traceback" not in refused.errors, f"a traceback: {refused.errors[-600:]}")
    expect("error: " in refused.errors, f"no sentence says what is wrong: {refused.errors[-300:]}")
