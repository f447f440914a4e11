"""What a prior learned from pseudo-queries, cut from the items, is worth beside one of train queries.

    python -m benchmarks.pseudo_queries <set>... --scorer <folder> --out benchmarks/results/pseudo_queries.json
    python -m benchmarks.pseudo_queries example --scorer embedded

For each set, the exact scores of some test queries for all items; then posterior search without an index, with a prior
from pseudo-queries and with one from train queries, 8 calls per item each, and fused reranking. Recall is the share of
the exact top k found within the budget, in percent; differences to the search without an index are with 95 % intervals.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.posterior import ROUNDS, Shares, means, search_queries
from benchmarks.result_files import write_result
from benchmarks.sets import Set, add_options, open_scorer, read_set
from benchmarks.signals import compare
from crossknn.encoders.item_encoding import encode_items
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.ground_truth import exact_scores
from crossknn.evaluate.matrices import precomputed_scorer
from crossknn.indexing.index import Index
from crossknn.search.searcher import Searcher
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank

CELLS = ((1, 25), (1, 100), (10, 50), (10, 100), (100, 500))
NOTHING = "no index"


def main() -> None:
    options = read_options()
    scorer = open_scorer(options)
    encoder = SentenceEncoder(options.encoder, device=options.device)
    report: dict[str, Any] = {"rounds": ROUNDS, "seed": options.seed, "sets": []}
    for name in options.sets:
        data = read_set(name, scorer, options)
        scores = np.array(exact_scores(data.items, data.test.texts, scorer, options.work))
        known = precomputed_scorer(
            scores, queries=data.test.texts, items=data.items.texts, fingerprint=scorer.fingerprint
        )
        vectors = encode_items(data.items, encoder)
        plain = Searcher(data.items, scorer=known, encoder=encoder, vectors=vectors)
        sides = {NOTHING: find(data, plain, scores), "Rerank, fused": find(data, plain, scores, rerank=True)}
        record: dict[str, Any] = {"set": data.name, "items": len(data.items), "test_queries": len(scores)}
        for queries in ("pseudo-queries", "train queries"):
            texts = data.train.texts if queries == "train queries" else None
            index = Index.build(
                data.items,
                scorer=scorer,
                encoder=encoder,
                queries=texts,
                factors=None,
                prior=True,
                calibrate=False,
                seed=options.seed,
            )
            record[f"calls per item, {queries}"] = round(index.report.coverage.calls_per_item, 2)
            sides[queries] = find(data, Searcher(index, scorer=known, encoder=encoder), scores)
        record["recall"] = {side: means(shares) for side, shares in sides.items()}
        record[f"− {NOTHING}"] = {side: compare(shares, sides[NOTHING]) for side, shares in sides.items()}
        report["sets"].append(record)
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help='BEIR folders and the like, or "example" for the embedded one')
    add_options(parser, train=500, test=100)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/pseudo_queries.json"))
    return parser.parse_args()


def find(data: Set, searcher: Searcher, scores: np.ndarray, *, rerank: bool = False) -> Shares:
    make = partial(Rerank, retriever="fused") if rerank else partial(Posterior, rounds=ROUNDS)
    return search_queries(data.test.texts, scores, searcher, make, CELLS)


if __name__ == "__main__":
    main()
