"""The index that requests are answered from, and its exchange for a newer one while they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crossknn.errors import CrossKnnError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.storage.atomic_dir import MANIFEST

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A searcher that is ready, and the identity of what it searches."""

    searcher: Searcher
    identity: str


class LiveIndex:
    """Holds what is searched now. Take `current` once per request: the next request may find another one.

    `source` is the folder of an index, an `Index` or `Items`; `open` makes a searcher of it. Only a folder can be
    replaced. A newer index that cannot be used is refused with a line in the log, and the old one stays.
    """

    def __init__(self, source: Path | Index | Items, open: Callable[[Index | Items], Searcher]) -> None:
        self._folder = source if isinstance(source, Path) else None
        self._open = open
        self._swapping = threading.Lock()
        self._refused: tuple[int, int] | None = None  # the stamp of an index that cannot be used
        self.swaps = 0
        self.refusals = 0
        self.current = self._prepare(Index.load(source) if isinstance(source, Path) else source)

    def refresh(self, *, again: bool = False) -> bool:
        """Take the folder's index if it is another one; whether it was taken.

        One that was refused is looked at once more only if it has changed, or if `again` says so.
        """
        with self._swapping:
            index = self.current.searcher.index
            if self._folder is None or index is None or index.is_current():
                return False
            stamp = _stamp(self._folder)
            if stamp == self._refused and not again:
                return False
            try:
                fresh = Index.load(self._folder)
                fresh.verify()
                self.current = self._prepare(fresh)
            except (CrossKnnError, OSError) as error:
                self._refused = stamp
                self.refusals += 1
                log.error("index refused", extra={"reason": str(error)})
                return False
            self.swaps += 1
            log.info("index replaced", extra={"index": self.current.identity, "items": len(fresh)})
            return True

    def _prepare(self, source: Index | Items) -> Loaded:
        """A searcher that has done what the first search would do, so that no request waits for it."""
        searcher = self._open(source)
        searcher.prepare()
        identity = source.identity if isinstance(source, Index) else None
        return Loaded(searcher, identity or searcher.items.fingerprint)


def _stamp(folder: Path) -> tuple[int, int]:
    """Another one for another manifest; nothing but zeros where there is none."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


class Watcher:
    """A thread that refreshes a shelf every `seconds`, and at once when it is woken."""

    def __init__(self, shelf: LiveIndex, seconds: float) -> None:
        self._shelf = shelf
        self._seconds = seconds
        self._woken = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._watch, name="index watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._ended = True
        self.wake()

    def _watch(self) -> None:
        while not self._ended:
            woken = self._woken.wait(self._seconds)
            self._woken.clear()
            try:
                self._shelf.refresh(again=woken)
            except Exception:  # the next look may fare better
                log.exception("the index could not be looked at")
