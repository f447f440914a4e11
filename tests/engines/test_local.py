"""The engine of this process: one job after the other, or a few concurrently for a model on a GPU."""

import time

import pytest

import crossknn as ck
from crossknn.engines.local import LOCAL
from crossknn.testing import MatrixScorer, check_engine


def test_engine_contract():
    scorer = MatrixScorer([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    check_engine(LOCAL, scorer, scorer.queries, scorer.items)


def test_other_objects_are_refused(tmp_path):
    scorer, items = MatrixScorer([[1.0, 2.0]]), ck.Items(["item 0", "item 1"])
    encoder = ck.function_encoder(lambda texts: [[1.0]] * len(texts))
    for act in (
        lambda: ck.exact_scores(items, scorer.queries, scorer, tmp_path / "truth", engine="ray"),
        lambda: ck.encoders.encode_items(items, encoder, engine="ray"),
        lambda: ck.Index.build(items, scorer=scorer, encoder=encoder, engine="ray"),
    ):
        with pytest.raises(ck.InputError, match=r"`engine` must be an Engine .*got 'ray'"):
            act()
    assert not list(tmp_path.iterdir())


def test_a_job_is_taken_when_the_last_result_was_used():
    seen = []

    def jobs():
        for number in range(3):
            seen.append(f"taken {number}")
            yield number, (number,)

    for number, result in LOCAL.run(lambda model, value: value * value, MatrixScorer([[1.0]]), jobs()):
        seen.append(f"used {number}: {result}")
    assert seen == ["taken 0", "used 0: 0", "taken 1", "used 1: 1", "taken 2", "used 2: 4"]


class SlowScorer(MatrixScorer):
    """A scorer that two threads may call, and that takes some time."""

    threads = 2

    def __init__(self) -> None:
        super().__init__([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        self.running, self.max_running = 0, 0

    def score(self, queries, items):
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        time.sleep(0.02)
        self.running -= 1
        return super().score(queries, items)


def score(model, item):
    return float(model.score(["query 0"], [f"item {item}"])[0])


def test_engine_contract_with_threads():
    scorer = SlowScorer()
    check_engine(LOCAL, scorer, scorer.queries, scorer.items)


def test_jobs_run_concurrently_and_results_come_in_order():
    scorer = SlowScorer()
    found = list(LOCAL.run(score, scorer, [(number, (number % 3,)) for number in range(9)]))
    assert found == [(number, number % 3 + 1.0) for number in range(9)]
    assert scorer.max_running == 2


def test_no_more_jobs_are_taken_than_there_are_threads():
    taken, scorer = [], SlowScorer()

    def jobs():
        for number in range(100):
            taken.append(number)
            yield number, (number % 3,)

    results = LOCAL.run(score, scorer, jobs())
    for number, _ in zip(range(5), results, strict=False):
        assert len(taken) <= number + 1 + scorer.threads
    results.close()
    assert scorer.running == 0
    assert len(taken) <= 5 + scorer.threads


def test_results_before_an_error_are_returned_and_nothing_runs_after_it():
    def fail_at_four(model, number):
        if number == 4:
            raise ArithmeticError("four")
        return score(model, number % 3)

    scorer, found = SlowScorer(), []
    with pytest.raises(ArithmeticError, match="four"):
        found.extend(LOCAL.run(fail_at_four, scorer, [(number, (number,)) for number in range(50)]))
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert scorer.running == 0
    assert scorer.calls <= 7
