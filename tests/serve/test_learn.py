"""A service that keeps its searches, and an index that learns from them and is swapped in."""

from dataclasses import replace

import httpx
import pytest

from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.indexing.score_sources import read_scored_lists
from crossknn.scorers.cached import Cached
from crossknn.storage.search_log import read_searches
from tests.indexing.teaching import builds
from tests.indexing.teaching.world import Teacher
from tests.serve.servers import opened, serving

pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return builds.save_encoder(tmp_path_factory.mktemp("encoder"))


def search(url, query, **options):
    answer = httpx.post(f"{url}/search", json={"query": query, "k": 3, "budget": 9, **options}, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def test_searches_are_kept_and_learned_from(encoder, tmp_path):
    builds.build(encoder).save(tmp_path / "corpus.ck")
    scorer = Teacher().scorer
    folder = tmp_path / "corpus.ck"
    with opened(folder, scorer=scorer, encoder=None, learn=tmp_path / "log") as service, serving(service) as url:
        results = [search(url, query) for query in builds.QUERIES]
        kept = list(read_searches(tmp_path / "log", scorer=scorer.fingerprint))
        assert [one.query for one in kept] == builds.QUERIES
        assert all(len(one.ids) == 9 for one in kept)
        for one, result in zip(kept, results, strict=True):
            scores = dict(zip(one.ids, one.scores.tolist(), strict=True))
            assert [hit["score"] for hit in result["hits"]] == [scores[hit["id"]] for hit in result["hits"]]
        before = service.info()["encoder"]
        old = Index.load(tmp_path / "corpus.ck")
        old.learn(kept, scorer=scorer, teach=builds.OTHER_TEACHING).save(tmp_path / "corpus.ck")
        assert service.live_index.reload()
        assert service.info()["encoder"] not in (before, None)
        search(url, builds.NEW_QUERIES[0])


def test_a_failed_learning_leaves_the_service_its_index(encoder, tmp_path):
    builds.build(encoder).save(tmp_path / "corpus.ck")
    scorer = Teacher().scorer
    folder = tmp_path / "corpus.ck"
    with opened(folder, scorer=scorer, encoder=None, learn=tmp_path / "log") as service, serving(service) as url:
        search(url, builds.QUERIES[0])
        kept = list(read_searches(tmp_path / "log", scorer=scorer.fingerprint))
        diverging = replace(builds.TEACHING, learning_rate=1e30)
        with pytest.raises(InputError, match="diverged"):
            Index.load(folder).learn(kept, scorer=scorer, teach=diverging)
        assert not service.live_index.reload()
        assert search(url, builds.QUERIES[1])["hits"]


def test_a_services_cache_can_be_learned_from(encoder, tmp_path):
    builds.build(encoder).save(tmp_path / "corpus.ck")
    scorer = Cached(Teacher().scorer, tmp_path / "scores.db", keep_queries=True)
    with opened(tmp_path / "corpus.ck", scorer=scorer, encoder=None) as service, serving(service) as url:
        results = {query: search(url, query) for query in builds.NEW_QUERIES}
    lists = list(read_scored_lists(tmp_path / "scores.db", [], builds.ITEMS, scorer=scorer.fingerprint))
    assert {one.query: len(one.ids) for one in lists} == dict.fromkeys(builds.NEW_QUERIES, 9)
    for one in lists:
        scores = dict(zip(one.ids, one.scores.tolist(), strict=True))
        assert [hit["score"] for hit in results[one.query]["hits"]] == [
            scores[hit["id"]] for hit in results[one.query]["hits"]
        ]


def test_nothing_is_kept_unless_asked_for(encoder, tmp_path):
    builds.build(encoder).save(tmp_path / "corpus.ck")
    before = sorted(tmp_path.rglob("*"))
    with opened(tmp_path / "corpus.ck", scorer=Teacher().scorer, encoder=None) as service, serving(service) as url:
        search(url, builds.QUERIES[0])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_fails_no_search(encoder, tmp_path):
    """As where the folder is gone."""
    builds.build(encoder).save(tmp_path / "corpus.ck")
    with opened(tmp_path / "corpus.ck", scorer=Teacher().scorer, encoder=None, learn=tmp_path / "log") as service:
        for path in (tmp_path / "log").iterdir():
            path.unlink()
        (tmp_path / "log").rmdir()
        with serving(service) as url:
            assert search(url, builds.QUERIES[0])["hits"]
