"""Scorers that lie, fail in the middle, are slow or never answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np

import crossknn as ck
from benchmarks.faults.report import Report, expect
from benchmarks.faults.servers import listening, never_answer
from benchmarks.faults.services import ask, serving, stop
from benchmarks.faults.world import BUDGET, CHUNK, EMBEDDED_ENCODER, World, content
from crossknn.errors import CrossKnnError, ScorerError

Lie = Callable[[np.ndarray], Any]

LIES: dict[str, Lie] = {
    "not a number": lambda scores: np.where(np.arange(len(scores)) == len(scores) // 2, np.nan, scores),
    "infinite": lambda scores: np.where(np.arange(len(scores)) == 0, np.inf, scores),
    "one too few": lambda scores: scores[:-1],
    "one too many": lambda scores: np.append(scores, 0),
    "none": lambda _: None,
    "strings": lambda scores: [str(score) for score in scores],
    "words": lambda scores: ["high"] * len(scores),
    "complex numbers": lambda scores: scores + 1j,
    "lists": lambda scores: [[score, score] for score in scores],
    "ragged lists": lambda scores: [[0.0] * (row % 3) for row in range(len(scores))],
    "a single number": lambda scores: float(scores[0]),
    "a mapping": lambda scores: dict(enumerate(scores)),
    "dates": lambda scores: np.full(len(scores), np.datetime64("2026-01-01")),
    "objects": lambda scores: [object() for _ in scores],
}
DEADLINE, TOLERANCE = 0.4, 2.0  # seconds
SECONDS_PER_PAIR = 0.004


class Crash(Exception):
    """What a failing scorer raises."""


def score_texts(queries: Sequence[str], items: Sequence[str]) -> np.ndarray:
    """Scores that look random and do not depend on the batch."""
    values = (hash_of(f"{query}\n{item}") for query, item in zip(queries, items, strict=True))
    return np.fromiter(values, np.float32, len(queries))


def hash_of(text: str) -> float:
    return int.from_bytes(blake2b(text.encode(), digest_size=3).digest()) / 2**20 - 8


class FaultyScorer:
    """Honest for some calls, then it lies once, or for ever, or raises."""

    fingerprint = "faulty"

    def __init__(self, lie: Lie | None = None, *, after: int = 0, seconds_per_pair: float = 0.0) -> None:
        self.calls = 0
        self.lie, self._after, self._seconds = lie, after, seconds_per_pair

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Any:
        self.calls += 1
        time.sleep(self._seconds * len(queries))
        scores = score_texts(queries, items)
        return self.lie(scores) if self.lie is not None and self.calls > self._after else scores


def crash(_: np.ndarray) -> Any:
    raise Crash("the scorer is gone")


def try_scorers(report: Report, world: World) -> None:
    lies = dict(list(LIES.items())[::4]) if world.quick else LIES
    index = make_index(world, FaultyScorer(), "honest")
    report.try_all("lies in a search", [partial(lie_in_search, world, index, *one) for one in lies.items()])
    lies = {**lies, "an exception": crash}
    report.try_all("lies in a build", [partial(lie_in_build, world, *one) for one in lies.items()])
    report.try_all(
        "slow, with a deadline", [partial(slow_search, index, world, n) for n in range(1 if world.quick else 5)]
    )
    report.try_all("never answers, in a service", [partial(hung_service, world)])


def make_index(world: World, scorer: Any, name: str) -> ck.Index:
    """An index over the items of the world, built with this scorer."""
    train = world.path("train.txt").read_text().splitlines()
    index = ck.Index.build(
        ck.Items.from_jsonl(world.path("items.jsonl")),
        scorer=scorer,
        encoder=world.encoder,
        queries=train,
        sampling=ck.PerItem(queries=4),
        prior=False,
        work_dir=world.path(f"{name}.work"),
        chunk=CHUNK,
        device="cpu",
    )
    index.save(world.path(f"{name}.ck"))
    return index


def lie_in_search(world: World, index: ck.Index, name: str, lie: Lie) -> str:
    """The search raises; the next one, when the scorer is honest again, finds the hits."""
    honest = ck.Searcher(index, scorer=FaultyScorer(), encoder=world.encoder, device="cpu")
    wanted = [hits.ids for hits in honest.search_many(world.queries, k=10, budget=BUDGET)]
    for after in (0, 3):
        scorer = FaultyScorer(lie, after=after)
        searcher = ck.Searcher(index, scorer=scorer, encoder=world.encoder, device="cpu")
        try:
            searcher.search_many(world.queries, k=10, budget=BUDGET)
        except ScorerError:
            scorer.lie = None
        else:
            expect(False, f"scores that are {name} were taken")
        found = [hits.ids for hits in searcher.search_many(world.queries, k=10, budget=BUDGET)]
        expect(found == wanted, f"{name}: other hits after the error")
    return "refused"


def lie_in_build(world: World, name: str, lie: Lie) -> str:
    """The build raises; with an honest scorer it ends with the same index, and asks for no score twice."""
    scorer, place = FaultyScorer(lie, after=3), f"lying {name}"
    try:
        make_index(world, scorer, place)
    except (CrossKnnError, Crash):
        pass
    else:
        expect(False, f"scores that are {name} were taken")
    again = FaultyScorer()
    make_index(world, again, place)
    expect(content(world.path(f"{place}.ck")) == content(world.path("honest.ck")), "another index")
    calls = -(-4 * 96 // CHUNK)
    expect(again.calls == calls - 3, f"{again.calls} calls were made again, {calls - 3} were missing")
    return "refused, then resumed"


def slow_search(index: ck.Index, world: World, number: int) -> str:
    scorer = FaultyScorer(seconds_per_pair=SECONDS_PER_PAIR)
    searcher = ck.Searcher(index, scorer=scorer, encoder=world.encoder, device="cpu")
    searcher.prepare()
    deadline, began = DEADLINE * (number + 1) / 2, time.monotonic()
    found = searcher.search_many(world.queries, k=10, budget=96, deadline=deadline)
    took = time.monotonic() - began
    expect(took < deadline + TOLERANCE, f"a deadline of {deadline:g} seconds took {took:.1f}")
    stopped = [hits.stopped for hits in found]
    expect(all(stopped) == any(stopped), f"only some queries were stopped: {stopped}")
    expect(not any(stopped) or all(len(hits) for hits in found), "no hits came back at the deadline")
    return "stopped in time" if any(stopped) else "finished in time"


def hung_service(world: World) -> str:
    """A server whose remote scorer never answers: deadlines hold, it says that it is not ready, and it ends."""
    folder = world.built("plain")
    with listening(never_answer) as port:
        models = ["--scorer", f"http://127.0.0.1:{port}/rerank#m", *EMBEDDED_ENCODER, "--any-model"]
        options = ["--scorer-timeout", 3, "--grace", 2]
        with serving(world, folder, *options, models=models) as (url, running):
            for deadline, statuses in ((1.0, (200, 503)), (30.0, (503,)), (30.0, (503,))):
                began = time.monotonic()
                response = ask(url, world.queries[0], deadline=deadline)
                took = time.monotonic() - began
                expect(response.status_code in statuses, f"{response.status_code}: {response.text[:200]}")
                expect(took < min(deadline, 3) + TOLERANCE + 1, f"{took:.1f} s for a deadline of {deadline:g}")
            expect(ask(url, world.queries[0]).status_code == 503, "it took a search though its scorer hangs")
            stop(running, within=2 + 8)
    return "held"
