"""Top-k by inner product in PostgreSQL with pgvector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError, StoreError
from crossknn.items.items import Items
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows, Scores, Vectors
from crossknn.vectors.base import BaseSearch, Found, RowLists
from crossknn.vectors.postgres.connections import Connections
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    from crossknn.vectors.postgres.connections import Connection

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


class PgVectorSearch(BaseSearch):
    """Search over the items of a table at the time of `PgTable.open`: exact, or with pgvector's HNSW index.

    Row 0 is the item of the lowest number, and so on: rows stay the same whatever is added or removed meanwhile. Items
    added or removed since are not found. Several threads may use it.
    """

    def __init__(
        self, connections: Connections, table: str, dim: int, kind: str, *, ef_search: int | None = None
    ) -> None:
        self._sql = import_extra("psycopg.sql", extra="pgvector")
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
        """The items of the rows, read on first use."""
        statement = self._format("SELECT number, id, text FROM {table} WHERE number <= %(last)s ORDER BY 1")

        def read(connection: Connection) -> Records:
            return [record for block in self._stream(connection, statement, {}) for record in block]

        records = self._connections.read(read)
        rows = self._rows_of([number for number, _, _ in records])
        known = [record for record, row in zip(records, rows, strict=True) if row >= 0]
        self._check_all(len(known), len(self))
        return Items((text for _, _, text in known), ids=(id_ for _, id_, _ in known))

    def filtered(self, condition: str, **values: Any) -> PgVectorSearch:
        """The same search among the items that meet an SQL condition: `"metadata->>'lang' = %(lang)s", lang="de"`.

        The condition becomes part of the statement as it is: pass what comes from a user in `values`. Other retrievers
        do not apply it; where there are any, use `ids_where(…)` as the filter of a search instead.
        """
        view = copy(self)
        view._condition, view._values = f"{self._condition} AND ({condition})", {**self._values, **values}
        psycopg = import_extra("psycopg", extra="pgvector")
        try:
            view._read(view._format("SELECT FROM {source} WHERE {where} LIMIT 0"), {})
        except psycopg.Error as error:
            raise InputError(f"`condition` must be valid SQL, got {condition!r}: {error}") from error
        return view

    def ids_where(self, condition: str, **values: Any) -> list[str]:
        """The ids of the items that meet a condition: a filter for every round and every retriever of a search."""
        view = self.filtered(condition, **values)
        return [id_ for (id_,) in view._read(view._format("SELECT id FROM {source} WHERE {where} ORDER BY number"), {})]

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
        augmented._columns_table = f"{self._table}_cols_{digest}"
        with self._connections.transaction() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [augmented._columns_table])
            augmented._store_columns(connection)
        return augmented

    def take(self, rows: Rows) -> Vectors:
        rows = np.asarray(rows, np.int64)
        numbers, places = np.unique(self._numbers[rows], return_inverse=True)
        records = self._read(self._format(TAKE), {"rows": numbers.tolist()})
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
        hidden = [np.concatenate(rows) for rows in zip(candidates, exclude, strict=True)]
        found = [self._search_one(query, n, rows, allowed) for query, rows in zip(queries, hidden, strict=True)]
        return found, products

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
        return self._propose(self._read(self._format(EXACT, values), values))

    def _search_hnsw(self, connection: Connection, query: Scores, values: Values) -> Records:
        """Candidates of pgvector's index, with exact products."""
        pgvector = import_extra("pgvector", extra="pgvector")
        normalized = query / (np.linalg.norm(query) or 1.0)  # so that half precision can hold it
        candidates = HNSW_OVERSAMPLING * values["n"]
        width = min(max(self._ef_search or 1, candidates), MAX_EF_SEARCH)
        connection.execute(HNSW_SETTINGS, {"width": str(width)})
        vector = pgvector.HalfVector(normalized) if self._kind == "halfvec" else normalized
        own = {**values, "normalized": vector, "candidates": candidates}
        return self._fetch(connection, self._format(BY_HNSW, values), own)

    def _products(self, query: Scores, rows: Rows | None) -> Scores:
        """The inner products with these rows, or with all."""
        products = np.full(len(self), np.nan, np.float32)
        values, statement = self._split_query(query), self._format(PRODUCTS)
        if rows is not None:
            values["rows"], statement = self._numbers[rows].tolist(), self._format(SOME_PRODUCTS)

        def read(connection: Connection) -> None:
            for block in self._stream(connection, statement, values):
                numbers, read_products = zip(*block, strict=True)
                places = self._rows_of(numbers)
                products[places[places >= 0]] = np.array(read_products, np.float32)[places >= 0]

        self._connections.read(read)
        result = products if rows is None else products[rows]
        self._check_all(int(np.isfinite(result).sum()), len(result))
        return result

    def _propose(self, records: Records) -> Proposal:
        if not records:
            return EMPTY_PROPOSAL
        numbers, products = zip(*records, strict=True)
        rows = self._rows_of(numbers)
        return order_rows(rows[rows >= 0], np.array(products, np.float32)[rows >= 0])

    def _split_query(self, query: Scores) -> Values:
        """The query's values for the stored vectors and for the columns."""
        return {"query": query[: self._stored_dim], "rest": query[self._stored_dim :]}

    def _store_columns(self, connection: Connection) -> None:
        """Create the table of the columns, unless it exists."""
        pgvector, sql = import_extra("pgvector", extra="pgvector"), self._sql
        parts = {"columns": self._identifier(self._columns_table), "width": sql.Literal(self._columns.shape[1])}
        quoted = parts["columns"].as_string(connection)
        if connection.execute("SELECT to_regclass(%s)", [quoted]).fetchone() != (None,):
            return
        connection.execute(sql.SQL(CREATE_COLUMNS).format(**parts))
        with connection.cursor().copy(sql.SQL(COPY_COLUMNS).format(**parts)) as copying:
            copying.set_types(["bigint", "vector"])
            for number, row in zip(self._numbers.tolist(), self._columns, strict=True):
                copying.write_row((number, pgvector.Vector(row)))

    def _read_numbers(self, connection: Connection) -> NDArray[np.int64]:
        table = self._identifier(self._table)
        statement = self._sql.SQL("SELECT number FROM {} WHERE NOT removed ORDER BY 1").format(table)
        found: NDArray[np.int64] = np.array(connection.execute(statement, binary=True).fetchall(), np.int64)
        return found.reshape(-1)

    def _rows_of(self, numbers: ArrayLike) -> Rows:
        """The rows of these numbers; −1 for those added since."""
        sought = np.asarray(numbers, np.int64)
        if not len(self):
            return np.full(len(sought), -1)
        places = np.minimum(np.searchsorted(self._numbers, sought), len(self) - 1)
        return np.where(self._numbers[places] == sought, places, -1)

    def _read(self, statement: Any, values: Values) -> Records:
        return self._connections.read(lambda connection: self._fetch(connection, statement, values))

    def _fetch(self, connection: Connection, statement: Any, values: Values) -> Records:
        return connection.execute(statement, self._with_own(values), binary=True).fetchall()

    def _stream(self, connection: Connection, statement: Any, values: Values) -> Iterator[Records]:
        """Records in blocks, so that not all are in memory at once."""
        with connection.cursor(name="crossknn", binary=True) as cursor:
            cursor.execute(statement, self._with_own(values))
            while records := cursor.fetchmany(FETCH_RECORDS):
                yield records

    def _with_own(self, values: Values) -> Values:
        last = int(self._numbers[-1]) if len(self) else 0
        return {**self._values, **values, "last": last}

    def _format(self, statement: str, values: Sequence[str] | Values = ()) -> Any:
        """A statement about this table, restricted by the `excluded` and `allowed` of `values`."""
        sql, table = self._sql, self._identifier(self._table)
        source, product = table, "-(vector::vector <#> %(query)s)"
        if self._columns_table is not None:
            source = sql.SQL("{} JOIN {} USING (number)").format(table, self._identifier(self._columns_table))
            product = "-((vector::vector <#> %(query)s) + (columns <#> %(rest)s))"
        where = "NOT removed AND number <= %(last)s"
        where += " AND number <> ALL(%(excluded)s::bigint[])" * ("excluded" in values)
        where += " AND number = ANY(%(allowed)s::bigint[])" * ("allowed" in values)
        condition = sql.SQL(where + " AND ") + sql.SQL(self._condition)
        return sql.SQL(statement).format(table=table, source=source, product=sql.SQL(product), where=condition)

    def _identifier(self, table: str | None) -> Any:
        return self._sql.Identifier(*str(table).split("."))

    def _check_all(self, found: int, expected: int) -> None:
        if found < expected:
            raise StoreError(
                f"{expected - found} items of {self._table!r} were purged since it was opened. Open it again."
            )
