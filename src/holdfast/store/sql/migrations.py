"""The schema, as the list of steps that made it. Steps are only added; a released step never changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import StoreCorrupt, StoreError

APPLICATION_ID = 0x484F4C44
"""``PRAGMA application_id`` of our databases: "HOLD" in ASCII."""
_APPLICATION_ID_BYTES = slice(68, 72)
"""Position of that number in a database file (https://www.sqlite.org/fileformat.html, 1.3)."""


def m001_sessions_entries_checkpoints(db: sqlite3.Connection) -> None:
    """Create sessions, their trees of entries, and the checkpoints of compactions."""
    db.execute("""
        CREATE TABLE sessions (
            session INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,
            title TEXT NOT NULL,
            format TEXT NOT NULL,
            cwd TEXT NOT NULL,
            model TEXT NOT NULL,
            created INTEGER,
            updated INTEGER,
            entries INTEGER NOT NULL,
            leaf TEXT
        ) STRICT""")
    # Columns that a walk up the tree reads come first and long ones last, so a walk touches no overflow page.
    db.execute("""
        CREATE TABLE entries (
            seq INTEGER PRIMARY KEY,
            session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
            parent INTEGER REFERENCES entries,
            depth INTEGER NOT NULL,
            base INTEGER NOT NULL,
            id TEXT NOT NULL,
            kind TEXT NOT NULL,
            at INTEGER,
            api TEXT NOT NULL,
            size INTEGER NOT NULL,
            digest BLOB NOT NULL,
            identity BLOB NOT NULL,
            body BLOB,
            raws BLOB,
            origin BLOB,
            raw BLOB,
            UNIQUE (session, id)
        ) STRICT""")
    db.execute("CREATE INDEX entries_parent ON entries (parent)")
    db.execute("""
        CREATE TABLE checkpoints (
            seq INTEGER PRIMARY KEY REFERENCES entries ON DELETE CASCADE,
            state BLOB NOT NULL
        ) STRICT""")


def m002_search_and_quota(db: sqlite3.Connection) -> None:
    """Add an index of entries by kind, the progress of the word index, and the bytes of each session."""
    db.execute("CREATE INDEX entries_kind ON entries (session, kind)")
    # The word index itself is created by the first search, so that a store opens where SQLite has no FTS5.
    db.execute("""
        CREATE TABLE searched (
            session INTEGER PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,
            upto INTEGER NOT NULL
        ) STRICT""")
    db.execute("ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0")
    db.execute("""
        UPDATE sessions SET bytes = (
            SELECT coalesce(sum(coalesce(length(body), 0) + coalesce(length(raws), 0)
            + coalesce(length(origin), 0) + coalesce(length(raw), 0)), 0)
            FROM entries WHERE entries.session = sessions.session
        )""")


def m003_entries_in_order(db: sqlite3.Connection) -> None:
    """Add an index of a session's entries in order; the one by kind leaves out messages, which are most entries."""
    db.execute("DROP INDEX entries_kind")
    db.execute("CREATE INDEX entries_kind ON entries (session, kind) WHERE kind <> 'message'")
    db.execute("CREATE INDEX entries_session ON entries (session)")


def m004_rule_of_the_index(db: sqlite3.Connection) -> None:
    """Add the version of the word index in which a session was indexed."""
    db.execute("ALTER TABLE searched ADD COLUMN rule INTEGER NOT NULL DEFAULT 1")


def m005_recorded_window(db: sqlite3.Connection) -> None:
    """Add the window that a recorded session states for its model."""
    db.execute("ALTER TABLE sessions ADD COLUMN recorded_window INTEGER")


OLDEST_READABLE_VERSION = 1
"""Oldest schema that is read without migration; the first write migrates it."""

MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    m001_sessions_entries_checkpoints,
    m002_search_and_quota,
    m003_entries_in_order,
    m004_rule_of_the_index,
    m005_recorded_window,
)
"""Step n brings ``PRAGMA user_version`` from n - 1 to n."""


OLDEST_SQLITE = (3, 37)
"""Oldest SQLite with STRICT tables."""


def check_sqlite_version() -> None:
    """Raise ``StoreError`` if Python's SQLite is too old to read or create a store."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        msg = (
            f"this Python has SQLite {sqlite3.sqlite_version}, a store needs "
            f"{OLDEST_SQLITE[0]}.{OLDEST_SQLITE[1]} or newer; nothing "
            "was touched: run holdfast with a Python that brings its own, as those of uv do"
        )
        raise StoreError(msg)


def is_store_file(path: Path) -> bool:
    """Return whether the file at ``path`` is a store, judged by the header of the database."""
    with path.open("rb") as file:
        head = file.read(_APPLICATION_ID_BYTES.stop)
    return head.startswith(b"SQLite format 3") and int.from_bytes(head[_APPLICATION_ID_BYTES]) == APPLICATION_ID


def get_schema_version(db: sqlite3.Connection, name: str) -> int:
    """Return the schema version of ``db``; raises ``StoreCorrupt`` if it is newer than this program or not a store."""
    schema_version, owner, has_tables = _read_header(db)
    # An empty file, left by a crash or by ``touch``, has no owner and no tables: that is a new store.
    if owner != APPLICATION_ID and (owner or schema_version or has_tables):
        msg = f"{name} is a database of another program; it was not touched: give another path with --store"
        raise StoreCorrupt(msg)
    if schema_version > len(MIGRATIONS):
        msg = (
            f"{name} has schema {schema_version} and this version of holdfast knows {len(MIGRATIONS)}; it was not "
            "touched: "
            "update holdfast, or give another path with --store"
        )
        raise StoreCorrupt(msg)
    return schema_version


def _read_header(db: sqlite3.Connection) -> tuple[int, int, bool]:
    """Return schema version, application id and whether there are tables, read at one moment."""
    schema_version, owner, tables = db.execute(
        "SELECT (SELECT user_version FROM pragma_user_version), "
        "(SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_schema)"
    ).fetchone()
    return schema_version, owner, tables > 0


def migrate_schema(db: sqlite3.Connection, name: str) -> None:
    """Bring ``db`` to the newest schema in one transaction."""
    if get_schema_version(db, name) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        # The version is read again under the lock: another process may have migrated in between.
        for step in MIGRATIONS[get_schema_version(db, name) :]:
            step(db)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
