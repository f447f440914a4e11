"""A table of items with their vectors in PostgreSQL: made, changed, and opened for searching."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_positive
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.vectors.postgres.connections import Connections
from crossknn.vectors.postgres.search import WIDEST_SEARCH, PgVectorSearch

if TYPE_CHECKING:
    from crossknn.vectors.postgres.connections import Connection

TYPES: Final = {"float32": "vector", "float16": "halfvec"}
WIDEST: Final = 2_000  # dimensions of a vector that pgvector can index; half precision goes further
LONGEST_NAME: Final = 40  # of a table, so that there is room for what is put behind it
BLOCK: Final = 1_024  # vectors that are sent at once

MAKE: Final = """
CREATE TABLE {table} (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    text text NOT NULL,
    metadata jsonb NOT NULL,
    removed boolean NOT NULL DEFAULT false,
    vector {type} NOT NULL
);
ALTER TABLE {table} ALTER COLUMN vector SET STORAGE MAIN; -- in the row as long as it fits: scans read all of them
CREATE UNIQUE INDEX ON {table} (id) WHERE NOT removed;
"""
SHAPE: Final = """
SELECT atttypid::regtype::text, atttypmod FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attname = 'vector' AND EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attname = 'number' AND attidentity = 'a')
"""
BESIDE: Final = """
SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ ('^' || %(start)s || '_beside_[0-9a-f]{16}$')
AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%(table)s))
"""
HNSW: Final = """
SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
WHERE indrelid = to_regclass(%(table)s) AND amname = 'hnsw'
"""
COPY: Final = "COPY {table} (id, text, metadata, vector) FROM STDIN (FORMAT BINARY)"
REMOVE: Final = "UPDATE {table} SET removed = true WHERE id = ANY(%s::text[]) AND NOT removed RETURNING id"


class PgTable:
    """Items, their vectors and what else is known of them, in a table of a PostgreSQL database with pgvector.

    Its columns are `id`, `text`, `metadata` (jsonb), `vector`, `removed`, and `number`, which grows with every item
    and is never used again. Any number of processes may change and search the table at the same time.

    database  a connection string, as `postgresql://user@host/name`, or a function that opens a connection of psycopg
    name      of the table, with a schema before a dot or without
    """

    def __init__(self, database: str | Callable[[], Connection], name: str) -> None:
        self._connections = Connections(database)
        self.name = _check_name(name)
        self._sql = import_extra("psycopg.sql", extra="pgvector")
        self._psycopg = import_extra("psycopg", extra="pgvector")
        self.type, self.dim = self._connections.read(self._read_shape)

    @classmethod
    def create(
        cls,
        database: str | Callable[[], Connection],
        name: str,
        items: Items,
        vectors: NDArray[Any],
        *,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        storage: str | None = None,
    ) -> Self:
        """Make the table, with these items in it; an error if it is there.

        `storage` is "float32", which is usual up to 2,000 dimensions, or "float16".
        """
        if storage is not None:
            check_choice("storage", storage, TYPES)
        _check_name(name)
        _check_vectors(items, vectors)
        kind = TYPES[storage or ("float32" if vectors.shape[1] <= WIDEST else "float16")]
        connections = Connections(database)
        connections.add_extension()
        sql, psycopg = import_extra("psycopg.sql", extra="pgvector"), import_extra("psycopg", extra="pgvector")
        column = sql.SQL(f"{kind}({int(vectors.shape[1])})")
        table = sql.Identifier(*name.split("."))
        try:
            with connections.transaction() as connection:
                connection.execute(sql.SQL(MAKE).format(table=table, type=column))
                _copy(connection, sql.SQL(COPY).format(table=table), kind, items, vectors, metadata)
        except psycopg.errors.DuplicateTable as error:
            raise InputError(f"there is a table {name!r} already: PgTable(…) opens it.") from error
        finally:
            connections.close()
        return cls(database, name)

    def open(self, *, ef_search: int | None = None) -> PgVectorSearch:
        """A search over the items that are there now; those that are added later are in what is opened later.

        Search is exact, or with `ef_search` by pgvector's HNSW index, which looks at so many items at least.
        """
        if ef_search is not None:
            check_positive("ef_search", ef_search)
            if ef_search > WIDEST_SEARCH:
                raise InputError(
                    f"ef_search must be at most {WIDEST_SEARCH}, as pgvector has it. Got {ef_search} instead."
                )
            if not self._connections.read(self._has_hnsw):
                raise InputError(f"the table {self.name!r} has no HNSW index: add_hnsw() makes one.")
        return PgVectorSearch(self._connections, self.name, self.dim, self.type, ef_search=ef_search)

    def add(self, items: Items, vectors: NDArray[Any], *, metadata: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Add these items: all, or with an error none."""
        _check_vectors(items, vectors)
        if vectors.shape[1] != self.dim:
            raise InputError(f"the table has vectors of {self.dim} dimensions. Got {vectors.shape[1]} instead.")
        with self._connections.transaction() as connection:
            # One after the other, so that a number is never seen before a lower one: searches count on it.
            connection.execute(self._format("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))
            try:
                _copy(connection, self._format(COPY), self.type, items, vectors, metadata)
            except self._psycopg.errors.UniqueViolation as error:
                raise InputError(f"the table has such an item already: {error.diag.message_detail}") from error

    def remove(self, ids: Collection[str]) -> None:
        """Remove the items of these ids: all, or with an error none.

        No search finds them any more. Searches that are open still know their vectors, until `purge`.
        """
        if isinstance(ids, str):
            raise InputError("ids must be a collection of ids. For one id pass a list of it.")
        wanted = {str(id_) for id_ in ids}
        with self._connections.transaction() as connection:
            found = {id_ for (id_,) in connection.execute(self._format(REMOVE), [list(wanted)])}
            if found != wanted:
                raise InputError(f"the table has no item {min(wanted - found)!r}. Nothing was removed.")

    def purge(self) -> int:
        """Delete for good what was removed; how many items that were. Searches that are open may need them still."""
        with self._connections.transaction() as connection:
            return connection.execute(self._format("DELETE FROM {table} WHERE removed")).rowcount

    def add_hnsw(self, *, m: int = 16, ef_construction: int = 64) -> None:
        """Let pgvector build its HNSW index, for `open(ef_search=…)`."""
        check_positive("m", m)
        check_positive("ef_construction", ef_construction)
        statement = "CREATE INDEX ON {table} USING hnsw (vector {way}) WITH (m = {m}, ef_construction = {ef})"
        way = self._sql.SQL(f"{self.type}_ip_ops")
        with self._connections.transaction() as connection:
            connection.execute(self._format(statement, way=way, m=m, ef=ef_construction))

    def drop(self) -> None:
        """Delete the table, and the tables that searches made beside it."""
        *schema, name = self.name.split(".")
        with self._connections.transaction() as connection:
            tables = connection.execute(BESIDE, {"table": self._quoted(connection), "start": re.escape(name)})
            for (table,) in [*tables, (name,)]:
                connection.execute(self._sql.SQL("DROP TABLE {}").format(self._sql.Identifier(*schema, table)))

    def close(self) -> None:
        """Close its idle connections; it opens new ones when it needs them."""
        self._connections.close()

    def _format(self, statement: str, **values: Any) -> Any:
        return self._sql.SQL(statement).format(table=self._sql.Identifier(*self.name.split(".")), **values)

    def _quoted(self, connection: Connection) -> str:
        quoted: str = self._sql.Identifier(*self.name.split(".")).as_string(connection)
        return quoted

    def _read_shape(self, connection: Connection) -> tuple[str, int]:
        found = connection.execute(SHAPE, {"table": self._quoted(connection)}).fetchone()
        if found is None or found[0] not in TYPES.values():
            raise InputError(f"the database has no table {self.name!r} that PgTable.create(…) made.")
        return found[0], int(found[1])

    def _has_hnsw(self, connection: Connection) -> bool:
        return connection.execute(HNSW, {"table": self._quoted(connection)}).fetchone() is not None


def _copy(
    connection: Connection,
    statement: Any,
    kind: str,
    items: Items,
    vectors: NDArray[Any],
    metadata: Sequence[Mapping[str, Any]] | None,
) -> None:
    psycopg, jsonb = import_extra("psycopg", extra="pgvector"), import_extra("psycopg.types.json", extra="pgvector")
    if metadata is not None and len(metadata) != len(items):
        raise InputError(f"there must be metadata for every item ({len(items)}). Got {len(metadata)} instead.")
    known = map(jsonb.Jsonb, repeat({}) if metadata is None else map(dict, metadata))
    try:
        with connection.cursor().copy(statement) as copy:
            copy.set_types(["text", "text", "jsonb", kind])
            for row in zip(items.ids, items.texts, known, _sent(vectors, kind), strict=False):
                copy.write_row(row)
    except psycopg.DataError as error:
        raise InputError(f"PostgreSQL does not take an item: {error}") from error


def _sent(vectors: NDArray[Any], kind: str) -> Iterator[Any]:
    """Each vector as pgvector takes it."""
    pgvector = import_extra("pgvector", extra="pgvector")
    make, dtype = (pgvector.HalfVector, np.float16) if kind == "halfvec" else (pgvector.Vector, np.float32)
    for start in range(0, len(vectors), BLOCK):
        with np.errstate(over="ignore"):
            block = vectors[start : start + BLOCK].astype(dtype)
        if not np.isfinite(block).all():
            raise InputError(f"vectors hold NaN, infinity or what {np.dtype(dtype)} cannot hold.")
        yield from map(make, block)


def _check_vectors(items: Items, vectors: NDArray[Any]) -> None:
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f" or not vectors.shape[1]:
        found = f"{vectors.dtype} {vectors.shape}" if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise InputError(f"vectors must be a floating-point array of shape (items, dim). Got {found} instead.")
    if len(vectors) != len(items):
        raise InputError(f"there must be one vector per item ({len(items)}). Got {len(vectors)} instead.")


def _check_name(name: str) -> str:
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) not in (1, 2) or not all(parts) or len(name.encode()) > LONGEST_NAME:
        raise InputError(f"a table's name must be one, or a schema and one, of at most 40 bytes. Got {name!r} instead.")
    return name
