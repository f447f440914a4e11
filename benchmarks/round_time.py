"""Time of a search outside the scorer: `Axn` and `Posterior` against `Rerank` and against AXN as the paper has it.

    python -m benchmarks.round_time
    python -m benchmarks.round_time --device cuda --out benchmarks/results/round_time_h200.json --model … --texts …

Vectors, traits and biases are random numbers, so that any size can be had; scores are linear in them, with noise. The
first stage is the encoder alone, the same for all sides; what it takes is shown by `Rerank`. `Posterior` is measured
with a general and with a fitted prior. Each side searches once to warm up, then `--times` times, and the smallest
counts; a search of more than 10 s is done once. `seconds` are those of all queries and rounds together, `ms` those of a
query and round; read the ratios, which are of seconds, for the machine may be busy.

"AXN as in the paper" is Algorithm 1 as it is written: one query after the other, a pseudo-inverse in float32 and the
products with all items in every round, without the mix and the shortlist that the paper adds. Queries share nothing, so
at most four are searched, and `seconds` of more are so many times that. On a GPU it has a float32 copy of the vectors;
on a CPU it widens the same float16 vectors as the others, block by block, which code that holds float32 would not.

With `--model` and `--texts`, `share_of_scoring` is `seconds` over the seconds in which each model scores as many pairs
of real texts on the same device, all in one call and with tokens stored: the smallest of 3 after one to warm up, or
that one alone where it takes more than a minute. Rounds would score fewer pairs at a time and take longer, so that the
share is rather too large.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from benchmarks.result_files import write_result
from benchmarks.scoring_speed import draw_pairs
from crossknn.items.items import Items
from crossknn.retrievers.cache import CandidateCache
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import RoundScores, SearchContext, Stopwatch, Strategy, drive, share_of_round
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import LATENT_FACTORS, Prior
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Mask, Proposal, Rows
from crossknn.vectors.exact import ExactSearch

DIM, ROUNDS = 384, 10
BLOCK = 100_000  # vectors that are made at once
PAPER = "AXN as in the paper"
PAPER_QUERIES = 4  # that it searches at most
SLOW, SLOW_SCORING = 10.0, 60.0  # seconds from which on once is enough
BASES = {"times Axn": "Axn", "times Rerank": "Rerank", "times the paper": PAPER}

Told = Callable[..., RoundScores]


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"rounds": ROUNDS, "dim": DIM, "cells": []}
    sizes = [(queries, budget) for queries in options.queries for budget in options.budgets]
    scoring: dict[tuple[int, int], dict[str, float]] = {size: {} for size in sizes}
    for folder in options.model:
        scorer = CrossEncoder(folder, device=options.device)
        for size, took_by in scoring.items():
            took_by[folder.name] = time_scoring(scorer, options.texts, *size)
        report |= {"texts": options.texts.stem, "dtype": scorer.dtype}
        del scorer
    for items in options.items:
        world = World.of(items, max(options.queries), options.device)
        for queries, budget in sizes:
            cell = {"items": items, "queries": queries, "budget": budget}
            took = measure(world, queries, budget, options.times)
            report["cells"].append({**cell, **summarise(took, queries, scoring[queries, budget])})
            print(json.dumps(report["cells"][-1]), flush=True)
            write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[25_000, 1_000_000, 5_000_000])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 64], help="searched together")
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--times", type=int, default=3, help="once where a search takes more than 10 s")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--model", type=Path, nargs="+", default=[], help="folders of cross-encoders, for the share of the scoring time"
    )
    parser.add_argument("--texts", type=Path, help="BEIR folder, or a .jsonl whose lines have a text")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/round_time.json"))
    options = parser.parse_args()
    if bool(options.model) != (options.texts is not None):
        parser.error("--model and --texts go together.")
    return options


@dataclass(frozen=True)
class FirstStage:
    """The encoder alone."""

    vectors: ExactSearch
    queries: np.ndarray
    name: str = "dense"

    def fit(self, _: Items) -> Self:
        return self

    def retrieve(self, _: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        return self.vectors.search(self.queries, n, allowed=allowed)


@dataclass(frozen=True)
class World:
    vectors: ExactSearch
    wide: torch.Tensor | None  # (items, dim) float32 on a GPU, for the paper's side
    queries: np.ndarray  # (queries, dim)
    scores: np.ndarray  # (queries, items)
    prior: Prior

    @classmethod
    def of(cls, items: int, queries: int, device: str) -> World:
        rng = np.random.default_rng(0)
        search = ExactSearch(make_vectors(items, rng), device=device)
        asked = rng.standard_normal((queries, DIM), np.float32)
        scores = search.estimates(asked + rng.standard_normal(asked.shape, np.float32))
        for line in scores:
            line += rng.standard_normal(items, np.float32) * np.float32(0.3)
        on_gpu = search.device.type == "cuda"
        wide = search.take_tensor(torch.arange(items)) if on_gpu else None
        return cls(search, wide, asked, scores, make_prior(items, rng))

    def context(self, queries: int) -> SearchContext:
        """That of one search: what its first stage proposed is remembered until its end, as in a `Searcher`."""
        first_stage = FirstStage(self.vectors, self.queries[:queries])
        return SearchContext(
            queries=queries,
            items=self.scores.shape[1],
            propose=CandidateCache([""] * queries, lambda _: first_stage, None),
            query_vectors=lambda: self.queries[:queries],
            item_vectors=lambda: self.vectors,
            augmented_vectors=lambda: self.vectors,
            normalization=Normalization(),
            k=10,
        )

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        """(items,) float32: those of all items with this vector."""
        if self.wide is not None:
            return self.wide @ vector
        return torch.from_numpy(self.vectors.estimates(vector.numpy()[None])[0])


def make_vectors(items: int, rng: np.random.Generator) -> np.ndarray:
    """(items, DIM) float16, made block by block."""
    vectors = np.empty((items, DIM), np.float16)
    for start in range(0, items, BLOCK):
        block = vectors[start : start + BLOCK]
        block[:] = rng.standard_normal(block.shape, np.float32) / np.float32(DIM**0.5)
    return vectors


def make_prior(items: int, rng: np.random.Generator) -> Prior:
    traits = rng.standard_normal((items, LATENT_FACTORS), np.float32) * np.float32(0.1)
    return Prior(
        signals=("dense",),
        center=np.zeros(2),
        spread=np.ones(2),
        weights=np.array([1.0, 0.1]),
        intercept=0.0,
        bias=rng.standard_normal(items, np.float32),
        latent_factors=traits.astype(np.float16),
        bias_weights=np.zeros(DIM + 1),
        variances=np.full(5, 0.3),
        noise=0.2,
        gamma_start=0.0,
        gamma_slope=0.1,
        gamma_max=2.0,
    )


def measure(world: World, queries: int, budget: int, times: int) -> dict[str, float]:
    """Seconds outside the scorer for all queries, by side."""
    profiles = world.vectors.with_columns(*world.prior.item_columns)
    known = {"prior": world.prior, "augmented_vectors": lambda: profiles}
    sides: dict[str, tuple[Strategy, dict[str, Any]]] = {
        "Rerank": (Rerank(budget, "dense"), {}),
        "Axn": (Axn(budget, ROUNDS), {}),
        "Posterior, no index": (Posterior(budget, ROUNDS), {}),
        "Posterior": (Posterior(budget, ROUNDS), known),
    }

    def search(strategy: Strategy, known: dict[str, Any], told: Told) -> None:
        drive(strategy, replace(world.context(queries), **known), told)

    took = {
        name: smallest(partial(outside, world, partial(search, *side)), times=times, slow=SLOW)
        for name, side in sides.items()
    }
    few = min(queries, PAPER_QUERIES)
    paper = partial(outside, world, partial(search_as_in_the_paper, world, few, budget))
    return {**took, PAPER: smallest(paper, times=times, slow=SLOW) * queries / few}


def search_as_in_the_paper(world: World, queries: int, budget: int, told: Told) -> list[Rows]:
    """Algorithm 1 of the paper, one query after the other: the rows that each scores."""
    device = world.vectors.device
    found = []
    for query in range(queries):
        vector = torch.from_numpy(world.queries[query]).to(device)
        rows = torch.empty(0, dtype=torch.int64, device=device)
        scores = torch.empty(0, device=device)
        for number in range(1, ROUNDS + 1):
            if number > 1:
                vector = torch.linalg.pinv(world.vectors.take_tensor(rows)) @ scores  # lines 5 and 10
            products = world.products(vector)  # line 7
            products[rows] = -torch.inf
            share = share_of_round(number, budget=budget, rounds=ROUNDS, spent=len(rows))
            new = products.topk(share).indices  # lines 3 and 8
            answer = told([new.cpu().numpy()], first=query)
            rows, scores = torch.cat([rows, new]), torch.cat([scores, torch.from_numpy(answer.scores[0]).to(device)])
        found.append(rows.cpu().numpy())
    return found


def outside(world: World, search: Callable[[Told], object]) -> float:
    """Seconds of a search that are not spent in the scorer."""
    scoring, device = Stopwatch(), world.vectors.device

    def told(asked: list[Rows], *, first: int = 0) -> RoundScores:
        finish(device)
        with scoring:
            return RoundScores([line[rows] for line, rows in zip(world.scores[first:], asked, strict=False)])

    finish(device)
    began = time.monotonic()
    search(told)
    finish(device)
    return time.monotonic() - began - scoring.seconds


def finish(device: torch.device) -> None:
    """Wait for what a GPU still has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def smallest(seconds: Callable[[], float], *, times: int, slow: float) -> float:
    """The smallest of `times` after one to warm up, or that one where it is slow."""
    first = seconds()
    return first if first > slow else min(seconds() for _ in range(times))


def time_scoring(scorer: CrossEncoder, texts: Path, queries: int, budget: int) -> float:
    """Seconds in which the scorer scores so many items for each of so many queries."""
    drawn = argparse.Namespace(texts=texts, pairs=queries * budget, items_per_query=budget, seed=0)
    pairs = draw_pairs(drawn)

    def seconds() -> float:
        began = time.monotonic()
        scorer.score(*pairs)
        return time.monotonic() - began

    return smallest(seconds, times=3, slow=SLOW_SCORING)


def summarise(took: dict[str, float], queries: int, scoring: dict[str, float]) -> dict[str, Any]:
    """`scoring` are the seconds of each model."""
    rounds = {name: 1 if name == "Rerank" else ROUNDS for name in took}
    found: dict[str, Any] = {
        "ms": {name: round(1000 * seconds / queries / rounds[name], 3) for name, seconds in took.items()},
        "seconds": {name: round(seconds, 4) for name, seconds in took.items()},
    }
    for ratio, base in BASES.items():
        found[ratio] = {name: round(seconds / took[base], 2) for name, seconds in took.items() if name != base}
    if scoring:
        found["scoring_seconds"] = {model: round(seconds, 4) for model, seconds in scoring.items()}
        found["share_of_scoring"] = {
            model: {name: round(seconds / whole, 4) for name, seconds in took.items()}
            for model, whole in scoring.items()
        }
    return found


if __name__ == "__main__":
    main()
