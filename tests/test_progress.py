"""Progress by default: bars on a terminal for long work only, lines in the log elsewhere, nothing when it is off."""

import io
import logging

import pytest

import crossknn as ck
from crossknn._progress import DefaultProgress, choose_progress
from tests.search.test_searcher import Setup


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Seconds:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run(stream, steps, *, seconds=1.0, total=100):
    clock = Seconds()
    progress = DefaultProgress(stream, clock=clock)
    for done in steps:
        progress("scoring", done, total)
        clock.now += seconds
    return progress


def visible(stream):
    """What a terminal shows in its line at the end."""
    line = ""
    for part in stream.getvalue().split("\r"):
        line = part + line[len(part) :]
    return line.rstrip()


def test_long_work_has_a_bar_that_is_erased_at_the_end():
    stream = Terminal()
    run(stream, range(0, 51, 10))
    assert "scoring" in visible(stream)
    assert "50 of 100" in visible(stream)
    assert "0:00:05 left" in visible(stream)
    run(stream := Terminal(), range(0, 101, 10))
    assert "90 of 100" in stream.getvalue()
    assert visible(stream) == ""


def test_short_work_shows_nothing():
    stream = Terminal()
    run(stream, range(101), seconds=0.01)
    assert stream.getvalue() == ""


def test_work_that_ends_early_can_be_cleared():
    stream = Terminal()
    progress = run(stream, range(0, 51, 10))
    progress.clear()
    assert visible(stream) == ""


def test_what_an_earlier_run_did_does_not_count_for_the_speed():
    stream = Terminal()
    run(stream, range(50, 61))
    assert "0:00:40 left" in visible(stream)


def test_elsewhere_the_log_has_a_line_every_thirty_seconds(caplog):
    stream = io.StringIO()
    with caplog.at_level(logging.INFO, "crossknn"):
        run(stream, range(90))
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "scoring: 30 of 100",
        "scoring: 60 of 100",
    ]
    assert stream.getvalue() == ""


def test_the_choice():
    def own(step, done, total):
        pass

    assert choose_progress(own) is own
    assert choose_progress(False) is None
    assert isinstance(choose_progress(None), DefaultProgress)
    assert isinstance(choose_progress(True), DefaultProgress)


@pytest.mark.parametrize("progress", [None, False])
def test_searches_and_builds_take_it(progress, capfd):
    setup = Setup(progress=progress)
    setup.searcher.search_many(setup.queries, k=3, budget=5)
    scorer = ck.function_scorer(lambda pairs: [float(len(item)) for _, item in pairs], fingerprint="a")
    encoder = ck.function_encoder(lambda texts: [[len(text), 1.0] for text in texts], fingerprint="b")
    ck.Index.build(
        ck.Items(["a", "bb", "ccc"]), scorer=scorer, encoder=encoder, queries=["q"], factors=None, progress=progress
    )
    assert capfd.readouterr().err == ""


def test_a_callback_of_your_own_hears_of_a_single_search_and_the_default_does_not(monkeypatch):
    seen = []
    setup = Setup(progress=lambda *event: seen.append(event))
    setup.searcher.search(setup.queries[0], k=3, budget=5)
    assert seen[-1] == ("scoring", 5, 5)
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("crossknn._progress.BAR_DELAY", 0.0)
    monkeypatch.setattr("crossknn._progress.BAR_INTERVAL", 0.0)
    quiet = Setup()
    quiet.searcher.search(quiet.queries[0], k=3, budget=5)
    assert stream.getvalue() == ""
    quiet.searcher.search_many(quiet.queries, k=3, budget=20)
    assert "scoring" in stream.getvalue()
    assert visible(stream) == ""
