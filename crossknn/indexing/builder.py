"""The steps of a build, from items and train queries to what an index holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_engine, check_positive, check_seed, check_signals
from crossknn.encoders.base import check_vectors
from crossknn.encoders.item_encoding import encode_items
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.indexing.factorization.cur import Cur, all_pairs
from crossknn.indexing.factorization.factors import Factors, Method, fit_factors
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.trainer import Report
from crossknn.indexing.pair_scoring import STEP, open_score_log, score_pairs_into
from crossknn.indexing.prior_fit import fit_prior
from crossknn.indexing.pseudo_queries import cut_queries
from crossknn.indexing.sampling import PerItem, PerQuery, Sampling, merge, sample_per_item, sample_per_query
from crossknn.indexing.score_matrix import Coverage, Pairs, SparseScores
from crossknn.items.items import Items
from crossknn.models.fingerprints import is_unnamed
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.tfidf import TfIdf
from crossknn.scorers.base import score_pairs
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import SIGNALS, Prior
from crossknn.types import Encoder, Engine, Job, Progress, Proposal, Retriever, Scorer, Vectors
from crossknn.vectors.exact import ExactSearch

PSEUDO_QUERIES = 500
NORMALIZATION_QUERIES = 100  # the paper's, for α and β
BUILT_IN = ("dense", "bm25", "tfidf", "fused")  # retrievers that samplings and signals may name
CALLS_PER_ITEM = 8  # of a build with a prior: one of them for what retrievers find
QUERIES_AT_ONCE = 1024
CHUNK = 8192  # calls that are kept together: as many can be lost


@dataclass(frozen=True)
class BuildReport:
    """What a build did, and how well the factors fit.

    calls       scores that the index was built from, those of items added later included
    calls_made  how many of them were made by this run; the others were in the work folder already
    coverage    of the build; items added or removed later do not change it
    seconds     of each step, in this run
    """

    items: int
    queries: int
    cut_from_items: bool  # whether the queries are pseudo-queries
    calls: int
    calls_made: int
    coverage: Coverage
    factors: str | None
    fit: Report | None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Of plain values, as it is saved."""
        return {**asdict(self), "seconds": dict(self.seconds)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "coverage": Coverage(**values["coverage"])})

    def __str__(self) -> str:
        cover = self.coverage
        lines = [
            f"{self.items:,} items, {self.queries:,} train queries" + " cut from the items" * self.cut_from_items,
            f"{self.calls:,} calls, {self.calls_made:,} of them in this run: {cover.calls_per_item:.1f} per item "
            f"({cover.fewest} to {cover.most}), {cover.never_scored:,} items never scored",
            f"item vectors: {'the encoder’s' if self.factors is None else self.factors}",
        ]
        if self.fit is not None and self.fit["held_out_error"] is not None:
            r2 = self.fit["held_out_r2"]
            lines.append(
                f"error on {self.fit['held_out_entries']:,} held-out scores: {self.fit['held_out_error']:.4f}, "
                f"before the fit {self.fit['held_out_error_before']:.4f}"
                + ("" if r2 is None else f"; R² {r2:.2f}")
                + f" (epoch {self.fit['best_epoch']} of {self.fit['epochs']})"
            )
        lines.append("seconds: " + ", ".join(f"{step} {took:.1f}" for step, took in self.seconds.items()))
        return "\n".join(lines)


@dataclass(frozen=True)
class Built:
    """What an index is made of."""

    items: Items
    vectors: NDArray[Any]  # the encoder's
    queries: list[str]
    normalization: Normalization
    factors: Factors | None
    prior: Prior | None
    report: BuildReport
    bm25: Bm25 | None = None  # with its default settings, where a step fitted it


class Build:
    """One build; its steps are done when they are first needed. The settings are those of `Index.build`."""

    def __init__(
        self,
        items: Items,
        *,
        scorer: Scorer,
        encoder: Encoder,
        queries: Sequence[str] | None = None,
        sampling: Sampling | Sequence[Sampling] | None = None,
        factors: Method | None = None,
        prior: bool = False,
        signals: Sequence[str] = SIGNALS,
        retrievers: Sequence[Retriever] = (),
        work_dir: str | Path | None = None,
        chunk: int = CHUNK,
        seed: int = 0,
        device: str | None = None,
        engine: Engine = LOCAL,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(items, Items):
            raise InputError(f"items must be Items, as from Items.from_path(…). Got {type(items).__name__} instead.")
        check_positive("chunk", chunk)
        check_seed(seed)
        check_engine(engine)
        _check_parts(scorer, encoder, factors, keeps_vectors=work_dir is not None)
        self.items = items
        self.scorer = scorer
        self.encoder = encoder
        self.calls_made = 0
        self.cut_from_items = queries is None
        self._method = factors
        self._prior = prior
        self._own = {retriever.name: retriever for retriever in retrievers}
        self._signals = check_signals(signals, {*BUILT_IN, *self._own})
        if not prior and self._signals != SIGNALS:
            raise InputError(f"signals are what a prior is learned from: pass prior=True. Got {signals!r} without.")
        self._fitted: dict[str, Retriever] = {}
        self._seed = seed
        self.queries = self._choose_queries(queries)
        self.sampling = _as_list(sampling) or self._default_sampling()
        if isinstance(factors, Cur) and (prior or sampling is not None):
            raise InputError("CUR scores every item for every anchor: leave sampling and prior out.")
        self._work = None if work_dir is None else Path(work_dir)
        self._chunk = chunk
        self._device = device
        self._engine = engine
        self._progress = progress
        engine.check(scorer, encoder)
        self.seconds: dict[str, float] = {}

    def run(self) -> Built:
        """All steps."""
        entries = self.score()
        _ = self.vectors, self.query_vectors  # steps of their own
        with self._timing("normalise"):
            normalization = self._normalize(entries)
        factors, fit = None, None
        if self._method is not None:
            with self._timing("factorise"):
                method = self._method
                if self._device is not None and not isinstance(method, Cur) and method.device is None:
                    method = replace(method, device=self._device)
                factors, fit = fit_factors(
                    method, entries, self.query_vectors, self.vectors, normalization, progress=self._progress
                )
        prior = None
        if self._prior:
            with self._timing("prior"):
                vectors = self.vectors if factors is None else factors.items
                prior = fit_prior(entries, self._signals, self._propose, vectors, seed=self._seed)
        report = BuildReport(
            items=len(self.items),
            queries=len(self.queries),
            cut_from_items=self.cut_from_items,
            calls=len(entries),
            calls_made=self.calls_made,
            coverage=Coverage.of(entries.pairs),
            factors=None if factors is None else factors.kind,
            fit=fit,
            seconds=self.seconds,
        )
        bm25 = None if "bm25" in self._own else self._fitted.get("bm25")
        built = self.items, self.vectors, self.queries, normalization, factors, prior, report
        return Built(*built, bm25 if isinstance(bm25, Bm25) else None)

    def score(self, part: tuple[int, int] = (0, 1)) -> SparseScores:
        """Sample the pairs and score them: all, or as worker `i` of `n` its part of them."""
        if self._work is not None:  # what is wrong with its log shows before anything is encoded
            open_score_log(self._work / "scores", self.scorer)
        pairs = self.pairs
        with self._timing("score"):
            return score_build(
                pairs,
                self.queries,
                self.items,
                self.scorer,
                work_dir=self._work,
                chunk=self._chunk,
                part=part,
                engine=self._engine,
                on_calls=self._count_calls,
                progress=self._progress,
            )

    def _count_calls(self, calls: int) -> None:
        self.calls_made += calls

    @cached_property
    def vectors(self) -> NDArray[Any]:
        """(items, dim) the encoder's; in the work folder, where there is one."""
        with self._timing("encode items"):
            path = self.vectors_path
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            return encode_items(self.items, self.encoder, path=path, engine=self._engine, progress=self._progress)

    @property
    def vectors_path(self) -> Path | None:
        """Where the work folder keeps the items' vectors."""
        if self._work is None:
            return None
        encoder = blake2b(self.encoder.fingerprint.encode(), digest_size=4).hexdigest()
        return self._work / f"vectors-{self.items.fingerprint[:12]}-{encoder}.npy"

    @cached_property
    def query_vectors(self) -> Vectors:
        """(train queries, dim) the encoder's."""
        dim = self.vectors.shape[1]
        with self._timing("encode queries"):
            parts = [np.empty((0, dim), np.float32)]
            for start in range(0, len(self.queries), QUERIES_AT_ONCE):
                some = self.queries[start : start + QUERIES_AT_ONCE]
                parts.append(check_vectors(self.encoder.encode_queries(some), some, dim=dim))
                if self._progress is not None:
                    self._progress("encode queries", start + len(some), len(self.queries))
            return np.concatenate(parts)

    @cached_property
    def pairs(self) -> Pairs:
        """What is scored."""
        if isinstance(self._method, Cur):
            return all_pairs(len(self.queries), len(self.items))
        near = any(isinstance(plan, PerItem) and plan.nearest for plan in self.sampling)
        if near or any(isinstance(plan, PerQuery) and plan.retriever for plan in self.sampling):
            _ = self.vectors, self.query_vectors  # steps of their own
        with self._timing("sample pairs"):
            search = ExactSearch(self.query_vectors, device=self._device) if near else None
            return merge(*(self._sample(plan, search) for plan in self.sampling))

    def _sample(self, plan: Sampling, search: ExactSearch | None) -> Pairs:
        sizes = {"n_queries": len(self.queries), "n_items": len(self.items)}
        if isinstance(plan, PerQuery):
            return sample_per_query(plan, **sizes, propose=self._propose)
        return sample_per_item(plan, **sizes, queries=search, item_vectors=self.vectors if plan.nearest else None)

    def _propose(self, name: str, n: int) -> list[Proposal]:
        found: list[Proposal] = []
        if name == "dense" and name not in self._own:  # the queries' vectors are there already
            search = ExactSearch(self.vectors, device=self._device)
            for start in range(0, len(self.queries), QUERIES_AT_ONCE):
                found += search.search(self.query_vectors[start : start + QUERIES_AT_ONCE], n)
            return found
        retriever = self._fit(name)
        for start in range(0, len(self.queries), QUERIES_AT_ONCE):
            found += retriever.retrieve(self.queries[start : start + QUERIES_AT_ONCE], n)
        return found

    def _fit(self, name: str) -> Retriever:
        """The retriever of this name; a sampling and the prior may want the same one."""
        if name not in self._fitted:
            self._fitted[name] = (self._own.get(name) or self._built_in(name)).fit(self.items)
        return self._fitted[name]

    def _built_in(self, name: str) -> Retriever:
        if name == "fused":
            return Fused([self._fit("dense"), self._fit("bm25")])
        if name == "dense":
            return Dense(self.encoder, vectors=self.vectors, device=self._device)
        return Bm25() if name == "bm25" else TfIdf()

    def _normalize(self, entries: SparseScores) -> Normalization:
        """α and β from the scores that a hundred of the train queries have."""
        asked = np.flatnonzero(np.bincount(entries.pairs.queries))
        is_chosen = np.zeros(len(self.queries), np.bool_)
        is_chosen[np.random.default_rng(self._seed).permutation(asked)[:NORMALIZATION_QUERIES]] = True
        chosen = entries.take(is_chosen[entries.pairs.queries])
        estimates = np.empty(len(chosen), np.float32)
        for start in range(0, len(chosen), CHUNK):
            part = chosen.pairs.take(slice(start, start + CHUNK))
            items = np.asarray(self.vectors[part.rows], np.float32)
            estimates[start : start + len(part)] = np.einsum("ij,ij->i", self.query_vectors[part.queries], items)
        return Normalization.fit(chosen.scores, estimates)

    def _choose_queries(self, given: Sequence[str] | None) -> list[str]:
        """The train queries, each once."""
        if given is None:
            return cut_queries(self.items, self._pseudo_queries, seed=self._seed)
        _check_queries(given)
        found = list(dict.fromkeys(given))
        if isinstance(self._method, Cur):
            return self._method.choose_anchors(found)
        if self._only_normalizes and len(found) > NORMALIZATION_QUERIES:  # more would serve nothing
            chosen = np.random.default_rng(self._seed).choice(len(found), NORMALIZATION_QUERIES, replace=False)
            return [found[number] for number in np.sort(chosen)]
        return found

    @property
    def _pseudo_queries(self) -> int:
        if isinstance(self._method, Cur):
            return self._method.anchors
        return NORMALIZATION_QUERIES if self._only_normalizes else PSEUDO_QUERIES

    @property
    def _only_normalizes(self) -> bool:
        return self._method is None and not self._prior

    def _default_sampling(self) -> list[Sampling]:
        """Every item gets some calls where something of its own is learned; else items at random for every query."""
        if self._prior:
            return prior_sampling(CALLS_PER_ITEM, n_queries=len(self.queries), n_items=len(self.items), seed=self._seed)
        if self._method is None or isinstance(self._method, Inductive):
            return [PerQuery(seed=self._seed)]
        return [PerItem(seed=self._seed)]

    @contextmanager
    def _timing(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


def prior_sampling(calls_per_item: int, *, n_queries: int, n_items: int, seed: int = 0) -> list[Sampling]:
    """About so many calls per item, for a prior: one of them for what retrievers find, the others at random."""
    best = PerQuery(items=max(1, n_items // n_queries), retriever="fused", seed=seed)
    at_random: list[Sampling] = [PerItem(queries=calls_per_item - 1, seed=seed)] if calls_per_item > 1 else []
    return [*at_random, best]


def score_build(
    pairs: Pairs,
    queries: Sequence[str],
    items: Items,
    scorer: Scorer,
    *,
    work_dir: Path | None,
    chunk: int = CHUNK,
    part: tuple[int, int] = (0, 1),
    engine: Engine = LOCAL,
    on_calls: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> SparseScores:
    """The entries of `pairs`, kept in the score log of the work folder where there is one."""
    if work_dir is not None:
        log = open_score_log(work_dir / "scores", scorer)
        where: dict[str, Any] = {"engine": engine, "on_calls": on_calls, "progress": progress}
        return score_pairs_into(log, pairs, queries, items, scorer, chunk=chunk, part=part, **where)
    if part != (0, 1):
        raise InputError("several workers need a work_dir that they share. Got none.")
    scores, done = np.empty(len(pairs), np.float32), 0
    with closing(engine.run(score_pairs, scorer, _cut_calls(pairs, queries, items, chunk))) as scored:
        for start, some in scored:
            scores[start : start + len(some)] = some
            done += len(some)
            if on_calls is not None:
                on_calls(len(some))
            if progress is not None:
                progress(STEP, done, len(pairs))
    return SparseScores(pairs, scores)


def _cut_calls(pairs: Pairs, queries: Sequence[str], items: Items, chunk: int) -> Iterator[Job]:
    """The texts of each call, numbered by its first pair."""
    for start in range(0, len(pairs), chunk):
        some = pairs.take(slice(start, start + chunk))
        yield start, ([queries[number] for number in some.queries.tolist()], items.texts_of(some.rows))


def _check_queries(queries: object) -> None:
    if isinstance(queries, str) or not isinstance(queries, Sequence):
        what = "one string" if isinstance(queries, str) else type(queries).__name__
        raise InputError(f"queries must be a list of train queries. Got {what} instead.")
    if not len(queries):
        raise InputError("queries must hold at least one train query. Leave it out to cut some from the items.")
    for position, query in enumerate(queries):
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"a query must be a string with something in it. Query {position} is {query!r}.")
        if not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query):
            raise InputError(f"a query must be of whole characters. Query {position} has a lone surrogate: {query!r}.")


def _as_list(sampling: Sampling | Sequence[Sampling] | None) -> list[Sampling]:
    plans: list[Any] = [] if sampling is None else [*sampling] if isinstance(sampling, list | tuple) else [sampling]
    for plan in plans:
        if not isinstance(plan, PerQuery | PerItem):
            raise InputError(f"sampling must be PerQuery(…), PerItem(…) or a list of them. Got {plan!r} instead.")
        if isinstance(plan, PerQuery) and plan.retriever not in (None, *BUILT_IN):
            raise InputError(
                f"a sampling's retriever must be dense, bm25, tfidf or fused. Got {plan.retriever!r} instead."
            )
    return plans


def _check_parts(scorer: object, encoder: object, factors: object, *, keeps_vectors: bool) -> None:
    """What would show only after hours of scoring is said before."""
    if not isinstance(scorer, Scorer):
        raise InputError(f"scorer must be a Scorer. Got {type(scorer).__name__} instead: see function_scorer.")
    if not isinstance(encoder, Encoder):
        raise InputError(f"encoder must be an Encoder. Got {type(encoder).__name__} instead: see function_encoder.")
    if not isinstance(factors, Method | None):
        raise InputError(f"factors must be Transductive(…), Inductive(…), Cur(…) or None. Got {factors!r} instead.")
    if keeps_vectors and is_unnamed(encoder.fingerprint):
        raise InputError("the encoder has no name to store vectors under: give function_encoder a fingerprint.")
