"""WordNet's senses as items, and queries from its example sentences.

`README.md` in this folder gives the origin and the licenses of the data and the model.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from crossknn._checks import check_choice, invalid
from crossknn.items.items import Items

DATA = Path(__file__).parent / "data"
SENSES = 117_659
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class ExampleQuery:
    """A sentence with one word in brackets, and the id of the sense in which it uses that word."""

    text: str
    sense: str


def senses(n: int | None = None) -> Items:
    """The `n` most familiar senses of WordNet as items with their words and part of speech; all by default."""
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= SENSES):
        raise invalid("n", f"an integer between 1 and {SENSES}, or None for all", n)
    records = list(islice(_read("senses.jsonl.xz"), n))
    texts = [record["text"] for record in records]
    heads = [text.partition("): ")[0].rpartition(" (") for text in texts]  # "espresso maker (noun): …"
    fields = {
        "words": [words.split(", ") for words, _, _ in heads],
        "part_of_speech": [part_of_speech for _, _, part_of_speech in heads],
    }
    return Items(texts, ids=[record["_id"] for record in records], fields=fields)


def queries(split: str = "test", *, among: Items | None = None) -> list[ExampleQuery]:
    """The queries of a split ("train", "dev" or "test"); with `among`, those whose sense is one of these items.

    No sense has queries in two splits, and the cross-encoder was trained on "train" only.
    """
    check_choice("split", split, SPLITS)
    known = None if among is None else set(among.ids)
    found = (ExampleQuery(q["text"], q["sense"]) for q in _read("queries.jsonl.xz") if q["split"] == split)
    return [query for query in found if known is None or query.sense in known]


def _read(name: str) -> Iterator[dict[str, Any]]:
    with lzma.open(DATA / name, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
