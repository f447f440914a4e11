"""Default progress of long work: a bar on a terminal or in a notebook, elsewhere a line in the log every 30 seconds."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from crossknn.types import Progress

BAR_DELAY: Final = 2.0  # seconds that a step lasts before it gets a bar
BAR_INTERVAL: Final = 0.1  # seconds between two drawings
LOG_INTERVAL: Final = 30.0  # seconds between two lines
BAR_WIDTH: Final = 30  # characters

log = logging.getLogger("crossknn")


def choose_progress(progress: Progress | bool | None) -> Progress | None:
    """The given callback; by default (None, True) one that shows long work, and with False none."""
    if progress is None or progress is True:
        return DefaultProgress()
    return None if progress is False else progress


def end_progress(progress: Progress | None) -> None:
    """Clear the bar of work that may have ended early."""
    if isinstance(progress, DefaultProgress):
        progress.clear()


class DefaultProgress:
    """Progress callback that shows nothing of short work.

    Args:
        stream: Where bars are drawn, if it is a terminal or belongs to a notebook; by default standard error.
        clock: Tells seconds.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._step: str | None = None
        self._started, self._shown, self._done_before = 0.0, 0.0, 0
        self._width = 0  # of what is drawn

    def __call__(self, step: str, done: int, total: int) -> None:
        with self._lock:
            now = self._clock()
            if step != self._step:
                self._erase()
                self._step, self._started, self._shown, self._done_before = step, now, now, done
            draws = _shows_bars(self._out)
            ended = done >= total
            if ended and draws:
                self._erase()
            elif draws and now - self._started >= BAR_DELAY and now - self._shown >= BAR_INTERVAL:
                self._draw(f"{step} {_bar(done, total)} {done:,} of {total:,}{self._time_left(now, done, total)}")
                self._shown = now
            elif not draws and now - self._shown >= LOG_INTERVAL:
                log.info("%s: %s of %s%s", step, f"{done:,}", f"{total:,}", self._time_left(now, done, total))
                self._shown = now
            if ended:
                self._step = None

    def clear(self) -> None:
        """Erase the bar; the next step begins anew."""
        with self._lock:
            self._erase()
            self._step = None

    @property
    def _out(self) -> TextIO:
        return self._stream or sys.stderr

    def _time_left(self, now: float, done: int, total: int) -> str:
        """At the speed so far, without what an earlier run has done."""
        new = done - self._done_before
        if new <= 0 or done >= total:
            return ""
        seconds = round((now - self._started) / new * (total - done))
        minutes, hours = seconds // 60, seconds // 3600
        return f", {hours}:{minutes % 60:02}:{seconds % 60:02} left"

    def _draw(self, line: str) -> None:
        self._out.write("\r" + line.ljust(self._width))
        self._out.flush()
        self._width = len(line)

    def _erase(self) -> None:
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
            self._width = 0


def _bar(done: int, total: int) -> str:
    full = BAR_WIDTH * min(done, total) // max(total, 1)
    return "█" * full + "░" * (BAR_WIDTH - full)


def _shows_bars(stream: TextIO) -> bool:
    """Whether the stream is a terminal, or the output of a notebook's cell."""
    return stream.isatty() or ("ipykernel" in sys.modules and type(stream).__module__.startswith("ipykernel"))
