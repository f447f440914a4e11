"""A wall clock that jumps by an hour, a day and years at every look at it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.faults.commands import Conditions, run
from benchmarks.faults.report import Report, expect
from benchmarks.faults.services import ask, hits_in, same, serving, stop
from benchmarks.faults.world import BUDGET, MODELS, TAUGHT, World, content, copy

DAY = 86_400.0
JUMPS = (0.0, 1.0, 3600.0, DAY, 2 * DAY, 365 * DAY, 3650 * DAY)
LATE = 20.0  # seconds that a command with a deadline may take in all, models included


def try_clocks(report: Report, world: World) -> None:
    times = 1 if world.quick else 4
    kinds: dict[str, Callable[[World, int, Conditions], None]] = {
        "build": partial(build, name="plain", options=()),
        "teach, with a time limit": partial(build, name="taught", options=(*TAUGHT, "--teach-seconds", 600)),
        "add": add,
        "search, with a far deadline": far_deadline,
        "search, with a near deadline": near_deadline,
        "serve": serve,
    }
    for name, trial in kinds.items():
        trials = [partial(trial, world, number, _jumping(world, f"{name} {number}")) for number in range(times)]
        report.try_all(name, trials)


def _jumping(world: World, name: str) -> Conditions:
    moments = random.Random(f"{world.seed} {name}")
    return Conditions(clock_jumps=tuple(moments.choice((-1, 1)) * moments.choice(JUMPS) for _ in range(11)))


def build(world: World, number: int, jumping: Conditions, *, name: str, options: tuple[object, ...]) -> None:
    whole = world.built(name, *(option for option in options if option not in ("--teach-seconds", 600)))
    folder = world.path(f"clock-{name}-{number}.ck")
    outcome = run(world.build(folder, *options), world.logs, jumping)
    expect(outcome.code == 0, f"the build ended with {outcome.code}: {outcome.errors[-300:]}")
    expect(content(folder) == content(whole), "the index is another than that of a steady clock")


def add(world: World, number: int, jumping: Conditions) -> None:
    folders = [copy(world.built("plain"), world.path(f"clock-add-{number}-{clock}.ck")) for clock in ("steady", "wild")]
    for folder, conditions in zip(folders, (Conditions(), jumping), strict=True):
        outcome = run(["add", folder, world.path("more.jsonl"), *MODELS], world.logs, conditions)
        expect(outcome.code == 0, f"the addition ended with {outcome.code}: {outcome.errors[-300:]}")
    expect(content(folders[0]) == content(folders[1]), "the index is another than that of a steady clock")


def _search(world: World, conditions: Conditions, *options: object) -> tuple[list[dict[str, object]], float]:
    given = ["--queries", world.path("test.txt"), *options, *MODELS, "--json"]
    outcome = run(["search", world.built("plain"), *given], world.logs, conditions)
    expect(outcome.code == 0, f"the search ended with {outcome.code}: {outcome.errors[-300:]}")
    return [json.loads(line) for line in outcome.output.splitlines()], outcome.seconds


def far_deadline(world: World, number: int, jumping: Conditions) -> None:
    found, _ = _search(world, jumping, "--budget", BUDGET, "--deadline", 600, "--cache", _cache(world, number))
    wanted, _ = _search(world, Conditions(), "--budget", BUDGET)
    expect(all(one["stopped"] is None for one in found), "a search was stopped before its deadline")
    for one, steady in zip(found, wanted, strict=True):
        expect(same(_pairs(one), _pairs(steady)), "other hits than with a steady clock")


def near_deadline(world: World, _: int, jumping: Conditions) -> None:
    found, seconds = _search(world, jumping, "--budget", 96, "--deadline", 0.05)
    expect(any(one["stopped"] == "deadline" for one in found), "no search was stopped by its deadline")
    expect(seconds < LATE, f"a search with a deadline of 0.05 seconds took {seconds:.1f}")


def serve(world: World, _: int, jumping: Conditions) -> None:
    hits = world.hits(world.built("plain"))
    with serving(world, world.built("plain"), "--poll", 0.2, conditions=jumping) as (url, running):
        for place, query in enumerate(world.queries * 2):
            found = hits_in(ask(url, query, deadline=50))
            expect(same(found, hits[place % len(hits)]), "other hits than with a steady clock")
        stop(running, within=20)


def _cache(world: World, number: int) -> Path:
    return world.path(f"clock-{number}.db")


def _pairs(found: dict[str, object]) -> list[tuple[str, float]]:
    hits: list[dict[str, object]] = found["hits"]  # type: ignore[assignment]
    return [(str(hit["id"]), float(hit["score"])) for hit in hits]  # type: ignore[arg-type]
