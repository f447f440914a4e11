"""Commands that are killed at any moment, and run again."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import crossknn as ck
from benchmarks.faults.commands import Conditions, Outcome, run
from benchmarks.faults.report import Report, expect
from benchmarks.faults.world import BUDGET, CHUNK, MODELS, TAUGHT, World, content, copy, work_of
from crossknn.storage.atomic_dir import MANIFEST

KILLS = {"build": 24, "teach": 24, "save": 20, "add": 20, "learn": 20, "cache": 20}
MAX_DELAY = 0.03  # seconds between a step and the kill; half of the kills come at once
FEW = 8  # lists to learn from, so few that none is held out: what was learned is always used
STAGE_NUMBERS = itertools.count()
ENCODER = ("--teach", "--teach-lists", 4, "--teach-seconds", 600)


@dataclass
class Stage:
    """A command whose interruption is tried.

    Attributes:
        prepare: Makes what the command needs at this path.
        arguments: Of the command, for that path.
        watched: The folder whose files make the steps.
        done: The folder with the index that the command makes.
        repeatable: Whether a finished command, run again, does the same again.
    """

    world: World
    prepare: Callable[[Path], object]
    arguments: Callable[[Path], list[object]]
    watched: Callable[[Path], Path] = lambda path: path.parent
    done: Callable[[Path], Path] = lambda path: path
    repeatable: bool = True

    def __post_init__(self) -> None:
        self.number = next(STAGE_NUMBERS)
        path = self.new_path("undisturbed")
        self.before = self.content(path)
        self.whole = self.run(path)
        expect(self.whole.code == 0, f"the undisturbed command failed: {self.whole.errors}")
        self.after, self.hits = self.content(path), self.world.hits(self.done(path))
        self.pairs = set(self.whole.paid)

    def new_path(self, name: str) -> Path:
        folder = self.world.path(f"stage-{self.number}-{name}")
        folder.mkdir()
        self.prepare(folder / "index.ck")
        return folder / "index.ck"

    def run(self, path: Path, **conditions: float) -> Outcome:
        watched = self.watched(path)
        return run(self.arguments(path), self.world.logs, Conditions(watched=watched, **conditions))  # type: ignore[arg-type]

    def check_between(self, path: Path) -> None:
        """What is there after a fault is the old index or the new one, and whole."""
        if self.content(path) is not None:
            ck.Index.load(self.done(path)).verify()
        expect(self.content(path) in (self.before, self.after), "neither the old index nor the new one is there")

    def check_again(self, path: Path, *, hits: bool) -> Outcome:
        """The command, run again, ends with the index of the undisturbed one."""
        if not self.repeatable and self.content(path) == self.after:
            return Outcome(0, "", "", 0.0)
        again = self.run(path)
        expect(again.code == 0, f"the command failed when it was run again: {again.errors[-600:]}")
        expect(self.content(path) == self.after, "the index is another than that of the undisturbed command")
        ck.Index.load(self.done(path)).verify()
        if hits:
            expect(self.world.hits(self.done(path)) == self.hits, "other hits than in the undisturbed index")
        expect(max(again.paid.values(), default=1) == 1, "a pair was scored twice in one run")
        expect(set(again.paid) <= self.pairs, "pairs were scored that the undisturbed command did not score")
        return again

    def content(self, path: Path) -> dict[str, str] | None:
        return content(self.done(path)) if (self.done(path) / MANIFEST).exists() else None


def try_kills(report: Report, world: World) -> None:
    for name, make in STAGES.items():
        if name == "teach the encoder" and world.quick:
            continue
        stage = make(world)
        count = 2 if world.quick else KILLS.get(name, 6)
        report.try_all(name, kills(stage, random.Random(f"{world.seed} {name}"), count, hits=name != "save"))
    report.try_all(
        "cache", cache_kills(world, random.Random(f"{world.seed} cache"), 2 if world.quick else KILLS["cache"])
    )


def kills(stage: Stage, moments: random.Random, count: int, *, hits: bool) -> Iterator[Callable[[], str | None]]:
    """Kills spread over the steps of the command, half of them some time after a step."""
    steps = len(stage.whole.steps)
    for number in range(count):
        step = 1 + int(steps * (number + moments.random()) / count)
        delay = moments.uniform(0, MAX_DELAY) if number % 2 else 0.0
        yield lambda number=number, step=step, delay=delay: kill(stage, f"{number}", step, delay, hits=hits)


def kill(stage: Stage, name: str, step: int, delay: float, *, hits: bool) -> str | None:
    path = stage.new_path(name)
    killed = stage.run(path, kill_at=step, delay=delay)
    expect(killed.code == -9, f"the command ended with {killed.code} before it was killed: {killed.errors[-300:]}")
    stage.check_between(path)
    again = stage.check_again(path, hits=hits)
    twice = len(set(again.paid) & set(killed.paid))
    expect(twice <= CHUNK, f"{twice} pairs were paid twice, more than a chunk of {CHUNK}")
    expect(set(again.paid) | set(killed.paid) == stage.pairs or not again.calls, "some pairs were never scored")
    shutil.rmtree(path.parent)
    return "some pairs of one chunk paid twice" if twice else "nothing paid twice"


def _build(world: World, *options: object) -> Stage:
    return Stage(world, lambda _: None, lambda path: world.build(path, *options))


def _save(world: World) -> Stage:
    """An index replaces another; everything it is made of is in the work folder."""
    source, older = world.built("plain"), world.path("older.ck")
    if not older.exists():
        shutil.copytree(source, older)
        removed = ck.Index.load(older).items.ids[:20]
        expect(run(["remove", older, *removed], world.logs).code == 0, "remove failed")

    def prepare(path: Path) -> None:
        shutil.copytree(older, path)
        shutil.copytree(work_of(source), work_of(path))

    return Stage(world, prepare, lambda path: world.build(path), watched=lambda path: path)


def _add(world: World) -> Stage:
    source = world.built("plain")
    arguments = [world.path("more.jsonl"), *MODELS, "--per-item", 4, "--chunk", CHUNK]
    return Stage(world, lambda path: copy(source, path), lambda path: ["add", path, *arguments], repeatable=False)


def _learn(world: World) -> Stage:
    source = world.built("taught-by-few", *TAUGHT, "--teach-lists", FEW)

    def done(path: Path) -> Path:
        return path.with_name("learned.ck")

    def arguments(path: Path) -> list[object]:
        return ["learn", path, *MODELS, "--scores", work_of(path), "--chunk", CHUNK, "-o", done(path)]

    return Stage(world, lambda path: copy(source, path), arguments, done=done, repeatable=False)


STAGES: dict[str, Callable[[World], Stage]] = {
    "build": _build,
    "teach": lambda world: _build(world, *TAUGHT),
    "teach the encoder": lambda world: _build(world, *ENCODER),
    "save": _save,
    "add": _add,
    "learn": _learn,
}


def cache_kills(world: World, moments: random.Random, count: int) -> Iterator[Callable[[], str | None]]:
    """Searches with --cache that are killed: what was committed is not paid again."""
    index, folder = world.built("plain"), world.path("caches")
    folder.mkdir()

    def search(cache: Path, **conditions: float) -> Outcome:
        options = ["--queries", world.path("test.txt"), "--budget", BUDGET, "--cache", cache, *MODELS, "--json"]
        return run(["search", index, *options], world.logs, Conditions(watched=folder, **conditions))  # type: ignore[arg-type]

    whole = search(folder / "whole.db")

    def trial(number: int, step: int, delay: float) -> str:
        cache = folder / f"{number}.db"
        killed, again = search(cache, kill_at=step, delay=delay), search(cache)
        expect(killed.code == -9, f"the command ended with {killed.code} before it was killed")
        expect(again.code == 0, f"the search failed when it was run again: {again.errors[-600:]}")
        expect(hits_of(again.output) == hits_of(whole.output), "other hits than in the undisturbed search")
        uncommitted = set(killed.calls[-1]) if killed.calls else set()
        twice = set(again.paid) & set(killed.paid)
        expect(twice <= uncommitted, f"{len(twice - uncommitted)} pairs of committed calls were paid twice")
        third = search(cache)
        expect(not third.calls, "pairs were scored though all are in the cache")
        return "the call in flight paid twice" if twice else "nothing paid twice"

    for number in range(count):
        step = 1 + int(len(whole.steps) * (number + moments.random()) / count)
        delay = moments.uniform(0, MAX_DELAY) if number % 2 else 0.0
        yield lambda number=number, step=step, delay=delay: trial(number, step, delay)


def hits_of(output: str) -> list[list[tuple[str, float]]]:
    """Ids and scores that `crossknn search --json` has printed."""
    found = [json.loads(line) for line in output.splitlines()]
    return [[(hit["id"], round(hit["score"], 4)) for hit in one["hits"]] for one in found]
