"""Threads for work that releases the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def map_in_threads(function: Callable[[Argument], Result], values: Sequence[Argument], threads: int) -> list[Result]:
    """`function` of each value, computed by at most this many threads."""
    if min(threads, len(values)) < 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(min(threads, len(values))) as pool:
        return list(pool.map(function, values))
