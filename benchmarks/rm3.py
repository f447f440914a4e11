"""RM3 from scored items: alone, as a source of rows for posterior search, and as a third signal of it.

    python -m benchmarks.rm3 <score folder>... --out benchmarks/results/rm3.json

RM3 (Abdul-Jaleel et al., 2004) expands a query by words of relevant items. Here the scored items are relevant, by the
softmax of their scores over the best ten: the new query is half the old one and half the twenty most probable words of
these items, and BM25 ranks by it. "rm3" is rounds of it, each the reciprocal rank fusion of the new ranking and the
encoder's. "+ rows" gives it a fifth of every round but the first of posterior search. "+ signal" makes the new ranking
a third signal, beside the encoder and BM25, from the middle of the rounds on, with the model fitted anew. Recall is the
share of the exact top k found within the budget, in percent, with paired differences.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.posterior import CALLS_PER_ITEM, ROUNDS, Shares, summarise
from benchmarks.result_files import write_result
from benchmarks.simultaneous import compare_all
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import rows_of
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.matrices import read_scores
from crossknn.evaluate.measures import top_k_recall
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.items.items import Items
from crossknn.retrievers.analyzer import Analyzer
from crossknn.retrievers.bm25 import Bm25
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Flow, MultiRound, Observations, Round, SearchContext, Strategy
from crossknn.strategies.neighbor_graph import take_new
from crossknn.strategies.posterior.prior import RETRIEVER_DEPTH, Prior
from crossknn.strategies.posterior.session import PosteriorSession
from crossknn.strategies.posterior.strategy import STANDARDIZATION_DEPTH, Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import softmax
from crossknn.types import Proposal
from crossknn.vectors.ranking import reciprocal_rank_fusion, top_rows

FEEDBACK_ITEMS, FEEDBACK_WORDS, OWN_SHARE = 10, 20, 0.5  # as in Anserini, but for twice the words
RANK_CONSTANT, FUSED_DEPTH = 60, 1_000
ROWS_SHARE = 0.2
CELLS = ((1, 25), (10, 25), (10, 100), (100, 100), (10, 500), (100, 500))
BATCH = 50  # queries
WITHOUT = {"rm3": "rerank, fused", "posterior + rows": "posterior", "posterior + signal": "posterior"}
WITHOUT |= {"posterior, prior + rows": "posterior, prior"}

Array = np.ndarray[Any, Any]


class Expansion:
    """Relevance models over the words of items."""

    def __init__(self, items: Items) -> None:
        analyzer = Analyzer("english", "english")
        self._stems = analyzer.stems
        stems, tokens, lengths = analyzer.tokenize([list(items.texts)])
        rows = np.repeat(np.arange(len(items)), lengths)
        counts = sparse.csr_array((np.ones(len(tokens)), (rows, tokens)), shape=(len(items), len(stems)))
        counts.sum_duplicates()
        self._shares = sparse.diags_array(1 / np.maximum(lengths, 1)) @ counts  # p(word | item)
        self._places = {stem: place for place, stem in enumerate(stems)}
        bm25 = Bm25().fit(items).postings
        self._weights = sparse.csc_array((bm25.weights, bm25.rows, bm25.starts), shape=counts.shape)
        assert list(bm25.stems) == stems

    def rank(self, query: str, observed: Observations, n: int) -> Proposal:
        """The first `n` items by BM25 with the expanded query."""
        best = np.argsort(-observed.scores, kind="stable")[:FEEDBACK_ITEMS]
        model = softmax(observed.scores[best]) @ self._shares[observed.rows[best]]
        kept = np.argsort(-model, kind="stable")[:FEEDBACK_WORDS]
        words = Counter(self._places[stem] for stem in self._stems(query) if stem in self._places)
        weights = np.zeros(self._weights.shape[1])
        weights[kept] = (1 - OWN_SHARE) * model[kept] / max(model[kept].sum(), 1e-12)
        for place, count in words.items():
            weights[place] += OWN_SHARE * count / words.total()
        return top_rows((self._weights @ weights).astype(np.float32), n)


@dataclass(frozen=True, repr=False)
class Rm3(MultiRound):
    """Rounds of the fusion of the expanded BM25 ranking and the encoder's."""

    expansion: Expansion | None = None
    texts: tuple[str, ...] = ()

    def flow(self, context: SearchContext) -> Flow:
        assert self.expansion is not None
        expansion, observations = self.expansion, [Observations() for _ in self.texts]
        dense = context.propose("dense", FUSED_DEPTH)[1]
        name, fused = context.propose("fused", self._share(context, 1, 0))

        def expand(number: int) -> Round:
            proposals = []
            for text, near, seen in zip(self.texts, dense, observations, strict=True):
                both = [expansion.rank(text, seen, FUSED_DEPTH), near]
                ranking = reciprocal_rank_fusion(both, constant=RANK_CONSTANT)
                proposals.append(take_new([ranking], seen.rows, self._share(context, number, len(seen.rows))))
            return Round(proposals, "rm3")

        yield from self._run_rounds(Round(fused, name), observations, expand)
        return None


@dataclass(frozen=True, repr=False)
class WithRows(Posterior):
    """Posterior search with the best rows of the expanded query in every round but the first."""

    expansion: Expansion | None = None
    texts: tuple[str, ...] = ()

    def _rows_before(
        self, context: SearchContext, session: PosteriorSession, counts: list[int]
    ) -> tuple[list[str], list[list[int]]]:
        assert self.expansion is not None
        names, before = super()._rows_before(context, session, counts)
        for place, (text, seen) in enumerate(zip(self.texts, session.observations, strict=True)):
            ranking = self.expansion.rank(text, seen, self.budget + FUSED_DEPTH)
            new = take_new([ranking], np.array([*seen.rows, *before[place]]), round(ROWS_SHARE * counts[place]))
            before[place] = before[place] + new.rows.tolist()
        return names, before


@dataclass(frozen=True, repr=False)
class WithSignal(Posterior):
    """Posterior search without an index whose later rounds have the expanded ranking as a third signal."""

    expansion: Expansion | None = None
    texts: tuple[str, ...] = ()

    def flow(self, context: SearchContext) -> Flow:
        first, session = self._start(context)
        current = [session]

        def next_round(number: int) -> Round:
            if number == self.round_count // 2 + 1:
                current[0] = self._start_anew(context, session.observations)
            counts = self._counts(context, number, current[0])
            means = current[0].posterior_means(2 * max(counts))
            return self._choose_rows(context, current[0], means, counts)

        yield from self._run_rounds(first, session.observations, next_round)
        return None

    def _start_anew(self, context: SearchContext, observations: list[Observations]) -> PosteriorSession:
        """A session with the scores so far and the expanded ranking."""
        assert self.expansion is not None
        expansion, depth = self.expansion, min(RETRIEVER_DEPTH, context.reachable)
        lists = [context.propose(name, depth)[1] for name in context.signals]
        lists.append([expansion.rank(*pair, depth) for pair in zip(self.texts, observations, strict=True)])
        near = context.propose(self.first, min(STANDARDIZATION_DEPTH, context.reachable))[1]
        session = PosteriorSession(context, lists, Prior.weakly_informative([*context.signals, "rm3"]), near=near)
        session.observations = observations
        return session


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"rounds": ROUNDS, "calls_per_item": CALLS_PER_ITEM, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(folder, options))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores, with texts")
    parser.add_argument("--queries", type=int, default=150, help="at most this many, the first, of the test queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rm3.json"))
    return parser.parse_args()


def measure_set(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    task, dataset = read_matrix(folder, queries=options.queries), read_scores(folder).dataset
    if dataset is None:
        raise SystemExit(f"{folder}: needs texts.json.xz, for RM3 reads the texts")
    texts, expansion = read_scores(folder).test.texts[: len(task.queries)], Expansion(dataset.items)
    bench = Bench(task, calls_per_item=CALLS_PER_ITEM, seed=options.seed)
    found = {}
    for name, searcher, make in sides(bench, expansion):
        found[name] = search(task, texts, searcher, make)
        print(task.name, name, {cell: summarise(shares)["mean"] for cell, shares in found[name].items()}, flush=True)
    pairs = {(name, cell): (found[name][cell], found[base][cell]) for name, base in WITHOUT.items() for cell in CELLS}
    gaps, critical = compare_all(pairs)
    cells = [
        {
            "k": cell[0],
            "budget": cell[1],
            "recall": {name: summarise(shares[cell]) for name, shares in found.items()},
            "− without": {name: gaps[name, cell] for name in WITHOUT},
        }
        for cell in CELLS
    ]
    facts = {"set": task.name, "items": len(task.items), "queries": len(task.queries)}
    return {**facts, "comparisons": {"recall": len(pairs), "critical_t": round(critical, 2)}, "cells": cells}


Make = Callable[[int, Sequence[str]], Strategy]


def sides(bench: Bench, expansion: Expansion) -> Iterator[tuple[str, Searcher, Make]]:
    plain, prior = bench.searcher("encoder"), bench.searcher("prior")
    yield "rerank, fused", plain, lambda budget, _: Rerank(budget, retriever="fused")
    yield "rm3", plain, lambda budget, texts: Rm3(budget, ROUNDS, expansion, tuple(texts))
    for name, searcher in (("posterior", plain), ("posterior, prior", prior)):
        yield name, searcher, lambda budget, _: Posterior(budget, ROUNDS)
        yield (
            f"{name} + rows",
            searcher,
            lambda budget, texts: WithRows(budget, ROUNDS, expansion=expansion, texts=tuple(texts)),
        )
    yield (
        "posterior + signal",
        plain,
        lambda budget, texts: WithSignal(budget, ROUNDS, expansion=expansion, texts=tuple(texts)),
    )


def search(task: Task, texts: Sequence[str], searcher: Searcher, make: Make) -> Shares:
    """The recall of every query in percent; a strategy is made for each batch of queries, whose texts it reads."""
    truth, shares = truth_rows(task.scores, max(k for k, _ in CELLS)), Shares()
    for budget in dict.fromkeys(budget for _, budget in CELLS):
        rows = []
        for start in range(0, len(texts), BATCH):
            batch = slice(start, start + BATCH)
            hits = searcher.search_many(task.queries[batch], k=budget, strategy=make(budget, texts[batch]))
            rows += [rows_of(one) for one in hits]
        shares |= {(k, b): 100 * top_k_recall(truth, rows, k) for k, b in CELLS if b == budget}
    return shares


if __name__ == "__main__":
    main()
