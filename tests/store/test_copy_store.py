"""A copy of a store equals it: every entry, label, leaf and blob, also after interruptions and while it is written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import example_counts
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace
from obstore.store import MemoryStore as ObjectsInMemory
from sample_entries import (
    SAMPLE_KEY,
    drop_sequence_numbers,
    make_all_entry_bodies,
    make_long_session,
    make_message_chain,
    make_message_entry_body,
)

from holdfast.errors import StoreError, StoreReadOnly
from holdfast.messages.message import Message
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import NOTE_CAPPED, iter_named_hashes, read_session_blobs
from holdfast.store.blobs.object_blobs import ObjectBlobStore
from holdfast.store.maintenance.check_store import check_store
from holdfast.store.maintenance.copy_store import iter_session_copies
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

picks = st.integers(0, 2**16)
OTHER_BODIES = [body for body in make_all_entry_bodies() if not list(iter_named_hashes(body))]
"""A body of each kind that names no blob: those of the samples name some that do not exist."""


_opened: list[SessionStore] = []
"""Stores that a test has opened; they are closed at its end."""


@pytest.fixture(autouse=True)
def _close_stores():
    """Close the stores of the test."""
    yield
    while _opened:
        _opened.pop().close()


def open_at(path: Path, **options: Any) -> SqliteStore:
    """Open the store in the file at ``path``."""
    store = SqliteStore(path, **options)
    _opened.append(store)
    return store


def open_memory_store(_: Path) -> SessionStore:
    """Return a new store in memory."""
    return MemoryStore()


def open_file_store(folder: Path) -> SessionStore:
    """Return a new store in a file."""
    return open_at(Path(tempfile.mkdtemp(dir=folder)) / "agent.db")


def open_file_store_with_objects(folder: Path) -> SessionStore:
    """Return a new store in a file that has its blobs in object storage."""
    blobs = ObjectBlobStore(ObjectsInMemory(), "the bucket")
    return open_at(Path(tempfile.mkdtemp(dir=folder)) / "agent.db", blobs=blobs)


OPENERS = {"memory": open_memory_store, "file": open_file_store, "objects": open_file_store_with_objects}
"""Kinds of stores. Each opens an empty one."""


def name_blob(store: SessionStore, text: str) -> NoteEntry:
    """Store a text as a blob; return the body of an entry that names it."""
    return NoteEntry(NOTE_CAPPED, data={"blobs": [store.blobs.store_content(text)]})


def describe_session(store: SessionStore, key: str) -> tuple[Any, ...]:
    """Return everything that a store says of a session, without sequence numbers."""
    blobs = {hash_: store.blobs.read_bytes(hash_) for hash_ in read_session_blobs(store, key)}
    entries = drop_sequence_numbers(store.read_entries(key))
    path = drop_sequence_numbers(store.read_path(key))
    tips = drop_sequence_numbers(store.read_tips(key))
    return store.get_session(key), entries, path, tips, store.read_labels(key), blobs


def assert_equal_stores(source: SessionStore, target: SessionStore) -> None:
    """Assert that both stores have the same sessions with the same content."""
    assert source.list_sessions() == target.list_sessions()
    for info in source.list_sessions():
        assert describe_session(source, info.key) == describe_session(target, info.key)


class CopyMachine(RuleBasedStateMachine):
    """Writes into one store in every way, copies it now and then, sometimes up to an interruption."""

    open_source: Callable[[Path], SessionStore] = staticmethod(open_memory_store)
    open_target: Callable[[Path], SessionStore] = staticmethod(open_file_store)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.source = type(self).open_source(Path(self.folder.name))
        self.target = type(self).open_target(Path(self.folder.name))
        self.count = 0

    def teardown(self) -> None:
        """Copy once more; the copy equals the source."""
        self.copy()
        self.source.close()
        self.target.close()
        self.folder.cleanup()

    def pick_key(self, number: int) -> str:
        """Return a session, which is made if there is none yet."""
        key = f"session-{number % 3}"
        if key not in {info.key for info in self.source.list_sessions()}:
            self.source.create_session(key, SessionInfo(key, title=f"title {number}", created_at=number))
        return key

    def pick_entry(self, key: str, number: int) -> str | None:
        """Return an entry of a session, often its leaf."""
        ids = [entry.id for entry in self.source.read_entries(key)]
        leaf = self.source.get_session(key).leaf_id
        choices = [*ids, *[leaf] * (len(ids) + 1)]
        return choices[number % len(choices)]

    @rule(which=picks, where=picks, kind=picks, text=st.text(max_size=20))
    def append(self, which: int, where: int, kind: int, text: str) -> None:
        """Append an entry of any kind, at the leaf or elsewhere."""
        key = self.pick_key(which)
        bodies = [make_message_entry_body(text), name_blob(self.source, text), *OTHER_BODIES]
        self.count += 1
        parent = self.pick_entry(key, where)
        entry = Entry(f"e{self.count}", parent, bodies[kind % len(bodies)], time_ms=self.count)
        self.source.append_entries(key, [entry])

    @rule(which=picks)
    def create_empty(self, which: int) -> None:
        """Create a session without entries."""
        self.pick_key(which)

    @rule(which=picks, where=picks)
    def move_leaf(self, which: int, where: int) -> None:
        """Move a leaf to any entry."""
        key = self.pick_key(which)
        leaf = self.pick_entry(key, where)
        if leaf is not None:
            self.source.set_leaf(key, leaf)

    @rule(which=picks, where=picks, name=st.sampled_from(["", "good", "bad"]))
    def label(self, which: int, where: int, name: str) -> None:
        """Give an entry a label or take it away."""
        key = self.pick_key(which)
        entry_id = self.pick_entry(key, where)
        if entry_id is not None:
            self.source.label_entry(key, entry_id, name)

    @rule(which=picks, title=st.text(st.characters(codec="utf-8"), max_size=9), model=st.sampled_from(["", "m1", "m2"]))
    def rename(self, which: int, title: str, model: str) -> None:
        """Change what lists show."""
        self.source.update_session_info(self.pick_key(which), title=title, model=model)

    @rule(which=picks, text=st.text(max_size=9))
    def copy_branch(self, which: int, text: str) -> None:
        """Copy a branch with another message."""
        key = self.pick_key(which)
        path = self.source.read_path(key)
        if path:
            self.source.copy_branch(key, {path[-1].id: Message.from_text("user", text)})

    @rule()
    def copy(self) -> None:
        """Copy everything: the target equals the source, and a second time nothing is added."""
        copies = list(iter_session_copies(self.source, self.target))
        assert [copy.problems for copy in copies if copy.problems] == []
        assert_equal_stores(self.source, self.target)
        assert {copy.outcome for copy in iter_session_copies(self.source, self.target)} <= {"unchanged"}

    @rule(step=st.integers(1, 12))
    def copy_until_interrupted(self, step: int) -> None:
        """Copy until the write number ``step``, which fails: what is there is whole."""
        interrupt_after(self.target, step, lambda: list(iter_session_copies(self.source, self.target)))

    @invariant()
    def target_is_whole(self) -> None:
        """Each session in the target is a beginning of the source's, and every blob that it names is there."""
        assert check_store(self.target).is_sound
        for info in self.target.list_sessions():
            copied = drop_sequence_numbers(self.target.read_entries(info.key))
            assert copied == drop_sequence_numbers(self.source.read_entries(info.key))[: len(copied)]


class _Interruption(BaseException):
    """An end at an arbitrary moment, as by ^C."""


def interrupt_after(store: SessionStore, step: int, work: Callable[[], object]) -> None:
    """Run ``work`` until the store is written to for the ``step``-th time."""
    count = 0

    def interrupt(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        count += 1
        if count == step:
            raise _Interruption
        return method(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((store, "_save_info"), (store, "_insert_entries"), (store.blobs, "store_content")):
            method = getattr(owner, name)
            patch.setattr(owner, name, lambda *a, method=method, **k: interrupt(method, *a, **k))
        try:
            work()
        except _Interruption:
            return


class FileToObjects(CopyMachine):
    """From a file into one with blobs in object storage."""

    open_source = staticmethod(open_file_store)
    open_target = staticmethod(open_file_store_with_objects)


class ObjectsToFile(CopyMachine):
    """The way back."""

    open_source = staticmethod(open_file_store_with_objects)
    open_target = staticmethod(open_file_store)


class FileToMemory(CopyMachine):
    """From a file into memory."""

    open_source = staticmethod(open_file_store)
    open_target = staticmethod(open_memory_store)


@pytest.mark.counts
@pytest.mark.parametrize("machine", [CopyMachine, FileToObjects, ObjectsToFile, FileToMemory])
def test_any_store_equals_its_copy(machine):
    """nothing-lost: after any sequence of writes, copies and interrupted copies, one more copy makes the stores equal,
    and at no moment does the target have part of a session's branch or a blob that is missing.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=example_counts.choose(quick=15, ci=60, thorough=600),
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            database=None,
        ),
    )


@given(at=st.integers(1, 30), batch=st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_a_copy_made_while_the_source_is_written_is_a_prefix(at, batch):
    """A session that grows during its copy is copied as it was at one moment; the next copy brings the rest."""
    entries = make_message_chain([f"m{number}" for number in range(60)])
    source, target = MemoryStore(), MemoryStore()
    source.import_entries(SAMPLE_KEY, entries[:at])
    read = source.read_lazy_entries

    def read_while_writing(key):
        found = source.get_session(key).entry_count
        source.append_entries(key, entries[found : found + batch])
        return read(key)

    source.read_lazy_entries = read_while_writing  # type: ignore[method-assign]
    (copy,) = iter_session_copies(source, target)
    assert copy.problems == ()
    assert drop_sequence_numbers(target.read_path(SAMPLE_KEY)) == entries[:at]
    source.read_lazy_entries = read  # type: ignore[method-assign]
    assert [copy.outcome for copy in iter_session_copies(source, target)] == ["extended"]
    assert_equal_stores(source, target)


@pytest.mark.parametrize("kind", OPENERS)
def test_a_long_session_makes_the_same_request_in_its_copy(kind, tmp_path):
    """Compactions, decisions and checkpoints of a long session are the same in the copy: so is its next request."""
    source, target = open_file_store(tmp_path), OPENERS[kind](tmp_path)
    source.import_entries(SAMPLE_KEY, make_long_session())
    (copy,) = iter_session_copies(source, target)
    assert (copy.outcome, copy.problems) == ("copied", ())
    assert source.open_state(SAMPLE_KEY) == target.open_state(SAMPLE_KEY)
    assert_equal_stores(source, target)


def make_source_with_blob(folder: Path) -> tuple[SqliteStore, str]:
    """Return a store with a session that names a blob, and the blob's hash."""
    source = open_at(folder / "source.db")
    source.create_session(SAMPLE_KEY)
    body = name_blob(source, "a long text")
    source.append_entries(SAMPLE_KEY, [Entry("a", None, make_message_entry_body("hello")), Entry("b", "a", body)])
    return source, body.data["blobs"][0]


def damage_blob(store: SqliteStore, hash_: str, text: str | None) -> None:
    """Replace the file of a blob, or remove it."""
    path = store.blobs.root / hash_[:2] / hash_[2:]
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


@pytest.mark.parametrize("text", ["other text!", None])
def test_a_blob_that_the_source_has_lost_is_named_and_the_rest_is_copied(tmp_path, text):
    """A missing or altered blob is a problem of one session; its entries, and all other sessions, are copied."""
    source, hash_ = make_source_with_blob(tmp_path)
    source.import_entries("other", make_message_chain("xyz"))
    damage_blob(source, hash_, text)
    target = MemoryStore()
    copies = {copy.key: copy for copy in iter_session_copies(source, target)}
    assert copies["other"].problems == ()
    (problem,) = copies[SAMPLE_KEY].problems
    assert hash_ in problem
    assert "; " in problem
    assert len(target.read_entries(SAMPLE_KEY)) == 2
    check = check_store(target)
    assert [blob.hash for blob in check.missing_blobs] == [hash_]


def test_a_blob_that_the_target_has_lost_is_copied_again(tmp_path):
    """A copy that is made again repairs blobs that were altered or removed in the target."""
    source, hash_ = make_source_with_blob(tmp_path)
    for text in ("other text!", None):
        target = open_at(tmp_path / f"target {text}.db")
        list(iter_session_copies(source, target))
        damage_blob(target, hash_, text)
        target = open_at(tmp_path / f"target {text}.db")
        assert not check_store(target).is_sound
        (copy,) = iter_session_copies(source, target)
        assert (copy.stored_blob_count, copy.problems) == (1, ())
        assert check_store(target).is_sound


def test_what_was_written_in_the_target_stays(tmp_path):
    """Somebody who went on in the copy keeps the branch and the leaf; what is new in the source comes beside it."""
    source, target = open_file_store(tmp_path), open_file_store(tmp_path)
    source.import_entries(SAMPLE_KEY, make_message_chain("abc"))
    list(iter_session_copies(source, target))
    target.append_entries(SAMPLE_KEY, make_message_chain("t", parent="c"))
    source.append_entries(SAMPLE_KEY, make_message_chain("s", parent="c"))
    (copy,) = iter_session_copies(source, target)
    assert (copy.outcome, copy.added_count, copy.problems) == ("extended", 1, ())
    assert target.get_session(SAMPLE_KEY).leaf_id == "t"
    assert {entry.id for entry in target.read_entries(SAMPLE_KEY)} == set("abcst")


def test_another_session_under_the_same_key_is_refused(tmp_path):
    """A session of the target with other content under an id is not mixed with the source's; others are copied."""
    source, target = open_file_store(tmp_path), open_file_store(tmp_path)
    for store, text in ((source, "one"), (target, "two")):
        store.import_entries(SAMPLE_KEY, [Entry("a", None, make_message_entry_body(text))])
    source.import_entries("other", make_message_chain("xyz"))
    copies = {copy.key: copy for copy in iter_session_copies(source, target)}
    assert copies[SAMPLE_KEY].outcome == "failed"
    assert "holdfast rm" in copies[SAMPLE_KEY].problems[0]
    assert copies["other"].outcome == "copied"


def test_an_altered_entry_in_the_target_is_found(tmp_path):
    """The verification reads the entries of the target and does not believe that they were written."""
    source, target = open_file_store(tmp_path), MemoryStore()
    source.import_entries(SAMPLE_KEY, make_message_chain("abc"))
    list(iter_session_copies(source, target))
    session = target._sessions[SAMPLE_KEY]
    seq = session.ids["b"]
    session.rows[seq] = replace(session.rows[seq], entry=replace(session.rows[seq].entry, time_ms=7))
    (copy,) = iter_session_copies(source, target)
    assert copy.problems == ("entry b differs in the target; copy into a new store",)


def test_a_target_that_refuses_ends_the_copy(tmp_path):
    """A disk that refuses is an error for all sessions, and is not repeated for each."""
    source = open_file_store(tmp_path)
    source.import_entries(SAMPLE_KEY, make_message_chain("abc"))
    target = open_at(tmp_path / "readonly.db", readonly=True)
    with pytest.raises(StoreReadOnly) as caught:
        list(iter_session_copies(source, target))
    assert isinstance(caught.value, StoreError)


def test_an_entry_that_names_no_hash_is_a_missing_blob(tmp_path):
    """An imported entry may name anything as a blob: it is reported as missing, by the check and by a copy."""
    source, target = open_file_store(tmp_path), open_file_store(tmp_path)
    source.import_entries(SAMPLE_KEY, [Entry("a", None, NoteEntry(NOTE_CAPPED, data={"blobs": ["../../x"]}))])
    assert [blob.hash for blob in check_store(source).missing_blobs] == ["../../x"]
    (copy,) = iter_session_copies(source, target)
    assert "../../x" in copy.problems[0]
    assert copy.added_count == 1


def test_a_copy_made_again_follows_leaf_and_title(tmp_path):
    """What changes without a new entry, the leaf and what lists show, is the source's after every copy."""
    source, target = open_file_store(tmp_path), open_file_store(tmp_path)
    source.import_entries(SAMPLE_KEY, make_message_chain("abc"), info=SessionInfo(SAMPLE_KEY, title="one", model="m"))
    list(iter_session_copies(source, target))
    source.set_leaf(SAMPLE_KEY, "a")
    source.update_session_info(SAMPLE_KEY, title="", cwd="/srv")
    assert [copy.outcome for copy in iter_session_copies(source, target)] == ["unchanged"]
    assert_equal_stores(source, target)
    assert target.get_session(SAMPLE_KEY).leaf_id == "a"


def test_an_interrupted_copy_never_names_a_missing_blob(tmp_path):
    """nothing-lost: blobs are stored before the entries that name them, at whatever write the copy is interrupted."""
    source, _ = make_source_with_blob(tmp_path)
    for step in range(1, 6):
        target = open_file_store(tmp_path)
        interrupt_after(target, step, lambda target=target: list(iter_session_copies(source, target)))
        assert check_store(target).is_sound
        assert [len(target.read_entries(info.key)) for info in target.list_sessions()] in ([], [2])
        assert [copy.problems for copy in iter_session_copies(source, target)] == [()]
        assert_equal_stores(source, target)


def test_a_backup_brings_lost_blobs_back_and_changes_nothing_else(tmp_path):
    """A backup that is copied into the store in use restores its blobs; newer entries, title and leaf stay."""
    used, hash_ = make_source_with_blob(tmp_path)
    backup = open_file_store(tmp_path)
    list(iter_session_copies(used, backup))
    used.append_entries(SAMPLE_KEY, make_message_chain("c", parent="b"))
    used.update_session_info(SAMPLE_KEY, title="a better title")
    used.set_leaf(SAMPLE_KEY, "a")
    before = describe_session(used, SAMPLE_KEY)
    damage_blob(used, hash_, None)
    (copy,) = iter_session_copies(backup, open_at(tmp_path / "source.db"))
    assert (copy.outcome, copy.stored_blob_count, copy.problems) == ("unchanged", 1, ())
    assert describe_session(open_at(tmp_path / "source.db"), SAMPLE_KEY) == before
