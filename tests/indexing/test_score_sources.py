"""Scored lists are found in searches, score logs and caches; a learning keeps the lists it began with; lists merge."""

import errno
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.pair_scoring import open_score_log, score_pairs_into
from crossknn.indexing.score_matrix import Pairs
from crossknn.indexing.score_sources import merge_lists, open_scored_lists, read_scored_lists
from crossknn.items.items import Items
from crossknn.scorers.cached import Cached
from crossknn.storage.atomic import disk_errors
from crossknn.storage.search_log import LoggedSearch, SearchLog
from crossknn.testing import MatrixScorer

QUERIES = [f"query {number}" for number in range(6)]
ITEMS = Items([f"item {row}" for row in range(30)], ids=[f"d{row}" for row in range(30)])
MATRIX = np.random.default_rng(0).normal(size=(6, 30)).astype(np.float32)


def make_scorer(fingerprint="s"):
    return MatrixScorer(MATRIX, queries=QUERIES, items=ITEMS.texts, fingerprint=fingerprint)


def found(source, queries=QUERIES, items=ITEMS, scorer="s"):
    """The scores by query and id."""
    lists = list(read_scored_lists(source, queries, items, scorer=scorer))
    assert len({one.query for one in lists}) == len(lists)
    return {(one.query, id_): float(score) for one in lists for id_, score in zip(one.ids, one.scores, strict=True)}


def scores_of(numbers, rows):
    return {(QUERIES[number], f"d{row}"): float(MATRIX[number, row]) for number in numbers for row in rows}


def add_to_work(folder, numbers, rows):
    """Score these pairs as a build does."""
    pairs = [(number, row) for number in numbers for row in rows]
    queries, columns = np.array(pairs, np.int32).T.copy()
    scorer = make_scorer()
    score_pairs_into(open_score_log(folder, scorer), Pairs(queries, columns, 6, 30), QUERIES, ITEMS, scorer, chunk=7)
    return folder


def add_to_cache(path, numbers, rows, fingerprint="s", **settings):
    texts = [(QUERIES[number], f"item {row}") for number in numbers for row in rows]
    cache = Cached(make_scorer(fingerprint), path, **settings)
    cache.score(*map(list, zip(*texts, strict=True)))
    cache.close()
    return path


def test_searches_name_their_own_queries(tmp_path):
    log = SearchLog(tmp_path, scorer="s")
    log.append("query 0", ["d1", "gone"], [1.5, 2.5])
    assert found(tmp_path, queries=[]) == {("query 0", "d1"): 1.5, ("query 0", "gone"): 2.5}


def test_lists_of_a_work_folder_are_found_by_the_texts_of_queries(tmp_path):
    work = add_to_work(tmp_path / "work", range(4), range(5))
    add_to_work(work, range(2, 6), range(3, 9))  # of which some pairs are known
    whole = scores_of(range(4), range(5)) | scores_of(range(2, 6), range(3, 9))
    assert found(work) == found(work / "scores") == whole
    assert found(work, queries=["other", *QUERIES[3:]]) == {
        key: one for key, one in whole.items() if key[0] >= "query 3"
    }
    fewer = Items(ITEMS.texts[4:], ids=ITEMS.ids[4:])
    assert found(work, items=fewer) == {key: one for key, one in whole.items() if int(key[1][1:]) >= 4}


def test_lists_of_a_cache_are_found_by_the_texts_of_queries(tmp_path):
    path = add_to_cache(tmp_path / "scores.db", range(4), range(5))
    add_to_cache(path, range(6), range(9), fingerprint="another")
    add_to_cache(path, range(5), range(3))
    whole = scores_of(range(4), range(5)) | scores_of([4], range(3))
    assert found(path) == whole
    assert found(path, queries=QUERIES[4:]) == scores_of([4], range(3))
    assert set(found(path, scorer="another")) == set(scores_of(range(6), range(9)))


def test_a_cache_that_keeps_queries_needs_no_texts(tmp_path):
    path = add_to_cache(tmp_path / "scores.db", range(3), range(5), keep_queries=True)
    add_to_cache(path, [5], range(5))
    assert found(path, queries=[]) == scores_of(range(3), range(5))
    assert found(path) == scores_of([0, 1, 2, 5], range(5))


def test_no_match_is_explained(tmp_path):
    work, path = add_to_work(tmp_path / "work", range(4), range(5)), tmp_path / "scores.db"
    add_to_cache(path, range(4), range(5))
    for source in (work, path):
        with pytest.raises(InputError, match=r"20 scores of 4 queries by their hashes.*as `queries`"):
            found(source, queries=["other"])
        with pytest.raises(InputError, match="none of its 20 scores is of the index's items"):
            found(source, items=Items(["other"]))
    open_score_log(tmp_path / "empty", make_scorer())
    with pytest.raises(InputError, match="holds no scores yet"):
        found(tmp_path / "empty")


def test_sources_of_another_scorer_are_refused(tmp_path):
    SearchLog(tmp_path / "log", scorer="s")
    for source in (
        tmp_path / "log",
        add_to_work(tmp_path / "work", [0], [1]),
        add_to_cache(tmp_path / "scores.db", [0], [1]),
    ):
        with pytest.raises(InputError, match=r"another scorer|holds the scores of 's'"):
            found(source, scorer="t")


def test_anything_else_is_no_source(tmp_path):
    (tmp_path / "text").write_text("SQLite")
    (tmp_path / "empty.db").touch()
    (tmp_path / "folder").mkdir()
    for name in ("text", "empty.db", "folder", "missing"):
        with pytest.raises(InputError, match=f"{name}: no source of scores"):
            found(tmp_path / name)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE photos (id)")
    other.close()
    with pytest.raises(InputError, match="not a score cache"):
        found(tmp_path / "other.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.db", "folder", "other.db", "text"]


def opened(work, *sources, key=""):
    return open_scored_lists(sources, QUERIES, ITEMS, scorer="s", work_dir=work, key=key)


def no_space():
    with disk_errors(Path("index"), "cannot be written"):
        raise OSError(errno.ENOSPC, "No space left on device")


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [interrupt, no_space])
def test_a_learning_that_is_run_again_gets_the_lists_it_began_with(tmp_path, end):
    work = add_to_work(tmp_path / "work", range(3), range(5))

    def read(key=""):
        with opened(work, work, key=key) as lists:
            return [(one.query, one.ids, np.asarray(one.scores).tolist()) for one in lists]

    def interrupted(key=""):
        with opened(work, work, key=key) as lists:
            assert [(one.query, one.ids, np.asarray(one.scores).tolist()) for one in lists] == first
            add_to_work(work, range(6), range(9))  # what it scores itself
            end()

    with opened(work, work) as lists:
        first = [(one.query, one.ids, np.asarray(one.scores).tolist()) for one in lists]
    with pytest.raises((KeyboardInterrupt, InputError)):
        interrupted()
    (kept,) = work.glob("lists-*")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600  # it holds queries
    assert len(read(key="another index")) == 6
    assert read() == first
    assert not list(work.glob("lists-*"))
    assert len(read()) == 6  # the next learning takes what is there then


@pytest.mark.parametrize("damage", [lambda data: data[:-30], lambda data: data.replace(b"0", b"1", 1), lambda _: b""])
def test_damaged_lists_are_read_from_their_sources_again(tmp_path, damage):
    work = add_to_work(tmp_path / "work", range(3), range(5))

    def interrupted():
        with opened(work, work):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (kept,) = work.glob("lists-*")
    kept.write_bytes(damage(kept.read_bytes()))
    add_to_work(work, range(6), range(9))
    with opened(work, work) as lists:
        assert len(lists) == 6


def test_lists_that_nothing_can_be_learned_from_are_not_kept(tmp_path):
    log = SearchLog(tmp_path / "log", scorer="s")
    with pytest.raises(InputError, match="at least two"), opened(tmp_path / "work", tmp_path / "log") as lists:
        merge_lists(lists, ITEMS)
    log.append("query 0", ["d1", "d2"], [1.0, 2.0])
    with opened(tmp_path / "work", tmp_path / "log") as lists:
        assert len(lists) == 1


def test_several_sources_are_read_one_after_the_other(tmp_path):
    work, path = add_to_work(tmp_path / "work", [0], range(5)), add_to_cache(tmp_path / "scores.db", [1], range(5))
    with opened(tmp_path / "new", work, path) as lists:
        assert [one.query for one in lists] == QUERIES[:2]


def merged(*searches):
    lists = merge_lists([LoggedSearch(*search) for search in searches], ITEMS)
    return [(one.query, one.rows.tolist(), one.scores.tolist()) for one in lists]


def test_lists_of_one_query_are_merged():
    lists = merged(("q", ["d3", "d1"], [1.0, 2.0]), ("p", ["d0", "d2"], [5.0, 6.0]), ("q", ["d1", "d7"], [9.0, 3.0]))
    assert lists == [("q", [3, 1, 7], [1.0, 2.0, 3.0]), ("p", [0, 2], [5.0, 6.0])]
    assert merged(("q", ["d3"], [1.0]), ("q", ["d4"], [2.0])) == [("q", [3, 4], [1.0, 2.0])]


def test_what_nothing_can_be_learned_from_is_left_out():
    kept = ("q", ["d3", "gone", "d1", "d2"], [1.0, 2.0, np.nan, 4.0])
    left_out = [
        ("one item", ["d3"], [1.0]),
        ("removed items", ["d3", "gone"], [1.0, 2.0]),
        ("infinite", ["d3", "d4"], [1.0, np.inf]),
        (" \n", ["d3", "d4"], [1.0, 2.0]),
        ("lone \ud800 surrogate", ["d3", "d4"], [1.0, 2.0]),
    ]
    assert merged(*left_out, kept) == [("q", [3, 2], [1.0, 4.0])]
    with pytest.raises(InputError, match="searches that scored at least two of the index's items"):
        merged(*left_out)
