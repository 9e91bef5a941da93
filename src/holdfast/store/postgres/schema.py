"""The tables on PostgreSQL, as the list of steps that made them. Steps are only added; a released step never changes.

Each step leaves tables that the version before it can still write, or raises ``OLDEST_WRITERS``: while a service is
upgraded, programs of two versions use one database. A program brings an empty database to its own version by itself,
and works with an older one as it is until ``holdfast store migrate`` was run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import suppress
from typing import LiteralString

import psycopg
from psycopg import sql

from holdfast.errors import StoreCorrupt
from holdfast.store.postgres.database import Connection

SCHEMA_LOCK = 0x484F4C44_46415354
"""Key of the advisory lock under which tables are made or changed: "HOLDFAST" in ASCII."""
LOCK_WAIT_MS = 2_000
"""Milliseconds that a change of the tables waits for a lock.

Chosen by judgement: whoever comes after it waits in the same queue, so a long wait behind one long query would stop
all writers.
"""
MONTHS_AHEAD = 2
"""Months, from this one on, that have partitions of their own. Rows of later months go to the default partition."""
PARTITIONED_TABLES = ("entries", "checkpoints", "searched_texts")
"""Tables with a partition for each month in which sessions began, so that old months can be dropped as a whole."""
TABLES_OF_SESSIONS = ("entries", "checkpoints", "searched")
"""Beginnings of the names of tables, and of their partitions, whose rows belong to a session."""
SESSION_TIME_SHIFT = 20
"""Bits by which the time in a session's number is shifted; below are random bits, so that two sessions that begin in
the same millisecond hardly ever try the same number.
"""


def m001_sessions_entries_blobs(connection: Connection) -> None:
    """Create sessions, their trees of entries, checkpoints, leases and blobs, all apart by tenant."""
    # The tenant of a role that is named after one is not what its connection says. RETURN, because a body in quotes
    # would look up the names in it where the caller says.
    _execute(
        connection,
        """
        CREATE FUNCTION current_tenant() RETURNS text LANGUAGE sql STABLE RETURN
            CASE WHEN starts_with(session_user::text, 'holdfast_tenant_')
            THEN substr(session_user::text, length('holdfast_tenant_') + 1)
            ELSE current_setting('holdfast.tenant', true) END""",
    )
    # Number of a session: its time in ms, then random bits. ``bytes`` and ``last_seq`` are changed with the row, under
    # its lock. Room is left in each page, so that a new version of a row needs no new entry in an index.
    _execute(
        connection,
        """
        CREATE TABLE sessions (
            session bigint PRIMARY KEY DEFAULT
                ((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20) | (random() * 1048575)::bigint,
            tenant text NOT NULL,
            key text COLLATE "C" NOT NULL,
            title text NOT NULL,
            format text NOT NULL,
            cwd text NOT NULL,
            model text NOT NULL,
            created bigint,
            updated bigint,
            entries bigint NOT NULL,
            leaf text,
            recorded_window bigint,
            bytes bigint NOT NULL DEFAULT 0,
            last_seq bigint NOT NULL DEFAULT 0,
            UNIQUE (tenant, key)
        ) WITH (fillfactor = 70)""",
    )
    # The parent's id is in the row beside its number: joins of a log with itself get slow plans before there are
    # statistics of a new partition.
    _execute(
        connection,
        """
        CREATE TABLE entries (
            session bigint NOT NULL,
            seq bigint NOT NULL,
            parent bigint,
            depth bigint NOT NULL,
            base bigint NOT NULL,
            tenant text NOT NULL,
            id text COLLATE "C" NOT NULL,
            parent_id text,
            kind text NOT NULL,
            at bigint,
            api text NOT NULL,
            size bigint NOT NULL,
            digest bytea NOT NULL,
            identity bytea NOT NULL,
            raw bytea,
            body bytea,
            raws bytea,
            origin bytea,
            PRIMARY KEY (session, seq),
            UNIQUE (session, id)
        ) PARTITION BY RANGE (session)""",
    )
    _execute(connection, "CREATE INDEX entries_kind ON entries (session, kind, seq) WHERE kind <> 'message'")
    _execute(
        connection,
        """
        CREATE TABLE checkpoints (
            session bigint NOT NULL,
            seq bigint NOT NULL,
            tenant text NOT NULL,
            state bytea NOT NULL,
            PRIMARY KEY (session, seq)
        ) PARTITION BY RANGE (session)""",
    )
    for table in ("entries", "checkpoints"):
        _make_default_partition(connection, table)
    # A holder is the number of a store object; 0 is nobody. No foreign key: a lease may be older than its session.
    _execute(
        connection,
        """
        CREATE TABLE leases (
            tenant text NOT NULL,
            key text COLLATE "C" NOT NULL,
            fence bigint NOT NULL,
            holder bigint NOT NULL,
            expires_at timestamptz NOT NULL,
            PRIMARY KEY (tenant, key)
        ) WITH (fillfactor = 70)""",
    )
    # ``stored_at`` is in seconds since 1970 as our callers have it: a timestamp would round it.
    _execute(
        connection,
        """
        CREATE TABLE blobs (
            tenant text NOT NULL,
            hash bytea NOT NULL,
            size bigint NOT NULL,
            stored_at double precision NOT NULL,
            PRIMARY KEY (tenant, hash)
        )""",
    )
    _execute(
        connection,
        """
        CREATE TABLE blob_pieces (
            tenant text NOT NULL,
            hash bytea NOT NULL,
            number integer NOT NULL,
            is_compressed boolean NOT NULL,
            content bytea NOT NULL,
            PRIMARY KEY (tenant, hash, number),
            FOREIGN KEY (tenant, hash) REFERENCES blobs ON DELETE CASCADE
        )""",
    )
    # We compress the pieces ourselves; trying it again would only cost time.
    _execute(connection, "ALTER TABLE blob_pieces ALTER COLUMN content SET STORAGE EXTERNAL")
    for table in ("sessions", "entries", "checkpoints", "leases", "blobs", "blob_pieces"):
        _separate_tenants(connection, table)


def m002_searched_texts(connection: Connection) -> None:
    """Add the searchable text of sessions that were searched, and how far it goes.

    It has no index of trigrams. Measured on 20,000 messages of 0.8 kB: the index took 30 s to fill and three times the
    space of the texts, and was never used, since the rules that keep tenants apart must come before a pattern. Reading
    the texts of that session takes 50 ms.
    """
    _execute(
        connection,
        """
        CREATE TABLE searched (
            session bigint PRIMARY KEY,
            tenant text NOT NULL,
            upto bigint NOT NULL,
            rule integer NOT NULL
        )""",
    )
    # No words: a text that is always a candidate.
    _execute(
        connection,
        """
        CREATE TABLE searched_texts (
            session bigint NOT NULL,
            seq bigint NOT NULL,
            tenant text NOT NULL,
            words text,
            PRIMARY KEY (session, seq)
        ) PARTITION BY RANGE (session)""",
    )
    _make_default_partition(connection, "searched_texts")
    for table in ("searched", "searched_texts"):
        _separate_tenants(connection, table)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (m001_sessions_entries_blobs, m002_searched_texts)
"""Step n brings the tables from version n - 1 to n."""
OLDEST_WRITERS: tuple[int, ...] = (1, 1)
"""For each version of the tables, the oldest version of the program that may still write to them."""


# -- reading and checking the version ----------------------------------------------------------------------------------


def read_schema_version(connection: Connection, schema: str) -> tuple[int, int]:
    """Return the version of the tables and the oldest version that may write to them; (0, 0) if there are none."""
    if not _has_table(connection, schema, "schema_version"):
        return 0, 0
    query = sql.SQL("SELECT version, oldest_writer FROM {}").format(sql.Identifier(schema, "schema_version"))
    row = connection.execute(query).fetchone()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def find_tables(connection: Connection, schema: str, name: str) -> int:
    """Return the version of the tables, 0 without any; raises ``StoreCorrupt`` for those of a newer program."""
    version, oldest_writer = read_schema_version(connection, schema)
    _check_not_newer(version, oldest_writer, name)
    return version


def prepare_writing(connection: Connection, schema: str, name: str) -> int:
    """Make the tables if there are none, and this month's partitions; return the version of the tables."""
    version, oldest_writer = read_schema_version(connection, schema)
    if version == 0:
        migrate_schema(connection, schema, name)
        version = len(MIGRATIONS)
    _check_not_newer(version, oldest_writer, name)
    make_partitions(connection, schema)
    return version


def _check_not_newer(version: int, oldest_writer: int, name: str) -> None:
    if oldest_writer > len(MIGRATIONS):
        msg = (
            f"{name} has schema {version}, which programs that know schema {oldest_writer} can use, and this holdfast "
            f"knows {len(MIGRATIONS)}; it was not touched: update holdfast"
        )
        raise StoreCorrupt(msg)


# -- changing the tables -----------------------------------------------------------------------------------------------


def migrate_schema(connection: Connection, schema: str, name: str) -> tuple[int, int]:
    """Bring the tables to the newest version, each step in a transaction of its own; return old and new version.

    Others go on reading and writing meanwhile. A step that does not get its lock in time is undone and raises; run
    it again.
    """
    first_version: int | None = None
    while True:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [SCHEMA_LOCK])
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_WAIT_MS)))
            # Read under the lock: another process may have migrated meanwhile.
            version, oldest_writer = read_schema_version(connection, schema)
            if first_version is None:
                first_version = version
            _check_not_newer(version, oldest_writer, name)
            if version >= len(MIGRATIONS):
                return first_version, version
            _run_step(connection, schema, version)


def _run_step(connection: Connection, schema: str, version: int) -> None:
    """Run the step after ``version`` and note it."""
    connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
    if version == 0:
        # Asked first: CREATE needs a right even if there is nothing to create.
        if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.execute("CREATE TABLE schema_version (version integer NOT NULL, oldest_writer integer NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (0, 0)")
    MIGRATIONS[version](connection)
    connection.execute(
        "UPDATE schema_version SET version = %s, oldest_writer = %s", [version + 1, OLDEST_WRITERS[version]]
    )


def make_partitions(connection: Connection, schema: str) -> None:
    """Make the partitions of this month and the next ones, as far as they are missing and the role may make them.

    Nothing depends on it: rows of a month without partitions go to the default one, and the month then stays there.
    """
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    if row is None:
        return
    year, month = row[0].year, row[0].month
    for _ in range(MONTHS_AHEAD):
        for table in PARTITIONED_TABLES:
            # Another process may be making it, hold a lock on the table, or only the owner may: none is our failure.
            # A table that these tables do not have yet has no partitions. Of a month that has rows in the default
            # partition the server makes none (CheckViolation).
            with suppress(
                psycopg.errors.LockNotAvailable,
                psycopg.errors.InsufficientPrivilege,
                psycopg.errors.UndefinedTable,
                psycopg.errors.CheckViolation,
            ):
                _make_partition(connection, schema, table, year, month)
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)


def _make_partition(connection: Connection, schema: str, table: str, year: int, month: int) -> None:
    partition = f"{table}_{year}_{month:02}"
    if _has_table(connection, schema, partition):
        return
    first = dt.datetime(year, month, 1, tzinfo=dt.timezone.utc)  # noqa: UP017 -- as in Python 3.11's documentation
    after = (first + dt.timedelta(days=32)).replace(day=1)
    bounds = [int(moment.timestamp() * 1000) << SESSION_TIME_SHIFT for moment in (first, after)]
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [SCHEMA_LOCK])
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_WAIT_MS)))
        connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
        if _has_table(connection, schema, partition):
            return
        names = {"partition": sql.Identifier(partition), "table": sql.Identifier(table)}
        # Made apart and attached: CREATE ... PARTITION OF would stop all readers and writers of the table.
        connection.execute(sql.SQL("CREATE TABLE {partition} (LIKE {table} INCLUDING ALL)").format(**names))
        _separate_tenants(connection, partition)
        attach = sql.SQL("ALTER TABLE {table} ATTACH PARTITION {partition} FOR VALUES FROM ({first}) TO ({after})")
        connection.execute(attach.format(**names, first=sql.Literal(bounds[0]), after=sql.Literal(bounds[1])))


def _has_table(connection: Connection, schema: str, table: str) -> bool:
    """Return whether a table exists.

    Asked of the catalogue's rows: ``to_regclass`` may answer from a cache of before this transaction got its lock.
    """
    query = """
        SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = %s AND relname = %s"""
    return connection.execute(query, [schema, table]).fetchone() is not None


def _make_default_partition(connection: Connection, table: str) -> None:
    """Make the partition of the rows that no other partition takes."""
    default = f"{table}_default"
    statement = sql.SQL("CREATE TABLE {} PARTITION OF {} DEFAULT")
    connection.execute(statement.format(sql.Identifier(default), sql.Identifier(table)))
    _separate_tenants(connection, default)


def _separate_tenants(connection: Connection, table: str) -> None:
    """Let each tenant see and write only its own rows of ``table``, the owner of the table too.

    A partition needs it as well: asked for by its own name, the rules of the whole table do not apply.
    """
    name = sql.Identifier(table)
    connection.execute(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(name))
    connection.execute(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(name))
    # In a sub-select the function is called once for a statement, and not for each row.
    condition = "tenant = (SELECT current_tenant())"
    policy = f"CREATE POLICY own_tenant ON {{}} USING ({condition})"
    if table.startswith(TABLES_OF_SESSIONS):
        # Not into another tenant's session either: a row planted there would take the number of its next entry.
        policy += f" WITH CHECK ({condition} AND EXISTS (SELECT FROM sessions s WHERE s.session = {{}}.session))"
    connection.execute(sql.SQL(policy).format(name, name))


def _execute(connection: Connection, statement: LiteralString) -> None:
    connection.execute(sql.SQL(statement))
