"""Garbage collection lists exactly what may be removed, and never removes a blob that is named or may soon be."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sample_entries import SAMPLE_KEY, list_ids, make_message_chain

from holdfast.errors import StoreCorrupt
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, NoteEntry, RevokeEntry
from holdfast.store.base import SessionStore
from holdfast.store.blobs.blob_names import collect_named_blobs, read_session_blobs
from holdfast.store.garbage import GRACE_SECONDS, find_unused_blobs, preview_removal, remove_unused_blobs
from holdfast.store.open_store import open_store

LATER = 4_000_000_000.0
"""A time at which every blob here is old."""


@pytest.fixture(params=["agent.db", ":memory:"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    """Yield an empty store, on disk and in memory."""
    with open_store(":memory:" if request.param == ":memory:" else tmp_path / request.param) as empty_store:
        yield empty_store


def spill_text(store: SessionStore, text: str) -> Edit:
    """Store ``text`` as a blob and return an edit that names it."""
    return Edit(Span(0, 1, 0), (Text("short"),), "spill", blob_hash=store.blobs.store_content(text))


def make_log_with_blobs(store: SessionStore) -> list[Entry]:
    """Return a log whose decision, compaction and note name the blobs one, two, three and four."""
    hashes = [store.blobs.store_content(text) for text in ("three", "four")]
    return [
        *make_message_chain("ab"),
        Entry("d", "b", DecisionEntry((spill_text(store, "one"), Edit(Span(0, 1, 0), (Text("cut"),))))),
        Entry("c", "d", CompactionEntry(1, Message.from_text("user", "summary"), 1, (spill_text(store, "two"),))),
        Entry("n", "c", NoteEntry("capped", data={"blobs": hashes})),
        Entry("e", "n", DecisionEntry((spill_text(store, "one"),))),
        Entry("r", "e", RevokeEntry("d")),
        Entry("m", "r", NoteEntry("remark", data={"blobs": ["0" * 64]})),
    ]


def test_collect_named_blobs_reads_decisions_compactions_and_notes(store: SessionStore) -> None:
    """Decisions, compactions and notes of capped results name blobs, the first entry that does counts, and no other
    entry does.
    """
    entries = make_log_with_blobs(store)
    named = collect_named_blobs(entries)
    assert {store.blobs.read_text(hash_): id_ for hash_, id_ in named.items()} == {
        "one": "d",
        "two": "c",
        "three": "n",
        "four": "n",
    }
    store.import_entries(SAMPLE_KEY, entries)
    assert read_session_blobs(store, SAMPLE_KEY) == named
    assert (
        collect_named_blobs(
            [Entry("n", None, NoteEntry("capped", data={"blobs": data})) for data in ("x", 7, None, [8])]
        )
        == {}
    )


def test_find_unused_blobs_lists_only_unnamed_blobs(store: SessionStore) -> None:
    """A blob that a session names stays, even one of a revoked decision; the rest is listed with its size and
    removed.
    """
    store.import_entries(SAMPLE_KEY, make_log_with_blobs(store))
    unused = store.blobs.store_content("orphaned")
    found = find_unused_blobs(store, now=LATER)
    assert [(blob.name, blob.size) for blob in found.blobs] == [(unused, 8)]
    assert (found.bytes, found.named_count, found.young_count) == (8, 4, 0)
    assert store.blobs.has_blob(unused)
    assert remove_unused_blobs(store, found) == found
    assert find_unused_blobs(store, now=LATER).blobs == ()
    assert len(list(store.blobs.iter_hashes())) == 4


def test_find_unused_blobs_spares_young_blobs(store: SessionStore) -> None:
    """A blob is stored before it is named, so it is not touched within the grace period."""
    store.blobs.store_content("about to be named")
    found = find_unused_blobs(store)
    assert (found.blobs, found.young_count) == ((), 1)
    assert GRACE_SECONDS >= 600
    assert remove_unused_blobs(store, found).bytes == 0
    assert len(find_unused_blobs(store, grace=-10).blobs) == 1


def test_remove_unused_blobs_spares_blobs_stored_again(store: SessionStore) -> None:
    """A text that is stored again after the listing is still there after the removal."""
    first, second = store.blobs.store_content("first"), store.blobs.store_content("second")
    found = find_unused_blobs(store, grace=-0.05)
    assert len(found.blobs) == 2
    while next(blob.stored_at for blob in store.blobs.iter_items() if blob.name == second) < found.cutoff_time:
        store.blobs.store_content("second")
    assert [blob.name for blob in remove_unused_blobs(store, found).blobs] == [first]
    assert store.blobs.read_text(second) == "second"


def test_preview_removal_lists_exclusive_blobs(store: SessionStore) -> None:
    """The preview lists the blobs that only these sessions name; removing a session deletes no blob, and collecting
    deletes just those.
    """
    store.import_entries(SAMPLE_KEY, make_log_with_blobs(store))
    store.import_entries(
        "other",
        [
            *make_message_chain("a"),
            Entry("d", "a", DecisionEntry((spill_text(store, "one"), spill_text(store, "five")))),
        ],
    )
    (removal,) = preview_removal(store, [store.get_session(SAMPLE_KEY)])
    assert {store.blobs.read_text(hash_) for hash_ in removal.exclusive_blobs} == {"two", "three", "four"}
    assert (removal.bytes, removal.branch_count) == (12, 1)
    both = preview_removal(
        store, [store.get_session(SAMPLE_KEY), store.get_session("other"), store.get_session(SAMPLE_KEY)]
    )
    assert [len(preview.exclusive_blobs) for preview in both] == [4, 1]
    store.remove_session(SAMPLE_KEY)
    assert len(list(store.blobs.iter_hashes())) == 5
    assert {blob.name for blob in remove_unused_blobs(store, find_unused_blobs(store, now=LATER)).blobs} == set(
        removal.exclusive_blobs
    )
    assert list_ids(store.read_path("other")) == ["a", "d"]


def test_remove_unused_blobs_removes_old_drafts(tmp_path: Path) -> None:
    """A draft is removed once it is old; a young one may still be being written."""
    with open_store(tmp_path / "agent.db") as store:
        store.blobs.store_content("text")
        folder = next((tmp_path / "agent.db.blobs").iterdir())
        for name, age in (("a", 10), ("b", 10**6)):
            draft = folder / f".{name * 16}.tmp"
            draft.write_text("half of a text")
            os.utime(draft, (draft.stat().st_mtime - age,) * 2)
        found = find_unused_blobs(store)
        assert ([draft.size for draft in found.drafts], found.young_count) == ([14], 2)
        assert remove_unused_blobs(store, found).drafts == found.drafts
        assert [path.name for path in folder.glob(".*")] == [".aaaaaaaaaaaaaaaa.tmp"]


def test_find_unused_blobs_raises_on_a_damaged_log(tmp_path: Path) -> None:
    """A damaged entry may have named any blob, so it is an error and every blob stays."""
    with open_store(tmp_path / "agent.db") as store:
        store.import_entries(SAMPLE_KEY, make_log_with_blobs(store))
    with closing(sqlite3.connect(tmp_path / "agent.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = 'c'")
    with open_store(tmp_path / "agent.db") as store:
        with pytest.raises(StoreCorrupt, match="entry c"):
            find_unused_blobs(store, now=LATER)
        assert len(list(store.blobs.iter_hashes())) == 4


def test_garbage_collection_of_an_empty_store_does_nothing(store: SessionStore) -> None:
    """An empty store has nothing to remove, and nothing is created."""
    assert remove_unused_blobs(store, find_unused_blobs(store, now=LATER)).bytes == 0
    assert preview_removal(store, []) == []
