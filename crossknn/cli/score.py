"""`crossknn score`: the raw logits of query–item pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from crossknn.cli import options
from crossknn.cli.console import ProgressBars, one_line, out, print_json
from crossknn.errors import InputError

PAIR_BATCH = 4096


def score(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY ITEM...]", help="A query and the items to score.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="File of pairs: .jsonl, .csv or .tsv with the fields 'query' and 'item'.")
    ] = None,
    scorer: options.ScorerOption = options.DEFAULT_SCORER,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = options.Dtype.auto,
    cache: options.CacheOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Score pairs of texts with a cross-encoder: raw logits, in the given order."""
    from crossknn.scorers.base import score_pairs

    given, total = _read_pairs(texts or [], pairs)
    table = Table("score", "query", "item")
    with ProgressBars() as progress:
        model = options.load_scorer(scorer, device=device, dtype=dtype, cache=cache)
        done = 0
        for batch in options.batches(given, PAIR_BATCH):
            scores = score_pairs(model, [query for query, _ in batch], [item for _, item in batch])
            done += len(batch)
            progress("scoring", done, max(done, total))
            scored = [(query, item, float(value)) for (query, item), value in zip(batch, scores, strict=True)]
            if as_json:
                print_json([{"query": query, "item": item, "score": value} for query, item, value in scored])
                continue
            for query, item, value in scored:
                table.add_row(f"{value:.4f}", Text(one_line(query)), Text(one_line(item)))
    if not as_json:
        out.print(table)


def _read_pairs(texts: list[str], path: Path | None) -> tuple[Iterator[tuple[str, str]], int]:
    """An iterator over the pairs, and their number (0 if unknown)."""
    from crossknn.items import readers

    if path is None:
        if len(texts) < 2:
            raise InputError("Give a query and at least one item, or a file of pairs with --pairs.")
        return ((texts[0], item) for item in texts[1:]), len(texts) - 1
    if texts:
        raise InputError("Give either texts as arguments or pairs in a file with --pairs.")
    source: readers.Source
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        source = readers.Csv(path, id="query", text="item")
    else:
        source = readers.JsonLines(path, readers.Fields("query", ("item",)))
    return ((query, item) for query, item, _ in source), 0
