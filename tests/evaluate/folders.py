"""Tiny folders to run benchmarks on: exact scores that vectors explain, and texts with judgments."""

import json
import lzma
from pathlib import Path

import numpy as np

from tests.scorers import tiny
from tests.worlds import World


def write_scores(folder: Path, *, items: int = 60, queries: int = 12, train: int = 0, ranked: str = "bm25") -> World:
    """A folder of exact scores; `ranked` says what BM25 is made of: "bm25" scores, "texts", or nothing."""
    world = World.low_rank(queries=queries + train, items=items)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "item_embeddings.f16.npy", np.asarray(world.vectors, np.float16))
    for name, part in (("train", slice(train)), ("test", slice(train, None)))[0 if train else 1 :]:
        np.save(folder / f"{name}_scores.f16.npy", world.scores[part].astype(np.float16))
        np.save(folder / f"{name}_query_embeddings.f16.npy", np.asarray(world.query_vectors, np.float16)[part])
        if ranked == "bm25":
            np.save(folder / f"{name}_bm25.f16.npy", (world.scores[part] + 1).astype(np.float16))
    if ranked == "texts":
        texts = {
            "item_ids": [f"d{row}" for row in range(items)],
            "items": [tiny.words(row, 8) for row in range(items)],
            "test": [{"id": f"q{n}", "text": tiny.words(n, 5), "relevant": [f"d{n}"]} for n in range(queries)],
            "train": [{"id": f"t{n}", "text": tiny.words(n, 4), "relevant": [f"d{n}"]} for n in range(train)],
        }
        (folder / "texts.json.xz").write_bytes(lzma.compress(json.dumps(texts).encode()))
    return world


def write_beir(folder: Path, *, items: int = 40, splits: tuple[str, ...] = ("train", "test")) -> None:
    """A BEIR folder in which query n of each split is a part of item n."""
    (folder / "qrels").mkdir(parents=True)
    texts = [tiny.words(row, 10) for row in range(items)]
    corpus = [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(texts)]
    queries = [
        {"_id": f"{split}{row}", "text": f"{' '.join(texts[row].split()[:4])} {split}"}
        for split in splits
        for row in range(6)
    ]
    for name, records in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for split in splits:
        lines = [f"{split}{row}\td{row}\t1\n" for row in range(6)]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
