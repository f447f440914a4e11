"""Any Python function over pairs as a scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.models.fingerprints import function_fingerprint
from crossknn.scorers.base import check_scores
from crossknn.types import Scores


class FunctionScorer:
    """A function over pairs as a scorer; made by `function_scorer`."""

    def __init__(self, fn: Callable[[list[tuple[str, str]]], Any], *, fingerprint: str | None) -> None:
        if not callable(fn):
            raise InputError(f"fn must be a function of a list of pairs. Got {type(fn).__name__} instead.")
        self._fn = fn
        self._fingerprint = function_fingerprint(fingerprint)

    @property
    def fingerprint(self) -> str:
        """The name given, or one that no other object in any process shares."""
        return self._fingerprint

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One score per pair; whatever the function raises is passed on as it is."""
        if len(queries) != len(items):
            raise InputError(f"queries and items must pair up. Got {len(queries)} and {len(items)} instead.")
        if not len(queries):
            return np.empty(0, np.float32)
        return check_scores(_as_numbers(self._fn(list(zip(queries, items, strict=True)))), queries, items)


def function_scorer(fn: Callable[[list[tuple[str, str]]], Any], *, fingerprint: str | None = None) -> FunctionScorer:
    """A scorer from `fn(pairs)`, which returns one raw score per `(query, item)`, as an array, a tensor or a list.

    Name what the function computes with `fingerprint`, and change the name when its scores change: scores are
    cached and indexes are checked by it. Without a name the scorer serves searches, but `Cached` refuses it.
    """
    return FunctionScorer(fn, fingerprint=fingerprint)


def _as_numbers(scores: Any) -> Any:
    """Tensors on a GPU or in bfloat16 do not turn into arrays by themselves."""
    return scores.detach().float().cpu().numpy() if hasattr(scores, "detach") else scores
