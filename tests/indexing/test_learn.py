"""Learning from searches: lists that searches have paid for teach the encoder of an index further."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.indexing.score_sources import open_scored_lists, read_scored_lists
from crossknn.indexing.teaching.settings import Teaching
from crossknn.search.searcher import Searcher
from crossknn.storage.search_log import LoggedSearch, SearchLog, read_searches
from tests.indexing.teaching import builds, world

pytest.importorskip("sentence_transformers")

LEARNING = Teaching(
    lists=100, items_per_list=6, rounds=1, epochs=12, batch=8, items_per_step=12, best_items=4, learning_rate=3e-3
)


HALVES = (slice(0, 10), slice(10, None))


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
    again = [(query, item) for query, item in teacher.scored if (query, ids[item]) in known]
    assert not again  # what searches have paid for is not paid for again
    assert report.pseudo_queries == 0
    assert report.known_scores == sum(len(one.ids) for one in searches)
    assert not learned.report.cut_from_items
    assert f"{report.known_scores:,} known before" in str(learned.report)
    assert Searcher(learned, scorer=teacher.scorer, encoder=encoder).search(world.QUERIES[120], k=3, budget=20)


def test_lists_get_items_that_no_search_chose(plain, encoder, searches):
    """Or they would be a biased sample."""
    teacher = world.Teacher()
    learned = plain.learn(searches, scorer=teacher.scorer, encoder=encoder, teach=LEARNING)
    assert learned.report.teaching.calls >= sum(len(one.ids) for one in searches[:90]) + 90 * 4
    assert len(set(teacher.scored)) >= 90 * 4


def test_lists_can_be_learned_from_as_they_are(plain, encoder, searches):
    teacher = world.Teacher()
    alone = replace(LEARNING, items_per_list=0)
    report = plain.learn(searches, scorer=teacher.scorer, encoder=encoder, teach=alone).report.teaching
    assert len({query for query, _ in teacher.scored}) == report.held_out_lists == 5  # only the check scores
    assert report.calls == report.known_scores + len(teacher.scored)
    with pytest.raises(InputError, match="`items_per_list` must be at least 4 where no list is scored"):
        builds.build(encoder, teach=alone)


def test_a_learning_may_be_used_unchecked(plain, encoder, searches):
    useless = replace(LEARNING, held_out_share=0.0, learning_rate=1e-12, epochs=0.1)
    report = plain.learn(searches, scorer=world.Teacher().scorer, encoder=encoder, teach=useless).report.teaching
    assert (report.held_out_lists, report.lists, report.recall, report.helped) == (0, 100, None, True)


def test_searches_of_one_query_are_one_list(plain, encoder, searches):
    halves = [LoggedSearch(one.query, one.ids[part], one.scores[part]) for one in searches for part in HALVES]
    once, twice = (
        plain.learn(lists, scorer=world.Teacher().scorer, encoder=encoder, teach=LEARNING)
        for lists in (searches, halves)
    )
    assert twice.report.teaching.lists == 95
    assert twice.encoder == once.encoder


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
    assert "stays as it was" in str(learned.report)


def test_what_does_not_help_leaves_factors_and_prior(encoder, searches):
    index = builds.build(encoder, items=world.ITEMS, teach=False, prior=True)
    useless = replace(LEARNING, learning_rate=1e-12, epochs=0.1)
    learned = index.learn(searches, scorer=world.Teacher().scorer, encoder=encoder, teach=useless)
    assert learned.factors is index.factors
    assert learned.prior is index.prior
    assert learned.normalization == index.normalization
    assert learned.report.factors == index.report.factors


def test_a_learning_from_its_own_work_folder_resumes(encoder, tmp_path):
    """Although its calls add to the scores there, it ends with the same encoder."""

    def learn(index, work, progress=None):
        scorer = world.Teacher().scorer
        with open_scored_lists([work], index.queries, index.items, scorer="topics", work_dir=work) as lists:
            return index.learn(lists, scorer=scorer, teach=builds.OTHER_TEACHING, work_dir=work, progress=progress)

    def stop(step, done, total):
        if step == "teaching":  # when new items have been scored
            raise KeyboardInterrupt

    def known(index, work):
        return sum(len(one.ids) for one in read_scored_lists(work, index.queries, index.items, scorer="topics"))

    index = builds.build(encoder, work_dir=tmp_path / "work")
    shutil.copytree(tmp_path / "work", tmp_path / "other")
    before = known(index, tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        learn(index, tmp_path / "work", stop)
    assert known(index, tmp_path / "work") > before
    resumed, whole = learn(index, tmp_path / "work"), learn(index, tmp_path / "other")
    assert resumed.report.teaching.known_scores == whole.report.teaching.known_scores == before
    assert resumed.encoder == whole.encoder != index.encoder
    assert resumed.report.calls_made == 0


def test_searches_of_other_items_and_no_encoder_are_refused(plain, encoder, searches):
    scorer = world.Teacher().scorer
    foreign = [LoggedSearch("q", ["no", "such"], np.ones(2, np.float32))]
    with pytest.raises(InputError, match="searches that scored at least two of the index's items"):
        plain.learn(foreign, scorer=scorer, encoder=encoder)
    with pytest.raises(InputError, match="give the one that the index was built with"):
        plain.learn(searches, scorer=scorer)
