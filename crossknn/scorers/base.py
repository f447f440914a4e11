"""Checked scoring, which every score that the package uses passes through, and scorers from functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, invalid
from crossknn.errors import InputError, PartialScores, ScorerError
from crossknn.models.fingerprints import function_fingerprint
from crossknn.types import Scorer, Scores

PairFunction = Callable[[list[tuple[str, str]]], Any]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A text in the ranking of `rank`."""

    index: int  # among the given texts
    score: float
    text: str


class RankMixin:
    """`rank` for every scorer of the package."""

    def rank(self: Scorer, query: str, texts: Sequence[str], *, k: int | None = None) -> list[Ranked]:
        """The texts by their scores for one query, best first and ties in the given order; the `k` best or all."""
        if k is not None:
            check_positive("k", k)
        scores = score_pairs(self, [query] * len(texts), texts)
        order = np.argsort(-scores, kind="stable")[:k]
        return [Ranked(index, float(scores[index]), texts[index]) for index in order.tolist()]


def score_pairs(scorer: Scorer, queries: Sequence[str], items: Sequence[str]) -> Scores:
    """The scores of the pairs `(queries[i], items[i])`, or an error that names the pair without one."""
    check_pairs(queries, items)
    if not len(queries):
        return np.empty(0, np.float32)
    with _clear_errors(scorer):
        return check_scores(scorer.score(queries, items), queries, items)


def innermost(scorer: Scorer) -> Scorer:
    """The scorer that caches and counters wrap."""
    while (wrapped := getattr(scorer, "scorer", None)) is not None:
        scorer = wrapped
    return scorer


def has_ascore(scorer: Scorer) -> bool:
    """Whether scores of this scorer can be awaited: that of a wrapper, where the scorer inside has them awaited."""
    return callable(getattr(scorer, "ascore", None))


async def ascore_pairs(scorer: Any, queries: Sequence[str], items: Sequence[str]) -> Scores:
    """`score_pairs` of an `AsyncScorer`, awaited."""
    check_pairs(queries, items)
    if not len(queries):
        return np.empty(0, np.float32)
    with _clear_errors(scorer):
        return check_scores(await scorer.ascore(queries, items), queries, items)


@contextmanager
def _clear_errors(scorer: Scorer) -> Iterator[None]:
    try:
        yield
    except StopIteration as error:  # it would pass for the end of a generator, and cannot leave a thread
        raise ScorerError("the scorer raised StopIteration: a `next` inside it found nothing.") from error
    except PartialScores as error:
        error.fingerprint = error.fingerprint or scorer.fingerprint
        raise


def check_pairs(queries: Sequence[str], items: Sequence[str]) -> None:
    """Raise `InputError` unless there are as many queries as items."""
    if len(queries) != len(items):
        raise InputError(f"`queries` and `items` must have the same length, got {len(queries)} and {len(items)}.")


def check_scores(scores: object, queries: Sequence[str], items: Sequence[str]) -> Scores:
    """`scores` as a float32 array, one finite number per pair; strings, booleans and complex numbers are none.

    Raises:
        PartialScores: If only some are finite. The fingerprint is for the caller to fill in.
        ScorerError: If they are something else.
    """
    array = _read_numbers(scores, queries, items)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ScorerError(f"a scorer must return one number per pair, got an array of shape {array.shape}.")
    _check_length(len(array), queries, items)
    with np.errstate(over="ignore"):  # infinite then
        numbers = array.astype(np.float32, copy=False)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        first, finite = int(bad[0]), np.flatnonzero(np.isfinite(numbers)).tolist()
        raise PartialScores(
            f"the scorer returned {array[first]} for {describe_pair(queries[first], items[first])}"
            f" ({len(bad)} of {len(array)} scores are not finite). "
            "In float16 this is usually an overflow: try dtype='bfloat16' or 'float32'.",
            fingerprint="",
            queries=[queries[place] for place in finite],
            items=[items[place] for place in finite],
            scores=numbers[finite].tolist(),
        )
    return numbers


def _read_numbers(scores: Any, queries: Sequence[str], items: Sequence[str]) -> NDArray[Any]:
    """An array of any shape, if it holds real numbers. Nothing is read whose length is wrong, or unknown."""
    if hasattr(scores, "detach"):  # a tensor, on a GPU or in bfloat16 no array by itself
        scores = scores.detach().cpu()
        scores = (scores.float() if scores.is_floating_point() else scores).numpy()
    if not isinstance(scores, np.ndarray):
        if not hasattr(scores, "__len__") or isinstance(scores, str | bytes | Mapping | set | frozenset):
            raise ScorerError(f"a scorer must return an array or a list of numbers, got {_name_type(scores)}.")
        _check_length(len(scores), queries, items)
        for score in scores if isinstance(scores, list | tuple) else ():
            if isinstance(score, bool | np.bool_):  # beside numbers they would count as 0 and 1
                raise ScorerError(f"a scorer must return one number per pair, got {score!r} among them.")
    try:
        array = np.asarray(scores)
    except Exception as error:
        found = f"{_name_type(scores)}: {type(error).__name__}"
        raise ScorerError(f"a scorer must return one number per pair, got {found}.") from error
    if array.dtype.kind not in "iuf" and array.size:
        found = _name_type(array.flat[0]) if array.dtype.kind == "O" else f"an array of {array.dtype}"
        raise ScorerError(f"a scorer must return one number per pair, got {found}.")
    return array


def _name_type(value: object) -> str:
    return f"an object of type {type(value).__name__:.80}"


def _check_length(length: int, queries: Sequence[str], items: Sequence[str]) -> None:
    if length == len(queries):
        return
    message = f"the scorer returned {length} scores for {len(queries)} pairs"
    if length < len(queries):
        message += f"; the first without one is {describe_pair(queries[length], items[length])}"
    raise ScorerError(f"{message}.")


def describe_pair(query: str, item: str, *, width: int = 80) -> str:
    """The pair as a short, quoted text for an error message."""
    texts = (text if len(text) <= width else text[: width - 1] + "…" for text in (query, item))
    return "query {!r} and item {!r}".format(*texts)


def function_scorer(fn: PairFunction, *, fingerprint: str | None = None) -> FunctionScorer:
    """A scorer from a function.

    Args:
        fn: Returns one raw score per `(query, item)`, as an array, a tensor or a list; it may be asynchronous.
        fingerprint: Names what the function computes; change it when its scores change, for scores are cached and
            indexes are checked by it. `Cached` refuses a scorer without one.
    """
    kind = AsyncFunctionScorer if iscoroutinefunction(fn) else FunctionScorer
    return kind(fn, fingerprint=fingerprint)


class FunctionScorer(RankMixin):
    """A function over pairs as a scorer; made by `function_scorer`."""

    def __init__(self, fn: PairFunction, *, fingerprint: str | None) -> None:
        if not callable(fn):
            raise invalid("fn", "a function of a list of pairs", fn)
        self._fn = fn
        self.fingerprint = function_fingerprint(fingerprint)

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One score per pair; exceptions of the function are passed on unchanged."""
        check_pairs(queries, items)
        if not len(queries):
            return np.empty(0, np.float32)
        scores = self._fn(list(zip(queries, items, strict=True)))
        if isawaitable(scores):
            with ThreadPoolExecutor(1) as thread:  # the caller's may run an event loop
                scores = thread.submit(asyncio.run, _await(scores)).result()
        return check_scores(scores, queries, items)


class AsyncFunctionScorer(FunctionScorer):
    """An asynchronous function over pairs as a scorer; searches on one event loop await it at the same time."""

    async def ascore(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """`score`, awaited."""
        check_pairs(queries, items)
        if not len(queries):
            return np.empty(0, np.float32)
        return check_scores(await self._fn(list(zip(queries, items, strict=True))), queries, items)


async def _await(scores: Awaitable[Any]) -> Any:
    return await scores
