"""The cross-encoder calls of a benchmark on a dataset, counted before the first one is made."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crossknn.errors import InputError
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.contenders import VectorSource
from crossknn.evaluate.ground_truth import count_unscored
from crossknn.evaluate.studies import sources_of, study_builds
from crossknn.evaluate.tasks import EXACT_FOLDER, SPEED_PAIRS, Task
from crossknn.indexing.planner import CallCounter
from crossknn.storage.atomic import disk_errors, write_atomic

AGREED_FILE: Final = "agreed.json"  # in the work folder: the plan whose calls may be made without asking


@dataclass(frozen=True)
class CallPlan:
    """Calls of a benchmark.

    Attributes:
        task: With the scorer's speed, if it could be measured.
        exact: Calls of exact search for test queries, in all.
        dev: Calls of exact search for dev queries, in all.
        kept: Calls among these two whose scores the work folder has.
        indexes: Calls left to make for indexes, about: vectors and retrievers choose some pairs.
        sources: The item vectors that are learned, and "sampling" for the study.
    """

    task: Task
    exact: int
    dev: int
    kept: int
    indexes: int
    sources: tuple[str, ...]
    calls_per_item: int  # of these

    @property
    def to_make(self) -> int:
        """Calls left to make."""
        return self.exact + self.dev - self.kept + self.indexes

    @property
    def seconds(self) -> float | None:
        """In the scorer, for the calls left to make; None where its speed is unknown."""
        return None if self.task.speed is None else self.to_make * self.task.speed.per_call

    def agree(self) -> None:
        """Keep in the work folder that these calls may be made, so that a resumed run needs no answer."""
        path = self._agreed
        with disk_errors(path, "this file cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, self._identity.encode())

    @property
    def agreed(self) -> bool:
        """Whether an earlier run had the answer for the same calls."""
        try:
            return self._agreed.read_text(encoding="utf-8") == self._identity
        except (OSError, ValueError):
            return False

    @property
    def _agreed(self) -> Path:
        return _work_dir(self.task) / AGREED_FILE

    @property
    def _identity(self) -> str:
        """The same for the same calls, however many of them were made."""
        inputs = {"items": self.task.items.fingerprint, "scorer": self.task.train_scorer.fingerprint}
        counts = {"exact": self.exact, "dev": self.dev, "calls per item": self.calls_per_item}
        return json.dumps({**inputs, **counts, "indexes": self.sources})


def plan_benchmark(bench: Bench, vectors: Iterable[VectorSource], studies: Iterable[str] = ()) -> CallPlan:
    """The calls of `score_task`, and of a benchmark of strategies with these item vectors; makes none."""
    task, studies = bench.task, list(studies)
    work, items = _work_dir(task), len(task.items)
    dev = [] if task.dev is None else list(task.dev.queries)
    parts = [queries for queries in (list(task.queries), dev) if queries]
    unscored = sum(count_unscored(task.items, part, task.train_scorer, work / EXACT_FOLDER) for part in parts)
    sources = sorted({*vectors, *sources_of(studies, bench)})
    builds = {name: build for name in sources if (build := bench.prepare(name)) is not None}
    more = study_builds(bench) if "sampling" in studies else []
    counter = CallCounter(task.items, work / "build", task.train_scorer)
    return CallPlan(
        task,
        exact=len(task.queries) * items,
        dev=len(dev) * items,
        kept=(len(task.queries) + len(dev)) * items - unscored,
        indexes=sum(counter.count(build)[1] for build in [*builds.values(), *more]),
        sources=(*builds, *(["sampling"] if more else [])),
        calls_per_item=bench.calls_per_item,
    )


def describe_plan(plan: CallPlan) -> list[str]:
    """All calls, and the minutes they take, in sentences."""
    task, items = plan.task, len(plan.task.items)
    parts = [f"{plan.exact:,} for exact search ({len(task.queries):,} queries × {items:,} items)"]
    parts += [f"{plan.dev:,} for tuning ({plan.dev // items:,} dev queries × {items:,} items)"] * bool(plan.dev)
    parts += [f"about {plan.indexes:,} for indexes ({', '.join(plan.sources)})"] * bool(plan.indexes)
    kept = f" {plan.kept:,} of these scores are kept from before." if plan.kept else ""
    said = [f"Calls: {'; '.join(parts)}.{kept} All strategies and budgets look their scores up: no further calls."]
    if not plan.to_make:
        return [*said, "Nothing is left to score."]
    if plan.seconds is None or task.speed is None:
        return [*said, f"Left to make: {plan.to_make:,} calls."]
    rate = f"{task.speed.calls_per_second:,.0f} calls per second, measured on {SPEED_PAIRS} pairs"
    return [*said, f"Left to make: {plan.to_make:,} calls, about {minutes(plan.seconds)} at {rate}."]


def minutes(seconds: float) -> str:
    """A rough time in words."""
    if seconds < 60:
        return "1 minute" if seconds > 30 else f"{max(1, round(seconds))} s"
    return f"{seconds / 60:,.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"


def _work_dir(task: Task) -> Path:
    if task.work_dir is None:
        raise InputError("calls are planned for tasks of `read_set`, which have a work folder.")
    return task.work_dir
