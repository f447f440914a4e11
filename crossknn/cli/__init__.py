"""Command line: `crossknn build`, `search`, `serve`, `bench` and the other commands.

Results go to standard output, progress and messages to standard error. Exit codes: 0 success, 1 a scorer, encoder,
retriever or strategy failed, or nobody reads standard output any more, 2 invalid input, or files that cannot be read or
written, 130 interrupted.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Annotated

from rich.logging import RichHandler
from typer import Exit, Option, Typer

from crossknn.cli import bench, demo, index, mcp, search, serve, store
from crossknn.cli.console import Command, err, fail, out
from crossknn.errors import CrossKnnError, InputError, MissingExtra, ModelNotFound
from crossknn.storage.atomic import explain_os_error

__all__ = ["app", "main"]

app = Typer(
    name="crossknn",
    help="Search the nearest neighbors of a query when the similarity is a cross-encoder.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        from crossknn import __version__

        out.print(__version__, highlight=False)
        raise Exit


@app.callback()
def _common(
    version: Annotated[  # noqa: ARG001
        bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    handler = RichHandler(level=logging.WARNING, console=err, show_path=False, show_time=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])


for command in (
    index.build,
    index.plan,
    search.search,
    search.score,
    serve.serve,
    mcp.mcp,
    index.info,
    index.add,
    index.learn,
    index.remove,
    index.verify,
    demo.demo,
):
    app.command(cls=Command)(command)
app.command("import", cls=Command)(store.import_)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; an error of crossknn or of the system ends it with a message instead of a traceback."""
    try:
        try:
            app()
        except SystemExit:
            sys.stdout.flush()  # what cannot be written shows now, not when the interpreter exits
            raise
    except (InputError, MissingExtra, ModelNotFound) as error:
        fail(str(error), code=2)
    except CrossKnnError as error:
        fail(str(error), code=1)
    except KeyboardInterrupt:
        fail("interrupted", code=130)
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(1) from None
    except OSError as error:
        _discard_output()
        place = error.filename or "standard output or a file"
        fail(f"{place} cannot be read or written {explain_os_error(error)}", code=2)
    finally:
        gc.freeze()  # the interpreter would look for garbage once more, among all objects of torch, as it exits


def _discard_output() -> None:
    """Let the rest of standard output go nowhere where it cannot be written, so that the last flush does not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
