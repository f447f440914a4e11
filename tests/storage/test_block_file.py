"""Resumable arrays: what is stored is verified, what is missing or damaged is computed again, never trusted."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.storage.block_file import FORMAT, BlockFile

ARRAY = np.arange(40, dtype=np.float32).reshape(10, 4)


def open_file(folder, rows=10, width=lambda: 4, dtype="float32", **inputs):
    return BlockFile(folder / "a.npy", {"items": "x", **inputs}, rows=rows, width=width, dtype=dtype)


def complete(file, block=3):
    """Write what is missing; the rows that were written."""
    written = []
    with file.resume() as missing:
        for gap in missing:
            for start in range(gap.start, gap.stop, block):
                stop = min(start + block, gap.stop)
                file.write({start: ARRAY[start:stop]})
                written += range(start, stop)
    return written


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_new_file_is_partial_until_it_is_complete(tmp_path):
    file = open_file(tmp_path / "new")
    assert (file.load(), file.count_rows()) == (None, 0)
    with file.resume() as missing:
        assert missing == [range(10)]
        file.write({0: ARRAY[:4]})
        file.write({8: ARRAY[8:]})
        assert names(tmp_path / "new") == ["a.npy.json", "a.npy.partial"]
    assert (file.load(), open_file(tmp_path / "new").count_rows()) == (None, 6)
    with file.resume() as missing:
        assert missing == [range(4, 8)]
        file.write({6: ARRAY[6:8], 4: ARRAY[4:6]})
    assert names(tmp_path / "new") == ["a.npy", "a.npy.json"]
    array = open_file(tmp_path / "new").load()
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable
    assert np.array_equal(array, ARRAY)
    assert np.array_equal(np.load(tmp_path / "new" / "a.npy"), ARRAY)


def test_the_files_do_not_depend_on_the_order_of_blocks(tmp_path):
    contents = []
    for order in ([0, 5], [5, 0]):
        folder = tmp_path / str(order[0])
        file = open_file(folder)
        with file.resume():
            for start in order:
                file.write({start: ARRAY[start : start + 5]})
        contents.append([(folder / name).read_bytes() for name in names(folder)])
    assert contents[0] == contents[1]


def test_the_width_is_asked_for_once_per_file(tmp_path):
    complete(open_file(tmp_path))
    assert open_file(tmp_path, width=None).load().shape == (10, 4)


@given(damage=st.data())
def test_any_damage_is_found_and_repaired(tmp_path_factory, damage):
    folder = tmp_path_factory.mktemp("damaged")
    complete(open_file(folder))
    path = folder / "a.npy"
    data = bytearray(path.read_bytes())
    cut = damage.draw(st.integers(0, len(data)))
    data = data[:cut] if damage.draw(st.booleans()) else data + b"\0" * cut
    if data:
        data[damage.draw(st.integers(0, len(data) - 1))] ^= damage.draw(st.integers(0, 255))
    path.write_bytes(data)
    file = open_file(folder)
    stored = file.count_rows()
    assert len(complete(file)) == 10 - stored
    assert np.array_equal(open_file(folder).load(), ARRAY)
    assert len(np.load(path)) == 10


def test_only_damaged_blocks_are_computed_again(tmp_path, caplog):
    complete(open_file(tmp_path))
    path = tmp_path / "a.npy"
    data = bytearray(path.read_bytes())
    data[-4 * 4 * 2] ^= 1  # in row 8, of the block of rows 6 to 8
    path.write_bytes(data)
    assert complete(open_file(tmp_path)) == [6, 7, 8]
    assert "1 damaged or missing blocks are computed again" in caplog.text
    assert complete(open_file(tmp_path)) == []


def test_a_file_that_is_cut_short_is_not_padded(tmp_path):
    zeros = np.zeros((10, 4), np.float32)
    file = open_file(tmp_path)
    with file.resume():
        file.write({0: zeros[:5]})
        file.write({5: zeros[5:]})
    path = tmp_path / "a.npy"
    path.write_bytes(path.read_bytes()[:-8])
    assert open_file(tmp_path).load() is None
    assert open_file(tmp_path).count_rows() == 5


@pytest.mark.parametrize("tail", ["[3, 6", "[3, 6]\n", "\0\0\0\n", '[3, 99, "0"]\n', '[6, 3, "0"]\n'])
def test_a_half_written_line_of_the_sidecar_is_ignored(tmp_path, tail):
    file = open_file(tmp_path)
    with file.resume():
        file.write({0: ARRAY[:3]})
    with (tmp_path / "a.npy.json").open("a") as sidecar:
        sidecar.write(tail)
    assert complete(open_file(tmp_path)) == list(range(3, 10))
    assert np.array_equal(open_file(tmp_path).load(), ARRAY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"items": "y"}, "computed with items 'x', not 'y'"),
        ({"scorer": "z"}, "computed with scorer None, not 'z'"),
        ({"rows": 11}, "computed with rows 10, not 11"),
        ({"dtype": "float16"}, "computed with dtype 'float32', not 'float16'"),
    ],
)
def test_a_file_with_other_inputs_is_refused(tmp_path, options, message):
    complete(open_file(tmp_path))
    before = (tmp_path / "a.npy").read_bytes()
    file = open_file(tmp_path, **options)
    for act in (file.load, file.count_rows, lambda: complete(file)):
        with pytest.raises(InputError, match=rf"{message}.*To start over, delete a.npy"):
            act()
    assert (tmp_path / "a.npy").read_bytes() == before


def test_files_of_an_older_format_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", ARRAY)
    older = {"items": "x", "rows": 10, "dim": 4, "dtype": "float32", "done": 10, "format": 1}
    for text in (json.dumps(older), json.dumps(older, indent=1), json.dumps({**older, "width": 4})):
        (tmp_path / "a.npy.json").write_text(text)
        with pytest.raises(InputError, match=rf"(format {FORMAT}|format 1, not {FORMAT}).*To start over, delete"):
            open_file(tmp_path).load()


def test_errors_of_the_disk_are_input_errors_and_errors_of_the_caller_pass(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be read or written"):
        complete(open_file(tmp_path / "file"))

    def fail():
        file = open_file(tmp_path)
        with file.resume():
            file.write({0: ARRAY[:3]})
            raise ConnectionError

    def ask():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        complete(open_file(tmp_path / "other", width=ask))
    with pytest.raises(ConnectionError):
        fail()
    assert open_file(tmp_path).count_rows() == 3


@pytest.mark.parametrize("damage", ["cut", "zeros", "flipped"])
def test_a_file_that_is_changed_while_it_is_written_is_not_taken_as_complete(tmp_path, damage):
    def change(path):
        data = bytearray(path.read_bytes())
        row = len(data) - 9 * 16  # the first byte of row 1
        if damage == "cut":
            del data[row:]
        else:
            data[row : row + 16] = bytes(16) if damage == "zeros" else bytes([data[row] ^ 1]) + data[row + 1 : row + 16]
        path.write_bytes(data)

    def write_and_change():
        file = open_file(tmp_path)
        with file.resume():
            file.write({0: ARRAY[:3], 3: ARRAY[3:6]})
            change(tmp_path / "a.npy.partial")
            file.write({6: ARRAY[6:]})

    with pytest.raises(InputError, match=r"changed a\.npy\.partial while it was being written\. Run again"):
        write_and_change()
    assert open_file(tmp_path).load() is None
    assert {0, 1, 2} <= set(complete(open_file(tmp_path))) <= set(range(6))
    assert np.array_equal(open_file(tmp_path).load(), ARRAY)


def test_a_file_is_opened_by_its_own_description(tmp_path):
    complete(open_file(tmp_path))
    assert BlockFile.stored(tmp_path / "a.npy").count_rows() == 10
    (tmp_path / "a.npy.json").write_text('{"rows": 10, "width": 4, "dtype": "object"}\n')
    with pytest.raises(InputError, match=r"a\.npy\.json: damaged"):
        BlockFile.stored(tmp_path / "a.npy")
