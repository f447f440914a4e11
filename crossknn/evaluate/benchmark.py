"""Benchmark of strategies on one task, with the item vectors that each of them needs, against exact search."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn import __version__
from crossknn._checks import check_seed, invalid
from crossknn._imports import import_extra
from crossknn.evaluate.comparison import (
    TIME_PARTS,
    Comparison,
    Contender,
    Reliability,
    Result,
    compare,
    rows_of,
    search_in_batches,
)
from crossknn.evaluate.contenders import AvailableData, ResolvedStrategy, VectorSource
from crossknn.evaluate.ground_truth import truth_hits, truth_rows
from crossknn.evaluate.measures import top_k_recall
from crossknn.evaluate.quality import QUALITY_DEPTH, Quality
from crossknn.evaluate.tasks import Task
from crossknn.indexing.builder import DEFAULT_FACTORS, PSEUDO_QUERIES, Build
from crossknn.indexing.factorization.factors import Cur, Method
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerItem, Sampling, prior_sampling
from crossknn.items.items import Items
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.calibration import calibration_error, reliability_bins
from crossknn.strategies.posterior.prior import SIGNALS
from crossknn.types import Progress, Scores

FIRST_STAGES: Final = ("bm25", "tfidf", "dense", "fused")  # whose order is judged without the cross-encoder
OFFLINE_LABELS: Final[dict[VectorSource, str]] = {
    "encoder": "offline calls, α and β",
    "fitted": "offline calls, fitted vectors",
    "cur": "offline calls, CUR",
    "prior": "offline calls, prior",
}


class Bench:
    """A benchmark of strategies on a task.

    Args:
        calls_per_item: Offline calls per item for fitted vectors; 0 for none.
        anchors: Train queries that CUR scores all items for; 0 for no CUR.
    """

    def __init__(
        self,
        task: Task,
        *,
        calls_per_item: int = 0,
        anchors: int = 0,
        seed: int = 0,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_seed(seed)
        for name, value in (("calls_per_item", calls_per_item), ("anchors", anchors)):
            if not isinstance(value, int) or value < 0:
                raise invalid(name, "a nonnegative integer", value)
        self.task = task
        self.seed = seed
        self.calls_per_item = calls_per_item if task.can_learn else 0
        self._anchors = anchors if task.can_learn else 0
        self._device = device
        self._progress = progress
        self._searchers: dict[VectorSource, Searcher] = {}

    @property
    def available(self) -> AvailableData:
        """What strategies can be made from."""
        return AvailableData(self.task.retriever_names, fitted=self.calls_per_item > 0, cur=self._anchors > 0)

    def run(
        self,
        strategies: Sequence[ResolvedStrategy],
        *,
        budgets: Sequence[int],
        ks: Sequence[int],
        command: str | None = None,
    ) -> Comparison:
        """Compare the strategies at every budget, after building the indexes that they need.

        The comparison has no quality if the task has no judgments.
        """
        task, results, reliability = self.task, list[Result](), list[Reliability]()
        truth = truth_hits(task.items, task.queries, task.scores, max(ks))
        searchers = [self.searcher(strategy.vectors) for strategy in strategies]
        reranked = {one.contender.name: one.first for one in strategies if one.kind == "rerank"}
        quality = self._judge_first_stages()
        expecting: set[str] = set()  # the strategies whose hits have an expected recall

        def keep(name: str, budget: int, hits: list[Hits]) -> None:
            quality.extend(self._judge([one.ids for one in hits], name, budget, reranked.get(name)))
            expecting.update({name} if all(one.expected_recall is not None for one in hits) else ())

        for number, (strategy, searcher) in enumerate(zip(strategies, searchers, strict=True)):
            # A baseline may search with other vectors, so it is set afterwards.
            alone = replace(strategy.contender, baseline=None)
            measured = compare(
                searcher,
                task.queries,
                truth,
                [alone],
                budgets=budgets,
                ks=ks,
                speed=task.speed,
                progress=self._count_searches(number, len(strategies)),
                on_hits=keep,
            )
            for result in measured:  # scores are looked up: without a speed, the scorer's time is unknown
                seconds = {part: result.seconds[part] for part in TIME_PARTS if task.speed or part != "scorer"}
                results.append(replace(result, baseline=strategy.contender.baseline, seconds=seconds))
            if alone.name in expecting:
                reliability += self._measure_reliability(searcher, alone, budgets, ks)
        exact = truth_hits(task.items, task.queries, task.scores, QUALITY_DEPTH)
        quality += self._judge([hits.ids for hits in exact], "exact", None)
        return Comparison(
            title=f"{task.name}: {len(task.items):,} items, {len(task.queries):,} queries",
            data=self._describe(),
            items=len(task.items),
            results=results,
            exact_seconds=None if task.speed is None else len(task.items) * task.speed.per_call,
            command=command,
            speed=task.speed,
            quality=quality,
            reliability=reliability,
        )

    def searcher(self, vectors: VectorSource) -> Searcher:
        """The searcher with these item vectors, built on first use."""
        if vectors not in self._searchers:
            scale = self.task.scale if vectors == "encoder" else None
            built: Items | Index = self.task.items
            if not self._is_plain(vectors):
                built = self.build(*self._design(vectors), prior=vectors == "prior", progress=self._progress)
            self._searchers[vectors] = self.search_with(built, None if scale is None else scale.normalization)
        return self._searchers[vectors]

    def search_with(self, items: Items | Index, normalization: Normalization | None = None) -> Searcher:
        """A new searcher for the task's queries."""
        task = self.task
        return Searcher(
            items,
            scorer=task.scorer,
            encoder=task.encoder,
            retrievers=task.retrievers,
            normalization=normalization,
            device=self._device,
            progress=False,
        )

    def build(
        self,
        factors: Method | None,
        sampling: Sampling | Sequence[Sampling] | None,
        *,
        prior: bool = False,
        calibrate: bool | None = None,
        signals: Sequence[str] = SIGNALS,
        progress: Progress | None = None,
    ) -> Index:
        """An index from the task's train queries."""
        settings = {"prior": prior, "calibrate": calibrate, "signals": signals, "progress": progress}
        return Index.from_build(self._make_build(factors, sampling, **settings))

    def prepare(self, vectors: VectorSource) -> Build | None:
        """The build of the index with these item vectors, not run yet; None where none is needed."""
        if self._is_plain(vectors):
            return None
        return self._make_build(*self._design(vectors), prior=vectors == "prior")

    def prepare_fit(self, sampling: Sampling) -> Build:
        """The build of an index with vectors fitted to these scores, not run yet."""
        return self._make_build(replace(DEFAULT_FACTORS, seed=self.seed), sampling)

    def _make_build(
        self, factors: Method | None, sampling: Sampling | Sequence[Sampling] | None, **settings: Any
    ) -> Build:
        return Build(
            self.task.items,
            scorer=self.task.train_scorer,
            encoder=self.task.encoder,
            queries=list(self.task.train) or None,
            sampling=sampling,
            factors=factors,
            teach=None,
            retrievers=self.task.retrievers,
            work_dir=None if self.task.work_dir is None else self.task.work_dir / "build",
            seed=self.seed,
            device=self._device,
            **settings,
        )

    def _is_plain(self, vectors: VectorSource) -> bool:
        """Whether strategies with these vectors search the items, without an index."""
        return vectors == "encoder" and (self.task.scale is not None or not self.task.can_learn)

    def _design(self, vectors: VectorSource) -> tuple[Method | None, Sampling | Sequence[Sampling] | None]:
        """The factors and the sampling of the index with these item vectors."""
        factors: Method | None = None
        sampling: Sampling | Sequence[Sampling] | None = None
        if vectors == "fitted":
            factors = replace(DEFAULT_FACTORS, seed=self.seed)
            sampling = PerItem(queries=self.calls_per_item, seed=self.seed)
        elif vectors == "cur":
            factors = Cur(anchors=self._anchors, seed=self.seed)
        elif vectors == "prior":
            train = len(self.task.train) or PSEUDO_QUERIES
            items = len(self.task.items)
            sampling = prior_sampling(self.calls_per_item, n_queries=train, n_items=items, seed=self.seed)
        return factors, sampling

    def _count_searches(self, number: int, strategies: int) -> Progress | None:
        """Progress over the searches of all strategies as one step."""
        report = self._progress
        if report is None:
            return None
        return lambda _, done, total: report("compare strategies", number * total + done, strategies * total)

    def _judge_first_stages(self) -> list[Quality]:
        """The quality of the retrievers' own orders, without the cross-encoder; nothing if there are no judgments."""
        task, found = self.task, list[Quality]()
        for name in FIRST_STAGES if task.judged is not None else ():
            if name in task.retriever_names:
                proposed = self.searcher("encoder").retriever(name).retrieve(task.queries, QUALITY_DEPTH)
                found += self._judge([task.items.ids_of(one.rows) for one in proposed], name, 0)
        return found

    def _judge(
        self, found: Sequence[Sequence[str]], name: str, budget: int | None, first_stage: str | None = None
    ) -> list[Quality]:
        """The quality of the hits with these ids; nothing if there are no judgments."""
        if self.task.judged is None:
            return []
        return [Quality.of_hits(self.task.judged, found, strategy=name, budget=budget, first_stage=first_stage)]

    def _measure_reliability(
        self, searcher: Searcher, contender: Contender, budgets: Sequence[int], ks: Sequence[int]
    ) -> list[Reliability]:
        """Expected beside measured recall for each k, of a strategy whose hits have both."""
        task, found = self.task, list[Reliability]()
        truth = truth_rows(task.scores, max(ks))
        for k in ks:
            expected, measured = list[float](), list[float]()
            for budget in budgets:
                if budget >= k:
                    hits = list(chain(*search_in_batches(searcher, task.queries, contender.make(budget), k=k)))
                    expected += [one.expected_recall or 0.0 for one in hits]
                    measured += top_k_recall(truth, [rows_of(one) for one in hits], k).tolist()
            if expected:
                both = np.array(expected), np.array(measured)
                found.append(Reliability(contender.name, k, calibration_error(*both), reliability_bins(*both)))
        return found

    def _offline_calls(self) -> dict[str, int]:
        calls = {
            vectors: searcher.index.report.calls
            for vectors, searcher in self._searchers.items()
            if searcher.index is not None
        }
        if self.task.scale is not None and "encoder" in self._searchers:
            calls["encoder"] = self.task.scale.calls
        return {label: calls[vectors] for vectors, label in OFFLINE_LABELS.items() if vectors in calls}

    def _describe(self) -> dict[str, str | int | float]:
        torch = import_extra("torch", extra="models")
        return {
            "data": self.task.name,
            "queries": len(self.task.queries),
            "train queries": len(self.task.train),
            **self.task.facts,
            "scorer": self.task.train_scorer.fingerprint,
            "encoder": self.task.encoder.fingerprint,
            **self._offline_calls(),
            "seed": self.seed,
            "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores",
            "versions": f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
            f"crossknn {__version__}",
        }


class CellRecall(NamedTuple):
    """Recall of a strategy for one budget and k."""

    recall: NDArray[np.float64]  # (queries,)
    calls: float


class RecallTrial:
    """Measures the recall of strategies on queries whose scores are known, many queries at a time."""

    def __init__(
        self, queries: Sequence[str], scores: Scores, ks: Sequence[int], progress: Progress | None = None
    ) -> None:
        self.ks = ks
        self.progress = progress
        self._queries = queries
        self._truth = truth_rows(scores, max(ks))
        self._step, self._done, self._total = "", 0, 0

    def start(self, step: str, strategies: int) -> None:
        """Report the searches of this number of strategies as one step."""
        self._step, self._done, self._total = step, 0, strategies * len(self._queries)

    def search(self, searcher: Searcher, strategy: Strategy, budget: int) -> dict[int, CellRecall]:
        """The recall of one strategy for each k."""
        found: list[Hits] = []
        for batch in search_in_batches(searcher, self._queries, strategy, k=budget):  # the hits are all scored rows
            found += batch
            self._done += len(batch)
            if self.progress is not None:
                self.progress(self._step, self._done, self._total)
        rows, calls = [rows_of(hits) for hits in found], float(np.mean([hits.calls for hits in found]))
        return {k: CellRecall(top_k_recall(self._truth, rows, k), calls) for k in self.ks}
