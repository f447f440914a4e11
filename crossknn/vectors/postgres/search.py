"""Top rows by inner product, found by PostgreSQL with pgvector."""

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
from crossknn.vectors.base import check_limits, check_queries
from crossknn.vectors.postgres.connections import Connections
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    from crossknn.vectors.postgres.connections import Connection

FETCH: Final = 65_536  # lines that are read at once
WIDEST_SEARCH: Final = 1_000  # pgvector's most for hnsw.ef_search
SPARE: Final = 2  # rows of the HNSW index that are scored again for each that is wanted

EXACT: Final = "SELECT number, {product} FROM {source} WHERE {where} ORDER BY 2 DESC, 1 LIMIT %(n)s"
BY_HNSW: Final = """
SELECT number, {product} FROM (
    SELECT number, vector FROM {source} WHERE {where} ORDER BY vector <#> %(short)s LIMIT %(many)s
) AS near ORDER BY 2 DESC, 1 LIMIT %(n)s
"""
HNSW_SETTINGS: Final = (
    "SELECT set_config('hnsw.ef_search', %(width)s, true), set_config('hnsw.iterative_scan', 'strict_order', true)"
)
PRODUCTS: Final = "SELECT number, {product} FROM {source}"
SOME_PRODUCTS: Final = "SELECT number, {product} FROM {source} WHERE number = ANY(%(rows)s::bigint[])"
TAKE: Final = "SELECT vector::vector FROM {table} WHERE number = ANY(%(rows)s::bigint[]) ORDER BY number"
BESIDE: Final = "CREATE TABLE {beside} (number bigint PRIMARY KEY, columns vector({width}) NOT NULL)"
COPY_BESIDE: Final = "COPY {beside} FROM STDIN (FORMAT BINARY)"

Lines = list[tuple[Any, ...]]
Values = dict[str, Any]


class PgVectorSearch:
    """Search over the items that were in a table when `PgTable.open` opened it: exact, or by pgvector's HNSW index.

    Row 0 is the item of the lowest number, and so on: rows stay the same whatever is added or removed meanwhile. What
    was added since is not found, and neither is what was removed since. It may be used by several threads.
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
        self._narrow = self.dim = dim
        self._columns: Vectors = np.empty((0, 0), np.float32)  # beside the vectors,
        self._beside: str | None = None  # and the table they are in
        self._numbers = connections.read(self._read_numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @cached_property
    def items(self) -> Items:
        """The items of the rows, read when they are first asked for."""
        statement = self._format("SELECT number, id, text FROM {table} WHERE number <= %(last)s ORDER BY 1")

        def read(connection: Connection) -> Lines:
            return [line for block in self._stream(connection, statement, {}) for line in block]

        lines = self._connections.read(read)
        rows = self._rows_of([number for number, _, _ in lines])
        known = [line for line, row in zip(lines, rows, strict=True) if row >= 0]
        self._check_all(len(known), len(self))
        return Items((text for _, _, text in known), ids=(id_ for _, id_, _ in known))

    def filtered(self, condition: str, **values: Any) -> PgVectorSearch:
        """The same search among the items that meet a condition in SQL: `"metadata->>'lang' = %(lang)s", lang="de"`.

        The condition becomes part of the statement as it is; what comes from a user belongs into `values`. Other
        retrievers know nothing of it: where there are any, give `ids_where(…)` as the filter of a search instead.
        """
        view = copy(self)
        view._condition, view._values = f"{self._condition} AND ({condition})", {**self._values, **values}
        psycopg = import_extra("psycopg", extra="pgvector")
        try:
            view._read(view._format("SELECT FROM {source} WHERE {where} LIMIT 0"), {})
        except psycopg.Error as error:
            raise InputError(f"the condition {condition!r} cannot be used: {error}") from error
        return view

    def ids_where(self, condition: str, **values: Any) -> list[str]:
        """The ids of the items that meet a condition: a filter for every round and every retriever of a search."""
        view = self.filtered(condition, **values)
        return [id_ for (id_,) in view._read(view._format("SELECT id FROM {source} WHERE {where} ORDER BY number"), {})]

    def beside(self, *columns: NDArray[Any]) -> PgVectorSearch:
        """The same search where every vector goes on with these columns, each (items, some).

        The database keeps them in a table of their own, which the next search with the same columns finds there.
        """
        if any(len(column) != len(self) for column in columns):
            raise InputError(f"columns beside the vectors must have a line for every item ({len(self)}).")
        wider = copy(self)
        parts = [self._columns, *columns] if self._beside else columns
        wider._columns = np.concatenate(parts, axis=1).astype(np.float32)
        wider.dim = self._narrow + wider._columns.shape[1]
        digest = blake2b(self._numbers.tobytes() + wider._columns.tobytes(), digest_size=8).hexdigest()
        wider._beside = f"{self._table}_beside_{digest}"
        with self._connections.transaction() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [wider._beside])
            wider._keep_columns(connection)
        return wider

    def take(self, rows: Rows) -> Vectors:
        rows = np.asarray(rows, np.int64)
        wanted, places = np.unique(self._numbers[rows], return_inverse=True)
        lines = self._read(self._format(TAKE), {"rows": wanted.tolist()})
        self._check_all(len(lines), len(wanted))
        known = np.array([vector.to_numpy() for (vector,) in lines], np.float32).reshape(-1, self._narrow)[places]
        return np.concatenate([known, self._columns[rows]], axis=1) if self._beside else known

    def estimates(self, queries: NDArray[Any]) -> Scores:
        wanted = check_queries(self, queries)
        products = np.empty((len(wanted), len(self)), np.float32)
        for line, query in zip(products, wanted, strict=True):
            line[:] = self._products(query, None)
        return products

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        wanted = check_queries(self, queries)
        check_limits(self, len(wanted), exclude=exclude, allowed=allowed)
        hidden = [EMPTY_PROPOSAL.rows] * len(wanted) if exclude is None else exclude
        return [self._search_one(query, n, rows, allowed) for query, rows in zip(wanted, hidden, strict=True)]

    def search_with_candidates(
        self,
        queries: NDArray[Any],
        n: int,
        apart: Sequence[Rows] | None,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> tuple[list[Proposal], list[Scores]]:
        """`search` among the rows that are not `apart`, and each query's inner products with those that are."""
        wanted = check_queries(self, queries)
        check_limits(self, len(wanted), allowed=allowed, apart=apart, exclude=exclude)
        nothing = [EMPTY_PROPOSAL.rows] * len(wanted)
        both = [np.concatenate(rows) for rows in zip(apart or nothing, exclude or nothing, strict=True)]
        products = [self._products(query, rows) for query, rows in zip(wanted, apart or nothing, strict=True)]
        return self.search(wanted, n, exclude=both, allowed=allowed), products

    def _search_one(self, query: Scores, n: int, hidden: Rows, allowed: Mask | None) -> Proposal:
        values: Values = {"n": n, **self._cut(query)}
        if len(hidden):
            values["hidden"] = self._numbers[hidden].tolist()
        if allowed is not None:
            values["free"] = self._numbers[np.asarray(allowed, np.bool_)].tolist()
        if self._ef_search is not None and not self._beside:
            near = self._connections.read(lambda connection: self._ask_hnsw(connection, query, values))
            if len(near) == n:
                return self._propose(near)
        return self._propose(self._read(self._format(EXACT, values), values))

    def _ask_hnsw(self, connection: Connection, query: Scores, values: Values) -> Lines:
        """What pgvector's index proposes, with exact products."""
        pgvector = import_extra("pgvector", extra="pgvector")
        short = query / (np.linalg.norm(query) or 1.0)  # of length 1, so that half precision can hold it
        many = SPARE * values["n"]
        width = min(max(self._ef_search or 1, many), WIDEST_SEARCH)
        connection.execute(HNSW_SETTINGS, {"width": str(width)})
        asked = pgvector.HalfVector(short) if self._kind == "halfvec" else short
        return self._fetch(connection, self._format(BY_HNSW, values), {**values, "short": asked, "many": many})

    def _products(self, query: Scores, rows: Rows | None) -> Scores:
        """The inner products with these rows, or with all."""
        products = np.full(len(self), np.nan, np.float32)
        values, statement = self._cut(query), self._format(PRODUCTS)
        if rows is not None:
            values["rows"], statement = self._numbers[rows].tolist(), self._format(SOME_PRODUCTS)

        def fill(connection: Connection) -> None:
            for block in self._stream(connection, statement, values):
                numbers, told = zip(*block, strict=True)
                places = self._rows_of(numbers)
                products[places[places >= 0]] = np.array(told, np.float32)[places >= 0]

        self._connections.read(fill)
        wanted = products if rows is None else products[rows]
        self._check_all(int(np.isfinite(wanted).sum()), len(wanted))
        return wanted

    def _propose(self, lines: Lines) -> Proposal:
        if not lines:
            return EMPTY_PROPOSAL
        numbers, products = zip(*lines, strict=True)
        rows = self._rows_of(numbers)
        return order_rows(rows[rows >= 0], np.array(products, np.float32)[rows >= 0])

    def _cut(self, query: Scores) -> Values:
        """The query's part for the vectors, and that for the columns beside them."""
        return {"query": query[: self._narrow], "rest": query[self._narrow :]}

    def _keep_columns(self, connection: Connection) -> None:
        """Make the table of the columns, unless it is there."""
        pgvector, sql = import_extra("pgvector", extra="pgvector"), self._sql
        parts = {"beside": self._name(self._beside), "width": sql.Literal(self._columns.shape[1])}
        quoted = parts["beside"].as_string(connection)
        if connection.execute("SELECT to_regclass(%s)", [quoted]).fetchone() != (None,):
            return
        connection.execute(sql.SQL(BESIDE).format(**parts))
        with connection.cursor().copy(sql.SQL(COPY_BESIDE).format(**parts)) as copying:
            copying.set_types(["bigint", "vector"])
            for number, line in zip(self._numbers.tolist(), self._columns, strict=True):
                copying.write_row((number, pgvector.Vector(line)))

    def _read_numbers(self, connection: Connection) -> NDArray[np.int64]:
        statement = self._sql.SQL("SELECT number FROM {} WHERE NOT removed ORDER BY 1").format(self._name(self._table))
        found: NDArray[np.int64] = np.array(connection.execute(statement, binary=True).fetchall(), np.int64)
        return found.reshape(-1)

    def _rows_of(self, numbers: ArrayLike) -> Rows:
        """The rows of these numbers; −1 for those that are none of this search."""
        wanted = np.asarray(numbers, np.int64)
        if not len(self):
            return np.full(len(wanted), -1)
        places = np.minimum(np.searchsorted(self._numbers, wanted), len(self) - 1)
        return np.where(self._numbers[places] == wanted, places, -1)

    def _read(self, statement: Any, values: Values) -> Lines:
        return self._connections.read(lambda connection: self._fetch(connection, statement, values))

    def _fetch(self, connection: Connection, statement: Any, values: Values) -> Lines:
        return connection.execute(statement, self._with_own(values), binary=True).fetchall()

    def _stream(self, connection: Connection, statement: Any, values: Values) -> Iterator[Lines]:
        """Lines in blocks, so that not all are in memory at once."""
        with connection.cursor(name="crossknn", binary=True) as cursor:
            cursor.execute(statement, self._with_own(values))
            while lines := cursor.fetchmany(FETCH):
                yield lines

    def _with_own(self, values: Values) -> Values:
        last = int(self._numbers[-1]) if len(self) else 0
        return {**self._values, **values, "last": last}

    def _format(self, statement: str, values: Sequence[str] | Values = ()) -> Any:
        """A statement about this table, with the limits that there are `values` of."""
        sql, table = self._sql, self._name(self._table)
        source, product = table, "-(vector::vector <#> %(query)s)"
        if self._beside is not None:
            source = sql.SQL("{} JOIN {} USING (number)").format(table, self._name(self._beside))
            product = "-((vector::vector <#> %(query)s) + (columns <#> %(rest)s))"
        limits = "NOT removed AND number <= %(last)s"
        limits += " AND number <> ALL(%(hidden)s::bigint[])" * ("hidden" in values)
        limits += " AND number = ANY(%(free)s::bigint[])" * ("free" in values)
        where = sql.SQL(limits + " AND ") + sql.SQL(self._condition)
        return sql.SQL(statement).format(table=table, source=source, product=sql.SQL(product), where=where)

    def _name(self, table: str | None) -> Any:
        return self._sql.Identifier(*str(table).split("."))

    def _check_all(self, found: int, wanted: int) -> None:
        if found < wanted:
            raise StoreError(
                f"{wanted - found} items of {self._table!r} were deleted for good since it was opened. Open it again."
            )
