"""The figure, the page and the files: what they say, that they are safe, and how they fail."""

import json
import re
import struct
import sys
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest
from crossknn.evaluate.report.markup import Markup, element
from crossknn.evaluate.report.pictures import Picture, make_pictures
from crossknn.evaluate.report.recall_plots import draw, plot
from crossknn.evaluate.report.write import write_report
from crossknn.evaluate.study_results import Studies

from crossknn.errors import InputError, MissingExtra
from crossknn.evaluate.comparison import Answer, Line
from crossknn.evaluate.report.findings import headline, tally
from crossknn.evaluate.report.format import milliseconds, number, signed
from crossknn.evaluate.report.page import page
from crossknn.evaluate.report.style import DARK, DPI, LIGHT, in_pairs, styles_of
from crossknn.scorers.speed import Speed
from tests.evaluate.conftest import LONG_NAME, made_by_hand, result, with_studies

PICTURE = b"\x89PNG"
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
            self.rows[-1][-1] += data


@pytest.fixture
def _quick_pictures(monkeypatch):
    """Drawing takes time; these tests are about something else."""
    monkeypatch.setattr(Picture, "png", lambda self, **options: PICTURE)


@pytest.fixture(scope="module")
def written(comparison, tmp_path_factory):
    return write_report(comparison, tmp_path_factory.mktemp("report") / "deep" / "folder")


@pytest.fixture(scope="module")
def html(written):
    return written.read_text(encoding="utf-8")


def test_the_headline_names_the_better_one_first_whoever_it_is(comparison):
    assert headline(comparison).replace("\u00a0", " ") == (
        "At 100 calls per query, “Axn, dense first” finds 74.2 % of the cross-encoder’s true top 10;"
        " the best without adaptation, “Rerank, BM25”, 70.0 %."
    )
    losing = made_by_hand(results=[result("Rerank", 30, 5, 0.71), result("Axn", 30, 5, 0.68, baseline="Rerank")])
    assert headline(losing).replace("\u00a0", " ") == (
        "At 30 calls per query, “Rerank” finds 71.0 % of the cross-encoder’s true top 5;"
        " the best adaptive search, “Axn”, 68.0 %."
    )
    level = made_by_hand(results=[result("Rerank", 30, 5, 0.71), result("Axn", 30, 5, 0.71, baseline="Rerank")])
    assert headline(level).endswith("true top 5, as many as “Rerank”, the best without adaptation.")
    alone = made_by_hand(results=[result("Rerank", 30, 5, 0.71)])
    assert headline(alone).endswith("“Rerank” finds 71.0\u00a0% of the cross-encoder’s true top 5.")
    assert tally(alone) is None


def test_the_tally_counts_wins_and_losses_alike(comparison):
    assert tally(comparison) == (
        "Over all budgets and k, adaptive search is above its own baseline in 9 of 18 comparisons,"
        " below in 9 and level in 0."
    )


def test_the_results_stand_in_order_with_signed_differences(html):
    rows = Reader(html).rows
    at = rows.index(["Budget: 100 calls"])
    assert ["|".join(row) for row in rows[at + 1 : at + 5]] == [
        "Rerank, BM25|100|80.0|76.0–83.0||70.0|66.0–73.0||50.0|46.0–53.0||24",
        "Axn, BM25 first|100|74.9|70.9–77.9|−5.1|64.9|60.9–67.9|−5.1|44.9|40.9–47.9|−5.1|24",
        "Rerank, dense|100|70.0|66.0–73.0||60.0|56.0–63.0||40.0|36.0–43.0||24",
        "Axn, dense first|100|84.2|80.2–87.2|+14.2|74.2|70.2–77.2|+14.2|54.2|50.2–57.2|+14.2|24",
    ]
    assert ["Exact search", "5,183", "100.0", "", "", "100.0", "", "", "100.0", "", "", "1,250"] in rows
    assert ["Rerank, BM25", "20", "1.0", "3.0"] in rows  # where the time goes


@pytest.mark.usefixtures("_quick_pictures")
def test_the_page_says_how_it_was_measured(html):
    text = Reader(html).text
    for wanted in ("queries40", "scorera matrix", "items5,183", "make demo", "95\u00a0%", "2,000 times", "true top k"):
        assert wanted in text
    assert "scorer time" not in text
    measured = page(made_by_hand(speed=Speed(0.002, 0.00025)))
    assert "2.0 ms for each round and 1 s for 4,000 calls" in Reader(measured).text


def test_sample_answers_are_marked_where_they_are_true(html):
    text = Reader(html).text
    assert "“how do rivers freeze”" in text
    assert "1 of 1 ✓ice on rivers✓ 3.25" in text
    assert "1 of 2 ✓ice on rivers✓ 3.25bread -1.50" in text.replace("−", "-")


STUDIED = ["rounds", "mix", "sampling", "indexing", "steps", "latency", "distributions", "quality"]


def test_a_report_with_studies_has_a_picture_and_a_section_for_each(studied):
    html, folder = studied.read_text(encoding="utf-8"), studied.parent
    names = ["recall", *STUDIED]
    assert sorted(path.name for path in folder.glob("*.png")) == sorted(f"{name}.png" for name in names)
    for name in names:
        assert b64encode((folder / f"{name}.png").read_bytes()).decode() in html
    assert html.count("<picture>") == len(names)
    sources = re.findall(r'(?:srcset|src)="data:image/png;base64,([^"]+)"', html)
    assert len(sources) == len(set(sources)) == 4 * len(names)  # light and dark, wide and narrow
    text = Reader(html).text
    assert f"λ = 1 for the true top 10 (“{LONG_NAME}”, 52.0\u00a0%)" in text
    for heading in ("How many rounds", "What offline calls are worth", "Scores and similarities"):
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


@pytest.mark.usefixtures("_quick_pictures")
def test_the_numbers_of_quality_and_studies_stand_on_the_page():
    html = page(with_studies())
    rows = Reader(html).rows
    assert ["Strategy", "nDCG@10", "MRR@10", "accuracy"] in rows
    assert ["axn", "0.625", "0.500", "0.375"] in rows
    assert ["exact", "0.713", "0.600", "0.500"] in rows
    assert ["axn", "50.0 40.0–90.0", "51.0 40.0–90.0", "52.0 40.0–90.0"] in rows
    assert ["Rerank, BM25", "45.0 40.0–50.0"] in rows  # the same for every value
    assert ["per query, 8 calls per item", "480", "72.00", "1.25"] in rows
    assert "Left out" not in html


@pytest.mark.usefixtures("_quick_pictures")
def test_quality_needs_no_study_and_what_was_left_out_has_its_reason():
    judged = with_studies().quality
    plain = page(made_by_hand(quality=judged))
    assert ["exact", "0.713", "0.600", "0.500"] in Reader(plain).rows
    assert plain.count("<picture>") == 1
    assert "How relevant it is" not in page(made_by_hand())
    left = page(
        made_by_hand(studies=Studies(left_out={"sampling": "there are no train queries", "quality": "why not"}))
    )
    assert "Left out: sampling, for there are no train queries; quality, for why not." in Reader(left).text


@pytest.mark.usefixtures("_quick_pictures")
def test_every_text_is_escaped():
    evil = made_by_hand(
        title=EVIL,
        data={EVIL: EVIL},
        command=EVIL,
        results=[result(EVIL, 50, 1, 0.5)],
        answers=[Answer(EVIL, EVIL, {EVIL: [Line(EVIL, 0.0, True)]})],
    )
    html = page(evil)
    reader = Reader(html)
    assert "<script" not in html
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert reader.text.count(EVIL) >= 10
    alt = next(attributes["alt"] for tag, attributes in reader.tags if tag == "img")
    assert EVIL in alt
    studied = page(with_studies(EVIL))
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
    for theme in (LIGHT, DARK):  # the figure's paper is the page's
        assert f"--paper: {theme.paper};" in html


@pytest.mark.usefixtures("_quick_pictures")
def test_what_is_missing_is_a_dash():
    html = page(made_by_hand(results=[result("a", 50, 1, 0.5, seconds={}), result("b", 90, 10, 0.5)], command=None))
    rows = Reader(html).rows
    assert ["b", "–", "–", "", "", "–", "", "", "–"] in rows
    assert ["a", "50", "50.0", "46.0–53.0", "", "–", "", "", "–"] in rows
    assert "Repeat it–" in Reader(html).text
    assert "Some answers" not in page(made_by_hand(answers=[]))


def png_size(content):
    assert content.startswith(b"\x89PNG\r\n")
    return struct.unpack(">II", content[16:24])


def test_the_figure_is_a_large_png_and_does_not_touch_global_state(comparison, tmp_path, monkeypatch):
    before = dict(matplotlib.rcParams)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error
    plot(comparison, tmp_path / "light.png")
    plot(comparison, tmp_path / "dark.png", dark=True)
    light, dark = (tmp_path / name for name in ("light.png", "dark.png"))
    assert png_size(light.read_bytes())[0] > 2000
    assert light.read_bytes() != dark.read_bytes()
    width, height = png_size(draw(comparison, stacked=True))
    assert height > width
    assert dict(matplotlib.rcParams) == before


def test_names_are_drawn_as_they_are(recwarn):
    odd = ["$a_$", "costs $5", "_hidden", "^%&{}", " "]
    draw(made_by_hand(results=[result(name, budget, 1, 0.5) for name in odd for budget in (5, 10)]))
    pictures = make_pictures(with_studies("_$a_$ costs $5 ^%&{} and one of many words" * 3))
    for study in ("rounds", "latency", "quality"):
        assert png_size(pictures[study].png())
    assert not recwarn.list


def test_a_strategy_is_drawn_the_same_in_every_figure_and_in_no_other_s_colour():
    names = ["Rerank", *"abcdefgh"]
    many = made_by_hand(
        results=[result(name, 9, 1, 0.5, baseline="Rerank" if name in "abcdefgh" else None) for name in names]
    )
    for theme in (LIGHT, DARK):
        styles = styles_of(many, theme)
        assert len({style["color"] for style in styles.values()}) == len(names)
        assert len({style["marker"] for style in styles.values()}) == len(names)
        assert styles["Rerank"]["linestyle"] != styles["a"]["linestyle"] == "solid"
    assert not in_pairs(many)


def test_a_strategy_alone_is_solid_and_nothing_is_said_of_dashes():
    alone = made_by_hand(results=[result("axn", 9, 1, 0.5)])
    assert styles_of(alone, LIGHT)["axn"]["linestyle"] == "solid"
    assert make_pictures(alone)["recall"].caption == "Bands: 95\u00a0% intervals."


def test_a_legend_of_many_names_is_no_wider_than_the_panels():
    names = [f"{letter} with a name of some length" for letter in "abcdefgh"]
    many = [result("Rerank", 9, 1, 0.5), *(result(name, 9, 1, 0.5, baseline="Rerank") for name in names)]
    width, height = png_size(draw(made_by_hand(results=many)))
    assert width <= 5.6 * DPI
    assert height > png_size(draw(made_by_hand(results=many[:2])))[1]


def test_two_that_are_measured_against_each_other_share_a_colour(comparison):
    styles = styles_of(comparison, LIGHT)
    assert in_pairs(comparison)
    assert styles["Rerank, BM25"]["color"] == styles["Axn, BM25 first"]["color"]
    assert styles["Rerank, dense"]["color"] == styles["Axn, dense first"]["color"] != styles["Rerank, BM25"]["color"]


def test_a_picture_is_drawn_once():
    drawn = []
    picture = Picture(lambda **options: drawn.append(options) or PICTURE, "", "")
    assert [picture.png(), picture.png(), picture.png(dark=True)] == [PICTURE] * 3
    assert drawn == [{"dark": False, "stacked": False}, {"dark": True, "stacked": False}]


def test_few_results_can_be_drawn(recwarn):
    width, height = png_size(draw(made_by_hand(results=[result("a", 10, 1, 0.5), result("b", 20, 5, 0.5)])))
    assert width > height > 500
    assert png_size(draw(made_by_hand(results=[result("a", 10, 1, 0.5)])))
    assert not recwarn.list


def test_without_matplotlib_the_error_says_which_extra(comparison, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'crossknn\[report\]'"):
        write_report(comparison, tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_the_files_of_a_report(comparison, written):
    assert written.parts[-3:] == ("deep", "folder", "report.html")
    assert sorted(p.name for p in written.parent.iterdir()) == ["recall.png", "report.html", "results.json"]
    found = json.loads((written.parent / "results.json").read_text(encoding="utf-8"))
    assert found == comparison.to_json()
    assert sorted(found) == ["header", "records"]
    assert found["header"]["data"] == comparison.data
    assert len(found["records"]) == len(comparison.results)
    picture = (written.parent / "recall.png").read_bytes()
    assert b64encode(picture).decode() in written.read_text(encoding="utf-8")


@pytest.mark.usefixtures("_quick_pictures")
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


@pytest.mark.usefixtures("_quick_pictures")
def test_a_folder_that_cannot_be_written_is_named(comparison, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError) as error:
        write_report(comparison, tmp_path / "file")
    assert str(error.value) == (
        f"{tmp_path / 'file'}: the report cannot be written (File exists). Choose another folder."
    )
    assert (tmp_path / "file").read_text() == "mine"


def test_elements_escape_what_is_not_markup():
    assert element("p", "a < b", Markup("<b>"), None, class_='"x"', aria_label="l", id=None) == (
        '<p class="&quot;x&quot;" aria-label="l">a &lt; b<b></p>'
    )
    assert element("img", name="n") == '<img name="n">'


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
        (signed(None), "–"),
    ],
)
def test_numbers_as_they_are_shown(shown, wanted):
    assert shown == wanted
