"""`crossknn search` and `crossknn score`: hits of queries, explained and drawn, and the logits of given pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from crossknn._checks import check_queries
from crossknn.cli import options
from crossknn.cli.config import configurable
from crossknn.cli.console import ProgressBars, out, print_json
from crossknn.errors import InputError
from crossknn.search.rendering import MISSING, explain, one_line, show_fields, show_score, summarize

if TYPE_CHECKING:
    from crossknn.items.items import Items
    from crossknn.search.results import Hits
    from crossknn.types import Filter

QUERY_BATCH = 64
PAIR_BATCH = 4096
NORMALIZATION_QUERIES = 100
RankBy = StrEnum("RankBy", ["score", "fused"])


@configurable
@options.with_groups
def search(
    *,
    corpus: Annotated[Path, Argument(help="An index, or items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")],
    queries: Annotated[list[str] | None, Argument(metavar="[QUERY]...", help="What to search for.")] = None,
    queries_file: Annotated[Path | None, Option("--queries", help="File of queries, one per line or jsonl.")] = None,
    k: Annotated[int | None, Option("-k", min=1, help="Hits per query. Default: 10, or a smaller budget.")] = None,
    strategy: Annotated[
        str | None,
        Option(
            help="How to spend the budget: {strategies}. Settings follow after colons, as in axn:mix=0.8:first=bm25. "
            "Default: posterior; rerank without query vectors or with --retriever."
        ),
    ] = None,
    budget: Annotated[int | None, Option(min=1, help="Cross-encoder calls per query. Default: 100.")] = None,
    rounds: Annotated[
        int | None, Option(min=1, help="Rounds of adaptive strategies. Default: 10, or fewer where they would be slow.")
    ] = None,
    retriever: Annotated[
        str | None,
        Option(
            help="First stage: dense, bm25, tfidf, random, fused, or with an index fitted. "
            "Default: fused, without an encoder bm25."
        ),
    ] = None,
    stop_at: Annotated[
        float | None,
        Option(
            help="{strategies with stop_at}: stop a query once this share of its top k is expected to be found, "
            "as 0.95."
        ),
    ] = None,
    train_queries: Annotated[
        Path | None,
        Option(
            help="For strategies that normalize scores, such as axn: estimate α and β on 100 of these queries "
            "(10,000 calls), once per run."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        Option(
            metavar="CONDITION",
            help="Search only items whose field meets this: 'section = utils', 'size < 5000', 'section in utils, io'. "
            "Operators: = != < <= > >= in, not in. Repeat for several conditions, which must all hold.",
        ),
    ] = None,
    filter_ids: Annotated[Path | None, Option(help="File of ids, one per line: search only these items.")] = None,
    deadline: Annotated[
        float | None, Option(help="Seconds per batch of queries; then return the best hits so far, and candidates.")
    ] = None,
    rank_by: Annotated[
        RankBy, Option(help="Order of the hits: by score, or by score, dense and bm25 fused.")
    ] = RankBy.score,
    min_score: Annotated[float | None, Option(help="Leave out hits of a lower score; there may be none left.")] = None,
    min_probability: Annotated[
        float | None, Option(help="Leave out hits that are less likely relevant, by --calibration.")
    ] = None,
    diversity: Annotated[
        float, Option(help="Weight of unlikeness in the order of hits, from 0 (off) to 1: maximal marginal relevance.")
    ] = 0.0,
    explained: Annotated[
        bool, Option("--explain", help="Show each hit's round, estimate and ranks; with --json, every call.")
    ] = False,
    picture: Annotated[
        Path | None, Option(metavar="FILE.png", help="Plot the estimates and scores of a query, round by round.")
    ] = None,
    opened: options.SourceOptions,
    verify: options.VerifyOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Search CORPUS with a cross-encoder."""
    from crossknn.indexing.index import Index
    from crossknn.search.options import SearchOptions, choose_k
    from crossknn.search.searcher import Searcher
    from crossknn.strategies.exact import Exact

    opened.check(corpus, train_queries=train_queries, verify=verify)
    texts = check_queries(options.given_texts("queries", queries, queries_file))
    settings = {"budget": budget, "rounds": rounds, "retriever": retriever, "stop_at": stop_at}
    named = strategy or ("rerank" if retriever or opened.encoder == "none" else None)
    chosen = options.choose_strategy(named or "posterior", settings)
    choose_k(k, chosen.budget)  # an error now, before models are loaded
    kept = {"min_score": min_score, "min_probability": min_probability, "diversity": diversity}
    arguments: dict[str, Any] = {"k": k, "deadline": deadline, "rank_by": rank_by.value, **kept}
    SearchOptions(**arguments)  # likewise
    if picture is not None:
        _check_picture(picture, texts, exact=isinstance(chosen, Exact))
    ids = None if filter_ids is None else options.read_texts(filter_ids)
    train = None if train_queries is None else check_queries(options.read_texts(train_queries))
    found: list[Hits] = []
    with ProgressBars() as progress:
        source = Index.load(corpus, verify=verify) if options.is_index(corpus) else opened.read(corpus, progress)
        opened.check_strategy(chosen, source)
        allowed = _make_filter(where, ids, source.items if isinstance(source, Index) else source)
        searcher = Searcher(source, **opened.arguments(source, corpus, progress))
        if train is not None:
            searcher.fit_normalization(train[:NORMALIZATION_QUERIES])
        if named is None and not searcher.has_query_vectors:
            chosen = options.choose_strategy("rerank", settings)
        for start in range(0, len(texts), QUERY_BATCH):
            batch = texts[start : start + QUERY_BATCH]
            some = searcher.search_many(batch, strategy=chosen, filter=allowed, **arguments)
            if picture is not None:
                _write_picture(picture, some[0])
            if as_json:
                print_json([hits.to_dict(trace=explained) for hits in some])
            else:
                found += some
    for hits in found:
        _print_hits(hits, explained=explained)


@configurable
@options.with_groups
def score(
    *,
    texts: Annotated[
        list[str] | None, Argument(metavar="[QUERY ITEM...]", help="A query and the items to score.")
    ] = None,
    pairs: Annotated[
        Path | None, Option(help="File of pairs: .jsonl, .csv or .tsv with the fields 'query' and 'item'.")
    ] = None,
    models: options.ScorerOptions,
    cache: options.CacheOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Score pairs of texts with a cross-encoder: raw logits, in the given order."""
    from crossknn.scorers.base import score_pairs

    given = _read_pairs(texts or [], pairs)
    first = list(islice(given, PAIR_BATCH))  # read before the model is loaded: a file may be missing or damaged
    total = 0 if pairs else len(texts or []) - 1
    table = Table("score", "query", "item")
    with ProgressBars() as progress:
        model = models.load_scorer(cache=cache)
        done = 0
        for batch in chain([first], _batches(given)):
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


def _make_filter(where: list[str] | None, ids: list[str] | None, items: Items) -> Filter | None:
    """The conditions on fields and the ids, all of which must hold."""
    from crossknn.cli.where import parse_conditions

    if not where:
        return ids
    allowed = parse_conditions(where, items.fields)
    try:
        items.mask(allowed)  # before anything is scored
    except InputError as error:
        raise InputError(str(error).replace("`filter`", "--where")) from error
    return allowed if ids is None else allowed | {"_id": ids}


def _batches(pairs: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    while batch := list(islice(pairs, PAIR_BATCH)):
        yield batch


def _read_pairs(texts: list[str], path: Path | None) -> Iterator[tuple[str, str]]:
    from crossknn.items import readers

    if path is None:
        if len(texts) < 2:
            raise InputError("Give a query and at least one item, or a file of pairs with --pairs.")
        return ((texts[0], item) for item in texts[1:])
    if texts:
        raise InputError("Give either texts as arguments or pairs in a file with --pairs.")
    source: readers.Source
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        source = readers.Csv(path, fields={"id": "query", "text": "item", "fields": ()})
    else:
        source = readers.JsonLines(path, readers.Fields("query", ("item",)))
    return ((query, item) for query, item, _ in source)


def _print_hits(hits: Hits, *, explained: bool) -> None:
    origin = () if explained else ("round", "by")  # part of an explanation anyway
    table = Table("", "score", *origin, "id", "text", title=Text(hits.query), title_justify="left")
    for rank, hit in enumerate(hits, 1):
        text = Text(one_line(hit.text))
        if explained:
            fields = [one_line(show_fields(hit))] if hit.fields else []
            text.append("".join(f"\n{line}" for line in (*fields, explain(hit))), "dim")
        origin = () if explained else (str(hit.round) if hit.scored else MISSING, hit.proposed_by)
        table.add_row(str(rank), show_score(hit), *origin, Text(hit.id), text)
    out.print(table)
    out.print(summarize(hits))
    if explained and hits.rounds_reason:
        out.print(f"rounds: {hits.rounds_reason}", style="dim", highlight=False)


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
    from crossknn.storage.atomic import disk_errors, write_atomic

    with disk_errors(path, "the picture cannot be written"):
        write_atomic(path, draw_rounds(hits))
