"""A build that is killed at any moment or stopped by an error is resumed, and ends with the same index."""

import errno
import json
import os
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from crossknn.encoders.base import function_encoder
from crossknn.encoders.item_encoding import count_encoded
from crossknn.errors import InputError
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerItem
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.storage.score_log import ScoreLog, hash_texts

resource = pytest.importorskip("resource", reason="needs a system with forks")

KILLS = 10
PAUSE = 0.006  # seconds after each step, so that kills land between any two
CHUNK = 400
QUERIES = [f"query {number}" for number in range(12)]
ITEMS = Items([f"item {row}" for row in range(2600)])  # three blocks of the encoder
FILES = ("items.arrow", "queries.arrow", "vectors.safetensors")
PHASES = ("encode items", "scoring", "factorizing", "saving")

# Children are forked from a process that has imported this module and nothing has run in: no threads, no waiting.
server = get_context("forkserver")
server.set_forkserver_preload([__name__])


def embed(texts):
    """(texts, 4) numbers that look random and are the same in every process."""
    digests = [blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), np.uint16).reshape(-1, 4) / np.float32(2**15) - 1


def score(pairs):
    """`u·v`, and a little that depends on all the pairs of the call, far more than the scores of a model do."""
    left, right = (embed(texts) for texts in zip(*pairs, strict=True))
    salt = int.from_bytes(blake2b(repr(pairs).encode(), digest_size=2).digest())
    return 5 * (left * right).sum(axis=1) - 3 + salt * 1e-6


@dataclass
class RunLog:
    """What a process has done, in files that only grow and outlive it: its steps, and the texts it was given."""

    folder: Path
    run: str
    pause: float = 0.0
    phase: str = "start"
    silent: bool = False

    def note(self, what, lines):
        if self.silent:
            return
        handle = os.open(self.folder / f"{self.run}.{what}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, "".join(f"{line}\n" for line in lines).encode())
        os.close(handle)

    def step(self, phase=None, *_):
        self.phase = phase or self.phase
        self.note("steps", [self.phase])
        time.sleep(self.pause)

    def read(self, what):
        """The lines that are whole."""
        path = self.folder / f"{self.run}.{what}"
        return path.read_text().split("\n")[:-1] if path.exists() else []


def build(log, *, fail_at=None):
    """Build the index of the folder from its work folder, and save it."""

    def score_logged(pairs):
        log.note("scored", ["|".join(pair) for pair in pairs])
        if fail_at is not None and len(log.read("scored")) > fail_at:
            raise ConnectionError("gone")
        log.step()
        return score(pairs)

    def encode_logged(texts):
        log.note("encoded", [text for text in texts if text != "dimension"])  # asked for the dimension only
        return embed(texts)

    index = Index.build(
        ITEMS,
        scorer=function_scorer(score_logged, fingerprint="salted"),
        encoder=function_encoder(embed, encode_items=encode_logged, fingerprint="hashed"),
        queries=QUERIES,
        sampling=PerItem(queries=2, nearest=0.5),  # the encoder comes first
        factors=Transductive(method="als", epochs=8, patience=None),
        work_dir=log.folder / "work",
        chunk=CHUNK,
        progress=log.step,
    )
    log.pause *= 3  # there are few steps left to be killed at
    log.step("saving")
    index.save(log.folder / "index")
    log.step("saved")


def work(log, *, wait=False):
    """What a child does. Syncing guards against power cuts only: here it is one more moment to be killed at."""
    torch.set_num_threads(1)
    os.fsync = lambda handle: log.step()
    build(log)
    if wait:
        time.sleep(60)  # to be killed


def work_with_small_files(log, *, largest):
    """The same where no file may have more bytes than this; only the error is noted."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        work(replace(log, silent=True))
    except InputError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.note("error", [error])


def start(log, target=work, **options):
    process = server.Process(target=target, args=(log,), kwargs=options)
    process.start()
    return process


def kill_after(process, log, steps, delay):
    """Kill the process some seconds after it has made these steps."""
    ends = time.monotonic() + 60
    while len(log.read("steps")) < steps and process.is_alive():
        assert time.monotonic() < ends
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def finish(log, target=work, **options):
    process = start(log, target, **options)
    process.join(60)
    assert process.exitcode == 0


def hashes(folder):
    listed = json.loads((folder / "index" / "index.json").read_text())["files"]
    return {name: listed[name]["hash"] for name in FILES}


def facts(folder):
    """What the index says of itself, but for what differs from run to run."""
    found = Index.load(folder / "index").report.as_dict()
    return {**found, "seconds": None, "calls_made": None, "fit": {**found["fit"], "seconds": None}}


def stored_pairs(folder):
    """The pairs whose chunk is in the log."""
    if not (folder / "work" / "scores" / "log.json").exists():
        return set()
    log = ScoreLog.open(folder / "work" / "scores", scorer="salted")
    texts = [*QUERIES, *ITEMS.texts]
    text_of = {key.tobytes(): text for key, text in zip(hash_texts(texts), texts, strict=True)}
    chunks = [log.read(name) for name in log.chunks]
    pairs = [pair for chunk in chunks for pair in zip(chunk.queries, chunk.items, strict=True)]
    return {"|".join(text_of[key.tobytes()] for key in pair) for pair in pairs}


def stored_rows(folder):
    """How many items' vectors are safely in the work folder."""
    encoder = function_encoder(embed, fingerprint="hashed")
    paths = {path.with_suffix("") for path in folder.glob("work/vectors-*.npy.json")}
    return sum(count_encoded(ITEMS, encoder, path=path) for path in paths)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted build."""
    log = RunLog(tmp_path_factory.mktemp("whole"), "whole", PAUSE)
    finish(log)
    assert len(log.read("scored")) == len(set(log.read("scored"))) == 2 * len(ITEMS)
    assert sorted(log.read("encoded")) == sorted([*ITEMS.texts])
    return log


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """The folder of another index."""
    folder = tmp_path_factory.mktemp("older")
    models = {"scorer": function_scorer(score), "encoder": function_encoder(embed)}
    Index.build(Items(["a", "b"]), queries=["c"], factors=None, **models).save(folder / "index")
    return folder


def test_a_build_killed_at_any_moment_is_resumed_and_ends_with_the_same_index(whole, older, tmp_path):
    """A pair is scored twice only if the file of its chunk was not there at the kill: that is the call in flight."""
    moments = random.Random(7)
    total, phases, repeated = len(whole.read("steps")), [], 0
    for number in range(KILLS):
        folder = shutil.copytree(older, tmp_path / str(number))
        killed, again = RunLog(folder, "killed", PAUSE), RunLog(folder, "again")
        steps = int(total * (number + moments.random()) / KILLS)
        kill_after(start(killed, wait=True), killed, steps, moments.uniform(0, 2 * PAUSE))
        phases += killed.read("steps")[-1:]
        kept, rows = stored_pairs(folder), stored_rows(folder)
        assert Index.load(folder / "index").verify()
        assert hashes(folder) in (hashes(older), hashes(whole.folder))
        finish(again)
        scored = set(again.read("scored"))
        assert len(scored) == len(again.read("scored"))
        assert scored == set(whole.read("scored")) - kept
        assert len(scored & set(killed.read("scored"))) <= CHUNK
        assert sorted(again.read("encoded")) == sorted(ITEMS.texts[rows:])
        assert hashes(folder) == hashes(whole.folder)
        assert facts(folder) == facts(whole.folder)
        repeated += len(scored & set(killed.read("scored")))
        shutil.rmtree(folder)
    assert set(phases) >= set(PHASES)
    assert repeated > 0  # some kill phases while a chunk was scored


def test_after_several_kills_the_index_is_the_same(whole, tmp_path):
    moments, runs = random.Random(8), []
    for number in range(8):
        runs.append(RunLog(tmp_path, str(number), PAUSE))
        kept = stored_pairs(tmp_path)
        kill_after(start(runs[-1], wait=True), runs[-1], moments.randint(5, 30), moments.uniform(0, 2 * PAUSE))
        assert not kept & set(runs[-1].read("scored"))
    runs.append(RunLog(tmp_path, "last"))
    finish(runs[-1])
    scored = [pair for run in runs for pair in run.read("scored")]
    assert set(scored) == set(whole.read("scored"))
    assert len(scored) - len(set(scored)) <= 8 * CHUNK
    assert (hashes(tmp_path), facts(tmp_path)) == (hashes(whole.folder), facts(whole.folder))


@pytest.mark.parametrize(
    ("largest", "message"),
    [
        (30, "the score log cannot be used.*File too large"),
        (10_000, "File too large"),  # the encoder's vectors
        (30_000, "index: the index cannot be written .*File too large.* is unchanged"),
    ],
)
def test_a_limit_on_file_sizes_is_an_error_and_the_build_is_resumed(whole, tmp_path, largest, message):
    full = RunLog(tmp_path, "full")
    finish(full, work_with_small_files, largest=largest)
    assert re.search(message, full.read("error")[0])
    assert not (tmp_path / "index" / "index.json").exists()
    kept, again = stored_pairs(tmp_path), RunLog(tmp_path, "again")
    finish(again)
    assert set(again.read("scored")) == set(whole.read("scored")) - kept
    assert hashes(tmp_path) == hashes(whole.folder)


def test_a_full_disk_at_any_write_is_an_error_and_the_build_is_resumed(whole, tmp_path, monkeypatch):
    """The disk is full from the n-th time on that something is made to last, for some n of all that there are."""
    synced = 0

    def sync(handle, *, fits):
        nonlocal synced
        synced += 1
        if synced > fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", partial(sync, fits=10**9))
    build(RunLog(tmp_path, "whole"))
    for number, fits in enumerate(np.linspace(0, synced - 1, 8).astype(int)):
        synced, folder = 0, tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setattr(os, "fsync", partial(sync, fits=fits))
        with pytest.raises(InputError, match=r"(?i)No space left on device|disk is full"):
            build(RunLog(folder, "full"))
        monkeypatch.setattr(os, "fsync", partial(sync, fits=10**9))
        kept, again = stored_pairs(folder), RunLog(folder, "again")
        build(again)
        assert set(again.read("scored")) == set(whole.read("scored")) - kept
        assert hashes(folder) == hashes(whole.folder)


@pytest.mark.parametrize("fail_at", [0, 5 * CHUNK, 2 * len(ITEMS) - 1])
def test_an_error_of_the_scorer_passes_and_the_build_is_resumed(whole, tmp_path, fail_at):
    with pytest.raises(ConnectionError, match="gone"):
        build(RunLog(tmp_path, "failed"), fail_at=fail_at)
    assert len(stored_pairs(tmp_path)) == fail_at // CHUNK * CHUNK
    build(RunLog(tmp_path, "again"))
    assert len(RunLog(tmp_path, "again").read("scored")) == 2 * len(ITEMS) - fail_at // CHUNK * CHUNK
    assert hashes(tmp_path) == hashes(whole.folder)
