"""A benchmark: strategies on one task, with the item vectors that each of them needs, against exact search."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from crossknn import __version__
from crossknn._checks import check_seed
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.evaluate.compare import Contender, Quality, Result, compare
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.contenders import Entry, Offer, Vectors
from crossknn.evaluate.ground_truth import truth_hits
from crossknn.evaluate.quality import measure_quality
from crossknn.evaluate.tasks import Task
from crossknn.indexing.builder import PSEUDO_QUERIES
from crossknn.indexing.factorization.cur import Cur
from crossknn.indexing.factorization.factors import Method
from crossknn.indexing.index import DEFAULT_FACTORS, Index
from crossknn.indexing.sampling import PerItem, Sampling, prior_sampling
from crossknn.items.items import Items
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import SIGNALS
from crossknn.types import Progress

EXACT: Final = "exact"
QUALITY: Final = ("nDCG@10", "MRR@10", "accuracy")
BEST: Final = 10  # hits that these look at
STEP: Final = "compare strategies"
OFFLINE: Final[dict[Vectors, str]] = {
    "encoder": "offline calls, α and β",
    "fitted": "offline calls, fitted vectors",
    "cur": "offline calls, CUR",
    "prior": "offline calls, prior",
}


class Bench:
    """Strategies on a task.

    calls_per_item  offline calls per item that fitted vectors may cost; 0: there are none
    anchors         train queries that CUR scores all items for; 0: there is no CUR
    seed            of everything random: sampled pairs, fits, anchors
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
                raise InputError(f"{name} must be a whole number of at least 0. Got {value!r} instead.")
        self.task = task
        self.seed = seed
        self.calls_per_item = calls_per_item if task.can_learn else 0
        self._anchors = anchors if task.can_learn else 0
        self._device = device
        self._progress = progress
        self._searchers: dict[Vectors, Searcher] = {}

    @property
    def offer(self) -> Offer:
        """What strategies can be made from."""
        return Offer(self.task.known, fitted=self.calls_per_item > 0, cur=self._anchors > 0)

    def run(
        self, entries: Sequence[Entry], *, budgets: Sequence[int], ks: Sequence[int], command: str | None = None
    ) -> Comparison:
        """Every strategy at every budget; indexes are built first, those that are needed.

        The comparison has no quality where the task has no judgments.
        """
        task, results, quality = self.task, list[Result](), list[Quality]()
        truth = truth_hits(task.items, task.queries, task.scores, max(ks))
        searchers = [self.searcher(entry.vectors) for entry in entries]
        for number, (entry, searcher) in enumerate(zip(entries, searchers, strict=True)):
            # A baseline may search with other vectors: it is set afterwards.
            alone = replace(entry.contender, baseline=None)
            measured = compare(
                searcher,
                task.queries,
                truth,
                [alone],
                budgets=budgets,
                ks=ks,
                speed=task.speed,
                progress=self._count(number, len(entries)),
                on_found=lambda name, budget, hits: quality.extend(self._judge(name, budget, hits)),
            )
            results += [self._finish(result, entry.contender) for result in measured]
        exact = truth_hits(task.items, task.queries, task.scores, BEST)
        return self._comparison(results, [*quality, *self._judge(EXACT, None, exact)], command)

    def searcher(self, vectors: Vectors) -> Searcher:
        """A searcher with these item vectors, built when it is first wanted."""
        if vectors not in self._searchers:
            scale = self.task.scale if vectors == "encoder" else None
            plain = vectors == "encoder" and (scale is not None or not self.task.can_learn)
            built = self.task.items if plain else self._build(vectors)
            self._searchers[vectors] = self.search_with(built, None if scale is None else scale.normalization)
        return self._searchers[vectors]

    def search_with(self, items: Items | Index, normalization: Normalization | None = None) -> Searcher:
        """A searcher for the task's queries."""
        task = self.task
        return Searcher(
            items,
            scorer=task.scorer,
            encoder=task.encoder,
            retrievers=task.retrievers,
            normalization=normalization,
            device=self._device,
        )

    def build(
        self,
        factors: Method | None,
        sampling: Sampling | Sequence[Sampling] | None,
        *,
        prior: bool = False,
        signals: Sequence[str] = SIGNALS,
        progress: Progress | None = None,
    ) -> Index:
        """An index from the task's train queries."""
        return Index.build(
            self.task.items,
            scorer=self.task.builder,
            encoder=self.task.encoder,
            queries=list(self.task.train) or None,
            sampling=sampling,
            factors=factors,
            prior=prior,
            signals=signals,
            retrievers=self.task.retrievers,
            work_dir=None if self.task.work_dir is None else self.task.work_dir / "build",
            seed=self.seed,
            device=self._device,
            progress=progress,
        )

    def _offline_calls(self) -> dict[str, int]:
        """What was learned from so many calls, by what is shown."""
        calls = {
            vectors: searcher.index.report.calls
            for vectors, searcher in self._searchers.items()
            if searcher.index is not None
        }
        if self.task.scale is not None and "encoder" in self._searchers:
            calls["encoder"] = self.task.scale.calls
        return {OFFLINE[vectors]: calls[vectors] for vectors in OFFLINE if vectors in calls}

    def _build(self, vectors: Vectors) -> Index:
        if vectors != "prior":
            return self.build(*self._method(vectors), progress=self._progress)
        train = len(self.task.train) or PSEUDO_QUERIES
        sampling = prior_sampling(self.calls_per_item, n_queries=train, n_items=len(self.task.items), seed=self.seed)
        return self.build(None, sampling, prior=True, progress=self._progress)

    def _method(self, vectors: Vectors) -> tuple[Method | None, Sampling | None]:
        if vectors == "fitted":
            return replace(DEFAULT_FACTORS, seed=self.seed), PerItem(queries=self.calls_per_item, seed=self.seed)
        return (Cur(anchors=self._anchors, seed=self.seed) if vectors == "cur" else None), None

    def _count(self, number: int, entries: int) -> Progress | None:
        """Counts the searches of all entries as one step."""
        report = self._progress
        if report is None:
            return None
        return lambda _, done, total: report(STEP, number * total + done, entries * total)

    def _finish(self, result: Result, contender: Contender) -> Result:
        """With its baseline, and without the time of looking scores up where nobody knows the scorer's."""
        known = {part: seconds for part, seconds in result.seconds.items() if self.task.speed or part != "scorer"}
        return replace(result, baseline=contender.baseline, seconds=known)

    def _comparison(self, results: Sequence[Result], quality: Sequence[Quality], command: str | None) -> Comparison:
        task = self.task
        return Comparison(
            title=f"{task.name}: {len(task.items):,} items, {len(task.queries):,} queries",
            data=self._describe(),
            items=len(task.items),
            results=results,
            exact_seconds=None if task.speed is None else len(task.items) * task.speed.per_call,
            command=command,
            speed=task.speed,
            quality=quality,
        )

    def _describe(self) -> dict[str, str | int | float]:
        torch = import_extra("torch", extra="models")
        return {
            "data": self.task.name,
            "queries": len(self.task.queries),
            "train queries": len(self.task.train),
            **self.task.facts,
            "scorer": self.task.builder.fingerprint,
            "encoder": self.task.encoder.fingerprint,
            **self._offline_calls(),
            "seed": self.seed,
            "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores",
            "versions": f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
            f"crossknn {__version__}",
        }

    def _judge(self, name: str, budget: int | None, found: Sequence[Hits]) -> list[Quality]:
        """The quality of what was found; nothing where nobody judged."""
        if self.task.judged is None:
            return []
        ids = [hits.ids[:BEST] for hits in found]
        measured = measure_quality(self.task.judged, ids, measures=QUALITY)
        return [Quality(name, budget, {measure: float(values.mean()) for measure, values in measured.items()})]
