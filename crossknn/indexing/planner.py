"""Cost model of index builds: calls, seconds and bytes, estimated before anything is scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossknn.encoders.base import check_vectors
from crossknn.encoders.item_encoding import count_encoded
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.indexing.builder import DEFAULT_FACTORS, Build
from crossknn.indexing.factorization.factors import Cur, Method
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.pair_scoring import PairScores, TextCodes
from crossknn.indexing.prior_fit import PCA_ITEMS
from crossknn.indexing.recall_calibration import QUERIES as CALIBRATION_QUERIES
from crossknn.indexing.sampling import PerItem, PerQuery, Sampling, sample_per_item
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.indexing.teaching.adapter_student import HIDDEN_PER_DIM
from crossknn.indexing.teaching.settings import Teaching
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import estimate_bytes
from crossknn.scorers.timing import measure_speed
from crossknn.storage.score_log import ScoreLog, hash_texts
from crossknn.strategies.posterior.prior import LATENT_FACTORS, RETRIEVER_DEPTH, SIGNALS
from crossknn.types import Encoder, Progress, Rows, Scorer, Vectors

MEASURED_CALLS, MEASURED_ITEMS, MEASURED_QUERIES = 512, 256, 64  # to time the models
WARM_UP_TEXTS = 16
TEACHING_PROBE = 256  # pairs to estimate the time of a teaching with
TRAINING_COST = 3.0  # of a forward and a backward pass, in forward passes
ADAPTER_PASS = 1e-4  # seconds that a pass of an adapter takes on a CPU, at most
PROBE_QUERIES, PROBE_ITEMS, PROBE_PER_ITEM = 256, 2048, 2  # of the synthetic scores that a fit is timed on
ALS_READ_COST = 256  # reading an entry takes ALS as long as this many more entries in its linear system
MAX_PAIRS_LOOKED_UP = 20_000_000  # in the score log
# Bytes of memory:
SCORING_BYTES, FITTING_BYTES, PRIOR_BYTES = 60, 100, 400  # per pair
PROPOSAL_BYTES = 12  # per proposed row of a signal
PCA_BYTES, LATENT_FACTOR_BYTES = 5000, 400  # per item the PCA is fitted to, per item
CALIBRATION_BYTES = 20  # per item and held-out query
FIXED_BYTES = 32_000_000
MLP_BYTES = 500_000  # per dimension, for a batch through both nets
STORED_PRIOR_BYTES = 4 + 2 * LATENT_FACTORS  # on disk per item: bias in float32, latent factors in float16


@dataclass(frozen=True)
class Cost:
    """The cost of one way to build an index.

    Attributes:
        way: Factors, prior and samplings in words.
        calls: Scores the index is built from.
        to_make: Calls among them that are left to make; the others are in the work folder or of equal texts.
        at_most: Whether both are upper bounds, because vectors or a retriever choose the pairs.
        scoring: Seconds.
        encoding: Seconds, for items and train queries.
        factorizing: Seconds without early stopping, extrapolated from a small fit: an order of magnitude.
        disk: Bytes of the index.
        memory: Peak bytes of the build, besides models and libraries.
        calibration: Calls among those to make that calibrate expected recall, at most.
    """

    way: str
    calls: int
    to_make: int
    at_most: bool
    scoring: float
    encoding: float
    factorizing: float
    disk: int
    memory: int
    calibration: int = 0

    @property
    def seconds(self) -> float:
        """Of these three steps; retrievers, fitting a prior and writing the index are not included."""
        return self.scoring + self.encoding + self.factorizing

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": self.seconds}


@dataclass(frozen=True)
class BuildPlan:
    """The costs of several ways to build an index on this machine.

    Attributes:
        costs: Of the requested way first, then of the usual ones.
        calls_made: To time the scorer; 0 if no way has a call to make.
        calls_per_second: Of the scorer; None if it was not timed.
        items_per_second: Of the encoder.
    """

    costs: list[Cost]
    calls_made: int
    calls_per_second: float | None
    items_per_second: float


def plan_build(
    items: Items,
    *,
    scorer: Scorer,
    encoder: Encoder,
    queries: Sequence[str] | None = None,
    sampling: Sampling | Sequence[Sampling] | None = None,
    factors: Method | Literal["default"] | None = "default",
    prior: bool | Literal["default"] | None = "default",
    teach: Teaching | bool | None = None,
    calibrate: bool | None = None,
    item_vectors: NDArray[Any] | None = None,
    work_dir: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> BuildPlan:
    """Estimate what `Index.build` with these settings would cost, and what the usual settings would.

    Scores 512 pairs and encodes 256 items and 64 queries to time the models; writes nothing. Scores and vectors that
    the `work_dir` holds already cost nothing.
    """
    given: dict[str, Any] = {"queries": queries, "item_vectors": item_vectors, "work_dir": work_dir, "seed": seed}
    prepare = partial(Build, items, scorer=scorer, encoder=encoder, **given)
    ways: dict[str, Build] = {}  # never run: builds check the settings and choose train queries and pairs
    wanted: dict[str, Any] = {"factors": factors, "sampling": sampling, "prior": prior, "teach": teach}
    wanted["calibrate"] = calibrate
    taught: list[dict[str, Any]] = (
        [{"factors": "default", "teach": True, "prior": "default"}] if isinstance(encoder, SentenceEncoder) else []
    )
    for settings in (wanted, *taught, *usual_ways(seed)):
        build = prepare(**settings)
        ways.setdefault(_describe(build), build)
    counter = CallCounter(items, None if work_dir is None else Path(work_dir), scorer)
    counts = [counter.count(build) for build in ways.values()]
    first, any_calls = next(iter(ways.values())), any(to_make for _, to_make, _ in counts)
    path, train = first.vectors_path, first.train_queries
    stored = 0 if path is None else count_encoded(items, encoder, path=path)
    encoded = stored if item_vectors is None else len(items)
    report, dim = progress or (lambda *_: None), int(check_vectors(encoder.encode_items([]), []).shape[1])
    texts = items.texts_of(_spread(len(items), MEASURED_ITEMS))
    per_item = _time_encoder(encoder.encode_items, texts, dim, report)
    texts = [train[number] for number in _spread(len(train), MEASURED_QUERIES)]
    per_query = _time_encoder(encoder.encode_queries, texts, dim, report)
    per_call = _time_scorer(scorer, train, items, report) if any_calls else 0.0
    text_bytes, time_fit = items.stored_bytes + estimate_bytes(items), cache(partial(_seconds_per_work, dim=dim))
    costs = [
        Cost(
            name,
            pairs,
            to_make,
            at_most,
            scoring=to_make * per_call,
            encoding=(_encoding_passes(build) * len(items) - encoded) * per_item + len(build.train_queries) * per_query,
            factorizing=_fit_seconds(build, pairs, dim, device, time_fit) + _training_seconds(build, per_item),
            disk=text_bytes + Items(build.train_queries).stored_bytes + _array_bytes(build, dim),
            memory=_memory_bytes(build, dim, pairs),
            calibration=build.calibration_calls,
        )
        for (name, build), (pairs, to_make, at_most) in zip(ways.items(), counts, strict=True)
    ]
    return BuildPlan(costs, MEASURED_CALLS if any_calls else 0, 1 / per_call if any_calls else None, 1 / per_item)


def count_calls(build: Build) -> tuple[int, int, bool]:
    """The number of scores of a build, of calls left to make for them, and whether these are upper bounds."""
    work_dir = None if build.work_dir is None else Path(build.work_dir)
    return CallCounter(build.items, work_dir, build.scorer).count(build)


def usual_ways(seed: int = 0) -> list[dict[str, Any]]:
    """The usual settings of `Index.build`."""
    return [
        {"factors": None},
        {"factors": DEFAULT_FACTORS, "sampling": PerItem(queries=8, seed=seed)},
        {"factors": DEFAULT_FACTORS, "sampling": PerItem(queries=32, seed=seed)},
        {"factors": DEFAULT_FACTORS, "prior": True},
        {"factors": Inductive(), "sampling": PerQuery(items=100, seed=seed)},
        {"factors": Cur(anchors=500, seed=seed)},
    ]


def _describe(build: Build) -> str:
    if isinstance(build.method, Cur):
        return f"cur, {build.method.anchors:,} anchors"
    if build.teaching is not None:
        return f"taught {build.teaching.student}{' and prior' * build.with_prior}, {build.teaching.lists:,} lists"
    kind = "encoder’s vectors" if build.method is None else type(build.method).__name__.lower()
    kind += " and prior" if build.with_prior else " only" * (build.method is None)
    parts = [kind]
    for plan in build.samplings:
        if isinstance(plan, PerItem):
            nearest = f", {plan.nearest:.0%} nearest" if plan.nearest else ""
            parts.append(f"{plan.queries:,} {'query' if plan.queries == 1 else 'queries'} per item{nearest}")
        else:
            source = f" from {plan.retriever}" if plan.retriever else ""
            parts.append(f"{plan.items:,} {'item' if plan.items == 1 else 'items'} per query{source}")
    return ", ".join(parts)


class CallCounter:
    """The calls of a build, less those that the score log of the work folder spares."""

    def __init__(self, items: Items, work_dir: Path | None, scorer: Scorer) -> None:
        self._items = items
        self._work_dir = work_dir
        self._log: ScoreLog | None = None
        if work_dir is not None and (work_dir / "scores" / "log.json").exists():
            self._log = ScoreLog.open(work_dir / "scores", scorer=scorer.fingerprint)

    def count(self, build: Build) -> tuple[int, int, bool]:
        """The number of scores, of calls left to make for them, and whether these are upper bounds."""
        calls, to_make, at_most = self._count_learned(build)
        calibration = build.calibration_calls
        return calls + calibration, to_make + calibration, at_most or calibration > 0

    def _count_learned(self, build: Build) -> tuple[int, int, bool]:
        """The same without the calibration of expected recall."""
        queries, items = len(build.train_queries), len(build.items)
        if build.teaching is not None:
            calls = min(build.teaching.calls, build.teaching.lists * items)
            return calls, calls, True
        samplings = [] if isinstance(build.method, Cur) else build.samplings
        pairs = self._count_pairs(samplings, queries) if samplings else queries * items
        if len(samplings) < 2 and not (self._log or (self._work_dir and len(self._codes) < len(self._items))):
            return pairs, pairs, False  # no score is logged already, or serves two items of equal texts
        if pairs > MAX_PAIRS_LOOKED_UP:
            return pairs, pairs, True
        # What vectors or retrievers choose is not known yet.
        chosen = [plan for plan in samplings if (plan.retriever if isinstance(plan, PerQuery) else plan.nearest)]
        drawn = [plan for plan in samplings if plan not in chosen]
        if chosen and (self._log is None or not drawn):
            return pairs, pairs, True
        if chosen:
            left = self._count_missing(build, build.sample_at_random(drawn)) + self._count_pairs(chosen, queries)
            return pairs, min(pairs, left), True
        return len(build.pairs), self._count_missing(build, build.pairs), False

    def _count_pairs(self, samplings: Sequence[Sampling], queries: int) -> int:
        """How many pairs the samplings choose, at most."""
        items = len(self._items)
        counts = [
            queries * min(plan.items, items) if isinstance(plan, PerQuery) else items * min(plan.queries, queries)
            for plan in samplings
        ]
        return min(sum(counts), queries * items)

    def _count_missing(self, build: Build, pairs: Pairs) -> int:
        """How many of these pairs are left to score."""
        if self._work_dir is None:
            return len(pairs)
        wanted = PairScores(pairs, TextCodes(hash_texts(build.train_queries)), self._codes)
        if self._log is not None:
            for name in self._log.chunks:
                wanted.reuse(self._log.read(name))
        return len(wanted.missing())

    @cached_property
    def _codes(self) -> TextCodes:
        return TextCodes(hash_texts(self._items.texts))


def _time_encoder(encode: Callable[[Sequence[str]], Vectors], texts: list[str], dim: int, progress: Progress) -> float:
    """Seconds per text."""
    texts.sort(key=len)  # batches of similar lengths, as in a build
    progress("measure the encoder", 0, len(texts))
    encode(texts[:WARM_UP_TEXTS])
    start = time.perf_counter()
    check_vectors(encode(texts), texts, dim=dim)
    took = time.perf_counter() - start
    progress("measure the encoder", len(texts), len(texts))
    return max(took, 1e-9) / len(texts)


def _time_scorer(scorer: Scorer, queries: Sequence[str], items: Items, progress: Progress) -> float:
    """Seconds per call."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(_spread(len(items), MEASURED_CALLS))
    chosen = [queries[number] for number in rng.integers(len(queries), size=MEASURED_CALLS)]
    progress("measure the scorer", 0, MEASURED_CALLS)
    per_call = measure_speed(scorer, chosen, items.texts_of(rows)).per_call
    progress("measure the scorer", MEASURED_CALLS, MEASURED_CALLS)
    return per_call


def _spread(count: int, size: int) -> Rows:
    """(size,) evenly spaced rows; some repeat if there are fewer."""
    return np.linspace(0, count - 1, size).astype(np.int64)


def _array_bytes(build: Build, dim: int) -> int:
    """On disk: the encoder's vectors, the factors, and the prior."""
    queries, items, factors = len(build.train_queries), len(build.items), build.method
    vectors, prior = 2 * dim * items, STORED_PRIOR_BYTES * items if build.with_prior else 0
    if build.teaching is not None and build.teaching.student != "encoder":
        prior += 4 * (2 if build.teaching.student == "adapter" else 1) * (2 * HIDDEN_PER_DIM * dim * dim)
    elif build.teaching is not None and isinstance(build.encoder, SentenceEncoder):
        prior += 2 * build.encoder.weights
    if factors is None:
        return vectors + prior
    if isinstance(factors, Cur):
        return vectors + 4 * queries * items + prior
    if isinstance(factors, Inductive):
        return 2 * vectors + 8 * (4 * dim * dim + 3 * dim + 1) + prior
    fitted = factors.dim or dim
    return vectors + 2 * fitted * items + 4 * fitted * queries + prior


def _memory_bytes(build: Build, dim: int, pairs: int) -> int:
    """The peak: while pairs are scored, factors fitted, or the prior fitted."""
    queries, items, factors = len(build.train_queries), len(build.items), build.method
    texts = int(build.items.texts.array.nbytes + build.items.ids.array.nbytes) + 16 * items
    always = FIXED_BYTES + texts + 2 * dim * items + 4 * dim * queries
    scoring = SCORING_BYTES * pairs + 36 * (queries + items)
    fitting = 16 * pairs
    if isinstance(factors, Transductive | Inductive):
        fitting = FITTING_BYTES * pairs + 7 * dim * items  # with the result in float32 and float16, and a mask
        if isinstance(factors, Inductive):
            fitting += MLP_BYTES * dim
        else:
            fitting += FIXED_BYTES + (16 if factors.method == "adamw" else 8) * (factors.dim or dim) * items
    prior = 0
    if build.with_prior:
        proposals = PROPOSAL_BYTES * len(SIGNALS) * queries * min(RETRIEVER_DEPTH, items)
        prior = proposals + PRIOR_BYTES * pairs + PCA_BYTES * min(PCA_ITEMS, items) + LATENT_FACTOR_BYTES * items
    calibration = CALIBRATION_BYTES * CALIBRATION_QUERIES * items if build.calibrates else 0
    return always + max(scoring, fitting, prior, calibration)


def _fit_seconds(
    build: Build, pairs: int, dim: int, device: str | None, seconds_per_work: Callable[[Method], float]
) -> float:
    if build.method is None or isinstance(build.method, Cur):
        return 0.0  # nothing is trained
    method = replace(build.method, device=build.method.device or device)
    return seconds_per_work(method) * _fit_work(method, len(build.train_queries), len(build.items), pairs, dim)


def _encoding_passes(build: Build) -> int:
    """How often the items are encoded: to mine each round's lists, to check a teaching, and in the end."""
    teaching = build.teaching
    return 1 if teaching is None or teaching.student != "encoder" else teaching.rounds + 3


def _training_seconds(build: Build, per_item: float) -> float:
    """Of a teaching, from the time of forward passes."""
    teaching = build.teaching
    if teaching is None:
        return 0.0
    return teaching.passes * (TRAINING_COST * per_item if teaching.student == "encoder" else ADAPTER_PASS)


def estimate_teaching(items: Items, settings: Teaching, *, scorer: Scorer, encoder: SentenceEncoder) -> float:
    """Seconds that a teaching would take here, from a few calls and items."""
    texts = items.texts_of(_spread(len(items), TEACHING_PROBE))
    per_item = _time_encoder(encoder.encode_items, texts[:WARM_UP_TEXTS], encoder.dim, lambda *_: None)
    per_call = measure_speed(scorer, texts[:1] * len(texts), texts).per_call
    if settings.student != "encoder":
        return settings.calls * per_call + settings.passes * ADAPTER_PASS + len(items) * per_item
    passes = TRAINING_COST * settings.passes + (settings.rounds + 3) * len(items)
    return settings.calls * per_call + passes * per_item


def _seconds_per_work(method: Transductive | Inductive, dim: int) -> float:
    """Seconds per unit of work: the time of two more epochs, so that set-up does not count."""
    rng = np.random.default_rng(0)
    pairs = sample_per_item(PerItem(queries=PROBE_PER_ITEM), n_queries=PROBE_QUERIES, n_items=PROBE_ITEMS)
    entries = SparseScores(pairs, rng.standard_normal(len(pairs), np.float32))
    vectors = [rng.standard_normal((count, dim), np.float32) for count in (PROBE_QUERIES, PROBE_ITEMS)]
    random = isinstance(method, Transductive) and method.init == "random"
    seconds = []
    for epochs in (1, 1, 3):  # the first one warms up
        start = time.perf_counter()
        replace(method, epochs=epochs, patience=None).fit(entries, *([] if random else vectors))
        seconds.append(time.perf_counter() - start)
    work = _fit_work(replace(method, epochs=2), PROBE_QUERIES, PROBE_ITEMS, len(pairs), dim)
    return max(seconds[2] - seconds[1], 1e-6) / work


def _fit_work(method: Transductive | Inductive, queries: int, items: int, pairs: int, dim: int) -> float:
    """The work of a fit, in units that depend on the method."""
    if isinstance(method, Inductive):
        return method.epochs * pairs + items / 3  # finally every item passes through its net once, forward only
    if method.method == "adamw":
        return float(method.epochs * pairs)
    size, work = method.dim or dim, 0.0
    for rows in (queries, items):  # ALS reads the entries of a row, sets up a system of the smaller size, and solves it
        entries = pairs / rows
        unknowns = min(entries, size)
        work += rows * (entries * (unknowns + ALS_READ_COST) * size + unknowns**3 / 3)
    return method.epochs * work
