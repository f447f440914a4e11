"""What the commands share: consoles, options, progress, and loading what an option names."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.indexing.index import Index
    from crossknn.items.items import Items
    from crossknn.types import Encoder, Progress, Scorer

DEFAULT_SCORER = "cross-encoder/ms-marco-MiniLM-L6-v2"
DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"

out = Console()
err = Console(stderr=True)


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


ScorerOption = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="Cross-encoder: a hub name, a local folder, 'embedded' (needs no hub), or URL#MODEL of a rerank server.",
    ),
]
EncoderOption = Annotated[
    str, typer.Option("--encoder", help="Dual encoder: a hub name, a local folder, or 'embedded' (needs no hub).")
]
AnyModelOption = Annotated[
    bool, typer.Option("--any-model", help="Take models that the index was not built with: you know they are the same.")
]
IdFieldOption = Annotated[str | None, typer.Option("--id-field", help="Field or column of the item's id.")]
TextFieldOption = Annotated[
    list[str] | None, typer.Option("--text-field", help="Field or column of the text; repeat to join several.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of everything random.")]
DeviceOption = Annotated[str | None, typer.Option(help="Where models run: cpu or cuda. Default: cuda if there is one.")]
DtypeOption = Annotated[
    Dtype, typer.Option(help="Precision of the cross-encoder. auto: float32 on cpu, bfloat16 on cuda. int8: cpu only.")
]
CacheOption = Annotated[Path | None, typer.Option("--cache", help="File that keeps scores from one run to the next.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of a table.")]


def fail(message: str, *, code: int) -> NoReturn:
    """End the process with one sentence on standard error."""
    err.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    raise SystemExit(code) from None


def say(*sentences: str) -> None:
    """Sentences on standard error."""
    for sentence in sentences:
        err.print(sentence, markup=False, highlight=False, soft_wrap=not err.is_terminal)


def load_scorer(name: str, *, device: str | None, dtype: Dtype, cache: Path | None) -> Scorer:
    """The cross-encoder that --scorer names, with its scores kept in --cache."""
    from crossknn.scorers.cached import Cached
    from crossknn.scorers.remote.scorer import is_url

    check_device(device)
    model = _open_server(name, dtype) if is_url(name) else _load_model(name, device, dtype)
    return model if cache is None else Cached(model, cache)


def _load_model(name: str, device: str | None, dtype: Dtype) -> Scorer:
    """A local cross-encoder; an [emb]-CE if it was saved as one."""
    from crossknn.scorers.cross_encoder import CrossEncoder
    from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder, is_emb_cross_encoder

    kind: Callable[..., Scorer] = EmbCrossEncoder if is_emb_cross_encoder(name) else CrossEncoder
    return kind(name, device=device, dtype=str(dtype))


def _open_server(url: str, dtype: Dtype) -> Scorer:
    from crossknn.scorers.remote.scorer import RemoteScorer

    if dtype is not Dtype.auto:
        raise InputError(
            f"--dtype goes with local models only: a server has its own precision. Got {dtype} with a URL."
        )
    return RemoteScorer(url)


def paid_scores_of(scorer: str, work_dir: Path) -> Path | None:
    """Where the scores of a server are kept at once, for they may have cost money; local models need no such file."""
    from crossknn.scorers.remote.scorer import is_url

    return work_dir / "server-scores.db" if is_url(scorer) else None


def load_encoder(name: str, *, device: str | None) -> Encoder:
    """The dual encoder that --encoder names."""
    from crossknn.encoders.sentence import SentenceEncoder

    return SentenceEncoder(name, device=device)


def work_dir_of(folder: Path) -> Path:
    """Where the scores and vectors of an index are kept unless told otherwise: beside it."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.work")


def load_builder_encoder(name: str, *, device: str | None) -> Encoder:
    """The encoder of an index, which cannot do without."""
    if name == "none":
        raise InputError("an index needs an --encoder: a hub name, a local folder, or 'embedded'. Got 'none' instead.")
    return load_encoder(name, device=device)


def from_nothing(steps: Steps) -> Progress:
    """`steps`, told where a step begins; only scoring says by itself how much was done before."""
    from crossknn.indexing.pair_scoring import STEP

    begun = {STEP}

    def report(step: str, done: int, total: int) -> None:
        if step not in begun:
            begun.add(step)
            steps(step, 0, total)
        steps(step, done, total)

    return report


@contextmanager
def going_on() -> Iterator[None]:
    """Say after an interrupt that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted. Run the same command again: it goes on where it was.")
        raise typer.Exit(130) from None


@contextmanager
def naming_any_model() -> Iterator[None]:
    """Errors about models that an index was not built with, with the option that helps instead of the argument."""
    try:
        yield
    except InputError as error:
        if "pass check_models=False" not in str(error):
            raise
        raise InputError(str(error).replace("pass check_models=False", "give --any-model")) from error


def check_models(index: Index, *, scorer: Scorer, encoder: Encoder | None) -> None:
    """An error unless these are the models of the index."""
    with naming_any_model():
        index.check_models(scorer=scorer, encoder=encoder)


def check_device(device: str | None) -> None:
    """An error unless models can run on the device that --device names."""
    from crossknn._imports import import_extra

    if device is None:
        return
    torch = import_extra("torch", extra="models")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"--device must be one that torch can use here. Got {device!r} instead: {reason}") from error


def read_items(
    path: Path,
    *,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Items:
    """The items of a file, or of a BEIR folder."""
    from crossknn.items.items import Items

    options: dict[str, Any] = {"progress": progress}
    if id_field is not None:
        options["id"] = id_field
    if text_fields:
        options["text"] = text_fields[0] if len(text_fields) == 1 else tuple(text_fields)
    return Items.from_path(path, **options)


def batches(values: Any, size: int) -> Iterator[list[Any]]:
    """The values in lists of at most `size`."""
    iterator = iter(values)
    while batch := list(islice(iterator, size)):
        yield batch


class Steps:
    """Progress on standard error while it is entered: in a terminal a bar per step.

    Elsewhere there is nothing, or with `lines` a line where a step begins and one where it ends. `keep` leaves
    the bars standing. May be entered again; a step begins anew then.
    """

    def __init__(self, *, keep: bool = False, lines: bool = False) -> None:
        self._keep = keep
        self._lines = lines and not err.is_terminal
        self._bars: ProgressBar | None = None
        self._tasks: dict[str, TaskID] = {}
        self._begun: dict[str, float] = {}

    def __enter__(self) -> Self:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=self._keep),
        )
        self._bars = ProgressBar(*columns, console=err, transient=not self._keep, disable=not err.is_terminal)
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()
        self._begun.clear()

    def __call__(self, step: str, done: int, total: int) -> None:
        """What a `Progress` is called with."""
        if self._bars is None:
            return
        if step not in self._tasks:
            # What was done before this run is no measure of its speed.
            self._tasks[step] = self._bars.add_task(step, total=total, completed=done)
            self._begin_line(step, done, total)
        self._bars.update(self._tasks[step], completed=done, total=total)
        if done >= total:
            self._end_line(step, total)

    def _begin_line(self, step: str, done: int, total: int) -> None:
        if self._lines:
            self._begun[step] = time.monotonic()
            known = f", {done:,} of them done before" if done else ""
            err.print(f"{step}: {total:,}{known} …", highlight=False, markup=False)

    def _end_line(self, step: str, total: int) -> None:
        if self._lines and step in self._begun:
            took = time.monotonic() - self._begun.pop(step)
            err.print(f"{step}: {total:,} done in {took:.1f} s", highlight=False, markup=False)


def print_json(records: list[dict[str, Any]]) -> None:
    """One JSON object per line on standard output."""
    for record in records:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def one_line(text: str, width: int = 160) -> str:
    """The text without line breaks, cut to `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
