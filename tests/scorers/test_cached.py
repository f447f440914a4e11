"""No pair is scored twice, whichever thread or process needs it and whatever is killed."""

import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.base import function_scorer
from crossknn.scorers.cached import Cached, read_cached_lists, verify_cache
from crossknn.testing import MatrixScorer, check_scorer
from tests.paths import ROOT


def lengths(pairs: list[tuple[str, str]]) -> list[float]:
    return [len(query) + len(item) / 7 for query, item in pairs]


def counting(name: str = "lengths") -> tuple[object, list[tuple[str, str]]]:
    asked: list[tuple[str, str]] = []

    def fn(pairs: list[tuple[str, str]]) -> list[float]:
        asked.extend(pairs)
        return lengths(pairs)

    return function_scorer(fn, fingerprint=name), asked


def test_contract(tmp_path: Path) -> None:
    scorer, _ = counting()
    check_scorer(Cached(scorer, tmp_path / "scores.db"), ["ice", "", "é\ud800"], ["a", "bcd", ""])


def test_only_missing_pairs_are_scored_and_each_once(tmp_path: Path) -> None:
    scorer, asked = counting()
    cache = Cached(scorer, tmp_path / "new" / "folder" / "scores.db")
    first = cache.score(["a", "b", "a"], ["x", "y", "x"])
    assert asked == [("a", "x"), ("b", "y")] or asked == [("b", "y"), ("a", "x")]
    assert (cache.hits, cache.misses) == (1, 2)
    again = Cached(scorer, tmp_path / "new" / "folder" / "scores.db")
    np.testing.assert_array_equal(again.score(["b", "a", "c"], ["y", "x", "z"])[:2], first[[1, 0]])
    assert asked[2:] == [("c", "z")]
    assert (again.hits, again.misses) == (2, 1)
    assert again.fingerprint == "lengths"


def test_scores_come_back_bit_for_bit(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32)
    world = MatrixScorer(matrix)
    queries, items = world.queries * 40, [item for item in world.items for _ in world.queries]
    cache = Cached(world, tmp_path / "scores.db")
    assert np.array_equal(cache.score(queries, items), cache.score(queries, items))
    assert np.array_equal(cache.score(queries, items), matrix.T.reshape(-1))
    assert world.calls == matrix.size


def test_keys_separate_query_and_item(tmp_path: Path) -> None:
    scorer, asked = counting()
    Cached(scorer, tmp_path / "scores.db").score(["ab", "a", "", "abc"], ["c", "bc", "abc", ""])
    assert len(asked) == 4


def test_scorers_share_a_file_but_not_their_scores(tmp_path: Path) -> None:
    Cached(function_scorer(lengths, fingerprint="one"), tmp_path / "scores.db").score(["a"], ["x"])
    other = function_scorer(lambda pairs: [-1.0] * len(pairs), fingerprint="two")
    assert Cached(other, tmp_path / "scores.db").score(["a"], ["x"]).tolist() == [-1.0]


def test_an_unnamed_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fingerprint="):
        Cached(function_scorer(lengths), tmp_path / "scores.db")


def test_bad_scores_are_not_written(tmp_path: Path) -> None:
    bad = function_scorer(lambda pairs: [float("nan")] * len(pairs), fingerprint="lengths")
    with pytest.raises(ScorerError, match="nan for query 'a' and item 'x'"):
        Cached(bad, tmp_path / "scores.db").score(["a"], ["x"])
    scorer, asked = counting()
    Cached(scorer, tmp_path / "scores.db").score(["a"], ["x"])
    assert len(asked) == 1


def test_count_missing(tmp_path: Path) -> None:
    scorer, asked = counting()
    cache = Cached(scorer, tmp_path / "scores.db")
    pairs = ["a", "b", "a", "c"], ["x", "y", "x", "z"]
    assert cache.count_missing(*pairs) == 3
    cache.score(["b"], ["y"])
    assert cache.count_missing(*pairs) == 2
    assert len(asked) == 1
    cache.score(*pairs)
    assert (cache.count_missing(*pairs), cache.count_missing([], [])) == (0, 0)
    with pytest.raises(InputError, match="same length"):
        cache.count_missing(["a"], [])


@pytest.mark.parametrize("every", [0, -1, 2.5, "many", True, None])
def test_every_must_be_a_positive_integer(tmp_path: Path, every: object) -> None:
    with pytest.raises(InputError, match="`every` must be a positive integer"):
        Cached(MatrixScorer([[1]]), tmp_path / "scores.db", every=every)


def test_scores_are_written_in_slices(tmp_path: Path) -> None:
    world = MatrixScorer(np.arange(50.0)[None])
    cache = pickle.loads(pickle.dumps(Cached(world, tmp_path / "scores.db", every=20)))
    cache.score(["query 0"] * 50, world.items)
    assert cache.scorer.batches == [20, 20, 10]


def test_an_error_keeps_the_slices_before_it(tmp_path: Path) -> None:
    scorer, asked = counting()
    healthy = Cached(scorer, tmp_path / "scores.db")

    def fail_later(pairs: list[tuple[str, str]]) -> list[float]:
        if ("q", "35") in pairs:
            raise ConnectionError("gone")
        return lengths(pairs)

    items = [str(number) for number in range(50)]
    failing = Cached(function_scorer(fail_later, fingerprint="lengths"), tmp_path / "scores.db", every=10)
    with pytest.raises(ConnectionError):
        failing.score(["q"] * 50, items)
    healthy.score(["q"] * 50, items)
    assert len(asked) == 20


@pytest.mark.parametrize(
    "content", [b"not a database, but text that is long enough to be read" * 40, b"SQLite format 3\0junk" * 99]
)
def test_a_foreign_or_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "scores.db"
    path.write_bytes(content)
    scorer, _ = counting()
    with pytest.raises(InputError, match=r"scores\.db cannot be used: .*(Move it away|another path)"):
        Cached(scorer, path)
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "scores.db") as other:
        other.execute("CREATE TABLE photos (id)")
    other.close()
    scorer, _ = counting()
    with pytest.raises(InputError, match="not a score cache"):
        Cached(scorer, tmp_path / "scores.db")


def test_pages_overwritten_later_are_noticed(tmp_path: Path) -> None:
    scorer, _ = counting()
    path = tmp_path / "scores.db"
    cache = Cached(scorer, path)
    cache.score([str(n) for n in range(3000)], ["x"] * 3000)
    cache._connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cache.close()
    content = bytearray(path.read_bytes())
    content[4096 : len(content)] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        Cached(scorer, path).score([str(n) for n in range(3000)], ["x"] * 3000)


def test_a_newer_file_is_not_read(tmp_path: Path) -> None:
    scorer, _ = counting()
    cache = Cached(scorer, tmp_path / "scores.db")
    cache._connection().execute("PRAGMA user_version = 9")
    cache.close()
    with pytest.raises(InputError, match="Upgrade"):
        Cached(scorer, tmp_path / "scores.db")


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    scorer, _ = counting()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be used"):
        Cached(scorer, tmp_path / "file" / "scores.db")
    with pytest.raises(InputError, match="must be a regular file, and is a folder"):
        Cached(scorer, tmp_path)
    cache = Cached(scorer, tmp_path / "full.db")
    cache._connection().execute("PRAGMA max_page_count = 2")
    with pytest.raises(InputError, match="disk is full"):
        cache.score([str(n) for n in range(2000)], ["x"] * 2000)
    cache._connection().execute("PRAGMA query_only = ON")
    with pytest.raises(InputError, match="read-only"):
        cache.score(["new"], ["x"])


def test_threads_share_one_cache(tmp_path: Path) -> None:
    scorer, _ = counting()
    cache = Cached(scorer, tmp_path / "scores.db")
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for start in range(5):
                queries = [str((seed + start + n) % 200) for n in range(100)]
                expected = np.array(lengths([(query, "x") for query in queries]), np.float32)
                assert np.array_equal(cache.score(queries, ["x"] * 100), expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed * 30,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert cache.hits + cache.misses == 6 * 5 * 100


def test_many_may_create_the_file_at_the_same_moment(tmp_path: Path) -> None:
    for attempt in range(15):
        together, failed = threading.Barrier(6), []

        def work(path: Path, together: threading.Barrier, failed: list[BaseException]) -> None:
            together.wait()
            try:
                Cached(MatrixScorer([[1]]), path).close()
            except BaseException as error:
                failed.append(error)

        path = tmp_path / f"{attempt}.db"
        threads = [threading.Thread(target=work, args=(path, together, failed)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed


def test_travels_to_a_worker_by_path(tmp_path: Path) -> None:
    cache = Cached(MatrixScorer([[1, 2], [3, 4]]), tmp_path / "scores.db")
    cache.score(["query 0"], ["item 1"])
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.score(["query 0"], ["item 1"]).tolist() == [2]
    assert copy.hits == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_opens_the_file_itself(tmp_path: Path) -> None:
    cache = Cached(MatrixScorer([[1, 2], [3, 4]]), tmp_path / "scores.db")
    cache.score(["query 0"], ["item 0"])
    child = multiprocessing.get_context("fork").Process(target=cache.score, args=(["query 1"], ["item 1"]))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    cache.score(["query 0", "query 1"], ["item 0", "item 1"])
    assert cache.misses == 1


WORKER = """
import sys, time
from crossknn.scorers.cached import Cached, read_cached_lists, verify_cache
from crossknn.scorers.base import function_scorer
path, log, pause, first, last = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])

def fn(pairs):
    with open(log, "a") as out:
        out.write("".join(f"{query}\\n" for query, _ in pairs))
    time.sleep(pause)
    return [float(query) * 2 for query, _ in pairs]

queries = [str(number) for number in range(first, last)]
cache = Cached(function_scorer(fn, fingerprint="double"), path, every=20)
scores = cache.score(queries, ["x"] * len(queries))
assert scores.tolist() == [2.0 * number for number in range(first, last)]
"""


def start_worker(folder: Path, log: str, pause: float, first: int, last: int) -> subprocess.Popen[bytes]:
    arguments = [str(folder / "scores.db"), str(folder / log), str(pause), str(first), str(last)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], env=environment)


def scored(folder: Path, log: str) -> Counter[str]:
    path = folder / log
    return Counter(path.read_text().split()) if path.exists() else Counter()


def test_killed_again_and_again_it_resumes(tmp_path: Path) -> None:
    kills = 4
    for kill in range(kills):
        worker = start_worker(tmp_path, "log", 0.02, 0, 400)
        deadline = time.monotonic() + 60
        expected = scored(tmp_path, "log").total() + 45 + kill  # a kill somewhere inside a later slice
        while scored(tmp_path, "log").total() < expected and time.monotonic() < deadline:
            time.sleep(0.002)
        worker.send_signal(signal.SIGKILL)
        assert worker.wait(30) == -signal.SIGKILL
    assert start_worker(tmp_path, "log", 0.0, 0, 400).wait(60) == 0
    times = scored(tmp_path, "log")
    assert len(times) == 400
    assert times.total() - 400 <= kills * 20  # each kill lost at most the slice in flight
    assert start_worker(tmp_path, "log", 0.0, 0, 400).wait(60) == 0
    assert scored(tmp_path, "log") == times


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    workers = [start_worker(tmp_path, f"log{n}", 0.001, n * 150, n * 150 + 300) for n in range(2)]
    assert [worker.wait(90) for worker in workers] == [0, 0]
    assert start_worker(tmp_path, "after", 0.0, 0, 450).wait(60) == 0
    assert not scored(tmp_path, "after")


def tables(path: Path) -> dict[str, int]:
    """The number of rows of each table."""
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
    connection.close()
    return counts


def make_old(path: Path, *tables: str) -> None:
    """As an earlier version wrote it: without checksums, and without these tables."""
    with closing(sqlite3.connect(path)) as connection:
        for table in tables:
            connection.execute(f"DROP TABLE {table}")
        for table in {"scores", "lists"} - {*tables}:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()


@pytest.mark.parametrize("missing", [("lists", "queries"), ()])
def test_an_old_file_keeps_its_scores_and_groups_new_ones(tmp_path: Path, missing: tuple[str, ...]) -> None:
    path = tmp_path / "scores.db"
    scorer, asked = counting()
    Cached(scorer, path).score(["a", "b"], ["x", "y"])
    make_old(path, *missing)
    with pytest.raises(InputError, match="a score cache without checksums"):
        verify_cache(path)
    if missing:
        with pytest.raises(InputError, match="an earlier crossknn"):
            read_cached_lists(path, scorer="lengths")
    cache = Cached(scorer, path)
    cache.score(["a", "b", "b"], ["x", "y", "z"])
    assert asked[2:] == [("b", "z")]
    assert tables(path) == {"scores": 3, "lists": 1 if missing else 3, "queries": 0}
    found = read_cached_lists(path, scorer="lengths").scores.scores
    assert lengths([("b", "z")])[0] in found
    assert verify_cache(path) == 3


def damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "change",
    ["score = 0", "score = -score", "score = 'a text'", "checksum = 7", "checksum = NULL", "key = zeroblob(16)"],
)
def test_damaged_scores_are_scored_again(tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    path = tmp_path / "scores.db"
    scorer, asked = counting()
    expected = Cached(scorer, path).score(["a", "b"], ["x", "yy"])
    assert verify_cache(path) == 2
    damage(path, f"UPDATE scores SET {change} WHERE key = (SELECT min(key) FROM scores)")
    with pytest.raises(InputError, match=r"scores\.db: 1 of its rows are damaged"):
        verify_cache(path)
    cache = Cached(scorer, path)
    assert cache.count_missing(["a", "b"], ["x", "yy"]) == 1
    np.testing.assert_array_equal(cache.score(["a", "b"], ["x", "yy"]), expected)
    assert (cache.misses, len(asked)) == (1, 3)
    assert ("1 damaged scores are not used" in caplog.text) == ("key" not in change)
    again = Cached(scorer, path)
    np.testing.assert_array_equal(again.score(["a", "b"], ["x", "yy"]), expected)
    assert again.misses == 0


def test_damaged_lists_and_queries_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "scores.db"
    scorer, _ = counting()
    Cached(scorer, path, keep_queries=True).score(["a", "bb", "ccc"], ["x", "x", "x"])
    damage(path, "UPDATE lists SET score = 9 WHERE query = (SELECT min(query) FROM lists)")
    damage(path, "UPDATE queries SET text = 'changed' WHERE text = CAST('ccc' AS BLOB)")
    found = read_cached_lists(path, scorer="lengths")
    assert len(found.scores.scores) == 2
    assert 9 not in found.scores.scores
    assert set(found.queries) == {"a", "bb"}
    assert "1 damaged scores are left out" in caplog.text
    with pytest.raises(InputError, match="2 of its rows are damaged"):
        verify_cache(path)


def test_texts_are_stored_only_if_asked_for(tmp_path: Path) -> None:
    for name, keep in (("without.db", False), ("with.db", True)):
        cache = pickle.loads(
            pickle.dumps(Cached(MatrixScorer([[1.0]], queries=["a secret"]), tmp_path / name, keep_queries=keep))
        )
        cache.score(["a secret"], ["item 0"])
        cache._connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        cache.close()
        assert (b"a secret" in (tmp_path / name).read_bytes()) == keep
        assert b"item 0" not in (tmp_path / name).read_bytes()
    assert (tmp_path / "with.db").stat().st_mode & 0o077 == 0


def test_kept_queries_may_be_any_text(tmp_path: Path) -> None:
    scorer, _ = counting()
    Cached(scorer, tmp_path / "scores.db", keep_queries=True).score(["é\ud800", ""], ["x", "y"])
    assert set(read_cached_lists(tmp_path / "scores.db", scorer="lengths").queries) == {"é\ud800", ""}
