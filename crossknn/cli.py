"""The command line: `crossknn search`, `crossknn score`.

Results go to standard output, progress and messages to standard error. Exit codes: 0 done, 1 a scorer,
encoder, retriever or strategy failed, 2 input that cannot be used, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

from crossknn.errors import CrossKnnError, InputError, MissingExtra, ModelNotFound

if TYPE_CHECKING:
    from crossknn.hits import Hits
    from crossknn.items import Items
    from crossknn.searcher import Searcher
    from crossknn.strategies.base import Strategy
    from crossknn.types import Encoder, Progress, Scorer

DEFAULT_SCORER = "cross-encoder/ms-marco-MiniLM-L6-v2"
DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
QUERIES_AT_ONCE = 64
PAIRS_AT_ONCE = 4096

app = typer.Typer(
    name="crossknn",
    help="k-nearest-neighbour search when the similarity is a cross-encoder.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console()
err = Console(stderr=True)


class StrategyName(StrEnum):
    rerank = "rerank"
    axn = "axn"
    exact = "exact"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


ScorerOption = Annotated[str, typer.Option("--scorer", help="Cross-encoder: a hub name or a local folder.")]
DeviceOption = Annotated[str | None, typer.Option(help="Where models run: cpu or cuda. Default: cuda if there is one.")]
DtypeOption = Annotated[
    Dtype, typer.Option(help="Precision of the cross-encoder. auto: float32 on cpu, bfloat16 on cuda.")
]
CacheOption = Annotated[Path | None, typer.Option("--cache", help="File that keeps scores from one run to the next.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of a table.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from crossknn import __version__

        out.print(__version__, highlight=False)
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
]


@app.callback()
def _common(version: VersionOption = False) -> None:  # noqa: ARG001
    handler = RichHandler(level=logging.WARNING, console=err, show_path=False, show_time=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])


@app.command()
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
        str, typer.Option(help="Dual encoder: a hub name, a local folder, or 'none'.")
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
    allowed = None if filter_ids is None else set(_read_items(filter_ids).texts)
    with _progress() as progress:
        items = _read_items(corpus, id_field=id_field, text_fields=text_field, progress=progress)
        searcher = _make_searcher(
            items,
            scorer=_load_scorer(scorer, device=device, dtype=dtype, cache=cache),
            encoder=None if encoder == "none" else _load_encoder(encoder, device=device),
            vectors=vectors,
            device=device,
            progress=progress,
        )
        if train_queries is not None:
            searcher.fit_normalization(list(_read_items(train_queries).texts)[:100])
        found: list[Hits] = []
        for batch in _batches(wanted, QUERIES_AT_ONCE):
            found += searcher.search_many(batch, k=k, strategy=chosen, filter=allowed, deadline=deadline)
            if as_json:
                _print_json([_hits_as_json(hits) for hits in found])
                found = []
    for hits in found:
        _print_hits(hits, items)


@app.command()
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
    from crossknn.scorers.checked import score_pairs

    wanted, total = _read_pairs(texts or [], pairs)
    table = Table("score", "query", "item")
    with _progress() as progress:
        model = _load_scorer(scorer, device=device, dtype=dtype, cache=cache)
        done = 0
        for batch in _batches(wanted, PAIRS_AT_ONCE):
            scores = score_pairs(model, [query for query, _ in batch], [item for _, item in batch])
            done += len(batch)
            progress("scoring", done, max(done, total))
            if as_json:
                _print_json([_pair_as_json(q, i, s) for (q, i), s in zip(batch, scores, strict=True)])
            else:
                for (query, item), value in zip(batch, scores, strict=True):
                    table.add_row(f"{value:.4f}", Text(_one_line(query)), Text(_one_line(item)))
    if not as_json:
        out.print(table)


def main() -> None:
    """The entry point: every error that crossknn knows is one sentence, not a traceback."""
    try:
        app()
    except (InputError, MissingExtra, ModelNotFound) as error:
        _fail(str(error), code=2)
    except CrossKnnError as error:
        _fail(str(error), code=1)
    except KeyboardInterrupt:
        _fail("interrupted", code=130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more: nothing to flush
        raise SystemExit(1) from None


def _fail(message: str, *, code: int) -> None:
    err.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    raise SystemExit(code) from None


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


def _load_scorer(name: str, *, device: str | None, dtype: Dtype, cache: Path | None) -> Scorer:
    from crossknn.scorers.cached import Cached
    from crossknn.scorers.cross_encoder import CrossEncoder

    model = CrossEncoder(name, device=device, dtype=str(dtype))
    return model if cache is None else Cached(model, cache)


def _load_encoder(name: str, *, device: str | None) -> Encoder:
    from crossknn.encoders.sentence import SentenceEncoder

    return SentenceEncoder(name, device=device)


def _read_items(
    path: Path,
    *,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Items:
    from crossknn.items import Items

    options: dict[str, Any] = {"progress": progress}
    if id_field is not None:
        options["id"] = id_field
    if text_fields:
        options["text"] = text_fields[0] if len(text_fields) == 1 else tuple(text_fields)
    return Items.from_path(path, **options)


def _read_queries(given: list[str], path: Path | None) -> list[str]:
    if bool(given) == (path is not None):
        raise InputError("give queries as arguments or in a file with --queries, one of the two.")
    return given if path is None else list(_read_items(path).texts)


def _read_pairs(texts: list[str], path: Path | None) -> tuple[Iterator[tuple[str, str]], int]:
    """The pairs, one at a time, and how many there are (0 where that is not known yet)."""
    from crossknn import readers

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
        source = readers.JsonLines(path, readers.Fields.of("query", "item", " "), **limits)
    return ((query, item) for query, item, _ in source), 0


def _batches(values: Any, size: int) -> Iterator[list[Any]]:
    iterator = iter(values)
    while batch := list(islice(iterator, size)):
        yield batch


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars on standard error, one per step; nothing where that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def report(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield report


def _print_json(records: list[dict[str, Any]]) -> None:
    for record in records:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    sys.stdout.flush()


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


def _pair_as_json(query: str, item: str, value: float) -> dict[str, Any]:
    return {"query": query, "item": item, "score": float(value)}


def _print_hits(hits: Hits, items: Items) -> None:
    table = Table("", "score", "round", "by", "id", "text", title=Text(hits.query), title_justify="left")
    for rank, hit in enumerate(hits, 1):
        text = Text(_one_line(items.text(hit.row)))
        table.add_row(str(rank), f"{hit.score:.3f}", str(hit.round), hit.proposed_by, Text(hit.id), text)
    out.print(table)
    note = "" if hits.complete else f", stopped by {hits.stopped}: best so far"
    out.print(
        f"{hits.calls} calls in {hits.rounds} rounds, {hits.seconds:.2f} s ({hits.score_seconds:.2f} s scoring){note}"
    )


def _one_line(text: str, width: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
