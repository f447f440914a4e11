"""Queries that have nothing to do with each other, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from crossknn.types import Proposal

WORTH = 1 << 20  # items of all queries together, from which on threads are worth starting
MOST = 8  # threads; more wait for each other


def map_queries(retrieve: Callable[[str], Proposal], queries: Sequence[str], n_items: int) -> list[Proposal]:
    """What `retrieve`, which looks at all items and mostly within numpy, finds for each query."""
    threads = min(len(queries), _cores(), MOST) if n_items * len(queries) >= WORTH else 1
    if threads < 2:
        return [retrieve(query) for query in queries]
    first = retrieve(queries[0])  # alone: what is made once, such as a dictionary of words, is not made by every thread
    with ThreadPoolExecutor(threads) as pool:
        return [first, *pool.map(retrieve, queries[1:])]


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
