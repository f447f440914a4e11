"""Why a search found what it found: a line for a hit, a picture of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.search.results import Hits
    from crossknn.search.trace import Hit

PictureOption = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE.png", help="Draw the rounds of one query: what was expected, and scores."),
]


def explain(hit: Hit) -> str:
    """When it was scored and who asked for it, what was expected, and its rank by each retriever."""
    deviation = "" if hit.deviation is None else f" ± {hit.deviation:.2f}"
    expected = "" if hit.expected is None else f"expected {hit.expected:.2f}{deviation} → "
    ranks = ", ".join(f"{name} {'–' if rank is None else rank}" for name, rank in hit.ranks.items())
    said = f"round {hit.round}, {hit.proposed_by}: {expected}{hit.score:.2f}"
    return f"{said}; ranks: {ranks}" if ranks else said


def check_picture(path: Path | None, queries: Sequence[str], *, exact: bool) -> None:
    """An error unless a picture can be drawn and written, before anything is scored."""
    from crossknn._imports import import_extra

    if path is None:
        return
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise InputError(f"--picture must be a .png file in a folder that exists. Got {str(path)!r} instead.")
    if len(queries) != 1:
        raise InputError(f"--picture is of one query. Got {len(queries)}: ask one, or leave it out.")
    if exact:
        raise InputError("--picture is of rounds, and exact search has none. Leave it out or choose another strategy.")
    import_extra("matplotlib", extra="report")


def write_picture(path: Path, hits: Hits) -> None:
    """The rounds of a search as PNG."""
    from crossknn.evaluate.report.round_plots import draw_rounds
    from crossknn.storage.atomic import write_atomic

    try:
        write_atomic(path, draw_rounds(hits))
    except OSError as error:
        raise InputError(f"{path}: the picture cannot be written ({error.strerror or error}).") from error
