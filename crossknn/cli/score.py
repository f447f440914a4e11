"""`crossknn score`: pairs in, raw logits out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from crossknn.cli.options import (
    DEFAULT_SCORER,
    CacheOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    JsonOption,
    ScorerOption,
    Steps,
    batches,
    load_scorer,
    one_line,
    out,
    print_json,
)
from crossknn.errors import InputError

PAIRS_AT_ONCE = 4096


def score(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY ITEM...]", help="A query and the items to score.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="File of pairs: .jsonl, .csv or .tsv with fields 'query' and 'item'.")
    ] = None,
    scorer: ScorerOption = DEFAULT_SCORER,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score pairs of texts with a cross-encoder: raw logits, in the order given."""
    from crossknn.scorers.base import score_pairs

    wanted, total = _read_pairs(texts or [], pairs)
    table = Table("score", "query", "item")
    with Steps() as progress:
        model = load_scorer(scorer, device=device, dtype=dtype, cache=cache)
        done = 0
        for batch in batches(wanted, PAIRS_AT_ONCE):
            scores = score_pairs(model, [query for query, _ in batch], [item for _, item in batch])
            done += len(batch)
            progress("scoring", done, max(done, total))
            if as_json:
                print_json([_pair_as_json(q, i, s) for (q, i), s in zip(batch, scores, strict=True)])
            else:
                for (query, item), value in zip(batch, scores, strict=True):
                    table.add_row(f"{value:.4f}", Text(one_line(query)), Text(one_line(item)))
    if not as_json:
        out.print(table)


def _read_pairs(texts: list[str], path: Path | None) -> tuple[Iterator[tuple[str, str]], int]:
    """The pairs, one at a time, and how many there are (0 where that is not known yet)."""
    from crossknn.items import fields, readers

    if path is None:
        if len(texts) < 2:
            raise InputError("give a query and at least one item, or a file of pairs with --pairs.")
        return ((texts[0], item) for item in texts[1:]), len(texts) - 1
    if texts:
        raise InputError("give texts as arguments or pairs in a file with --pairs, not both.")
    limits: dict[str, Any] = {"errors": "strict", "max_line_bytes": readers.MAX_LINE_BYTES}
    source: readers.Source
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        source = readers.Csv(path, delimiter=None, quote='"', id="query", text="item", join=" ", **limits)
    else:
        source = readers.JsonLines(path, fields.Fields.of("query", "item", " "), **limits)
    return ((query, item) for query, item, _ in source), 0


def _pair_as_json(query: str, item: str, value: float) -> dict[str, Any]:
    return {"query": query, "item": item, "score": float(value)}
