"""Console output of the commands: messages, errors in terms of options, JSON lines and progress bars."""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text
from typer import BadParameter, Exit
from typer import confirm as typer_confirm
from typer.core import TyperCommand, TyperOption

from crossknn._checks import check_range
from crossknn.cli.config import complete, explain_invalid
from crossknn.errors import CrossKnnError, InputError

OPTION_FOR_FALSE = {"check_models": "--any-model"}  # options that set an argument to False
ARGUMENT_NAME = re.compile(r"`(\w+)(=False)?`|\b(\w+)(=False)\b")  # as the library's error messages write it
STRATEGY_NAMES = re.compile(r"\{strategies(?: with (\w+))?\}")  # in the help of options

out = Console()
err = Console(stderr=True)


def say(*sentences: str) -> None:
    """Print sentences on standard error."""
    for sentence in sentences:
        err.print(sentence, markup=False, highlight=False, soft_wrap=not err.is_terminal)


def fail(message: str, *, code: int) -> NoReturn:
    """End the process with an error message on standard error."""
    with suppress(OSError):  # of standard error itself
        err.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    raise SystemExit(code) from None


@contextmanager
def resumable() -> Iterator[None]:
    """After an interrupt, say that the same command resumes the work."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted. Run the same command again to resume.")
        raise Exit(130) from None


def confirm(question: str, refusal: str) -> None:
    """Ask on a terminal, and end the process if the answer is no; without a terminal, raise the refusal."""
    if not (sys.stdin.isatty() and err.is_terminal):
        raise InputError(refusal)
    if not typer_confirm(question, err=True):
        raise Exit(1)


class Command(TyperCommand):
    """A command whose errors name its options where the library names arguments: `--id-field` for `id_field`.

    In the help of an option, `{strategies}` stands for the names of all strategies, and `{strategies with budget}` for
    those that have the setting `budget`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            found = explain_invalid(ctx, error)
            if found is None:
                raise
            raise found from None

    def invoke(self, ctx: Any) -> Any:
        complete(ctx)
        try:
            for name, value in ctx.params.items():  # before any work begins
                if isinstance(value, float):
                    check_range(name, value)
            return super().invoke(ctx)
        except CrossKnnError as error:
            error.args = (name_options(str(error), self.params),)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from crossknn.strategies.registry import STRATEGIES, settings_of

        def names(match: re.Match[str]) -> str:
            return ", ".join(name for name, kind in STRATEGIES.items() if not match[1] or match[1] in settings_of(kind))

        for option in _options(self.params):
            option.help = STRATEGY_NAMES.sub(names, option.help or "")
        super().format_help(ctx, formatter)


def name_options(message: str, params: Sequence[Any]) -> str:
    """The message with `name` replaced by --name, and name=False by its flag, for options of the command."""
    options: dict[str, str] = {}
    for option in _options(params):
        longest = max(option.opts, key=len)
        options |= {longest.lstrip("-").replace("-", "_"): longest, str(option.name): longest}

    def translate(match: re.Match[str]) -> str:
        if match[2] or match[4]:
            flag = OPTION_FOR_FALSE.get(match[1] or match[3], "")
            return flag if flag in options.values() else match[0]
        return options.get(match[1], match[0])

    return ARGUMENT_NAME.sub(translate, message)


def _options(params: Sequence[Any]) -> list[TyperOption]:
    return [param for param in params if isinstance(param, TyperOption)]


def print_json(records: list[dict[str, Any]]) -> None:
    """Print one JSON object per line on standard output."""
    for record in records:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    sys.stdout.flush()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection in here, as while models are loaded; what there is at the end is exempt from later ones.

    Their libraries make a million objects that live as long as the process, and the collector would walk them again
    and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


class ProgressBars:
    """Progress callback and context manager: on a terminal, one bar per step on standard error.

    Args:
        keep: Leave the finished bars on the terminal.
        log: Where standard error is no terminal, print a line when a step begins and one when it ends.
    """

    def __init__(self, *, keep: bool = False, log: bool = False) -> None:
        self._keep = keep
        self._log = log and not err.is_terminal
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}

    def __enter__(self) -> Self:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=self._keep),
        )
        self._bars = Progress(*columns, console=err, transient=not self._keep, disable=not err.is_terminal)
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None and not self._bars.disable:  # rich before 14.2 ends disabled bars with a blank line
            self._bars.stop()
        self._bars = None
        self._tasks.clear()
        self._started.clear()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bars is None:
            return
        if step not in self._tasks:
            # What an earlier run has done must not count toward the speed of this one.
            self._tasks[step] = self._bars.add_task(step, total=total, completed=done)
            if self._log:
                self._started[step] = time.monotonic()
                say(f"{step}: {total:,}{f' ({done:,} done before)' if done else ''} …")
        self._bars.update(self._tasks[step], completed=done, total=total)
        if done >= total and step in self._started:
            say(f"{step}: {total:,} done in {time.monotonic() - self._started.pop(step):.1f} s")

    def from_zero(self, step: str, done: int, total: int) -> None:
        """As `progress(step, done, total)`, for steps that first report after their first batch: they begin at 0."""
        from crossknn.indexing.pair_scoring import STEP as SCORING  # which reports how much an earlier run has done

        if step not in self._tasks and step != SCORING:
            self(step, 0, total)
        self(step, done, total)
