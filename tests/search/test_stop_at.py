"""A search that ends when it expects to have found enough, as users ask for it: in code and on the command line."""

import asyncio

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from tests.cli.test_cli import ENCODER, TEXTS, as_json, fail, invoke
from tests.search.test_searcher import Setup


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


def test_the_default_strategy_gets_it():
    setup = Setup()
    wanted = setup.searcher.search_many(setup.queries, k=5, strategy=Posterior(100, 10, stop_at=0.9))
    found = setup.searcher.search_many(setup.queries, k=5, budget=100, stop_at=0.9)
    given = setup.searcher.search_many(setup.queries, k=5, strategy=Posterior(100, 10), stop_at=0.9)
    whole = setup.searcher.search_many(setup.queries, k=5, budget=100)
    for one, its, mine, all_of_it in zip(wanted, found, given, whole, strict=True):
        assert one.ids == its.ids == mine.ids
        assert one.calls == its.calls == mine.calls
        assert one.complete
        assert one.calls == 100 or one.expected_recall >= 0.9
        assert all_of_it.calls == 100
        assert 0 <= all_of_it.expected_recall <= 1
    assert min(one.calls for one in wanted) < 100


def test_one_query_and_async_are_the_same():
    setup = Setup()
    (many,) = setup.searcher.search_many(setup.queries[:1], k=5, budget=100, stop_at=0.8)
    one = setup.searcher.search(setup.queries[0], k=5, budget=100, stop_at=0.8)
    later = asyncio.run(setup.searcher.asearch(setup.queries[0], k=5, budget=100, stop_at=0.8))
    assert many.ids == one.ids == later.ids
    assert many.calls == one.calls == later.calls
    assert one.expected_recall == pytest.approx(many.expected_recall)
    assert later.expected_recall == pytest.approx(many.expected_recall)


def test_expected_recall_is_of_the_k_that_are_wanted():
    setup = Setup()
    few, many = (setup.searcher.search_many(setup.queries, k=k, budget=40) for k in (1, 40))
    assert np.mean([hits.expected_recall for hits in few]) > np.mean([hits.expected_recall for hits in many])


@pytest.mark.parametrize("strategy", [Rerank(30), Axn(30, 3)], ids=repr)
def test_other_strategies_cannot_and_do_not_say(strategy):
    setup = Setup()
    with pytest.raises(InputError, match=r"`stop_at` works with Posterior only.*got (Rerank|Axn)\(budget=30"):
        setup.searcher.search(setup.queries[0], strategy=strategy, stop_at=0.9)
    assert setup.searcher.search(setup.queries[0], strategy=strategy).expected_recall is None


def test_without_an_encoder_there_is_nothing_to_stop_by():
    setup = Setup(encoder=None)
    with pytest.raises(InputError, match="needs an encoder"):
        setup.searcher.search(setup.queries[0], stop_at=0.9)


@pytest.mark.parametrize("stop_at", [0, 1.5, float("nan")])
def test_a_share_that_cannot_be(stop_at):
    setup = Setup()
    with pytest.raises(InputError, match="`stop_at` must be greater than 0 and at most 1"):
        setup.searcher.search(setup.queries[0], stop_at=stop_at)


def test_a_filter_that_lets_nothing_through_has_nothing_to_find():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], filter=[], stop_at=0.9)
    assert (hits.calls, hits.expected_recall) == (0, 1)


def test_on_the_command_line(corpus, bert_folder):
    search = ["search", corpus, "ice and snow", "-k", 2, "--budget", 30, "--scorer", bert_folder, "--encoder", ENCODER]
    (whole,), (part,) = (as_json(invoke(*search, "--json", *more)) for more in ([], ["--stop-at", 0.3]))
    assert 0 <= whole["expected_recall"] <= 1
    assert part["calls"] < whole["calls"] == 30
    assert part["expected_recall"] >= 0.3
    assert part["stopped"] is None
    assert "expected recall of the top 2" in " ".join(invoke(*search).stdout.split())


def test_what_the_command_line_refuses(corpus, bert_folder, monkeypatch, capsys):
    search = ["search", corpus, "ice", "--scorer", bert_folder, "--encoder", ENCODER]
    code, message = fail(monkeypatch, capsys, *search, "--stop-at", 0.9, "--strategy", "axn")
    assert code == 2
    assert "--stop-at" in message
    code, message = fail(monkeypatch, capsys, *search, "--stop-at", 2)
    assert code == 2
    assert "at most 1, got 2.0" in message
