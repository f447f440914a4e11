"""The picture of a search's rounds: what is drawn, and searches that would break a careless drawing."""

from dataclasses import replace
from io import BytesIO

import matplotlib.image
import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.evaluate.report.round_plots import draw_rounds, plot_rounds
from crossknn.search.results import Hit, Hits
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from tests.search.test_searcher import Setup


def search(strategy, k=5):
    setup = Setup()
    return setup.searcher.search(setup.queries[0], k=k, strategy=strategy)


def legend_of(canvas):
    return [text.get_text() for text in canvas.figure.legends[0].get_texts()]


def points(axis):
    """The data of every line that is drawn, by its marker or style."""
    return {line.get_marker() if line.get_linestyle() == "None" else "level": line for line in axis.get_lines()}


def test_scores_hits_and_the_kth_best_are_where_they_belong():
    hits = search(Rerank(budget=30, retriever="dense"))
    canvas = plot_rounds(hits)
    axis, legend = canvas.axes[0], legend_of(canvas)
    lines, scores = points(axis), [hit.score for hit in hits.trace]
    is_hit = [hit.row in {one.row for one in hits} for hit in hits.trace]
    for marker, wanted in (("D", True), ("o", False)):
        at = [place for place, mine in enumerate(is_hit) if mine == wanted]
        assert lines[marker].get_xdata().tolist() == [place + 1 for place in at]
        assert lines[marker].get_ydata() == pytest.approx([scores[place] for place in at])
    wanted = [sorted(scores[:place])[-5] for place in range(5, 31)]
    assert lines["level"].get_ydata() == pytest.approx(wanted)
    assert legend == ["score", "score of a hit", "k-th best so far, k = 5"]  # nothing was expected


def test_expectations_have_their_deviations_and_a_retrievers_are_left_out():
    hits = search(Axn(budget=30, rounds=3, first="dense"))
    sure = np.linspace(0.5, 0.1, 30).astype(np.float32)
    for trace, said in ((hits.trace, "expected"), (replace(hits.trace, deviations=sure), "expected, ± deviation")):
        canvas = plot_rounds(replace(hits, trace=trace))
        axis, legend = canvas.axes[0], legend_of(canvas)
        assert legend[0] == said
        (container,) = axis.containers
        marks, _, (bars,) = container
        assert marks.get_xdata().tolist() == list(range(11, 31))
        assert marks.get_ydata() == pytest.approx([hit.estimate for hit in hits.trace[10:]])
        lengths = [np.ptp(segment[:, 1]) for segment in bars.get_segments()]
        wanted = np.zeros(20) if said == "expected" else 2 * sure[10:]
        assert lengths == pytest.approx(wanted, abs=1e-5)


def test_rounds_are_numbered_and_say_who_asked():
    axis = plot_rounds(search(Axn(budget=30, rounds=3, first="dense"))).axes[0]
    assert [text.get_text().split() for text in axis.texts] == [["1", "dense"], ["2", "axn"], ["3"]]
    assert [band.get_x() for band in axis.patches] == [0.5, 20.5]


def test_of_many_rounds_only_some_are_numbered():
    assert len(plot_rounds(search(Axn(budget=100, rounds=100, first="dense"))).axes[0].texts) < 40


@pytest.mark.parametrize("score", [0.0, 1e30, -1e-30])
def test_scores_that_are_all_the_same(score):
    hit = Hit("a", score, None, 1, "dense", 0)
    canvas = plot_rounds(Hits("q $x_1", (hit,), 2, 1, trace=(hit, replace(hit, row=1))))
    low, high = canvas.axes[0].get_ylim()
    assert low < score < high
    assert legend_of(canvas) == ["score", "score of a hit", "best so far"]


def test_it_is_a_large_png():
    picture = matplotlib.image.imread(BytesIO(draw_rounds(search(Posterior(budget=30, rounds=3)))), format="png")
    assert picture.shape[1] > 1500


def test_a_search_that_scored_nothing_has_no_picture():
    with pytest.raises(InputError, match="needs a search that scored something"):
        draw_rounds(Hits("q", (), 0, 0))


def test_a_long_query_is_cut():
    hits = search(Rerank(budget=10, retriever="dense"))
    title = plot_rounds(replace(hits, query="ice and snow " * 30)).axes[0].get_title(loc="left")
    assert len(title) <= 90
    assert title.startswith("ice and snow ice")
    assert title.endswith(" …")
