"""Learning from searches: lists that searches have paid for teach the encoder of an index further."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.indexing.teaching.teach import Teaching
from crossknn.search.searcher import Searcher
from crossknn.storage.search_log import LoggedSearch, SearchLog, read_searches
from tests.indexing.teaching import builds, world

pytest.importorskip("sentence_transformers")

LEARNING = Teaching(
    lists=100, items_per_list=6, rounds=1, epochs=12, batch=8, items_per_step=12, best_items=4, learning_rate=3e-3
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return builds.save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def plain(encoder):
    """An index of 240 items with the encoder as it came."""
    return builds.build(encoder, items=world.ITEMS, teach=False, factors=None)


@pytest.fixture(scope="module")
def searches(plain, encoder):
    """What 100 searches scored."""
    searcher = Searcher(plain, scorer=world.Teacher().scorer, encoder=encoder)
    found = searcher.search_many(world.QUERIES[:100], k=10, budget=20)
    return [LoggedSearch(hits.query, *hits.scored()) for hits in found]


def test_an_index_learns_from_its_searches(plain, encoder, searches):
    teacher = world.Teacher()
    learned = plain.learn(searches, scorer=teacher.scorer, encoder=encoder, teach=LEARNING)
    report = learned.report.teaching
    assert report.helped
    assert report.recall > report.recall_before + 0.1
    assert learned.is_taught
    assert not plain.is_taught
    known = {(one.query, id_) for one in searches for id_ in one.ids}
    ids = dict(zip(world.ITEMS.texts, world.ITEMS.ids, strict=True))
    counts = Counter(query for query, _ in teacher.scored)
    held_out = {query for query, count in counts.items() if count > 6}
    again = [(query, item) for query, item in teacher.scored if (query, ids[item]) in known and query not in held_out]
    assert not again  # what searches have paid for is not paid for again
    assert report.pseudo_queries == 0
    assert Searcher(learned, scorer=teacher.scorer, encoder=encoder).search(world.QUERIES[120], k=3, budget=20)


def test_lists_get_items_that_no_search_chose(plain, encoder, searches):
    """Or they would be a biased sample."""
    teacher = world.Teacher()
    learned = plain.learn(searches, scorer=teacher.scorer, encoder=encoder, teach=LEARNING)
    assert learned.report.teaching.calls >= sum(len(one.ids) for one in searches[:90]) + 90 * 4
    assert len(set(teacher.scored)) >= 90 * 4


def test_a_taught_index_learns_on(encoder, tmp_path):
    taught = builds.build(encoder)
    teacher = world.Teacher()
    found = Searcher(taught, scorer=teacher.scorer).search_many(builds.QUERIES, k=5, budget=12)
    log = SearchLog(tmp_path / "log", scorer=teacher.scorer.fingerprint)
    for hits in found:
        log.append(hits.query, *hits.scored())
    settings = replace(builds.TEACHING, lists=9)  # too few to hold any out
    read = read_searches(tmp_path / "log", scorer=teacher.scorer.fingerprint)
    learned = taught.learn(read, scorer=teacher.scorer, teach=settings, work_dir=tmp_path / "work")
    assert learned.encoder != taught.encoder
    learned.save(tmp_path / "new.ck")
    opened = Index.load(tmp_path / "new.ck")
    searcher = Searcher(opened, scorer=teacher.scorer, encoder=encoder)  # the first one of all stands for it
    assert searcher.encoder.fingerprint == opened.encoder


def test_a_prior_is_fitted_again(encoder, searches):
    index = builds.build(encoder, items=world.ITEMS, teach=False, factors=None, prior=True)
    learned = index.learn(searches, scorer=world.Teacher().scorer, encoder=encoder, teach=LEARNING)
    assert learned.prior is not None
    assert not np.array_equal(learned.prior.bias, index.prior.bias)


def test_what_does_not_help_changes_no_encoder(encoder, searches):
    taught = builds.build(encoder, items=world.ITEMS)
    useless = replace(LEARNING, learning_rate=1e-12, epochs=0.1)
    learned = taught.learn(searches, scorer=world.Teacher().scorer, teach=useless)
    assert not learned.report.teaching.helped
    assert learned.is_taught
    assert learned.encoder == taught.encoder
    assert np.array_equal(learned.vectors, taught.vectors)


def test_searches_of_other_items_and_no_encoder_are_refused(plain, encoder, searches):
    scorer = world.Teacher().scorer
    foreign = [LoggedSearch("q", ["no", "such"], np.ones(2, np.float32))]
    with pytest.raises(InputError, match="searches that scored at least two of the index's items"):
        plain.learn(foreign, scorer=scorer, encoder=encoder)
    with pytest.raises(InputError, match="give the one that the index was built with"):
        plain.learn(searches, scorer=scorer)
