"""The one gate between a scorer and everything that uses its scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.types import Scorer, Scores


def score_pairs(scorer: Scorer, queries: Sequence[str], items: Sequence[str]) -> Scores:
    """The scores of the pairs `(queries[i], items[i])`, or an error that names the pair that has none."""
    if len(queries) != len(items):
        raise InputError(f"queries and items must pair up. Got {len(queries)} queries and {len(items)} items instead.")
    if not len(queries):
        return np.empty(0, np.float32)
    try:
        scores = scorer.score(queries, items)
    except StopIteration as error:  # it would pass for the end of a generator, and cannot leave a thread
        raise ScorerError("the scorer raised StopIteration: a `next` inside it found nothing.") from error
    return check_scores(scores, queries, items)


def check_scores(scores: object, queries: Sequence[str], items: Sequence[str]) -> Scores:
    """`scores` as a float32 array, one finite number per pair."""
    try:
        array = np.asarray(scores, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ScorerError(
            f"a scorer must return one number per pair. Got {type(scores).__name__} instead: {error}"
        ) from error
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ScorerError(f"a scorer must return one number per pair. Got an array of shape {array.shape} instead.")
    if len(array) < len(queries):
        missing = describe_pair(queries[len(array)], items[len(array)])
        raise ScorerError(
            f"the scorer returned {len(array)} scores for {len(queries)} pairs; the first without one is {missing}."
        )
    if len(array) > len(queries):
        raise ScorerError(f"the scorer returned {len(array)} scores for {len(queries)} pairs.")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        first = int(bad[0])
        raise ScorerError(
            f"the scorer returned {array[first]} for {describe_pair(queries[first], items[first])}"
            f" ({len(bad)} of {len(array)} scores are not finite). "
            "In float16 this is usually an overflow: try dtype='bfloat16' or 'float32'."
        )
    return array


def describe_pair(query: str, item: str, *, width: int = 80) -> str:
    """The pair as a short, quoted text for an error message."""
    return f"query {_shorten(query, width)} and item {_shorten(item, width)}"


def _shorten(text: str, width: int) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
