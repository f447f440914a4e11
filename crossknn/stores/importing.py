"""Copying the items and vectors of a store into files, resumably."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crossknn.errors import InputError, StoreError
from crossknn.items.items import Items
from crossknn.storage.atomic import disk_errors, replace_file, write_atomic
from crossknn.storage.block_file import BlockFile
from crossknn.types import Progress, Rows

if TYPE_CHECKING:
    from crossknn.stores.base import StoreSearch

BLOCK_ROWS: Final = 4_096  # items copied at once
ITEMS, VECTORS, SOURCE, WORK = "items.parquet", "vectors.npy", "source.json", "import"
CANNOT_WRITE: Final = "the import cannot be written"


class Imported(NamedTuple):
    """What an import wrote."""

    items: Items
    vectors: NDArray[Any] | None  # (items, dim) float32, memory-mapped; None for a store without


def import_store(store: StoreSearch, folder: str | Path, *, source: str, progress: Progress | None = None) -> Imported:
    """Copy a store into `items.parquet` and `vectors.npy` of a folder.

    A run that was interrupted or killed is resumed by the next one: the ids are listed first, and what was copied of
    them is kept. Items that came into the store since are not copied.

    Args:
        source: What the store is, such as its URL without a password; a folder with another source is refused.
        progress: Called after every block.

    Raises:
        StoreError: If listed items were removed from the store before they were copied.
    """
    run = _Import(store, Path(folder), source, progress)
    with disk_errors(run.folder, CANNOT_WRITE):
        run.folder.mkdir(parents=True, exist_ok=True)
    run.check_source()
    if not (run.folder / ITEMS).exists():
        run.copy_items()
    vectors = run.copy_vectors() if store.dim else None
    with disk_errors(run.folder, CANNOT_WRITE):
        shutil.rmtree(run.work, ignore_errors=True)
    return Imported(Items.from_parquet(run.folder / ITEMS), vectors)


def imported_vectors(items: Path) -> Path | None:
    """The file of vectors beside the items of an import; None where there is none."""
    folder = items.parent
    if items.name != ITEMS or not (folder / SOURCE).exists():
        return None
    if (folder / WORK).exists():
        raise InputError(f"{folder}: this import was interrupted. Run the same `crossknn import` again to complete it.")
    return folder / VECTORS if (folder / VECTORS).exists() else None


class _Import:
    def __init__(self, store: StoreSearch, folder: Path, source: str, progress: Progress | None) -> None:
        self.store, self.folder, self.work = store, folder, folder / WORK
        self._source, self._progress = source, progress

    def check_source(self) -> None:
        """Note the source, or compare it with that of the earlier run."""
        path = self.folder / SOURCE
        if not path.exists():
            if any(self.folder.iterdir()):
                raise InputError(f"{self.folder}: holds other files. Import into a new folder.")
            with disk_errors(path, CANNOT_WRITE):
                write_atomic(path, json.dumps({"source": self._source}).encode())
        try:
            known = json.loads(path.read_bytes())["source"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged. Delete the folder to start over.") from error
        if known != self._source:
            raise InputError(
                f"{self.folder}: holds an import of {known}, not of {self._source}. Choose another folder."
            )

    def copy_items(self) -> None:
        """Write the texts in blocks, and then all items."""
        listed = self._list()
        rows = self._rows_of(listed)
        parts = []
        for start in range(0, len(listed), BLOCK_ROWS):
            part = self.work / f"items-{start:012}.parquet"
            block = np.arange(start, min(start + BLOCK_ROWS, len(listed)))
            if not part.exists():
                self._with_texts(listed.take(block), rows[block]).to_parquet(part)
            parts.append(part)
            self._tell("import items", int(block[-1]) + 1, len(listed))

        def join(path: Path) -> None:
            with pq.ParquetWriter(path, pq.read_schema(parts[0])) as writer:
                for part in parts:
                    writer.write_table(pq.read_table(part))

        with disk_errors(self.folder / ITEMS, CANNOT_WRITE):
            replace_file(self.folder / ITEMS, join)

    def copy_vectors(self) -> NDArray[Any]:
        """Write the vectors of the items that were copied, block by block."""
        items = Items.from_parquet(self.folder / ITEMS)
        inputs = {"source": self._source, "items": items.fingerprint}
        file = BlockFile(self.folder / VECTORS, inputs, rows=len(items), width=lambda: self.store.dim, dtype=np.float32)
        vectors = file.load()
        if vectors is not None:
            return vectors
        rows = self._rows_of(items)
        with file.resume() as missing:
            done = len(items) - sum(map(len, missing))
            for range_ in missing:
                for start in range(range_.start, range_.stop, BLOCK_ROWS):
                    block = rows[start : min(start + BLOCK_ROWS, range_.stop)]
                    file.write({start: self.store.read_vectors(block)})
                    done += len(block)
                    self._tell("import vectors", done, len(items))
        return file.map()

    def _list(self) -> Items:
        """The ids and fields of all items, as they were when the import began."""
        path = self.work / "listed.arrow"
        if not path.exists():
            with disk_errors(self.work, CANNOT_WRITE):
                self.work.mkdir(exist_ok=True)
            self.store.items.without_texts().to_arrow(path)
        return Items.from_arrow(path)

    def _rows_of(self, items: Items) -> Rows:
        """The store's rows of these items."""
        rows = self.store.items.rows_of(items.ids, missing="skip")
        if len(rows) < len(items):
            raise StoreError(
                f"{len(items) - len(rows)} items were removed from {self._source} since the import began. Delete "
                f"{self.folder} and import again."
            )
        return rows

    def _with_texts(self, items: Items, rows: Rows) -> Items:
        fields = {name: items.field(name)[:] for name in items.fields}
        return Items(self.store.items.texts_of(rows), ids=items.ids, fields=fields)

    def _tell(self, step: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(step, done, total)
