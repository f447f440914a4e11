"""`crossknn search`: a corpus and queries in, hits out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from crossknn.cli.common import (
    DEFAULT_ENCODER,
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
    read_items,
)
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.hits import Hits
    from crossknn.items import Items
    from crossknn.searcher import Searcher
    from crossknn.strategies.base import Strategy
    from crossknn.types import Encoder, Progress, Scorer

QUERIES_AT_ONCE = 64


class StrategyName(StrEnum):
    rerank = "rerank"
    axn = "axn"
    exact = "exact"


def search(
    corpus: Annotated[Path, typer.Argument(help="Items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")],
    queries: Annotated[list[str] | None, typer.Argument(metavar="[QUERY]...", help="What to search for.")] = None,
    queries_file: Annotated[
        Path | None, typer.Option("--queries", help="File of queries, one per line or jsonl.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per query.")] = 10,
    budget: Annotated[int, typer.Option(min=1, help="Cross-encoder calls per query.")] = 100,
    strategy: Annotated[StrategyName, typer.Option(help="How the budget is spent.")] = StrategyName.rerank,
    retriever: Annotated[
        str | None,
        typer.Option(help="First stage: dense, bm25, tfidf, random or fused. Default: fused, without encoder bm25."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of axn.")] = 10,
    mix: Annotated[float, typer.Option(min=0, max=1, help="axn: weight of the encoder's query vector (λ).")] = 0.5,
    shortlist: Annotated[int | None, typer.Option(help="axn: search only the first stage's top this many.")] = None,
    train_queries: Annotated[
        Path | None, typer.Option(help="axn: estimate α and β on 100 of these queries (10,000 calls), once per run.")
    ] = None,
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: Annotated[
        str, typer.Option(help="Dual encoder: a hub name, a local folder, 'embedded' (needs no hub), or 'none'.")
    ] = DEFAULT_ENCODER,
    vectors: Annotated[
        Path | None,
        typer.Option(help="File (.npy) of the items' vectors: used if it exists, else written for next time."),
    ] = None,
    filter_ids: Annotated[Path | None, typer.Option(help="File of ids, one per line: only these may be found.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds per batch of queries; then the best so far.")] = None,
    id_field: Annotated[str | None, typer.Option(help="Field or column of the item's id.")] = None,
    text_field: Annotated[
        list[str] | None, typer.Option(help="Field or column of the text; repeat to join several.")
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search CORPUS with a cross-encoder."""
    wanted = _read_queries(queries or [], queries_file)
    chosen = _make_strategy(strategy, budget=budget, rounds=rounds, mix=mix, retriever=retriever, shortlist=shortlist)
    allowed = None if filter_ids is None else set(read_items(filter_ids).texts)
    with Steps() as progress:
        items = read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
        searcher = _make_searcher(
            items,
            scorer=load_scorer(scorer, device=device, dtype=dtype, cache=cache),
            encoder=None if encoder == "none" else _load_encoder(encoder, device=device),
            vectors=vectors,
            device=device,
            progress=progress,
        )
        if train_queries is not None:
            searcher.fit_normalization(list(read_items(train_queries).texts)[:100])
        found: list[Hits] = []
        for batch in batches(wanted, QUERIES_AT_ONCE):
            found += searcher.search_many(batch, k=k, strategy=chosen, filter=allowed, deadline=deadline)
            if as_json:
                print_json([_hits_as_json(hits) for hits in found])
                found = []
    for hits in found:
        _print_hits(hits, items)


def _make_strategy(
    name: StrategyName, *, budget: int, rounds: int, mix: float, retriever: str | None, shortlist: int | None
) -> Strategy:
    from crossknn.strategies.axn import Axn
    from crossknn.strategies.exact import Exact
    from crossknn.strategies.rerank import Rerank

    if name is StrategyName.exact:
        return Exact()
    if name is StrategyName.rerank:
        return Rerank(budget=budget, retriever=retriever)
    return Axn(budget=budget, rounds=rounds, mix=mix, first=retriever, shortlist=shortlist)


def _make_searcher(
    items: Items,
    *,
    scorer: Scorer,
    encoder: Encoder | None,
    vectors: Path | None,
    device: str | None,
    progress: Progress,
) -> Searcher:
    from crossknn.encoders.corpus import encode_items
    from crossknn.searcher import Searcher

    array: Any = None
    if vectors is not None:
        if encoder is None:
            raise InputError(
                "--vectors needs an --encoder: query vectors must come from the model of the item vectors."
            )
        array = encode_items(items, encoder, path=vectors, progress=progress)
    return Searcher(items, scorer=scorer, encoder=encoder, vectors=array, device=device, progress=progress)


def _load_encoder(name: str, *, device: str | None) -> Encoder:
    from crossknn.encoders.sentence import SentenceEncoder

    return SentenceEncoder(name, device=device)


def _read_queries(given: list[str], path: Path | None) -> list[str]:
    if bool(given) == (path is not None):
        raise InputError("give queries as arguments or in a file with --queries, one of the two.")
    return given if path is None else list(read_items(path).texts)


def _hits_as_json(hits: Hits) -> dict[str, Any]:
    names = ("id", "score", "estimate", "round", "proposed_by")
    return {
        "query": hits.query,
        "hits": [{name: getattr(hit, name) for name in names} for hit in hits],
        "calls": hits.calls,
        "rounds": hits.rounds,
        "stopped": hits.stopped,
        "seconds": round(hits.seconds, 6),
        "score_seconds": round(hits.score_seconds, 6),
    }


def _print_hits(hits: Hits, items: Items) -> None:
    table = Table("", "score", "round", "by", "id", "text", title=Text(hits.query), title_justify="left")
    for rank, hit in enumerate(hits, 1):
        text = Text(one_line(items.text(hit.row)))
        table.add_row(str(rank), f"{hit.score:.3f}", str(hit.round), hit.proposed_by, Text(hit.id), text)
    out.print(table)
    note = "" if hits.complete else f", stopped by {hits.stopped}: best so far"
    out.print(
        f"{hits.calls} calls in {hits.rounds} rounds, {hits.seconds:.2f} s ({hits.score_seconds:.2f} s scoring){note}"
    )
