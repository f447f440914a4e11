"""Disks that are full: one sentence that says so, nothing half-written that is taken for whole, nothing left behind."""

import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.encoders.item_encoding import encode_items
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.scorers.cached import Cached
from crossknn.storage.safetensors import write_checked

ITEMS = Items([f"item {row} " + "word " * 20 for row in range(3_000)])
ENCODER = function_encoder(
    lambda texts: np.array([[len(text), *range(1, 64)] for text in texts], np.float32).reshape(-1, 64),
    fingerprint="lengths",
)
SCORER = function_scorer(lambda pairs: [len(query) + len(item) / 9 for query, item in pairs], fingerprint="lengths")


@contextmanager
def files_of_at_most(size):
    """As a full disk: no file grows beyond this size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


WRITERS = {
    "c.arrow": ITEMS.to_arrow,
    "c.parquet": Items([f"{np.random.default_rng(row).bytes(80).hex()}" for row in range(3_000)]).to_parquet,
    "c.safetensors": lambda path: write_checked(path, {"a": np.zeros((3_000, 64))}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_written_whole_or_not_at_all(tmp_path, name):
    path, write = tmp_path / name, WRITERS[name]
    with files_of_at_most(60_000), pytest.raises(InputError, match=rf"{name}: .* cannot be written \(File too large\)"):
        write(path)
    assert names(tmp_path) == []
    write(path)
    before = path.read_bytes()
    with files_of_at_most(60_000), pytest.raises(InputError, match="cannot be written"):
        write(path)
    assert path.read_bytes() == before
    assert names(tmp_path) == [name]


def test_encoding_goes_on_where_it_stopped(tmp_path):
    path, encoded = tmp_path / "new" / "v.npy", []

    def encode(texts):
        encoded.extend(texts)
        return ENCODER.encode_items(texts)

    encoder = function_encoder(encode, fingerprint="lengths")
    with files_of_at_most(3_000 * 64 * 2 + 1_000):
        with files_of_at_most(100_000), pytest.raises(InputError, match=r"v\.npy: .*\(File too large\)"):
            encode_items(ITEMS, encoder, path=path)
        vectors = encode_items(ITEMS, encoder, path=path)
    np.testing.assert_array_equal(vectors, encode_items(ITEMS, ENCODER))


def test_a_save_leaves_what_was_there(tmp_path):
    index = Index.build(ITEMS, scorer=SCORER, encoder=ENCODER, queries=["ice", "rivers"], factors=None, teach=False)
    folder = tmp_path / "index"
    with files_of_at_most(370_000), pytest.raises(InputError, match=r"index: the index cannot be written"):
        index.save(folder)
    assert names(tmp_path) == []
    index.remove(["7"]).save(folder)
    before = names(folder)
    with files_of_at_most(370_000), pytest.raises(InputError, match="The previous content is unchanged"):
        index.save(folder)
    assert names(folder) == before
    assert Index.load(folder).verify()


def test_a_cache_says_that_the_disk_is_full(tmp_path):
    cache = Cached(SCORER, tmp_path / "scores.db")
    texts = [f"query {number}" for number in range(4_000)]
    with files_of_at_most(200_000), pytest.raises(InputError, match=r"scores\.db cannot be used: the disk is full"):
        cache.score(texts, texts)
    assert len(cache.score(texts, texts)) == len(texts)


def test_a_device_is_written_to_and_not_replaced():
    with pytest.raises(InputError, match=r"/dev/full: .*No space left on device\). The disk is full"):
        ITEMS.to_arrow("/dev/full")
    assert not Path("/dev/full").is_file()
