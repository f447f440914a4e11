"""PyTerrier: an experiment that compares budgets on WordNet's example sentences. Embedded models, no hub, no Java.

python examples/with_pyterrier.py
"""

from __future__ import annotations

import pandas as pd
import pyterrier as pt

import crossknn as ck
from crossknn.example.wordnet import queries, senses
from crossknn.integrations.pyterrier import CrossKnnRetriever

BUDGETS = (10, 40)


def main() -> None:
    items = senses(200)
    test_queries = queries("test", among=items)[:20]
    topics = pd.DataFrame({"qid": map(str, range(len(test_queries))), "query": [query.text for query in test_queries]})
    qrels = topics[["qid"]].assign(docno=[query.sense for query in test_queries], label=1)
    searcher = ck.Searcher(items, scorer=ck.CrossEncoder("embedded"), encoder=ck.SentenceEncoder("embedded"))
    retrievers = [CrossKnnRetriever(searcher, k=10, budget=budget) for budget in BUDGETS]
    names = [f"{budget} calls" for budget in BUDGETS]
    print(pt.Experiment(retrievers, topics, qrels, ["P_1", "recip_rank"], names=names).to_string(index=False))


if __name__ == "__main__":
    main()
