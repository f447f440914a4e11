r"""Learning from searches: recall of the next queries after so many served, and what mends the bias of searched lists.

    python -m benchmarks.learning <set>... --scorer <folder> --encoder <folder> --max-query-tokens 64 \
        --max-item-tokens 160 --teach-seconds 10

- Stream: an index serves train queries with `Posterior`. At each stage it learns from all that was served so far, is
  measured on unseen test queries against exact scores, and serves on. Beside it: an index taught offline with as many
  calls, on the same queries.
- Bias: the index as it was built serves `--bias-lists` queries, and learns from these lists in several ways: as they
  are, with new items, mined or random, or with random items in place of a tenth of the calls of each search.

A set is a BEIR folder, or a folder of scores with train scores, which are looked up; `--items` takes some of its items.
Sets that the file has already are kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.posterior import summarise
from benchmarks.result_files import write_result
from benchmarks.sets import add_options, open_scorer, read_set
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.comparison import rows_of
from crossknn.evaluate.ground_truth import exact_scores, truth_rows
from crossknn.evaluate.matrices import SharedRetriever, precomputed_scorer, read_scores
from crossknn.evaluate.measures import top_k_recall
from crossknn.indexing.index import Index
from crossknn.indexing.teaching.settings import Teaching
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.search.searcher import Searcher
from crossknn.storage.search_log import LoggedSearch
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Scorer, Scores

KS = (1, 10, 100)
ROUNDS = 10
RANDOM_SHARE = 0.1  # of a search's calls, where they mend the bias
SERVED_TOGETHER = 500
TOP = 100  # items of a test query whose predicted scores are compared, at most a tenth


@dataclass(frozen=True)
class Data:
    """A set: the queries that are served, and test queries with their exact scores."""

    name: str
    items: Items
    stream: list[str]
    test: list[str]
    test_scores: Scores  # (test queries, items)
    scorer: Scorer


def main() -> None:
    options = read_options()
    encoder = SentenceEncoder(
        options.encoder, device=options.device, dtype="float32", max_tokens=options.max_encoder_tokens
    )
    report: dict[str, Any] = {"sets": {}}
    if options.out.exists():
        report = json.loads(options.out.read_text())
    for name in options.sets:
        data = read_data(Path(name), options)
        record = report["sets"].setdefault(data.name, {})
        for key, value in Benchmark(data, encoder, options).run():
            record[key] = value
            write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    add_options(parser, train=1_000_000, test=50)
    parser.add_argument("--items", type=int, help="of a folder of scores")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 300, 1_000, 3_000, 10_000], help="queries served")
    parser.add_argument("--bias-lists", type=int, default=1_000)
    parser.add_argument("--calls", type=int, default=100, help="of a search")
    parser.add_argument("--new-items", type=int, default=24, help="of a list, when it is learned from")
    parser.add_argument("--teach-seconds", type=float, help="limit of each training")
    parser.add_argument("--change", type=json.loads, default={}, help='settings of all teachings: {"epochs": 3}')
    parser.add_argument("--max-encoder-tokens", type=int)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning_h200.json"))
    return parser.parse_args()


def read_data(folder: Path, options: argparse.Namespace) -> Data:
    if not (folder / "train_scores.f16.npy").exists():
        scorer = open_scorer(options)
        data = read_set(str(folder), scorer, options)
        scores = np.array(exact_scores(data.items, data.test.texts, scorer, options.work))
        return Data(data.name, data.items, data.train.texts, data.test.texts, scores, scorer)
    found, rng = read_scores(folder), np.random.default_rng(options.seed)
    assert found.dataset is not None
    rows = np.sort(rng.permutation(len(found.dataset.items))[: options.items])
    items = Items(found.dataset.items.texts_of(rows), ids=found.dataset.items.ids_of(rows))
    train, test = found.train, found.test[: options.test]
    texts, scores = [*train.texts, *test.texts], np.concatenate([train.scores, test.scores])[:, rows]
    lookup = precomputed_scorer(scores, queries=texts, items=items.texts, fingerprint=folder.name)
    stream = [train.texts[at] for at in rng.permutation(len(train))]
    return Data(found.name, items, stream, list(test.texts), scores[len(train) :], lookup)


class Benchmark:
    """The benchmark of one set."""

    def __init__(self, data: Data, encoder: SentenceEncoder, options: argparse.Namespace) -> None:
        self.data, self.encoder, self.options = data, encoder, options
        self.device = options.device
        self.bm25 = [SharedRetriever(Bm25())]
        self.truth = truth_rows(data.test_scores, max(KS))
        self.rng = np.random.default_rng((options.seed, 1))

    def run(self) -> Iterator[tuple[str, Any]]:
        data, options = self.data, self.options
        yield (
            "facts",
            {
                "items": len(data.items),
                "test_queries": len(data.test),
                "calls": options.calls,
                "new_items": options.new_items,
                "bias_lists": options.bias_lists,
                "teach_seconds": options.teach_seconds,
                "change": options.change,
            },
        )
        began = time.perf_counter()
        plain = Index.build(
            data.items,
            scorer=data.scorer,
            encoder=self.encoder,
            queries=data.stream[-100:],
            teach=False,
            factors=None,
            prior=False,
        )
        stages: list[dict[str, Any]] = []
        for stage in self.stream(plain):
            stages.append(stage)
            yield "stages", stages
        arms: dict[str, Any] = {}
        for name, arm in self.bias(plain):
            arms[name] = arm
            yield "bias", arms
        yield "seconds", round(time.perf_counter() - began)

    def stream(self, plain: Index) -> Iterator[dict[str, Any]]:
        """Recall at each stage, learned from searches and offline."""
        index, searches, learning_calls = plain, list[LoggedSearch](), 0
        for stage in self.options.stages:
            began = time.perf_counter()
            searches += self.serve(index, self.data.stream[len(searches) : stage])
            served = len(searches)
            record: dict[str, Any] = {"served": served, "serve_seconds": round(time.perf_counter() - began, 1)}
            if not served:
                yield {**record, "calls": 0} | dict.fromkeys(("learned", "offline"), self.measure(plain))
                continue
            index = self.learn(index, searches)
            learning_calls += index.report.calls_made
            record["calls"] = sum(len(search.ids) for search in searches) + learning_calls
            record["learned"] = self.measure(index)
            offline = replace(
                self.teaching(served), rounds=2, items_per_list=max(4, round(record["calls"] / served / 2))
            )
            built = Index.build(
                self.data.items,
                scorer=self.data.scorer,
                encoder=self.encoder,
                queries=self.data.stream[:served],
                teach=offline,
                prior=False,
                device=self.device,
            )
            yield {**record, "offline": self.measure(built)}

    def bias(self, plain: Index) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is learned, unchecked, from the same number of lists, searched by the index as it was built."""
        queries, calls, new = self.data.stream[: self.options.bias_lists], self.options.calls, self.options.new_items
        searched = self.serve(plain, queries)
        explored = self.explore(self.serve(plain, queries, calls=calls - round(RANDOM_SHARE * calls)), calls)
        yield "as it was built", self.measure(plain)
        for name, lists, items_per_list, random_share in (
            ("searched items alone", searched, 0, 0.0),
            (f"{RANDOM_SHARE:.0%} of the searches' calls random", explored, 0, 0.0),
            (f"{new} random items more", searched, new, 1.0),
            (f"{new} mined and random items more", searched, new, 0.25),
        ):
            settings = {"items_per_list": items_per_list, "random_share": random_share, "held_out_share": 0.0}
            yield name, self.measure(self.learn(plain, lists, **settings))

    def serve(self, index: Index, queries: Sequence[str], *, calls: int | None = None) -> list[LoggedSearch]:
        """What the index scores for these queries."""
        own = index.choose_encoder(self.encoder, device=self.device)
        searcher = Searcher(index, scorer=self.data.scorer, encoder=own, retrievers=self.bm25, device=self.device)
        calls = calls or self.options.calls
        strategy = Posterior(calls, min(ROUNDS, calls))
        parts = [queries[start : start + SERVED_TOGETHER] for start in range(0, len(queries), SERVED_TOGETHER)]
        found = [hits for part in parts for hits in searcher.search_many(part, k=min(10, calls), strategy=strategy)]
        return [LoggedSearch(hits.query, *hits.scored()) for hits in found]

    def explore(self, searches: list[LoggedSearch], calls: int) -> list[LoggedSearch]:
        """The searches with random items up to this number of calls."""
        explored = []
        for query, ids, scores in searches:
            others = np.setdiff1d(np.arange(len(self.data.items)), self.data.items.rows_of(ids))
            rows = self.rng.choice(others, calls - len(ids), replace=False)
            more = self.data.scorer.score([query] * len(rows), self.data.items.texts_of(rows))
            explored.append(LoggedSearch(query, [*ids, *self.data.items.ids_of(rows)], [*scores, *more.tolist()]))
        return explored

    def learn(self, index: Index, searches: list[LoggedSearch], **changes: Any) -> Index:
        settings = replace(self.teaching(len(searches)), **changes)
        return index.learn(searches, scorer=self.data.scorer, encoder=self.encoder, teach=settings, device=self.device)

    def teaching(self, lists: int) -> Teaching:
        """The settings of all teachings, those of `Index.learn` unless they were changed."""
        options = self.options
        return replace(
            Teaching.default(len(self.data.items), device=self.device, seed=options.seed),
            lists=lists,
            rounds=1,
            items_per_list=options.new_items,
            time_limit=options.teach_seconds,
            **options.change,
        )

    def measure(self, index: Index) -> dict[str, Any]:
        """Recall on the test queries, the error of predicted scores, and what the index reports."""
        test, began = self.data.test, time.perf_counter()
        own = index.choose_encoder(self.encoder, device=self.device)
        assert own is not None
        vectors = own.encode_queries(test)
        searcher = Searcher(
            index,
            scorer=precomputed_scorer(
                self.data.test_scores, queries=test, items=self.data.items.texts, fingerprint=index.scorer
            ),
            encoder=PrecomputedEncoder(queries=(test, vectors), fingerprint=index.encoder),
            retrievers=self.bm25,
            device=self.device,
            check_models=False,
        )
        calls, recall = self.options.calls, dict[str, Any]()
        for strategy in (Posterior(calls, min(ROUNDS, calls)), Rerank(calls, "dense")):
            rows = [rows_of(hits) for hits in searcher.search_many(test, k=calls, strategy=strategy)]
            cells = {k: summarise(100 * top_k_recall(self.truth, rows, k)) for k in KS if k <= calls}
            recall[type(strategy).__name__] = {f"{k}@{calls}": cell for k, cell in cells.items()}
        teaching = index.report.teaching
        record = {
            "recall": recall,
            "error": self.error(index, vectors),
            "teaching": None if teaching is None else teaching.as_dict(),
            "seconds": {step: round(value, 1) for step, value in index.report.seconds.items()},
        }
        print(self.data.name, {name: [cell["mean"] for cell in cells.values()] for name, cells in recall.items()})
        print(record["error"], teaching, f"{time.perf_counter() - began:.0f} s to measure", flush=True)
        return record

    def error(self, index: Index, queries: np.ndarray) -> dict[str, float]:
        """Of the scores that α, β and the vectors predict, in standard deviations of random items' scores.

        The mean error of all items, which random ones stand for, and of the best; and the correlation of predicted and
        true scores of a query, over all items.
        """
        scores, items = self.data.test_scores, np.asarray(index.vectors, np.float32)
        predicted = index.normalization.restore(queries @ items.T)
        errors = (predicted - scores) / scores.std()
        best = np.stack([rows[: min(TOP, scores.shape[1] // 10)] for rows in self.truth])
        correlations = [np.corrcoef(*both)[0, 1] for both in zip(predicted, scores, strict=True)]
        return {
            "random": round(float(errors.mean()), 3),
            "best": round(float(np.take_along_axis(errors, best, 1).mean()), 3),
            "correlation": round(float(np.mean(correlations)), 3),
        }


if __name__ == "__main__":
    main()
