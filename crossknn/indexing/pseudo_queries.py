"""Queries for a build without train queries: cut from the items themselves."""

from __future__ import annotations

import re

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.items.items import Items

SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
OPENING, SPAN = (3, 8), (4, 12)  # words, from and to
LONGEST = 24  # words of a sentence that are kept
ATTEMPTS = 4  # items looked at for each query wanted, before giving up on finding more


def cut_queries(items: Items, n: int, *, seed: int = 0) -> list[str]:
    """At most `n` different queries: openings, first sentences and spans of items drawn at random, in turn.

    Fewer where the items do not have so many different ones; an error where they have none.
    """
    check_positive("n", n)
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    for number, text in enumerate(_texts(items, n, rng)):
        query = _cut(text, number % 3, rng)
        if query:
            found[query] = None
        if len(found) == n:
            break
    if not found:
        raise InputError("no queries could be cut from the items: their texts are empty. Give queries=… instead.")
    return list(found)


def _texts(items: Items, n: int, rng: np.random.Generator) -> list[str]:
    """Of items drawn at random: each once if that is enough, else some again."""
    wanted = ATTEMPTS * n
    turns = -(-wanted // len(items))
    rows = np.concatenate([rng.permutation(len(items))[:wanted] for _ in range(min(turns, 3 * ATTEMPTS))])
    return items.texts_of(rows[:wanted])


def _cut(text: str, kind: int, rng: np.random.Generator) -> str:
    """A part of the text, with its spaces made single."""
    if kind == 1:
        text = SENTENCE_END.split(text.strip(), maxsplit=1)[0]
        return " ".join(text.split()[:LONGEST])
    words = text.split()
    fewest, most = OPENING if kind == 0 else SPAN
    length = min(int(rng.integers(fewest, most + 1)), len(words))
    start = 0 if kind == 0 else int(rng.integers(len(words) - length + 1))
    return " ".join(words[start : start + length])
