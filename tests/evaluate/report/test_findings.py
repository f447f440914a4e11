"""What the first sentences of a report say: differences only where their intervals show them, bad news first."""

import pytest

from crossknn.evaluate.quality import changes, verdict
from crossknn.evaluate.report.findings import describe_quality, describe_verdict, headline, sentences, tally
from crossknn.evaluate.report.page import render_page
from tests.evaluate.conftest import judged, made_by_hand, result, values

UNSURE = {"spread": 0.4}  # of 40 queries: an interval of about ±0.12


def two(recall, **spread):
    """Reranking that finds half, and an adaptive strategy."""
    adaptive = result("Axn", 100, 10, recall, baseline="Rerank", per_query=values(recall, **spread))
    return made_by_hand(results=[result("Rerank", 100, 10, 0.5), adaptive])


def test_the_headline_has_the_paired_difference_and_its_interval():
    shown = headline(two(0.65))
    assert shown.startswith("At 100 calls per query, “Axn” finds 65.0")
    assert "+15.0 points, 95\u00a0% interval +15.0 to +15.0" in shown
    below = headline(two(0.45))
    assert below.index("“Rerank” finds 50.0") < below.index("“Axn”")
    assert "+5.0 points" in below


@pytest.mark.parametrize("recall", [0.55, 0.5, 0.45])
def test_where_the_interval_holds_zero_no_difference_is_shown(recall):
    unsure = two(recall, **UNSURE)
    assert headline(unsure).startswith("No difference shown: at 100 calls")
    assert "above its own baseline in 0 of 1 comparisons and below in 0; no difference is shown in 1" in tally(unsure)
    page = render_page(unsure)
    assert 'class="better"' not in page
    assert 'class="worse"' not in page
    assert 'class="better"' in render_page(two(0.65))


def test_few_queries_show_nothing_and_say_so():
    results = [result("Rerank", 100, 10, 0.5, per_query=values(0.5, queries=8))]
    results.append(result("Axn", 100, 10, 0.9, baseline="Rerank", per_query=values(0.9, queries=8)))
    few = headline(made_by_hand(results=results))
    assert few.startswith("No difference shown")
    assert "8 queries are too few" in few


def test_a_difference_is_rounded_after_subtracting():
    """The numbers as they are printed, 50.1 and 50.0, differ by more than the numbers themselves."""
    results = [result("Rerank", 100, 10, 0.50049), result("Axn", 100, 10, 0.50051, baseline="Rerank")]
    comparison = made_by_hand(results=results)
    assert "50.1" in headline(comparison)
    assert "+0.1" not in headline(comparison)
    assert "+0.1" not in render_page(comparison)


def test_without_values_per_query_the_difference_has_no_interval():
    results = [result("Rerank", 100, 10, 0.5, per_query=())]
    results.append(result("Axn", 100, 10, 0.6, baseline="Rerank", per_query=()))
    comparison = made_by_hand(results=results)
    assert "+10.0 points; without values per query the difference has no interval" in headline(comparison)
    assert tally(comparison) is None


def levels(first, few, many, exact):
    """The nDCG@10 of BM25 alone, of reranking its best, and of exact search: (mean, spread) each."""
    return [
        judged("bm25", 0, first[0], spread=first[1]),
        judged("rerank, bm25", 50, few[0], spread=few[1], first_stage="bm25"),
        judged("rerank, bm25", 500, many[0], spread=many[1], first_stage="bm25"),
        judged("exact", None, exact[0], spread=exact[1]),
    ]


def test_a_cross_encoder_that_is_worse_than_its_first_stage_is_the_first_sentence():
    bad = made_by_hand(quality=levels((0.7, 0), (0.65, 0), (0.6, 0), (0.4, 0)))
    first, second, *_ = sentences(bad)
    assert first.startswith("This cross-encoder ranks these data worse than bm25 alone: nDCG@10 is 0.700")
    assert "0.400 with every item scored (−0.300, 95\u00a0% interval −0.300 to −0.300" in first
    assert "one of 4 such comparisons" in first
    assert second == headline(bad)
    assert render_page(bad).index(first) < render_page(bad).index("True top")
    assert bad.to_json()["findings"][0] == first
    assert str(bad).splitlines()[1] == first
    assert bad._repr_html_().index("worse than bm25") < bad._repr_html_().index("“Axn, dense first”")


def test_more_calls_that_make_the_hits_worse_are_the_first_sentence_too():
    more = levels((0.5, 0), (0.7, 0), (0.65, 0), (0.6, 0))
    assert describe_verdict(more).startswith("This cross-encoder ranks these data worse than its own first 50 calls do")
    assert "better than bm25 alone" in describe_quality(more)
    both = sentences(made_by_hand(quality=more))
    assert both[0] == describe_verdict(more)
    assert describe_quality(more) in both


def test_a_good_cross_encoder_and_an_unsure_one_have_no_verdict():
    good = levels((0.5, 0), (0.6, 0), (0.7, 0), (0.7, 0))
    assert verdict(good) is None
    assert describe_quality(good).startswith("This cross-encoder ranks these data better than bm25 alone")
    unsure = levels((0.5, 0), (0.5, 0), (0.45, 0.4), (0.45, 0.4))
    assert verdict(unsure) is None
    assert describe_quality(unsure).startswith("No difference shown between this cross-encoder and bm25 alone")
    assert sentences(made_by_hand(quality=unsure))[0] == headline(made_by_hand())


def test_without_exact_search_reranking_is_compared_with_its_own_first_stage():
    _, few, many, _ = levels((0.7, 0), (0.65, 0), (0.6, 0), (0.4, 0))
    firsts = [judged("bm25", 0, 0.7), judged("dense", 0, 0.9)]
    assert [(one.fewer.strategy, one.more.budget) for one in changes([*firsts, few, many])] == [
        ("bm25", 500),
        ("rerank, bm25", 500),
    ]
    assert changes([judged("exact", None, 0.5)]) == []
