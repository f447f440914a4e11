"""Sets of texts as benchmarks take them: some train and test queries, drawn by a seed, and the models of a run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from crossknn.evaluate.datasets import Dataset
from crossknn.evaluate.tasks import marks_of
from crossknn.example import wordnet as example
from crossknn.items.items import Items
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder, is_emb_cross_encoder
from crossknn.types import Scorer


@dataclass(frozen=True)
class Drawn:
    """Queries, no text twice, and the ids of each one's relevant items."""

    texts: list[str]
    relevant: list[list[str]]


@dataclass(frozen=True)
class Set:
    name: str
    items: Items
    train: Drawn
    test: Drawn


def add_options(parser: argparse.ArgumentParser, *, train: int, test: int) -> None:
    """What `read_set` and `open_scorer` read."""
    parser.add_argument("--scorer", required=True)
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--train-split", default="train", help='"pseudo" for generated queries')
    parser.add_argument("--train", type=int, default=train, help="train queries")
    parser.add_argument("--test", type=int, default=test, help="test queries, each scored against all items")
    parser.add_argument("--senses", type=int, default=15_000, help="of the embedded example")
    parser.add_argument("--max-query-tokens", type=int, help="cut queries before they are scored")
    parser.add_argument("--max-item-tokens", type=int, help="cut items before they are scored")
    parser.add_argument("--work", type=Path, default=Path(".work"), help="keeps exact scores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="auto")


def open_scorer(options: argparse.Namespace) -> Scorer:
    kind = EmbCrossEncoder if is_emb_cross_encoder(options.scorer) else CrossEncoder
    return kind(
        options.scorer,
        device=options.device,
        dtype=options.dtype,
        max_query_tokens=options.max_query_tokens,
        max_item_tokens=options.max_item_tokens,
    )


def read_set(name: str, scorer: Scorer, options: argparse.Namespace) -> Set:
    """What `name` has, a set that `crossknn bench set` takes or "example"; no train query has the text of a test's."""
    if name == "example":
        items = example.senses(options.senses)
        queries = {
            split: {query.text: [query.sense] for query in example.queries(split, among=items)}
            for split in ("train", "test")
        }
    else:
        data = Dataset.open(name, seed=options.seed, **marks_of(scorer))
        items = data.items
        splits = {"train": data.split(options.train_split), "test": data.split("test")}
        queries = {
            which: {text: list(ids) for text, ids in zip(split.texts, split.relevant, strict=True)}
            for which, split in splits.items()
        }
    rng = np.random.default_rng(options.seed)
    test = _draw(queries["test"], options.test, rng)
    left = {text: ids for text, ids in queries["train"].items() if text not in set(test.texts)}
    return Set(Path(name).name, items, _draw(left, options.train, rng), test)


def _draw(queries: dict[str, list[str]], count: int, rng: np.random.Generator) -> Drawn:
    """As many in an order drawn at random, or all in their own order."""
    texts = list(queries)
    places = range(len(texts)) if count == len(texts) else rng.permutation(len(texts))[:count]
    chosen = [texts[place] for place in places]
    return Drawn(chosen, [queries[text] for text in chosen])
