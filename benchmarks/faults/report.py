"""What was tried, what held and what was lost, by group and kind of fault."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

MAX_MESSAGES = 20  # of what was lost, per kind


class Lost(Exception):
    """Raised by a trial: something did not hold."""


def expect(holds: object, message: str) -> None:
    """End the trial as lost unless this holds."""
    if not holds:
        raise Lost(message)


@dataclass
class Kind:
    """The trials of one kind of fault."""

    group: str
    name: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)  # how often the trials that held ended in which way
    skipped: str | None = None  # why it was not tried

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"group": self.group, "kind": self.name, "tried": self.tried}
        found |= {"held": self.tried - len(self.lost), "lost": len(self.lost)}
        if self.outcomes:
            found["outcomes"] = dict(sorted(self.outcomes.items()))
        if self.lost:
            found["messages"] = self.lost[:MAX_MESSAGES]
        if self.skipped:
            found["skipped"] = self.skipped
        return found


@dataclass
class Report:
    """Collects trials; threads may share it.

    Args:
        workers: Trials to run at a time.
        group: What the kinds that are tried next belong to.
    """

    workers: int = 2
    group: str = ""
    kinds: dict[tuple[str, str], Kind] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def try_all(self, name: str, trials: Iterable[Callable[[], str | None]], *, workers: int | None = None) -> None:
        """Run the trials of a kind. Each returns how it ended, if there are several ways, or raises."""
        kind = self._kind(name)

        def attempt(trial: Callable[[], str | None]) -> None:
            outcome = message = None
            try:
                outcome = trial()
            except Lost as error:
                message = str(error)
            except Exception as error:
                message = f"{error!r} at {traceback.extract_tb(error.__traceback__)[-1]}"
            with self._lock:
                kind.tried += 1
                if message is not None:
                    kind.lost.append(message)
                    print(f"LOST {self.group}, {name}: {message}", flush=True)
                elif outcome is not None:
                    kind.outcomes[outcome] = kind.outcomes.get(outcome, 0) + 1

        with ThreadPoolExecutor(workers or self.workers) as threads:
            list(threads.map(attempt, trials))
        print(f"{self.group}, {name}: {kind.tried} tried, {len(kind.lost)} lost", flush=True)

    def skip(self, name: str, reason: str) -> None:
        """Note that a kind is not tried on this machine."""
        self._kind(name).skipped = reason
        print(f"{self.group}, {name}: skipped, {reason}", flush=True)

    def rows(self) -> list[dict[str, Any]]:
        return [kind.as_dict() for kind in self.kinds.values()]

    def _kind(self, name: str) -> Kind:
        with self._lock:
            return self.kinds.setdefault((self.group, name), Kind(self.group, name))
