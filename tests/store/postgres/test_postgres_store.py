"""The store on PostgreSQL obeys the rules of every store, and those of a database that others use at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from sample_entries import SAMPLE_KEY, list_ids, make_long_session, make_message_chain
from store_conformance import BlobStoreRules, SessionStoreRules

from holdfast.errors import LogConflict, QuotaExceeded, StoreCorrupt, StoreReadOnly
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.base import BlobStore, MigratableStore, Quota, SessionStore
from holdfast.store.open_store import open_store


def make_url(server: PostgresServer, place: Path) -> str:
    """Return the address of a store of this test's own: its tenant is named after the test's folder."""
    return server.url(tenant=sha256(str(place).encode()).hexdigest()[:16])


@pytest.mark.usefixtures("short_lease_wait")
class TestPostgresStore(SessionStoreRules):
    """The common rules, also after connecting again."""

    @pytest.fixture(autouse=True)
    def use_server(self, postgres_server: PostgresServer) -> None:
        """Keep the server for ``open``."""
        self.server = postgres_server

    def open(self, place: Path) -> SessionStore:
        """Return the store of a tenant that has the name of ``place``."""
        return open_store(make_url(self.server, place))

    def open_limited(self, place: Path, quota: Quota) -> SessionStore:
        """Return the store with a quota."""
        return open_store(make_url(self.server, place), quota=quota)


class TestPostgresBlobStore(BlobStoreRules):
    """The common rules of blobs."""

    @pytest.fixture(autouse=True)
    def use_server(self, postgres_server: PostgresServer) -> Iterator[None]:
        """Keep the server for ``open``, and close what was opened."""
        self.server = postgres_server
        with ExitStack() as self.opened:
            yield

    def open(self, place: Path) -> BlobStore:
        """Return the blobs of a tenant that has the name of ``place``."""
        return self.opened.enter_context(open_store(make_url(self.server, place))).blobs


def test_reading_creates_nothing_and_finds_an_empty_store(postgres_server: PostgresServer) -> None:
    """A store that nobody has written to is empty, and reading it makes no table."""
    schema = "never_written"
    with open_store(postgres_server.url(schema=schema)) as store:
        assert store.list_sessions() == []
        assert not store.blobs.has_blob("b" * 64)
        assert list(store.blobs.iter_hashes()) == []
        assert postgres_server.run_sql(f"SELECT to_regnamespace('{schema}')", "store").strip() == ""
        # Tables that another process makes meanwhile are found.
        with open_store(postgres_server.url(schema=schema)) as other:
            other.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]


def test_readonly_store_refuses_writes(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """A store that was opened for reading refuses to write, also a lease, and reads on."""
    url = make_url(postgres_server, tmp_path)
    with open_store(url) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    with open_store(url, readonly=True) as store:
        with pytest.raises(StoreReadOnly, match="nothing was written"):
            store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        with pytest.raises(StoreReadOnly, match="nothing was written"), store.hold_lease(SAMPLE_KEY):
            pass
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]


def test_texts_that_postgresql_cannot_hold_are_replaced_or_refused(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """A null character in a title becomes U+FFFD as it does elsewhere on screens, and one in an id is refused."""
    with open_store(make_url(postgres_server, tmp_path)) as store:
        store.create_session(SAMPLE_KEY)
        store.update_session_info(SAMPLE_KEY, title="a\0b", cwd="\ud83d")
        info = store.get_session(SAMPLE_KEY)
        assert (info.title, info.cwd) == ("a\ufffdb", "?")
        with pytest.raises(LogConflict, match="null character"):
            store.append_entries(SAMPLE_KEY, [Entry("a\0", None, NoteEntry("x"))])
        assert store.read_entries(SAMPLE_KEY) == []


def test_threads_append_to_their_sessions_at_the_same_time(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """One store object serves several threads: each session has all its entries, numbered from 1 without a gap."""
    errors: list[Exception] = []
    with open_store(make_url(postgres_server, tmp_path)) as store:

        def write(key: str) -> None:
            try:
                store.create_session(key)
                parent = None
                for number in range(20):
                    store.append_entries(key, [Entry(f"e{number}", parent, NoteEntry("n"))])
                    parent = f"e{number}"
            except Exception as error:  # noqa: BLE001 -- shown by the main thread
                errors.append(error)

        threads = [threading.Thread(target=write, args=(f"session-{number}",)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        for number in range(6):
            entries = store.read_path(f"session-{number}")
            assert [entry.seq for entry in entries] == list(range(1, 21))


def test_writers_of_one_session_without_a_lease_lose_nothing(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Appends of several threads to one session are single operations: each is in the log once, some as forks."""
    errors: list[Exception] = []
    with open_store(make_url(postgres_server, tmp_path)) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("a"))

        def write(name: str) -> None:
            try:
                for number in range(15):
                    store.append_entries(SAMPLE_KEY, [Entry(f"{name}{number}", "a", NoteEntry("n"))])
            except Exception as error:  # noqa: BLE001 -- shown by the main thread
                errors.append(error)

        threads = [threading.Thread(target=write, args=(name,)) for name in "wxyz"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        entries = store.read_entries(SAMPLE_KEY)
        assert [entry.seq for entry in entries] == list(range(1, 62))
        assert store.get_session(SAMPLE_KEY).entry_count == 61


def test_entries_go_to_the_partition_of_their_month(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """A session of this month is in this month's partition, so that old months can be dropped as a whole."""
    with open_store(make_url(postgres_server, tmp_path)) as store:
        store.import_entries(SAMPLE_KEY, make_long_session())
    where = postgres_server.run_sql("SELECT DISTINCT tableoid::regclass FROM holdfast.entries", "store")
    month = postgres_server.run_sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')").strip()
    assert where.split() == [f"holdfast.entries_{month}"]


def test_a_month_without_a_partition_stays_in_the_default_one(postgres_server: PostgresServer) -> None:
    """A service that runs for months, or may not make tables, writes there; later programs open, write and migrate."""
    schema = "no_partition"
    url = postgres_server.url(schema=schema)
    month = postgres_server.run_sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')").strip()
    with open_store(url) as store:
        store.create_session("before")
        postgres_server.run_sql(f"DROP TABLE {schema}.entries_{month}", "store")
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    where = postgres_server.run_sql(f"SELECT DISTINCT tableoid::regclass FROM {schema}.entries", "store")
    assert where.split() == [f"{schema}.entries_default"]
    with open_store(url) as store:
        store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert isinstance(store, MigratableStore)
        store.migrate_schema()
        assert list_ids(store.read_path(SAMPLE_KEY)) == list("abc")


def test_remove_session_leaves_no_row_in_any_table(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Every table that has rows of a session is emptied of them: a table added later fails here until it is too."""
    schema = "removal"
    with open_store(postgres_server.url(schema=schema)) as store:
        store.import_entries(SAMPLE_KEY, make_long_session())
        store.search_session(SAMPLE_KEY, "result")
        tables = postgres_server.run_sql(
            "SELECT table_name FROM information_schema.columns"
            f" WHERE table_schema = '{schema}' AND column_name = 'session'",
            "store",
        ).split()
        assert {"sessions", "entries", "checkpoints"} <= set(tables)
        store.remove_session(SAMPLE_KEY)
    for table in tables:
        assert postgres_server.run_sql(f"SELECT count(*) FROM {schema}.{table}", "store").strip() == "0", table


def test_damaged_blob_is_refused_and_stored_again(postgres_server: PostgresServer) -> None:
    """Content that does not match its hash raises ``StoreCorrupt``, and storing the text again repairs it."""
    url = postgres_server.url(schema="blob_damage")
    with open_store(url) as store:
        hash_ = store.blobs.store_content("text " * 1_000)
    postgres_server.run_sql("UPDATE blob_damage.blob_pieces SET content = '\\x00', is_compressed = false", "store")
    with open_store(url) as store:
        with pytest.raises(StoreCorrupt, match="hash"):
            store.blobs.read_text(hash_)
        assert store.blobs.store_content("text " * 1_000) == hash_
        assert store.blobs.read_text(hash_) == "text " * 1_000


def test_blob_quota_counts_the_blobs_of_the_tenant(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """A blob beyond the quota is refused with the numbers, and another tenant's blobs do not count."""
    with open_store(make_url(postgres_server, tmp_path / "other")) as other:
        other.blobs.store_content("x" * 5_000)
    with open_store(make_url(postgres_server, tmp_path), quota=Quota(blob_bytes=1_000)) as store:
        store.blobs.store_content("y" * 800)
        store.blobs.store_content("y" * 800)  # which is stored already
        with pytest.raises(QuotaExceeded, match="1,100 bytes"):
            store.blobs.store_content("z" * 300)
        assert len(list(store.blobs.iter_hashes())) == 1
