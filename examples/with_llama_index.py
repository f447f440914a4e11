"""LlamaIndex: senses of WordNet as nodes, found by a retriever and reranked. Embedded models, no hub, no GPU.

python examples/with_llama_index.py "the [head] of the hammer"
"""

from __future__ import annotations

import sys

from llama_index.core.schema import TextNode

import crossknn as ck
from crossknn.example.wordnet import senses
from crossknn.integrations.llama_index import CrossKnnPostprocessor, CrossKnnRetriever


def main() -> None:
    query = sys.argv[1] if len(sys.argv) > 1 else "there was too much for one [person] to do"
    scorer, encoder = ck.CrossEncoder("embedded"), ck.SentenceEncoder("embedded")
    items = senses(200)
    nodes = [TextNode(id_=id_, text=text) for id_, text in zip(items.ids, items.texts, strict=True)]
    retriever = CrossKnnRetriever.from_nodes(nodes, scorer=scorer, encoder=encoder, k=10, budget=50)
    best = CrossKnnPostprocessor(scorer=scorer, k=3)
    for node in best.postprocess_nodes(retriever.retrieve(query), query_str=query):
        print(f"{node.score:8.2f}  {node.node_id}  {node.text}")


if __name__ == "__main__":
    main()
