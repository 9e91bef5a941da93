"""What a store does when the disk refuses a write, a process dies, or other processes use it too."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import example_counts
import pytest
from sample_entries import SAMPLE_KEY, drop_sequence_numbers, list_ids, make_message_chain, make_message_entry_body

from holdfast.errors import StoreError, StoreLocked, StoreReadOnly
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.base import Quota
from holdfast.store.blobs.blobs import FileBlobStore
from holdfast.store.open_store import open_store
from holdfast.store.repair.repair_store import repair_store

UNPRIVILEGED_UID = 65_534
"""A user without rights, because root may write everywhere."""

SUPPORT = Path(__file__).parents[1] / "support"
"""The folder from which the scripts import their entries."""
APPEND_SCRIPT = """
import sys
from holdfast.store.open_store import open_store
from sample_entries import SAMPLE_KEY, make_message_chain
with open_store(sys.argv[1]) as store:
    store.create_session(SAMPLE_KEY)
    for entry in make_message_chain(f"e{n:06}" for n in range(100_000)):
        print(store.append_entries(SAMPLE_KEY, [entry]).leaf, flush=True)
"""
IMPORT_SCRIPT = """
import sys
from holdfast.store.open_store import open_store
from sample_entries import SAMPLE_KEY, make_message_chain
entries = make_message_chain(f"e{n}" for n in range(3_000))
print("ready", flush=True)
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    done = store.import_entries(SAMPLE_KEY, entries)
    print(done.added_count, done.known_count, flush=True)
"""
HOLD_LEASE_SCRIPT = """
import os, sys, time
from holdfast.store.open_store import open_store
from sample_entries import SAMPLE_KEY
with open_store(sys.argv[1]) as store, store.hold_lease(SAMPLE_KEY):
    child = os.fork() if "fork" in sys.argv else 1
    os.write(1, str(child or os.getpid()).encode() + os.linesep.encode())
    time.sleep(60)
"""
BUSY_LEASE_SCRIPT = """
import sys, time
from holdfast.store.open_store import open_store
from sample_entries import SAMPLE_KEY
with open_store(sys.argv[1]) as store:
    print("busy", flush=True)
    while True:
        with store.hold_lease(SAMPLE_KEY):
            time.sleep(0.1)
        time.sleep(0.0005)
"""
FORK_SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
from holdfast.store.locks import hold_session_lock

sys.setswitchinterval(1e-6)
place = Path(sys.argv[1])


def work(number):
    while True:
        with hold_session_lock(place, f"session {number}"):
            pass


def list_inherited_locks():
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.exists(link) and os.readlink(link).endswith(".lock")]


for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
for _ in range(80):
    child = os.fork()
    if not child:
        found = list_inherited_locks()
        signal.alarm(30)
        with hold_session_lock(place, "the child's own"):
            os._exit(len(found))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
CREATE_SCRIPT = """
import fcntl, os, struct, sys
from threading import Event, Thread
from holdfast.store.open_store import open_store

file, made, opened = sys.argv[1], Event(), Event()


def held_up(event, given):
    if event == "os.chmod" and isinstance(given[0], int) and not made.is_set():
        made.set()  # the new file is there, and its maker has it open
        opened.wait(0.5)


def other():
    made.wait()
    two.create_session("two")
    opened.set()


sys.addaudithook(held_up)
one, two = open_store(file), open_store(file)
thread = Thread(target=other)
thread.start()
one.create_session("one")
thread.join()
child = os.fork()
if not child:  # no lock of a process is one for its child
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with open(file, "r+b") as mine:
        found = struct.unpack("hhqqi4x", fcntl.fcntl(mine, fcntl.F_GETLK, asked))
    os._exit(found[0] == fcntl.F_UNLCK)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
INHERIT_SCRIPT = """
import os, signal, sys, threading
from holdfast.errors import StoreError
from holdfast.store.open_store import open_store

held, forked = threading.Event(), threading.Event()


def use(store):
    with store._file.read_transaction():
        held.set()
        forked.wait()


with open_store(sys.argv[1]) as store:
    store.create_session("one")
    thread = threading.Thread(target=use, args=[store])
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            store.list_sessions()
        except StoreError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        with open_store(sys.argv[1]) as own:
            print("the child's own:", [about.key for about in own.list_sessions()], flush=True)
    else:
        os.waitpid(child, 0)
        forked.set()
        thread.join()
        store.create_session("two")
        print("the parent's:", sorted(about.key for about in store.list_sessions()), flush=True)
"""
LEAVE_LEASE_SCRIPT = """
import os, sys
from pathlib import Path
from holdfast.store.locks import hold_session_lock
with hold_session_lock(Path(sys.argv[1]), "a session"):
    child = os.fork()
    if not child:
        there = {os.open(os.devnull, os.O_RDONLY) for _ in range(9)}
if not child:
    os._exit(len([os.fstat(one) for one in there]) - 9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@contextmanager
def run_script(text: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a script in another process and kill it at the end."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Keep files from growing beyond ``size`` bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def readonly_directory() -> Iterator[Path]:
    """Yield a directory with a store of two entries that the current user may read and not write."""
    place = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(place, UNPRIVILEGED_UID, -1)
            os.seteuid(UNPRIVILEGED_UID)
        with open_store(place / "agent.db") as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        place.chmod(0o500)
        yield place
    finally:
        if root:
            os.seteuid(0)
        place.chmod(0o700)
        shutil.rmtree(place)


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_store_becomes_readonly_after_a_full_disk(tmp_path: Path) -> None:
    """refusal-ends-writing: the first refused write is a typed error and ends writing, and acknowledged entries stay
    readable.
    """
    store = open_store(tmp_path / "agent.db")
    store.create_session(SAMPLE_KEY)
    acknowledged = []

    def fill() -> None:
        for entry in make_message_chain(f"e{n}" for n in range(10_000)):
            store.append_entries(SAMPLE_KEY, [entry])
            acknowledged.append(entry.id)

    with limit_file_size(1_000_000), pytest.raises(StoreReadOnly, match=r"free space \(begin with `holdfast gc`"):
        fill()
    assert acknowledged
    with pytest.raises(StoreReadOnly, match="nothing was written since"):
        store.append_entries(SAMPLE_KEY, make_message_chain("x", acknowledged[-1]))
    assert list_ids(store.read_path(SAMPLE_KEY)) == acknowledged
    store.close()
    with open_store(tmp_path / "agent.db") as store:
        assert list_ids(store.read_path(SAMPLE_KEY)) == acknowledged
        assert store.append_entries(SAMPLE_KEY, make_message_chain("x", acknowledged[-1])).is_leaf_moved


def test_import_entries_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A disk that fills up during an import leaves the store without that session."""
    big = [Entry("big", None, make_message_entry_body("x" * 3_000_000))]
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries("small", make_message_chain("ab"))
        with limit_file_size(1_000_000), pytest.raises(StoreReadOnly):
            store.import_entries(SAMPLE_KEY, big)
        assert [info.key for info in store.list_sessions()] == ["small"]
    with open_store(tmp_path / "agent.db") as store:
        assert [info.key for info in store.list_sessions()] == ["small"]
        assert store.import_entries(SAMPLE_KEY, big).added_count == 1


def test_store_content_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """stored-once-verified: a blob that could not be written whole does not exist, leaves no file, and ends writing."""
    blobs = FileBlobStore(tmp_path)
    with limit_file_size(1_000), pytest.raises(StoreReadOnly, match="5,000 bytes"):
        blobs.store_content("x" * 5_000)
    with pytest.raises(StoreReadOnly):
        blobs.store_content("y")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert FileBlobStore(tmp_path).store_content("x" * 5_000)


@pytest.mark.parametrize("quota", [Quota(), Quota(blob_bytes=10**9)])
def test_long_blob_on_a_full_disk_leaves_nothing(tmp_path: Path, quota: Quota) -> None:
    """stored-once-verified: nothing is left of a long text that failed half-way, and with room again it is stored and
    read.
    """
    text = "a line of a long result\n" * 40_000
    with open_store(tmp_path / "agent.db", quota=quota) as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        first = store.blobs.store_content("first")
        with limit_file_size(300_000), pytest.raises(StoreReadOnly, match=r"960,000 bytes.*free space"):
            store.blobs.store_content(text)
        assert [blob.name for blob in store.blobs.iter_items()] == [first]
        assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved
    with open_store(tmp_path / "agent.db", quota=quota) as store:
        assert store.blobs.read_text(store.blobs.store_content(text)) == text


@pytest.mark.parametrize("dry_run", [False, True])
def test_repair_store_on_a_full_disk_changes_nothing(tmp_path: Path, *, dry_run: bool) -> None:
    """A damaged store is not repaired if the disk has no room for the copy of it: the error says so, and not that the
    store is damaged.
    """
    path = tmp_path / "agent.db"
    with open_store(path) as store:
        store.import_entries(SAMPLE_KEY, [Entry("a", None, make_message_entry_body("x" * 3_000_000))])
        store.import_entries("small", make_message_chain("bc"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE entries SET depth = 9 WHERE id = 'c'")
    assert not repair_store(path, dry_run=True).is_undamaged
    before = path.read_bytes()
    with limit_file_size(1_000_000), pytest.raises(StoreReadOnly, match=r"could not be copied.*free space"):
        repair_store(path, dry_run=dry_run)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.bak*"))
    assert repair_store(path).backup


def test_search_session_works_on_a_full_disk(tmp_path: Path) -> None:
    """Where the index cannot be written, every entry is scanned and the result is the same."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain(f"e{n}" for n in range(400)))
    size = (tmp_path / "agent.db").stat().st_size
    with limit_file_size(size + 10_000), open_store(tmp_path / "agent.db") as store:
        assert [found.entry_id for found in store.search_session(SAMPLE_KEY, "text of e399")] == ["e399"]
        assert len(store.search_session(SAMPLE_KEY, "text of", 1_000)) == 400


def test_search_session_works_in_a_readonly_directory(readonly_directory: Path) -> None:
    """Searching needs no write."""
    with open_store(readonly_directory / "agent.db") as store:
        assert [found.entry_id for found in store.search_session(SAMPLE_KEY, "text of")] == ["b", "a"]


def test_store_in_a_readonly_directory_is_readable(readonly_directory: Path) -> None:
    """Reading writes neither to the file nor beside it, and a write names what prevents it."""
    with open_store(readonly_directory / "agent.db") as store:
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]
        with pytest.raises(StoreReadOnly, match=r"agent\.db.*give yourself access"):
            store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]
        with (
            pytest.raises(StoreReadOnly, match=r"agent\.db\.locks.*give yourself access"),
            store.hold_lease(SAMPLE_KEY),
        ):
            pass
        with pytest.raises(StoreReadOnly, match=r"agent\.db\.blobs.*give yourself access"):
            store.blobs.store_content("text")


def test_store_with_an_unreadable_wal_raises(readonly_directory: Path) -> None:
    """nothing-lost: where the newest entries are in a ``-wal`` that cannot be read, that is an error and no older state
    is shown.
    """
    readonly_directory.chmod(0o700)
    copy = readonly_directory / "copy"
    copy.mkdir()
    with open_store(readonly_directory / "agent.db") as store:
        store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        for name in ("agent.db", "agent.db-wal"):
            shutil.copy(readonly_directory / name, copy / name)
    copy.chmod(0o500)
    with open_store(copy / "agent.db") as store, pytest.raises(StoreReadOnly, match=r"agent\.db-wal"):
        store.read_path(SAMPLE_KEY)
    copy.chmod(0o700)
    with open_store(copy / "agent.db") as store:
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b", "c"]


def test_store_in_a_readonly_directory_cannot_be_created(readonly_directory: Path) -> None:
    """A new store where nothing may be written is a typed error that names the file."""
    with open_store(readonly_directory / "deep" / "other.db") as store:
        assert store.list_sessions() == []
        with pytest.raises(StoreReadOnly, match=r"other\.db"):
            store.import_entries(SAMPLE_KEY, make_message_chain("a"))


def test_unreadable_store_file_is_named_in_the_error(readonly_directory: Path) -> None:
    """A file that may not be read is an error with its name and what to do."""
    (readonly_directory / "agent.db").chmod(0)
    raises = pytest.raises(StoreError, match=r"agent\.db.*give yourself access")
    with open_store(readonly_directory / "agent.db") as store, raises:
        store.list_sessions()


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", example_counts.mark_rest_long([40, 1, 2, 300], keep=1))
def test_killed_writer_keeps_acknowledged_entries(tmp_path: Path, count: int) -> None:
    """crash-keeps-acknowledged: after kill -9 the log is the acknowledged prefix and at most one entry more."""
    with run_script(APPEND_SCRIPT, tmp_path / "agent.db") as process:
        acknowledged = len([process.stdout.readline() for _ in range(count)])
        process.send_signal(signal.SIGKILL)
        process.wait()
        acknowledged += len(process.stdout.read().split())
    with open_store(tmp_path / "agent.db") as store:
        found = store.read_path(SAMPLE_KEY)
        assert len(found) - acknowledged in (0, 1)
        assert drop_sequence_numbers(found) == make_message_chain(f"e{n:06}" for n in range(len(found)))
        assert store.get_session(SAMPLE_KEY).leaf_id == found[-1].id
        assert store.get_session(SAMPLE_KEY).entry_count == len(found)
        assert store.append_entries(SAMPLE_KEY, make_message_chain("x", found[-1].id)).is_leaf_moved


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.06, 0.09])
def test_killed_import_is_all_or_nothing(tmp_path: Path, delay: float) -> None:
    """An import that is killed is stored whole or not at all, and can be repeated."""
    with run_script(IMPORT_SCRIPT, tmp_path / "agent.db") as process:
        _start(process)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with open_store(tmp_path / "agent.db") as store:
        assert [info.entry_count for info in store.list_sessions()] in ([], [3_000])
        again = store.import_entries(SAMPLE_KEY, make_message_chain(f"e{n}" for n in range(3_000)))
        assert again.added_count + again.known_count == 3_000


def test_concurrent_imports_add_the_file_once(tmp_path: Path) -> None:
    """Of two processes that import the same file one adds it, and the other waits and finds it there."""
    with (
        run_script(IMPORT_SCRIPT, tmp_path / "agent.db") as first,
        run_script(IMPORT_SCRIPT, tmp_path / "agent.db") as second,
    ):
        _start(first)
        _start(second)
        counts = sorted(process.communicate(timeout=30)[0].split() for process in (first, second))
    assert counts == [["0", "3000"], ["3000", "0"]]
    with open_store(tmp_path / "agent.db") as store:
        assert len(store.read_path(SAMPLE_KEY)) == 3_000


def test_concurrent_appends_from_one_leaf_fork(tmp_path: Path) -> None:
    """one-writer: of two stores that append to the same leaf one moves the session's leaf, the other forks, and both
    branches are whole.
    """
    with open_store(tmp_path / "agent.db") as writer, open_store(tmp_path / "agent.db") as other_writer:
        writer.import_entries(SAMPLE_KEY, make_message_chain("ab"))
        leaf = other_writer.get_session(SAMPLE_KEY).leaf_id
        first = writer.append_entries(SAMPLE_KEY, [Entry("x", "b", NoteEntry("one"))], expected_leaf=leaf)
        second = other_writer.append_entries(SAMPLE_KEY, [Entry("y", "b", NoteEntry("two"))], expected_leaf=leaf)
        assert (first.is_leaf_moved, second.is_leaf_moved) == (True, False)
        assert list_ids(writer.read_path(SAMPLE_KEY)) == ["a", "b", "x"]
        assert list_ids(writer.read_path(SAMPLE_KEY, second.leaf)) == ["a", "b", "y"]


@pytest.mark.usefixtures("short_lease_wait")
def test_lease_ends_when_its_process_is_killed(tmp_path: Path) -> None:
    """one-writer: another process's lease is respected while it lives and free as soon as it is killed."""
    with run_script(HOLD_LEASE_SCRIPT, tmp_path / "agent.db") as holder, open_store(tmp_path / "agent.db") as store:
        holder.stdout.readline()
        with pytest.raises(StoreLocked, match=SAMPLE_KEY), store.hold_lease(SAMPLE_KEY):
            pass
        holder.kill()
        holder.wait()
        with store.hold_lease(SAMPLE_KEY):
            pass


def test_lease_is_obtained_between_those_of_a_busy_process(tmp_path: Path) -> None:
    """one-writer: a session that another process writes without pause can still be written, so no paid answer is
    lost.
    """
    with run_script(BUSY_LEASE_SCRIPT, tmp_path / "agent.db") as busy, open_store(tmp_path / "agent.db") as store:
        busy.stdout.readline()
        for _ in range(10):
            time.sleep(0.05)  # the other process holds it again
            with store.hold_lease(SAMPLE_KEY):
                pass


def test_forked_child_does_not_keep_the_lease(tmp_path: Path) -> None:
    """A child that outlives the holder does not keep the lease."""
    with (
        run_script(HOLD_LEASE_SCRIPT, tmp_path / "agent.db", "fork") as holder,
        open_store(tmp_path / "agent.db") as store,
    ):
        child = int(holder.stdout.readline())
        int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        try:
            with store.hold_lease(SAMPLE_KEY):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_fork_beside_writing_threads_inherits_no_lease(tmp_path: Path) -> None:
    """one-writer: whenever a process forks, its child holds no lease of another thread and can take its own."""
    with run_script(FORK_SCRIPT, tmp_path) as process:
        assert process.communicate()[0].split() == ["0"] * 80


def test_forked_child_leaving_the_lease_closes_only_its_own_files(tmp_path: Path) -> None:
    """Files that the child opened stay open, though they have the descriptor numbers that its parent's lock had."""
    with run_script(LEAVE_LEASE_SCRIPT, tmp_path) as process:
        assert process.communicate()[0].split() == ["0"]


def test_forked_child_must_open_its_own_store(tmp_path: Path) -> None:
    """The parent's store is refused in a forked child, and leaving its block closes nothing of the parent's."""
    with run_script(INHERIT_SCRIPT, tmp_path / "agent.db") as process:
        refused, own, parents = process.communicate()[0].splitlines()
    assert "was opened in another process, from which this one was forked; open the store here too" in refused
    assert own == "the child's own: ['one']"
    assert parents == "the parent's: ['one', 'two']"


def test_store_opened_while_it_is_created_keeps_its_locks(tmp_path: Path) -> None:
    """A second store of the process that finds a half-created file keeps its locks when the creator closes it."""
    with run_script(CREATE_SCRIPT, tmp_path / "agent.db") as process:
        assert process.communicate()[0].split() == ["0"]


def _start(process: subprocess.Popen[str]) -> None:
    """Wait until the script is ready, and start its work."""
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("limit", [1, 4_096, 40_000])
def test_store_is_readable_where_files_cannot_grow(tmp_path: Path, limit: int) -> None:
    """Reading needs no new file: where SQLite can create none beside the store, it is read as it is."""
    with open_store(tmp_path / "agent.db") as store:
        store.create_session(SAMPLE_KEY)
        store.append_entries(SAMPLE_KEY, make_message_chain(f"e{number}" for number in range(500)))
    with limit_file_size(limit), open_store(tmp_path / "agent.db", readonly=True) as store:
        assert len(store.read_entries(SAMPLE_KEY)) == 500
        assert len(store.read_tips(SAMPLE_KEY)) == 1


def test_older_store_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    """refusal-ends-writing: an older store is read as it is, and only the first write needs room for the newer
    schema.
    """
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
    with closing(sqlite3.connect(tmp_path / "agent.db", isolation_level=None)) as db:
        for step in (
            "DROP INDEX entries_session",
            "DROP INDEX entries_kind",
            "ALTER TABLE searched DROP COLUMN rule",
            "ALTER TABLE sessions DROP COLUMN recorded_window",
            "PRAGMA user_version = 2",
        ):
            db.execute(step)
        db.execute("CREATE INDEX entries_kind ON entries (session, kind)")
    with limit_file_size(1), open_store(tmp_path / "agent.db") as store:
        assert (
            list_ids(store.read_path(SAMPLE_KEY)) == list_ids(store.read_entries(SAMPLE_KEY, "message")) == ["a", "b"]
        )
        assert [found.entry_id for found in store.search_session(SAMPLE_KEY, "text of b")] == ["b"]
        with pytest.raises(StoreReadOnly, match=r"`holdfast gc`"):
            store.append_entries(SAMPLE_KEY, make_message_chain("c", "b"))
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b"]
    with open_store(tmp_path / "agent.db") as store:
        assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved
        assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b", "c"]
