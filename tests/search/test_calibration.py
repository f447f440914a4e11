"""Probabilities of hits: fitted to judgments, kept in a file, never invented; and thresholds."""

import json

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.search.calibration import ScoreCalibration
from crossknn.search.searcher import Searcher
from crossknn.strategies.exact import Exact
from crossknn.strategies.rerank import Rerank
from tests.search.test_searcher import Setup

SLOPE, INTERCEPT = 2.0, -1.0


def judged(setup, seed=0):
    """Judgments drawn with the probabilities of a known calibration."""
    rng = np.random.default_rng(seed)
    chances = 1 / (1 + np.exp(-(SLOPE * setup.world.scores + INTERCEPT)))
    relevant = rng.random(chances.shape) < chances
    return [
        (query, f"id-{row}", bool(relevant[number, row]))
        for number, query in enumerate(setup.queries)
        for row in range(120)
    ]


def test_probabilities_are_those_that_judgments_were_drawn_with():
    setup = Setup()
    calibration = setup.searcher.fit_calibration(judged(setup))
    assert setup.scorer.calls == 6 * 120  # each judged pair once
    assert calibration.slope == pytest.approx(SLOPE, rel=0.3)
    assert calibration.intercept == pytest.approx(INTERCEPT, abs=0.4)
    assert calibration.relevant + calibration.irrelevant == 720
    hits = setup.searcher.search(setup.queries[0], k=120, strategy=Exact())
    wanted = 1 / (1 + np.exp(-(calibration.slope * np.array([hit.score for hit in hits]) + calibration.intercept)))
    np.testing.assert_allclose([hit.probability for hit in hits], wanted, atol=1e-9)
    assert hits.to_dicts()[0]["probability"] == hits[0].probability


def test_without_a_calibration_there_is_no_probability():
    setup = Setup()
    with pytest.raises(InputError, match="`min_probability` needs a calibration"):
        setup.searcher.search(setup.queries[0], min_probability=0.5)
    assert setup.scorer.calls == 0
    assert {hit.probability for hit in setup.searcher.search(setup.queries[0])} == {None}


def test_triples_and_mappings_are_the_same_judgments():
    setup, other = Setup(), Setup()
    triples = judged(setup)
    graded: dict[str, dict[str, int]] = {}
    for query, id_, relevant in triples:
        graded.setdefault(query, {})[id_] = 2 if relevant else 0
    assert setup.searcher.fit_calibration(triples) == other.searcher.fit_calibration(graded)
    assert setup.searcher.fit_calibration([*triples, triples[0]]) == other.searcher.calibration


def test_scores_that_separate_relevance_give_a_finite_calibration():
    scores = np.arange(40, dtype=np.float32)
    calibration = ScoreCalibration.fit(scores, scores >= 20, scorer="a")
    chances = calibration.probabilities(scores)
    assert np.all(np.diff(chances) > 0)
    assert chances[19] < 0.5 < chances[20]
    assert 0 < chances[0] < 0.1
    assert 0.9 < chances[-1] < 1


def test_extreme_scores_overflow_nothing():
    calibration = ScoreCalibration(slope=1e30, intercept=0.0, scorer="a", relevant=10, irrelevant=10)
    with np.errstate(all="raise"):
        assert calibration.probabilities(np.array([-1e30, 0.0, 1e30])).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda some: some[:5], "at least 10 relevant items and 10 others"),
        (lambda some: [one for one in some if one[2]], "at least 10 relevant items and 10 others"),
        (lambda some: [], "at least 10 relevant items and 10 others, got 0 and 0"),
        (lambda some: [(query, id_, not relevant) for query, id_, relevant in some], "not higher than those of others"),
        (lambda some: [*some, (some[0][0], some[0][1], not some[0][2])], "contradicts an earlier one"),
        (lambda some: [*some, ("query 0", "nowhere", True)], "nowhere"),
        (lambda some: [*some, ("", "id-1", True)], "nonempty string"),
        (lambda some: [*some, ("query 0", "id-1")], "judgment 720 must be a query, an item's id and its relevance"),
        (lambda some: [*some, ("query 0", "id-1", "yes")], "must be true, false or a number"),
    ],
)
def test_judgments_that_do_not_do(change, message):
    setup = Setup()
    with pytest.raises(InputError, match=message):
        setup.searcher.fit_calibration(change(judged(setup)))
    assert setup.searcher.calibration is None


def test_a_file_keeps_the_calibration_for_its_scorer(tmp_path):
    setup, path = Setup(), tmp_path / "calibration.json"
    calibration = setup.searcher.fit_calibration(judged(setup))
    calibration.save(path)
    assert ScoreCalibration.load(path) == calibration
    again = Setup(calibration=path)
    assert again.searcher.search(setup.queries[0])[0].probability is not None
    other = Setup(scorer=type(setup.scorer)(setup.world.scores, fingerprint="another"))
    options = {"scorer": other.scorer, "calibration": calibration}
    with pytest.raises(InputError, match="the calibration belongs to another scorer"):
        Searcher(other.items, **options)
    assert Searcher(other.items, **options, check_models=False).calibration == calibration
    with pytest.raises(InputError, match="`calibration` must be"):
        Setup(calibration=0.5)


GOOD = {
    "format": "crossknn score calibration",
    "version": 1,
    "slope": 2.0,
    "intercept": -1.0,
    "scorer": "a",
    "relevant": 10,
    "irrelevant": 10,
}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"format": "crossknn score calibration", "version": 1}',
        json.dumps({**GOOD, "version": 2}).encode(),
        json.dumps({**GOOD, "slope": -1.0}).encode(),
        json.dumps({**GOOD, "slope": "2"}).encode(),
        json.dumps({**GOOD, "intercept": float("nan")}).encode(),
        json.dumps({**GOOD, "more": 1}).encode(),
        json.dumps(GOOD).encode() + b" " * 100_000,
        b"[" * 60_000,
    ],
    ids=lambda content: content[:40].decode(errors="replace"),
)
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(GOOD))
    assert ScoreCalibration.load(path).slope == 2.0
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"calibration\.json: not a calibration"):
        ScoreCalibration.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        ScoreCalibration.load(tmp_path / "missing.json")


@pytest.mark.parametrize("rank_by", ["score", "fused"])
def test_hits_below_a_score_are_left_out(rank_by):
    setup = Setup()
    options = {"k": 30, "strategy": Rerank(budget=60, retriever="dense"), "rank_by": rank_by}
    plain = setup.searcher.search(setup.queries[0], **{**options, "k": 60})
    limit = sorted(hit.score for hit in plain)[-12]
    kept = setup.searcher.search(setup.queries[0], **options, min_score=limit)
    assert kept.ids == [hit.id for hit in plain if hit.score >= limit]
    assert len(kept) == 12
    assert kept.calls == plain.calls == len(kept.trace)
    none = setup.searcher.search(setup.queries[0], **options, min_score=1e9)
    assert (len(none), none.ids, none.calls) == (0, [], 60)


def test_hits_below_a_probability_are_left_out():
    setup = Setup()
    setup.searcher.fit_calibration(judged(setup))
    options = {"k": 120, "strategy": Exact()}
    plain = setup.searcher.search(setup.queries[0], **options)
    likely = setup.searcher.search(setup.queries[0], **options, min_probability=0.7)
    assert likely.ids == [hit.id for hit in plain if hit.probability >= 0.7]
    assert 0 < len(likely) < 120
    assert len(setup.searcher.search(setup.queries[0], **options, min_probability=1)) == 0


def test_what_was_not_scored_reaches_no_threshold():
    setup = Setup()
    late = {"k": 5, "strategy": Rerank(budget=30, retriever="dense"), "deadline": 1e-9}
    assert [hit.scored for hit in setup.searcher.search(setup.queries[0], **late)] == [False] * 5
    assert len(setup.searcher.search(setup.queries[0], **late, min_score=-1e9)) == 0
