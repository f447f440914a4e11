"""`crossknn mcp`: a corpus or an index as tools for agents, by the Model Context Protocol."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from crossknn.cli import options
from crossknn.cli.config import configurable
from crossknn.cli.console import ProgressBars
from crossknn.cli.serve import LimitOptions, open_service


@configurable
@options.with_groups
def mcp(
    *,
    corpus: Annotated[
        Path | None, Argument(help="An index, or items: .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")
    ] = None,
    example: Annotated[
        bool, Option("--example", help="Search the dictionary of `crossknn demo`, without corpus or network.")
    ] = False,
    title: Annotated[str, Option(help="What is searched, for the agent; by default CORPUS's name.")] = "",
    opened: options.SourceOptions,
    limits: LimitOptions,
) -> None:
    """Let an agent search CORPUS: tools of the Model Context Protocol, over standard input and output.

    The agent starts this command itself. `crossknn serve --mcp` has the same tools over HTTP.
    """
    from crossknn._imports import import_extra

    import_extra("mcp", extra="mcp")
    from crossknn.serve.mcp import run_stdio
    from crossknn.serve.monitoring import log_to_stderr
    from crossknn.serve.settings import Limits, Settings

    settings = Settings(limits=Limits(**asdict(limits)), title=title)
    log_to_stderr()
    with ProgressBars(log=True) as progress:
        service = open_service(corpus, opened, settings, example=example, progress=progress)
    run_stdio(service)
