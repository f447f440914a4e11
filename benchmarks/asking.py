"""What else a round of posterior search could ask for: other sizes of rounds, and rows that the model did not choose.

    python -m benchmarks.asking <score folder>... --queries 100 --out benchmarks/results/asking.json

"rounds × 1.3": each round is 1.3 times as large as the one before, at the same budget. "hedge 20% of 10": with a prior,
a fifth of every round after the first from the 10 best of the fused ranking (as it is: a tenth). "20% neighbours": so
much from the items nearest to the best scored so far, as graph-based reranking does. Recall is the share of the exact
top k found within the budget, in percent, without an index and with a prior of 8 calls per item; differences to
posterior search as it is are with 95 % intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.posterior import CALLS_PER_ITEM, ROUNDS, Shares, build, means, search
from benchmarks.result_files import write_result
from benchmarks.signals import compare
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.search.searcher import Searcher
from crossknn.strategies import base as strategies_base
from crossknn.strategies.base import Observations, Round, SearchContext
from crossknn.strategies.posterior import strategy as posterior
from crossknn.strategies.posterior.session import PosteriorMeans, PosteriorSession
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.types import Rows

CELLS = ((1, 25), (1, 100), (10, 50), (10, 100), (100, 500))
GROWTHS = (0.6, 0.8, 1.3, 1.8)
HEDGES = ((0.0, 10), (0.2, 10), (0.1, 50), (0.1, 1_000))  # part of a round, and of how many
PARTS = (0.1, 0.2)
BEST = 10  # scored items whose neighbours are asked for
AS_IT_IS = "as it is"


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"rounds": ROUNDS, "calls_per_item": CALLS_PER_ITEM, "sets": []}
    for folder in options.folders:
        task = read_matrix(folder, queries=options.queries)
        bench = Bench(task, seed=0)
        record: dict[str, Any] = {"set": task.name, "items": len(task.items), "test_queries": len(task.queries)}
        report["sets"].append(record)
        for name, searcher in (("no index", bench.searcher("encoder")), ("prior", with_prior(bench))):
            record[name] = measure(task, searcher)
            write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/asking.json"))
    return parser.parse_args()


def with_prior(bench: Bench) -> Searcher:
    return bench.search_with(build(bench, CALLS_PER_ITEM))


def measure(task: Task, searcher: Searcher) -> dict[str, Any]:
    base = search(task, searcher, partial(Posterior, rounds=ROUNDS), CELLS)
    record: dict[str, Any] = {"recall": {AS_IT_IS: means(base)}, f"− {AS_IT_IS}": {}}
    for name, shares in others(task, searcher):
        print(task.name, name, end=" ")
        record["recall"][name] = means(shares)
        record[f"− {AS_IT_IS}"][name] = compare(shares, base)
    return record


def others(task: Task, searcher: Searcher) -> Iterator[tuple[str, Shares]]:
    for growth in GROWTHS:
        with growing(growth):
            yield f"rounds × {growth:g}", search(task, searcher, partial(Posterior, rounds=ROUNDS), CELLS)
    for part, best in HEDGES if searcher.index else ():
        with patch.object(posterior, "HEDGE_SHARE", part), patch.object(posterior, "HEDGE_ROWS", best):
            yield f"hedge {part:.0%} of {best:,}", search(task, searcher, partial(Posterior, rounds=ROUNDS), CELLS)
    for part in PARTS:
        yield f"{part:.0%} neighbours", search(task, searcher, partial(Mixed, rounds=ROUNDS, part=part), CELLS)


@contextmanager
def growing(growth: float) -> Iterator[None]:
    """Rounds whose sizes grow by this factor, each of at least one call."""

    def share(number: int, *, budget: int, rounds: int, spent: int) -> int:
        sizes = growth ** np.arange(rounds)
        left = rounds - number
        wanted = round((budget - spent) * sizes[number - 1] / sizes[number - 1 :].sum())
        return budget - spent if not left else min(max(1, wanted), budget - spent - left)

    with patch.object(strategies_base, "share_of_round", share):
        yield


@dataclass(frozen=True, repr=False)
class Mixed(Posterior):
    """Posterior search that leaves a part of each round to neighbours, and has no guard."""

    part: float = 0.0

    def _choose_rows(
        self, context: SearchContext, session: PosteriorSession, means: PosteriorMeans, counts: list[int]
    ) -> Round:
        spent = [len(one.rows) for one in session.observations]
        before = session.unscored_hedge_rows(posterior.hedge_counts(spent, counts))
        for hedge, scored, share in zip(before, session.observations, counts, strict=True):
            count = round(self.part * share)
            others = from_neighbours(context, scored, self.budget) if count else np.empty(0, np.int64)
            hedge += others[~np.isin(others, [*scored.rows, *hedge])][:count].tolist()
        return Round(session.propose(means, counts, before), "mixed")


def from_neighbours(context: SearchContext, scored: Observations, budget: int) -> Rows:
    """The nearest of the best scored item first, then those of the second, one of each in turn."""
    best = scored.rows[np.argsort(-scored.scores, kind="stable")[:BEST]]
    items = context.item_vectors()
    near = items.search(items.take(best), budget // ROUNDS + 1, exclude=[scored.rows] * len(best))
    turns = np.stack([one.rows for one in near]).T.reshape(-1)
    _, first = np.unique(turns, return_index=True)
    return turns[np.sort(first)]


if __name__ == "__main__":
    main()
