"""Connections and transactions of one store on PostgreSQL, used by any number of threads.

Connections are opened on demand, by the thread that needs one, so that a refusal is raised with its reason where it
happens. (The driver's own pool connects in the background: a caller learns only that it waited in vain.)
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from holdfast.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreUnavailable
from holdfast.store.base import BUSY_WAIT
from holdfast.store.postgres.database_errors import translate_connect_error, translate_error
from holdfast.store.postgres.location import PostgresLocation

MAX_CONNECTIONS = 16
"""Connections that one store opens for transactions; more threads wait for one.

Chosen by judgement: an engine writes in one thread, so few are ever used, and a server has a hundred for all clients.
"""
ANSWER_WAIT = 60.0
"""Seconds that a statement waits for the server's answer before the connection counts as lost.

Chosen by judgement: statements take milliseconds, those of a very long session seconds; a network that swallows
packets without closing the connection would otherwise be waited for without end.
"""
MAX_PAUSE_SECONDS = 30
"""Seconds after which the server ends a write transaction in which nothing happens.

A process that was stopped in the middle of one would keep its session locked for ever. Between two statements of
ours lies the encoding of a hundred entries, which takes far less.
"""
NOTICE_LOST_CLIENTS = b"SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""Lets the server notice within half a minute that a client's machine is gone, and give up what it held.

By default it takes more than two hours.
"""
OUTCOME_WAIT = 10.0
"""Seconds to ask whether a transaction was committed, after the connection was lost during its commit.

Chosen by judgement: a server that restarts answers again after a few seconds.
"""
OUTCOME_PAUSE = 0.2
"""Seconds between two of these questions."""
OLDEST_SERVER = 140_000
"""Oldest version of the server, as ``server_version`` counts: PostgreSQL 14, the oldest with support when this was
written.
"""

# The driver warns of a connection that was lost inside of an operation. Our error says so; without a handler of the
# program, Python would print the warning as well.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]


class DriverConnection(psycopg.Connection[Row]):
    """A connection that does not wait for an answer for ever."""

    def wait(self, gen: PQGen[Any], interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for the end of an operation, ``ANSWER_WAIT`` seconds at most; afterwards the connection is closed."""
        try:
            return super().wait(gen, interval, ANSWER_WAIT if timeout is None else timeout)
        except psycopg.OperationalError as error:
            # After a wait in vain the answer may still come, and would be taken for that of the next statement. An
            # error of the server has a code; others of its statements may still be under way then.
            if error.sqlstate is None and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


class StoredSession:
    """The numbers of a session in the current transaction; what is changed here is written with its row."""

    __slots__ = ("byte_count", "last_seq", "number")

    def __init__(self, number: int, byte_count: int, last_seq: int) -> None:
        self.number = number
        self.byte_count = byte_count
        self.last_seq = last_seq


class Transaction:
    """A transaction of one thread. ``transaction_id`` is the server's number for it, empty for one that only reads."""

    def __init__(self, connection: Connection, transaction_id: str = "") -> None:
        self.connection = connection
        self.transaction_id = transaction_id
        self.backend_pid = connection.info.backend_pid
        """Number of the server's process for this connection."""
        self.witness: tuple[int, str] | None = None
        """Session and id of an entry that it writes, by which it is known later whether it was committed."""
        self._delayed: list[tuple[str, Sequence[Sequence[object]]]] = []
        """Statements that are still to be sent, each with the rows that it is run for."""
        self.sessions: dict[str, StoredSession] = {}
        """Sessions that this transaction has read (and locked, if it writes), by their keys."""

    @property
    def is_write(self) -> bool:
        """Whether it may write."""
        return bool(self.transaction_id)

    def fetch_all(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Return all rows of a query."""
        self.send_delayed()
        with self.connection.cursor(binary=True) as cursor:
            return cursor.execute(query.encode(), values).fetchall()

    def fetch_one(self, query: str, values: Sequence[object] = ()) -> Row | None:
        """Return the first row of a query, or None."""
        self.send_delayed()
        with self.connection.cursor(binary=True) as cursor:
            return cursor.execute(query.encode(), values).fetchone()

    def execute(self, query: str, values: Sequence[object] = ()) -> int:
        """Run a statement and return the number of rows that it changed."""
        self.send_delayed()
        with self.connection.cursor() as cursor:
            return cursor.execute(query.encode(), values).rowcount

    def execute_later(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement for each of ``rows`` before the next one that has a result, or together with the commit.

        Measured: an append waits for the server four times and not six.
        """
        self._delayed.append((query, rows))

    def send_delayed(self, *, commits: bool = False) -> None:
        """Send the delayed statements, and with ``commits`` the commit, and wait for all of them once."""
        delayed, self._delayed = self._delayed, []
        if not delayed and not commits:
            return
        with self.connection.pipeline(), self.connection.cursor() as cursor:
            for query, rows in delayed:
                cursor.executemany(query.encode(), rows)
            if commits:
                # The server runs nothing after a statement that failed, so this is not reached then.
                cursor.execute("COMMIT")


class PostgresDatabase:
    """The database of a store: its connections, and the transaction of each thread."""

    def __init__(
        self,
        location: PostgresLocation,
        find_tables: Callable[[Connection], bool],
        prepare_writing: Callable[[Connection], None],
        *,
        readonly: bool = False,
    ) -> None:
        """``find_tables`` tells whether the tables are there, before the first read; ``prepare_writing`` makes or
        checks them before the first write.
        """
        self.location = location
        self.name = location.name
        self.readonly = readonly
        self._find_tables = find_tables
        self._prepare_writing = prepare_writing
        self._local = threading.local()
        self._idle: list[Connection] = []
        self._turn = threading.Lock()
        self._free_connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._process_id = os.getpid()
        self._has_tables = False
        self._is_prepared_for_writing = False
        self._is_closed = False

    # -- transactions --------------------------------------------------------------------------------------------------

    @property
    def transaction(self) -> Transaction:
        """The transaction of this thread."""
        current = self._get_current()
        if current is None:
            msg = f"no transaction on {self.name} has begun in this thread"
            raise StoreError(msg)
        return current

    @property
    def has_tables(self) -> bool:
        """Whether the tables existed when the current transaction began: they are made by the first write."""
        return self._has_tables

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Everything read inside is of one moment; a nested one joins the outer."""
        if self._get_current() is not None:
            yield
            return
        begin = self._format_begin("ISOLATION LEVEL REPEATABLE READ READ ONLY")
        with self._hold_connection(begin, is_writing=False) as (connection, _):
            self._local.transaction = Transaction(connection)
            try:
                yield
            except psycopg.Error as error:
                raise self._translate(error, connection, is_writing=False) from error
            finally:
                self._local.transaction = None

    @contextmanager
    def write_transaction(self) -> Iterator[None]:
        """Commit all writes of the block together at its end, or roll all of them back."""
        if self._get_current() is not None:
            msg = f"a write to {self.name} was begun inside another operation; begin it before or after that"
            raise StoreError(msg)
        if self.readonly:
            msg = f"{self.name} was opened for reading only; nothing was written: open it again without readonly"
            raise StoreReadOnly(msg)
        with self._hold_connection(self._format_begin_write(), is_writing=True) as (connection, transaction_id):
            transaction = self._local.transaction = Transaction(connection, transaction_id)
            try:
                yield
            except psycopg.Error as error:
                if _is_lost(connection):
                    self._end_lost_transaction(transaction)
                raise self._translate(error, connection, is_writing=True) from error
            finally:
                self._local.transaction = None
            self._commit(transaction)

    def _get_current(self) -> Transaction | None:
        return getattr(self._local, "transaction", None)

    def _format_begin(self, mode: str, *more_statements: str) -> bytes:
        """Return the statements that begin a transaction, sent together.

        Settings are of the transaction alone, so that a connection pooler may share connections between tenants.
        """
        statements = [
            sql.SQL("BEGIN " + mode),
            sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(self.location.schema)),
            sql.SQL("SET LOCAL holdfast.tenant = {}").format(sql.Literal(self.location.tenant)),
            *map(sql.SQL, more_statements),
        ]
        return sql.SQL("; ").join(statements).as_bytes(None)

    def _format_begin_write(self) -> bytes:
        return self._format_begin(
            "ISOLATION LEVEL READ COMMITTED READ WRITE",
            f"SET LOCAL lock_timeout = '{BUSY_WAIT:g}s'",
            f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_PAUSE_SECONDS}s'",
            "SELECT pg_current_xact_id()::text",
        )

    def _commit(self, transaction: Transaction) -> None:
        """Commit; if the connection is lost meanwhile, find out what became of it."""
        try:
            transaction.send_delayed(commits=True)
        except psycopg.Error as error:
            if not _is_lost(transaction.connection):
                raise self._translate(error, transaction.connection, is_writing=True) from error
            if self._was_committed(transaction, error):
                return
            msg = f"the connection to {self.name} was lost before the commit; nothing was written: try again"
            raise StoreUnavailable(msg) from error

    def _was_committed(self, transaction: Transaction, error: psycopg.Error) -> bool:
        """Find out whether a transaction was committed; raises ``StoreUnavailable`` if that cannot be known."""
        end = time.monotonic() + OUTCOME_WAIT
        while True:
            with suppress(psycopg.Error), self._connect_driver() as connection:
                outcome = self._ask_outcome(connection, transaction)
                if outcome is not None:
                    return outcome
            # It is still open, or the server cannot be reached.
            self._end_lost_transaction(transaction)
            if time.monotonic() > end:
                raise self._build_unknown_error() from error
            time.sleep(OUTCOME_PAUSE)

    def _ask_outcome(self, connection: Connection, transaction: Transaction) -> bool | None:
        """Return whether a transaction was committed, or None as long as it is open."""
        try:
            query = "SELECT pg_xact_status(%s::text::xid8)"
            row = connection.execute(query, [transaction.transaction_id]).fetchone()
        except psycopg.errors.InvalidParameterValue:
            return False  # after a crash the server does not know its number: it left no trace
        status = None if row is None else row[0]
        if status not in ("committed", "aborted"):
            return None
        if status == "aborted":
            return False
        # After a crash of the server, the number of a transaction that left no trace is given to another one. So only
        # what it wrote is a proof.
        if transaction.witness is None:
            raise self._build_unknown_error()
        _run_begin(connection, self._format_begin("ISOLATION LEVEL READ COMMITTED READ ONLY"))
        query = "SELECT FROM entries WHERE session = %s AND id = %s"
        return connection.execute(query, transaction.witness).fetchone() is not None

    def _build_unknown_error(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the connection to {self.name} was lost during a commit, and the server does not say whether it was made: "
            "read the session again before writing to it"
        )

    def _end_lost_transaction(self, transaction: Transaction) -> None:
        """End a transaction whose connection was lost, if the server has not noticed it yet and can be reached.

        It would keep its session locked, also against ourselves, until the server gives it up.
        """
        with suppress(psycopg.Error), self._connect_driver() as connection:
            # The number of the process alone could be another one's by now.
            query = """
                SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
                WHERE pid = %s AND backend_xid = %s::text::xid8::xid"""
            connection.execute(query, [transaction.backend_pid, transaction.transaction_id])

    def require_writable(self) -> None:
        """Make or check the tables if nothing was written yet; raises as a write does."""
        if not self._is_prepared_for_writing:
            with self.write_transaction():
                pass
        self._require_usable()

    def translate_presence_error(self, error: psycopg.Error) -> StoreError:
        """Return the error for a lease that could not be asked for."""
        # An error without a code is none of the server: it did not answer.
        return translate_error(error, self.name, is_writing=True, is_connection_lost=error.sqlstate is None)

    def _translate(self, error: psycopg.Error, connection: Connection, *, is_writing: bool) -> StoreError:
        return translate_error(error, self.name, is_writing=is_writing, is_connection_lost=_is_lost(connection))

    # -- connections ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _hold_connection(self, begin: bytes, *, is_writing: bool) -> Iterator[tuple[Connection, str]]:
        """Yield a connection on which ``begin`` was run, with the text that it returned; the transaction is rolled
        back unless it was ended inside.
        """
        self._require_usable()
        if not self._free_connections.acquire(timeout=ANSWER_WAIT):
            msg = f"{MAX_CONNECTIONS} operations on {self.name} are under way, none ended in {ANSWER_WAIT:g} s"
            raise StoreUnavailable(f"{msg}: try again")
        try:
            connection, answer = self._begin_on_any(begin, is_writing=is_writing)
            try:
                yield connection, answer
            finally:
                self._give_back(connection)
        finally:
            self._free_connections.release()

    def _begin_on_any(self, begin: bytes, *, is_writing: bool) -> tuple[Connection, str]:
        """Run ``begin`` on an idle connection, or on a new one if none of those works any more."""
        while True:
            with self._turn:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            try:
                return connection, self._begin(connection, begin, is_writing=is_writing)
            except psycopg.Error:
                # The server was started again, or the network forgot the connection. Nothing has happened on it yet.
                connection.close()
            except BaseException:
                connection.close()
                raise
        connection = self.connect()
        try:
            return connection, self._begin(connection, begin, is_writing=is_writing)
        except psycopg.Error as error:
            translated = self._translate(error, connection, is_writing=is_writing)
            connection.close()
            raise translated from error
        except BaseException:
            connection.close()
            raise

    def _begin(self, connection: Connection, begin: bytes, *, is_writing: bool) -> str:
        """Check or make the tables if that was not done before, and run ``begin``."""
        if is_writing and not self._is_prepared_for_writing:
            self._prepare_writing(connection)
            self._is_prepared_for_writing = self._has_tables = True
        elif not self._has_tables:
            self._has_tables = self._find_tables(connection)
        return _run_begin(connection, begin)

    def _give_back(self, connection: Connection) -> None:
        """Roll back what is left of a transaction and keep the connection for the next one, if it is still good."""
        with suppress(psycopg.Error):
            if connection.info.transaction_status != TransactionStatus.IDLE and not connection.closed:
                connection.execute("ROLLBACK")
        is_good = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        with self._turn:
            if is_good and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def connect(self) -> Connection:
        """Return a new connection, outside of any transaction."""
        try:
            connection = self._connect_driver()
        except psycopg.Error as error:
            raise translate_connect_error(error, self.name) from error
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            connection.close()
            msg = (
                f"{self.name} is PostgreSQL {version // 10_000}, a store needs {OLDEST_SERVER // 10_000} or newer; "
                "nothing was touched: upgrade the server"
            )
            raise StoreCorrupt(msg)
        return connection

    def _connect_driver(self) -> Connection:
        connection = DriverConnection.connect(self.location.conninfo, autocommit=True)
        try:
            connection.execute(NOTICE_LOST_CLIENTS)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_usable(self) -> None:
        """Raise if the store was closed, or opened in a process from which this one was forked."""
        if self._process_id != os.getpid():
            msg = f"{self.name} was opened in another process, from which this one was forked; open the store here too"
            raise StoreError(msg)
        if self._is_closed:
            msg = f"the store {self.name} was closed; open it again"
            raise StoreError(msg)

    def close(self) -> None:
        """Close the connections; one that is in use is closed by its transaction's end.

        A forked child closes nothing: the connections are its parent's.
        """
        if self._process_id != os.getpid():
            return
        with self._turn:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _is_lost(connection: Connection) -> bool:
    return connection.broken or connection.closed


def _run_begin(connection: Connection, begin: bytes) -> str:
    """Run the statements that begin a transaction; return the text that the last one gave, or an empty string."""
    with connection.cursor() as cursor:
        cursor.execute(begin)
        while cursor.nextset():
            pass
        row = cursor.fetchone() if cursor.description is not None else None
        return "" if row is None else str(row[0])
