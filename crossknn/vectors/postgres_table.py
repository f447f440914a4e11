"""A PostgreSQL table of items with their vectors: created, changed, and opened for search."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_positive, invalid
from crossknn.errors import InputError
from crossknn.items.fields import fields_as_json
from crossknn.items.items import Items
from crossknn.vectors.postgres_search import MAX_EF_SEARCH, Connections, PgVectorSearch, format_sql, quoted

if TYPE_CHECKING:
    from crossknn.vectors.postgres_search import Connection

TYPES: Final = {"float32": "vector", "float16": "halfvec"}
MAX_FLOAT32_DIM: Final = 2_000  # pgvector can index no more dimensions; half precision goes further
MAX_NAME_BYTES: Final = 40  # of a table, which leaves room for a suffix
SEND_VECTORS: Final = 1_024  # vectors converted at once

CREATE: Final = """
CREATE TABLE {table} (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    text text NOT NULL,
    metadata jsonb NOT NULL,
    removed boolean NOT NULL DEFAULT false,
    vector {type}({dim}) NOT NULL
);
ALTER TABLE {table} ALTER COLUMN vector SET STORAGE MAIN; -- in the row as long as it fits: scans read all of them
CREATE UNIQUE INDEX ON {table} (id) WHERE NOT removed;
"""
SHAPE: Final = """
SELECT atttypid::regtype::text, atttypmod FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attname = 'vector' AND EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attname = 'number' AND attidentity = 'a')
"""
COLUMN_TABLES: Final = """
SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ ('^' || %(prefix)s || '_cols_[0-9a-f]{16}$')
AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%(table)s))
"""
HNSW: Final = """
SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
WHERE indrelid = to_regclass(%(table)s) AND amname = 'hnsw'
"""
COPY: Final = "COPY {table} (id, text, metadata, vector) FROM STDIN (FORMAT BINARY)"
REMOVE: Final = "UPDATE {table} SET removed = true WHERE id = ANY(%s::text[]) AND NOT removed RETURNING id"

Metadata = Sequence[Mapping[str, Any]]  # one mapping per item


class PgTable:
    """Items, their vectors and metadata in a table of a PostgreSQL database with pgvector.

    Its columns are `id`, `text`, `metadata` (jsonb), `vector`, `removed`, and `number`, which grows with every item
    and is never reused. Any number of processes may change and search the table at the same time.

    Args:
        database: A connection string such as `postgresql://user@host/name`, or a function that opens a connection of
            psycopg.
        name: The table's name, optionally after a schema and a dot.
    """

    def __init__(self, database: str | Callable[[], Connection], name: str) -> None:
        self._connections = Connections(database)
        self.name = _check_name(name)
        self.type, self.dim = self._connections.read(self._read_shape)

    @classmethod
    def create(
        cls,
        database: str | Callable[[], Connection],
        name: str,
        items: Items,
        vectors: NDArray[Any],
        *,
        metadata: Metadata | None = None,
        storage: str | None = None,
    ) -> Self:
        """Create a table with these items.

        Args:
            items: The first items; `add` adds more.
            vectors: (items, dim) of a floating-point type.
            metadata: One mapping per item, for filters; by default the items' fields.
            storage: "float32" or "float16". Default: float32 up to 2,000 dimensions, else float16.

        Raises:
            InputError: If the table exists.
        """
        if storage is not None:
            check_choice("storage", storage, TYPES)
        _check_name(name)
        _check_vectors(items, vectors)
        kind = TYPES[storage or ("float32" if vectors.shape[1] <= MAX_FLOAT32_DIM else "float16")]
        connections = Connections(database)
        connections.add_extension()
        try:
            with connections.transaction() as connection:
                connection.execute(format_sql(CREATE, table=name, type=kind, dim=vectors.shape[1]))
                _copy(connection, name, kind, items, vectors, metadata)
        except connections.psycopg.errors.DuplicateTable as error:
            raise InputError(f"The table {name!r} already exists. Open it with PgTable(…).") from error
        finally:
            connections.close()
        return cls(database, name)

    def open(self, *, ef_search: int | None = None) -> PgVectorSearch:
        """A search over the present items; it does not see items that are added later.

        Args:
            ef_search: Search with pgvector's HNSW index and at least this many candidates. Default: exact search.
        """
        if ef_search is not None:
            check_positive("ef_search", ef_search)
            if ef_search > MAX_EF_SEARCH:
                raise invalid("ef_search", f"at most {MAX_EF_SEARCH}, pgvector's limit", ef_search)
            if not self._connections.read(self._has_hnsw):
                raise InputError(f"The table {self.name!r} has no HNSW index. Build one with add_hnsw().")
        return PgVectorSearch(self._connections, self.name, self.dim, self.type, ef_search=ef_search)

    def add(self, items: Items, vectors: NDArray[Any], *, metadata: Metadata | None = None) -> None:
        """Add items: all of them, or none if there is an error."""
        _check_vectors(items, vectors)
        if vectors.shape[1] != self.dim:
            raise InputError(f"`vectors` must have the table's {self.dim} dimensions, got {vectors.shape[1]}.")
        with self._connections.transaction() as connection:
            # One writer at a time, so that a number never appears before a lower one: searches count on it.
            connection.execute(format_sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE", table=self.name))
            try:
                _copy(connection, self.name, self.type, items, vectors, metadata)
            except self._connections.psycopg.errors.UniqueViolation as error:
                raise InputError(f"The table already has such an item: {error.diag.message_detail}") from error

    def remove(self, ids: Collection[str]) -> None:
        """Remove the items of these ids: all of them, or none if there is an error.

        No search finds them any more. Searches that are open can still read their vectors, until `purge`.
        """
        if isinstance(ids, str):
            raise invalid("ids", "a collection of ids", ids, "For one id pass a list.")
        unique = {str(id_) for id_ in ids}
        with self._connections.transaction() as connection:
            found = {id_ for (id_,) in connection.execute(format_sql(REMOVE, table=self.name), [list(unique)])}
            if found != unique:
                raise InputError(f"The table has no item {min(unique - found)!r}. Nothing was removed.")

    def purge(self) -> int:
        """Delete removed items for good, which searches that are open may still need, and return their number."""
        with self._connections.transaction() as connection:
            return connection.execute(format_sql("DELETE FROM {table} WHERE removed", table=self.name)).rowcount

    def add_hnsw(self, *, m: int = 16, ef_construction: int = 64) -> None:
        """Build pgvector's HNSW index, for `open(ef_search=…)`."""
        check_positive("m", m)
        check_positive("ef_construction", ef_construction)
        statement = "CREATE INDEX ON {table} USING hnsw (vector {operators}) WITH (m = {m}, ef_construction = {ef})"
        parts = {"table": self.name, "operators": f"{self.type}_ip_ops", "m": m, "ef": ef_construction}
        with self._connections.transaction() as connection:
            connection.execute(format_sql(statement, **parts))

    def drop(self) -> None:
        """Delete the table, and the tables of columns that searches created for it."""
        *schema, name = self.name.split(".")
        with self._connections.transaction() as connection:
            values = {"table": quoted(connection, self.name), "prefix": re.escape(name)}
            for (table,) in [*connection.execute(COLUMN_TABLES, values), (name,)]:
                connection.execute(format_sql("DROP TABLE {table}", table=".".join([*schema, table])))

    def close(self) -> None:
        """Close idle connections; new ones are opened when needed."""
        self._connections.close()

    def _read_shape(self, connection: Connection) -> tuple[str, int]:
        found = connection.execute(SHAPE, {"table": quoted(connection, self.name)}).fetchone()
        if found is None or found[0] not in TYPES.values():
            raise InputError(f"The database has no table {self.name!r} created by PgTable.create(…).")
        return found[0], int(found[1])

    def _has_hnsw(self, connection: Connection) -> bool:
        return connection.execute(HNSW, {"table": quoted(connection, self.name)}).fetchone() is not None


def _copy(
    connection: Connection, table: str, kind: str, items: Items, vectors: NDArray[Any], metadata: Metadata | None
) -> None:
    from psycopg import DataError
    from psycopg.types.json import Jsonb

    if metadata is not None and len(metadata) != len(items):
        raise InputError(f"`metadata` must hold one mapping per item ({len(items)}), got {len(metadata)}.")
    values = map(Jsonb, _read_fields(items) if metadata is None else map(dict, metadata))
    try:
        with connection.cursor().copy(format_sql(COPY, table=table)) as copy:
            copy.set_types(["text", "text", "jsonb", kind])
            for row in zip(items.ids, items.texts, values, _convert(vectors, kind), strict=False):
                copy.write_row(row)
    except DataError as error:
        raise InputError(f"PostgreSQL rejected an item: {error}") from error


def _read_fields(items: Items) -> Iterator[dict[str, Any]]:
    """The fields of each item that it has, as JSON."""
    for start in range(0, len(items), SEND_VECTORS):
        for fields in items.fields_of(range(start, min(start + SEND_VECTORS, len(items)))):
            yield fields_as_json({name: value for name, value in fields.items() if value is not None})


def _convert(vectors: NDArray[Any], kind: str) -> Iterator[Any]:
    """The vectors as pgvector's types."""
    from pgvector import HalfVector, Vector

    make, dtype = (HalfVector, np.float16) if kind == "halfvec" else (Vector, np.float32)
    for start in range(0, len(vectors), SEND_VECTORS):
        with np.errstate(over="ignore"):
            block = vectors[start : start + SEND_VECTORS].astype(dtype)
        if not np.isfinite(block).all():
            raise InputError(f"`vectors` must fit in {np.dtype(dtype)}, but they hold NaN, infinity or larger values.")
        yield from map(make, block)


def _check_vectors(items: Items, vectors: NDArray[Any]) -> None:
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f" or not vectors.shape[1]:
        found = f"{vectors.dtype} {vectors.shape}" if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise InputError(f"`vectors` must be a floating-point array of shape (items, dim), got {found}.")
    if len(vectors) != len(items):
        raise InputError(f"`vectors` must hold one vector per item ({len(items)}), got {len(vectors)}.")


def _check_name(name: str) -> str:
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) not in (1, 2) or not all(parts) or len(name.encode()) > MAX_NAME_BYTES:
        raise invalid("name", f"a table name or schema.table of at most {MAX_NAME_BYTES} bytes", name)
    return name
