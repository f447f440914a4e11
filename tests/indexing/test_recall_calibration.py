"""Calibration of expected recall: its fit, the build step, its calls, and what is left out."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.builder import Build
from crossknn.indexing.factorization.factors import Cur
from crossknn.indexing.index import Index
from crossknn.indexing.planner import plan_build
from crossknn.indexing.report import BuildReport
from crossknn.indexing.sampling import PerQuery
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.calibration import calibration_error
from crossknn.strategies.posterior.strategy import Posterior
from tests.indexing.test_index import Setup, write_texts

ITEMS, QUERIES, HELD_OUT = 1_000, 100, 20
RARE, BONUS = 100, 60  # one pair in so many scores so much more
FEW_PAIRS = PerQuery(items=20)


class World(Setup):
    """As many items and queries as a calibration needs, and high scores that nothing predicts."""

    def __init__(self):
        super().__init__(items=ITEMS, queries=QUERIES)
        self.new_queries = write_texts(20, words=3, seed=3)

    def _score(self, pairs):
        surprises = [zlib.crc32(" | ".join(pair).encode()) % RARE == 0 for pair in pairs]
        return super()._score(pairs) + BONUS * np.array(surprises)

    def build(self, factors=None, **options):
        self.scored.clear()
        return super().build(factors, **{"sampling": FEW_PAIRS, "calibrate": True, **options})

    def reliability(self, index, *, k=10):
        """Expected and measured recall of the new queries."""
        searcher = self.searcher(index)
        truth = searcher.search_many(self.new_queries, k=k, strategy=Exact())
        hits = [searcher.search_many(self.new_queries, k=k, strategy=Posterior(budget, 10)) for budget in (100, 300)]
        measured = [[len({*one.ids} & {*best.ids}) / k for one, best in zip(some, truth, strict=True)] for some in hits]
        return np.array([[one.expected_recall for one in some] for some in hits]), np.array(measured)


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def index(world):
    return world.build()


def without(index):
    return replace(index, recall_calibration=None)


def test_a_model_that_is_too_sure_is_calibrated(world, index):
    """On new queries, and as the report says."""
    before, after = world.reliability(without(index)), world.reliability(index)
    assert before[0].mean() > before[1].mean() + 0.1
    assert calibration_error(*after) < calibration_error(*before) / 2
    report = index.report.calibration
    assert report.error < report.error_before
    assert report.expected_before > report.measured + 0.1
    assert report.expected == pytest.approx(report.measured, abs=0.1)


def test_a_search_stops_where_the_calibrated_recall_is_reached_and_scores_the_same_rows(world, index):
    for query in world.new_queries:
        strategy = Posterior(200, 20)
        long, plain = (world.searcher(one).search(query, strategy=strategy) for one in (index, without(index)))
        short = world.searcher(index).search(query, strategy=replace(strategy, stop_at=0.9))
        assert [hit.row for hit in long.trace] == [hit.row for hit in plain.trace]
        assert [hit.row for hit in short.trace] == [hit.row for hit in long.trace][: short.calls]
        assert short.calls == 200 or short.expected_recall >= 0.9


def test_held_out_queries_are_used_for_nothing_else_and_every_call_is_counted(world):
    index = world.build()
    report, train = index.report, set(index.queries)
    assert len(train) == report.queries == QUERIES - HELD_OUT
    assert report.calibration.queries == HELD_OUT
    assert len(world.scored) == len(set(world.scored)) == report.calls_made == report.calls
    held_out = [query for query, _ in world.scored if query not in train]
    assert set(held_out) == set(world.queries) - train
    assert len(held_out) == report.calibration.calls
    assert report.calls == len(train) * FEW_PAIRS.items + report.calibration.calls


def test_loaded_is_built(index, tmp_path):
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert loaded.recall_calibration == index.recall_calibration
    assert loaded.report.calibration == index.report.calibration
    assert "calibrated on 20 held-out queries" in str(loaded.report)
    assert loaded.remove(["id-0"]).recall_calibration == index.recall_calibration


def test_the_manifest_of_an_earlier_version_has_no_calibration(index):
    values = json.loads(json.dumps(index.report.as_dict()))
    assert BuildReport.from_dict(values) == index.report
    old = BuildReport.from_dict({name: value for name, value in values.items() if "calibrat" not in name})
    assert old.calibration is None
    assert "expected recall" not in str(old)


def test_the_same_seed_gives_the_same_calibration_and_a_resumed_build_makes_no_call_twice(world, index, tmp_path):
    class Killed(Exception):
        pass

    def kill(step, done, total):
        if step == "scoring" and len(world.scored) > 5_000:
            raise Killed

    with pytest.raises(Killed):
        world.build(work_dir=tmp_path, progress=kill)
    first = len(world.scored)
    resumed = world.build(work_dir=tmp_path)
    assert resumed.recall_calibration == index.recall_calibration
    assert resumed.report.calibration == index.report.calibration
    assert first + len(world.scored) == resumed.report.calls
    assert world.build(work_dir=tmp_path).report.calls_made == 0


def test_pseudo_queries_are_cut_for_it_where_none_are_given(world):
    models = {"scorer": world.scorer, "encoder": world.encoder}
    plain, build = (Build(world.items, **models, prior=True, calibrate=calibrate) for calibrate in (False, True))
    assert build.train_queries == plain.train_queries
    assert build.calibration_calls == 50 * ITEMS


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queries": 99}, "99 train queries are fewer than 100"),
        ({"items": 999}, "999 items are fewer than 1,000"),
    ],
)
def test_it_is_left_out_with_the_reason_where_there_is_too_little(options, reason):
    setup = Setup(**{"items": ITEMS, "queries": QUERIES, **options})
    index = setup.build(None, sampling=FEW_PAIRS, calibrate=True)
    assert index.recall_calibration is None
    assert f"not calibrated, {reason}" in str(index.report)
    assert len(index.queries) == min(100, len(setup.queries))
    assert index.report.calls == len(setup.scored)


def test_it_comes_with_a_prior_and_can_be_switched_off(world):
    models = {"scorer": world.scorer, "encoder": world.encoder, "queries": world.queries}
    assert Build(world.items, **models, prior=True).calibrates
    assert not Build(world.items, **models).calibrates
    assert not Build(world.items, **models, prior=True, calibrate=False).calibrates
    assert len(Build(world.items, **models, prior=True, calibrate=False).train_queries) == QUERIES
    with pytest.raises(InputError, match="`calibrate` must be True, False or None"):
        Build(world.items, **models, calibrate="yes")


def test_cur_has_none(world):
    models = {"scorer": world.scorer, "encoder": world.encoder, "queries": world.queries}
    assert not Build(world.items, **models, factors=Cur(anchors=5)).calibrates
    with pytest.raises(InputError, match="Leave it out"):
        Build(world.items, **models, factors=Cur(anchors=5), calibrate=True)


def test_a_plan_bounds_its_calls(world, index):
    planned = plan_build(
        world.items,
        scorer=world.scorer,
        encoder=world.encoder,
        queries=world.queries,
        factors=None,
        sampling=FEW_PAIRS,
        calibrate=True,
    )
    cost = planned.costs[0]
    assert cost.at_most
    assert index.report.calls <= cost.calls <= len(index.queries) * FEW_PAIRS.items + HELD_OUT * ITEMS
