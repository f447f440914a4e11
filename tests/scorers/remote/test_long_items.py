"""Long items are cut or windowed before they are sent, and no score of one setting passes for another's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crossknn as ck
from crossknn.errors import InputError, PartialScores
from crossknn.scorers.remote.long_items import ItemWindows
from crossknn.scorers.remote.scorer import RemoteScorer
from tests.scorers.remote.rerank_server import answer, refuse, serving

LONG = "abcdefghijklmnopqrstuvwxyz"


def rank_of_letter(query, items):
    """The position in the alphabet of the last letter that the server sees; 0 of an empty item."""
    return [float(LONG.find(item[-1:])) for item in items]


@pytest.fixture
def server():
    with serving("tei", rank_of_letter) as one:
        yield one


def test_by_default_all_of_an_item_is_sent(server):
    assert RemoteScorer(server.url).score(["q"], [LONG]) == [25]
    assert server.bodies[0]["texts"] == [LONG]


def test_long_items_are_cut(server):
    scores = RemoteScorer(server.url, max_item_chars=4).score(["q"] * 4, [LONG, "abcd", "雪x", ""])
    assert server.bodies[0]["texts"] == ["abcd", "abcd", "雪x", ""]
    assert scores.tolist() == [3, 3, 23, 0]


def test_windows_overlap_and_the_largest_score_counts(server):
    backwards = LONG[::-1]
    scorer = RemoteScorer(server.url, max_item_chars=10, long_items="max", stride=7)
    scores = scorer.score(["q"] * 4, [LONG, "abc", backwards, ""])
    assert server.bodies[0]["texts"] == [
        LONG[:10], LONG[7:17], LONG[14:24], LONG[16:], "abc",
        backwards[:10], backwards[7:17], backwards[14:24], backwards[16:], "",
    ]  # fmt: skip
    assert scores.tolist() == [25, 2, 16, 0]


def test_windows_slide_by_half_their_length_unless_told(server):
    RemoteScorer(server.url, max_item_chars=20, long_items="max").score(["q"], [LONG])
    assert server.bodies[0]["texts"] == [LONG[:20], LONG[6:]]


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60), st.integers(1, 20), st.integers(1, 30) | st.none())
def test_windows_cover_an_item(item, size, stride):
    texts, pair = ItemWindows(size, "max", stride).split([item, "other"])
    own = [text for text, row in zip(texts, pair, strict=True) if row == 0]
    assert all(len(text) == min(size, len(item)) for text in own)
    assert all(text in item for text in own)
    assert set(item) == set("".join(own))
    assert item.startswith(own[0])
    assert item.endswith(own[-1])


def test_windows_are_billed_as_pairs_and_batched(server):
    scorer = RemoteScorer(server.url, max_item_chars=10, long_items="max", batch_size=4, price_per_1000=1000.0)
    scorer.score(["p", "q"], [LONG, LONG])
    assert scorer.spent == sum(len(body["texts"]) for body in server.bodies) == 2 * 5
    assert len(server.bodies) == 4


def test_a_pair_with_a_lost_window_has_no_score(server):
    server.faults = [answer, refuse(404)]
    scorer = RemoteScorer(server.url, max_item_chars=10, long_items="max", batch_size=4, concurrency=1)
    with pytest.raises(PartialScores, match="1 of 2 pairs of this call were scored") as raised:
        scorer.score(["q", "q"], ["abc", LONG])
    assert (raised.value.items, raised.value.scores) == (["abc"], [2])


def test_whole_items_are_cached_and_found_in_a_search(server, tmp_path):
    scorer = ck.Cached(RemoteScorer(server.url, max_item_chars=10, long_items="max"), tmp_path / "scores.db")
    searcher = ck.Searcher(ck.Items(["abc", LONG, LONG[:20]]), scorer=scorer)
    hits = searcher.search("q", k=3, strategy=ck.Exact())
    assert [hit.score for hit in hits] == [25, 19, 2]
    assert scorer.count_missing(["q"] * 3, ["abc", LONG, LONG[:20]]) == 0


def test_the_fingerprint_tells_the_treatment_of_long_items():
    treatments = [
        {},
        {"max_item_chars": 100},
        {"max_item_chars": 200},
        {"max_item_chars": 100, "long_items": "max"},
        {"max_item_chars": 100, "long_items": "max", "stride": 10},
    ]
    scorers = [RemoteScorer("http://localhost/rerank", **options) for options in treatments]
    assert len({scorer.fingerprint for scorer in scorers}) == len(treatments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_item_chars": 0}, "`max_item_chars` must be a positive integer, got 0"),
        ({"long_items": "mean"}, "`long_items` must be one of 'cut', 'max', got 'mean'"),
        ({"long_items": "max"}, "`long_items` 'max' needs `max_item_chars`"),
        ({"max_item_chars": 9, "stride": 3}, "`stride` needs `long_items` 'max'"),
        ({"max_item_chars": 9, "long_items": "max", "stride": -3}, "`stride` must be a positive integer"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        RemoteScorer("http://localhost/rerank", **options)


def test_no_pairs(server):
    scorer = RemoteScorer(server.url, max_item_chars=10, long_items="max")
    np.testing.assert_array_equal(scorer.score([], []), np.empty(0, np.float32))
