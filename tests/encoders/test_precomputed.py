import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from crossknn.encoders.precomputed import PrecomputedEncoder, load_vectors
from crossknn.errors import EncoderError, InputError

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_files_are_memory_mapped(tmp_path, dtype):
    expected = VECTORS.astype(dtype)
    np.save(tmp_path / "v.npy", expected)
    save_file({"v": expected}, tmp_path / "v.safetensors", metadata={"made by": "a test"})
    for name in ("v.npy", "v.safetensors"):
        found = load_vectors(tmp_path / name, check_finite=True)
        assert isinstance(found, np.memmap)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)
        with pytest.raises(ValueError, match="read-only"):
            found[0, 0] = 1


def test_bfloat16_becomes_float32(tmp_path):
    tensor = torch.tensor(VECTORS).to(torch.bfloat16)
    save_torch({"v": tensor}, tmp_path / "v.safetensors")
    found = load_vectors(tmp_path / "v.safetensors")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, tensor.float().numpy())


def test_one_of_several_tensors(tmp_path):
    save_file({"a": VECTORS, "b": VECTORS + 1}, tmp_path / "v.safetensors")
    np.testing.assert_array_equal(load_vectors(tmp_path / "v.safetensors", name="b"), VECTORS + 1)
    with pytest.raises(InputError, match="choose a tensor with `name`; the file has a, b"):
        load_vectors(tmp_path / "v.safetensors")
    with pytest.raises(InputError, match="there is no tensor 'c'; the file has a, b"):
        load_vectors(tmp_path / "v.safetensors", name="c")


def write(path, content):
    if path.suffix == ".npy" and isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, np.ndarray):
        save_file({"v": content}, path)
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.npy", np.ones(3), r"must have shape \(n, dim\), got \(3,\)"),
        ("v.npy", np.ones((2, 2), np.int64), "must be float16, .*, got int64"),
        ("v.npy", np.array([["a", "b"]], object), "not a complete .npy file of numbers"),
        ("v.npy", b"nonsense", "not a complete .npy file of numbers"),
        ("v.npy", b"", "not a complete .npy file of numbers"),
        ("v.safetensors", np.ones((2, 2), np.int64), "must be float16, .*, got int64"),
        ("v.safetensors", b"nonsense and more of it", "safetensors"),
        ("v.safetensors", b"", "safetensors"),
        ("v.safetensors", b"\x07" + bytes(7) + b'{"v":1}', "safetensors"),
        ("v.pt", b"", "read from .npy or .safetensors files"),
        ("v.npy", np.array([[1, 2], [np.nan, 1]]), "row 1 holds NaN or infinity"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(InputError, match=message):
        load_vectors(tmp_path / name, check_finite=True)


@pytest.mark.parametrize("name", ["v.npy", "v.safetensors"])
def test_a_file_cut_short(tmp_path, name):
    write(tmp_path / name, VECTORS)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-4])
    with pytest.raises(InputError, match=r"cut short|not a complete"):
        load_vectors(tmp_path / name)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_vectors(tmp_path / "v.npy")


def test_look_up_by_text():
    encoder = PrecomputedEncoder(queries=(["a", "b"], VECTORS[:2]), items={"x": VECTORS[2], "y": VECTORS[3]})
    np.testing.assert_array_equal(encoder.encode_queries(["b", "a", "b"]), VECTORS[[1, 0, 1]])
    np.testing.assert_array_equal(encoder.encode_items(["y"]), VECTORS[[3]])
    with pytest.raises(EncoderError, match="no vector for the text 'x' among the queries"):
        encoder.encode_queries(["x"])


def test_fingerprint_is_of_the_content():
    def fingerprint(texts, vectors, **options):
        return PrecomputedEncoder(queries=(texts, vectors), **options).fingerprint

    base = fingerprint(["a", "b"], VECTORS[:2])
    assert fingerprint(["b", "a"], VECTORS[[1, 0]]) == base
    assert fingerprint(["a", "b"], VECTORS[[1, 0]]) != base
    assert fingerprint(["a", "c"], VECTORS[:2]) != base
    assert fingerprint(["a", "b"], VECTORS[:2], fingerprint="mine") == "precomputed:mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": (["a"], VECTORS)}, r"the vectors must have shape \(1, dim\), got \(4, 3\)"),
        ({"queries": {"a": [1, 2], "b": [1]}}, "the vectors must be numbers, all of one dimension"),
        ({"queries": VECTORS}, "`queries` must map texts to vectors, or be a pair"),
        ({"queries": {"a": [1, 2]}, "items": {"b": [1]}}, "the same dimension, got 2 and 1"),
        ({"queries": (["a", "a"], VECTORS[:2])}, "the text 'a' has two different vectors"),
        ({"queries": {"a": [1]}, "fingerprint": ""}, "`fingerprint` must be a nonempty string"),
    ],
)
def test_bad_tables(arguments, message):
    with pytest.raises(InputError, match=message):
        PrecomputedEncoder(**arguments)
