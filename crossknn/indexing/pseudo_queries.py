"""Pseudo-queries: train queries cut from the items' own texts."""

from __future__ import annotations

import re

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.items.items import Items

SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
OPENING_WORDS, SPAN_WORDS = (3, 8), (4, 12)  # shortest and longest
MAX_SENTENCE_WORDS = 24
ITEMS_PER_QUERY = 4  # items tried for each query before giving up on finding more


def cut_queries(items: Items, n: int, *, seed: int = 0) -> list[str]:
    """At most `n` distinct queries: in turn the opening, the first sentence and a span of a random item.

    Raises:
        InputError: If no item has text.
    """
    check_positive("n", n)
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    for number, text in enumerate(_draw_texts(items, n, rng)):
        query = _cut(text, number % 3, rng)
        if query:
            found[query] = None
        if len(found) == n:
            break
    if not found:
        raise InputError("No queries could be cut from the items because their texts are empty. Pass `queries`.")
    return list(found)


def _draw_texts(items: Items, n: int, rng: np.random.Generator) -> list[str]:
    """Texts of random items; items repeat only if there are too few."""
    count = ITEMS_PER_QUERY * n
    passes = min(-(-count // len(items)), 3 * ITEMS_PER_QUERY)
    rows = np.concatenate([rng.permutation(len(items))[:count] for _ in range(passes)])
    return items.texts_of(rows[:count])


def _cut(text: str, kind: int, rng: np.random.Generator) -> str:
    """The opening (0), first sentence (1) or a span (2) of the text, with whitespace collapsed."""
    if kind == 1:
        text = SENTENCE_END.split(text.strip(), maxsplit=1)[0]
        return " ".join(text.split()[:MAX_SENTENCE_WORDS])
    words = text.split()
    shortest, longest = OPENING_WORDS if kind == 0 else SPAN_WORDS
    length = min(int(rng.integers(shortest, longest + 1)), len(words))
    start = 0 if kind == 0 else int(rng.integers(len(words) - length + 1))
    return " ".join(words[start : start + length])
