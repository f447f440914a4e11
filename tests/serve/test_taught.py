"""A service over an index with a taught encoder: it needs no other, and after a hot reload uses the new one."""

import shutil
from pathlib import Path

import httpx
import pytest

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.indexing.index import Index
from crossknn.scorers.base import function_scorer
from tests.indexing.teaching import builds
from tests.indexing.teaching.builds import NEW_QUERIES, OTHER_TEACHING, TEACHING
from tests.indexing.teaching.world import Teacher, topic_scores
from tests.serve.servers import opened, serving

pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> SentenceEncoder:
    return builds.save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def indexes(encoder, tmp_path_factory) -> dict[str, Path]:
    """Two folders with indexes of the same items and different taught encoders."""
    folder = tmp_path_factory.mktemp("indexes")
    for name, settings in (("old", TEACHING), ("new", OTHER_TEACHING)):
        builds.build(encoder, teach=settings).save(folder / name)
    return {name: folder / name for name in ("old", "new")}


@pytest.fixture
def folder(indexes, tmp_path) -> Path:
    """Of the index to serve."""
    return shutil.copytree(indexes["old"], tmp_path / "corpus.ck")


def serve(folder: Path, **options):
    return opened(folder, **{"scorer": Teacher().scorer, "encoder": None, **options})


def search(url: str, query: str) -> set[str]:
    """The eight items that are nearest by the encoder of the server."""
    strategy = {"name": "rerank", "retriever": "dense"}
    answer = httpx.post(f"{url}/search", json={"query": query, "k": 8, "budget": 8, "strategy": strategy}, timeout=20)
    assert answer.status_code == 200, answer.text
    return {hit["id"] for hit in answer.json()["results"][0]["hits"]}


def assert_serves(url: str, folder: Path) -> None:
    """That the server uses the encoder of the index in this folder."""
    index = Index.load(folder)
    answer = httpx.get(f"{url}/info", timeout=20)
    assert answer.status_code == 200, answer.text
    assert answer.json()["encoder"] == index.encoder
    assert answer.json()["defaults"]["strategy"] == "posterior"
    for query in NEW_QUERIES:
        assert search(url, query) == builds.nearest(index.open_encoder(), query, 8)


def test_it_answers_without_an_encoder(indexes, folder, encoder):
    with serve(folder) as service, serving(service) as url:
        assert_serves(url, indexes["old"])
    old, new = (Index.load(path).open_encoder() for path in indexes.values())
    nearest = [[builds.nearest(one, query, 8) for query in NEW_QUERIES] for one in (encoder, old, new)]
    assert nearest[1] not in (nearest[0], nearest[2])  # so that it matters which one is used


def test_the_encoder_that_was_taught_stands_for_the_taught_one(indexes, folder, encoder):
    with serve(folder, encoder=encoder) as service, serving(service) as url:
        assert_serves(url, indexes["old"])


def test_a_new_index_brings_its_encoder(indexes, folder):
    with serve(folder) as service, serving(service) as url:
        search(url, NEW_QUERIES[0])
        Index.load(indexes["new"]).save(folder)
        assert service.live_index.reload()
        assert_serves(url, indexes["new"])


def test_an_index_that_cannot_be_used_leaves_the_old_encoder(encoder, indexes, folder):
    with serve(folder) as service, serving(service) as url:
        scorer = function_scorer(topic_scores, fingerprint="another")
        builds.build(encoder, teach=OTHER_TEACHING, scorer=scorer).save(folder)
        assert not service.live_index.reload()
        assert_serves(url, indexes["old"])
