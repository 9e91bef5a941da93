"""The tables are brought up to date while programs of two versions use them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pytest
from postgres_server import PostgresServer
from sample_entries import SAMPLE_KEY, list_ids, make_message_chain

from holdfast.errors import StoreLocked
from holdfast.store.base import MigratableStore
from holdfast.store.open_store import open_store
from holdfast.store.postgres import schema
from holdfast.store.postgres.database import Connection

STEPS = schema.MIGRATIONS
OLD_VERSION = len(STEPS) - 1


def read_version(server: PostgresServer, name: str) -> str:
    """Return the version of the tables and the oldest version that may write to them."""
    return server.run_sql(f"SELECT version, oldest_writer FROM {name}.schema_version", "store").strip()


@contextmanager
def use_program(monkeypatch: pytest.MonkeyPatch, steps: tuple[Callable[[Connection], None], ...]) -> Iterator[None]:
    """Let the program know these steps alone."""
    with monkeypatch.context() as other:
        other.setattr(schema, "MIGRATIONS", steps)
        yield


def migrate_store(url: str) -> tuple[int, int]:
    """Migrate a store as the command does; return the versions before and after it."""
    with open_store(url) as store:
        assert isinstance(store, MigratableStore)
        before = store.get_schema_versions()
        store.migrate_schema()
        return before.current, store.get_schema_versions().current


def use_older_program(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """Let the program be the version before."""
    return use_program(monkeypatch, STEPS[:OLD_VERSION])


def make_older_tables(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program of the version before make the tables."""
    with use_older_program(monkeypatch):
        migrate_store(url)
        with open_store(url) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("ab"))


def test_programs_of_two_versions_share_the_tables_during_an_upgrade(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer program works on older tables as they are, an older one on newer tables, each reads what the other wrote.

    Only the command changes tables that are there.
    """
    url = postgres_server.url(schema="rolling")
    make_older_tables(url, monkeypatch)
    with open_store(url) as newer:
        newer.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert newer.search_session(SAMPLE_KEY, "nothing of it") == []
        assert read_version(postgres_server, "rolling").startswith(f"{OLD_VERSION}|")
        with use_older_program(monkeypatch), open_store(url) as older:
            older.append_entries(SAMPLE_KEY, make_message_chain("d", "c"))
            with use_program(monkeypatch, STEPS):
                assert migrate_store(url) == (OLD_VERSION, len(STEPS))
            # Stores that are open go on, of both versions.
            older.append_entries(SAMPLE_KEY, make_message_chain("e", "d"))
            newer.append_entries(SAMPLE_KEY, make_message_chain("f", "e"))
            with open_store(url) as older_again:
                older_again.append_entries(SAMPLE_KEY, make_message_chain("g", "f"))
        assert list_ids(newer.read_path(SAMPLE_KEY)) == list("abcdefg")
    with open_store(url) as store:
        assert store.search_session(SAMPLE_KEY, "nothing of it") == []
        store.remove_session(SAMPLE_KEY)


def test_migrating_twice_or_at_once_changes_nothing(postgres_server: PostgresServer) -> None:
    """Processes that make the tables of one empty database at the same moment make them once."""
    url = postgres_server.url(schema="at_once")
    script = "import sys; from holdfast import open_store; open_store(sys.argv[1]).create_session(sys.argv[2])"
    writers = [subprocess.Popen([sys.executable, "-c", script, url, f"session-{n}"]) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert migrate_store(url) == (len(schema.MIGRATIONS), len(schema.MIGRATIONS))
    with open_store(url) as store:
        assert len(store.list_sessions()) == 4


def test_migration_that_waits_too_long_for_a_lock_is_undone(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that does not get its lock leaves the tables as they were, and can be run again."""
    url = postgres_server.url(schema="locked")
    make_older_tables(url, monkeypatch)
    monkeypatch.setattr(schema, "LOCK_WAIT_MS", 200)
    admin = postgres_server.url(user=postgres_server.superuser)
    with open_store(url) as store, psycopg.connect(admin) as connection:
        assert isinstance(store, MigratableStore)
        assert store.get_schema_versions().current == OLD_VERSION
        connection.execute("LOCK TABLE locked.schema_version IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreLocked, match="try again"):
            store.migrate_schema()
    assert read_version(postgres_server, "locked").startswith(f"{OLD_VERSION}|")
    assert migrate_store(url) == (OLD_VERSION, len(STEPS))


def test_every_step_says_which_programs_may_still_write() -> None:
    """A step without that would lock out, or let in, the wrong version."""
    assert len(schema.OLDEST_WRITERS) == len(schema.MIGRATIONS)
    assert list(schema.OLDEST_WRITERS) == sorted(schema.OLDEST_WRITERS)
