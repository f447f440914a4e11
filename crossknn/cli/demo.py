"""`crossknn demo`: the embedded example, built, searched and compared in a few minutes without a network."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.style import Style
from rich.table import Table
from rich.text import Text

from crossknn.cli.options import DeviceOption, Steps, check_device, err, out, say
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.evaluate.comparison import Comparison
    from crossknn.example.demo import Demo, Estimate
    from crossknn.items.items import Items
    from crossknn.search.results import Hits

FOLDER = Path("crossknn-demo")
SHOWCASE = (
    "a machine for making coffee",
    "he sat on the [bank] of the river",
    "she deposited the money in the [bank]",
)
SHOWN = 3  # hits of each showcase query
LEMMAS = 4  # of a sense, before the rest are left out


class DemoStrategy(StrEnum):
    posterior = "posterior"
    rerank = "rerank"
    axn = "axn"


def demo(
    folder: Annotated[Path, typer.Option("--dir", help="Folder that keeps vectors, scores and the report.")] = FOLDER,
    senses: Annotated[
        str | None,
        typer.Option(
            metavar="N|all",
            help="How many of WordNet's 117,659 senses to search. Default: 15000; with --query, what the folder holds.",
        ),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Held-out queries that strategies are compared on.")] = 8,
    query: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Search for this instead of comparing; [brackets] mark a word. Repeatable."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per --query.")] = 5,
    budget: Annotated[int, typer.Option(min=1, help="Cross-encoder calls per search.")] = 100,
    strategy: Annotated[DemoStrategy, typer.Option(help="How the budget is spent.")] = DemoStrategy.posterior,
    device: DeviceOption = None,
) -> None:
    """Search a dictionary by meaning and compare strategies.

    The words of WordNet, a small cross-encoder and an encoder come with crossknn: it needs no network and takes a
    few minutes. Interrupt it any time: running it again goes on where it was.
    """
    start = time.monotonic()
    wanted = query or []
    _check_options(wanted, k=k, budget=budget)
    steps = Steps(keep=True, lines=True)
    try:
        opened = _open(folder, _read_senses(senses, folder if wanted else None), device=device, steps=steps)
        if wanted:
            _answer(opened, wanted, steps, k=k, budget=budget, strategy=strategy)
        else:
            _tour(opened, steps, queries=queries, budget=budget, strategy=strategy, start=start)
    except KeyboardInterrupt:
        say("\ninterrupted. Run the same command again: it goes on where it was.")
        raise typer.Exit(130) from None


def _check_options(queries: Sequence[str], *, k: int, budget: int) -> None:
    """Refuse at once what the search would refuse after the build."""
    if queries and k > budget:
        raise InputError(f"-k must be at most the --budget ({budget}): only scored items are shown. Got {k} instead.")
    if not all(query.strip() for query in queries):
        raise InputError("a --query must have something in it.")


def _read_senses(given: str | None, folder: Path | None) -> int | None:
    """How many senses, None for all; where nothing is given, what the folder was built with or the default."""
    from crossknn.example import demo
    from crossknn.example import wordnet as example

    if given is None:
        return (demo.find_build(folder) if folder else None) or demo.SENSES
    if given == "all":
        return None
    if not given.isdecimal() or not 1 <= int(given) <= example.SENSES:
        raise InputError(f"--senses must be 'all' or between 1 and {example.SENSES}. Got {given!r} instead.")
    return int(given)


def _open(folder: Path, senses: int | None, *, device: str | None, steps: Steps) -> Demo:
    # Threads that wait by spinning make each other many times slower where another program keeps a core busy.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read when torch is first imported
    with _saying("loading the models"):
        check_device(device)
        from crossknn.example.demo import Demo

        return Demo(folder, senses=senses, device=device, progress=steps)


def _answer(demo: Demo, queries: Sequence[str], steps: Steps, *, k: int, budget: int, strategy: str) -> None:
    with _saying("opening the index"):
        left = demo.estimate(queries=0)
    if left.rows or left.calls:
        say(f"There is no whole index in {demo.folder} yet, so it is built first.", *_describe(left))
    with steps:
        demo.build()
    for query in queries:
        _print_hits(*_search(demo, query, k=k, budget=budget, strategy=strategy), demo.items, details=True)


def _tour(demo: Demo, steps: Steps, *, queries: int, budget: int, strategy: str, start: float) -> None:
    """Everything: build, showcase, comparison, report."""
    from crossknn.evaluate.report.page import write_report

    with _saying("estimating"):
        left = demo.estimate(queries)
    say(
        f"A dictionary searched by meaning: {len(demo.items):,} senses of WordNet, a small cross-encoder, no network.",
        f"Build the index, answer {len(SHOWCASE)} queries, compare strategies with exact search on {queries} more.",
        *_describe(left),
    )
    with steps:
        demo.build()
    for query in SHOWCASE:
        found = _search(demo, query, k=min(SHOWN, budget), budget=budget, strategy=strategy)
        _print_hits(*found, demo.items, details=False)
    out.print()
    with steps:
        comparison = demo.compare(queries)
    _print_comparison(comparison)
    with _saying("drawing the report"):
        page = write_report(comparison, demo.folder)
    _print_end(demo, page, time.monotonic() - start)


def _search(demo: Demo, query: str, *, k: int, budget: int, strategy: str) -> tuple[Hits, int]:
    """The hits, and how many of their scores were known before."""
    before = demo.calls
    hits = demo.search(query, k=k, budget=budget, strategy=strategy)
    return hits, hits.calls - (demo.calls - before)


def _print_hits(hits: Hits, known: int, items: Items, *, details: bool) -> None:
    table = Table(box=None, pad_edge=False, show_header=details, header_style="dim")
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    if details:
        table.add_column("id", style="dim", overflow="fold", max_width=24)
    table.add_column("sense", overflow="fold")
    if details:
        table.add_column("round", justify="right", style="dim", no_wrap=True)
    for rank, hit in enumerate(hits, 1):
        id_, round_ = ([Text(hit.id)], [str(hit.round)]) if details else ([], [])
        table.add_row(str(rank), f"{hit.score:.2f}", *id_, _sense(items.text(hit.row)), *round_)
    out.print()
    out.print(_marked(hits.query))
    out.print(table)
    part = "all" if known == hits.calls else f"{known:,}"
    note = f" ({part} scores known from before)" if known else ""
    rounds = f" in {hits.rounds} rounds" if hits.rounds > 1 else ""
    out.print(f"{hits.calls:,} calls{rounds} for {len(items):,} senses, {hits.seconds:.2f} s{note}", style="dim")


def _sense(text: str) -> Text:
    """The first lemmas, which stand out, and the definition."""
    lemmas, mark, rest = text.partition(" (")
    names = lemmas.split(", ")
    shown = [*names[:LEMMAS], "…"] if len(names) > LEMMAS else names
    return Text.assemble((", ".join(shown), "bold"), mark, rest)


def _marked(query: str) -> Text:
    """The query as it was typed, with the marked word coloured."""
    shown = Text(query, style="bold")
    for mark in re.finditer(r"\[[^\]]*\]", query):
        shown.stylize("cyan", *mark.span())
    return shown


def _print_comparison(comparison: Comparison) -> None:
    from crossknn.evaluate.report.findings import headline
    from crossknn.evaluate.report.format import describe_speed
    from crossknn.evaluate.report.table import table

    out.print()
    out.print(table(comparison))
    out.print(Text(f"{headline(comparison)}\n"))
    if comparison.speed:
        speed = describe_speed(comparison.speed)
        note = (
            f"No pair is scored twice, so the scorer's part of ms/query is computed: {speed}, measured on this machine."
        )
        out.print(note, style="dim", highlight=False)


def _print_end(demo: Demo, page: Path, seconds: float) -> None:
    page = page.resolve()
    out.print()
    for title, path in {
        "report": page,
        "figure": page.with_name("recall.png"),
        "numbers": page.with_name("results.json"),
    }.items():
        out.print(Text.assemble(f"{title:<8} ", (str(path), Style(link=path.as_uri()))), soft_wrap=True)
    options = _options(demo)
    out.print(f"\nDone in {_duration(seconds)}. Ask it something:\n", highlight=False)
    for query, more in ((SHOWCASE[0], ""), ("she could not [bear] the noise", " --strategy axn")):
        out.print(Text(f'  crossknn demo{options} --query "{query}"{more}'), soft_wrap=True)


def _options(demo: Demo) -> str:
    """What must be given again to find this build."""
    return "" if demo.folder == FOLDER else f" --dir {shlex.quote(str(demo.folder))}"


def _describe(left: Estimate) -> list[str]:
    work = [f"{left.rows:,} senses to encode"] * bool(left.rows) + [f"{left.calls:,} calls to make"] * bool(left.calls)
    if not work:
        return ["Everything was encoded and scored before: nothing is done again."]
    return [
        f"{' and '.join(work)}: about {_duration(left.seconds, rough=True)}.",
        "Interrupt any time: running it again goes on where it was.",
    ]


def _duration(seconds: float, *, rough: bool = False) -> str:
    if rough and seconds > 90:
        return f"{math.ceil(seconds / 30) / 2:g} minutes"
    if rough:
        return f"{max(5, 5 * math.ceil(seconds / 5))} seconds"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def _saying(what: str) -> Iterator[None]:
    """Show that something takes its time: a spinner in a terminal, else a line."""
    if err.is_terminal:
        with err.status(f"{what} …"):
            yield
    else:
        say(f"{what} …")
        yield
