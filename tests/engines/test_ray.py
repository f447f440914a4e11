"""A real Ray with two workers: the same index as without, whatever is killed, and no more calls than were lost."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from itertools import count, islice, repeat
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn.engines.ray import RayEngine
from crossknn.testing import MatrixScorer, check_engine
from tests.engines.world import CALLS, CHUNK, ITEMS, QUERIES, World, wait_until
from tests.paths import ROOT

TWO = {"workers": 2}

pytestmark = pytest.mark.usefixtures("ray")


def test_engine_contract():
    scorer = MatrixScorer([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    check_engine(RayEngine(**TWO), scorer, scorer.queries, scorer.items)


def test_a_build_is_that_of_this_process_byte_for_byte(local, tmp_path):
    world, reports = World(tmp_path), []
    index = world.build(engine=RayEngine(**TWO), progress=lambda *step: reports.append(step))
    assert world.files() == local.files()
    assert len(world.files()) > CALLS // CHUNK  # chunks, their plan, vectors and the index
    assert sorted(world.scored()) == sorted(local.scored())
    assert sorted(world.encoded()) == sorted(ITEMS.texts)
    assert os.getpid() not in world.scoring_pids()
    assert index.report.calls_made == CALLS
    for step, total in (("encode items", len(ITEMS)), ("scoring", CALLS)):
        done = [done for name, done, of in reports if (name, of) == (step, total)]
        assert (done, done[-1]) == (sorted(done), total)
    calls = len(world.scored())
    assert world.build(engine=RayEngine(**TWO)).report.calls_made == 0
    assert len(world.scored()) == calls


def test_a_build_without_a_work_folder_is_the_same(local):
    with_ray, without = (
        ck.Index.build(
            ITEMS, scorer=local.scorer, encoder=local.encoder, queries=QUERIES, factors=None, chunk=500, **options
        )
        for options in ({"engine": RayEngine(**TWO)}, {})
    )
    assert with_ray.normalization == without.normalization
    assert np.array_equal(with_ray.vectors, without.vectors)
    assert with_ray.report.calls_made == without.report.calls_made == 100 * len(QUERIES)


def test_exact_scores_are_those_of_this_process_byte_for_byte(tmp_path, monkeypatch):
    monkeypatch.setattr("crossknn.evaluate.ground_truth.CALL_PAIRS", 500)  # three calls for each query
    worlds = {name: World(tmp_path / name) for name in ("with", "without")}
    for name, options in {"with": {"engine": RayEngine(**TWO)}, "without": {}}.items():
        worlds[name].folder.mkdir()
        ck.exact_scores(ITEMS, QUERIES[:5], worlds[name].scorer, worlds[name].folder / "work", block=2, **options)
    assert worlds["with"].files() == worlds["without"].files()
    assert sorted(worlds["with"].scored()) == sorted(worlds["without"].scored())
    assert os.getpid() not in worlds["with"].scoring_pids()


def test_a_killed_worker_costs_the_chunk_it_was_scoring(local, tmp_path, caplog):
    world = World(tmp_path, hold_at=8 * CHUNK)

    def kill():
        wait_until(lambda: len(world.scored()) == 10 * CHUNK)  # both workers are in the middle of a call
        os.kill(world.scoring_pids()[-1], signal.SIGKILL)
        wait_until(lambda: len(set(world.scoring_pids())) == 3)  # another has taken its place
        world.release()

    killer = threading.Thread(target=kill)
    killer.start()
    world.build(engine=RayEngine(**TWO))
    killer.join()
    assert world.files() == local.files()
    assert world.scored_twice() == CHUNK
    assert "a Ray worker was lost; its 2 jobs run again" in caplog.text


def test_an_error_of_the_scorer_ends_the_build_and_what_was_finished_is_kept(local, tmp_path):
    world = World(tmp_path, fail_at=10 * CHUNK)
    with pytest.raises(ck.errors.ScorerError, match=r"^the scorer is broken$"):
        world.build(engine=RayEngine(**TWO))
    kept = world.chunks()
    assert 8 <= kept <= 10
    assert len(world.scored()) <= (10 + 4) * CHUNK  # the jobs that were in flight, and no retries
    again = World(tmp_path)
    assert again.build(engine=RayEngine(**TWO)).report.calls_made == CALLS - kept * CHUNK
    assert again.files() == local.files()


def test_a_job_that_ends_every_worker_is_given_up(tmp_path):
    world = World(tmp_path, die_at=QUERIES[-1])
    with pytest.raises(ck.errors.EngineError, match=r"^Job \d+ was given up after 3 Ray workers were lost"):
        world.build(engine=RayEngine(**TWO))
    assert world.chunks()


def test_a_killed_build_is_resumed_here_or_on_ray(ray, local, tmp_path):
    world = World(tmp_path / "killed")
    world.folder.mkdir()
    port = ray.get_runtime_context().gcs_address.rpartition(":")[2]
    address = f"127.0.0.1:{port}"  # which Ray calls by another name
    command = [sys.executable, "-m", "tests.engines.driver", address, world.folder, str(6 * CHUNK)]
    driver = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: (len(world.scored()), world.chunks()) == (8 * CHUNK, 6))  # both workers are held
    finally:
        driver.kill()
        driver.wait()
    here = World(Path(shutil.copytree(world.folder, tmp_path / "here")))
    for again, options in ((here, {}), (world, {"engine": RayEngine(**TWO)})):
        assert again.build(**options).report.calls_made == CALLS - 6 * CHUNK
        assert again.files() == local.files()
        assert sorted(again.encoded()) == sorted(ITEMS.texts)
        assert again.scored_twice() == 2 * CHUNK  # what the two were scoring


class Elsewhere(MatrixScorer):
    """Another model in every process."""

    @property
    def fingerprint(self):
        return f"process {os.getpid()}"


class Slow(MatrixScorer):
    """Takes its time to open."""

    def __reduce__(self):
        return _open_slowly, ()


def _open_slowly():
    threading.Event().wait(20)


class Deadly(MatrixScorer):
    """Ends the process that opens it."""

    def __reduce__(self):
        return os._exit, (1,)


class Gone(MatrixScorer):
    """Cannot be opened elsewhere."""

    def __reduce__(self):
        return _not_found, ()


def _not_found():
    raise ck.errors.ModelNotFound("my-model: there is no such folder.")


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (Elsewhere, {}, ck.InputError, r"A worker opened another model than this process: .*process \d+"),
        (
            Slow,
            {"start_timeout": 0.5},
            ck.errors.EngineError,
            "No worker .* had opened its model after 0.5 seconds",
        ),
        (Deadly, {}, ck.errors.EngineError, "^Opening the model was given up after 3 Ray workers were lost"),
        (Gone, {}, ck.errors.ModelNotFound, "^my-model: there is no such folder.$"),
    ],
)
def test_a_model_that_workers_cannot_use_is_named(kind, options, error, message):
    with pytest.raises(error, match=message):
        list(RayEngine(**TWO, **options).run(max, kind([[1.0]]), [(0, ()), (1, ())]))


def test_models_and_clusters_are_checked_before_anything_is_encoded(tmp_path):
    world = World(tmp_path)
    for engine, message in (
        (RayEngine(cpus_per_worker=64), "No node .* has the 64 CPUs and 0 GPUs of a worker. The nodes have 2 CPUs and"),
        (RayEngine(gpus_per_worker=0.5), "No node .* has the 0.5 CPUs and 0.5 GPUs of a worker"),
        (RayEngine(address="127.0.0.1:1"), "This process is connected to the Ray cluster at .* already"),
    ):
        with pytest.raises(ck.InputError, match=message):
            world.build(engine=engine)
    locked = ck.function_scorer(threading.Lock().acquire, fingerprint="locked")
    with pytest.raises(ck.InputError, match=r"FunctionScorer cannot be sent to the workers .* cannot be pickled"):
        ck.Index.build(ITEMS, scorer=locked, encoder=world.encoder, engine=RayEngine())
    assert not world.encoded()
    assert not (tmp_path / "work").exists()


def test_by_default_there_is_a_worker_for_each_cpu_and_no_more_than_jobs(ray):
    scorer = MatrixScorer([[1.0]])
    with closing(RayEngine().run(_pid, scorer, zip(count(), repeat(())))) as results:
        seen, ends = set(), time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < ends:  # one of them may have begun long before the other
            seen.add(next(results)[1])
        assert len(seen | {pid for _, pid in islice(results, 8)}) == 2
        assert ray.get(ray.remote(num_cpus=1)(lambda: True).remote(), timeout=20)  # there is room for other work
    assert len({pid for _, pid in RayEngine(workers=2).run(_pid, scorer, [(0, ())])}) == 1


def test_a_worker_without_a_gpu_sees_none():
    (found,) = RayEngine(gpus_per_worker=0).run(_gpus, MatrixScorer([[1.0]]), [(0, ())])
    assert found == (0, "")


def _gpus(scorer):
    return os.environ["CUDA_VISIBLE_DEVICES"]


def _pid(scorer):
    threading.Event().wait(0.1)
    return os.getpid()
