"""The log of searches: what was appended is read back, torn lines are skipped, its size is bounded."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from crossknn.errors import InputError
from crossknn.storage.search_log import SearchLog, read_searches


def searches(folder, scorer="s"):
    return [(one.query, one.ids, one.scores.tolist()) for one in read_searches(folder, scorer=scorer)]


def size(folder):
    return sum(path.stat().st_size for path in folder.glob("searches-*"))


def test_searches_are_read_back_in_order(tmp_path):
    log = SearchLog(tmp_path / "log", scorer="s")
    assert log.append("ice \ud800 on\nlakes", ["a", "b"], [1.5, -2.0])
    assert log.append("nothing was scored", [], [])
    again = SearchLog(tmp_path / "log", scorer="s")
    assert again.append("snow", ["é"], [0.25])
    assert searches(tmp_path / "log") == [("ice \ud800 on\nlakes", ["a", "b"], [1.5, -2.0]), ("snow", ["é"], [0.25])]


def test_a_torn_line_costs_one_search(tmp_path):
    log = SearchLog(tmp_path, scorer="s")
    log.append("one", ["a"], [1.0])
    log.append("two", ["a"], [2.0])
    (path,) = tmp_path.glob("searches-*.jsonl")
    path.write_bytes(path.read_bytes()[:-9])  # as after a kill
    SearchLog(tmp_path, scorer="s").append("three", ["b"], [3.0])
    assert [query for query, _, _ in searches(tmp_path)] == ["one", "three"]


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"query": "q", "ids": ["a"], "scores": []}', '{"query": "q", "ids": ["a"], "scores": [NaN]}']
)
def test_lines_of_another_kind_are_skipped(tmp_path, line):
    SearchLog(tmp_path, scorer="s").append("one", ["a"], [1.0])
    (tmp_path / "searches-000009.jsonl").write_text(line + "\n")
    assert len(searches(tmp_path)) == 1


def test_a_damaged_line_is_skipped(tmp_path, caplog):
    log = SearchLog(tmp_path, scorer="s")
    for number in range(3):
        log.append(f"query {number}", ["a"], [number + 0.5])
    (path,) = tmp_path.glob("searches-*.jsonl")
    path.write_bytes(path.read_bytes().replace(b"[1.5]", b"[7.5]"))
    assert [query for query, _, _ in searches(tmp_path)] == ["query 0", "query 2"]
    assert "1 torn or damaged lines are left out" in caplog.text
    path.write_bytes(path.read_bytes().replace(b', "digest"', b', "other"'))
    assert searches(tmp_path) == []


def test_a_log_of_an_earlier_version_is_read_and_continued(tmp_path):
    (tmp_path / "searches.json").write_text(json.dumps({"format": 1, "scorer": "s"}))
    (tmp_path / "searches-000001.jsonl").write_text('{"query": "one", "ids": ["a"], "scores": [1.0]}\n')
    SearchLog(tmp_path, scorer="s").append("two", ["a"], [2.0])
    assert [query for query, _, _ in searches(tmp_path)] == ["one", "two"]


def test_the_oldest_searches_go_first(tmp_path):
    log = SearchLog(tmp_path, scorer="s", max_bytes=4_000)
    for number in range(200):
        log.append(f"query {number}", ["a"] * 4, [1.0] * 4)
        assert size(tmp_path) <= 4_000
    kept = [query for query, _, _ in searches(tmp_path)]
    assert kept == [f"query {number}" for number in range(200 - len(kept), 200)]
    assert len(kept) > 10


def test_threads_append_whole_lines(tmp_path):
    log = SearchLog(tmp_path, scorer="s")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: log.append(f"q{number}", ["a"] * 50, [1.0] * 50), range(200)))
    assert sorted(query for query, _, _ in searches(tmp_path)) == sorted(f"q{number}" for number in range(200))


def test_a_log_that_cannot_be_written_fails_no_search(tmp_path, caplog):
    log = SearchLog(tmp_path / "log", scorer="s")
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    (tmp_path / "log").rmdir()
    assert not log.append("one", ["a"], [1.0])
    assert not log.append("two", ["a"], [1.0])
    assert caplog.text.count("searches are not logged") == 1


def test_only_the_owner_reads_the_queries(tmp_path):
    SearchLog(tmp_path, scorer="s").append("one", ["a"], [1.0])
    (path,) = tmp_path.glob("searches-*.jsonl")
    assert path.stat().st_mode & 0o077 == 0


def test_another_scorer_and_other_folders_are_refused(tmp_path):
    SearchLog(tmp_path / "log", scorer="s")
    with pytest.raises(InputError, match="a log of another scorer"):
        SearchLog(tmp_path / "log", scorer="t")
    with pytest.raises(InputError, match="a log of another scorer"):
        searches(tmp_path / "log", "t")
    with pytest.raises(InputError, match="no log of searches"):
        searches(tmp_path)
    (tmp_path / "log" / "searches.json").write_text(json.dumps({"format": 99, "scorer": "s"}))
    with pytest.raises(InputError, match="newer crossknn"):
        searches(tmp_path / "log")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        SearchLog(tmp_path / "file", scorer="s")
    with pytest.raises(InputError, match="`max_bytes`"):
        SearchLog(tmp_path / "new", scorer="s", max_bytes=0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
@pytest.mark.parametrize("name", ["searches.json", "searches-000001.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()])
def test_nothing_but_files_is_read_or_written(tmp_path, name, make):
    log = SearchLog(tmp_path, scorer="s")
    log.append("one", ["a"], [1.0])
    (tmp_path / name).unlink()
    make(tmp_path / name)
    assert log.append("two", ["a"], [1.0]) is (name == "searches.json")
    with pytest.raises(InputError, match=name):
        searches(tmp_path)


def test_only_the_owner_reads_queries(tmp_path):
    SearchLog(tmp_path, scorer="s").append("one", ["a"], [1.0])
    assert (tmp_path / "searches-000001.jsonl").stat().st_mode & 0o077 == 0
