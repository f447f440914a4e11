"""Every setting that is a number refuses what is none, in one sentence that names it."""

import math
from functools import partial

import numpy as np
import pytest

import crossknn as ck
from crossknn.engines.ray import RayEngine
from crossknn.evaluate.measures import bootstrap_interval
from crossknn.indexing.distillation import Distillation
from crossknn.indexing.teaching.settings import Teaching
from crossknn.scorers.remote.logprob import LogprobScorer
from crossknn.scorers.timing import Speed
from crossknn.serve.dynamic_batching import BatchingScorer
from crossknn.serve.settings import Limits, Settings
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.calibration import RecallCalibration
from crossknn.testing import MatrixScorer

ITEMS = ck.Items(["ice", "snow"])
SCORER = MatrixScorer([[1, 2]])
REMOTE = partial(ck.RemoteScorer, "http://localhost:1/rerank", price_per_million_tokens=1)
JUDGE = partial(LogprobScorer, "http://localhost:1/completions", price_per_million_tokens=1)
SEARCHER = ck.Searcher(ITEMS, scorer=SCORER, retrievers=[ck.Given({})])


def search(**options):
    return SEARCHER.search("q", k=1, strategy=ck.Rerank(1, "given"), **options)


SETTINGS = [
    (search, "deadline"),
    (search, "min_score"),
    (search, "min_probability"),
    (search, "diversity"),
    (partial(SEARCHER.search_many, ["q"], k=1, strategy=ck.Posterior()), "stop_at"),
    (ck.Posterior, "stop_at"),
    (ck.Axn, "mix"),
    (ck.AnnCur, "share"),
    (ck.Tour, "learning_rate"),
    (partial(Normalization, beta=1), "alpha"),
    (partial(Normalization, 0), "beta"),
    (partial(RecallCalibration, slope=1), "intercept"),
    (partial(RecallCalibration, 0), "slope"),
    (ck.Bm25, "k1"),
    (ck.Bm25, "b"),
    (partial(ck.Fused, [ck.Random()]), "constant"),
    (partial(ck.FaissSearch, np.ones((2, 2), np.float32)), "effort"),
    (partial(bootstrap_interval, [1.0, 2.0]), "level"),
    (ck.PerQuery, "at_random"),
    (ck.PerItem, "nearest"),
    *((ck.Transductive, name) for name in ("learning_rate", "weight_decay", "held_out", "ridge")),
    *((Distillation, name) for name in ("learning_rate", "temperature", "time_limit")),
    *(
        (Teaching, name)
        for name in (
            *("random_share", "epochs", "learning_rate", "temperature", "squared_error", "evidence"),
            *("held_out_share", "time_limit"),
        )
    ),
    *(
        (scorer, name)
        for scorer in (REMOTE, JUDGE)
        for name in ("timeout", "price_per_1000", "spend_limit", "fallback_score")
    ),
    (partial(ck.RemoteScorer, "http://localhost:1/rerank"), "price_per_million_tokens"),
    (partial(Speed, per_call=1), "per_round"),
    (partial(Speed, 1), "per_call"),
    (partial(BatchingScorer, SCORER), "timeout"),
    (Limits, "deadline"),
    *(
        (Settings, name)
        for name in ("header_timeout", "body_timeout", "write_timeout", "scorer_timeout", "poll", "grace")
    ),
    *((RayEngine, name) for name in ("start_timeout", "connect_timeout", "cpus_per_worker", "gpus_per_worker")),
]
BAD = [math.nan, math.inf, -math.inf, "0.5", True, 10**400, [1.0], 1j]


@pytest.mark.parametrize(("make", "name"), SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_number_is_finite_or_refused(make, name):
    for value in BAD:
        with pytest.raises(ck.InputError, match=f"`{name}` must be ") as raised:
            make(**{name: value})
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("weight", [*BAD, None])
def test_weights_are_finite_or_refused(weight):
    with pytest.raises(ck.InputError, match="`rank_weights` must have a finite number"):
        ck.Searcher(ITEMS, scorer=SCORER, rank_weights={"score": 1.0, "bm25": weight})


@pytest.mark.parametrize("make", [REMOTE, partial(BatchingScorer, SCORER), partial(Settings)])
def test_no_wait_is_longer_than_a_clock_can_measure(make):
    name = "grace" if make.func is Settings else "timeout"
    with pytest.raises(ck.InputError, match=f"`{name}` must be a positive number of seconds, at most 1,000,000"):
        make(**{name: 1e300})
