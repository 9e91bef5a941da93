"""Leases on PostgreSQL end with their holder, however it ends, and a writer that was overtaken writes nothing.

The writers are real processes that are killed and stopped.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from sample_entries import SAMPLE_KEY, list_ids, make_message_chain

from holdfast.errors import StoreError, StoreLocked
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.postgres.store import PostgresStore

LEASE_SECONDS = 1.0
"""Seconds that the leases of these tests last."""
HOLDER = """
import sys
from holdfast.errors import StoreLocked
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.postgres.store import PostgresStore

url, key, lease_seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with PostgresStore(url, lease_seconds=lease_seconds) as store, store.hold_lease(key):
    print("held", flush=True)
    for line in sys.stdin:
        name, parent = line.split()
        try:
            store.append_entries(key, [Entry(name, parent, NoteEntry("by the holder"))])
        except StoreLocked as error:
            print(f"refused: {error}", flush=True)
        else:
            print("written", flush=True)
"""


class Holder:
    """A process that holds the lease of the sample session and appends to it when asked."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", HOLDER, url, SAMPLE_KEY, str(LEASE_SECONDS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.read_line() == "held"

    def read_line(self) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def ask_to_append(self, name: str, parent: str) -> None:
        """Tell the process to append an entry."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {parent}\n")
        self.process.stdin.flush()


@contextmanager
def run_holder(url: str) -> Iterator[Holder]:
    """Start a holder, and kill it at the end."""
    holder = Holder(url)
    try:
        yield holder
    finally:
        holder.process.kill()
        holder.process.communicate()


@pytest.fixture
def url(postgres_server: PostgresServer, tmp_path: Path) -> str:
    """Return the address of a store with the sample session, of a tenant of this test's own."""
    url = postgres_server.url(tenant=tmp_path.name)
    with PostgresStore(url) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    return url


@contextmanager
def take_lease_within(store: PostgresStore, seconds: float) -> Iterator[None]:
    """Hold the lease of the sample session for the block; try for ``seconds`` to get it."""
    end = time.monotonic() + seconds
    while True:
        try:
            lease = store.hold_lease(SAMPLE_KEY)
            lease.__enter__()
            break
        except StoreLocked:
            if time.monotonic() > end:
                raise
    try:
        yield
    finally:
        lease.__exit__(None, None, None)


def test_lease_of_a_killed_holder_is_free_at_once(url: str) -> None:
    """A holder that is killed leaves its lease to the next writer long before the lease would end by itself."""
    command = [sys.executable, "-c", HOLDER, url, SAMPLE_KEY, "600"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with PostgresStore(url) as store:
        with pytest.raises(StoreLocked, match=SAMPLE_KEY), store.hold_lease(SAMPLE_KEY):
            pass
        holder.kill()
        began = time.monotonic()
        with take_lease_within(store, 20):
            assert time.monotonic() - began < 20
            assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved
    holder.communicate()


@pytest.mark.usefixtures("short_lease_wait")
def test_stopped_holder_is_overtaken_and_writes_nothing_afterwards(url: str) -> None:
    """A holder that was stopped for longer than its lease is refused when it goes on: the log is the other writer's."""
    with run_holder(url) as holder, PostgresStore(url, lease_seconds=LEASE_SECONDS) as store:
        holder.ask_to_append("c", "b")
        assert holder.read_line() == "written"
        holder.process.send_signal(signal.SIGSTOP)
        with take_lease_within(store, 20):
            assert store.append_entries(SAMPLE_KEY, [Entry("x", "c", NoteEntry("by the other"))]).is_leaf_moved
            # The entry would be a valid fork for a store without fences.
            holder.ask_to_append("d", "c")
            holder.process.send_signal(signal.SIGCONT)
            assert holder.read_line().startswith("refused: session")
        # Nor after the other one has given the lease back.
        holder.ask_to_append("e", "x")
        assert holder.read_line().startswith("refused: session")
        assert list_ids(store.read_entries(SAMPLE_KEY)) == ["a", "b", "c", "x"]


@pytest.mark.usefixtures("short_lease_wait")
def test_lease_of_a_working_holder_is_renewed(url: str) -> None:
    """A holder that works longer than its lease lasts keeps it: others are refused all the time."""
    with run_holder(url) as holder, PostgresStore(url, lease_seconds=LEASE_SECONDS) as store:
        end = time.monotonic() + 2.5 * LEASE_SECONDS
        while time.monotonic() < end:
            with pytest.raises(StoreLocked), store.hold_lease(SAMPLE_KEY):
                pass
            time.sleep(0.1)
        holder.ask_to_append("c", "b")
        assert holder.read_line() == "written"


@pytest.mark.usefixtures("short_lease_wait")
def test_holder_whose_connections_the_server_ended_writes_on_unless_overtaken(
    url: str, postgres_server: PostgresServer
) -> None:
    """Without its presence a holder may write as long as nobody took its lease, and the next writer need not wait."""
    other_url = url
    with run_holder(url) as holder, PostgresStore(other_url) as store:
        end_other_connections(postgres_server)
        holder.ask_to_append("c", "b")
        assert holder.read_line() == "written"
        end_other_connections(postgres_server)
        with take_lease_within(store, 20):
            holder.ask_to_append("d", "c")
            assert holder.read_line().startswith("refused: session")
            assert store.append_entries(SAMPLE_KEY, make_message_chain("x", "c")).is_leaf_moved


def end_other_connections(server: PostgresServer) -> None:
    """End the connections of all stores, as a restart of the network does."""
    server.run_sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'holdfast'", "store"
    )


@pytest.mark.usefixtures("short_lease_wait")
def test_lease_is_not_taken_while_its_holder_has_a_write_open(url: str) -> None:
    """Nobody takes an expired lease while its holder's write is under way: the write was checked, and is still to come.

    A taker would read the log without it.
    """
    with (
        PostgresStore(url, lease_seconds=0.05) as holder,
        PostgresStore(url, lease_seconds=0.05) as taker,
        holder.hold_lease(SAMPLE_KEY),
    ):
        holder._leases._wake_renewer.set()
        with holder._write_transaction():
            assert holder._find_info(SAMPLE_KEY) is not None
            time.sleep(0.2)
            with pytest.raises(StoreLocked), taker.hold_lease(SAMPLE_KEY):
                pass
        with take_lease_within(taker, 5), pytest.raises(StoreLocked, match="taken over"):
            holder.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))


@pytest.mark.usefixtures("short_lease_wait")
def test_lease_follows_the_clock_of_the_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is wrong neither loses its lease nor takes another one's."""
    with PostgresStore(url) as holder, PostgresStore(url) as other, holder.hold_lease(SAMPLE_KEY):
        real_time = time.time
        for hours in (-1_000, 1_000):
            monkeypatch.setattr(time, "time", lambda hours=hours: real_time() + hours * 3_600)
            with pytest.raises(StoreLocked), other.hold_lease(SAMPLE_KEY):
                pass
            holder.update_session_info(SAMPLE_KEY, title=f"{hours}")


def test_closing_the_store_ends_its_leases(url: str) -> None:
    """A store that is closed while it holds a lease leaves it to the next writer, and the end of its block is quiet."""
    store = PostgresStore(url)
    with store.hold_lease(SAMPLE_KEY):
        store.close()
        with PostgresStore(url) as other, take_lease_within(other, 10):
            assert other.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved
    with pytest.raises(StoreError, match="closed"), store.hold_lease(SAMPLE_KEY):
        pass


def test_many_processes_write_one_session_in_turn(url: str) -> None:
    """Writers that all continue at the session's leaf, each under the lease, make one line: no fork, no entry lost."""
    script = """
import sys
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.postgres.store import PostgresStore

url, key, name = sys.argv[1:]
with PostgresStore(url) as store:
    for number in range(20):
        with store.hold_lease(key):
            leaf = store.get_session(key).leaf_id
            assert store.append_entries(key, [Entry(f"{name}{number}", leaf, NoteEntry("n"))]).is_leaf_moved
"""
    writers = [subprocess.Popen([sys.executable, "-c", script, url, SAMPLE_KEY, name]) for name in "wxyz"]
    assert [writer.wait() for writer in writers] == [0] * 4
    with PostgresStore(url) as store:
        path = store.read_path(SAMPLE_KEY)
        assert len(path) == len(store.read_entries(SAMPLE_KEY)) == 82
        for name in "wxyz":
            own_ids = [entry.id for entry in path if entry.id.startswith(name)]
            assert own_ids == [f"{name}{number}" for number in range(20)]
