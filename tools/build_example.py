"""Corpus and queries of the embedded example, made from WordNet's database files.

    apt-get install wordnet-base
    python -m tools.build_example --wordnet /usr/share/wordnet

Senses are sorted by familiarity, so that the first n of them make a small dictionary of everyday words.
Queries are WordNet's own example sentences with the word in brackets, split by sense: no sense has queries in two
splits.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tools.wordnet import PART_OF_SPEECH, Synset, WordNet, mark

DATA = Path(__file__).parent.parent / "crossknn" / "example" / "data"
MIN_WORDS = 3  # of a query: "[stout] seamen" says too little
HELD_OUT_SHARE = {"test": 0.08, "dev": 0.04}  # share of the senses with queries; the others are for training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--out", type=Path, default=DATA)
    arguments = parser.parse_args()
    wordnet = WordNet.read(arguments.wordnet)
    synsets = wordnet.by_familiarity()
    queries = make_queries(wordnet, synsets)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(arguments.out / "senses.jsonl.xz", ({"_id": wordnet.name(s), "text": describe(s)} for s in synsets))
    write(arguments.out / "queries.jsonl.xz", queries)
    print(f"{len(synsets):,} senses, queries: {dict(Counter(query['split'] for query in queries))}")


def describe(synset: Synset) -> str:
    """An item: `bank, cant, camber (noun): a slope in the turn of a road or track; …`."""
    return f"{', '.join(synset.lemmas)} ({PART_OF_SPEECH[synset.pos]}): {'; '.join(synset.parts)}"


def make_queries(wordnet: WordNet, synsets: Iterable[Synset]) -> list[dict[str, str]]:
    """Sentences with their word marked; those that are ambiguous or belong to several senses are dropped."""
    found = []
    for synset in synsets:
        for text in filter(None, (mark(wordnet, synset, example) for example in synset.examples)):
            name = wordnet.name(synset)
            found.append({"text": text, "sense": name, "split": split_of(name)})
    seen = Counter(query["text"].lower() for query in found)
    return [query for query in found if seen[query["text"].lower()] == 1 and len(query["text"].split()) >= MIN_WORDS]


def split_of(sense: str) -> str:
    """The split of a sense, by the hash of its id: the same in every version of the corpus."""
    place = int.from_bytes(blake2b(sense.encode(), digest_size=8).digest()) / 2**64
    if place < HELD_OUT_SHARE["test"]:
        return "test"
    return "dev" if place < HELD_OUT_SHARE["test"] + HELD_OUT_SHARE["dev"] else "train"


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
