"""Connections to a PostgreSQL database with pgvector, for any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from crossknn._imports import import_extra
from crossknn.errors import InputError, StoreError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

Result = TypeVar("Result")


class Lost(StoreError):
    """A connection that was idle turned out to be lost."""


class Connections:
    """Opens a connection where none is idle, and keeps it for whoever needs one next.

    `database` is a connection string, as `postgresql://user@host/name`, or a function that opens a connection.
    """

    def __init__(self, database: str | Callable[[], Connection]) -> None:
        self._psycopg = import_extra("psycopg", extra="pgvector")
        self._pgvector = import_extra("pgvector.psycopg", extra="pgvector")
        if not isinstance(database, str) and not callable(database):
            raise InputError(f"database must be a connection string or a function. Got {database!r} instead.")
        self._database = database
        self._idle: list[Connection] = []

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction that ends with the block: kept, or with an error undone."""
        idle = self._take_idle()
        connection = self._open() if idle is None else idle
        try:
            with connection.transaction():
                yield connection
        except self._psycopg.OperationalError as error:
            told = f"PostgreSQL ended the work: {_first_line(error)}. Try again."
            if not connection.closed:
                raise StoreError(told) from error
            self.close()  # what was lost here is lost for all that are idle
            raise (StoreError(told) if idle is None else Lost(told)) from error
        finally:
            if not connection.closed:
                self._idle.append(connection)

    def read(self, ask: Callable[[Connection], Result]) -> Result:
        """What `ask` reads in a transaction; on a new connection where one was lost while it was idle."""
        try:
            with self.transaction() as connection:
                return ask(connection)
        except Lost:
            with self.transaction() as connection:
                return ask(connection)

    def add_extension(self) -> None:
        """Have pgvector in the database."""
        connection = self._connect()
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except self._psycopg.Error as error:
            raise _without_extension(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close all that are idle."""
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
        except self._psycopg.ProgrammingError as error:
            connection.close()
            raise _without_extension(error) from error
        return connection

    def _connect(self) -> Connection:
        try:
            given = self._database
            connection: Connection = self._psycopg.connect(given) if isinstance(given, str) else given()
        except self._psycopg.OperationalError as error:
            raise StoreError(f"PostgreSQL cannot be reached: {_first_line(error)}.") from error
        except self._psycopg.ProgrammingError as error:
            raise InputError(f"the connection string cannot be used: {_first_line(error)}.") from error
        connection.autocommit = True
        connection.row_factory = self._psycopg.rows.tuple_row
        connection.prepare_threshold = None  # plans must see the arrays of rows, which a prepared statement hides
        return connection


def _without_extension(error: Exception) -> InputError:
    return InputError(
        f"the database has no extension vector ({_first_line(error)}). Install pgvector on the server, and let someone "
        "who may do so run: CREATE EXTENSION vector"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
