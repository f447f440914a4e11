"""The picture of a search's rounds: what is drawn, and searches that would break a careless drawing."""

from dataclasses import replace
from io import BytesIO

import matplotlib.image
import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.evaluate.report.round_plots import draw_rounds
from crossknn.evaluate.report.style import Canvas
from crossknn.search.results import Hit, Hits
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from tests.search.test_searcher import Setup


@pytest.fixture
def drawn(monkeypatch):
    """The axes and the legend of every picture that is drawn; nothing is rendered."""
    seen = []
    monkeypatch.setattr(Canvas, "draw_legend", lambda self, rows: seen.append((self.axes[0], [n for n, _ in rows[0]])))
    monkeypatch.setattr(Canvas, "render", lambda self: b"")
    return seen


def search(strategy, k=5):
    setup = Setup()
    return setup.searcher.search(setup.queries[0], k=k, strategy=strategy)


def points(axis):
    """The data of every line that is drawn, by its marker or style."""
    return {line.get_marker() if line.get_linestyle() == "None" else "level": line for line in axis.get_lines()}


def test_scores_hits_and_the_kth_best_are_where_they_belong(drawn):
    hits = search(Rerank(budget=30, retriever="dense"))
    draw_rounds(hits)
    ((axis, legend),) = drawn
    lines, scores = points(axis), [hit.score for hit in hits.trace]
    is_hit = [hit.row in {one.row for one in hits} for hit in hits.trace]
    for marker, wanted in (("D", True), ("o", False)):
        at = [place for place, mine in enumerate(is_hit) if mine == wanted]
        assert lines[marker].get_xdata().tolist() == [place + 1 for place in at]
        assert lines[marker].get_ydata() == pytest.approx([scores[place] for place in at])
    wanted = [sorted(scores[:place])[-5] for place in range(5, 31)]
    assert lines["level"].get_ydata() == pytest.approx(wanted)
    assert legend == ["score", "score of a hit", "k-th best so far, k = 5"]  # nothing was expected


def test_expectations_have_their_deviations_and_a_retrievers_are_left_out(drawn):
    hits = search(Axn(budget=30, rounds=3, first="dense"))
    sure = np.linspace(0.5, 0.1, 30).astype(np.float32)
    for trace, said in ((hits.trace, "expected"), (replace(hits.trace, deviations=sure), "expected, ± deviation")):
        draw_rounds(replace(hits, trace=trace))
        axis, legend = drawn[-1]
        assert legend[0] == said
        (container,) = axis.containers
        marks, _, (bars,) = container
        assert marks.get_xdata().tolist() == list(range(11, 31))
        assert marks.get_ydata() == pytest.approx([hit.estimate for hit in hits.trace[10:]])
        lengths = [np.ptp(segment[:, 1]) for segment in bars.get_segments()]
        wanted = np.zeros(20) if said == "expected" else 2 * sure[10:]
        assert lengths == pytest.approx(wanted, abs=1e-5)


def test_rounds_are_numbered_and_say_who_asked(drawn):
    draw_rounds(search(Axn(budget=30, rounds=3, first="dense")))
    axis = drawn[0][0]
    assert [text.get_text().split() for text in axis.texts] == [["1", "dense"], ["2", "axn"], ["3"]]
    assert [band.get_x() for band in axis.patches] == [0.5, 20.5]


def test_of_many_rounds_only_some_are_numbered(drawn):
    draw_rounds(search(Axn(budget=100, rounds=100, first="dense")))
    assert len(drawn[0][0].texts) < 40


@pytest.mark.parametrize("score", [0.0, 1e30, -1e-30])
def test_scores_that_are_all_the_same(drawn, score):
    hit = Hit("a", score, None, 1, "dense", 0)
    draw_rounds(Hits("q $x_1", (hit,), 2, 1, trace=(hit, replace(hit, row=1))))
    low, high = drawn[0][0].get_ylim()
    assert low < score < high
    assert drawn[0][1] == ["score", "score of a hit", "best so far"]


def test_it_is_a_png_in_both_themes():
    hits = search(Posterior(budget=30, rounds=3))
    for dark in (False, True):
        picture = matplotlib.image.imread(BytesIO(draw_rounds(hits, dark=dark)), format="png")
        assert picture.shape[1] > 1500
        assert (picture[0, 0, :3].mean() < 0.5) == dark


def test_a_search_that_scored_nothing_has_no_picture():
    with pytest.raises(InputError, match="a picture of rounds needs a search that scored something"):
        draw_rounds(Hits("q", (), 0, 0))


def test_a_long_query_is_cut(drawn):
    hits = search(Rerank(budget=10, retriever="dense"))
    draw_rounds(replace(hits, query="ice and snow " * 30))
    title = drawn[0][0].get_title(loc="left")
    assert len(title) <= 90
    assert title.startswith("ice and snow ice")
    assert title.endswith(" …")
