"""Stored scores survive interruptions, and a build that is run again ends with the same scores bit for bit."""

import errno
import json
import os
import pickle
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError, ScorerError
from crossknn.indexing.pair_scoring import open_score_log, score_pairs_into
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.storage.score_log import Chunk, LogSize, ScoreLog, hash_texts
from tests.kills import die_at, forking

QUERIES = [f"query {number}" for number in range(7)]
ITEMS = Items([f"item {row}" for row in range(20)])


def scores_of(pairs: list[tuple[str, str]]) -> list[float]:
    """Scores that depend on the whole batch, far more than those of a model do."""
    salt = blake2b(repr(pairs).encode("utf-8", "surrogatepass"), digest_size=2).digest()
    return [
        sum(query.encode("utf-8", "surrogatepass")) + sum(item.encode()) / 7 + int.from_bytes(salt) * 1e-4
        for query, item in pairs
    ]


class World:
    """A scorer that remembers its pairs, and fails at given calls."""

    def __init__(self, *, name: str = "salted") -> None:
        self.batches: list[list[tuple[str, str]]] = []
        self.errors: dict[int, BaseException] = {}  # by number of the call
        self.scorer = function_scorer(self._score, fingerprint=name)

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        self.batches.append(pairs)
        if len(self.batches) - 1 in self.errors:
            raise self.errors[len(self.batches) - 1]
        return scores_of(pairs)

    @property
    def scored(self) -> list[tuple[str, str]]:
        return [pair for batch in self.batches for pair in batch]


def draw_pairs(count: int = 50, *, seed: int = 0, n_queries: int = 7, n_items: int = 20) -> Pairs:
    keys = np.random.default_rng(seed).permutation(n_queries * n_items)[:count].astype(np.int32)
    return Pairs(keys // n_items, keys % n_items, n_queries, n_items)


def texts_of(pairs: Pairs) -> list[tuple[str, str]]:
    rows = zip(pairs.queries.tolist(), ITEMS.texts_of(pairs.rows), strict=True)
    return [(QUERIES[query], item) for query, item in rows]


def build(folder: Path, world: World | None = None, pairs: Pairs | None = None, **options: object) -> SparseScores:
    world, pairs = world or World(), draw_pairs() if pairs is None else pairs
    log = ScoreLog.open(folder, scorer=world.scorer.fingerprint)
    return score_pairs_into(log, pairs, QUERIES, ITEMS, world.scorer, **{"chunk": 8, **options})  # type: ignore[arg-type]


def logged(log: ScoreLog, queries: Sequence[str], items: Sequence[str]) -> dict[tuple[str, str], float]:
    """The score of every pair of these texts in the log; the first by name of its chunk counts."""
    texts = [{key.tobytes(): text for key, text in zip(hash_texts(of), of, strict=True)} for of in (queries, items)]
    found: dict[tuple[str, str], float] = {}
    for chunk in map(log.read, log.chunks):
        for query, item, score in zip(chunk.queries, chunk.items, chunk.scores.tolist(), strict=True):
            found.setdefault((texts[0][query.tobytes()], texts[1][item.tobytes()]), score)
    return found


def chunk_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def assert_same(left: SparseScores, right: SparseScores) -> None:
    assert np.array_equal(left.pairs.keys(), right.pairs.keys())
    assert left.scores.tobytes() == right.scores.tobytes()


def test_pairs_are_scored_in_their_order_and_stored(tmp_path: Path) -> None:
    world, pairs = World(), draw_pairs()
    entries = build(tmp_path / "new" / "log", world, pairs)
    texts = texts_of(pairs)
    assert entries.pairs is pairs
    assert world.batches == [texts[start : start + 8] for start in range(0, 50, 8)]
    expected = np.array([score for batch in world.batches for score in scores_of(batch)], np.float32)
    assert entries.scores.tobytes() == expected.tobytes()
    again = World()
    assert_same(build(tmp_path / "new" / "log", again, pairs), entries)
    assert again.batches == []


def test_files_in_the_folder(tmp_path: Path) -> None:
    build(tmp_path)
    log = ScoreLog.open(tmp_path, scorer="salted")
    assert log.chunks == [path.name for path in chunk_files(tmp_path)]
    assert log.verify() == LogSize(7, 50, sum(path.stat().st_size for path in chunk_files(tmp_path)))
    assert json.loads((tmp_path / "log.json").read_text()) == {"format": 1, "scorer": "salted"}
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 2 + [".parquet"] * 7
    assert pickle.loads(pickle.dumps(log)) == log  # workers get the path


def test_no_pairs(tmp_path: Path) -> None:
    world, nothing = World(), draw_pairs(0)
    assert len(build(tmp_path, world, nothing)) == 0
    build(tmp_path, world, draw_pairs(5))
    assert len(build(tmp_path, world, nothing, chunk=9)) == 0  # a new plan, beside chunks of another
    assert len(world.scored) == 5
    empty = Pairs(nothing.queries, nothing.rows, 0, 20)
    log = ScoreLog.open(tmp_path, scorer="salted")
    assert len(score_pairs_into(log, empty, [], ITEMS, world.scorer)) == 0
    assert ScoreLog.open(tmp_path / "none", scorer="salted").verify() == LogSize(0, 0, 0)


def test_progress_counts_what_is_reused_as_done(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    build(tmp_path, pairs=draw_pairs().take(slice(0, 20)))
    build(tmp_path, progress=lambda *step: seen.append(step))
    assert seen == [("scoring", done, 50) for done in (20, 28, 36, 44, 50)]


def test_another_plan_scores_only_what_is_new(tmp_path: Path) -> None:
    first = build(tmp_path, pairs=draw_pairs(30))
    world, pairs = World(), draw_pairs(60)  # the same 30, and 30 more
    second = build(tmp_path, world, pairs, chunk=11)
    assert world.scored == texts_of(pairs)[30:]
    assert second.scores[:30].tobytes() == first.scores.tobytes()
    other = World()
    backwards = build(tmp_path, other, pairs.take(np.arange(60)[::-1].copy()))
    assert other.scored == []
    assert backwards.scores.tobytes() == second.scores[::-1].tobytes()


def test_chunks_of_another_log_can_be_copied_in(tmp_path: Path) -> None:
    entries, world = build(tmp_path / "one"), World()
    ScoreLog.open(tmp_path / "two", scorer="salted")
    for path in chunk_files(tmp_path / "one"):
        shutil.copy(path, tmp_path / "two")
    assert_same(build(tmp_path / "two", world), entries)
    assert world.scored == []


def test_a_pair_is_identified_by_its_texts(tmp_path: Path) -> None:
    entries, world = build(tmp_path), World()
    log, pairs = ScoreLog.open(tmp_path, scorer="salted"), draw_pairs()
    shuffled = np.random.default_rng(1).permutation(20)  # the same items in other rows
    items, rows = Items(ITEMS.texts_of(shuffled)), np.argsort(shuffled).astype(np.int32)[pairs.rows]
    moved = Pairs(pairs.queries, rows, 7, 20)
    assert_same(score_pairs_into(log, moved, QUERIES, items, world.scorer), SparseScores(moved, entries.scores))
    assert world.scored == []


def test_equal_texts_are_scored_once(tmp_path: Path) -> None:
    world = World()
    log = ScoreLog.open(tmp_path, scorer="salted")
    items, queries = Items(["a", "b", "a", "c", "a"]), ["x", "y", "x"]
    numbers = np.arange(15, dtype=np.int32)
    pairs = Pairs(numbers // 5, numbers % 5, 3, 5)
    seen: list[tuple[str, int, int]] = []
    entries = score_pairs_into(
        log, pairs, queries, items, world.scorer, chunk=4, progress=lambda *step: seen.append(step)
    )
    assert world.scored == [(query, item) for query in "xy" for item in "abc"]
    matrix = entries.scores.reshape(3, 5)
    assert np.array_equal(matrix[0], matrix[2])
    assert np.array_equal(matrix[:, 0], matrix[:, 2])
    assert np.array_equal(matrix[:, 0], matrix[:, 4])
    assert seen[-1] == ("scoring", 15, 15)
    assert len(logged(log, queries, items.texts)) == 6


def test_any_text(tmp_path: Path) -> None:
    queries, items = ["", "é", "e\u0301", "\ud800", "\udc80\0", "深い"], Items(["", "\0", "🦀", "a\nb"])
    assert len(np.unique(hash_texts(queries))) == 6
    numbers = np.arange(24, dtype=np.int32)
    pairs, world = Pairs(numbers // 4, numbers % 4, 6, 4), World()
    log = ScoreLog.open(tmp_path, scorer="salted")
    entries = score_pairs_into(log, pairs, queries, items, world.scorer, chunk=5)
    assert_same(score_pairs_into(log, pairs, queries, items, world.scorer, chunk=5), entries)
    assert list(logged(log, queries, items.texts).values()) == entries.scores.tolist()
    assert len(world.scored) == 24


def test_the_first_of_two_chunks_with_a_pair_counts(tmp_path: Path) -> None:
    log = ScoreLog.open(tmp_path, scorer="salted")
    queries, items = hash_texts(QUERIES[:1]), hash_texts(ITEMS.texts[:1])
    for plan, score in (("b" * 16, 2.0), ("a" * 16, 1.0), ("c" * 16, 3.0)):
        log.write(Chunk(queries, items, np.array([score], np.float32)), plan, 0)
    assert len(log.chunks) == 3
    world = World()
    pairs = Pairs(np.zeros(1, np.int32), np.zeros(1, np.int32), 7, 20)
    assert build(tmp_path, world, pairs).scores.tolist() == [1]
    assert world.scored == []


def test_of_two_copies_of_a_chunk_the_first_counts(tmp_path: Path) -> None:
    """Two workers without parts may finish one chunk at the same moment; a GPU need not repeat itself bit for bit."""
    build(tmp_path)
    log = ScoreLog.open(tmp_path, scorer="salted")
    first = log.chunks[0]
    chunk = log.read(first)
    for number in range(4):
        copy = Chunk(chunk.queries, chunk.items, chunk.scores + np.float32(number + 1))
        log.write(copy, first[:16], 0)
    assert build(tmp_path).scores[:8].tobytes() == log.read(log.chunks[0]).scores.tobytes()
    assert len(log.chunks) == 11
    assert sorted(logged(log, QUERIES, ITEMS.texts).values()) == sorted(build(tmp_path).scores.tolist())


# --- interruptions


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), KeyboardInterrupt(), ScorerError("bad"), OSError(28, "full")]
)
def test_an_error_of_the_scorer_passes_and_a_second_run_resumes(tmp_path: Path, error: BaseException) -> None:
    whole, failing, world = build(tmp_path / "whole"), World(), World()
    failing.errors[3] = error
    with pytest.raises(type(error)) as raised:
        build(tmp_path / "log", failing)
    assert raised.value is error
    assert ScoreLog.open(tmp_path / "log", scorer="salted").verify().scores == 24
    assert_same(build(tmp_path / "log", world), whole)
    assert world.batches[0] == failing.batches[3]
    assert len(world.scored) == 50 - 24


@mock.patch("os.fsync", mock.Mock())  # it guards against power cuts only, and is slow on a busy disk
@settings(max_examples=40)
@given(data=st.data())
def test_any_interruptions_end_with_the_same_entries(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Errors at any calls of any workers, chunk files lost at any time; over what an earlier plan left, or nothing."""
    folder = tmp_path_factory.mktemp("any")
    chunk = data.draw(st.integers(1, 60))
    earlier = data.draw(st.integers(0, 30))
    pairs = draw_pairs(40, seed=3)
    for name in ("whole", "log"):
        build(folder / name, pairs=pairs.take(slice(10, 10 + earlier)), chunk=7)
    reused = {path.name for path in chunk_files(folder / "log")}
    whole = build(folder / "whole", pairs=pairs, chunk=chunk)
    for _ in range(data.draw(st.integers(0, 5))):
        failing, workers = World(), data.draw(st.integers(1, 3))
        failing.errors[data.draw(st.integers(0, 4))] = ConnectionError()
        with suppress(ConnectionError):
            build(folder / "log", failing, pairs, chunk=chunk, part=(data.draw(st.integers(0, workers - 1)), workers))
        own = [path for path in chunk_files(folder / "log") if path.name not in reused]
        if own and data.draw(st.booleans()):
            data.draw(st.sampled_from(own)).unlink()
    assert_same(build(folder / "log", pairs=pairs, chunk=chunk), whole)
    shutil.rmtree(folder)


def test_workers_make_the_chunks_of_one(tmp_path: Path) -> None:
    whole, scored, parts = build(tmp_path / "one"), [], []
    for worker in (2, 0, 1):
        world = World()
        seen: list[tuple[str, int, int]] = []
        parts.append(build(tmp_path / "log", world, part=(worker, 3), progress=lambda *step, to=seen: to.append(step)))
        scored += world.scored
        assert seen[-1][1:] == (len(world.scored), len(world.scored))
        assert len(parts[-1]) == len(world.scored)
    assert sorted(scored) == sorted(texts_of(draw_pairs()))
    last = World()
    assert_same(build(tmp_path / "log", last), whole)
    assert last.scored == []
    keys = np.concatenate([part.pairs.keys() for part in parts])
    assert sorted(keys.tolist()) == sorted(whole.pairs.keys().tolist())


def test_chunks_that_a_worker_left_out_are_scored_at_the_end(tmp_path: Path) -> None:
    whole, world = build(tmp_path / "one"), World()
    build(tmp_path / "log", part=(0, 2))
    assert_same(build(tmp_path / "log", world), whole)
    assert [len(batch) for batch in world.batches] == [8, 8, 8]


def test_a_chunk_that_another_worker_writes_meanwhile_is_read(tmp_path: Path) -> None:
    whole, world = build(tmp_path / "one"), World()

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        build(tmp_path / "log", world)  # all of it, while this one is at its first chunk
        return [0.0] * len(pairs)

    slow = function_scorer(score, fingerprint="salted")
    log = ScoreLog.open(tmp_path / "log", scorer="salted")
    assert_same(score_pairs_into(log, draw_pairs(), QUERIES, ITEMS, slow, chunk=8), whole)
    assert len(log.chunks) == len(world.batches) == 7


def test_of_two_plans_at_once_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, pairs=draw_pairs(20))
    link, raced = os.link, World()

    def race(temporary: Path, path: Path) -> None:
        """Another worker plans at the last moment: when this one is about to give its plan a name."""
        monkeypatch.setattr(os, "link", link)
        chunk_files(tmp_path)[0].unlink()  # the other worker sees other chunks, and plans otherwise
        build(tmp_path, raced)
        link(temporary, path)

    monkeypatch.setattr(os, "link", race)
    world = World()
    late = build(tmp_path, world)
    assert world.scored == []
    assert_same(late, build(tmp_path))
    assert len(raced.scored) == 38


def test_without_links_plans_are_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    whole = build(tmp_path / "one")
    monkeypatch.setattr(os, "link", refuse)
    assert_same(build(tmp_path / "log"), whole)
    assert not list((tmp_path / "log").glob(".*"))


# --- damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_chunk_is_named_and_can_be_deleted(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    whole = build(tmp_path)
    path = chunk_files(tmp_path)[2]
    damage(path)
    log, failing = ScoreLog.open(tmp_path, scorer="salted"), World()
    words = rf"{path.name}: damaged: its \d+ bytes have the digest .*Delete this file"
    for read in (
        lambda: build(tmp_path, failing),
        lambda: build(tmp_path, failing, chunk=9),
        log.verify,
    ):
        with pytest.raises(InputError, match=words):
            read()
    assert failing.scored == []
    path.unlink()
    world = World()
    assert_same(build(tmp_path, world), whole)
    assert len(world.scored) == 8


def test_a_reused_chunk_that_is_gone_is_scored_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, pairs=draw_pairs(20))
    reused = chunk_files(tmp_path)[0]
    before, world = build(tmp_path), World()
    reused.unlink()
    after = build(tmp_path, world)
    assert world.batches == [texts_of(draw_pairs())[:8]]
    assert "is gone; its pairs are scored again" in caplog.text
    assert after.scores[8:].tobytes() == before.scores[8:].tobytes()
    again = World()
    assert_same(build(tmp_path, again), after)
    assert again.scored == []


def test_foreign_files(tmp_path: Path) -> None:
    build(tmp_path)
    for name in (".DS_Store", "README", "notes.json"):
        (tmp_path / name).write_text("hello")
    build(tmp_path)
    ITEMS.to_parquet(tmp_path / "items.parquet")
    log = ScoreLog.open(tmp_path, scorer="salted")
    for read in (lambda: log.chunks, log.verify, lambda: build(tmp_path)):
        with pytest.raises(InputError, match=r"items\.parquet: not named like a chunk .*Move it away"):
            read()
    (tmp_path / "items.parquet").unlink()
    content = b"not parquet"
    digest = blake2b(content, digest_size=8).hexdigest()
    odd = tmp_path / f"{'0' * 16}-000000-{digest}.parquet"
    odd.write_bytes(content)
    with pytest.raises(InputError, match=r"not a chunk of scores \(.*Delete"):
        log.verify()
    odd.unlink()
    buffer = tmp_path / "buffer"
    ITEMS.to_parquet(buffer)
    digest = blake2b(buffer.read_bytes(), digest_size=8).hexdigest()
    buffer.rename(tmp_path / f"{'0' * 16}-000000-{digest}.parquet")
    with pytest.raises(InputError, match="not a chunk of scores"):
        log.verify()


def test_a_renamed_chunk_and_one_of_another_scorer_are_refused(tmp_path: Path) -> None:
    build(tmp_path / "log")
    path = chunk_files(tmp_path / "log")[1]
    renamed = path.with_name(path.name.replace("-000001-", "-000017-"))
    path.rename(renamed)
    with pytest.raises(InputError, match=r"the number of this chunk must be '17', got '1'\. Move it away"):
        ScoreLog.open(tmp_path / "log", scorer="salted").verify()
    renamed.unlink()
    build(tmp_path / "other", World(name="other"))
    shutil.copy(chunk_files(tmp_path / "other")[0], tmp_path / "log")
    with pytest.raises(InputError, match="the scorer of this chunk must be 'salted', got 'other'"):
        ScoreLog.open(tmp_path / "log", scorer="salted").verify()


def test_a_chunk_with_pairs_of_another_plan_is_refused(tmp_path: Path) -> None:
    build(tmp_path)
    path = chunk_files(tmp_path)[0]
    log = ScoreLog.open(tmp_path, scorer="salted")
    chunk = log.read(path.name)
    path.unlink()
    other = Chunk(chunk.queries, chunk.items[::-1].copy(), chunk.scores)
    log.write(other, path.name[:16], 0)
    with pytest.raises(InputError, match=r"its pairs are not those of its plan. Delete this file"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"plan-.*json: damaged: not JSON"),
        ('{"format": 1}', r"plan-.*json: damaged \(KeyError"),
        ("[]", r"plan-.*json: damaged: an object"),
        (None, r"plan-.*json: damaged: its content does not match its digest or its name"),
    ],
)
def test_a_damaged_plan_is_named_and_can_be_deleted(tmp_path: Path, content: str | None, words: str) -> None:
    whole = build(tmp_path)
    (path,) = tmp_path.glob("plan-*")
    path.write_text(path.read_text().replace('"reused": []', '"reused": ["x"]') if content is None else content)
    for read in (lambda: build(tmp_path), ScoreLog.open(tmp_path, scorer="salted").verify):
        with pytest.raises(InputError, match=words + ".*Delete this file: finished chunks are reused"):
            read()
    path.unlink()
    world = World()
    assert_same(build(tmp_path, world), whole)
    assert world.scored == []


def test_the_log_of_another_scorer(tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(InputError, match=r"log\.json: holds the scores of 'salted', not of 'new'"):
        ScoreLog.open(tmp_path, scorer="new")
    log = ScoreLog.open(tmp_path, scorer="salted")
    with pytest.raises(InputError, match=r"`scorer` must be the one of the log .* 'salted', got 'new'"):
        score_pairs_into(log, draw_pairs(), QUERIES, ITEMS, World(name="new").scorer)
    with pytest.raises(InputError, match=r"without a fingerprint.*function_scorer\(fn, fingerprint="):
        open_score_log(tmp_path, function_scorer(scores_of))


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"scorer": "salted"}', '"log"', "\0\0\0"])
def test_a_damaged_log_file_is_named_and_can_be_deleted(tmp_path: Path, content: str) -> None:
    build(tmp_path)
    (tmp_path / "log.json").write_text(content)
    with pytest.raises(InputError, match=r"log\.json: damaged: .*Delete this file: it is written again"):
        ScoreLog.open(tmp_path, scorer="salted")
    (tmp_path / "log.json").unlink()
    world = World()
    build(tmp_path, world)
    assert world.scored == []


def test_a_newer_log_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('{"format": 2, "scorer": "salted"}')
    with pytest.raises(InputError, match=r"log\.json: written by a newer crossknn \(format 2, .*Upgrade crossknn"):
        ScoreLog.open(tmp_path, scorer="salted")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk is full: free some space and run again"),
        (errno.EROFS, "Give a path on a disk that can be written to"),
    ],
)
def test_a_disk_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    whole, calls, sync = build(tmp_path / "whole"), 0, os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=f"{tmp_path / 'log'}: .*{words}"):
        build(tmp_path / "log")
    monkeypatch.undo()
    assert not list((tmp_path / "log").glob(".*"))
    assert ScoreLog.open(tmp_path / "log", scorer="salted").verify().chunks == 2
    world = World()
    assert_same(build(tmp_path / "log", world), whole)
    assert len(world.scored) == 50 - 16


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(InputError, match="A file is where a folder should be"):
            ScoreLog.open(folder, scorer="salted")
    log = ScoreLog.open(tmp_path / "log", scorer="salted")
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(InputError, match="does not exist"):
        log.verify()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    whole = build(tmp_path / "log")
    (tmp_path / "log").chmod(0o500)
    try:
        assert_same(build(tmp_path / "log"), whole)
        with pytest.raises(InputError, match="Change the permissions"):
            build(tmp_path / "log", pairs=draw_pairs(60))
    finally:
        (tmp_path / "log").chmod(0o700)


def test_temporary_files_of_killed_writers_are_removed_after_a_day(tmp_path: Path) -> None:
    build(tmp_path)
    old, new = tmp_path / ".x.parquet.0.tmp", tmp_path / ".x.parquet.1.tmp"
    for path in (old, new):
        path.write_bytes(b"half a chunk")
    os.utime(old, (time.time() - 90_000,) * 2)
    assert ScoreLog.open(tmp_path, scorer="salted").verify().chunks == 7
    assert (old.exists(), new.exists()) == (False, True)
    assert [path.name for path in tmp_path.glob(".*.tmp")] == [new.name]


def test_a_clock_that_jumps_removes_no_file_of_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path)
    path = tmp_path / ".x.parquet.1.tmp"
    path.write_bytes(b"half a chunk")
    later = time.time() + 1e6
    monkeypatch.setattr(time, "time", lambda: later)
    ScoreLog.open(tmp_path, scorer="salted")
    assert path.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, "`chunk` must be a positive integer, got 0"),
        ({"chunk": True}, "`chunk` must be"),
        ({"chunk": 2.5}, "`chunk` must be"),
        ({"part": (3, 3)}, r"`part` must be \(worker, workers\).*got \(3, 3\)"),
        ({"part": (-1, 3)}, "`part` must be"),
        (
            {"pairs": draw_pairs(n_items=19)},
            r"`pairs` must be of these queries \(7\) and items \(20\), got \(7, 19\)",
        ),
        ({"pairs": draw_pairs(n_queries=6)}, r"got \(6, 20\)"),
    ],
)
def test_arguments_are_checked(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(tmp_path, **options)  # type: ignore[arg-type]


# --- processes that are killed


def work(folder: Path, scored: Path, pause: float, part: tuple[int, int]) -> None:
    def score(pairs: list[tuple[str, str]]) -> list[float]:
        with scored.open("a") as out:
            out.write("".join(f"{query}|{item}\n" for query, item in pairs))
        time.sleep(pause)
        return scores_of(pairs)

    scorer = function_scorer(score, fingerprint="salted")
    log = ScoreLog.open(folder, scorer="salted")
    score_pairs_into(log, draw_pairs(140), QUERIES, ITEMS, scorer, chunk=3, part=part)


def start(folder: Path, scored: str, pause: float, *, part: tuple[int, int] = (0, 1)) -> ForkProcess:
    process = get_context("fork").Process(target=work, args=(folder / "log", folder / scored, pause, part))
    process.start()
    return process


def wait(process: ForkProcess) -> int | None:
    process.join(30)
    return process.exitcode


def scored_in(path: Path) -> list[tuple[str, ...]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(line.split("|")) for line in lines]


def finished(folder: Path) -> set[tuple[str, str]]:
    if not (folder / "log" / "log.json").exists():
        return set()
    log = ScoreLog.open(folder / "log", scorer="salted")
    log.verify()
    return set(logged(log, QUERIES, ITEMS.texts))


@forking
def test_after_several_kills_the_scores_are_the_same(tmp_path: Path) -> None:
    """A pair is scored twice only if its chunk was not yet in the log when the process was killed."""
    moments = random.Random(4)
    whole = build(tmp_path / "whole", pairs=draw_pairs(140), chunk=3)
    repeated = 0
    for kill in range(9):
        before, done = scored_in(tmp_path / "scored"), finished(tmp_path)
        worker = start(tmp_path, "scored", 0.01 if kill < 8 else 0)
        if kill < 8:
            expected, deadline = len(before) + 3 * moments.randint(0, 5), time.monotonic() + 30
            while len(scored_in(tmp_path / "scored")) <= expected and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.02))
            worker.kill()
        assert wait(worker) == (-signal.SIGKILL if kill < 8 else 0)
        now = scored_in(tmp_path / "scored")[len(before) :]
        assert not done & set(now)  # nothing that was finished is scored again
        repeated += len(set(before) & set(now))
    assert repeated <= 8 * 3  # the chunk in flight at each kill
    assert set(scored_in(tmp_path / "scored")) == set(texts_of(draw_pairs(140)))
    world = World()
    assert_same(build(tmp_path / "log", world, draw_pairs(140), chunk=3), whole)
    assert world.scored == []


@forking
@mock.patch("os.fsync", mock.Mock())
def test_a_build_killed_before_any_use_of_a_file_is_resumed(tmp_path: Path) -> None:
    """SIGKILL at the first open, rename, link, listing or removal, at the second, and so on to the last."""
    pairs, whole = draw_pairs(25), build(tmp_path / "whole", pairs=draw_pairs(25), chunk=10)
    build(tmp_path / "before", pairs=pairs.take(slice(0, 5)))
    reference = build(shutil.copytree(tmp_path / "before", tmp_path / "reused"), pairs=pairs, chunk=10)
    for start, expected in ((None, whole), (tmp_path / "before", reference)):
        for step in range(1, 200):
            folder = tmp_path / f"{start is None}-{step}"
            if start is not None:
                shutil.copytree(start, folder)
            child = os.fork()
            if not child:
                die_at(step, folder)
                build(folder, pairs=pairs, chunk=10)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert_same(build(folder, pairs=pairs, chunk=10), expected)
            if os.waitstatus_to_exitcode(status) == 0:
                break
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        assert 20 < step < 199


@forking
def test_several_processes_write_at_once(tmp_path: Path) -> None:
    whole = build(tmp_path / "whole", pairs=draw_pairs(140), chunk=3)
    workers = [start(tmp_path, f"scored{n}", 0.002, part=(n, 3)) for n in range(3)]
    assert [wait(worker) for worker in workers] == [0, 0, 0]
    scored = [pair for n in range(3) for pair in scored_in(tmp_path / f"scored{n}")]
    assert sorted(scored) == sorted(texts_of(draw_pairs(140)))
    world = World()
    assert_same(build(tmp_path / "log", world, draw_pairs(140), chunk=3), whole)
    assert world.scored == []
