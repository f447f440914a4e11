import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.encoders.item_encoding import count_encoded, encode_items
from crossknn.errors import EncoderError, InputError
from crossknn.items.items import Items
from tests.paths import ROOT

TEXTS = [f"text {row} " + "x" * row for row in range(10)]


class Counting:
    """Logs the texts it encoded to disk, so that it can be killed."""

    def __init__(self, log, fingerprint="counting", kill_after=None):
        self.log = Path(log)
        self.fingerprint = fingerprint
        self.kill_after = kill_after

    def encode_queries(self, texts):
        return np.array([[len(text), text.count("1"), 0.5] for text in texts], np.float32).reshape(-1, 3)

    def encode_items(self, texts):
        if self.kill_after is not None and len(self.encoded()) >= self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as log:
            log.writelines(f"{text}\n" for text in texts)
        return self.encode_queries(texts)

    def encoded(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def encoder(tmp_path):
    return Counting(tmp_path / "log")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("block", [1, 3, 10, 100])
def test_memory_and_file_are_equal(tmp_path, encoder, block, dtype):
    expected = encoder.encode_queries(TEXTS)
    memory = encode_items(Items(TEXTS), encoder, block=block, dtype=dtype)
    mapped = encode_items(Items(TEXTS), encoder, block=block, dtype=dtype, path=tmp_path / "v.npy")
    for vectors in (memory, mapped):
        assert vectors.dtype == dtype
        np.testing.assert_array_equal(vectors, expected)
    assert isinstance(mapped, np.memmap)
    assert sorted(path.name for path in tmp_path.glob("v.*")) == ["v.npy", "v.npy.json"]


@pytest.mark.parametrize(("at_once", "sizes"), [(None, [256, 256, 256, 256, 256, 256, 64]), (1500, [1500, 100])])
def test_an_encoder_gets_as_many_texts_as_its_at_once(at_once, sizes):
    given = []

    class AtOnce:
        fingerprint = "at once"

        def encode_items(self, texts):
            given.append(len(texts))
            return np.array([[len(text)] for text in texts], np.float32).reshape(-1, 1)

    if at_once is not None:
        AtOnce.at_once = at_once
    texts = ["x" * (row % 97) for row in range(1600)]
    vectors = encode_items(Items(texts), AtOnce())
    assert vectors[:, 0].tolist() == [len(text) for text in texts]
    assert given == [0, *sizes]  # no texts first, for the dimension


class Slow(Counting):
    """Takes some time for every call."""

    def encode_queries(self, texts):
        time.sleep(0.01)
        return super().encode_queries(texts)


def test_of_concurrent_runs_one_encodes_and_the_others_wait(tmp_path):
    encoder = Slow(tmp_path / "log")
    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(lambda _: encode_items(Items(TEXTS), encoder, path=tmp_path / "v.npy", block=3), range(3))
        )
    for vectors in found:
        np.testing.assert_array_equal(vectors, encoder.encode_queries(TEXTS))
    assert sorted(encoder.encoded()) == sorted(TEXTS)


def test_a_complete_file_is_only_opened(tmp_path, encoder):
    assert count_encoded(Items(TEXTS), encoder, path=tmp_path / "v.npy") == 0
    first = encode_items(Items(TEXTS), encoder, path=tmp_path / "v.npy")
    again = encode_items(Items(TEXTS), encoder, path=tmp_path / "v.npy")
    np.testing.assert_array_equal(first, again)
    assert count_encoded(Items(TEXTS), encoder, path=tmp_path / "v.npy") == len(TEXTS)
    assert len(encoder.encoded()) == len(TEXTS)


def test_progress_is_told(encoder):
    reports = []
    encode_items(Items(TEXTS), encoder, block=4, progress=lambda *step: reports.append(step))
    assert reports == [("encode items", done, 10) for done in (4, 8, 10)]


@pytest.mark.parametrize("kill_after", [1, 4, 8])
def test_a_killed_run_is_resumed(tmp_path, encoder, kill_after):
    code = (
        "from tests.encoders.test_item_encoding import *\n"
        f"encoder = Counting({str(encoder.log)!r}, kill_after={kill_after})\n"
        f"encode_items(Items(TEXTS), encoder, block=2, path={str(tmp_path / 'v.npy')!r})\n"
    )
    root = ROOT
    killed = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < len(encoder.encoded()) < len(TEXTS)
    assert count_encoded(Items(TEXTS), encoder, path=tmp_path / "v.npy") == len(encoder.encoded())
    assert not (tmp_path / "v.npy").exists()
    vectors = encode_items(Items(TEXTS), encoder, block=3, path=tmp_path / "v.npy")
    np.testing.assert_array_equal(vectors, encode_items(Items(TEXTS), Counting(tmp_path / "other")))
    assert encoder.encoded() == TEXTS  # every text once, none twice


def test_bytes_that_the_sidecar_does_not_list_are_overwritten(tmp_path, encoder):
    class Stops(Counting):
        def encode_items(self, texts):
            if texts and "text 4" in texts[0]:
                raise RuntimeError("out of memory")
            return super().encode_items(texts)

    with pytest.raises(RuntimeError):
        encode_items(Items(TEXTS), Stops(tmp_path / "log"), block=2, path=tmp_path / "v.npy")
    with (tmp_path / "v.npy.partial").open("ab") as file:
        file.write(b"half a row")
    vectors = encode_items(Items(TEXTS), encoder, block=2, path=tmp_path / "v.npy")
    np.testing.assert_array_equal(vectors, encoder.encode_queries(TEXTS))


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder": "other"}, "computed with encoder 'counting', not 'other'"),
        ({"items": TEXTS[::-1]}, "computed with items '"),
        ({"dtype": "float32"}, "computed with dtype 'float16', not 'float32'"),
    ],
)
def test_vectors_of_other_inputs_are_refused(tmp_path, encoder, change, message, finished):
    path = tmp_path / "v.npy"
    encode_items(Items(TEXTS), encoder, path=path)
    if not finished:
        path.rename(tmp_path / "v.npy.partial")
    other = Counting(tmp_path / "log", change.get("encoder", "counting"))
    for act in (encode_items, count_encoded):
        with pytest.raises(InputError, match=message):
            act(Items(change.get("items", TEXTS)), other, path=path, dtype=change.get("dtype", "float16"))


def test_a_kill_just_before_the_rename_costs_nothing(tmp_path, encoder):
    path = tmp_path / "v.npy"
    encode_items(Items(TEXTS), encoder, path=path)
    path.rename(tmp_path / "v.npy.partial")
    np.testing.assert_array_equal(encode_items(Items(TEXTS), encoder, path=path), encoder.encode_queries(TEXTS))
    assert len(encoder.encoded()) == len(TEXTS)


def test_unknown_files_are_refused(tmp_path, encoder):
    path = tmp_path / "v.npy"
    np.save(path, np.ones((2, 2)))
    with pytest.raises(InputError, match=r"its description v.npy.json is missing"):
        encode_items(Items(TEXTS), encoder, path=path)
    (tmp_path / "v.npy.json").write_text("[]")
    with pytest.raises(InputError, match="not the description of an array"):
        encode_items(Items(TEXTS), encoder, path=path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "`dtype` must be one of 'float16', 'float32', got 'int8'"),
        ({"block": 0}, "`block` must be a positive integer, got 0"),
        ({"path": "v.bin"}, "`path` must be a file that ends in .npy, got 'v.bin'"),
    ],
)
def test_bad_options(encoder, options, message):
    with pytest.raises(InputError, match=message):
        encode_items(Items(TEXTS), encoder, **options)


def test_an_encoder_without_a_name_is_not_stored(tmp_path):
    encoder = function_encoder(lambda texts: np.ones((len(texts), 2)))
    with pytest.raises(InputError, match="give function_encoder a fingerprint"):
        encode_items(Items(TEXTS), encoder, path=tmp_path / "v.npy")


def test_vectors_too_large_for_float16():
    encoder = function_encoder(lambda texts: np.full((len(texts), 2), 1e6))
    with pytest.raises(EncoderError, match='do not fit in float16: use dtype="float32"'):
        encode_items(Items(TEXTS), encoder)
    assert encode_items(Items(TEXTS), encoder, dtype="float32").max() == 1e6


def test_texts_are_encoded_by_length_and_come_back_in_order(encoder, monkeypatch):
    monkeypatch.setattr("crossknn.encoders.item_encoding.CALL_TEXTS", 3)
    texts, reports = ["x" * length for length in (9, 1, 7, 3, 8, 2, 6)], []
    vectors = encode_items(Items(texts), encoder, block=5, dtype="float32", progress=lambda *step: reports.append(step))
    np.testing.assert_array_equal(vectors, encoder.encode_items(texts))
    assert [done for _, done, _ in reports] == [3, 5, 7]


def test_known_vectors_are_copied_and_nothing_is_encoded(tmp_path, encoder):
    known = np.arange(30, dtype=np.float32).reshape(10, 3)
    for vectors in (
        encode_items(Items(TEXTS), encoder, known=known, block=4),
        encode_items(Items(TEXTS), encoder, known=known, block=4, path=tmp_path / "v.npy"),
    ):
        assert vectors.dtype == np.float16
        np.testing.assert_array_equal(vectors, known)
    assert encoder.encoded() == []
