"""Arrays in safetensors files: what was written is read back, also by safetensors itself, and damage is named."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from crossknn.errors import InputError
from crossknn.storage import safetensors as module
from crossknn.storage.safetensors import (
    Tensor,
    map_tensor,
    read_arrays,
    read_checked,
    read_header,
    write_arrays,
    write_checked,
)

WORLD = {
    "vectors": np.arange(12, dtype=np.float16).reshape(4, 3),
    "nothing": np.empty((0, 3), np.float32),
    "number": np.array(2.5, np.float64),
    "rows": np.array([3, 1], np.int32),
}


@pytest.fixture
def path(tmp_path):
    write_arrays(tmp_path / "world.safetensors", WORLD)
    return tmp_path / "world.safetensors"


def same(found, wanted):
    return {k: (v.dtype, v.shape, v.tobytes()) for k, v in found.items()} == {
        k: (v.dtype, v.shape, v.tobytes()) for k, v in wanted.items()
    }


def test_what_was_written_is_read_back_mapped_and_read_only(path):
    found = read_arrays(path)
    assert same(found, WORLD)
    assert isinstance(found["vectors"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        found["vectors"][0] = 1


def test_safetensors_reads_it_and_we_read_safetensors(path, tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    assert same(library.load_file(path), WORLD)
    library.save_file({"a": WORLD["vectors"]}, tmp_path / "theirs", metadata={"made": "elsewhere"})
    assert same(read_arrays(tmp_path / "theirs"), {"a": WORLD["vectors"]})


@given(st.lists(arrays(np.float32, array_shapes(max_dims=3, max_side=7), elements=st.floats(width=32)), max_size=3))
def test_any_arrays(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("arrays") / "any"
    wanted = {f"array {number}": value for number, value in enumerate(values)}
    write_arrays(path, wanted)
    assert same(read_arrays(path), wanted)


def test_blocks_and_other_orders_of_memory_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 10)
    wanted = {"turned": np.asfortranarray(np.arange(20, dtype=np.float32).reshape(5, 4)), "part": np.arange(20)[::3]}
    write_arrays(tmp_path / "a", wanted)
    assert same(read_arrays(tmp_path / "a"), wanted)


def test_a_dtype_without_a_name_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"`texts` must be of dtype float16, .*, got '<U1'"):
        write_arrays(tmp_path / "a", {"texts": np.array(["a"])})


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(**changes):
    return {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its header does not end within the file"),
        (b"\xff" * 20, "its header does not end within the file"),
        (with_header(b"{nonsense"), "its header cannot be read"),
        (with_header([1]), "names no tensors"),
        (with_header({"a": 3}), "'a' is not described as a tensor"),
        (with_header({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}), "'a' is not described"),
        (with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"abcd"), r"its shape \(2,\)"),
        (with_header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}), "negative shape or offset"),
        (with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}), "negative shape or offset"),
        (with_header(b"[" * 10_000), "nested too deeply"),
        (with_header(b'{"a": NaN}'), "its header cannot be read"),
        (with_header(tensor(dtype=4)), "'a' is not described"),
        (with_header(tensor(shape=[1.0])), "'a' is not described"),
        (with_header(tensor(shape=[True])), "'a' is not described"),
        (with_header(tensor(data_offsets=[0, 4, 8])), "'a' is not described"),
        (with_header(tensor(shape=[1] * 100)), "'a' has 100 dimensions"),
        (with_header(tensor(shape=[2**62] * 8), b"abcd"), "'a' does not have the size of its shape"),
        (with_header(tensor(shape=[2**62, 2**62, 0], data_offsets=[0, 0])), "'a' cannot be mapped"),
        (with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"abc"), "it is cut short: 'a'"),
    ],
)
def test_damage_is_named(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=rf"a damaged safetensors file: .*{message}"):
        read_arrays(tmp_path / "a")


def test_every_way_to_cut_it_short_is_noticed(path):
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="a damaged safetensors file"):
            read_arrays(path)


def test_the_header_lists_tensors_of_any_dtype(tmp_path):
    entries = {
        "half": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]},
        "odd": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [4, 7]},
    }
    content = with_header(entries, b"\x80\x3f\x20\xc0abc")  # 1.0 and -2.5 as the upper halves of float32
    (tmp_path / "a").write_bytes(content)
    header = read_header(tmp_path / "a")
    assert header["odd"] == Tensor("F8_E4M3", (3,), len(content) - 3, 3)
    wide = map_tensor(tmp_path / "a", "half", header["half"])
    assert (wide.dtype, wide.tolist()) == (np.float32, [[1.0], [-2.5]])
    with pytest.raises(InputError, match="'odd' has the dtype F8_E4M3"):
        read_arrays(tmp_path / "a")


def test_a_checked_file_is_what_was_written_or_nothing(tmp_path):
    path = tmp_path / "checked.safetensors"
    write_checked(path, WORLD)
    assert same(read_checked(path), WORLD)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        found = read_checked(path)
        assert found is None or same(found, WORLD)
    write_arrays(path, WORLD)
    assert read_checked(path) is None


def test_a_checked_file_that_cannot_be_written_leaves_nothing(tmp_path):
    path = tmp_path / "checked.safetensors"
    path.mkdir()
    with pytest.raises(InputError, match=f"{path}: this file cannot be written"):
        write_checked(path, WORLD)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs a list of open files")
def test_thousands_of_arrays_need_one_open_file(tmp_path):
    path = tmp_path / "many.safetensors"
    write_arrays(path, {f"a{place}": np.full(2, place, np.float32) for place in range(3_000)})
    before = len(list(Path("/dev/fd").iterdir()))
    arrays = read_arrays(path)
    assert len(list(Path("/dev/fd").iterdir())) <= before + 1
    assert all(array.tolist() == [place, place] for place, array in enumerate(arrays.values()))
