"""Index build: the steps from items and train queries to vectors, factors, a prior and a calibration."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_engine, check_positive, check_seed, check_signals, invalid
from crossknn.encoders.adapter import AdaptedEncoder, Adapter, without_adapter
from crossknn.encoders.base import check_vectors
from crossknn.encoders.item_encoding import encode_items
from crossknn.encoders.known_vectors import check_known_vectors
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError, MissingExtra
from crossknn.indexing.factorization.factors import Cur, Factors, Method, fit_factors
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.trainer import FitReport, batches
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.pair_scoring import CHUNK, open_score_log, score_pairs_into
from crossknn.indexing.prior_fit import fit_prior
from crossknn.indexing.recall_calibration import (
    MIN_ITEMS,
    MIN_QUERIES,
    QUERIES,
    Calibrated,
    calibrate,
    most_calls,
)
from crossknn.indexing.report import BuildReport, Coverage
from crossknn.indexing.sampling import (
    PerItem,
    PerQuery,
    Sampling,
    cut_queries,
    merge,
    prior_sampling,
    sample_per_item,
    sample_per_query,
)
from crossknn.indexing.score_matrix import Pairs, SparseScores, all_pairs
from crossknn.indexing.teaching.settings import Teaching
from crossknn.indexing.teaching.stored_encoder import StoredEncoder
from crossknn.indexing.teaching.teach import KnownList, Taught, teach
from crossknn.items.items import Items
from crossknn.models.fingerprints import is_unnamed
from crossknn.models.specs import spec_of
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.cache import CandidateCache
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.registry import BUILT_IN, RetrieverRegistry
from crossknn.strategies.base import SearchContext
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import SIGNALS, Prior
from crossknn.types import Encoder, Engine, Progress, Proposal, Retriever, Scorer, Vectors
from crossknn.vectors.exact import ExactSearch

PSEUDO_QUERIES = 500
NORMALIZATION_QUERIES = 100  # the paper's, for α and β
RETRIEVERS = tuple(name for name in BUILT_IN if name != "random")  # that samplings and signals may name
CALLS_PER_ITEM = 8  # of a build with a prior
TRAIN_PER_HELD_OUT = 5  # train queries for each that is set aside for the calibration
TAUGHT_QUERIES = 1_000  # of a teaching, whose scores α, β and the prior are fitted to
FRESH_QUERIES = 20  # held out by a teaching, at least, that the prior is fitted to
DEFAULT_FACTORS = Transductive(method="als", ridge=3.0, epochs=5)  # without teaching; see benchmarks/README.md
BM25_MODULES = ("bm25s", "Stemmer")  # which the default signals of a prior need
QUERY_BATCH = 1024  # queries encoded or retrieved for together

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Build:
    """One build, whose steps run when they are first needed. The settings are those of `Index.build`.

    Attributes:
        method: Of the factorization; None for the encoder's vectors.
        with_prior: Whether a prior is fitted.
        teaching: Settings of the teaching; None for the encoder as it came.
        calibrate: Whether expected recall is calibrated; by default with a prior or a teaching.
        train_queries: Distinct; cut from the items if no `queries` were given.
        not_calibrated: Why a calibration that was wanted is left out.
        samplings: The given ones, or the default.
        encoder_spec: How to open the given encoder; None if it has no name.
        calls_made: So far.
        seconds: Of each step so far; saved in indexes, so that the names of steps do not change.
    """

    items: Items
    _: KW_ONLY
    scorer: Scorer
    encoder: Encoder
    queries: Sequence[str] | None = None
    sampling: Sampling | Sequence[Sampling] | None = None
    factors: Method | Literal["default"] | None = None
    prior: bool | Literal["default"] | None = False
    teach: Teaching | bool | None = False
    calibrate: bool | None = None
    searches: Sequence[KnownList] = ()
    signals: Sequence[str] = SIGNALS
    retrievers: Sequence[Retriever] = ()
    item_vectors: NDArray[Any] | None = None
    work_dir: str | Path | None = None
    chunk: int = CHUNK
    seed: int = 0
    device: str | None = None
    engine: Engine = LOCAL
    progress: Progress | None = None
    calls_made: int = field(default=0, init=False)
    seconds: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_items(self.items)
        if len(self.items) < 2:
            raise InputError("`items` must be at least two for an index, got one: nothing is learned from it.")
        check_positive("chunk", self.chunk)
        check_seed(self.seed)
        check_engine(self.engine)
        self._check_models()
        if self.item_vectors is not None:
            check_known_vectors(self.item_vectors, self.items, without_adapter(self.encoder))
        self.encoder_spec = spec_of(without_adapter(self.encoder))  # of the encoder that is taught, if one is
        self._given_encoder = without_adapter(self.encoder).fingerprint
        self.teaching = self._choose_teaching()
        self.method = self._choose_method()
        self.with_prior = self._choose_prior()
        self._registry = RetrieverRegistry(self.items, own=self.retrievers, fitted={"dense": self._fit_dense})
        self.signals = check_signals(self.signals, {*RETRIEVERS, *self._registry.own_names})
        if not self.with_prior and self.signals != SIGNALS:
            raise InputError(f"`signals` are what a prior is fitted to: pass prior=True, got {self.signals!r} without.")
        self.not_calibrated = self._check_calibration()
        self._held_out: list[str] = []  # for the calibration; a teaching has its own
        self.train_queries = self._choose_queries()
        self.samplings = self._check_samplings() or self._default_samplings()
        if isinstance(self.method, Cur) and (self.with_prior or self.sampling is not None):
            raise InputError("CUR scores every item for every anchor: leave out `sampling` and `prior`.")
        self._work_dir = None if self.work_dir is None else Path(self.work_dir)
        self._temporary: TemporaryDirectory[str] | None = None  # of a taught encoder
        self.engine.check(self.scorer, self.encoder)

    def run(self) -> BuildReport:
        """Run all steps."""
        taught = self.taught
        entries = self.entries
        _ = self.vectors, self.query_vectors, self.normalization  # timed as steps of their own
        factors, fit = self.fitted
        _ = self.fitted_prior
        calibrated = self.calibrated
        further_calls = 0 if calibrated is None else calibrated.report.calls
        return BuildReport(
            items=len(self.items),
            queries=len(self.train_queries),
            cut_from_items=self.queries is None,
            calls=(len(entries) if taught is None else taught.report.calls) + further_calls,
            calls_made=self.calls_made,
            coverage=Coverage.of(entries.pairs if taught is None else taught.entries.pairs),
            factors=None if factors is None else factors.kind,
            fit=fit,
            seconds=self.seconds,
            teaching=None if taught is None else taught.report,
            calibration=None if calibrated is None else calibrated.report,
            not_calibrated=self.not_calibrated,
        )

    @cached_property
    def taught(self) -> Taught | None:
        """The result of the teaching, whose encoder and queries the other steps use from then on."""
        if self.teaching is None:
            return None
        self._base_encoder = self.encoder.fingerprint
        folder = None
        if self._work_dir is None:
            self._temporary = TemporaryDirectory(prefix="crossknn-teaching-")
            folder = Path(self._temporary.name) / "encoder"
        frozen = None if self.teaching.student == "encoder" else self.unadapted_vectors
        with self._timing("teach"):
            taught = teach(
                self.items,
                folder,
                scorer=self.scorer,
                encoder=self.encoder,
                item_vectors=frozen,
                queries=self.queries or (),
                searches=self.searches,
                settings=self.teaching,
                work_dir=self._work_dir,
                chunk=self.chunk,
                engine=self.engine,
                on_calls=self._count_calls,
                progress=self.progress,
            )
        self.encoder = taught.encoder
        self.train_queries, self.entries, held_out = taught.some_entries(TAUGHT_QUERIES)
        self._held_out = self._choose_held_out([self.train_queries[number] for number in held_out])
        chosen = set(self._held_out)
        self._fresh_queries = np.array([n for n in held_out if self.train_queries[n] not in chosen], np.int64)
        return taught

    @property
    def stored_encoder(self) -> StoredEncoder | Adapter | None:
        """The taught encoder or its adapter as an index holds it; None if there is none."""
        if isinstance(self.encoder, AdaptedEncoder):
            return self.encoder.adapter
        if self.taught is None or not self.taught.report.helped or not isinstance(self.encoder, SentenceEncoder):
            return None
        return StoredEncoder.of(self.encoder, base=self._base_encoder)

    def score(self, part: tuple[int, int] = (0, 1)) -> SparseScores:
        """Sample the pairs and score them: all of them, or as worker `i` of `n` its part."""
        if self.teaching is not None:
            raise InputError("a build with teaching chooses its pairs as it goes: score it as a whole.")
        log = open_score_log(self._work_dir, self.scorer)  # one that cannot be used raises before anything is encoded
        pairs = self.pairs
        with self._timing("score"):
            return score_pairs_into(
                log,
                pairs,
                self.train_queries,
                self.items,
                self.scorer,
                chunk=self.chunk,
                part=part,
                engine=self.engine,
                on_calls=self._count_calls,
                progress=self.progress,
            )

    def _count_calls(self, calls: int) -> None:
        self.calls_made += calls

    @cached_property
    def entries(self) -> SparseScores:
        """The scores of all pairs."""
        return self.score()

    @cached_property
    def vectors(self) -> NDArray[Any]:
        """(items, dim) the encoder's, with its adapter if it has one."""
        encoder, vectors = self.encoder, self.unadapted_vectors
        if not isinstance(encoder, AdaptedEncoder):
            return vectors
        with self._timing("encode items"):
            return encoder.adapter.adapt_items(vectors, device=self.device)

    @cached_property
    def unadapted_vectors(self) -> NDArray[Any]:
        """(items, dim) the encoder's without an adapter, mapped from the work folder if there is one."""
        with self._timing("encode items"):
            path, encoder = self.vectors_path, without_adapter(self.encoder)
            known = self._known_vectors
            return encode_items(self.items, encoder, path=path, known=known, engine=self.engine, progress=self.progress)

    @property
    def _known_vectors(self) -> NDArray[Any] | None:
        """The given vectors, as long as the encoder is the given one: a taught encoder makes others."""
        return None if without_adapter(self.encoder).fingerprint != self._given_encoder else self.item_vectors

    @property
    def vectors_path(self) -> Path | None:
        """The file of `unadapted_vectors` in the work folder."""
        if self._work_dir is None:
            return None
        maker = blake2b(without_adapter(self.encoder).fingerprint.encode(), digest_size=4)
        if self._known_vectors is not None:
            maker.update(self._known_digest)
        return self._work_dir / f"vectors-{self.items.fingerprint[:12]}-{maker.hexdigest()}.npy"

    @cached_property
    def _known_digest(self) -> bytes:
        found, known = blake2b(digest_size=8), np.asarray(self.item_vectors)
        for batch in batches(len(known), CHUNK):
            found.update(np.ascontiguousarray(known[batch]).data)
        return found.digest()

    @cached_property
    def query_vectors(self) -> Vectors:
        """(train queries, dim) the encoder's."""
        dim, count = self.vectors.shape[1], len(self.train_queries)
        with self._timing("encode queries"):
            parts = [np.empty((0, dim), np.float32)]
            for batch in batches(count, QUERY_BATCH):
                texts = self.train_queries[batch]
                parts.append(check_vectors(self.encoder.encode_queries(texts), texts, dim=dim))
                if self.progress is not None:
                    self.progress("encode queries", batch.stop, count)
            return np.concatenate(parts)

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs to score."""
        if isinstance(self.method, Cur):
            return all_pairs(len(self.train_queries), len(self.items))
        nearest = any(isinstance(plan, PerItem) and plan.nearest for plan in self.samplings)
        if nearest or any(isinstance(plan, PerQuery) and plan.retriever for plan in self.samplings):
            _ = self.vectors, self.query_vectors  # timed as steps of their own
        with self._timing("sample pairs"):
            search = ExactSearch(self.query_vectors, device=self.device) if nearest else None
            return merge(*(self._sample(plan, search) for plan in self.samplings))

    def sample_at_random(self, plans: Sequence[Sampling]) -> Pairs:
        """The pairs of samplings that neither vectors nor retrievers choose."""
        return merge(*(self._sample(plan, None) for plan in plans))

    def _sample(self, plan: Sampling, search: ExactSearch | None) -> Pairs:
        sizes = {"n_queries": len(self.train_queries), "n_items": len(self.items)}
        if isinstance(plan, PerQuery):
            return sample_per_query(plan, **sizes, propose=self._propose)
        return sample_per_item(plan, **sizes, queries=search, item_vectors=self.vectors if plan.nearest else None)

    @cached_property
    def normalization(self) -> Normalization:
        """α and β from the scores of a hundred train queries."""
        with self._timing("normalize"):
            entries = self.entries
            scored = np.flatnonzero(np.bincount(entries.pairs.queries))
            is_chosen = np.zeros(len(self.train_queries), np.bool_)
            is_chosen[np.random.default_rng(self.seed).permutation(scored)[:NORMALIZATION_QUERIES]] = True
            chosen = entries.take(is_chosen[entries.pairs.queries])
            estimates = np.empty(len(chosen), np.float32)
            for batch in batches(len(chosen), CHUNK):
                part = chosen.pairs.take(batch)
                items = np.asarray(self.vectors[part.rows], np.float32)
                estimates[batch] = np.einsum("ij,ij->i", self.query_vectors[part.queries], items)
            return Normalization.fit(chosen.scores, estimates)

    @cached_property
    def fitted(self) -> tuple[Factors | None, FitReport | None]:
        """The factors and their training statistics."""
        method = self.method
        if method is None:
            return None, None
        with self._timing("factorize"):
            if self.device is not None and not isinstance(method, Cur) and method.device is None:
                method = replace(method, device=self.device)
            vectors = self.query_vectors, self.vectors
            return fit_factors(method, self.entries, *vectors, self.normalization, progress=self.progress)

    @cached_property
    def fitted_prior(self) -> Prior | None:
        """The prior of posterior search over the fitted vectors, or the encoder's."""
        if not self.with_prior:
            return None
        with self._timing("prior"):
            factors, _ = self.fitted
            vectors = self.vectors if factors is None else factors.items
            held_out = self._untrained_queries()
            return fit_prior(self.entries, self.signals, self._propose, vectors, held_out=held_out, seed=self.seed)

    def _untrained_queries(self) -> NDArray[np.int64] | None:
        """Numbers of the train queries that a teaching has held out; None where all are, or too few to fit a prior."""
        taught = self.taught
        if taught is None or not taught.report.helped or len(self._fresh_queries) < FRESH_QUERIES:
            return None
        return self._fresh_queries

    @property
    def calibrates(self) -> bool:
        """Whether expected recall will be calibrated."""
        return bool(self.calibrate) and self.not_calibrated is None

    @property
    def calibration_calls(self) -> int:
        """Calls of the calibration, at most."""
        queries = len(self._held_out)
        if self.teaching is not None:
            held_out = self.teaching.held_out(self.teaching.lists)
            queries = min(QUERIES, held_out // 2 if self.with_prior else held_out)
        if not self.calibrates or queries < MIN_QUERIES:
            return 0
        return most_calls(len(self.items), queries, len(self.signals))

    @cached_property
    def calibrated(self) -> Calibrated | None:
        """The calibration of expected recall, on queries that nothing else was learned from."""
        taught, queries = self.taught, self._held_out  # a teaching holds out its own
        if self.calibrates and len(queries) < MIN_QUERIES:
            self.not_calibrated = f"{len(queries)} held-out queries are fewer than {MIN_QUERIES}"
        if not self.calibrates:
            return None
        log = open_score_log(self._work_dir, self.scorer)
        score = partial(
            score_pairs_into,
            log,
            scorer=self.scorer,
            chunk=self.chunk,
            engine=self.engine,
            on_calls=self._count_calls,
            progress=self.progress,
        )
        try:
            with self._timing("calibrate"):
                context = self._search_context(queries)
                known = None if taught is None else self._known_scores()
                return calibrate(queries, self.items, context, score, signals=self.signals, known=known, seed=self.seed)
        except MissingExtra as error:
            self.not_calibrated = str(error)
            return None

    def _choose_held_out(self, queries: list[str]) -> list[str]:
        """For the calibration: of the queries that a teaching held out, half if a prior is fitted to the others."""
        if not self.calibrates:
            return []
        count = min(QUERIES, len(queries) // 2 if self.with_prior else len(queries))
        chosen = np.random.default_rng((self.seed, 7)).permutation(len(queries))[:count]
        return [queries[number] for number in np.sort(chosen)]

    def _known_scores(self) -> list[dict[int, float]]:
        """By row, the scores that the teaching has for the queries of the calibration."""
        known: dict[str, dict[int, float]] = {query: {} for query in self._held_out}
        pairs, scores = self.entries.pairs, self.entries.scores
        chosen = np.isin(pairs.queries, [n for n, query in enumerate(self.train_queries) if query in known])
        for number, row, score in zip(pairs.queries[chosen], pairs.rows[chosen], scores[chosen], strict=True):
            known[self.train_queries[number]][int(row)] = float(score)
        return list(known.values())

    def _search_context(self, queries: list[str]) -> SearchContext:
        """What a search of the index sees of these queries."""
        factors, prior = self.fitted[0], self.fitted_prior
        vectors = check_vectors(self.encoder.encode_queries(queries), queries, dim=self.vectors.shape[1])
        search = ExactSearch(self.vectors if factors is None else factors.items, device=self.device)
        augmented = search if prior is None else search.with_columns(*prior.item_columns)
        return SearchContext(
            queries=len(queries),
            items=len(self.items),
            propose=CandidateCache(queries, lambda name: self._registry.get(name or "fused"), None),
            query_vectors=lambda: vectors if factors is None else factors.query_vectors(vectors),
            item_vectors=lambda: search,
            augmented_vectors=lambda: augmented,
            normalization=self.normalization,
            prior=prior,
            signals=tuple(self.signals),
        )

    @property
    def bm25(self) -> Bm25 | None:
        """The built-in BM25 retriever, if a step fitted it."""
        bm25 = None if "bm25" in self._registry.own_names else self._registry.ready.get("bm25")
        return bm25 if isinstance(bm25, Bm25) else None

    def _fit_dense(self) -> Retriever:
        return Dense(self.encoder, vectors=self.vectors, device=self.device).fit(self.items)

    def _propose(self, name: str, n: int) -> list[Proposal]:
        """The top n rows of every train query."""
        parts = batches(len(self.train_queries), QUERY_BATCH)
        if name == "dense" and name not in self._registry.own_names:  # the queries are encoded already
            search = ExactSearch(self.vectors, device=self.device)
            return [proposal for part in parts for proposal in search.search(self.query_vectors[part], n)]
        retriever = self._registry.get(name)
        return [proposal for part in parts for proposal in retriever.retrieve(self.train_queries[part], n)]

    def _choose_queries(self) -> list[str]:
        only_normalizes = self.method is None and not self.with_prior
        if self.queries is None:
            count = NORMALIZATION_QUERIES if only_normalizes else PSEUDO_QUERIES
            count = self.method.anchors if isinstance(self.method, Cur) else count
            cut = cut_queries(self.items, count, seed=self.seed)
            if self.calibrates and self.teaching is None:
                others = cut_queries(self.items, 2 * QUERIES, seed=self.seed + 1)
                self._held_out = [query for query in others if query not in set(cut)][:QUERIES]
            return cut
        _check_queries(self.queries)
        distinct = list(dict.fromkeys(self.queries))
        if isinstance(self.method, Cur):
            return self.method.choose_anchors(distinct)
        if self.calibrates and self.teaching is None:
            distinct = self._set_aside(distinct)
        if only_normalizes and len(distinct) > NORMALIZATION_QUERIES:
            chosen = np.random.default_rng(self.seed).choice(len(distinct), NORMALIZATION_QUERIES, replace=False)
            return [distinct[number] for number in np.sort(chosen)]
        return distinct

    def _check_calibration(self) -> str | None:
        """Why a calibration that is wanted must be left out."""
        if self.calibrate not in (None, True, False):
            raise invalid("calibrate", "True, False or None", self.calibrate)
        without_encoder = isinstance(self.method, Transductive) and self.method.init == "random"
        if isinstance(self.method, Cur) or without_encoder:
            if self.calibrate:
                raise InputError("`calibrate` is for Posterior, which these vectors do not allow. Leave it out.")
            self.calibrate = False
        if self.calibrate is None:
            self.calibrate = self.with_prior or self.teaching is not None
            spec = spec_of(self.scorer)
            if self.prior == "default" and self.teaching is None and spec is not None and spec.is_server:
                return "its calls, of a server, have to be asked for (`calibrate`)"
        if self.calibrate and len(self.items) < MIN_ITEMS:
            return f"{len(self.items):,} items are fewer than {MIN_ITEMS:,}"
        return None

    def _set_aside(self, queries: list[str]) -> list[str]:
        """The train queries without a fifth of them, at most fifty, on which expected recall is calibrated."""
        count = min(QUERIES, len(queries) // TRAIN_PER_HELD_OUT)
        if count < MIN_QUERIES:
            self.not_calibrated = f"{len(queries):,} train queries are fewer than {TRAIN_PER_HELD_OUT * MIN_QUERIES:,}"
            return queries
        chosen = np.zeros(len(queries), np.bool_)
        chosen[np.random.default_rng((self.seed, 7)).permutation(len(queries))[:count]] = True
        self._held_out = [query for query, held in zip(queries, chosen, strict=True) if held]
        return [query for query, held in zip(queries, chosen, strict=True) if not held]

    def _default_samplings(self) -> list[Sampling]:
        """Calls for every item if something is fitted per item; else random items for every query."""
        if self.with_prior:
            sizes = {"n_queries": len(self.train_queries), "n_items": len(self.items)}
            return prior_sampling(CALLS_PER_ITEM, **sizes, seed=self.seed)
        if self.method is None or isinstance(self.method, Inductive):
            return [PerQuery(seed=self.seed)]
        return [PerItem(seed=self.seed)]

    def _check_samplings(self) -> list[Sampling]:
        given: Any = self.sampling
        plans = [] if given is None else [*given] if isinstance(given, list | tuple) else [given]
        for plan in plans:
            if not isinstance(plan, PerQuery | PerItem):
                raise invalid("sampling", "PerQuery(…), PerItem(…) or a list of them", plan)
            if isinstance(plan, PerQuery) and plan.retriever is not None:
                check_choice("retriever", plan.retriever, RETRIEVERS)
        return plans

    def _check_models(self) -> None:
        """Raise now what would otherwise show after hours of scoring."""
        if not isinstance(self.scorer, Scorer):
            raise invalid("scorer", "a Scorer", self.scorer, "See function_scorer.")
        if not isinstance(self.encoder, Encoder):
            raise invalid("encoder", "an Encoder", self.encoder, "See function_encoder.")
        if self.factors != "default" and not isinstance(self.factors, Method | None):
            raise invalid("factors", "Transductive(…), Inductive(…), Cur(…) or None", self.factors)
        if self.work_dir is not None and is_unnamed(self.encoder.fingerprint):
            raise InputError(
                "`work_dir` needs an encoder with a name to store vectors under: give function_encoder a fingerprint."
            )

    def _choose_method(self) -> Method | None:
        if self.factors != "default":
            return self.factors
        return replace(DEFAULT_FACTORS, seed=self.seed) if self.teaching is None else None

    def _choose_prior(self) -> bool:
        """Whether to fit a prior; by default where that is possible and needs no more calls to fit.

        Not with a taught encoder, which has learned from the queries: it gains little by a prior.
        """
        if self.prior not in (True, False, None, "default"):
            raise invalid("prior", "True, False, None or 'default'", self.prior)
        if self.prior != "default" or self.signals != SIGNALS:
            return bool(self.prior)
        if isinstance(self.method, Cur) or (isinstance(self.method, Transductive) and self.method.init == "random"):
            return False
        scored = self.sampling is not None or self.teaching is not None or isinstance(self.method, Transductive)
        if not scored or (self.teaching is not None and self.teaching.student == "encoder"):
            return False
        missing = [module for module in BM25_MODULES if find_spec(module) is None]
        if missing:
            logger.warning("No prior is learned without %s: pip install 'crossknn[retrievers]'", missing[0])
            return False
        return True

    def _choose_teaching(self) -> Teaching | None:
        """The settings of the teaching, if there is to be one: by default where both models run on a GPU.

        Never by default with the scores of a server or a function, whose price is unknown.
        """
        wanted, encoder = self.teach, self.encoder
        on_gpu = isinstance(encoder, SentenceEncoder) and encoder.device.type == "cuda"
        if wanted is None:
            wanted = on_gpu and runs_on_gpu(self.scorer) and self.sampling is None and self.factors == "default"
        if wanted is False:
            return None
        if wanted is not True and not isinstance(wanted, Teaching):
            raise invalid("teach", "True, False, None or Teaching(…)", wanted)
        trainable = isinstance(encoder, SentenceEncoder)
        if isinstance(wanted, Teaching) and wanted.student == "encoder" and not trainable:
            raise invalid(
                "teach",
                "of an adapter for an encoder without weights that can be trained",
                wanted.student,
                'Give Teaching(student="adapter"), or "query-adapter" where item vectors cannot change.',
            )
        if self.sampling is not None or isinstance(self.factors, Cur):
            raise InputError("`teach` chooses the pairs to score: leave out `sampling` and CUR.")
        if isinstance(wanted, Teaching):
            return wanted
        if isinstance(encoder, SentenceEncoder):
            return Teaching.default(len(self.items), device=str(encoder.device), seed=self.seed)
        return Teaching.default(len(self.items), student="adapter", device=self.device, seed=self.seed)

    @contextmanager
    def _timing(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


def runs_on_gpu(scorer: Scorer) -> bool:
    """Whether a scorer is a local model on a GPU, cached or not."""
    device = getattr(getattr(scorer, "scorer", scorer), "device", None)
    return getattr(device, "type", None) == "cuda"


def check_items(items: object) -> None:
    """Raise `InputError` unless `items` are `Items`."""
    if not isinstance(items, Items):
        raise InputError(f"`items` must be Items, as from Items.from_path(…), got {type(items).__name__}.")


def _check_queries(queries: object) -> None:
    if isinstance(queries, str) or not isinstance(queries, Sequence):
        raise invalid("queries", "a list of train queries", queries)
    if not len(queries):
        raise InputError("`queries` must hold at least one train query. Leave it out to cut some from the items.")
    for position, query in enumerate(queries):
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"`queries` must be non-blank strings, got {query!r} at position {position}.")
        if not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query):
            raise InputError(
                f"`queries` must be valid Unicode, got a lone surrogate at position {position}: {query!r}."
            )
