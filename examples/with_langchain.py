"""LangChain: a chain that finds senses of WordNet and keeps the best ones. Embedded models, no hub, no GPU.

python examples/with_langchain.py "the [head] of the hammer"
"""

from __future__ import annotations

import sys

from langchain_core.runnables import RunnableLambda

import crossknn as ck
from crossknn.example.wordnet import senses
from crossknn.integrations.langchain import CrossKnnRetriever


def main() -> None:
    query = sys.argv[1] if len(sys.argv) > 1 else "there was too much for one [person] to do"
    searcher = ck.Searcher(senses(200), scorer=ck.CrossEncoder("embedded"), encoder=ck.SentenceEncoder("embedded"))
    retriever = CrossKnnRetriever(searcher=searcher, k=3, budget=50)
    show = RunnableLambda(
        lambda documents: [
            f"{document.metadata['score']:8.2f}  {document.id}  {document.page_content}" for document in documents
        ]
    )
    chain = retriever | show
    print("\n".join(chain.invoke(query)))


if __name__ == "__main__":
    main()
