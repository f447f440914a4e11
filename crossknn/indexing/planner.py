"""What building an index will cost, said before anything is paid: calls, minutes and megabytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.encoders.base import check_vectors
from crossknn.encoders.item_encoding import count_encoded
from crossknn.indexing.builder import Build
from crossknn.indexing.factorization.cur import Cur
from crossknn.indexing.factorization.factors import Method
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.index import DEFAULT_FACTORS
from crossknn.indexing.pair_scoring import PairScores, TextCodes
from crossknn.indexing.ppca import ITEMS as TASTED
from crossknn.indexing.sampling import PerItem, PerQuery, Sampling, sample_per_item
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.storage.score_plan import Codes, Wanted
from crossknn.items.items import Items
from crossknn.retrievers.bm25_storage import estimate_bytes
from crossknn.scorers.timing import measure_speed
from crossknn.strategies.posterior.prior import LATENT_FACTORS, RETRIEVER_DEPTH, SIGNALS
from crossknn.types import Encoder, Progress, Scorer, Vectors

CALLS, SOME_ITEMS, SOME_QUERIES = 512, 256, 64  # pairs, items and train queries that the models are measured on
WARM_UP = 16  # texts before that
PROBE_QUERIES, PROBE_ITEMS, PROBE_PER_ITEM = 256, 2048, 2  # of the made-up scores that a fit is timed on
READING = 256  # reading an entry takes ALS as long as so many more entries in its system would
LOOKED_UP = 20_000_000  # pairs; which of more have a score already is not looked up
SCORING_BYTES, FITTING_BYTES = 60, 100  # of memory for a pair
PRIOR_BYTES = 4 + 2 * LATENT_FACTORS  # on disk for an item: its bias in float32, its traits in float16
PROPOSED_BYTES, LEARNING_BYTES = 12, 400  # of memory for a prior: a row that a retriever proposes, a pair,
TASTE_BYTES, TRAIT_BYTES = 5000, 400  # one of the items that tastes are learned from, any item
SPACE = 32_000_000  # bytes of memory for whatever has no part in the sums, such as blocks
NET_BATCH = 500_000  # bytes of memory for each dimension, while a batch goes through both nets


@dataclass(frozen=True)
class Cost:
    """What one way of building an index costs.

    way          what is fitted to which pairs, in words
    calls        scores that the index is built from
    to_make      calls that the build must make for them; the others are in the work folder, or of equal texts
    at_most      whether these two may turn out smaller: which pairs are chosen depends on vectors or a retriever
    scoring      seconds
    encoding     seconds, of the items and the train queries
    factorising  seconds if no epoch is spared, extrapolated from a small fit: trust its magnitude only
    disk         bytes of the index
    memory       bytes that the build needs at its peak, besides models and libraries
    """

    way: str
    calls: int
    to_make: int
    at_most: bool
    scoring: float
    encoding: float
    factorising: float
    disk: int
    memory: int

    @property
    def seconds(self) -> float:
        """Of these three steps. What a retriever takes, learning a prior, and writing the index are not counted."""
        return self.scoring + self.encoding + self.factorising

    def as_dict(self) -> dict[str, Any]:
        """Of plain values."""
        return {**asdict(self), "seconds": self.seconds}


@dataclass(frozen=True)
class BuildPlan:
    """What several ways of building cost on this machine, and what was measured to know it.

    costs             of the way asked for, then of the usual ones
    calls_made        to measure the scorer; none where no way has a call to make
    calls_per_second  of the scorer; None where it was not measured
    items_per_second  of the encoder
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
    factors: Method | None = DEFAULT_FACTORS,
    prior: bool = False,
    work_dir: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> BuildPlan:
    """What `Index.build` with these settings would cost, and beside it what the usual ways would.

    512 pairs are scored, 256 items and 64 queries encoded for it; nothing is written. With a `work_dir`, what it
    holds already costs nothing.
    """
    prepare = partial(Build, items, scorer=scorer, encoder=encoder, queries=queries, work_dir=work_dir, seed=seed)
    ways: dict[str, _Way] = {}
    for settings in ({"factors": factors, "sampling": sampling, "prior": prior}, *usual_ways(seed)):
        way = _Way(prepare(**settings), settings["factors"], prior=settings.get("prior", False))
        ways.setdefault(way.name, way)
    work = _Work(items, None if work_dir is None else Path(work_dir), scorer)
    calls = [work.count_calls(way) for way in ways.values()]
    first = next(iter(ways.values())).build
    path = first.vectors_path
    rows = len(items) if path is None else len(items) - count_encoded(items, encoder, path=path)
    measured = _Measured(items, first.queries, scorer, encoder, progress)
    dim, fits = measured.dim, _Fits(measured.dim, device)
    costs = [
        Cost(
            way.name,
            *counts,
            scoring=counts[1] * measured.seconds_per_call if counts[1] else 0.0,
            encoding=rows * measured.seconds_per_item + len(way.queries) * measured.seconds_per_query,
            factorising=fits.seconds(way, counts[0]),
            disk=measured.item_bytes + measured.bm25_bytes + Items(way.queries).stored_bytes + way.array_bytes(dim),
            memory=way.memory_bytes(dim, counts[0]),
        )
        for way, counts in zip(ways.values(), calls, strict=True)
    ]
    scored = any(to_make for _, to_make, _ in calls)
    return BuildPlan(
        costs,
        calls_made=CALLS if scored else 0,
        calls_per_second=1 / measured.seconds_per_call if scored else None,
        items_per_second=1 / measured.seconds_per_item,
    )


def usual_ways(seed: int = 0) -> list[dict[str, Any]]:
    """The settings of `Index.build` to choose from."""
    return [
        {"factors": None},
        {"factors": DEFAULT_FACTORS, "sampling": PerItem(queries=8, seed=seed)},
        {"factors": DEFAULT_FACTORS, "sampling": PerItem(queries=32, seed=seed)},
        {"factors": DEFAULT_FACTORS, "prior": True},
        {"factors": Inductive(), "sampling": PerQuery(items=100, seed=seed)},
        {"factors": Cur(anchors=500, seed=seed)},
    ]


@dataclass(frozen=True)
class _Way:
    """What is fitted, and to which pairs."""

    build: Build  # never run: it checks the settings and chooses train queries and pairs
    factors: Method | None
    prior: bool

    @property
    def items(self) -> Items:
        return self.build.items

    @property
    def queries(self) -> list[str]:
        return self.build.queries

    @property
    def samplings(self) -> list[Sampling]:
        """None for CUR, which scores all pairs."""
        return [] if isinstance(self.factors, Cur) else self.build.sampling

    @property
    def name(self) -> str:
        if isinstance(self.factors, Cur):
            return f"cur, {self.factors.anchors:,} anchors"
        kind = "encoder’s vectors" if self.factors is None else type(self.factors).__name__.lower()
        kind += " and prior" if self.prior else " only" * (self.factors is None)
        return ", ".join([kind, *map(_describe_sampling, self.samplings)])

    def count_pairs(self) -> int:
        """How many pairs are chosen; of several samplings, which may choose the same pair, at most."""
        queries, items = len(self.queries), len(self.items)
        if not self.samplings:
            return queries * items
        counts = [
            queries * min(plan.items, items) if isinstance(plan, PerQuery) else items * min(plan.queries, queries)
            for plan in self.samplings
        ]
        return min(sum(counts), queries * items)

    @property
    def is_drawn(self) -> bool:
        """Whether all pairs are drawn at random, so that they are known before anything is encoded."""
        return not any(plan.retriever if isinstance(plan, PerQuery) else plan.nearest for plan in self.samplings)

    def array_bytes(self, dim: int) -> int:
        """What the index's arrays take on disk: the encoder's vectors, the fitted ones, and the prior."""
        return self._vector_bytes(dim) + (PRIOR_BYTES * len(self.items) if self.prior else 0)

    def _vector_bytes(self, dim: int) -> int:
        queries, items, factors = len(self.queries), len(self.items), self.factors
        own = 2 * dim * items
        if factors is None:
            return own
        if isinstance(factors, Cur):
            return own + 4 * queries * items
        if isinstance(factors, Inductive):
            return 2 * own + 8 * (4 * dim * dim + 3 * dim + 1)
        fitted = factors.dim or dim
        return own + 2 * fitted * items + 4 * fitted * queries

    def memory_bytes(self, dim: int, pairs: int) -> int:
        """What a build holds at its peak: while it scores, or while it fits."""
        queries, items = len(self.queries), len(self.items)
        texts = int(self.items.texts.array.nbytes + self.items.ids.array.nbytes) + 16 * items
        always = SPACE + texts + 2 * dim * items + 4 * dim * queries
        scoring = SCORING_BYTES * pairs + 36 * (queries + items)
        return always + max(scoring, self._fitting_bytes(dim, pairs), self._learning_bytes(pairs) if self.prior else 0)

    def _learning_bytes(self, pairs: int) -> int:
        """Of a prior: what its signals propose for every query, what they say of each pair, and the traits."""
        items = len(self.items)
        proposed = len(SIGNALS) * len(self.queries) * min(RETRIEVER_DEPTH, items)
        traits = TASTE_BYTES * min(TASTED, items) + TRAIT_BYTES * items
        return PROPOSED_BYTES * proposed + LEARNING_BYTES * pairs + traits

    def _fitting_bytes(self, dim: int, pairs: int) -> int:
        items, factors = len(self.items), self.factors
        if factors is None or isinstance(factors, Cur):
            return 16 * pairs
        fitted = FITTING_BYTES * pairs + 7 * dim * items  # the result in float32 and float16, and which are finite
        if isinstance(factors, Inductive):
            return fitted + NET_BATCH * dim
        return fitted + SPACE + (16 if factors.method == "adamw" else 8) * (factors.dim or dim) * items


class _Work:
    """Which calls the work folder spares a build."""

    def __init__(self, items: Items, folder: Path | None, scorer: Scorer) -> None:
        self._items = items
        self._folder = folder
        self._log: ScoreLog | None = None
        if folder is not None and (folder / "scores" / "log.json").exists():
            self._log = ScoreLog.open(folder / "scores", scorer=scorer.fingerprint)

    def count_calls(self, way: _Way) -> tuple[int, int, bool]:
        """How many scores there will be, how many calls are left to make for them, and whether it may be fewer."""
        pairs = way.count_pairs()
        if len(way.samplings) < 2 and not self._spares_calls:
            return pairs, pairs, False
        if pairs > LOOKED_UP or not way.is_drawn:
            return pairs, pairs, True
        drawn = way.build.pairs
        return len(drawn), self._count_missing(drawn, way.queries), False

    def _count_missing(self, pairs: Pairs, queries: Sequence[str]) -> int:
        if self._folder is None:
            return len(pairs)
        wanted = PairScores(pairs, TextCodes(hash_texts(queries)), self._codes)
        if self._log is not None:
            for name in self._log.chunks:
                wanted.reuse(self._log.read(name))
        return len(wanted.missing())

    @property
    def _spares_calls(self) -> bool:
        """Whether a score may be there already, or serve two items of equal texts."""
        return self._folder is not None and (self._log is not None or len(self._codes) < len(self._items))

    @cached_property
    def _codes(self) -> TextCodes:
        return TextCodes(hash_texts(self._items.texts))


class _Measured:
    """How fast the models are and how large the items, measured on a few of them when it is first asked."""

    def __init__(
        self, items: Items, queries: Sequence[str], scorer: Scorer, encoder: Encoder, progress: Progress | None
    ) -> None:
        self._items = items
        self._queries = queries
        self._scorer = scorer
        self._encoder = encoder
        self._report = progress or (lambda *_: None)

    @cached_property
    def dim(self) -> int:
        return int(check_vectors(self._encoder.encode_items([]), []).shape[1])

    @cached_property
    def seconds_per_item(self) -> float:
        texts = self._items.texts_of(_spread(len(self._items), SOME_ITEMS))
        return self._time(self._encoder.encode_items, texts)

    @cached_property
    def seconds_per_query(self) -> float:
        texts = [self._queries[number] for number in _spread(len(self._queries), SOME_QUERIES)]
        return self._time(self._encoder.encode_queries, texts)

    def _time(self, encode: Callable[[Sequence[str]], Vectors], texts: list[str]) -> float:
        """Seconds for a text, in batches of like length as in a build."""
        texts.sort(key=len)
        self._report("measure the encoder", 0, len(texts))
        encode(texts[:WARM_UP])
        start = time.perf_counter()
        check_vectors(encode(texts), texts, dim=self.dim)
        took = time.perf_counter() - start
        self._report("measure the encoder", len(texts), len(texts))
        return max(took, 1e-9) / len(texts)

    @cached_property
    def seconds_per_call(self) -> float:
        rng = np.random.default_rng(0)
        rows = rng.permutation(_spread(len(self._items), CALLS))
        queries = [self._queries[number] for number in rng.integers(len(self._queries), size=CALLS)]
        self._report("measure the scorer", 0, CALLS)
        speed = measure_speed(self._scorer, queries, self._items.texts_of(rows))
        self._report("measure the scorer", CALLS, CALLS)
        return speed.per_call

    @cached_property
    def item_bytes(self) -> int:
        """Of ids and texts on disk."""
        return self._items.stored_bytes

    @cached_property
    def bm25_bytes(self) -> int:
        """Of BM25 on disk."""
        return estimate_bytes(self._items)


class _Fits:
    """How long factorisations take, from small ones on made-up scores."""

    def __init__(self, dim: int, device: str | None) -> None:
        self._dim = dim
        self._device = device
        self._known: dict[Method, float] = {}

    def seconds(self, way: _Way, pairs: int) -> float:
        if way.factors is None or isinstance(way.factors, Cur):
            return 0.0  # nothing is learned
        method = replace(way.factors, device=way.factors.device or self._device)
        if method not in self._known:
            self._known[method] = self._time_unit(method)
        return self._known[method] * _work_of(method, len(way.queries), len(way.items), pairs, self._dim)

    def _time_unit(self, method: Transductive | Inductive) -> float:
        """Seconds for a unit of work: what two epochs more take, so that beginning and end do not count."""
        rng = np.random.default_rng(0)
        pairs = sample_per_item(PerItem(queries=PROBE_PER_ITEM), n_queries=PROBE_QUERIES, n_items=PROBE_ITEMS)
        entries = SparseScores(pairs, rng.standard_normal(len(pairs), np.float32))
        vectors = [rng.standard_normal((count, self._dim), np.float32) for count in (PROBE_QUERIES, PROBE_ITEMS)]
        random = isinstance(method, Transductive) and method.init == "random"
        seconds = []
        for epochs in (1, 1, 3):  # the first one warms up
            start = time.perf_counter()
            replace(method, epochs=epochs, patience=None).fit(entries, *([] if random else vectors))
            seconds.append(time.perf_counter() - start)
        work = _work_of(replace(method, epochs=2), PROBE_QUERIES, PROBE_ITEMS, len(pairs), self._dim)
        return max(seconds[2] - seconds[1], 1e-6) / work


def _work_of(method: Transductive | Inductive, queries: int, items: int, pairs: int, dim: int) -> float:
    """How much a fit has to do, in units of its own."""
    if isinstance(method, Inductive):
        return method.epochs * pairs + items / 3  # at last every item goes through its net, once and forward only
    if method.method == "adamw":
        return float(method.epochs * pairs)
    return method.epochs * sum(_als_work(rows, pairs / rows, method.dim or dim) for rows in (queries, items))


def _als_work(rows: int, each: float, dim: int) -> float:
    """Of one side whose rows have `each` entries: read them, make a system of the smaller size and solve it."""
    size = min(each, dim)
    return rows * (each * (size + READING) * dim + size**3 / 3)


def _describe_sampling(plan: Sampling) -> str:
    if isinstance(plan, PerItem):
        nearest = f", {plan.nearest:.0%} nearest" if plan.nearest else ""
        return f"{plan.queries:,} {'query' if plan.queries == 1 else 'queries'} per item{nearest}"
    best = f" from {plan.retriever}" if plan.retriever else ""
    return f"{plan.items:,} {'item' if plan.items == 1 else 'items'} per query{best}"


def _spread(count: int, wanted: int) -> Any:
    """(wanted,) rows from all over; some several times where there are fewer."""
    return np.linspace(0, count - 1, wanted).astype(np.int64)
