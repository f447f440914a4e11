"""Parts of a benchmark are made once, for the same inputs."""

import pytest

from benchmarks.kept_parts import KeptParts, describe_folder


def make_counting(parts):
    calls = []

    def get(name):
        return parts.get(name, lambda: calls.append(name) or {"n": len(calls)})

    return get, calls


def test_a_part_is_made_once(tmp_path):
    get, calls = make_counting(KeptParts(tmp_path, ["a", 1]))
    assert get("gp, mean query, 10") == {"n": 1}
    get, calls = make_counting(KeptParts(tmp_path, ["a", 1]))
    assert get("gp, mean query, 10") == {"n": 1}
    assert calls == []
    assert get("gp, mean query, 25") == {"n": 1}


def test_other_inputs_make_it_anew(tmp_path):
    make_counting(KeptParts(tmp_path, ["a", 1]))[0]("one")
    get, calls = make_counting(KeptParts(tmp_path, ["a", 2]))
    get("one")
    assert calls == ["one"]


def test_an_interruption_leaves_no_part(tmp_path):
    parts = KeptParts(tmp_path, [])
    with pytest.raises(KeyboardInterrupt):
        parts.get("one", interrupt)
    assert list(tmp_path.iterdir()) == []


def interrupt():
    raise KeyboardInterrupt


def test_a_folder_is_described_by_its_files(tmp_path):
    (tmp_path / "b").write_text("12")
    (tmp_path / "a").write_text("1")
    assert describe_folder(tmp_path) == [("a", 1), ("b", 2)]
