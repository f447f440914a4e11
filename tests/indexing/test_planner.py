"""Cost model: the calls of a build exactly, its bytes approximately, and no call before."""

import time
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pytest

import crossknn as ck
from crossknn.indexing.builder import Build
from crossknn.indexing.planner import (
    MEASURED_CALLS,
    MEASURED_ITEMS,
    MEASURED_QUERIES,
    WARM_UP_TEXTS,
    plan_build,
    usual_ways,
)

DIM = 8
TEXT = "the {0} of river number {0} freezes from the top, and item {1} is about it"
ITEMS = ck.Items([TEXT.format(row % 7, row) for row in range(230)])
TRAIN = [f"why does river {number} freeze" for number in range(130)]
SHORT = ck.Transductive(method="als", epochs=1)


def embed(texts):
    """(texts, DIM) pseudorandom vectors."""
    digests = [blake2b(text.encode(), digest_size=2 * DIM).digest() for text in texts]
    return np.frombuffer(b"".join(digests), np.uint16).reshape(-1, DIM) / np.float32(2**15) - 1


class Models:
    """A scorer and an encoder that count calls and texts."""

    def __init__(self, *, seconds_per_call=0.0, seconds_per_item=0.0, scorer="score"):
        self.calls = self.texts = 0
        self._seconds = seconds_per_call, seconds_per_item
        self.both = {
            "scorer": ck.function_scorer(self._score, fingerprint=scorer),
            "encoder": ck.function_encoder(self._encode, encode_items=self._encode_items, fingerprint="embed"),
        }

    def _score(self, pairs):
        self.calls += len(pairs)
        time.sleep(self._seconds[0] * len(pairs))
        left, right = (embed(texts) for texts in zip(*pairs, strict=True))
        return (left * right).sum(axis=1)

    def _encode(self, texts):
        self.texts += len(texts)
        return embed(texts)

    def _encode_items(self, texts):
        time.sleep(self._seconds[1] * len(texts))
        return self._encode(texts)


def shorten(settings):
    """The same with one epoch."""
    factors = settings["factors"]
    fitted = isinstance(factors, ck.Transductive | ck.Inductive)
    return {**settings, "factors": replace(factors, epochs=1) if fitted else factors}


def name_way(settings):
    parts = [type(settings["factors"]).__name__, "prior" * ("prior" in settings), str(settings.get("sampling", ""))]
    return " ".join([*parts, str(len(settings.get("queries") or []))])


USUAL = [shorten(settings) for settings in usual_ways()]
EXACT = [settings for settings in USUAL if "prior" not in settings]  # retrievers choose the pairs of a prior
OTHERS = [
    {"factors": SHORT},
    {"factors": ck.Inductive(epochs=1)},
    {"factors": SHORT, "sampling": ck.PerItem(queries=1000)},
    {"factors": SHORT, "sampling": ck.PerItem(queries=5, nearest=0.5)},
    {"factors": None, "sampling": ck.PerQuery(items=7)},
    {"factors": SHORT, "sampling": ck.PerQuery(items=1000, retriever="dense")},
    {"factors": SHORT, "sampling": ck.PerQuery(items=20, retriever="bm25", at_random=0.3)},
    {"factors": SHORT, "sampling": [ck.PerItem(queries=4), ck.PerQuery(items=30)]},
    {"factors": None, "prior": True, "sampling": ck.PerItem(queries=3)},
    {"factors": ck.Cur(anchors=20)},
]


@pytest.mark.parametrize(
    "settings",
    [*EXACT, *({**way, "queries": TRAIN[:25]} for way in (*EXACT, *OTHERS)), {"factors": SHORT, "queries": TRAIN[:3]}],
    ids=name_way,
)
def test_calls_are_those_that_the_build_makes(settings):
    models, settings = Models(), {"prior": False, **settings}
    cost = plan_build(ITEMS, **models.both, **settings).costs[0]
    assert models.calls == MEASURED_CALLS
    assert models.texts <= MEASURED_ITEMS + MEASURED_QUERIES + 2 * WARM_UP_TEXTS + 1  # one for the dimension
    models = Models()
    report = ck.Index.build(ITEMS, **models.both, **settings).report
    assert cost.calls == cost.to_make == report.calls == report.calls_made == models.calls
    assert not cost.at_most


@pytest.mark.parametrize("way", [*USUAL, {"factors": None, "prior": True}], ids=name_way)
def test_bytes_are_those_of_the_folder(way, tmp_path):
    settings = {**Models().both, **way, "queries": TRAIN}
    cost = plan_build(ITEMS, **settings).costs[0]
    ck.Index.build(ITEMS, **settings).save(tmp_path / "index")
    found = sum(path.stat().st_size for path in (tmp_path / "index").glob("*-*"))
    assert cost.disk == pytest.approx(found, abs=3500)  # but for headers, and the names of the arrays
    assert cost.memory > cost.disk


def test_the_requested_way_comes_first_and_then_the_usual_ones():
    names = [cost.way for cost in plan_build(ITEMS, **Models().both, factors=ck.Cur(anchors=20)).costs]
    usual = [
        "encoder’s vectors only, 100 items per query",
        "transductive, 8 queries per item",
        "transductive, 32 queries per item",
        "transductive and prior, 7 queries per item, 1 item per query from fused",
        "inductive, 100 items per query",
        "cur, 500 anchors",
    ]
    assert names == ["cur, 20 anchors", *usual]
    again = [cost.way for cost in plan_build(ITEMS, **Models().both).costs]
    assert again == [usual[3], *usual[:3], *usual[4:]]  # with a prior


def test_seconds_follow_from_the_measured_speeds():
    plan = plan_build(ITEMS, **Models(seconds_per_call=5e-4).both, queries=TRAIN)
    assert 500 < plan.calls_per_second < 2000
    for cost in plan.costs:
        assert cost.scoring == pytest.approx(cost.to_make / plan.calls_per_second)
        assert cost.encoding > len(ITEMS) / plan.items_per_second
        assert cost.seconds == cost.scoring + cost.encoding + cost.factorizing
        assert (cost.factorizing > 0) == cost.way.startswith(("transductive", "inductive"))
    more = {cost.way: cost.factorizing for cost in plan.costs}
    assert more["transductive, 32 queries per item"] > more["transductive, 8 queries per item"]


def test_nothing_is_written(tmp_path):
    plan_build(ITEMS, **Models().both, work_dir=tmp_path / "work")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("factors", "sampling"), [(SHORT, None), (ck.Cur(anchors=20), None)], ids=lambda value: type(value).__name__
)
def test_scores_in_the_work_folder_cost_nothing(factors, sampling, tmp_path):
    settings = {"factors": factors, "sampling": sampling, "queries": TRAIN, "work_dir": tmp_path / "work"}
    settings["prior"] = False
    fresh = plan_build(ITEMS, **Models(seconds_per_item=5e-4).both, **settings)
    Build(ITEMS, **Models().both, **settings, chunk=100).score(part=(0, 2))  # as one of two workers
    half = plan_build(ITEMS, **Models().both, **settings).costs[0]
    assert 0 < half.to_make < half.calls == fresh.costs[0].calls
    report = ck.Index.build(ITEMS, **Models().both, **settings, chunk=100).report
    assert report.calls_made == half.to_make
    done = plan_build(ITEMS, **Models(seconds_per_item=5e-4).both, **settings)
    assert (done.costs[0].calls, done.costs[0].to_make, done.costs[0].scoring) == (report.calls, 0, 0.0)
    assert 0 < done.costs[0].encoding < 0.5 * fresh.costs[0].encoding  # the train queries only
    others = [cost.to_make for cost in done.costs[1:]]
    assert all(left <= cost.to_make for left, cost in zip(others, fresh.costs[1:], strict=True))


def test_pairs_of_equal_texts_cost_one_call_with_a_work_folder(tmp_path):
    items = ck.Items([f"river {row % 40}" for row in range(100)])
    settings = {"factors": SHORT, "prior": False, "queries": TRAIN[:20], "work_dir": tmp_path / "work"}
    cost = plan_build(items, **Models().both, **settings).costs[0]
    report = ck.Index.build(items, **Models().both, **settings).report
    assert (report.calls, report.calls_made) == (cost.calls, cost.to_make)
    assert cost.to_make < cost.calls


def test_calls_are_an_upper_bound_when_a_retriever_chooses_the_pairs(tmp_path):
    sampling = [ck.PerItem(queries=4), ck.PerQuery(items=30, retriever="bm25")]
    settings = {"factors": SHORT, "sampling": sampling, "queries": TRAIN, "prior": False}
    cost = plan_build(ITEMS, **Models().both, **settings).costs[0]
    assert cost.at_most
    assert cost.calls == 4 * len(ITEMS) + 30 * len(TRAIN)
    assert cost.way == "transductive, 4 queries per item, 30 items per query from bm25"
    assert 0.8 * cost.calls < len(Build(ITEMS, **Models().both, **settings).score()) < cost.calls


@pytest.mark.parametrize("factors", [SHORT, None], ids=["fitted", "encoder’s"])
def test_a_build_with_a_prior_takes_at_most_eight_calls_per_item(factors):
    items = ck.Items([TEXT.format(row % 7, row) for row in range(900)])
    settings = {"factors": factors, "prior": True, "queries": TRAIN}
    planned = plan_build(items, **Models(seconds_per_call=1e-4).both, **settings)
    cost = planned.costs[0]
    kind = "encoder’s vectors" if factors is None else "transductive"
    assert cost.way == f"{kind} and prior, 7 queries per item, 6 items per query from fused"
    assert (cost.calls, cost.to_make, cost.at_most) == (7 * 900 + 6 * 130, 7 * 900 + 6 * 130, True)
    assert cost.scoring == pytest.approx(cost.to_make / planned.calls_per_second)
    report = ck.Index.build(items, **Models().both, **settings).report
    assert 0.9 * cost.calls < report.calls <= cost.calls
    without = plan_build(items, **Models().both, factors=factors, queries=TRAIN, prior=False).costs[0]
    assert cost.disk - without.disk == pytest.approx(36 * 900, abs=6000 * (factors is None))  # fewer train queries


def test_scores_of_random_pairs_in_the_work_folder_cost_nothing_with_a_prior(tmp_path):
    settings = {"factors": SHORT, "queries": TRAIN, "work_dir": tmp_path / "work"}
    fresh = plan_build(ITEMS, **Models().both, **settings).costs[0]
    report = ck.Index.build(ITEMS, **Models().both, **settings).report
    done = plan_build(ITEMS, **Models().both, **settings).costs[0]
    assert (done.calls, done.at_most) == (fresh.calls, True)
    assert 0 <= done.to_make == fresh.calls - 7 * len(ITEMS) < report.calls


def test_the_calls_of_a_calibration_are_counted():
    items = ck.Items([TEXT.format(row % 7, row) for row in range(1000)])
    with_it, without = (
        plan_build(items, **Models().both, factors=SHORT, queries=TRAIN, calibrate=calibrate).costs[0]
        for calibrate in (None, False)
    )
    assert with_it.calibration > 0 == without.calibration
    assert with_it.calls > without.calls


def test_invalid_settings_raise_before_any_call(tmp_path):
    ck.Index.build(ITEMS, **Models().both, factors=SHORT, queries=TRAIN, work_dir=tmp_path / "work")
    models = Models(scorer="another")
    with pytest.raises(ck.InputError, match=r"'score', not of 'another'"):
        plan_build(ITEMS, **models.both, work_dir=tmp_path / "work")
    with pytest.raises(ck.InputError, match="CUR scores every item"):
        plan_build(ITEMS, **models.both, factors=ck.Cur(), sampling=ck.PerItem())
    with pytest.raises(ck.InputError, match="CUR scores every item"):
        plan_build(ITEMS, **models.both, factors=ck.Cur(), prior=True)
    with pytest.raises(ck.InputError, match="`queries` must be non-blank strings"):
        plan_build(ITEMS, **models.both, queries=["ice", " "])
    assert models.calls == 0


def test_a_cost_as_a_dictionary():
    plan = plan_build(ITEMS, **Models().both)
    values = plan.costs[0].as_dict()
    assert values["seconds"] == plan.costs[0].seconds
    assert {"way", "calls", "to_make", "at_most", "disk", "memory", "scoring", "encoding", "factorizing"} < set(values)
