"""Haystack: a pipeline that finds senses of WordNet. Embedded models, no hub, no GPU.

python examples/with_haystack.py "the [head] of the hammer"
"""

from __future__ import annotations

import sys

from haystack import Document, Pipeline

import crossknn as ck
from crossknn.example.wordnet import senses
from crossknn.integrations.haystack import CrossKnnRanker, CrossKnnRetriever


def main() -> None:
    query = sys.argv[1] if len(sys.argv) > 1 else "there was too much for one [person] to do"
    scorer, encoder = ck.CrossEncoder("embedded"), ck.SentenceEncoder("embedded")
    items = senses(200)
    documents = [Document(id=id_, content=text) for id_, text in zip(items.ids, items.texts, strict=True)]
    pipeline = Pipeline()
    retriever = CrossKnnRetriever.from_documents(documents, scorer=scorer, encoder=encoder, top_k=10, budget=50)
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("ranker", CrossKnnRanker(scorer, top_k=3))
    pipeline.connect("retriever.documents", "ranker.documents")
    output = pipeline.run({"retriever": {"query": query}, "ranker": {"query": query}})
    for document in output["ranker"]["documents"]:
        print(f"{document.score:8.2f}  {document.id}  {document.content}")


if __name__ == "__main__":
    main()
