"""Generators that say what is to be scored and are sent the scores, driven in a thread or on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

B = TypeVar("B")  # what is to be scored
S = TypeVar("S")  # its scores
T = TypeVar("T")  # what comes of it


class _Outcome(NamedTuple, Generic[T]):
    value: T


def run_flow(flow: Generator[B, S, T], score: Callable[[B], S]) -> T:
    """What a flow returns; everything is done in this thread."""
    step = _advance(flow)
    while not isinstance(step, _Outcome):
        with _raising_in(flow):
            scores = score(step)
        step = _advance(flow, scores)
    value: T = step.value
    return value


async def arun_flow(flow: Generator[B, S, T], score: Callable[[B], Awaitable[S]]) -> T:
    """What a flow returns; scores are awaited, and the flow's own work is done in the event loop's few threads."""
    step = await asyncio.to_thread(_advance, flow)
    while not isinstance(step, _Outcome):
        with _raising_in(flow):
            scores = await score(step)
        step = await asyncio.to_thread(_advance, flow, scores)
    value: T = step.value
    return value


def _advance(flow: Generator[B, S, T], scores: Any = None) -> B | _Outcome[T]:
    try:
        return flow.send(scores)
    except StopIteration as end:
        return _Outcome(end.value)


@contextmanager
def _raising_in(flow: Generator[Any, Any, Any]) -> Iterator[None]:
    """Raise errors where the flow waits for scores."""
    try:
        yield
    except BaseException as error:
        flow.throw(error)
        raise
