"""A large index without a model: for what depends on the number of items only, such as memory and start-up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np

from crossknn.encoders.base import function_encoder
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer

DIM, WORDS, VOCABULARY, QUERIES = 384, 24, 50_000, 500


def read_items(corpus: Path | None, items: int) -> Items:
    """The items of a corpus, or so many made of words, of which some are frequent."""
    if corpus is not None:
        return Items.from_jsonl(corpus)
    rng = np.random.default_rng(0)
    return Items(" ".join(f"word{w}" for w in rng.zipf(1.2, WORDS) % VOCABULARY) for _ in range(items))


def build_index(items: Items, folder: Path, *, prior: bool, work: Path | None = None) -> Index:
    """An index of the encoder's vectors in the folder; with a prior it costs 8 calls per item."""
    queries = [" ".join(text.split()[:8]) or "none" for text in items.texts[:: -(-len(items) // QUERIES)]]
    index = Index.build(
        items, scorer=SCORER, encoder=ENCODER, queries=queries, factors=None, prior=prior, work_dir=work
    )
    index.save(folder)
    return index


def draw_vectors(texts: Sequence[str]) -> np.ndarray:
    """(texts, DIM) of length 1: any text has its own, always the same."""
    drawn = [np.random.default_rng(crc32(text.encode())).standard_normal(DIM, np.float32) for text in texts]
    return np.stack(drawn) / np.float32(DIM**0.5)


def count_shared(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The share of an item's words that the query has, too."""
    return [len(words(query) & set(item.split())) / (1 + len(item.split())) for query, item in pairs]


@cache
def words(query: str) -> frozenset[str]:
    return frozenset(query.split())


ENCODER = function_encoder(draw_vectors, fingerprint="drawn")
SCORER = function_scorer(count_shared, fingerprint="shared words")
