"""Top-k by inner product in PostgreSQL with pgvector, and a thread-safe pool of connections to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from copy import copy
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossknn._checks import invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError, StoreError
from crossknn.items.items import Items
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows, Scores, Vectors
from crossknn.vectors.base import BaseSearch, Found, RowLists
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

FETCH_RECORDS: Final = 65_536  # records read from a cursor at once
MAX_EF_SEARCH: Final = 1_000  # pgvector's limit
HNSW_OVERSAMPLING: Final = 2  # candidates of the HNSW index that are rescored for each row to find

EXACT: Final = "SELECT number, {product} FROM {source} WHERE {where} ORDER BY 2 DESC, 1 LIMIT %(n)s"
BY_HNSW: Final = """
SELECT number, {product} FROM (
    SELECT number, vector FROM {source} WHERE {where} ORDER BY vector <#> %(normalized)s LIMIT %(candidates)s
) AS near ORDER BY 2 DESC, 1 LIMIT %(n)s
"""
HNSW_SETTINGS: Final = (
    "SELECT set_config('hnsw.ef_search', %(width)s, true), set_config('hnsw.iterative_scan', 'strict_order', true)"
)
PRODUCTS: Final = "SELECT number, {product} FROM {source}"
SOME_PRODUCTS: Final = "SELECT number, {product} FROM {source} WHERE number = ANY(%(rows)s::bigint[])"
TAKE: Final = "SELECT vector::vector FROM {table} WHERE number = ANY(%(rows)s::bigint[]) ORDER BY number"
CREATE_COLUMNS: Final = "CREATE TABLE {columns} (number bigint PRIMARY KEY, columns vector({width}) NOT NULL)"
COPY_COLUMNS: Final = "COPY {columns} FROM STDIN (FORMAT BINARY)"

Records = list[tuple[Any, ...]]
Values = dict[str, Any]
Result = TypeVar("Result")


class PgVectorSearch(BaseSearch):
    """Search over the items of a table at the time of `PgTable.open`: exact, or with pgvector's HNSW index.

    Row 0 is the item of the lowest number, and so on: rows stay the same whatever is added or removed meanwhile. Items
    added or removed since are not found. Several threads may use it.
    """

    def __init__(
        self, connections: Connections, table: str, dim: int, kind: str, *, ef_search: int | None = None
    ) -> None:
        self._connections = connections
        self._table = table
        self._kind = kind
        self._ef_search = ef_search
        self._condition, self._values = "true", Values()
        self._stored_dim = self.dim = dim
        self._columns: Vectors = np.empty((0, 0), np.float32)  # appended to the vectors,
        self._columns_table: str | None = None  # and the table they are in
        self._numbers = connections.read(self._read_numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @cached_property
    def items(self) -> Items:
        """The items of the rows, with their metadata as fields, read on first use."""
        statement = "SELECT number, id, text, metadata FROM {table} WHERE number <= %(last)s ORDER BY 1"
        records = self._connections.read(lambda connection: [*chain(*self._stream(connection, statement, {}))])
        rows = self._rows_of([number for number, *_ in records])
        known = [record for record, row in zip(records, rows, strict=True) if row >= 0]
        self._check_all(len(known), len(self))
        named = ({**metadata, "_id": id_, "text": text} for _, id_, text, metadata in known)
        return Items.from_records(named, id="_id", text="text")

    def filtered(self, condition: str, **values: Any) -> PgVectorSearch:
        """The same search among the items that meet an SQL condition: `"metadata->>'lang' = %(lang)s", lang="de"`.

        The condition becomes part of the statement as it is: pass what comes from a user in `values`. Other retrievers
        do not apply it; where there are any, use `ids_where(…)` as the filter of a search instead.
        """
        view = copy(self)
        view._condition, view._values = f"{self._condition} AND ({condition})", {**self._values, **values}
        try:
            view._read("SELECT FROM {source} WHERE {where} LIMIT 0", {})
        except self._connections.psycopg.Error as error:
            raise InputError(f"`condition` must be valid SQL, got {condition!r}: {error}") from error
        return view

    def ids_where(self, condition: str, **values: Any) -> list[str]:
        """The ids of the items that meet a condition: a filter for every round and every retriever of a search."""
        view = self.filtered(condition, **values)
        return [id_ for (id_,) in view._read("SELECT id FROM {source} WHERE {where} ORDER BY number", {})]

    def with_columns(self, *columns: NDArray[Any]) -> PgVectorSearch:
        """The same search with columns, each (items, width), appended to every vector.

        The columns are stored in a separate table, which later searches with the same columns reuse.
        """
        self._check_columns(columns)
        augmented = copy(self)
        parts = [self._columns, *columns] if self._columns_table else columns
        augmented._columns = np.concatenate(parts, axis=1).astype(np.float32)
        augmented.dim = self._stored_dim + augmented._columns.shape[1]
        digest = blake2b(self._numbers.tobytes() + augmented._columns.tobytes(), digest_size=8).hexdigest()
        augmented._columns_table = table = f"{self._table}_cols_{digest}"
        with self._connections.transaction() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [table])
            augmented._store_columns(connection, table)
        return augmented

    def take(self, rows: Rows) -> Vectors:
        rows = np.asarray(rows, np.int64)
        numbers, places = np.unique(self._numbers[rows], return_inverse=True)
        records = self._read(TAKE, {"rows": numbers.tolist()})
        self._check_all(len(records), len(numbers))
        stored = np.array([vector.to_numpy() for (vector,) in records], np.float32)
        stored = stored.reshape(-1, self._stored_dim)[places]
        return np.concatenate([stored, self._columns[rows]], axis=1) if self._columns_table else stored

    def estimates(self, queries: NDArray[Any]) -> Scores:
        vectors = self._check_queries(queries)
        products = np.empty((len(vectors), len(self)), np.float32)
        for row, query in zip(products, vectors, strict=True):
            row[:] = self._products(query, None)
        return products

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        products = [
            self._products(query, rows) if len(rows) else EMPTY_PROPOSAL.estimates
            for query, rows in zip(queries, candidates, strict=True)
        ]
        hidden = map(np.concatenate, zip(candidates, exclude, strict=True))
        return [
            self._search_one(query, n, rows, allowed) for query, rows in zip(queries, hidden, strict=True)
        ], products

    def _search_one(self, query: Scores, n: int, exclude: Rows, allowed: Mask | None) -> Proposal:
        values: Values = {"n": n, **self._split_query(query)}
        if len(exclude):
            values["excluded"] = self._numbers[exclude].tolist()
        if allowed is not None:
            values["allowed"] = self._numbers[np.asarray(allowed, np.bool_)].tolist()
        if self._ef_search is not None and not self._columns_table:
            near = self._connections.read(lambda connection: self._search_hnsw(connection, query, values))
            if len(near) == n:
                return self._propose(near)
        return self._propose(self._read(EXACT, values))

    def _search_hnsw(self, connection: Connection, query: Scores, values: Values) -> Records:
        """Candidates of pgvector's index, with exact products."""
        from pgvector import HalfVector

        normalized = query / (np.linalg.norm(query) or 1.0)  # so that half precision can hold it
        candidates = HNSW_OVERSAMPLING * values["n"]
        width = min(max(self._ef_search or 1, candidates), MAX_EF_SEARCH)
        connection.execute(HNSW_SETTINGS, {"width": str(width)})
        vector = HalfVector(normalized) if self._kind == "halfvec" else normalized
        own = {**values, "normalized": vector, "candidates": candidates}
        return self._fetch(connection, BY_HNSW, own)

    def _products(self, query: Scores, rows: Rows | None) -> Scores:
        """The inner products with these rows, or with all."""
        products = np.full(len(self), np.nan, np.float32)
        statement, values = PRODUCTS, self._split_query(query)
        if rows is not None:
            statement, values["rows"] = SOME_PRODUCTS, self._numbers[rows].tolist()

        def read(connection: Connection) -> None:
            for block in self._stream(connection, statement, values):
                found, estimates = self._read_products(block)
                products[found] = estimates

        self._connections.read(read)
        result = products if rows is None else products[rows]
        self._check_all(int(np.isfinite(result).sum()), len(result))
        return result

    def _propose(self, records: Records) -> Proposal:
        return order_rows(*self._read_products(records)) if records else EMPTY_PROPOSAL

    def _read_products(self, records: Records) -> tuple[Rows, Scores]:
        """The rows and the products of nonempty records, without items that were added since."""
        numbers, products = zip(*records, strict=True)
        rows = self._rows_of(numbers)
        return rows[rows >= 0], np.array(products, np.float32)[rows >= 0]

    def _split_query(self, query: Scores) -> Values:
        """The query's values for the stored vectors and for the columns."""
        return {"query": query[: self._stored_dim], "rest": query[self._stored_dim :]}

    def _store_columns(self, connection: Connection, table: str) -> None:
        """Create the table of the columns, unless it exists."""
        from pgvector import Vector

        if connection.execute("SELECT to_regclass(%s)", [quoted(connection, table)]).fetchone() != (None,):
            return
        connection.execute(format_sql(CREATE_COLUMNS, columns=table, width=self._columns.shape[1]))
        with connection.cursor().copy(format_sql(COPY_COLUMNS, columns=table)) as copying:
            copying.set_types(["bigint", "vector"])
            for number, row in zip(self._numbers.tolist(), self._columns, strict=True):
                copying.write_row((number, Vector(row)))

    def _read_numbers(self, connection: Connection) -> NDArray[np.int64]:
        statement = format_sql("SELECT number FROM {table} WHERE NOT removed ORDER BY 1", table=self._table)
        return np.array(connection.execute(statement, binary=True).fetchall(), np.int64).reshape(-1)

    def _rows_of(self, numbers: ArrayLike) -> Rows:
        """The rows of these numbers; −1 for those added since."""
        sought = np.asarray(numbers, np.int64)
        if not len(self):
            return np.full(len(sought), -1)
        places = np.minimum(np.searchsorted(self._numbers, sought), len(self) - 1)
        return np.where(self._numbers[places] == sought, places, -1)

    def _read(self, statement: str, values: Values) -> Records:
        return self._connections.read(lambda connection: self._fetch(connection, statement, values))

    def _fetch(self, connection: Connection, statement: str, values: Values) -> Records:
        return connection.execute(*self._prepare(statement, values), binary=True).fetchall()

    def _stream(self, connection: Connection, statement: str, values: Values) -> Iterator[Records]:
        """Records in blocks, so that not all are in memory at once."""
        with connection.cursor(name="crossknn", binary=True) as cursor:
            cursor.execute(*self._prepare(statement, values))
            while records := cursor.fetchmany(FETCH_RECORDS):
                yield records

    def _prepare(self, statement: str, values: Values) -> tuple[Any, Values]:
        """A statement about this table, restricted by the `excluded` and `allowed` of `values`, and all its values."""
        from psycopg import sql

        source, product = "{table}", "-(vector::vector <#> %(query)s)"
        if self._columns_table is not None:
            source = "{table} JOIN {columns} USING (number)"
            product = "-((vector::vector <#> %(query)s) + (columns <#> %(rest)s))"
        where = "NOT removed AND number <= %(last)s"
        where += " AND number <> ALL(%(excluded)s::bigint[])" * ("excluded" in values)
        where += " AND number = ANY(%(allowed)s::bigint[])" * ("allowed" in values)
        condition = sql.SQL(f"{where} AND {self._condition}")
        statement = statement.replace("{source}", source).replace("{product}", product)
        last = int(self._numbers[-1]) if len(self) else 0
        formatted = format_sql(statement, table=self._table, columns=self._columns_table, where=condition)
        return formatted, {**self._values, **values, "last": last}

    def _check_all(self, found: int, expected: int) -> None:
        if found < expected:
            raise StoreError(
                f"{expected - found} items of {self._table!r} were purged since it was opened. Open it again."
            )


class StaleConnection(StoreError):
    """A connection that was idle turned out to be lost."""


class Connections:
    """Opens a connection where none is idle, and keeps it open for reuse; `database` is as of `PgTable`."""

    def __init__(self, database: str | Callable[[], Connection]) -> None:
        self.psycopg = import_extra("psycopg", extra="pgvector")
        self._pgvector = import_extra("pgvector.psycopg", extra="pgvector")
        if not isinstance(database, str) and not callable(database):
            raise invalid("database", "a connection string or a function", database)
        self._database = database
        self._idle: list[Connection] = []

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction that is committed at the end of the block, or rolled back on an error."""
        idle = self._take_idle()
        connection = idle or self._open()
        try:
            with connection.transaction():
                yield connection
        except self.psycopg.OperationalError as error:
            message = f"PostgreSQL ended the transaction: {_first_line(error)}. Try again."
            if not connection.closed:
                raise StoreError(message) from error
            self.close()  # the idle connections are lost, too
            raise (StoreError(message) if idle is None else StaleConnection(message)) from error
        finally:
            if not connection.closed:
                self._idle.append(connection)

    def read(self, function: Callable[[Connection], Result]) -> Result:
        """`function` of a connection in a transaction, repeated on a new connection if an idle one was lost."""
        with suppress(StaleConnection), self.transaction() as connection:
            return function(connection)
        with self.transaction() as connection:
            return function(connection)

    def add_extension(self) -> None:
        """Install pgvector in the database unless it is there."""
        with closing(self._connect()) as connection:
            try:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except self.psycopg.Error as error:
                raise _missing_extension(error) from error

    def close(self) -> None:
        """Close all idle connections."""
        while (connection := self._take_idle()) is not None:
            connection.close()

    def _take_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _open(self) -> Connection:
        connection = self._connect()
        try:
            self._pgvector.register_vector(connection)
        except self.psycopg.ProgrammingError as error:
            connection.close()
            raise _missing_extension(error) from error
        return connection

    def _connect(self) -> Connection:
        try:
            database = self._database
            connection: Connection = self.psycopg.connect(database) if isinstance(database, str) else database()
        except self.psycopg.OperationalError as error:
            raise StoreError(f"PostgreSQL cannot be reached: {_first_line(error)}.") from error
        except self.psycopg.ProgrammingError as error:
            raise InputError(f"`database` must be a valid connection string: {_first_line(error)}.") from error
        connection.autocommit = True
        connection.row_factory = self.psycopg.rows.tuple_row
        connection.prepare_threshold = None  # the planner must see the arrays of rows, which prepared statements hide
        return connection


def _missing_extension(error: Exception) -> InputError:
    return InputError(
        f"The database has no extension vector ({_first_line(error)}). Install pgvector on the server and run, with "
        "sufficient rights: CREATE EXTENSION vector"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def format_sql(statement: str, **parts: Any) -> Any:
    """The statement with these parts, of which strings are names, such as those of tables, with or without a schema."""
    from psycopg import sql

    named = {key: sql.Identifier(*part.split(".")) if isinstance(part, str) else part for key, part in parts.items()}
    return sql.SQL(statement).format(**named)


def quoted(connection: Connection, table: str) -> str:
    """The table's name as PostgreSQL's `to_regclass` reads it."""
    name: str = format_sql("{table}", table=table).as_string(connection)
    return name
