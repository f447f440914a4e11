"""The page, the figures and the files of a report: their numbers, safety and failures."""

import json
import re
import sys
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from crossknn.errors import InputError, MissingExtra
from crossknn.evaluate.comparison import Answer, Line
from crossknn.evaluate.report.findings import headline, tally
from crossknn.evaluate.report.formats import milliseconds, number, signed
from crossknn.evaluate.report.page import render_page, write_report
from crossknn.evaluate.report.plots import in_pairs, make_plots, plot_recall, styles_of
from crossknn.evaluate.studies import Studies
from crossknn.scorers.timing import Speed
from tests.evaluate.conftest import LONG_NAME, made_by_hand, result, with_studies

PNG = b"\x89PNG"
EVIL = '<script>alert("x")</script>&amp;\'"'


class Reader(HTMLParser):
    """The tags of a page with their attributes, and the text of its table rows."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.rows, self.text, self._open = [], [], "", []
        self.feed(html)
        assert not self._open, "every element must be closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "source"):
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, "elements must be closed in order"

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] = f"{self.rows[-1][-1]}{data}".strip("\n")


@pytest.fixture(scope="module")
def written(comparison, tmp_path_factory):
    return write_report(comparison, tmp_path_factory.mktemp("report") / "deep" / "folder")


@pytest.fixture(scope="module")
def html(written):
    return written.read_text(encoding="utf-8")


def test_the_headline_names_the_better_one_first_whoever_it_is(comparison):
    assert "“Axn, dense first” finds 74.2" in headline(comparison)
    assert headline(comparison).index("74.2") < headline(comparison).index("70.0")
    assert "+4.2 points, 95\u00a0% interval +4.2 to +4.2" in headline(comparison)
    losing = made_by_hand(results=[result("Rerank", 30, 5, 0.71), result("Axn", 30, 5, 0.68, baseline="Rerank")])
    assert headline(losing).index("“Rerank” finds 71.0") < headline(losing).index(
        "“Axn”, the best adaptive search, 68.0"
    )
    level = made_by_hand(results=[result("Rerank", 30, 5, 0.71), result("Axn", 30, 5, 0.71, baseline="Rerank")])
    assert headline(level).startswith("No difference shown: at 30 calls")
    alone = made_by_hand(results=[result("Rerank", 30, 5, 0.71)])
    assert headline(alone).endswith("“Rerank” finds 71.0\u00a0% of the cross-encoder’s true top 5.")
    assert tally(alone) is None


def test_the_tally_counts_wins_and_losses_alike(comparison):
    assert "above its own baseline in 9 of 18 comparisons and below in 9; no difference is shown in 0" in tally(
        comparison
    )


def test_the_results_stand_in_order_with_signed_differences(html):
    rows = Reader(html).rows
    at = rows.index(["Budget: 100 calls"])
    assert ["|".join(row) for row in rows[at + 1 : at + 5]] == [
        "Rerank, BM25|100|80.0|76.0–83.0||70.0|66.0–73.0||50.0|46.0–53.0||24",
        "Axn, BM25 first|100|74.9|70.9–77.9|−5.1 −5.1 to −5.1|64.9|60.9–67.9|"
        "−5.1 −5.1 to −5.1|44.9|40.9–47.9|−5.1 −5.1 to −5.1|24",
        "Rerank, dense|100|70.0|66.0–73.0||60.0|56.0–63.0||40.0|36.0–43.0||24",
        "Axn, dense first|100|84.2|80.2–87.2|+14.2 +14.2 to +14.2|74.2|70.2–77.2|"
        "+14.2 +14.2 to +14.2|54.2|50.2–57.2|+14.2 +14.2 to +14.2|24",
    ]
    assert ["Exact search", "5,183", "100.0", "", "", "100.0", "", "", "100.0", "", "", "1,250"] in rows
    assert ["Rerank, BM25", "20", "1.0", "3.0"] in rows  # where the time goes


def test_the_page_says_how_it_was_measured(html):
    text = Reader(html).text
    for wanted in ("queries40", "scorera matrix", "items5,183", "make demo", "95\u00a0%", "2,000 times", "true top k"):
        assert wanted in text
    assert "scorer time" not in text
    measured = render_page(made_by_hand(speed=Speed(0.002, 0.00025)))
    assert "2.0 ms for each round and 1 s for 4,000 calls" in Reader(measured).text


def test_sample_answers_are_marked_where_they_are_true(html):
    text = Reader(html).text
    assert "“how do rivers freeze”" in text
    columns = "".join(text.split("\n"))
    assert "1 of 1 ✓ice on rivers✓ 3.25" in columns
    assert "1 of 2 ✓ice on rivers✓ 3.25bread -1.50" in columns


STUDIED = ["rounds", "mix", "sampling", "indexing", "steps", "latency", "distributions", "quality"]


def figures_of(html):
    return [b64decode(data) for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)]


def test_a_report_with_studies_has_a_figure_and_a_section_for_each(studied):
    html, folder = studied.read_text(encoding="utf-8"), studied.parent
    names = ["recall", "reliability", *STUDIED]
    assert sorted(path.name for path in folder.glob("*.png")) == sorted(f"{name}.png" for name in names)
    assert all((folder / f"{name}.png").read_bytes().startswith(PNG) for name in names)
    figures = figures_of(html)
    assert len(figures) == len(set(figures)) == len(names)
    assert all(ElementTree.fromstring(figure).tag.endswith("svg") for figure in figures)
    text = Reader(html).text
    assert f"λ = 1 for the true top 10 (“{LONG_NAME}”, 52.0\u00a0%)" in text
    for heading in ("Number of rounds", "Value of offline calls", "Scores and similarities"):
        assert heading in text
    assert "α is −7.5 and β 0.0766" in text
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert set(found["studies"]) == set(STUDIED) - {"indexing", "steps"}
    assert found["quality"][-1] == {
        "strategy": "exact",
        "budget": None,
        "nDCG@10": 0.7125,
        "MRR@10": 0.6,
        "accuracy": 0.5,
    }


def test_the_numbers_of_quality_and_studies_stand_on_the_page():
    html = render_page(with_studies())
    rows = Reader(html).rows
    assert ["Strategy", "nDCG@10", "MRR@10", "accuracy"] in rows
    assert ["axn", "0.625", "0.500", "0.375"] in rows
    assert ["exact", "0.713", "0.600", "0.500"] in rows
    assert ["axn", "50.0 40.0–90.0", "51.0 40.0–90.0", "52.0 40.0–90.0"] in rows
    assert ["Rerank, BM25", "45.0 40.0–50.0"] in rows  # the same for every value
    assert ["per query, 8 calls per item", "480", "72.00", "1.25"] in rows
    assert "Left out" not in html


def test_quality_needs_no_study_and_what_was_left_out_has_its_reason():
    judged = with_studies().quality
    plain = render_page(made_by_hand(quality=judged))
    assert ["exact", "0.713", "0.600", "0.500"] in Reader(plain).rows
    assert plain.count("<figure>") == 1
    assert "Relevance of the results" not in render_page(made_by_hand())
    left = render_page(
        made_by_hand(studies=Studies(left_out={"sampling": "there are no train queries", "quality": "why not"}))
    )
    assert "Left out: sampling (there are no train queries); quality (why not)." in Reader(left).text


def test_reliability_has_a_figure_and_its_numbers_where_a_recall_is_expected():
    comparison = with_studies()
    html = render_page(comparison)
    assert ["axn: calibration error 6.2 points"] in Reader(html).rows
    assert ["", "3", "25.0", "50.0"] in Reader(html).rows
    axes = make_plots(comparison)["reliability"].canvas.axes
    assert [axis.get_title("left") for axis in axes] == ["True top 1", "True top 10"]
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes[1].get_lines()]
    assert lines == [([0, 100], [0, 100]), ([25, 75], [50, 87.5])]
    assert comparison.to_json()["reliability"][0]["bins"][0] == {"searches": 3, "expected": 0.25, "measured": 0.5}
    assert "Expected recall" not in render_page(made_by_hand())


def test_every_text_is_escaped():
    evil = made_by_hand(
        title=EVIL,
        data={EVIL: EVIL},
        command=EVIL,
        results=[result(EVIL, 50, 1, 0.5)],
        answers=[Answer(EVIL, EVIL, {EVIL: [Line(EVIL, 0.0, True)]})],
    )
    html = render_page(evil)
    reader = Reader(html)
    assert "<script" not in html
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert reader.text.count(EVIL) >= 10
    alt = next(attributes["alt"] for tag, attributes in reader.tags if tag == "img")
    assert EVIL in alt
    studied = render_page(with_studies(EVIL))
    assert "<script" not in studied
    assert Reader(studied).text.count(EVIL) >= 20


def test_the_page_asks_for_nothing_outside_itself(html):
    reader = Reader(html)
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"base64,[\w+/=]+", "", html))
    for _, attributes in reader.tags:
        for name in ("src", "srcset", "href"):
            assert attributes.get(name, "data:").startswith("data:")
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert "url(" not in html
    assert "@import" not in html


def test_the_page_has_the_frame_of_a_good_page(html):
    tags = Reader(html).tags
    assert ("html", {"lang": "en"}) in tags
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in tags
    assert html.startswith("<!doctype html>")
    assert "<title>Tiny items</title>" in html
    assert [tag for tag, _ in tags].count("h1") == 1
    assert {"header", "main", "section", "figure", "figcaption", "article"} <= {tag for tag, _ in tags}
    assert "@media print" in html
    assert "prefers-color-scheme: dark" in html


def test_what_is_missing_is_a_dash():
    html = render_page(
        made_by_hand(results=[result("a", 50, 1, 0.5, seconds={}), result("b", 90, 10, 0.5)], command=None)
    )
    rows = Reader(html).rows
    assert ["b", "–", "–", "", "", "–", "", "", "–"] in rows
    assert ["a", "50", "50.0", "46.0–53.0", "", "–", "", "", "–"] in rows
    assert "Repeat it\n–" in Reader(html).text
    assert "Some answers" not in render_page(made_by_hand(answers=[]))


def test_figures_are_png_or_svg_and_do_not_touch_global_state(comparison, monkeypatch):
    before = dict(matplotlib.rcParams)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error
    plot = plot_recall(comparison)
    assert plot.render("png").startswith(PNG)
    svg = ElementTree.fromstring(plot.render("svg"))
    assert {"Rerank, BM25", "Axn, dense first", "True top 10"} <= {text.strip() for text in svg.itertext()}
    assert dict(matplotlib.rcParams) == before


def test_the_lines_of_a_figure_are_the_results(comparison):
    axis = plot_recall(comparison).canvas.axes[1]  # k = 10
    lines = [list(line.get_ydata()) for line in axis.get_lines()]
    for name in comparison.strategies:
        recall = [100 * comparison.result(name, budget, 10).recall for budget in comparison.budgets]
        assert any(line == pytest.approx(recall) for line in lines if len(line) == len(recall))


def test_names_are_drawn_as_they_are(recwarn):
    odd = ["$a_$", "costs $5", "_hidden", "^%&{}", " ", "<b>"]
    plot = plot_recall(made_by_hand(results=[result(name, budget, 1, 0.5) for name in odd for budget in (5, 10)]))
    texts = list(ElementTree.fromstring(plot.render("svg")).itertext())
    assert set(odd) - {" "} <= {text.strip() for text in texts}
    plots = make_plots(with_studies("_$a_$ costs $5 ^%&{} and one of many words" * 3))
    for study in ("rounds", "latency", "quality"):
        assert plots[study].render("svg")
    assert not recwarn.list


def test_a_strategy_is_drawn_the_same_in_every_figure_and_in_no_other_s_color():
    names = ["Rerank", *"abcdefgh"]
    many = made_by_hand(
        results=[result(name, 9, 1, 0.5, baseline="Rerank" if name in "abcdefgh" else None) for name in names]
    )
    styles = styles_of(many)
    assert len({style["color"] for style in styles.values()}) == len(names)
    assert len({style["marker"] for style in styles.values()}) == len(names)
    assert styles["Rerank"]["linestyle"] != styles["a"]["linestyle"] == "solid"
    assert not in_pairs(many)


def test_a_strategy_alone_is_solid_and_the_caption_has_no_dashes():
    alone = made_by_hand(results=[result("axn", 9, 1, 0.5)])
    assert styles_of(alone)["axn"]["linestyle"] == "solid"
    assert "Dashed" not in plot_recall(alone).caption


def test_a_strategy_shares_the_color_of_its_baseline(comparison):
    styles = styles_of(comparison)
    assert in_pairs(comparison)
    assert styles["Rerank, BM25"]["color"] == styles["Axn, BM25 first"]["color"]
    assert styles["Rerank, dense"]["color"] == styles["Axn, dense first"]["color"] != styles["Rerank, BM25"]["color"]


def test_few_results_can_be_drawn(recwarn):
    for few in ([result("a", 10, 1, 0.5), result("b", 20, 5, 0.5)], [result("a", 10, 1, 0.5)]):
        assert plot_recall(made_by_hand(results=few)).render("svg")
    assert not recwarn.list


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_without_a_library_the_error_names_its_extra(comparison, tmp_path, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=r"pip install 'crossknn\[report\]'"):
        write_report(comparison, tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_the_files_of_a_report(comparison, written):
    assert written.parts[-3:] == ("deep", "folder", "report.html")
    assert sorted(p.name for p in written.parent.iterdir()) == ["recall.png", "report.html", "results.json"]
    found = json.loads((written.parent / "results.json").read_text(encoding="utf-8"))
    assert found == comparison.to_json()
    assert sorted(found) == ["advice", "findings", "header", "records"]
    assert found["header"]["data"] == comparison.data
    assert len(found["records"]) == len(comparison.results)
    assert (written.parent / "recall.png").read_bytes().startswith(PNG)


def test_a_report_that_fails_leaves_the_old_files_whole(comparison, tmp_path, monkeypatch):
    path = write_report(comparison, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fail(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", fail)
        with pytest.raises(InputError, match=r"the report cannot be written \(No space left on device\)"):
            write_report(made_by_hand(title="Other"), tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    write_report(made_by_hand(title="Other"), tmp_path)
    assert "<title>Other</title>" in path.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_named(comparison, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"file: the report cannot be written \(File exists\)"):
        write_report(comparison, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (milliseconds(0.00123), "1.2"),
        (milliseconds(0.00996), "10"),
        (milliseconds(12.3456), "12,346"),
        (number(99.5), "99.5"),
        (number(2000.0), "2,000"),
        (signed(-3.0), "−3.0"),
        (signed(0.0), "0.0"),
        (signed(-0.0), "0.0"),
        (signed(0.04), "+0.04"),
        (signed(None), "–"),
    ],
)
def test_numbers_as_they_are_shown(shown, wanted):
    assert shown == wanted
