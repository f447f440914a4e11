"""Items of a store: ids and fields in memory, texts read from the store when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from crossknn.items.items import Items
from crossknn.items.readers import Fields, Mappings
from crossknn.items.string_column import StringColumn, StringColumnBuilder
from crossknn.types import Rows

READ_TEXTS: Final = 1_024  # texts read at once
PLACEHOLDER: Final = "."  # for texts that are read later
TEXT: Final = "crossknn text"  # the name of their field

ReadTexts = Callable[[Rows], list[str]]  # the texts of these rows, in their order


class StoredTexts(StringColumn):
    """Texts that stay in a store; nothing is kept in memory."""

    def __init__(self, count: int, read: ReadTexts) -> None:
        self._count, self._read = count, read

    @property
    def array(self) -> pa.LargeStringArray:
        """All texts, read now."""
        builder = StringColumnBuilder()
        for block in self.blocks(READ_TEXTS):
            builder.append(block)
        return builder.finish().array

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        rows = np.arange(len(self))[at]
        return self.take(rows) if isinstance(at, slice) else self.take(rows[None])[0]

    def blocks(self, size: int) -> Iterator[list[str]]:
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    def take(self, rows: Rows) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(rows), READ_TEXTS):
            texts += self._read(np.asarray(rows[start : start + READ_TEXTS], np.int64))
        return texts

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the texts themselves."""
        return StringColumn, (self.array,)


class TextFields:
    """The fields of a record that make an item's text: one name, or several, which are joined by a space."""

    def __init__(self, text: str | Sequence[str]) -> None:
        self._fields = Fields.of((), id="_id", text=text, fields=())
        self._source = Mappings([], "strict", text=text)  # for error messages
        self.names = list(self._fields.text)

    def read(self, record: Mapping[str, Any], row: int) -> str:
        """The text of a record, which is the item of this row."""
        return self._fields.read({**record, "_id": row}, self._source, row)[1]


class StoreItems(Items):
    """Items whose texts stay in the store they are in."""

    @classmethod
    def of_store(cls, records: Iterable[Mapping[str, Any]], read: ReadTexts) -> Self:
        """Items of records with `_id` and fields; `read` gets the texts of rows."""
        known = ({**record, TEXT: PLACEHOLDER} for record in records)
        items = cls.from_records(known, id="_id", text=TEXT)
        return items._with_texts(read)

    @classmethod
    def of_table(cls, table: pa.Table, id: str, read: ReadTexts) -> Self:
        """Items of a table with a column of ids and fields; `read` gets the texts of rows."""
        text = pa.repeat(pa.scalar(PLACEHOLDER, pa.large_string()), len(table))
        return cls.from_dataset(table.append_column(TEXT, text), id=id, text=TEXT)._with_texts(read)

    def without_texts(self) -> Items:
        """The ids and fields, in memory."""
        items = Items([PLACEHOLDER] * len(self), ids=self.ids)
        items._fields = self._fields
        return items

    def _with_texts(self, read: ReadTexts) -> Self:
        self._texts, self._empty_texts = StoredTexts(len(self), read), 0
        return self
