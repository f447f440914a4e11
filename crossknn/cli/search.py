"""`crossknn search`: a corpus or an index, and queries in, hits out."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from crossknn.cli.corpus import (
    SearchEncoderOption,
    VectorsOption,
    check_corpus,
    item_vectors,
    load_search_encoder,
)
from crossknn.cli.explain import PictureOption, check_picture, explain, write_picture
from crossknn.cli.options import (
    DEFAULT_ENCODER,
    DEFAULT_SCORER,
    AnyModelOption,
    CacheOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    IdFieldOption,
    JsonOption,
    ScorerOption,
    Steps,
    TextFieldOption,
    batches,
    load_scorer,
    naming_any_model,
    one_line,
    out,
    print_json,
    read_items,
)
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.indexing.index import Index
    from crossknn.items.items import Items
    from crossknn.search.results import Hits
    from crossknn.search.searcher import Searcher
    from crossknn.strategies.base import Strategy
    from crossknn.types import Encoder, Progress, Scorer

QUERIES_AT_ONCE = 64


class StrategyName(StrEnum):
    rerank = "rerank"
    axn = "axn"
    anncur = "anncur"
    adacur = "adacur"
    tour = "tour"
    gar = "gar"
    posterior = "posterior"
    exact = "exact"


class OrderName(StrEnum):
    score = "score"
    fused = "fused"


class LossName(StrEnum):
    ce = "ce"
    mse = "mse"


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
    budget: Annotated[int, typer.Option(min=1, help="Cross-encoder calls per query.")] = 100,
    strategy: Annotated[
        StrategyName | None,
        typer.Option(help="How the budget is spent. Default: posterior; without encoder or with --retriever rerank."),
    ] = None,
    retriever: Annotated[
        str | None,
        typer.Option(
            help="First stage: dense, bm25, tfidf, random, fused, or with an index fitted. "
            "Default: fused, without encoder bm25."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds of all but rerank, anncur and exact. Default: 10, or a smaller budget."),
    ] = None,
    mix: Annotated[float, typer.Option(min=0, max=1, help="axn: weight of the encoder's query vector (λ).")] = 0.5,
    shortlist: Annotated[int | None, typer.Option(help="axn: search only the first stage's top this many.")] = None,
    anchors: Annotated[
        int | None, typer.Option(min=1, help="anncur: how much of the budget goes to anchor items. Default: half.")
    ] = None,
    loss: Annotated[LossName, typer.Option(help="tour: what its steps make smaller.")] = LossName.ce,
    neighbors: Annotated[int, typer.Option(min=1, help="gar: nearest items of each item.")] = 8,
    train_queries: Annotated[
        Path | None,
        typer.Option(help="axn, tour: estimate α and β on 100 of these queries (10,000 calls), once per run."),
    ] = None,
    scorer: ScorerOption = DEFAULT_SCORER,
    encoder: SearchEncoderOption = DEFAULT_ENCODER,
    vectors: VectorsOption = None,
    filter_ids: Annotated[Path | None, typer.Option(help="File of ids, one per line: only these may be found.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds per batch of queries; then the best so far.")] = None,
    stop_at: Annotated[
        float | None,
        typer.Option(help="posterior: end a query's search once so much of its top k is expected to be found: 0.95."),
    ] = None,
    rank_by: Annotated[
        OrderName, typer.Option(help="Order of hits. fused: the score, dense and bm25 count together.")
    ] = OrderName.score,
    explained: Annotated[
        bool, typer.Option("--explain", help="Say of each hit when it was scored, what was expected, and its ranks.")
    ] = False,
    picture: PictureOption = None,
    any_model: AnyModelOption = False,
    id_field: IdFieldOption = None,
    text_field: TextFieldOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.auto,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search CORPUS with a cross-encoder."""
    for_items = {"--vectors": vectors, "--train-queries": train_queries, "--id-field": id_field}
    is_index = check_corpus(corpus, {**for_items, "--text-field": text_field}, {"--any-model": any_model})
    wanted = _read_queries(queries or [], queries_file)
    check_picture(picture, wanted, exact=strategy is StrategyName.exact)
    chosen = _make_strategy(
        strategy or (StrategyName.rerank if retriever or encoder == "none" else StrategyName.posterior),
        budget=budget,
        rounds=rounds,
        mix=mix,
        retriever=retriever,
        shortlist=shortlist,
        anchors=anchors,
        loss=loss,
        neighbors=neighbors,
        stop_at=stop_at,
    )
    allowed = None if filter_ids is None else set(read_items(filter_ids).texts)
    with Steps() as progress:
        source = (
            _load_index(corpus)
            if is_index
            else read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
        )
        searcher = _make_searcher(
            source,
            scorer=load_scorer(scorer, device=device, dtype=dtype, cache=cache),
            encoder=load_search_encoder(encoder, device=device),
            vectors=vectors,
            any_model=any_model,
            device=device,
            progress=progress,
        )
        if train_queries is not None:
            searcher.fit_normalization(list(read_items(train_queries).texts)[:100])
        found: list[Hits] = []
        for batch in batches(wanted, QUERIES_AT_ONCE):
            some = searcher.search_many(
                batch, k=k, strategy=chosen, filter=allowed, deadline=deadline, rank_by=rank_by.value
            )
            if picture is not None:
                write_picture(picture, some[0])
            if as_json:
                print_json([_hits_as_json(hits, explained=explained) for hits in some])
            else:
                found += some
    for hits in found:
        _print_hits(hits, searcher.items, explained=explained)


def _load_index(folder: Path) -> Index:
    from crossknn.indexing.index import Index

    return Index.load(folder)


def _make_strategy(
    name: StrategyName,
    *,
    budget: int,
    rounds: int | None,
    mix: float,
    retriever: str | None,
    shortlist: int | None,
    anchors: int | None,
    loss: LossName,
    neighbors: int,
    stop_at: float | None,
) -> Strategy:
    from crossknn.strategies.axn import Axn
    from crossknn.strategies.cur import AdaCur, AnnCur
    from crossknn.strategies.exact import Exact
    from crossknn.strategies.gar import Gar
    from crossknn.strategies.posterior.strategy import Posterior
    from crossknn.strategies.rerank import Rerank
    from crossknn.strategies.tour import Tour

    if stop_at is not None and name is not StrategyName.posterior:
        raise InputError(f"--stop-at goes with --strategy posterior, and an encoder. Got {name.value} instead.")
    rounds = min(Posterior.rounds, budget) if rounds is None else rounds
    make: dict[StrategyName, Callable[[], Strategy]] = {
        StrategyName.rerank: lambda: Rerank(budget=budget, retriever=retriever),
        StrategyName.axn: lambda: Axn(budget=budget, rounds=rounds, mix=mix, first=retriever, shortlist=shortlist),
        StrategyName.anncur: lambda: AnnCur(budget=budget, anchors=anchors),
        StrategyName.adacur: lambda: AdaCur(budget=budget, rounds=rounds, first=retriever),
        StrategyName.tour: lambda: Tour(budget=budget, rounds=rounds, loss=loss.value),
        StrategyName.gar: lambda: Gar(budget=budget, rounds=rounds, neighbors=neighbors, first=retriever),
        StrategyName.posterior: lambda: Posterior(budget, rounds, first=retriever, stop_at=stop_at),
        StrategyName.exact: Exact,
    }
    return make[name]()


def _make_searcher(
    source: Items | Index,
    *,
    scorer: Scorer,
    encoder: Encoder | None,
    vectors: Path | None,
    any_model: bool,
    device: str | None,
    progress: Progress,
) -> Searcher:
    from crossknn.items.items import Items
    from crossknn.search.searcher import Searcher

    array = item_vectors(source, encoder, vectors, progress) if isinstance(source, Items) else None
    with naming_any_model():
        return Searcher(
            source,
            scorer=scorer,
            encoder=encoder,
            vectors=array,
            device=device,
            check_models=not any_model,
            progress=progress,
        )


def _read_queries(given: list[str], path: Path | None) -> list[str]:
    if bool(given) == (path is not None):
        raise InputError("give queries as arguments or in a file with --queries, one of the two.")
    return given if path is None else list(read_items(path).texts)


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
    said = () if explained else ("round", "by")  # an explanation says it, too
    table = Table("", "score", *said, "id", "text", title=Text(hits.query), title_justify="left")
    for rank, hit in enumerate(hits, 1):
        text = Text(one_line(items.text(hit.row)))
        if explained:
            text.append(f"\n{explain(hit)}", "dim")
        found = () if explained else (str(hit.round), hit.proposed_by)
        table.add_row(str(rank), f"{hit.score:.3f}", *found, Text(hit.id), text)
    out.print(table)
    note = "" if hits.complete else f", stopped by {hits.stopped}: best so far"
    if hits.expected_recall is not None:
        note += f"; {100 * hits.expected_recall:.0f} % of the top {len(hits)} are expected to be found"
    out.print(
        f"{hits.calls} calls in {hits.rounds} rounds, {hits.seconds:.2f} s ({hits.score_seconds:.2f} s scoring){note}"
    )
