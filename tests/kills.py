"""Killing a process at a chosen moment, for tests of work that must survive it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def die_at(step: int, folder: Path) -> None:
    """Kill this process when it is about to touch the folder for the `step`-th time."""
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event.split(".")[0] in ("open", "os") and str(folder) in str(arguments[:1]):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    signal.alarm(20)
    sys.addaudithook(hook)
