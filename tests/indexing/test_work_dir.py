"""Verification of work folders: what a run would reuse is read, and each damaged file is named."""

import os
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.encoders.item_encoding import encode_items
from crossknn.errors import InputError
from crossknn.indexing import verify_work_dir
from crossknn.indexing.pair_scoring import open_score_log, score_pairs_into
from crossknn.indexing.score_matrix import all_pairs
from crossknn.indexing.score_sources import open_scored_lists, read_scored_lists
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.scorers.cached import Cached
from crossknn.storage.atomic import digest
from crossknn.storage.safetensors import write_checked
from crossknn.storage.score_log import MAX_ROWS

ITEMS, QUERIES = Items([f"item {row}" for row in range(12)]), ["one", "two"]
ENCODER = function_encoder(lambda texts: np.ones((len(texts), 3)), fingerprint="ones")
SCORER = function_scorer(lambda pairs: [len(query) + len(item) / 8 for query, item in pairs], fingerprint="lengths")


@pytest.fixture
def work(tmp_path):
    """A folder with everything that builds, teachings and learnings leave."""
    folder = tmp_path / "work"
    folder.mkdir()
    encode_items(ITEMS, ENCODER, path=folder / "vectors-1.npy")
    score_pairs_into(open_score_log(folder, SCORER), all_pairs(2, 12), QUERIES, ITEMS, SCORER, chunk=10)
    cache = Cached(SCORER, folder / "server-scores.db")
    cache.score(QUERIES, ["x", "y"])
    cache.close()
    (folder / "teaching-1").mkdir()
    for name in ("lists-1", "checkpoint"):
        write_checked(folder / "teaching-1" / f"{name}.safetensors", {"scores": np.arange(9)})

    def interrupted():
        with open_scored_lists([folder], QUERIES, ITEMS, scorer="lengths", work_dir=folder):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    return folder


def test_a_whole_folder_is_counted(work):
    report = verify_work_dir(work)
    assert (report.rows, report.scores, report.damaged) == (12, 26, ())
    assert report.files == 2 + 3 + 1 + 2 + 1
    assert f"{report.bytes:,} bytes read in 9 files: 12 rows of arrays, 26 scores" in str(report)


@pytest.mark.parametrize(
    "name",
    ["vectors-*.npy", "vectors-*.json", "scores/*.parquet", "*.db", "teaching-1/*1.*", "teaching-1/c*", "lists-*"],
)
def test_each_damaged_file_is_named(work, name):
    path = next(work.glob(name))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)
    (sentence,) = verify_work_dir(work).damaged
    assert str(path).removesuffix(".json") in sentence
    assert "damaged" in sentence


def test_an_unfinished_array_is_intact_and_a_lost_one_is_not(work):
    path = work / "vectors-1.npy"
    path.rename(work / "vectors-1.npy.partial")
    assert verify_work_dir(work).rows == 12
    (work / "vectors-1.npy.partial").unlink()
    (sentence,) = verify_work_dir(work).damaged
    assert f"{path}: damaged" in sentence


def test_another_folder_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=f"{folder}: no work folder"):
            verify_work_dir(folder)


STRUCTURE = {
    "a named pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "deep nesting": lambda path: path.write_bytes(b"[" * 200_000),
    "5000 digits": lambda path: path.write_bytes(b"9" * 5_000),
}
FILES = ["vectors-*.npy", "vectors-*.json", "scores/*.parquet", "scores/log.json", "scores/plan-*", "*.db", "lists-*"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
@pytest.mark.parametrize("kind", STRUCTURE)
@pytest.mark.parametrize("name", [*FILES, "teaching-1/c*"])
def test_anything_in_the_place_of_a_file_is_damage(work, name, kind):
    """Nothing is waited for, and nothing is read without end."""
    path = next(work.glob(name))
    STRUCTURE[kind](path)
    if kind != "a folder" or path.name == "log.json":  # a folder is no file of the work folder
        assert len(verify_work_dir(work).damaged) == 1
    for run in (
        lambda: encode_items(ITEMS, ENCODER, path=work / "vectors-1.npy"),
        lambda: score_pairs_into(open_score_log(work, SCORER), all_pairs(2, 12), QUERIES, ITEMS, SCORER, chunk=10),
        lambda: Cached(SCORER, work / "server-scores.db").close(),
        lambda: list(read_scored_lists(work, QUERIES, ITEMS, scorer="lengths")),
    ):
        with suppress(InputError):  # or it is computed again
            run()


def test_a_chunk_of_few_bytes_and_many_rows_is_refused(work):
    log = open_score_log(work, SCORER)
    path = next((work / "scores").glob("*.parquet"))
    rows = MAX_ROWS + 1
    table = pa.table({name: pa.repeat(pa.scalar(bytes(16), pa.binary(16)), rows) for name in ("query", "item")})
    pq.write_table(table.append_column("score", pa.repeat(pa.scalar(0, pa.float32()), rows)), path)
    crafted = path.rename(path.with_name(f"{path.name[:24]}{digest(path.read_bytes())}.parquet"))
    with pytest.raises(InputError, match=f"{crafted}: not a chunk of scores .*unpack to {rows:,} rows"):
        log.read(crafted.name)
