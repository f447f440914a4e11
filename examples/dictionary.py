"""Search a dictionary by meaning with the embedded models and WordNet; needs no hub, no data and no GPU.

python examples/dictionary.py
python examples/dictionary.py "he sat on the [bank] of the river" --senses 13000
"""

from __future__ import annotations

import argparse

import crossknn as ck
from crossknn.example.wordnet import senses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query", nargs="?", default="to move faster than walking", help="meaning to search for")
    parser.add_argument("--senses", type=int, default=1000, help="number of senses to search")
    parser.add_argument("--budget", type=int, default=50, help="cross-encoder calls")
    arguments = parser.parse_args()

    items = senses(arguments.senses)
    scorer, encoder = ck.CrossEncoder("embedded"), ck.SentenceEncoder("embedded")
    vectors = ck.encoders.encode_items(items, encoder)
    searcher = ck.Searcher(items, scorer=scorer, encoder=encoder, vectors=vectors)
    for strategy in (ck.Rerank(arguments.budget), ck.Axn(arguments.budget, rounds=5)):
        hits = searcher.search(arguments.query, k=3, strategy=strategy)
        print(f"{strategy}: {hits.calls} calls for {len(items)} senses")
        for hit in hits:
            print(f"{hit.score:8.2f}  {items.text(hit.row)}")


if __name__ == "__main__":
    main()
