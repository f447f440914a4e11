"""Any Python function over pairs as a scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crossknn._checks import invalid
from crossknn.models.fingerprints import function_fingerprint
from crossknn.scorers.base import check_pairs, check_scores
from crossknn.types import Scores


class FunctionScorer:
    """A function over pairs as a scorer; made by `function_scorer`."""

    def __init__(self, fn: Callable[[list[tuple[str, str]]], Any], *, fingerprint: str | None) -> None:
        if not callable(fn):
            raise invalid("fn", "a function of a list of pairs", fn)
        self._fn = fn
        self._fingerprint = function_fingerprint(fingerprint)

    @property
    def fingerprint(self) -> str:
        """The name given, or one that no other object in any process shares."""
        return self._fingerprint

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One score per pair; exceptions of the function are passed on unchanged."""
        check_pairs(queries, items)
        if not len(queries):
            return np.empty(0, np.float32)
        scores = self._fn(list(zip(queries, items, strict=True)))
        if hasattr(scores, "detach"):  # a tensor, on a GPU or in bfloat16 no array by itself
            scores = scores.detach().float().cpu().numpy()
        return check_scores(scores, queries, items)


def function_scorer(fn: Callable[[list[tuple[str, str]]], Any], *, fingerprint: str | None = None) -> FunctionScorer:
    """A scorer from a function.

    Args:
        fn: Returns one raw score per `(query, item)`, as an array, a tensor or a list.
        fingerprint: Names what the function computes; change it when its scores change, for scores are cached and
            indexes are checked by it. `Cached` refuses a scorer without one.
    """
    return FunctionScorer(fn, fingerprint=fingerprint)
