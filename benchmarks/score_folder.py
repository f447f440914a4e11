"""Makes a folder of exact cross-encoder scores from a set of texts, for `crossknn bench matrix`.

    python -m benchmarks.score_folder <set> --scorer <folder> --encoder <folder> --out <folder>

All items for `--test` test queries and `--train` train queries, drawn by the seed: scores in half precision with the
1,000 best of each query in single precision beside them, the encoder's vectors, texts and judgments. What is there
already is not made again.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sets import Drawn, Set, add_options, open_scorer, read_set
from crossknn.encoders.item_encoding import encode_items
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.ground_truth import exact_scores, truth_rows
from crossknn.types import Scorer

PARTS = ("test", "train")
BEST = 1_000  # of each query, kept in single precision


def main() -> None:
    options = read_options()
    scorer = open_scorer(options)
    data = read_set(options.set, scorer, options)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.scores_only or PARTS:
        write_scores(options.out, name, data, getattr(data, name), scorer, options.work)
    if options.scores_only is None:
        write_vectors(options.out, data, SentenceEncoder(options.encoder, device=options.device))
        write_texts(options.out / "texts.json.xz", data)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set")
    add_options(parser, train=100, test=100)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scores-only", nargs="*", choices=PARTS, help="no vectors, no texts; of both parts, or one")
    return parser.parse_args()


def write_scores(out: Path, name: str, data: Set, queries: Drawn, scorer: Scorer, work: Path) -> None:
    path = out / f"{name}_scores.f16.npy"
    if not path.exists():
        scores = exact_scores(data.items, queries.texts, scorer, work)
        rows = np.stack(truth_rows(scores, min(BEST, len(data.items)))).astype(np.int32)
        np.savez(out / f"{name}_top1000.npz", rows=rows, scores=np.take_along_axis(scores, rows, axis=1))
        np.save(path, scores.astype(np.float16))
    print(data.name, path.name, flush=True)


def write_vectors(out: Path, data: Set, encoder: SentenceEncoder) -> None:
    wanted: dict[str, Callable[[], Any]] = {
        "item_embeddings": lambda: encode_items(data.items, encoder),
        "test_query_embeddings": lambda: encoder.encode_queries(data.test.texts),
        "train_query_embeddings": lambda: encoder.encode_queries(data.train.texts),
    }
    for name, encode in wanted.items():
        path = out / f"{name}.f16.npy"
        if not path.exists():
            np.save(path, np.asarray(encode(), np.float16))
        print(data.name, path.name, flush=True)


def write_texts(path: Path, data: Set) -> None:
    parts = {"test": data.test, "train": data.train}
    queries = {
        name: [
            {"id": f"{name} {place}", "text": text, "relevant": relevant}
            for place, (text, relevant) in enumerate(zip(part.texts, part.relevant, strict=True))
        ]
        for name, part in parts.items()
    }
    texts = {"item_ids": list(data.items.ids), "items": list(data.items.texts), **queries}
    with lzma.open(path, "wt", encoding="utf-8") as file:
        json.dump(texts, file)


if __name__ == "__main__":
    main()
