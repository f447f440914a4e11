"""What benchmarks take: for each query, by the ids of the items that were found, their scores."""

from __future__ import annotations

from collections.abc import Mapping

from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior

Run = dict[str, dict[str, float]]

TOGETHER = 64  # queries that are searched side by side


def search_all(
    searcher: Searcher, queries: Mapping[str, str], *, top_k: int, budget: int | None, strategy: Strategy | None
) -> Run:
    """The best items of each query, of which there are as many as calls, at most: only what was scored has a score."""
    calls = strategy.budget if strategy is not None else budget or Posterior.budget
    k = top_k if calls is None else min(top_k, calls)
    ids, run = list(queries), Run()
    for start in range(0, len(ids), TOGETHER):
        part = ids[start : start + TOGETHER]
        found = searcher.search_many([queries[id_] for id_ in part], k=k, budget=budget, strategy=strategy)
        run.update({id_: {hit.id: hit.score for hit in hits} for id_, hits in zip(part, found, strict=True)})
    return run
