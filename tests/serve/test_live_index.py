"""Hot reload of an index: no request fails, and an unusable index is rejected."""

import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.serve.live_index import IndexWatcher
from tests.serve.servers import ENCODER, QUERIES, TEXTS, WatchedScorer, opened, serving, wait_until


def build(prefix, *, scorer=None):
    items = Items(TEXTS, ids=[f"{prefix}{row}" for row in range(len(TEXTS))])
    return Index.build(items, scorer=scorer or WatchedScorer(), encoder=ENCODER, queries=QUERIES[:20], factors=None)


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """Two folders with different indexes of the same texts."""
    folder = tmp_path_factory.mktemp("indexes")
    for name in ("old", "new"):
        build(name).save(folder / name)
    return folder


@pytest.fixture
def folder(indexes, tmp_path):
    shutil.copytree(indexes / "old", tmp_path / "corpus.ck")
    return tmp_path / "corpus.ck"


def search(url, query="river ice"):
    answer = httpx.post(f"{url}/search", json={"query": query, "budget": 30}, timeout=20)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["index"], {hit["id"][:3] for hit in found["results"][0]["hits"]}


def reload_errors(caplog):
    return [vars(record)["reason"] for record in caplog.records if record.getMessage() == "index reload failed"]


def test_a_running_request_keeps_the_old_index_and_the_next_gets_the_new_one(indexes, folder):
    scorer, fresh = WatchedScorer(), Index.load(indexes / "new")
    with opened(folder, scorer=scorer, poll=0.05) as service, serving(service) as url, ThreadPoolExecutor(1) as threads:
        old = service.live_index.current.identity
        scorer.open.clear()
        early = threads.submit(search, url)
        wait_until(lambda: scorer.batches)
        fresh.save(folder)
        wait_until(lambda: service.live_index.current.identity != old)
        scorer.open.set()
        assert early.result() == (old, {"old"})
        assert search(url) == (fresh.identity, {"new"})
        assert httpx.get(f"{url}/info").json()["index"]["identity"] == fresh.identity
        assert "crossknn_index_swaps_total 1.0" in httpx.get(f"{url}/metrics").text


def test_no_request_fails_while_the_index_is_replaced(indexes, folder):
    both = [Index.load(indexes / name) for name in ("new", "old")]
    answers, ended = [], threading.Event()
    with opened(folder, poll=0.02) as service, serving(service) as url, ThreadPoolExecutor(3) as threads:

        def ask(number):
            while not ended.is_set():
                answers.append(search(url, QUERIES[number]))

        clients = [threads.submit(ask, number) for number in range(3)]
        for number in range(3):
            both[number % 2].save(folder)
            wait_until(lambda: service.live_index.current.identity == both[number % 2].identity)  # noqa: B023
            seen = len(answers)
            wait_until(lambda: len(answers) >= seen + 6)  # noqa: B023
        ended.set()
        for client in clients:
            client.result()
    known = {both[0].identity: {"new"}, both[1].identity: {"old"}}
    assert all(known[identity] == ids for identity, ids in answers)
    assert {identity for identity, _ in answers} == set(known)


@pytest.mark.parametrize("damage", ["manifest", "vectors", "missing", "foreign"])
def test_an_unusable_index_is_rejected_once_and_the_old_one_stays(indexes, folder, caplog, damage):
    with opened(folder, poll=0.02) as service, serving(service) as url:
        old = service.live_index.current.identity
        if damage == "manifest":
            (folder / "index.json").write_text("{")
        elif damage == "vectors":
            write_damaged(indexes / "new", folder)
        elif damage == "missing":
            shutil.rmtree(folder)
        else:
            build("x", scorer=function_scorer(lambda pairs: [len(i) for _, i in pairs], fingerprint="other")).save(
                folder
            )
        wait_until(lambda: service.live_index.failed_reloads)
        for _ in range(3):
            assert search(url) == (old, {"old"})
        (reason,) = reload_errors(caplog)
        expected = {"manifest": "damaged", "vectors": "damaged", "missing": "folder"}
        assert expected.get(damage, "scorer") in reason
        fresh = Index.load(indexes / "new")
        if damage == "vectors":
            shutil.rmtree(folder)  # its files have the same names
        elif damage == "manifest":
            (folder / "index.json").unlink()
        fresh.save(folder)
        wait_until(lambda: service.live_index.current.identity == fresh.identity)
        assert search(url) == (fresh.identity, {"new"})


def write_damaged(good, folder):
    """Write an index whose vectors have the right length and one wrong byte."""
    for path in good.iterdir():
        content = bytearray(path.read_bytes())
        if path.name.startswith("vectors"):
            content[-1] ^= 0xFF
        if path.name != "index.json":
            (folder / path.name).write_bytes(content)
    fresh = folder / "index.tmp"
    fresh.write_bytes((good / "index.json").read_bytes())
    fresh.replace(folder / "index.json")


def test_a_rejected_index_is_loaded_again_only_on_retry(indexes, folder):
    with opened(folder) as service:
        write_damaged(indexes / "new", folder)
        assert not service.live_index.reload()
        (vectors,) = (path for path in (indexes / "new").iterdir() if path.name.startswith("vectors"))
        shutil.copy(vectors, folder)  # repaired, but its manifest has not changed
        assert not service.live_index.reload()
        assert service.live_index.failed_reloads == 1
        assert service.live_index.reload(retry=True)


def test_the_index_must_be_usable_at_startup(folder, tmp_path):
    with pytest.raises(InputError, match="folder"), opened(tmp_path / "nothing"):
        pass
    other = function_scorer(lambda pairs: [0.0] * len(pairs), fingerprint="other")
    with pytest.raises(InputError, match="scorer"), opened(folder, scorer=other):
        pass


def test_the_first_index_is_verified_too(folder):
    write_damaged(folder, folder)
    assert Index.load(folder)
    with pytest.raises(InputError, match=r"vectors-\w+.safetensors: damaged: its hash is"), opened(folder):
        pass


def test_a_woken_watcher_reloads_immediately(indexes, folder):
    with opened(folder) as service:
        watcher = IndexWatcher(service.live_index, 60)
        watcher.start()
        Index.load(indexes / "new").save(folder)
        old = service.live_index.current.identity
        before = signal.signal(signal.SIGHUP, lambda *_: watcher.wake())
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            wait_until(lambda: service.live_index.current.identity != old)
        finally:
            signal.signal(signal.SIGHUP, before)
            watcher.stop()


def test_identity_is_that_of_the_manifest(indexes):
    index = Index.load(indexes / "old")
    assert index.identity == json.loads((indexes / "old" / "index.json").read_text())["hash"]
    assert index.is_current()
    unsaved = build("x")
    assert unsaved.identity is None
    assert not unsaved.is_current()
