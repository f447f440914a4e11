"""What the rerankers of all frameworks share: the best of given texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.base import score_pairs
from crossknn.types import Scorer


def best_texts(scorer: Scorer, query: str, texts: Sequence[str], *, k: int | None) -> list[tuple[int, float]]:
    """Place and score of the `k` best texts (all of them where it is None), highest score first.

    Equal ones keep their order. Each text is one call.
    """
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"a query must be a string with something in it. Got {query!r} instead.")
    scores = score_pairs(scorer, [query] * len(texts), texts)
    return [(place, float(scores[place])) for place in np.argsort(-scores, kind="stable")[:k].tolist()]


def check_scorer(scorer: Scorer) -> Scorer:
    """The scorer, if it can score; the rest of its contract is looked at when it does."""
    if not callable(getattr(scorer, "score", None)):
        raise InputError(f"scorer must be a Scorer such as CrossEncoder(…). Got {scorer!r} instead.")
    return scorer
