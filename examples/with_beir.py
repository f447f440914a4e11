"""BEIR: WordNet's example sentences in BEIR's layout, evaluated by BEIR. Embedded models, no hub, no GPU.

python examples/with_beir.py
"""

from __future__ import annotations

from beir.retrieval.evaluation import EvaluateRetrieval

import crossknn as ck
from crossknn.example.wordnet import queries, senses
from crossknn.integrations.beir import CrossKnnSearch


def main() -> None:
    items = senses(200)
    test_queries = {str(number): query for number, query in enumerate(queries("test", among=items)[:20])}
    corpus = {id_: {"title": "", "text": text} for id_, text in zip(items.ids, items.texts, strict=True)}
    search = CrossKnnSearch(ck.CrossEncoder("embedded"), encoder=ck.SentenceEncoder("embedded"), budget=40)
    evaluation = EvaluateRetrieval(search, k_values=[1, 10])
    results = evaluation.retrieve(corpus, {id_: query.text for id_, query in test_queries.items()})
    qrels = {id_: {query.sense: 1} for id_, query in test_queries.items()}
    ndcg, _, recall, _ = evaluation.evaluate(qrels, results, evaluation.k_values)
    for measure, value in {**ndcg, **recall}.items():
        print(f"{measure:10}  {value:.3f}")


if __name__ == "__main__":
    main()
