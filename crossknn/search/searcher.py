"""Searcher: searches an index, or plain items, for the highest scores of a cross-encoder."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, check_queries, invalid
from crossknn._progress import DefaultProgress, choose_progress, end_progress
from crossknn.errors import EncoderError, InputError, ScorerError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.retrievers.cache import CandidateCache
from crossknn.retrievers.simple import Random
from crossknn.scorers.base import innermost
from crossknn.search.calibration import Judgments, ScoreCalibration, check_judged, group_judgments
from crossknn.search.fusion import SCORE, ScoreFusion, check_weights, equal_weights, find_relevant, fit_weights
from crossknn.search.hit_selection import Selection
from crossknn.search.options import SearchOptions, choose_k, default_strategy
from crossknn.search.resources import SearchResources
from crossknn.search.results import Hits
from crossknn.search.round_choice import MIN_ROUND_TRIP, RoundTimes, seconds_between, with_rounds
from crossknn.search.round_scorer import RoundScorer
from crossknn.search.search_run import SearchRun
from crossknn.strategies.base import RoundScores, SearchContext, Strategy, drive
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.types import (
    Encoder,
    Filter,
    Mask,
    Progress,
    Proposal,
    Retriever,
    Rows,
    Scorer,
    SharedScorer,
    Store,
    VectorSearch,
)

if TYPE_CHECKING:
    import torch

REHEARSED_CALLS, REHEARSED_CHARACTERS = 20, 100  # of the search that `prepare` runs through
TIMED_CALLS = 3  # of the scorer, which `prepare` times
FIT_BATCH = 64  # queries searched together to fit rank weights


class Searcher:
    """Searches an index, or plain items, for the highest scores of `scorer`.

    It may be used from several threads; the scorer is called by one at a time, unless it is a `SharedScorer`.

    Args:
        items: An `Index`, which brings vectors, α and β, and maybe a prior; `Items`; or a `Store`, which has items and
            vectors.
        scorer: Any `Scorer`; called once per round for all queries of a search.
        encoder: Any `Encoder`. An index with a taught encoder uses that in place of none, and of the one that was
            taught. Without any there are no query vectors and no "dense" retriever.
        vectors: The item vectors, if you have them: an array, a tensor or a `VectorSearch`. Without them the items are
            encoded on first use.
        retrievers: Your own, in addition to "dense", "bm25", "tfidf", "random", "fused" (reciprocal rank fusion of
            dense and BM25) and, with an index that has them, "fitted" (the vectors learned from scores). They are
            fitted on first use. Yours is the first stage of every strategy that names none, or the reciprocal rank
            fusion of several; one that is named "dense" or "bm25" replaces that member of "fused" instead.
        normalization: α and β for `Axn` and `Tour`; `fit_normalization` estimates them.
        signals: Names of the retrievers whose features `Posterior` and `rank_by="fused"` use, by default "dense" and
            "bm25". The prior of an index has its own, and needs your retrievers of these names.
        rank_weights: Weights of "score" and of retrievers, by name, in `rank_by="fused"`; by default the score and the
            signals count the same. `fit_rank_weights` learns them from judgments.
        calibration: Gives hits their `probability`: what `fit_calibration` returned for this scorer, or its file.
        store: Makes a `VectorSearch` from an array of vectors, such as `FaissSearch`; by default `ExactSearch` on
            `device`.
        device: Where the item vectors are searched: "cpu" (default) or "cuda".
        check_models: Reject a scorer or encoder that the index was not built with.
        progress: Called as `progress(step, done, total)` while encoding and scoring. By default a bar on a terminal or
            in a notebook, and elsewhere a line in the log every 30 seconds, for long work but single searches; False
            for none.
    """

    def __init__(
        self,
        items: Items | Index | Store,
        *,
        scorer: Scorer,
        encoder: Encoder | None = None,
        vectors: VectorSearch | NDArray[Any] | torch.Tensor | None = None,
        retrievers: Iterable[Retriever] = (),
        normalization: Normalization | None = None,
        signals: Sequence[str] | None = None,
        rank_weights: Mapping[str, float] | None = None,
        calibration: ScoreCalibration | str | Path | None = None,
        store: Callable[[Any], VectorSearch] | None = None,
        device: str | None = None,
        check_models: bool = True,
        progress: Progress | bool | None = None,
    ) -> None:
        self.index = items if isinstance(items, Index) else None
        if isinstance(items, Index):
            if check_models:
                items.check_models(scorer=scorer, encoder=encoder)
            normalization = normalization or items.normalization
            encoder = items.choose_encoder(encoder, device=device)
            items = items.items
        elif isinstance(items, Store):
            vectors, items = items if vectors is None else vectors, items.items
        if not isinstance(items, Items):
            raise invalid("items", "an Index, a store, or Items, as from Items.from_path(…)", items)
        self.items = items
        self.scorer = scorer
        self.encoder = encoder
        self.normalization = normalization
        self.rank_weights = None if rank_weights is None else check_weights(rank_weights)
        self.calibration = calibration if isinstance(calibration, ScoreCalibration | None) else _load(calibration)
        if self.calibration is not None and check_models:
            self.calibration.check_scorer(scorer.fingerprint)
        self._progress = choose_progress(progress)
        self._resources = SearchResources(
            items,
            self.index,
            encoder=encoder,
            vectors=vectors,
            retrievers=retrievers,
            signals=signals,
            store=store,
            device=device,
            progress=self._progress,
        )
        self._scoring = threading.Lock()
        self._round_times = RoundTimes(remote=getattr(innermost(scorer), "remote", False))

    def search(
        self,
        query: str,
        *,
        k: int | None = None,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        diversity: float = 0.0,
    ) -> Hits:
        """The `k` best items for one query; see `search_many`."""
        options = SearchOptions(
            k, budget, strategy, filter, deadline, rank_by, stop_at, min_score, min_probability, diversity
        )
        return self._search([query], options)[0]

    def search_many(
        self,
        queries: Sequence[str],
        *,
        k: int | None = None,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        diversity: float = 0.0,
        cancelled: threading.Event | None = None,
    ) -> list[Hits]:
        """The `k` best items for each query; all queries are searched together, with one scorer call per round.

        Args:
            queries: Nonempty strings.
            k: Number of hits per query, at most the budget; by default 10, or a smaller budget.
            budget: Calls per query of the default strategy, by default 100. Pass this or `strategy`.
            strategy: By default `Posterior(budget)`; without query vectors `Rerank(budget)`.
            filter: Conditions on the items' fields, such as `{"section": "utils", "size": {"lt": 5000}}`; or ids that
                may be found, or a predicate on ids.
            deadline: Seconds for the whole call. When they are over, the best hits so far come back and `hits.stopped`
                is "deadline". Where fewer than `k` items were scored, the first stage's candidates follow in its order,
                with `hit.scored` False and a score of NaN.
            rank_by: Rank the scored items by "score", or by "fused", a weighted sum of score and retrievers
                (`rank_weights`).
            stop_at: Stop each query's search as soon as its expected recall (`hits.expected_recall`) reaches this; the
                strategy must be `Posterior`.
            min_score: Leave out hits of a lower score, and those that were not scored; there may be none left.
            min_probability: Likewise, by `hit.probability`; needs a calibration.
            diversity: Order hits by maximal marginal relevance; from 0 (off) to 1, the weight of similarity to earlier
                hits. It costs no calls and needs an encoder.
            cancelled: Ends the search after the scorer call in flight once another thread sets it.
        """
        options = SearchOptions(
            k, budget, strategy, filter, deadline, rank_by, stop_at, min_score, min_probability, diversity, cancelled
        )
        return self._search(queries, options)

    async def asearch(
        self,
        query: str,
        *,
        k: int | None = None,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        diversity: float = 0.0,
    ) -> Hits:
        """`search` without blocking the event loop. Cancelling the task ends the search after the call in flight."""
        options = SearchOptions(
            k, budget, strategy, filter, deadline, rank_by, stop_at, min_score, min_probability, diversity
        )
        (hits,) = [hits async for hits in self._astream(query, options, every_round=False)]
        return hits

    def stream(
        self,
        query: str,
        *,
        k: int | None = None,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        diversity: float = 0.0,
        cancelled: threading.Event | None = None,
    ) -> Iterator[Hits]:
        """The best items so far after each round; the last, which are `final`, are what `search` returns.

        Their `expected_recall` is known after every round with `stop_at`, and else of the last. Invalid arguments raise
        before the first round. A caller that has seen enough closes the iterator, or leaves its loop: the search
        is over then.
        """
        options = SearchOptions(
            k, budget, strategy, filter, deadline, rank_by, stop_at, min_score, min_probability, diversity, cancelled
        )
        run, hits = self._open_search([query], options)
        return self._stream(run, hits)

    def astream(
        self,
        query: str,
        *,
        k: int | None = None,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        rank_by: str = SCORE,
        stop_at: float | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        diversity: float = 0.0,
    ) -> AsyncGenerator[Hits, None]:
        """`stream` for `async for`, without blocking the event loop."""
        options = SearchOptions(
            k, budget, strategy, filter, deadline, rank_by, stop_at, min_score, min_probability, diversity
        )
        return self._astream(query, options)

    def _search(self, queries: Sequence[str], options: SearchOptions) -> list[Hits]:
        run, hits = self._open_search(queries, options)
        with self._running(run):
            while run.run_round():
                pass
            return hits()

    @contextmanager
    def _running(self, run: SearchRun) -> Iterator[None]:
        """At the end, end the search's span and progress, and keep the round trip of a first remote search."""
        try:
            yield
        except BaseException as error:
            run.end(error)
            raise
        finally:
            run.end()
            end_progress(self._progress)
            if self._round_times.remote and len(run.results) == 1 and MIN_ROUND_TRIP <= run.shortest_call < math.inf:
                self._round_times.measured_scoring(run.shortest_call)

    def _stream(self, run: SearchRun, hits: Callable[[], list[Hits]]) -> Iterator[Hits]:
        with self._running(run):
            unfinished = True
            while unfinished:
                unfinished = run.run_round()
                yield hits()[0]

    async def _astream(
        self, query: str, options: SearchOptions, *, every_round: bool = True
    ) -> AsyncGenerator[Hits, None]:
        cancelled = threading.Event()
        try:
            run, hits = await asyncio.to_thread(self._open_search, [query], replace(options, cancelled=cancelled))
            with self._running(run):
                unfinished = True
                while unfinished:
                    unfinished = await run.arun_round()
                    if every_round or not unfinished:
                        yield (await asyncio.to_thread(hits))[0]
        finally:
            cancelled.set()  # a scorer call in flight is the last one

    def _open_search(
        self, queries: Sequence[str], options: SearchOptions
    ) -> tuple[SearchRun, Callable[[], list[Hits]]]:
        """A search before its first round, and what gives its hits so far."""
        start = time.monotonic()
        queries = check_queries(queries)
        strategy = self._choose_strategy(options)
        selection = self._selection(choose_k(options.k, strategy.budget), options)
        allowed = None if options.filter is None else self.items.mask(options.filter)
        ends = None if options.deadline is None else start + options.deadline
        candidates = self._resources.candidates(queries, allowed)
        if options.rank_by != SCORE:
            selection = replace(selection, fusion=ScoreFusion(self._fusion_weights(), candidates))
        strategy, rounds_reason = with_rounds(strategy, self._round_times, options.deadline)
        limits = {"ends": ends, "cancelled": options.cancelled}
        run = self._open_run(queries, strategy, candidates, allowed, k=selection.k, **limits)
        run.rounds_reason = rounds_reason
        return run, partial(run.hits, selection, start)

    def _selection(self, k: int, options: SearchOptions) -> Selection:
        """Which of the scored items become hits; an error before any call where something for it is missing."""
        if options.min_probability is not None and self.calibration is None:
            raise InputError("`min_probability` needs a calibration: fit_calibration(judgments), or `calibration`.")
        return Selection(
            k=k,
            min_score=options.min_score,
            min_probability=options.min_probability,
            diversity=options.diversity,
            vectors=self._resources.encoder_vectors().take if options.diversity > 0 else None,
            calibration=self.calibration,
        )

    def _open_run(
        self,
        queries: Sequence[str],
        strategy: Strategy,
        candidates: CandidateCache,
        allowed: Mask | None = None,
        *,
        k: int | None = None,
        **limits: Any,
    ) -> SearchRun:
        context = self._resources.context(queries, candidates, allowed, normalization=self.normalization, k=k)
        calls = len(queries) * min(strategy.budget or context.reachable, context.reachable)
        scorer = self._round_scorer(queries, total_calls=calls, **limits)
        return SearchRun(strategy, context, scorer, candidates)

    def context(
        self, queries: Sequence[str], *, own_rows: Rows | None = None, allowed: Mask | None = None
    ) -> SearchContext:
        """What a strategy sees of these queries, to drive one with scores from elsewhere (`strategies.base.drive`).

        Args:
            queries: Nonempty strings.
            own_rows: The row of each query, where queries are items, which it does not find.
            allowed: (items,) True where an item may be found.
        """
        candidates = CandidateCache(queries, self._resources.retriever, allowed)
        context = self._resources.context(queries, candidates, allowed, normalization=self.normalization, k=None)
        if own_rows is None:
            return context

        def propose(name: str | None, n: int) -> tuple[str, list[Proposal]]:
            name, proposals = candidates(name, n + 1)
            return name, [one.without(own).first(n) for one, own in zip(proposals, own_rows.tolist(), strict=True)]

        return replace(context, propose=propose, own_rows=own_rows)

    def _round_scorer(self, queries: Sequence[str], **options: Any) -> RoundScorer:
        # A single search is over soon: its progress is for those who ask for it.
        silent = len(queries) == 1 and isinstance(self._progress, DefaultProgress)
        progress = None if silent else self._progress
        return RoundScorer(self.scorer, self.items, queries, lock=self._scoring, progress=progress, **options)

    def matches(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The (start, end) of each text's words that BM25 matches, to highlight them; none where it was not used."""
        return self._resources.matches(query, texts)

    @property
    def has_query_vectors(self) -> bool:
        """Whether queries have vectors in the space that strategies search."""
        return self._resources.has_query_vectors

    def prepare(self, *retrievers: str) -> None:
        """Do the work of the first search now: encode the items and fit these retrievers (by default the default).

        A search by the default strategy is run through with made scores, twice, and a model on this machine scores a
        pair, so that no later search is the first to load or compute anything. Nothing is sent to a server. The times
        that are measured decide the number of rounds of searches that name none.
        """
        for name in retrievers or (None,):
            self._resources.retriever(name)
        if self.encoder:
            self._resources.encoder_vectors()
        with suppress(EncoderError):  # of an encoder that knows the vectors of some queries only
            self._rehearse()
            self._round_times.measured_outside(self._rehearse())
        self._rehearse_scorer()

    def _rehearse(self) -> list[float]:
        """Search with made scores; the seconds of each round but the first."""
        queries = [self.items.text(0)[:REHEARSED_CHARACTERS].strip() or "none"]
        candidates = self._resources.candidates(queries, None)
        context = self._resources.context(queries, candidates, None, normalization=self.normalization, k=1)
        times: list[float] = []

        def score(proposed: list[Rows]) -> RoundScores:
            times.append(time.monotonic())
            return RoundScores([np.linspace(1, 0, len(rows), dtype=np.float32) for rows in proposed])

        drive(self.default_strategy(REHEARSED_CALLS), context, score)
        return seconds_between(times)

    def _rehearse_scorer(self) -> None:
        """Let a model on this machine score a pair, and again, to see how long a call takes."""
        model = innermost(self.scorer)
        if getattr(model, "device", None) is None:
            return
        pair = [self.items.text(0)[:REHEARSED_CHARACTERS].strip() or "none"]
        warmed = self.scorer if isinstance(self.scorer, SharedScorer) else model  # in a thread of its own, or in this
        with self._scoring, suppress(ScorerError):  # which the first search will report
            times = [time.monotonic()]
            for _ in range(1 + TIMED_CALLS):
                warmed.score(pair, pair)
                times.append(time.monotonic())
            self._round_times.measured_scoring(min(seconds_between(times[1:])))

    def retriever(self, name: str | None = None) -> Retriever:
        """The retriever of this name, fitted; by default the first stage of a search that names none."""
        return self._resources.retriever(name)

    def default_strategy(self, budget: int | None = None) -> Strategy:
        """The strategy of a search that names none: `Posterior`, or `Rerank` without query vectors."""
        return default_strategy(budget, query_vectors=self.has_query_vectors)

    def _choose_strategy(self, options: SearchOptions) -> Strategy:
        strategy = self.default_strategy(options.budget) if options.strategy is None else options.strategy
        if options.stop_at is None:
            return strategy
        if not isinstance(strategy, Posterior):
            raise InputError(
                f"`stop_at` works with Posterior only, which estimates recall and needs an encoder, got {strategy!r}."
            )
        return replace(strategy, stop_at=options.stop_at)

    def _fusion_weights(self) -> dict[str, float]:
        return equal_weights(self._resources.rankable_signals) if self.rank_weights is None else self.rank_weights

    def fit_normalization(self, queries: Sequence[str], *, items_per_query: int = 100, seed: int = 0) -> Normalization:
        """Estimate α and β from calls on `queries` (the paper: 100 train queries) and keep them for `Axn` and `Tour`.

        Each query is scored against `items_per_query` random items.
        """
        check_positive("items_per_query", items_per_query)
        queries = check_queries(queries)
        if not queries:
            raise invalid("queries", "at least one train query", queries)
        sampled = Random(seed=seed).fit(self.items).retrieve(queries, items_per_query)
        query_vectors, search = self._resources.encode_queries(queries), self._resources.encoder_vectors()
        rows = [proposal.rows for proposal in sampled]
        scored = self._round_scorer(queries, total_calls=sum(map(len, rows)))(rows)
        estimates = [search.take(sample) @ vector for sample, vector in zip(rows, query_vectors, strict=True)]
        self.normalization = Normalization.fit(np.concatenate(scored.scores), np.concatenate(estimates))
        return self.normalization

    def fit_rank_weights(
        self,
        queries: Sequence[str],
        relevant: Sequence[Collection[str]],
        *,
        budget: int | None = None,
        strategy: Strategy | None = None,
    ) -> dict[str, float]:
        """Fit the weights of `rank_by="fused"` to relevance judgments, and keep them.

        `relevant` has the ids of each query's relevant items. Every query is searched as `search_many` does.
        """
        queries = check_queries(queries)
        rows = find_relevant(self.items, queries, relevant)
        chosen, weights = self._choose_strategy(SearchOptions(budget=budget, strategy=strategy)), self._fusion_weights()
        judged = []
        for start in range(0, len(queries), FIT_BATCH):
            batch = queries[start : start + FIT_BATCH]
            candidates = self._resources.candidates(batch, None)
            fusion = ScoreFusion(weights, candidates)
            run = self._open_run(batch, chosen, candidates)
            with self._running(run):
                while run.run_round():
                    pass
            judged += fusion.judge(run.results, rows[start : start + FIT_BATCH])
        self.rank_weights = dict(zip(weights, fit_weights(judged).tolist(), strict=True))
        return self.rank_weights

    def fit_calibration(self, judgments: Judgments) -> ScoreCalibration:
        """Fit the probability of relevance to judgments, and keep it: hits have a `probability` from then on.

        Every judged pair is scored once. Judge items that searches find: random items are so clearly irrelevant that
        they tell little about those. `calibration.save(path)` keeps the fit for `Searcher(…, calibration=path)`.

        Args:
            judgments: Triples of a query, the id of an item and its relevance, of which True and grades above 0 count;
                or a mapping from queries to the grades of their items by id. At least 10 relevant and 10 others.
        """
        grouped = group_judgments(judgments)
        queries = check_queries(list(grouped))
        rows = [self.items.rows_of(list(judged)) for judged in grouped.values()]
        relevant = np.array([one for judged in grouped.values() for one in judged.values()], np.bool_)
        check_judged(relevant)
        scored = self._round_scorer(queries, total_calls=len(relevant))(rows)
        scores = np.concatenate(scored.scores)
        self.calibration = ScoreCalibration.fit(scores, relevant, scorer=self.scorer.fingerprint)
        return self.calibration


def _load(path: str | Path) -> ScoreCalibration:
    if not isinstance(path, str | Path):
        raise invalid("calibration", "a ScoreCalibration or the path of its file", path)
    return ScoreCalibration.load(path)
