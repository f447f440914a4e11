"""The engine of this process: one job after the other."""

import pytest

import crossknn as ck
from crossknn.engines.local import LOCAL
from crossknn.testing import MatrixScorer, check_engine


def test_it_keeps_the_contract():
    scorer = MatrixScorer([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    check_engine(LOCAL, scorer, scorer.queries, scorer.items)


def test_what_is_no_engine_is_refused(tmp_path):
    scorer, items = MatrixScorer([[1.0, 2.0]]), ck.Items(["item 0", "item 1"])
    encoder = ck.function_encoder(lambda texts: [[1.0]] * len(texts))
    for act in (
        lambda: ck.exact_scores(items, scorer.queries, scorer, tmp_path / "truth", engine="ray"),
        lambda: ck.encode_items(items, encoder, engine="ray"),
        lambda: ck.Index.build(items, scorer=scorer, encoder=encoder, engine="ray"),
    ):
        with pytest.raises(
            ck.InputError, match=r"engine must be an Engine, such as RayEngine\(…\). Got 'ray' instead."
        ):
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
