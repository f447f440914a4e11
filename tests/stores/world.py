"""A small corpus with fields of every kind that stores can filter by, nulls among them, and its vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.search.searcher import Searcher

ROWS, DIM = 240, 12
RNG = np.random.default_rng(0)
CENTERS = RNG.normal(size=(12, DIM))
VECTORS = (CENTERS[RNG.integers(0, 12, ROWS)] + 0.7 * RNG.normal(size=(ROWS, DIM))).astype(np.float32)
QUERIES = (CENTERS[:6] + 0.4 * RNG.normal(size=(6, DIM))).astype(np.float32)
NAMES = [f"query {number} word{number}" for number in range(len(QUERIES))]
HIDDEN = QUERIES + 0.3 * RNG.normal(size=QUERIES.shape).astype(np.float32)
SCORES = HIDDEN @ VECTORS.T + 0.5 * RNG.normal(size=(len(QUERIES), ROWS)).astype(np.float32)

FIELDS: dict[str, list[Any]] = {
    "lang": [("de", "en", None, "it's")[row % 4] for row in range(ROWS)],
    "size": [None if row % 11 == 5 else 3 * row - 100 for row in range(ROWS)],
    "rate": [None if row % 7 == 3 else row / 8 for row in range(ROWS)],
    "free": [(True, False, None)[row % 3] for row in range(ROWS)],
    "tags": [(["a", "b"], ["b"], None, ["c"])[row % 4] for row in range(ROWS)],
}
ITEMS = Items(
    [f"word{row % 9} text {row} ümlaut" for row in range(ROWS)], ids=[str(row) for row in range(ROWS)], fields=FIELDS
)
FILTERS: list[dict[str, Any]] = [
    {"lang": "de"},
    {"lang": {"ne": "de"}},
    {"lang": ["it's", "en"]},
    {"lang": {"not_in": ["it's", "none"]}},
    {"lang": {"gt": "de"}},
    {"lang": {"in": []}},
    {"lang": {"not_in": []}},
    {"size": {"ge": 5, "lt": 200}},
    {"size": 80},
    {"size": {"gt": 5.5}},
    {"size": {"ne": 80}},
    {"size": {"lt": 2**60}},
    {"rate": {"le": 3.5}},
    {"rate": [0.5, 2, 7.25]},
    {"rate": {"gt": -1}},
    {"free": True},
    {"free": {"ne": True}},
    {"tags": "b"},
    {"tags": {"ne": "b"}},
    {"tags": ["a", "c"]},
    {"_id": ["3", "4", "999"]},
    {"_id": {"not_in": ["3", "4"]}, "lang": "en"},
    {"not": {"size": {"ge": 5}}},
    {"not": {"lang": "de", "free": True}},
    {"or": [{"lang": "de"}, {"and": [{"size": {"lt": 0}}, {"free": False}]}]},
]


def records() -> list[dict[str, Any]]:
    """Each item as a mapping with `_id`, `text` and the fields that are not null."""
    fields = ITEMS.fields_of(range(ROWS))
    return [
        {"_id": ITEMS.id(row), "text": ITEMS.text(row), **{k: v for k, v in one.items() if v is not None}}
        for row, one in enumerate(fields)
    ]


def searcher(store: Any, **options: Any) -> Searcher:
    """A searcher over a store, whose scores are a little off the vectors."""
    rows = {text: row for row, text in enumerate(ITEMS.texts)}

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(SCORES[NAMES.index(query), rows[item]]) for query, item in pairs]

    encoder = PrecomputedEncoder(queries=dict(zip(NAMES, QUERIES, strict=True)))
    return Searcher(store, scorer=function_scorer(score), encoder=encoder, **options)
