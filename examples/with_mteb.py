"""MTEB: a small task of WordNet's example sentences, evaluated by MTEB. Embedded models, no hub, no GPU.

python examples/with_mteb.py
"""

from __future__ import annotations

from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

import crossknn as ck
from crossknn.example.wordnet import queries, senses
from crossknn.integrations.mteb import CrossKnnSearch


class WordSenses(AbsTaskRetrieval):
    """Which sense of a word a sentence uses; for a task of the benchmark use `mteb.get_tasks(tasks=["SciFact"])`."""

    metadata = TaskMetadata(
        name="WordSenses",
        description="Sentences with a marked word, and the sense in which they use it.",
        dataset={"path": "none", "revision": "1"},
        type="Retrieval",
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, **_: Any) -> None:
        items = senses(200)
        test_queries = queries("test", among=items)[:20]
        self.dataset = {
            "default": {
                "test": {
                    "corpus": Dataset.from_dict({"id": list(items.ids), "text": list(items.texts)}),
                    "queries": Dataset.from_list(
                        [{"id": str(n), "text": query.text} for n, query in enumerate(test_queries)]
                    ),
                    "relevant_docs": {str(n): {query.sense: 1} for n, query in enumerate(test_queries)},
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


def main() -> None:
    model = CrossKnnSearch(ck.CrossEncoder("embedded"), encoder=ck.SentenceEncoder("embedded"), budget=40)
    results = mteb.evaluate(model, WordSenses(), cache=None, show_progress_bar=False)
    scores = results.task_results[0].scores["test"][0]
    for measure in ("ndcg_at_10", "recall_at_1", "recall_at_10"):
        print(f"{measure:12}  {scores[measure]:.3f}")


if __name__ == "__main__":
    main()
