"""Two writers at once, and readers and servers beside a writer."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import crossknn as ck
from benchmarks.faults.commands import Conditions, Running, run, start
from benchmarks.faults.kills import hits_of
from benchmarks.faults.report import Report, expect
from benchmarks.faults.services import ask, hits_in, same, serving, stop
from benchmarks.faults.world import BUDGET, MODELS, World, content, copy, work_of
from crossknn.errors import InputError


def try_writers(report: Report, world: World) -> None:
    times = 1 if world.quick else 4
    kinds: dict[str, Callable[[World, int], str | None]] = {
        "two builds of one index": two_builds,
        "three workers of a build, one killed": three_workers,
        "two additions to one index": two_additions,
        "two searches with one cache": two_searches,
        "readers beside a build": readers_beside_a_build,
        "a server beside a build": server_beside_a_build,
    }
    for name, trial in kinds.items():
        report.try_all(name, [partial(trial, world, number) for number in range(times)])


def two_builds(world: World, number: int) -> str | None:
    folder, whole = world.path(f"two-builds-{number}.ck"), content(world.built("plain"))
    both = [start(world.build(folder), world.logs) for _ in range(2)]
    outcomes = [one.finish() for one in both]
    for outcome in outcomes:
        expect(outcome.code == 0, f"a build ended with {outcome.code}: {outcome.errors[-300:]}")
    expect(content(folder) == whole, "the index is another than that of one build")
    ck.Index.load(folder).verify()
    return None


def three_workers(world: World, number: int) -> str | None:
    folder, whole = world.path(f"workers-{number}.ck"), content(world.built("plain"))
    kill = Conditions(watched=world.folder, kill_at=5 + 4 * number)
    three = [
        start([*world.build(folder), "--worker", f"{part}/3"], world.logs, kill if part == 2 else Conditions())
        for part in (1, 2, 3)
    ]
    codes = [one.finish().code for one in three]
    expect(codes == [0, -9, 0], f"the workers ended with {codes}")
    last = run(world.build(folder), world.logs)
    expect(last.code == 0, f"the build failed: {last.errors[-300:]}")
    expect(content(folder) == whole, "the index is another than that of one build")
    return None


def two_additions(world: World, number: int) -> str:
    """Both are in the index, or the one that is not was told so."""
    folder = copy(world.built("plain"), world.path(f"two-additions-{number}.ck"))
    before, rows = len(ck.Index.load(folder).items), world.path("more.jsonl").read_text().splitlines(keepends=True)
    parts = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    both = []
    for place, part in enumerate(parts):
        path = world.path(f"more-{number}-{place}.jsonl")
        path.write_text("".join(part))
        both.append(start(["add", folder, path, *MODELS], world.logs))
    outcomes = [one.finish() for one in both]
    index = ck.Index.load(folder)
    index.verify()
    found = set(index.items.ids)
    for part, outcome in zip(parts, outcomes, strict=True):
        ids = {json.loads(row)["_id"] for row in part}
        expect(outcome.code in (0, 2), f"an addition ended with {outcome.code}: {outcome.errors[-300:]}")
        expect(outcome.code == 2 or ids <= found, "an addition ended well, and its items are not there")
    added = sum(outcome.code == 0 for outcome in outcomes)
    expect(
        added > 0
        and len(index.items)
        == before + sum(len(part) for part, outcome in zip(parts, outcomes, strict=True) if outcome.code == 0),
        "the index has other items than those that were added",
    )
    return "both added" if added == 2 else "one refused"


def two_searches(world: World, number: int) -> str | None:
    cache = world.path(f"shared-{number}.db")
    options = ["--queries", world.path("test.txt"), "--budget", BUDGET, "--cache", cache, *MODELS, "--json"]
    search = ["search", world.built("plain"), *options]
    both = [start(search, world.logs) for _ in range(2)]
    outcomes = [one.finish() for one in both]
    last = run(search, world.logs)
    for outcome in (*outcomes, last):
        expect(outcome.code == 0, f"a search ended with {outcome.code}: {outcome.errors[-300:]}")
        expect(hits_of(outcome.output) == hits_of(last.output), "the searches found different hits")
    expect(not last.calls, "pairs were scored though all are in the cache")
    return None


def _replaced(world: World, name: str) -> tuple[Path, Path]:
    """An older index, fewer items, in a folder that a build is about to replace; and a copy of it."""
    source, folder, older = world.built("plain"), world.path(f"{name}.ck"), world.path(f"{name}-older.ck")
    shutil.copytree(source, older)
    run(["remove", older, *ck.Index.load(source).items.ids[:20]], world.logs)
    shutil.copytree(older, folder)
    shutil.copytree(work_of(source), work_of(folder))
    return folder, older


def readers_beside_a_build(world: World, number: int) -> str:
    """A reader finds the old hits or the new ones; verification reads either, or says that it was replaced."""
    folder, older = _replaced(world, f"readers-{number}")
    answers = [world.hits(older), world.hits(world.built("plain"))]
    looks, refused, ended = 0, 0, threading.Event()

    def verify() -> None:
        nonlocal looks, refused
        while not ended.is_set():
            looks += 1
            try:
                ck.Index.load(folder).verify()
            except InputError as error:
                expect("replaced" in str(error), f"verification of a whole index: {error}")
                refused += 1

    with_errors = _Thread(verify)
    builds: list[Running] = []
    for _ in range(3):
        builds.append(start(world.build(folder), world.logs))
        while builds[-1].process.is_alive():
            expect(world.hits(folder) in answers, "neither the old hits nor the new ones")
        expect(builds[-1].finish().code == 0, "the build failed")
        expect(world.hits(folder) == answers[1], "not the new hits after the build")
    ended.set()
    with_errors.finish()
    return "read" if not refused else "read, or told that it was replaced"


def server_beside_a_build(world: World, number: int) -> str | None:
    """A server answers every request, from the old index or the new one, and then from the new one."""
    folder, older = _replaced(world, f"server-{number}")
    answers = [world.hits(older), world.hits(world.built("plain"))]
    with serving(world, folder, "--poll", 0.2) as (url, running):
        building = start(world.build(folder), world.logs)
        ends = None
        while ends is None or time.monotonic() < ends:
            for place, query in enumerate(world.queries):
                found = hits_in(ask(url, query))
                expect(any(same(found, known[place]) for known in answers), "neither the old hits nor the new ones")
            if ends is None and not building.process.is_alive():
                expect(building.finish().code == 0, "the build failed")
                ends = time.monotonic() + 3
        for place, query in enumerate(world.queries):
            expect(same(hits_in(ask(url, query)), answers[1][place]), "not the new hits after the build")
        stop(running, within=20)
    return None


class _Thread:
    """A thread whose error is raised by `finish`."""

    def __init__(self, target: Callable[[], None]) -> None:
        self._error: Exception | None = None

        def work() -> None:
            try:
                target()
            except Exception as error:
                self._error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
