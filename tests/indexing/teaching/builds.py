"""Builds that teach in a fraction of a second: 60 items, 8 lists, a tiny encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.indexing.index import Index
from crossknn.indexing.teaching.settings import Teaching
from crossknn.items.items import Items
from crossknn.types import Encoder
from tests.indexing.teaching import world

ITEMS = Items(world.ITEMS.texts[:60], ids=[f"d{row}" for row in range(60)])
NEW_ITEMS = Items(world.ITEMS.texts[60:65], ids=[f"new{row}" for row in range(5)])
QUERIES, NEW_QUERIES = world.QUERIES[:20], world.QUERIES[20:24]
TEACHING = Teaching(  # so few lists that none is held out: what is taught is used
    lists=8, items_per_list=8, rounds=1, epochs=4, batch=4, items_per_step=6, best_items=2, learning_rate=3e-3
)
OTHER_TEACHING = replace(TEACHING, seed=1)


def save_encoder(folder: Path) -> SentenceEncoder:
    """A tiny encoder, saved and opened."""
    return SentenceEncoder(world.save_encoder(folder / "tiny"), device="cpu")


def build(encoder: Encoder, *, teacher: world.Teacher | None = None, **options) -> Index:
    """An index with a taught encoder; scored by the teacher, if given, which remembers its pairs."""
    scorer = (teacher or world.Teacher()).scorer
    settings = {"scorer": scorer, "encoder": encoder, "queries": QUERIES, "teach": TEACHING, **options}
    return Index.build(settings.pop("items", ITEMS), **settings)


def nearest(encoder: Encoder, query: str, n: int, items: Items = ITEMS) -> set[str]:
    """The ids of the items with the largest inner products."""
    products = encoder.encode_items(items.texts) @ encoder.encode_queries([query])[0]
    return set(items.ids_of(np.argsort(-products)[:n]))
