"""A thread-safe pool of connections to a PostgreSQL database with pgvector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from crossknn._checks import invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError, StoreError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

Result = TypeVar("Result")


class StaleConnection(StoreError):
    """A connection that was idle turned out to be lost."""


class Connections:
    """Opens a connection where none is idle, and keeps it open for reuse.

    Args:
        database: A connection string such as `postgresql://user@host/name`, or a function that opens a connection.
    """

    def __init__(self, database: str | Callable[[], Connection]) -> None:
        self._psycopg = import_extra("psycopg", extra="pgvector")
        self._pgvector = import_extra("pgvector.psycopg", extra="pgvector")
        if not isinstance(database, str) and not callable(database):
            raise invalid("database", "a connection string or a function", database)
        self._database = database
        self._idle: list[Connection] = []

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction that is committed at the end of the block, or rolled back on an error."""
        idle = self._take_idle()
        connection = self._open() if idle is None else idle
        try:
            with connection.transaction():
                yield connection
        except self._psycopg.OperationalError as error:
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
        try:
            with self.transaction() as connection:
                return function(connection)
        except StaleConnection:
            with self.transaction() as connection:
                return function(connection)

    def add_extension(self) -> None:
        """Install pgvector in the database unless it is there."""
        connection = self._connect()
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except self._psycopg.Error as error:
            raise _missing_extension(error) from error
        finally:
            connection.close()

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
        except self._psycopg.ProgrammingError as error:
            connection.close()
            raise _missing_extension(error) from error
        return connection

    def _connect(self) -> Connection:
        try:
            database = self._database
            connection: Connection = self._psycopg.connect(database) if isinstance(database, str) else database()
        except self._psycopg.OperationalError as error:
            raise StoreError(f"PostgreSQL cannot be reached: {_first_line(error)}.") from error
        except self._psycopg.ProgrammingError as error:
            raise InputError(f"`database` must be a valid connection string: {_first_line(error)}.") from error
        connection.autocommit = True
        connection.row_factory = self._psycopg.rows.tuple_row
        connection.prepare_threshold = None  # the planner must see the arrays of rows, which prepared statements hide
        return connection


def _missing_extension(error: Exception) -> InputError:
    return InputError(
        f"The database has no extension vector ({_first_line(error)}). Install pgvector on the server and run, with "
        "sufficient rights: CREATE EXTENSION vector"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
