"""Exact scores on disk: equal to exact search, computed once, whatever is killed, damaged or run concurrently."""

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.evaluate import ground_truth as truth
from crossknn.evaluate.comparison import exact_truth
from crossknn.evaluate.ground_truth import exact_scores, truth_hits, truth_rows
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.storage.atomic import exclusive_lock
from crossknn.testing import MatrixScorer
from tests.kills import die_at, forking

MATRIX = np.random.default_rng(5).normal(size=(12, 30)).astype(np.float32)


class World:
    """Twelve queries, thirty items, and a scorer that counts."""

    def __init__(self) -> None:
        self.scorer = MatrixScorer(MATRIX)
        self.items, self.queries = Items(self.scorer.items), self.scorer.queries

    def scores(self, folder, **options):
        return exact_scores(self.items, options.pop("queries", self.queries), self.scorer, folder, **options)

    @property
    def scored(self) -> list[int]:
        """The queries that were scored, in order."""
        return [query for query, item in self.scorer.pairs if item == 0]


@pytest.fixture
def world() -> World:
    return World()


def files_in(folder):
    return {path.suffix: path for path in folder.iterdir() if path.suffix in (".npy", ".json")}


def test_scores_are_those_of_all_pairs_mapped_from_disk_and_computed_once(world, tmp_path):
    seen = []
    scores = world.scores(tmp_path / "new" / "truth", block=5, progress=lambda *step: seen.append(step))
    assert isinstance(scores, np.memmap)
    assert not scores.flags.writeable
    assert (scores.dtype, np.array_equal(scores, MATRIX)) == (np.float32, True)
    assert seen == [("exact scores", done * 30, 360) for done in (0, 5, 10, 12)]
    assert world.scorer.calls == 360
    again = World()
    assert np.array_equal(again.scores(tmp_path / "new" / "truth", progress=lambda *step: seen.append(step)), MATRIX)
    assert again.scorer.calls == 0
    assert seen[4:] == [("exact scores", 360, 360)]


def test_a_finished_file_is_opened_without_writing_anything(world, tmp_path):
    world.scores(tmp_path)
    paths = [tmp_path, *tmp_path.iterdir()]
    before = {path: path.stat().st_mtime_ns for path in paths}
    assert np.array_equal(world.scores(tmp_path), MATRIX)
    assert {path: path.stat().st_mtime_ns for path in paths} == before  # of the folder, too: no file came or went


def test_a_finished_file_is_opened_while_another_process_holds_its_lock(world, tmp_path):
    world.scores(tmp_path)
    (lock,) = tmp_path.glob(".*.lock")
    with ThreadPoolExecutor(1) as threads, exclusive_lock(lock):
        assert np.array_equal(threads.submit(world.scores, tmp_path).result(timeout=20), MATRIX)


def test_many_items_are_scored_in_several_calls(world, tmp_path, monkeypatch):
    monkeypatch.setattr(truth, "CALL_PAIRS", 8)
    assert np.array_equal(world.scores(tmp_path), MATRIX)
    assert world.scorer.batches == [8, 8, 8, 6] * 12


def test_other_items_queries_or_scorers_have_files_of_their_own(world, tmp_path):
    world.scores(tmp_path)
    fewer = world.scores(tmp_path, queries=world.queries[:3])
    turned = world.scores(tmp_path, queries=world.queries[::-1])
    other = MatrixScorer(-MATRIX)
    negative = exact_scores(world.items, world.queries, other, tmp_path)
    some = exact_scores(Items(world.scorer.items[:7]), world.queries, world.scorer, tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 5
    assert np.array_equal(fewer, MATRIX[:3])
    assert np.array_equal(turned, MATRIX[::-1])
    assert np.array_equal(negative, -MATRIX)
    assert np.array_equal(some, MATRIX[:, :7])
    assert np.array_equal(world.scores(tmp_path), MATRIX)


class Failing(MatrixScorer):
    """Loses its connection at its ninth call."""

    def score(self, queries, items):
        if len(self.batches) == 8:
            raise ConnectionError("the scorer is gone")
        return super().score(queries, items)


def test_a_scorer_that_fails_loses_only_its_block_and_the_size_of_blocks_may_change(world, tmp_path):
    with pytest.raises(ConnectionError, match="the scorer is gone"):
        exact_scores(world.items, world.queries, Failing(MATRIX), tmp_path, block=3)
    assert np.array_equal(world.scores(tmp_path, block=2), MATRIX)
    assert world.scored == [6, 7, 8, 9, 10, 11]


def test_damage_is_found_and_only_what_is_damaged_is_scored_again(world, tmp_path, caplog):
    world.scores(tmp_path)
    path = files_in(tmp_path)[".npy"]
    data = bytearray(path.read_bytes())
    data[-4 * 30 * 2 - 7] ^= 1  # a bit in the scores of the third last query
    path.write_bytes(data)
    again = World()
    assert np.array_equal(again.scores(tmp_path), MATRIX)
    assert again.scored == [9]
    assert "1 damaged or missing blocks are computed again" in caplog.text


@pytest.mark.parametrize(("size", "lost"), [(0, 12), (50, 12), (-1, 1), (-4 * 30 - 1, 2), (None, 12)])
def test_a_file_that_is_cut_or_gone_is_completed(world, tmp_path, size, lost):
    world.scores(tmp_path)
    path = files_in(tmp_path)[".npy"]
    data = path.read_bytes()
    if size is None:
        path.unlink()
    else:
        path.write_bytes(data[:size])
    again = World()
    assert np.array_equal(again.scores(tmp_path), MATRIX)
    assert len(again.scored) == lost
    assert path.read_bytes() == data


@pytest.mark.parametrize("content", ['{"scorer": "another"}', '{"scorer": "another", "width": 30}', "[]", "{", ""])
def test_the_sidecar_of_another_array_is_refused(world, tmp_path, content):
    world.scores(tmp_path)
    files_in(tmp_path)[".json"].write_text(content)
    with pytest.raises(InputError, match=r"To start over, delete \w+\.npy"):
        world.scores(tmp_path)


def test_bad_arguments(world, tmp_path):
    with pytest.raises(InputError, match="`queries` must be a nonempty list of strings"):
        world.scores(tmp_path, queries=[])
    with pytest.raises(InputError, match="`queries` must be a nonempty list of strings"):
        world.scores(tmp_path, queries="query 1")
    with pytest.raises(InputError, match="`block` must be a positive integer, got 0"):
        world.scores(tmp_path, block=0)
    unnamed = function_scorer(lambda pairs: [0.0] * len(pairs))
    with pytest.raises(InputError, match="The scorer has no name to store scores under"):
        exact_scores(world.items, world.queries, unnamed, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be read or written .* give another folder"):
        world.scores(tmp_path / "file")
    assert world.scorer.calls == 0


def test_the_true_rows_are_the_largest_scores_ties_to_the_lower_row():
    scores = np.array([[1, 3, 3, 2], [0, 0, 0, 0]], np.float32)
    assert [rows.tolist() for rows in truth_rows(scores, 3)] == [[1, 2, 3], [0, 1, 2]]
    assert [len(rows) for rows in truth_rows(scores, 9)] == [4, 4]
    with pytest.raises(InputError, match="`k` must be a positive integer"):
        truth_rows(scores, 0)


def test_hits_from_the_scores_are_those_of_exact_search(setup, tmp_path):
    items = setup.searcher.items
    scores = exact_scores(items, setup.queries, setup.scorer, tmp_path)
    made, searched = truth_hits(items, setup.queries, scores, 7), exact_truth(setup.searcher, setup.queries, k=7)
    for one, other in zip(made, searched, strict=True):
        assert (one.query, one.hits, one.calls, one.rounds) == (other.query, other.hits, other.calls, other.rounds)
    with pytest.raises(InputError, match=r"`scores` must be of these queries and items, \(3, 60\), got \(4, 60\)"):
        truth_hits(items, setup.queries[:3], scores, 7)


# --- processes that are killed


def work(folder, log, pause):
    """Score in this process, and log every query before it is scored."""
    plain = MatrixScorer(MATRIX)

    def score(pairs):
        with log.open("a") as out:
            out.write(f"{pairs[0][0].split()[1]}\n")
        time.sleep(pause)
        return plain.score(*zip(*pairs, strict=True))

    scorer = function_scorer(score, fingerprint="logged")
    return exact_scores(Items(plain.items), plain.queries, scorer, folder, block=2)


def start(folder, log, pause):
    process = get_context("fork").Process(target=work, args=(folder, log, pause))
    process.start()
    return process


def scored_in(path):
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@forking
def test_after_several_kills_the_scores_are_the_same(tmp_path):
    """A query is scored twice only if its block was in flight when the process was killed."""
    moments, log = random.Random(2), tmp_path / "log"
    repeated = killed = 0
    for kill in range(6):
        before = scored_in(log)
        sidecar = files_in(tmp_path).get(".json")
        done = [json.loads(line)[0] for line in sidecar.read_text().split("\n")[1:-1]] if sidecar else []
        worker = start(tmp_path, log, 0.02)
        target, deadline = len(before) + moments.randint(0, 2), time.monotonic() + 20
        while kill < 5 and len(scored_in(log)) <= target and time.monotonic() < deadline and worker.is_alive():
            time.sleep(0.001)
        if kill < 5:
            time.sleep(moments.uniform(0, 0.02))
            worker.kill()
        worker.join(20)
        killed += worker.exitcode == -signal.SIGKILL
        now = scored_in(log)[len(before) :]
        assert not set(done) & set(now)
        assert len(set(now)) == len(now)
        repeated += len(set(before) & set(now))
    assert worker.exitcode == 0
    assert killed >= 2
    assert repeated <= 5 * 2
    assert set(scored_in(log)) == set(range(12))
    before = scored_in(log)
    assert np.array_equal(work(tmp_path, log, 0), MATRIX)
    assert scored_in(log) == before


@forking
def test_a_run_killed_before_any_use_of_a_file_is_resumed(tmp_path, monkeypatch):
    """SIGKILL at the first open, rename or removal, at the second, and so on to the last."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for step in range(1, 200):
        folder = tmp_path / str(step)
        child = os.fork()
        if not child:
            die_at(step, folder)
            World().scores(folder, block=5)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        again = World()
        assert np.array_equal(again.scores(folder), MATRIX)
        assert again.scored == list(range(12))[-len(again.scored) :] or not again.scored
        if os.waitstatus_to_exitcode(status) == 0:
            break
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert 10 < step < 199
    assert not again.scored


@forking
def test_of_several_processes_one_scores_and_the_others_wait(tmp_path):
    workers = [start(tmp_path, tmp_path / f"log{n}", 0.005) for n in range(3)]
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    log = [query for n in range(3) for query in scored_in(tmp_path / f"log{n}")]
    assert sorted(log) == list(range(12))
    assert np.array_equal(work(tmp_path, tmp_path / "last", 0), MATRIX)
    assert scored_in(tmp_path / "last") == []
