"""Hot reload: the index that requests are answered from, replaced while the server runs."""

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
class LoadedIndex:
    """A searcher that is ready, and the identity of the index or items that it searches."""

    searcher: Searcher
    identity: str


class LiveIndex:
    """Holds the index of now. Read `current` once per request: the next request may get another one.

    The folder of an index is verified, and reloaded when it is replaced; `open` makes a searcher of an index or items.
    """

    def __init__(self, source: Path | Index | Items, open: Callable[[Index | Items], Searcher]) -> None:
        self._folder = source if isinstance(source, Path) else None
        self._open = open
        self._reloading = threading.Lock()
        self._rejected: tuple[int, int] | None = None  # manifest stamp of an index that cannot be used
        self.reloads = 0
        self.failed_reloads = 0
        self.current = self._load(Index.load(source, verify=True) if isinstance(source, Path) else source)

    def reload(self, *, retry: bool = False) -> bool:
        """Load the folder's index if it has changed, and return whether it was replaced.

        An index that cannot be used is rejected with an error in the log, and the old one stays. It is loaded again
        only when its manifest changes, or with `retry`.
        """
        with self._reloading:
            index = self.current.searcher.index
            if self._folder is None or index is None or index.is_current():
                return False
            stamp = _manifest_stamp(self._folder)
            if stamp == self._rejected and not retry:
                return False
            try:
                fresh = Index.load(self._folder, verify=True)
                self.current = self._load(fresh)
            except (CrossKnnError, OSError) as error:
                self._rejected = stamp
                self.failed_reloads += 1
                log.error("index reload failed", extra={"reason": str(error)})
                return False
            self.reloads += 1
            log.info("index reloaded", extra={"index": self.current.identity, "items": len(fresh)})
            return True

    def _load(self, source: Index | Items) -> LoadedIndex:
        """A searcher whose retrievers and vectors are ready, so that the first request is not slower."""
        searcher = self._open(source)
        searcher.prepare()
        identity = source.identity if isinstance(source, Index) else None
        return LoadedIndex(searcher, identity or searcher.items.fingerprint)


def _manifest_stamp(folder: Path) -> tuple[int, int]:
    """Inode and modification time of the manifest; zeros where it is missing."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


class IndexWatcher(threading.Thread):
    """Reloads a live index every `seconds` where it has changed, and immediately after `wake`."""

    def __init__(self, live_index: LiveIndex, seconds: float) -> None:
        super().__init__(name="index watcher", daemon=True)
        self._live_index = live_index
        self._seconds = seconds
        self._woken = threading.Event()
        self._ended = False

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._ended = True
        self.wake()

    def run(self) -> None:
        """What the thread does until `stop`."""
        while not self._ended:
            woken = self._woken.wait(self._seconds)
            self._woken.clear()
            try:
                self._live_index.reload(retry=woken)
            except Exception:  # the next check may succeed
                log.exception("index check failed")
