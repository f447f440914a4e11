"""Writes tests/data/wordnet-scores: exact scores of the embedded cross-encoder, for tests that need real ones.

python -m tools.make_test_scores
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.example import wordnet

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "wordnet-scores"
SENSES = 1_000
QUERIES = 60  # the first half are train queries, as everywhere where a folder has no train part


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    items = wordnet.senses(SENSES)
    scorer, encoder = ck.CrossEncoder("embedded", dtype="float32"), ck.SentenceEncoder("embedded")
    bm25 = ck.Bm25().fit(items)
    save("item_embeddings.f16", encoder.encode_items(list(items.texts)))
    chosen = wordnet.queries("test", among=items)[:QUERIES]
    texts = [query.text for query in chosen]
    lexical = np.zeros((len(texts), len(items)), np.float32)
    for row, proposal in zip(lexical, bm25.retrieve(texts, len(items)), strict=True):
        row[proposal.rows] = proposal.estimates
    save("test_scores.f16", np.array([scorer.score([text] * len(items), list(items.texts)) for text in texts]))
    save("test_query_embeddings.f16", encoder.encode_queries(texts))
    save("test_bm25.f16", lexical)
    relevant = [[items.row(query.sense)] for query in chosen]
    (FOLDER / "test_relevant_rows.json").write_text(json.dumps(relevant) + "\n", encoding="utf-8")


def save(name: str, array: np.ndarray) -> None:
    np.save(FOLDER / f"{name}.npy", array.astype(np.float16))


if __name__ == "__main__":
    main()
