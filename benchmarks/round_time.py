"""Time of a round outside the scorer: `Posterior`, with a general and with a fitted prior, against `Axn`, in one run.

    python -m benchmarks.round_time --items 25000 1000000

Vectors, traits and biases are random numbers, so that any size can be had; scores are linear in them, with noise. The
first stage is the encoder alone, the same for all strategies; what it takes is shown by `Rerank`. Each figure is the
smallest of `--times` searches of all queries together, per query and round; read the ratios, for the machine may be
busy.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scoring_speed import surroundings
from crossknn.normalization import Normalization
from crossknn.prior import TRAITS, Prior
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Answer, Space, Strategy, drive
from crossknn.strategies.posterior import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Proposal, Rows
from crossknn.vectors.exact import ExactSearch

DIM, ROUNDS = 384, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[25_000, 1_000_000])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 8], help="searched together")
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/round_time.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {"rounds": ROUNDS, "dim": DIM, "cells": [], **surroundings(options)}
    for items in options.items:
        world = World.of(items, max(options.queries), options.device)
        for queries in options.queries:
            for budget in options.budgets:
                cell = {"items": items, "queries": queries, "budget": budget}
                report["cells"].append({**cell, **measure(world, queries, budget, options.times)})
                print(json.dumps(report["cells"][-1]), flush=True)
                options.out.write_text(json.dumps(report, indent=1) + "\n")


@dataclass(frozen=True)
class World:
    vectors: ExactSearch
    queries: np.ndarray  # (queries, dim)
    scores: np.ndarray  # (queries, items)
    prior: Prior

    @classmethod
    def of(cls, items: int, queries: int, device: str) -> World:
        rng = np.random.default_rng(0)
        vectors = rng.standard_normal((items, DIM), np.float32).astype(np.float16) / np.float16(DIM**0.5)
        asked = rng.standard_normal((queries, DIM), np.float32)
        search = ExactSearch(vectors, device=device)
        scores = search.estimates(asked + rng.standard_normal(asked.shape, np.float32))
        scores += rng.standard_normal(scores.shape, np.float32) * np.float32(0.3)
        prior = Prior(
            signals=("dense",),
            center=np.zeros(2),
            spread=np.ones(2),
            weights=np.array([1.0, 0.1]),
            intercept=0.0,
            bias=rng.standard_normal(items, np.float32),
            traits=rng.standard_normal((items, TRAITS), np.float32) * np.float32(0.1),
            inductive=np.zeros(DIM + 1),
            variances=np.full(5, 0.3),
            noise=0.2,
            low=0.0,
            rise=0.1,
            most=2.0,
        )
        return cls(search, asked, scores, prior)

    def space(self, queries: int) -> Space:
        def propose(_: str | None, n: int) -> tuple[str, list[Proposal]]:
            return "dense", self.vectors.search(self.queries[:queries], n)

        return Space(
            queries=queries,
            items=self.scores.shape[1],
            propose=propose,
            query_vectors=lambda: self.queries[:queries],
            item_vectors=lambda: self.vectors,
            item_profiles=lambda: self.vectors,
            normalization=Normalization(),
            k=10,
        )


def measure(world: World, queries: int, budget: int, times: int) -> dict[str, Any]:
    """Milliseconds per query and round, and how many times a round of `Axn` that is."""
    plain, profiles = world.space(queries), world.vectors.beside(*world.prior.beside)
    sides: dict[str, tuple[Strategy, Space]] = {
        "Rerank": (Rerank(budget, "dense"), plain),
        "Axn": (Axn(budget, ROUNDS), plain),
        "Posterior, no index": (Posterior(budget, ROUNDS), plain),
        "Posterior": (Posterior(budget, ROUNDS), replace(plain, prior=world.prior, item_profiles=lambda: profiles)),
    }
    took = {name: min(outside(world, *side) for _ in range(times)) for name, side in sides.items()}
    per_round = {name: 1000 * seconds / queries / (1 if name == "Rerank" else ROUNDS) for name, seconds in took.items()}
    ratios = {name: round(took[name] / took["Axn"], 2) for name in took if name.startswith("Posterior")}
    return {"ms": {name: round(value, 3) for name, value in per_round.items()}, "times Axn": ratios}


def outside(world: World, strategy: Strategy, space: Space) -> float:
    """Seconds of a search that are not spent in the scorer."""
    scoring = 0.0

    def answer(asked: list[Rows]) -> Answer:
        nonlocal scoring
        began = time.perf_counter()
        scores = [line[rows] for line, rows in zip(world.scores, asked, strict=False)]
        scoring += time.perf_counter() - began
        return Answer(scores)

    return _timed(lambda: drive(strategy, space, answer)) - scoring


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
