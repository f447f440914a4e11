"""`crossknn demo`: index and search the embedded dictionary, and compare strategies with exact search, offline."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.style import Style
from rich.table import Table
from rich.text import Text
from typer import Option

from crossknn.cli.console import ProgressBars, err, out, resumable, say
from crossknn.cli.options import DeviceOption, check_device, choose_strategy
from crossknn.errors import InputError
from crossknn.example import DEMO_FOLDER, DEMO_QUERIES, DEMO_SENSES, SHOWCASE

if TYPE_CHECKING:
    from crossknn.evaluate.comparison import Comparison
    from crossknn.example.demo import Demo, Estimate
    from crossknn.strategies.base import Strategy

SHOWCASE_HITS = 3
MAX_LEMMAS = 4  # of a sense; further ones are cut


def demo(
    folder: Annotated[Path, Option("--dir", help="Folder for vectors, scores and the report.")] = DEMO_FOLDER,
    senses: Annotated[
        str | None,
        Option(
            metavar="N|all",
            help="How many of WordNet's 117,659 senses to search. "
            f"Default: {DEMO_SENSES}; with --query, those of the folder.",
        ),
    ] = None,
    queries: Annotated[int, Option(min=1, help="Held-out queries to compare strategies on.")] = DEMO_QUERIES,
    query: Annotated[
        list[str] | None,
        Option(metavar="TEXT", help="Search for this instead of comparing; [brackets] mark a word. Repeatable."),
    ] = None,
    k: Annotated[int, Option("-k", min=1, help="Hits per --query.")] = 5,
    budget: Annotated[int, Option(min=1, help="Cross-encoder calls per search.")] = 100,
    strategy: Annotated[
        str, Option(help="How to spend the budget: {strategies}; settings follow after colons.")
    ] = "posterior",
    device: DeviceOption = None,
) -> None:
    """Search a dictionary by meaning, and compare strategies with exact search.

    The senses of WordNet, a small cross-encoder and an encoder come with crossknn: the demo needs no network and takes
    less than two minutes. Run an interrupted demo again to resume it.
    """
    start = time.monotonic()
    texts = query or []
    chosen = choose_strategy(strategy, {"budget": budget})
    if texts and k > budget:
        raise InputError(f"-k must be at most --budget ({budget}), got {k}.")
    if not all(text.strip() for text in texts):
        raise InputError("--query must not be empty.")
    bars = ProgressBars(keep=True, log=True)
    # OpenMP threads that spin while they wait slow each other down on a busy machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read when torch is first imported
    with resumable():
        number = _parse_senses(senses, folder if texts else None)
        with _status("loading the models"):
            check_device(device)
            from crossknn.example.demo import Demo

            opened = Demo(folder, senses=number, device=device, progress=bars)
        if texts:
            _answer(opened, texts, bars, k=k, strategy=chosen)
        else:
            _tour(opened, bars, queries=queries, hits=min(SHOWCASE_HITS, budget), strategy=chosen, start=start)


def _parse_senses(text: str | None, folder: Path | None) -> int | None:
    """The number of senses, None for all; by default that of the last build in `folder`, if given."""
    from crossknn.example.demo import last_build
    from crossknn.example.wordnet import SENSES

    if text is None:
        return (last_build(folder) if folder else None) or DEMO_SENSES
    if text == "all":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= SENSES:
        raise InputError(f"--senses must be 'all' or between 1 and {SENSES}, got {text!r}.")
    return int(text)


def _answer(demo: Demo, queries: Sequence[str], bars: ProgressBars, *, k: int, strategy: Strategy) -> None:
    with _status("opening the index"):
        left = demo.estimate(queries=0)
    if left.rows or left.calls:
        say(f"{demo.folder} has no complete index yet, so it is built first.", *_describe(left))
    with bars:
        demo.build()
    for query in queries:
        _search(demo, query, k=k, strategy=strategy, details=True)


def _tour(demo: Demo, bars: ProgressBars, *, queries: int, hits: int, strategy: Strategy, start: float) -> None:
    """Build the index, answer the showcase queries, compare strategies, write the report."""
    from crossknn.evaluate.report.page import write_report

    with _status("estimating"):
        left = demo.estimate(queries)
    say(
        f"A dictionary searched by meaning: {len(demo.items):,} senses of WordNet, a small cross-encoder, no network.",
        f"Build the index, answer {len(SHOWCASE)} queries, and compare strategies with exact search on {queries} more: "
        f"{queries * len(demo.items):,} exact scores.",
        *_describe(left),
    )
    with bars:
        demo.build()
    for query in SHOWCASE:
        _search(demo, query, k=hits, strategy=strategy, details=False)
    out.print()
    with bars:
        comparison = demo.compare(queries)
    _print_comparison(comparison)
    with _status("drawing the report"):
        page = write_report(comparison, demo.folder)
    _print_end(demo, page, time.monotonic() - start)


def _search(demo: Demo, query: str, *, k: int, strategy: Strategy, details: bool) -> None:
    """Print the hits of a query as a table."""
    before = demo.calls
    hits = demo.build().search(query, k=k, strategy=strategy)
    known = hits.calls - (demo.calls - before)  # scores that were on disk
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
        table.add_row(str(rank), f"{hit.score:.2f}", *id_, _style_sense(demo.items.text(hit.row)), *round_)
    out.print()
    out.print(_style_query(hits.query))
    out.print(table)
    note = f" ({'all' if known == hits.calls else f'{known:,}'} scores known from before)" if known else ""
    rounds = f" in {hits.rounds} rounds" if hits.rounds > 1 else ""
    out.print(f"{hits.calls:,} calls{rounds} for {len(demo.items):,} senses, {hits.seconds:.2f} s{note}", style="dim")


def _style_sense(text: str) -> Text:
    """The first lemmas in bold, and the definition."""
    lemmas, bracket, definition = text.partition(" (")
    names = lemmas.split(", ")
    shown = [*names[:MAX_LEMMAS], "…"] if len(names) > MAX_LEMMAS else names
    return Text.assemble((", ".join(shown), "bold"), bracket, definition)


def _style_query(query: str) -> Text:
    """The query in bold, with the marked words colored."""
    text = Text(query, style="bold")
    for marked in re.finditer(r"\[[^\]]*\]", query):
        text.stylize("cyan", *marked.span())
    return text


def _print_comparison(comparison: Comparison) -> None:
    from crossknn.evaluate.report.formats import describe_speed
    from crossknn.evaluate.report.table import table

    out.print()
    out.print(table(comparison))
    out.print(Text("\n".join(comparison.findings) + "\n"))
    if comparison.speed:
        out.print(
            "No pair is scored twice, so the scorer's part of ms/query is computed from its speed on this machine: "
            f"{describe_speed(comparison.speed)}.",
            style="dim",
            highlight=False,
        )


def _print_end(demo: Demo, page: Path, seconds: float) -> None:
    page = page.resolve()
    out.print()
    files = {"report": page, "figure": page.with_name("recall.png"), "numbers": page.with_name("results.json")}
    for title, path in files.items():
        out.print(Text.assemble(f"{title:<8} ", (str(path), Style(link=path.as_uri()))), soft_wrap=True)
    folder = "" if demo.folder == DEMO_FOLDER else f" --dir {shlex.quote(str(demo.folder))}"
    out.print(f"\nDone in {_duration(seconds)}. Now search for something yourself:\n", highlight=False)
    for query, more in ((SHOWCASE[0], ""), ("she could not [bear] the noise", " --strategy axn")):
        out.print(Text(f'  crossknn demo{folder} --query "{query}"{more}'), soft_wrap=True)


def _describe(left: Estimate) -> list[str]:
    work = [f"{left.rows:,} senses to encode"] * bool(left.rows) + [f"{left.calls:,} calls to make"] * bool(left.calls)
    if not work:
        return ["Everything is encoded and scored already."]
    return [
        f"{' and '.join(work)}: about {_duration(left.seconds, rough=True)}.",
        "Interrupt it any time, and run it again to resume.",
    ]


def _duration(seconds: float, *, rough: bool = False) -> str:
    if rough and seconds > 90:
        return f"{math.ceil(seconds / 30) / 2:g} minutes"
    if rough:
        return f"{max(5, 5 * math.ceil(seconds / 5))} seconds"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def _status(text: str) -> Iterator[None]:
    """Show what takes its time: a spinner on a terminal, else a line."""
    if err.is_terminal:
        with err.status(f"{text} …"):
            yield
    else:
        say(f"{text} …")
        yield
