"""A real `crossknn serve` in a process of its own, and honest clients."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.faults.commands import UNDISTURBED, Conditions, Outcome, Running, start
from benchmarks.faults.report import expect
from benchmarks.faults.world import BUDGET, MODELS, World

Hits = list[tuple[str, float]]


@contextmanager
def serving(
    world: World, folder: Path, *options: object, models: list[object] = MODELS, conditions: Conditions = UNDISTURBED
) -> Iterator[tuple[str, Running]]:
    """The URL of a server, and its process, which is killed in the end if it has not ended."""
    running = start(["serve", folder, "--port", 0, *models, *options], world.logs, conditions)
    try:
        yield running.wait_for(r"at (http://\S+)"), running
    finally:
        running.process.kill()


def stop(running: Running, *, within: float) -> Outcome:
    """End a server by SIGTERM, which must take effect within these seconds."""
    running.process.terminate()
    outcome = running.finish(within)
    expect(outcome.code is not None, f"the server was still there {within:g} seconds after SIGTERM")
    expect(outcome.code in (0, -signal.SIGTERM), f"the server ended with {outcome.code}: {outcome.errors[-300:]}")
    return outcome


def ask(url: str, query: str, *, timeout: float = 60.0, **options: Any) -> httpx.Response:
    body = {"query": query, "k": 10, "budget": BUDGET, **options}
    return httpx.post(f"{url}/search", json=body, timeout=timeout)


def hits_in(response: httpx.Response) -> Hits:
    """Ids and scores, as `World.hits` has them; a loss unless the whole search was answered."""
    expect(response.status_code == 200, f"an honest client got {response.status_code}: {response.text[:300]}")
    (found,) = response.json()["results"]
    expect(found["stopped"] is None, f"an honest search was stopped: {found['stopped']}")
    return [(hit["id"], round(hit["score"], 3)) for hit in found["hits"]]


def rounded(hits: list[Hits]) -> list[Hits]:
    """To the digits that do not depend on which pairs share a batch."""
    return [[(id_, round(score, 3)) for id_, score in found] for found in hits]


def same(found: Hits, wanted: Hits) -> bool:
    """Whether the ids are equal, and the scores but for the batch they were computed in."""
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(a == b and abs(x - y) < 0.002 for (a, x), (b, y) in pairs)
