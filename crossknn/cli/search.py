"""`crossknn search`: the hits of queries in a corpus or an index, with explanations and a picture of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from crossknn.cli import options
from crossknn.cli.console import ProgressBars, one_line, out, print_json
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.items.items import Items
    from crossknn.search.results import Hit, Hits

QUERY_BATCH = 64
NORMALIZATION_QUERIES = 100


class RankBy(StrEnum):
    score = "score"
    fused = "fused"


def search(
    corpus: Annotated[
        Path,
        typer.Argument(help="An index, or items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder."),
    ],
    queries: Annotated[list[str] | None, typer.Argument(metavar="[QUERY]...", help="What to search for.")] = None,
    queries_file: Annotated[
        Path | None, typer.Option("--queries", help="File of queries, one per line or jsonl.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per query.")] = 10,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="How to spend the budget: {strategies}. Settings follow after colons, as in axn:mix=0.8:first=bm25. "
            "Default: posterior; rerank without an encoder or with --retriever."
        ),
    ] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Cross-encoder calls per query. Default: 100.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of adaptive strategies. Default: 10, or a smaller budget.")
    ] = None,
    retriever: Annotated[
        str | None,
        typer.Option(
            help="First stage: dense, bm25, tfidf, random, fused, or with an index fitted. "
            "Default: fused, without an encoder bm25."
        ),
    ] = None,
    stop_at: Annotated[
        float | None,
        typer.Option(
            help="{strategies with stop_at}: stop a query once this share of its top k is expected to be found, "
            "as 0.95."
        ),
    ] = None,
    train_queries: Annotated[
        Path | None,
        typer.Option(
            help="For strategies that normalize scores, such as axn: estimate α and β on 100 of these queries "
            "(10,000 calls), once per run."
        ),
    ] = None,
    scorer: options.ScorerOption = options.DEFAULT_SCORER,
    encoder: options.OptionalEncoderOption = options.DEFAULT_ENCODER,
    vectors: options.VectorsOption = None,
    filter_ids: Annotated[Path | None, typer.Option(help="File of ids, one per line: search only these items.")] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds per batch of queries; then return the best hits so far.")
    ] = None,
    rank_by: Annotated[
        RankBy, typer.Option(help="Order of the hits: by score, or by score, dense and bm25 fused.")
    ] = RankBy.score,
    explained: Annotated[
        bool, typer.Option("--explain", help="Show each hit's round, estimate and rank by every retriever.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE.png", help="Plot the estimates and scores of a query, round by round."),
    ] = None,
    any_model: options.AnyModelOption = False,
    id_field: options.IdFieldOption = None,
    text_field: options.TextFieldOption = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = options.Dtype.auto,
    cache: options.CacheOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Search CORPUS with a cross-encoder."""
    from crossknn.indexing.index import Index
    from crossknn.search.searcher import Searcher
    from crossknn.strategies.exact import Exact

    for_items = {"--vectors": vectors, "--train-queries": train_queries, "--id-field": id_field}
    options.check_corpus_options(
        corpus, for_items={**for_items, "--text-field": text_field}, for_index={"--any-model": any_model}
    )
    texts = _read_queries(queries or [], queries_file)
    chosen = options.choose_strategy(
        strategy or ("rerank" if retriever or encoder == "none" else "posterior"),
        {"budget": budget, "rounds": rounds, "retriever": retriever, "stop_at": stop_at},
    )
    if picture is not None:
        _check_picture(picture, texts, exact=isinstance(chosen, Exact))
    allowed = None if filter_ids is None else set(options.read_items(filter_ids).texts)
    found: list[Hits] = []
    with ProgressBars() as progress:
        source: Items | Index
        if options.is_index(corpus):
            source = Index.load(corpus)
        else:
            source = options.read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
        model = options.load_scorer(scorer, device=device, dtype=dtype, cache=cache)
        dual_encoder = options.load_encoder(encoder, device=device)
        searcher = Searcher(
            source,
            scorer=model,
            encoder=dual_encoder,
            vectors=options.load_vectors(source, dual_encoder, vectors, progress),
            device=device,
            check_models=not any_model,
            progress=progress,
        )
        if train_queries is not None:
            searcher.fit_normalization(list(options.read_items(train_queries).texts)[:NORMALIZATION_QUERIES])
        for batch in options.batches(texts, QUERY_BATCH):
            some = searcher.search_many(
                batch, k=k, strategy=chosen, filter=allowed, deadline=deadline, rank_by=rank_by.value
            )
            if picture is not None:
                _write_picture(picture, some[0])
            if as_json:
                print_json([_hits_as_json(hits, explained=explained) for hits in some])
            else:
                found += some
    for hits in found:
        _print_hits(hits, searcher.items, explained=explained)


def _read_queries(given: list[str], path: Path | None) -> list[str]:
    if bool(given) == (path is not None):
        raise InputError("Give queries either as arguments or in a file with --queries.")
    return given if path is None else list(options.read_items(path).texts)


def _hits_as_json(hits: Hits, *, explained: bool) -> dict[str, Any]:
    names = ("id", "score", "estimate", "round", "proposed_by", *(("deviation", "ranks") if explained else ()))
    return {
        "query": hits.query,
        "hits": [{name: getattr(hit, name) for name in names} for hit in hits],
        "calls": hits.calls,
        "rounds": hits.rounds,
        "stopped": hits.stopped,
        "expected_recall": None if hits.expected_recall is None else round(hits.expected_recall, 4),
        "seconds": round(hits.seconds, 6),
        "score_seconds": round(hits.score_seconds, 6),
    }


def _print_hits(hits: Hits, items: Items, *, explained: bool) -> None:
    origin = () if explained else ("round", "by")  # part of an explanation anyway
    table = Table("", "score", *origin, "id", "text", title=Text(hits.query), title_justify="left")
    for rank, hit in enumerate(hits, 1):
        text = Text(one_line(items.text(hit.row)))
        if explained:
            text.append(f"\n{explain(hit)}", "dim")
        origin = () if explained else (str(hit.round), hit.proposed_by)
        table.add_row(str(rank), f"{hit.score:.3f}", *origin, Text(hit.id), text)
    out.print(table)
    note = "" if hits.complete else f", stopped by {hits.stopped}: best so far"
    if hits.expected_recall is not None:
        note += f"; expected recall of the top {len(hits)}: {100 * hits.expected_recall:.0f} %"
    out.print(
        f"{hits.calls} calls in {hits.rounds} rounds, {hits.seconds:.2f} s ({hits.score_seconds:.2f} s scoring){note}"
    )


def explain(hit: Hit) -> str:
    """The round in which a hit was scored, who proposed it, its estimate before, and its rank by each retriever."""
    deviation = "" if hit.deviation is None else f" ± {hit.deviation:.2f}"
    expected = "" if hit.expected is None else f"expected {hit.expected:.2f}{deviation} → "
    ranks = ", ".join(f"{name} {'–' if rank is None else rank}" for name, rank in hit.ranks.items())
    origin = f"round {hit.round}, {hit.proposed_by}: {expected}{hit.score:.2f}"
    return f"{origin}; ranks: {ranks}" if ranks else origin


def _check_picture(path: Path, queries: Sequence[str], *, exact: bool) -> None:
    """Raise an error before anything is scored if the picture cannot be drawn or written."""
    from crossknn._imports import import_extra

    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise InputError(f"--picture must be a .png file in an existing folder, got {str(path)!r}.")
    if len(queries) != 1:
        raise InputError(f"--picture shows one query, got {len(queries)}. Search for one, or leave it out.")
    if exact:
        raise InputError("--picture shows the rounds of a search, and exact search has none. Leave it out.")
    import_extra("matplotlib", extra="report")


def _write_picture(path: Path, hits: Hits) -> None:
    from crossknn.evaluate.report.round_plots import draw_rounds
    from crossknn.storage.atomic import write_atomic

    try:
        write_atomic(path, draw_rounds(hits))
    except OSError as error:
        raise InputError(f"{path}: the picture cannot be written ({error.strerror or error}).") from error
