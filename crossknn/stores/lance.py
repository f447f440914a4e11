"""A table of LanceDB, on disk or in object storage, opened for search; its full-text index as a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from datetime import date, datetime
from hashlib import blake2b
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crossknn._checks import check_positive, invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.items.fields import DATE, FLOAT, LIST, TIMESTAMP, UTC_TIMESTAMP
from crossknn.items.filters import ID, RANGES, Comparison, Logic, condition_of
from crossknn.items.string_column import to_indices
from crossknn.retrievers.base import BaseRetriever
from crossknn.stores.base import NO_VECTORS, StoreSearch, check_all_found, store_errors
from crossknn.stores.items import StoreItems, TextFields
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows, Vectors, VectorSearch
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crossknn.items.items import Items

WRITE_ROWS: Final = 4_096  # rows of a table of columns written at once
SQL_OPERATORS: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LARGEST: Final = float(np.finfo(np.float64).max)  # NaN and infinity are beyond, which are null in items
REFINE: Final = 4  # rows that an index proposes, whose own vectors are compared, for each row to find
ROW_ID: Final = "_rowid"


class LanceStore(StoreSearch):
    """Search in a LanceDB table, in the version that it has when this is made.

    Filters by field and the rows that are not wanted again become SQL that LanceDB applies. Texts and vectors are read
    from disk when they are needed; ids and fields are held in memory.

    Args:
        database: A connection of `lancedb.connect`, or what it takes: a folder or the URI of one.
        table: The name of the table.
        text: The column with the text, or several, which are joined by a space.
        id: The column of the items' ids: strings or integers.
        fields: Columns to keep for filters and hits; by default all that hold no vectors.
        vector: The column of vectors; searched by inner product.
        exact: Compare with every vector, also where the column has an index.
        nprobes: Partitions of an index that are searched; by default LanceDB's.
        write_columns: Allow `with_columns` to write a table beside the first, with vectors, the prior's latent factors
            and biases, so that the whole posterior mean is searched by LanceDB. Otherwise the rows that it proposes are
            ordered by it.
    """

    def __init__(
        self,
        database: Any,
        table: str,
        *,
        text: str | Sequence[str] = "text",
        id: str = "id",
        fields: Sequence[str] | None = None,
        vector: str = "vector",
        exact: bool = False,
        nprobes: int | None = None,
        write_columns: bool = False,
    ) -> None:
        super().__init__()
        lancedb = import_extra("lancedb", extra="lancedb")
        if not isinstance(table, str) or not table:
            raise invalid("table", "the name of a table", table)
        if nprobes is not None:
            check_positive("nprobes", nprobes)
        self._name, self._vector, self._exact, self._nprobes = table, vector, exact, nprobes
        self._write_columns = write_columns
        self._text = TextFields(text)
        with self._errors():
            self._database = lancedb.connect(database) if isinstance(database, str | PathLike) else database
            self._table = self._database.open_table(table)
            self._table.checkout(self._table.version)  # it stays as it is, whatever happens to it from now on
            schema = self._table.schema
        self.dim = _dim_of(schema, vector)
        kept = [*fields] if fields is not None else _fields_of(schema, {vector, id, *self._text.names})
        for column in (id, *self._text.names, *kept):
            if column not in schema.names:
                known = ", ".join(map(repr, schema.names))
                raise InputError(f"The table {self._name!r} has no column {column!r}, only {known}.")
        with self._errors():
            records = self._table.search().with_row_id(True).select([id, *kept]).to_arrow()
            self._has_index = any(vector in index.columns for index in self._table.list_indices())
        self._set_row_ids(records)
        self.items = StoreItems.of_table(records.drop_columns([ROW_ID]), id, self._read_texts)

    def full_text(self, column: str | None = None, *, name: str = "bm25") -> LanceFullText:
        """The table's full-text index as a retriever; by its name it takes the place of crossknn's own BM25.

        Args:
            column: That the index was made for; by default that of the text.
        """
        return LanceFullText(self, column or self._text.names[0], name)

    def with_columns(self, *columns: NDArray[Any]) -> VectorSearch:
        """The same search with columns, each (items, width), appended to every vector.

        With `write_columns` both are stored in a table of their own, which later searches use again.
        """
        if not self._write_columns:
            return super().with_columns(*columns)
        self._check_columns(columns)
        values = np.concatenate(columns, axis=1).astype(np.float32)
        digest = blake2b(f"{self._vector} {self._table.version}".encode() + values.tobytes(), digest_size=8).hexdigest()
        augmented, name = copy(self), f"{self._name}_crossknn_{digest}"
        augmented._cache, augmented._vector, augmented.dim = NO_VECTORS, "vector", self.dim + values.shape[1]
        with self._errors():
            try:
                augmented._table = self._database.open_table(name)
            except (ValueError, FileNotFoundError):  # there is none
                augmented._table = self._write(name, values, augmented.dim)
            augmented._set_row_ids(augmented._table.search().with_row_id(True).select(["row"]).to_arrow())
            augmented._has_index = False
        return augmented

    def _write(self, name: str, columns: Vectors, dim: int) -> Any:
        """A table of vectors with columns, and of the fields for filters; complete, or not there."""
        fields = {ID: self.items.ids.array} | {one: self.items.field(one).array for one in self.items.fields}
        rows = pa.field("row", pa.int64()), pa.field("vector", pa.list_(pa.float32(), dim))
        schema = pa.schema([*rows, *(pa.field(one, array.type) for one, array in fields.items())])

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(self), WRITE_ROWS):
                rows = np.arange(start, min(start + WRITE_ROWS, len(self)))
                vectors = np.concatenate([self._read_vectors(rows), columns[rows]], axis=1)
                numbers = pa.Array.from_buffers(pa.float32(), vectors.size, [None, pa.py_buffer(vectors)])
                row_column = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
                others = [array.slice(start, len(rows)) for array in fields.values()]
                vector_column = pa.FixedSizeListArray.from_arrays(numbers, dim)
                yield pa.RecordBatch.from_arrays([row_column, vector_column, *others], schema=schema)

        return self._database.create_table(name, pa.RecordBatchReader.from_batches(schema, batches()), schema=schema)

    def _nearest(self, queries: Vectors, n: int, exclude: Sequence[Rows], allowed: Mask | None) -> list[Proposal]:
        approximate = self._has_index and not self._exact
        condition = self._condition_sql(allowed)
        found = []
        for query, hidden in zip(queries, exclude, strict=True):
            with self._errors():
                search = self._table.search(query, vector_column_name=self._vector).distance_type("dot")
                if approximate:
                    search = search.nprobes(self._nprobes) if self._nprobes else search
                    search = search.refine_factor(REFINE)  # an index has compressed vectors
                    records = self._run(search, n, [condition, self._without_sql(hidden)], "_distance")
                else:  # more rows cost little, a condition on thousands of ids much
                    more = min(n + len(hidden), len(self))
                    records = self._run(search.bypass_vector_index(), more, [condition], "_distance")
            rows, products = self._rows_of(records), np.asarray(1 - records["_distance"].to_numpy(), np.float32)
            kept = ~np.isin(rows, hidden)
            found.append(Proposal(rows[kept], products[kept]))
        return found

    def search_text(self, query: str, n: int, allowed: Mask | None, column: str) -> Proposal:
        """The `n` allowed rows that the full-text index of a column finds for a query."""
        if n < 1 or (allowed is not None and not allowed.any()):
            return EMPTY_PROPOSAL
        match = import_extra("lancedb.query", extra="lancedb").MatchQuery(query, column)
        with self._errors():
            records = self._run(self._table.search(match), n, [self._condition_sql(allowed)], "_score")
        rows, scores = self._rows_of(records), records["_score"].to_numpy()
        return order_rows(rows, scores)

    def _run(self, search: Any, n: int, conditions: list[str | None], score: str) -> pa.Table:
        where = " AND ".join(f"({one})" for one in conditions if one is not None)
        search = search.where(where, prefilter=True) if where else search
        search = search.limit(n).with_row_id(True).select([score])
        return search.to_arrow()

    def _condition_sql(self, allowed: Mask | None) -> str | None:
        if allowed is None:
            return None
        condition = condition_of(allowed, self.items)
        if condition is not None:
            pushed = to_sql(condition, self._ids_sql)
            if pushed is not None:
                return pushed
        rows = np.flatnonzero(allowed)
        if 2 * len(rows) <= len(allowed):
            return self._rows_sql(rows)
        return self._without_sql(np.flatnonzero(~np.asarray(allowed)))

    def _without_sql(self, rows: Rows) -> str | None:
        return f"NOT {self._rows_sql(rows)}" if len(rows) else None

    def _ids_sql(self, ids: Sequence[Any]) -> str:
        return self._rows_sql(self.items.rows_of(ids, missing="skip"))

    def _rows_sql(self, rows: Rows) -> str:
        return f"{ROW_ID} IN ({', '.join(map(str, self._row_ids[rows].tolist()))})" if len(rows) else "false"

    def _read_vectors(self, rows: Rows) -> Vectors:
        table = self._take(rows, [self._vector])
        vectors = table[self._vector].combine_chunks()
        return np.asarray(vectors.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(len(rows), self.dim)

    def _read_texts(self, rows: Rows) -> list[str]:
        table = self._take(rows, self._text.names)
        return [self._text.read(record, row) for record, row in zip(table.to_pylist(), rows.tolist(), strict=True)]

    def _take(self, rows: Rows, columns: list[str]) -> pa.Table:
        """These rows, in their order."""
        distinct, places = np.unique(self._row_ids[rows], return_inverse=True)
        with self._errors():
            table = self._table.take_row_ids(distinct.tolist()).select(columns).with_row_id().to_arrow()
        check_all_found(self._name, len(table), len(distinct))
        order = np.argsort(table[ROW_ID].to_numpy())
        return table.take(to_indices(order[places]))

    def _set_row_ids(self, records: pa.Table) -> None:
        if "row" in records.column_names:  # a table of columns, in the order of the items
            records = records.take(to_indices(np.argsort(records["row"].to_numpy())))
        self._row_ids = records[ROW_ID].to_numpy().astype(np.int64)
        self._order = np.argsort(self._row_ids)

    def _rows_of(self, records: pa.Table) -> Rows:
        found = records[ROW_ID].to_numpy().astype(np.int64)
        rows: Rows = self._order[np.searchsorted(self._row_ids, found, sorter=self._order)]
        return rows

    def _errors(self) -> AbstractContextManager[None]:
        return store_errors("LanceDB", self._name)


class LanceFullText(BaseRetriever):
    """Retrieval by a full-text index of LanceDB; made by `LanceStore.full_text`."""

    def __init__(self, store: LanceStore, column: str, name: str) -> None:
        super().__init__(name)
        self._store, self._column = store, column

    def fit(self, items: Items) -> Self:
        """Check that these are the items of the table."""
        if items is not self._store.items:
            raise InputError(f"the retriever {self.name!r} finds items of a LanceStore: search in store.items.")
        self.n_items = len(items)
        return self

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        return [self._store.search_text(query, n, allowed, self._column) for query in queries]


def to_sql(condition: Comparison | Logic, ids_sql: Callable[[Sequence[Any]], str]) -> str | None:
    """Conditions as SQL of LanceDB, true or false and never null; None where there is none that means the same.

    Args:
        ids_sql: The condition that an item has one of these ids.
    """
    if isinstance(condition, Comparison):
        return _compare(condition, ids_sql)
    parts = [to_sql(part, ids_sql) for part in condition.parts]
    if None in parts:
        return None
    joined = (" OR " if condition.operator == "or" else " AND ").join(f"({part})" for part in parts) or "true"
    return f"NOT ({joined})" if condition.operator == "not" else joined


def _compare(comparison: Comparison, ids_sql: Callable[[Sequence[Any]], str]) -> str | None:
    kind, operator = comparison.kind, comparison.operator
    inverse = "NOT " if operator == "not_in" else ""
    if comparison.field == ID:
        return None if operator in RANGES else inverse + ids_sql(comparison.values)
    if "`" in comparison.field or "." in comparison.field:  # a point leads into a struct
        return None
    name = f"`{comparison.field}`"
    values = [_literal(value, kind) for value in comparison.values]
    present = f"{name} IS NOT NULL" + (
        f" AND {name} >= {-LARGEST!r} AND {name} <= {LARGEST!r}" if kind == FLOAT else ""
    )
    if operator in RANGES:
        return f"{present} AND {name} {SQL_OPERATORS[operator]} {values[0]}"
    if not values:
        return present if inverse else "false"
    if kind == LIST:
        return f"{present} AND {inverse}array_has_any({name}, [{', '.join(values)}])"
    return f"{present} AND {inverse}{name} IN ({', '.join(values)})"


def _literal(value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if kind == DATE and isinstance(value, date):
        return f"date '{value.isoformat()}'"
    if kind in (TIMESTAMP, UTC_TIMESTAMP) and isinstance(value, datetime):
        return f"timestamp '{value.isoformat()}{'Z' if kind == UTC_TIMESTAMP else ''}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def _dim_of(schema: pa.Schema, vector: str) -> int:
    type_ = schema.field(vector).type if vector in schema.names else None
    if type_ is None or not pa.types.is_fixed_size_list(type_) or not pa.types.is_floating(type_.value_type):
        found = "no such column" if type_ is None else f"the type {type_}"
        raise InputError(f"`vector` must name a column of vectors of floating-point numbers, got {vector!r}: {found}.")
    return int(type_.list_size)


def _fields_of(schema: pa.Schema, used: set[str]) -> list[str]:
    """The columns that can be fields of items: neither vectors nor structs."""
    return [field.name for field in schema if field.name not in used and not _holds_vectors(field.type)]


def _holds_vectors(type_: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(type_) or pa.types.is_struct(type_))
