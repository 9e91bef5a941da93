"""Conformance tests of stores: subclass ``SessionStoreRules`` or ``BlobStoreRules`` in your own test module.

::

    class TestMine(SessionStoreRules):
        def open(self, folder: Path) -> SessionStore:
            return MyStore(folder / "sessions")

``open`` is called with a directory of the test; called again with the same directory it must find what was stored there
(a store that keeps nothing on disk sets ``is_durable = False``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from sample_entries import (
    ODD_TEXT,
    SAMPLE_KEY,
    drop_sequence_numbers,
    is_same_request,
    list_ids,
    make_all_entry_bodies,
    make_long_session,
    make_message_chain,
    make_message_entry_body,
)
from store_copy_search_quota_rules import CopyRules, ImportRules, QuotaRules, SearchRules

from holdfast.errors import LogConflict, StoreError, StoreLocked, UnknownId
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    Entry,
    EntryBody,
    MessageEntry,
    NoteEntry,
    RevokeEntry,
    Usage,
)
from holdfast.store.base import BlobStore, SessionInfo
from holdfast.store.tree.outline import reduce_to_sizes
from holdfast.store.tree.tree import MIN_OUTLINE_ENTRIES


class SessionStoreRules(CopyRules, ImportRules, SearchRules, QuotaRules):
    """Tests that every session store must pass."""

    # -- the log -------------------------------------------------------------------------------------------------------

    def test_read_path_returns_all_appended_entries_after_reopening(self, tmp_path: Path) -> None:
        """nothing-lost: every entry whose append returned is read back in order, also by another process."""
        entries = make_message_chain("abcd")
        first = self.open(tmp_path)
        first.create_session(SAMPLE_KEY)
        for entry in entries:
            assert first.append_entries(SAMPLE_KEY, [entry]).is_leaf_moved
        with self.reopen(first, tmp_path) as store:
            assert drop_sequence_numbers(store.read_path(SAMPLE_KEY)) == entries
            assert store.get_session(SAMPLE_KEY).leaf_id == "d"
            assert store.get_session(SAMPLE_KEY).entry_count == 4

    def test_read_entries_returns_every_kind_equal_to_what_was_imported(self, tmp_path: Path) -> None:
        """loads-what-was-saved: ``load(save(x)) == x`` for every kind of entry and every awkward value."""
        bodies = make_all_entry_bodies()
        entries = [Entry(f"e{n}", f"e{n - 1}" if n else None, body, time_ms=n) for n, body in enumerate(bodies)]
        first = self.open(tmp_path)
        first.import_entries(SAMPLE_KEY, entries)
        with self.reopen(first, tmp_path) as store:
            stored_entries = drop_sequence_numbers(store.read_entries(SAMPLE_KEY))
        for entry, stored_entry in zip(entries, stored_entries, strict=True):
            assert stored_entry == entry
        raw, stored_raw = entries[0].body.sized_message.raw, stored_entries[0].body.sized_message.raw  # type: ignore[union-attr]
        assert bytes(stored_raw or b"") == bytes(raw or b"")

    def test_read_entries_keeps_the_log_order_when_the_clock_runs_backwards(self, tmp_path: Path) -> None:
        """no-clock-in-decisions: the order of entries is that of the log, whatever their times are."""
        entries = [replace(entry, time_ms=1_000 - n) for n, entry in enumerate(make_message_chain("abc"))]
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, entries)
            stored_entries = store.read_entries(SAMPLE_KEY)
            assert list_ids(stored_entries) == ["a", "b", "c"]
            assert sorted({entry.seq for entry in stored_entries}) == [entry.seq for entry in stored_entries]

    def test_append_entries_refuses_the_whole_batch_for_an_unknown_parent(self, tmp_path: Path) -> None:
        """parent-first: one entry with an unknown parent makes the store refuse its whole batch."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
            before = store.get_session(SAMPLE_KEY)
            with pytest.raises(LogConflict, match="nowhere"):
                store.append_entries(SAMPLE_KEY, [*make_message_chain("cd", "b"), *make_message_chain("e", "nowhere")])
            assert list_ids(store.read_entries(SAMPLE_KEY)) == ["a", "b"]
            assert store.get_session(SAMPLE_KEY) == before
            assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved

    def test_import_entries_refuses_a_child_before_its_parent(self, tmp_path: Path) -> None:
        """parent-first: the parent comes first also within a batch, so no cycle can be written."""
        with self.open(tmp_path) as store, pytest.raises(LogConflict):
            store.import_entries(
                SAMPLE_KEY,
                [Entry("a", "b", make_message_entry_body("x")), Entry("b", "a", make_message_entry_body("y"))],
            )

    def test_append_and_import_refuse_the_batch_for_a_value_of_a_wrong_type(self, tmp_path: Path) -> None:
        """A value that could not be decoded again is refused with its field named, and nothing of its batch is
        written.
        """
        bodies_by_field: dict[str, EntryBody] = {
            "arguments": MessageEntry(SizedMessage(Message("assistant", (ToolCall("c", "bash", {"a": 1}),)))),  # type: ignore[arg-type]
            r"\.id`": MessageEntry(SizedMessage(Message("assistant", (ToolCall(5, "bash", "{}"),)))),  # type: ignore[arg-type]
            "is_error": MessageEntry(SizedMessage(Message("tool", (ToolResult("c", is_error="yes"),)))),  # type: ignore[arg-type]
            r"\.role`": MessageEntry(SizedMessage(Message("boss", (Text("work"),)))),  # type: ignore[arg-type]
            "input": AnswerEntry("basis", Usage(input="many")),  # type: ignore[arg-type]
            "object": NoteEntry("remark", data={"of": object()}),
            # No request could be built with it, so every later read would fail.
            r"\.keep`": CompactionEntry(-1),
        }
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("a"))
            for field, body in bodies_by_field.items():
                for write in (store.append_entries, store.import_entries):
                    with pytest.raises(LogConflict, match=field):
                        write(SAMPLE_KEY, [Entry("b", "a", make_message_entry_body("fine")), Entry("c", "b", body)])
            assert list_ids(store.read_path(SAMPLE_KEY)) == ["a"]
            assert store.find_damage(SAMPLE_KEY) == []

    def test_append_entries_refuses_an_id_that_the_session_already_has(self, tmp_path: Path) -> None:
        """unique-entry-ids: an id is unique in its session over all kinds; another session may use it too."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
            with pytest.raises(LogConflict, match="'a'"):
                store.append_entries(SAMPLE_KEY, [Entry("a", "b", NoteEntry("other"))])
            with pytest.raises(LogConflict, match="'c'"):
                store.append_entries(SAMPLE_KEY, [*make_message_chain("c", "b"), *make_message_chain("c", "b")])
            assert store.import_entries("session-2", make_message_chain("ab")).added_count == 2

    def test_store_refuses_unsafe_session_keys_and_entry_ids(self, tmp_path: Path) -> None:
        """no-outside-paths: every method refuses keys and ids that are empty, too long, lone surrogates, paths or
        reserved file names.
        """
        with self.open(tmp_path) as store:
            store.create_session(SAMPLE_KEY)
            for bad in ("", "\ud83d", "x" * 10_000):
                with pytest.raises(LogConflict):
                    store.append_entries(SAMPLE_KEY, [Entry(bad, None, make_message_entry_body("x"))])
                with pytest.raises(LogConflict):
                    store.create_session(bad)
            for bad in ("../../x", "a/..", "..", "CON", "nul.txt", "a\nb", "\x00"):
                for make in (store.create_session, lambda key: store.import_entries(key, make_message_chain("a"))):
                    with pytest.raises(LogConflict, match="cannot be a session key"):
                        make(bad)
                for find in (
                    store.get_session,
                    store.read_path,
                    store.remove_session,
                    lambda id_: store.get_entry(SAMPLE_KEY, id_),
                ):
                    with pytest.raises(UnknownId):
                        find(bad)
            assert [info.key for info in store.list_sessions()] == [SAMPLE_KEY]
            assert store.read_entries(SAMPLE_KEY) == []

    # -- leaves and forks ----------------------------------------------------------------------------------------------

    def test_append_entries_after_an_older_leaf_makes_a_fork(self, tmp_path: Path) -> None:
        """one-writer: an append after an older leaf makes a new branch; the leaf and the existing branch stay
        unchanged.
        """
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("abc"))
            outcome = store.append_entries(SAMPLE_KEY, make_message_chain("xy", "b"), expected_leaf="b")
            assert (outcome.leaf, outcome.is_leaf_moved) == ("y", False)
            assert store.get_session(SAMPLE_KEY).leaf_id == "c"
            assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b", "c"]
            assert list_ids(store.read_path(SAMPLE_KEY, "y")) == ["a", "b", "x", "y"]
            assert list_ids(store.read_tips(SAMPLE_KEY)) == ["c", "y"]

    def test_append_entries_moves_the_leaf_only_from_the_expected_leaf(self, tmp_path: Path) -> None:
        """A caller that names the current leaf may rewind from it; with an outdated leaf the append does not move
        it.
        """
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("abc"))
            assert store.append_entries(SAMPLE_KEY, make_message_chain("x", "a"), expected_leaf="c").is_leaf_moved
            assert store.get_session(SAMPLE_KEY).leaf_id == "x"
            assert not store.append_entries(SAMPLE_KEY, make_message_chain("y", "x"), expected_leaf="c").is_leaf_moved
            assert store.get_session(SAMPLE_KEY).leaf_id == "x"

    def test_set_leaf_moves_the_leaf_to_any_entry(self, tmp_path: Path) -> None:
        """The leaf can be set to any entry, by a prefix of its id too, and the next append continues from there."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain(["one", "two", "three"]))
            assert store.set_leaf(SAMPLE_KEY, "tw") == "two"
            assert list_ids(store.read_path(SAMPLE_KEY)) == ["one", "two"]
            assert store.append_entries(SAMPLE_KEY, make_message_chain("x", "two")).is_leaf_moved
            with pytest.raises(UnknownId):
                store.set_leaf(SAMPLE_KEY, "four")

    def test_label_entry_does_not_move_the_leaf(self, tmp_path: Path) -> None:
        """A label names an entry, is no tip and moves no leaf, and an empty name removes it."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("abc"))
            store.label_entry(SAMPLE_KEY, "b", "before the refactoring")
            store.label_entry(SAMPLE_KEY, "c", "end")
            assert store.read_labels(SAMPLE_KEY) == {"b": "before the refactoring", "c": "end"}
            store.label_entry(SAMPLE_KEY, "b", "")
            assert store.read_labels(SAMPLE_KEY) == {"c": "end"}
            assert store.get_session(SAMPLE_KEY).leaf_id == "c"
            assert list_ids(store.read_tips(SAMPLE_KEY)) == ["c"]
            assert store.append_entries(SAMPLE_KEY, make_message_chain("d", "c")).is_leaf_moved

    # -- imports -------------------------------------------------------------------------------------------------------

    def test_import_entries_twice_changes_nothing(self, tmp_path: Path) -> None:
        """An import is idempotent, and its result says that nothing changed."""
        entries = [replace(entry, time_ms=5) for entry in make_message_chain("abc")]
        info = SessionInfo(SAMPLE_KEY, "title", "claude-code", "/home/me", "model", 1, 9)
        with self.open(tmp_path) as store:
            first = store.import_entries(SAMPLE_KEY, entries, info=info)
            assert (first.added_count, first.known_count, first.leaf) == (3, 0, "c")
            before = (store.list_sessions(), store.read_entries(SAMPLE_KEY))
            second = store.import_entries(SAMPLE_KEY, entries, info=info)
            assert (second.added_count, second.known_count, second.is_unchanged) == (0, 3, True)
            assert (store.list_sessions(), store.read_entries(SAMPLE_KEY)) == before
            assert store.get_session(SAMPLE_KEY) == replace(info, entry_count=3, leaf_id="c")

    def test_import_entries_adds_only_new_entries_of_a_longer_recording(self, tmp_path: Path) -> None:
        """Only the new entries are added, and the leaf moves to the last of them."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("abc"))
            outcome = store.import_entries(
                SAMPLE_KEY, make_message_chain("abcde"), info=SessionInfo(SAMPLE_KEY, "new title")
            )
            assert (outcome.added_count, outcome.known_count, outcome.leaf) == (2, 3, "e")
            assert store.get_session(SAMPLE_KEY).title == "new title"
            assert list_ids(store.read_path(SAMPLE_KEY)) == list("abcde")

    def test_import_entries_keeps_the_leaf_on_entries_appended_since(self, tmp_path: Path) -> None:
        """An import does not move the leaf away from entries that were appended since the first import."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("abc"))
            store.append_entries(SAMPLE_KEY, make_message_chain("x", "c"))
            assert store.import_entries(SAMPLE_KEY, make_message_chain("abcde")).leaf == "x"
            assert list_ids(store.read_path(SAMPLE_KEY)) == ["a", "b", "c", "x"]

    def test_import_entries_refuses_other_content_under_a_known_id(self, tmp_path: Path) -> None:
        """A recording whose entry changed under its id is an error, and nothing of it is written."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain("abc"))
            before = (store.list_sessions(), store.read_entries(SAMPLE_KEY))
            with pytest.raises(LogConflict, match="other content"):
                store.import_entries(
                    SAMPLE_KEY,
                    [
                        *make_message_chain("ab"),
                        Entry("c", "b", make_message_entry_body("changed")),
                        *make_message_chain("d", "c"),
                    ],
                )
            with pytest.raises(LogConflict, match="other content"):
                store.import_entries(
                    SAMPLE_KEY, [*make_message_chain("ab"), replace(make_message_chain("abc")[2], parent="a")]
                )
            assert (store.list_sessions(), store.read_entries(SAMPLE_KEY)) == before

    def test_import_entries_refuses_a_leaf_that_is_no_entry(self, tmp_path: Path) -> None:
        """An import with an unknown leaf is refused as a whole."""
        with self.open(tmp_path) as store:
            with pytest.raises(LogConflict, match="nowhere"):
                store.import_entries(SAMPLE_KEY, make_message_chain("ab"), leaf="nowhere")
            assert store.list_sessions() == []

    # -- the active branch ---------------------------------------------------------------------------------------------

    def test_open_state_makes_the_same_request_as_the_whole_path(self, tmp_path: Path) -> None:
        """opening-costs-one-branch: a state opened from its newest compaction equals the state of the whole path in
        every number and byte.
        """
        first = self.open(tmp_path)
        first.import_entries(SAMPLE_KEY, make_long_session())
        with self.reopen(first, tmp_path) as store:
            whole_state, active = (
                ConversationState.from_entries(store.read_path(SAMPLE_KEY)),
                store.read_active_entries(SAMPLE_KEY),
            )
            state = store.open_state(SAMPLE_KEY)
        assert active.compaction is not None
        assert list_ids(active.head) == ["s0"]
        assert list_ids(active.tail) == ["m8", "m9"]
        assert is_same_request(state, whole_state)
        assert state.history.sized_messages[8] == whole_state.history.sized_messages[8]
        with pytest.raises(LookupError, match="messages 1 to 7"):
            state.history.sized_messages.slice()

    def test_open_size_state_equals_the_sizes_of_the_leafs_path(self, tmp_path: Path) -> None:
        """opening-costs-one-branch: the size state is that of the leaf's own path after a longer import, an append
        and a moved leaf.
        """
        entries = make_message_chain([f"e{at}" for at in range(2 * MIN_OUTLINE_ENTRIES)])
        first = self.open(tmp_path)
        for count in (3, MIN_OUTLINE_ENTRIES, 2 * MIN_OUTLINE_ENTRIES, 2 * MIN_OUTLINE_ENTRIES):
            first.import_entries(SAMPLE_KEY, entries[:count])
            assert first.open_size_state(SAMPLE_KEY) == reduce_to_sizes(ConversationState.from_entries(entries[:count]))
        with self.reopen(first, tmp_path) as store:
            assert store.open_size_state(SAMPLE_KEY) == reduce_to_sizes(ConversationState.from_entries(entries))
            store.append_entries(SAMPLE_KEY, make_message_chain("g", entries[-1].id))
            assert store.open_size_state(SAMPLE_KEY) == reduce_to_sizes(
                ConversationState.from_entries(store.read_path(SAMPLE_KEY))
            )
            store.set_leaf(SAMPLE_KEY, "e1")
            assert store.open_size_state(SAMPLE_KEY) == reduce_to_sizes(ConversationState.from_entries(entries[:2]))

    def test_open_state_of_a_fork_ignores_a_later_compaction(self, tmp_path: Path) -> None:
        """A branch that forks before a compaction is opened whole, because the summary belongs to the other branch
        (F174).
        """
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            store.append_entries(SAMPLE_KEY, make_message_chain("x", "m5"))
            assert store.read_active_entries(SAMPLE_KEY, "x").compaction is None
            assert is_same_request(
                store.open_state(SAMPLE_KEY, "x"), ConversationState.from_entries(store.read_path(SAMPLE_KEY, "x"))
            )

    def test_open_state_restores_the_messages_of_a_revoked_compaction(self, tmp_path: Path) -> None:
        """Revoking a compaction brings its messages back; the next compaction shortens the opened path again."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            store.append_entries(SAMPLE_KEY, [Entry("r", "m11", RevokeEntry("c2"))])
            assert store.read_active_entries(SAMPLE_KEY).compaction is None
            assert is_same_request(
                store.open_state(SAMPLE_KEY), ConversationState.from_entries(store.read_path(SAMPLE_KEY))
            )
            store.append_entries(
                SAMPLE_KEY,
                [
                    Entry("c3", "r", CompactionEntry(10, Message.from_text("user", "third"), 5)),
                    *make_message_chain("z", "c3"),
                ],
            )
            assert store.read_active_entries(SAMPLE_KEY).compaction is not None
            assert is_same_request(
                store.open_state(SAMPLE_KEY), ConversationState.from_entries(store.read_path(SAMPLE_KEY))
            )

    def test_open_state_finds_a_tail_that_starts_before_an_older_compaction(self, tmp_path: Path) -> None:
        """A compaction may keep more messages than the compaction before it."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            store.append_entries(
                SAMPLE_KEY, [Entry("c3", "m11", CompactionEntry(3, Message.from_text("user", "third"), 5))]
            )
            assert list_ids(store.read_active_entries(SAMPLE_KEY).tail)[0] == "m3"
            assert is_same_request(
                store.open_state(SAMPLE_KEY), ConversationState.from_entries(store.read_path(SAMPLE_KEY))
            )

    # -- lookups -------------------------------------------------------------------------------------------------------

    def test_read_entries_filters_by_kind(self, tmp_path: Path) -> None:
        """The entries of one kind come in order; a kind without entries gives an empty list."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            assert list_ids(store.read_entries(SAMPLE_KEY, "compaction")) == ["c1", "c2"]
            assert list_ids(store.read_entries(SAMPLE_KEY, "decision")) == ["d"]
            assert store.read_entries(SAMPLE_KEY, "message") == [
                entry for entry in store.read_entries(SAMPLE_KEY) if isinstance(entry.body, MessageEntry)
            ]
            assert store.read_entries(SAMPLE_KEY, "label") == store.read_entries(SAMPLE_KEY, "' OR 1") == []

    def test_read_entries_after_a_sequence_number_returns_only_later_entries(self, tmp_path: Path) -> None:
        """Entries after a sequence number come in order, of every kind or of one, whatever other sessions are in the
        store.
        """
        with self.open(tmp_path) as store:
            store.import_entries("session-2", make_message_chain("ab"))
            store.import_entries(SAMPLE_KEY, make_long_session())
            store.append_entries("session-2", make_message_chain("cd", "b"))
            all_entries = store.read_entries(SAMPLE_KEY)
            for at in (0, len(all_entries) // 2, len(all_entries) - 1):
                later_entries = store.read_entries(SAMPLE_KEY, after=all_entries[at].seq)
                assert later_entries == all_entries[at + 1 :]
                assert store.read_entries(SAMPLE_KEY, "message", after=all_entries[at].seq) == [
                    entry for entry in later_entries if isinstance(entry.body, MessageEntry)
                ]
            assert store.read_entries(SAMPLE_KEY, after=0) == all_entries

    def test_read_entries_leaves_out_messages_over_a_size(self, tmp_path: Path) -> None:
        """Messages of more tokens are left out; all other entries are there, in order, by kind and after one."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            all_entries = store.read_entries(SAMPLE_KEY)
            sizes = {e.id: e.body.sized_message.tokens for e in all_entries if isinstance(e.body, MessageEntry)}
            for most in (0, min(sizes.values()), sorted(sizes.values())[len(sizes) // 2], max(sizes.values())):
                expected = [entry for entry in all_entries if sizes.get(entry.id, 0) <= most]
                assert store.read_entries(SAMPLE_KEY, max_tokens=most) == expected
                messages = [entry for entry in expected if isinstance(entry.body, MessageEntry)]
                assert store.read_entries(SAMPLE_KEY, "message", max_tokens=most) == messages
                after = all_entries[len(all_entries) // 2].seq
                later = [entry for entry in expected if entry.seq > after]
                assert store.read_entries(SAMPLE_KEY, after=after, max_tokens=most) == later

    def test_get_session_and_get_entry_accept_a_unique_prefix(self, tmp_path: Path) -> None:
        """A unique prefix is enough, an exact id wins over longer ones, and an ambiguous prefix lists the
        candidates.
        """
        with self.open(tmp_path) as store:
            for key in ("aa", "aab", "abc"):
                store.import_entries(key, make_message_chain(["e1", "e11", "e2"]))
            assert store.get_session("ab").key == "abc"
            assert store.get_session("aa").key == "aa"
            assert store.get_entry("aa", "e2").id == "e2"
            assert store.get_entry("aa", "e1").id == "e1"
            for prefix in ("a", "", "zz"):
                with pytest.raises(UnknownId):
                    store.get_session(prefix)
            with pytest.raises(UnknownId, match="aa, aab, abc"):
                store.get_session("a")
            with pytest.raises(UnknownId, match="e1, e11, e2"):
                store.get_entry("aa", "e")

    def test_store_methods_raise_unknown_id_for_an_unknown_session(self, tmp_path: Path) -> None:
        """Each method raises ``UnknownId`` for a session that does not exist, and creates none."""
        with self.open(tmp_path) as store:
            for method in (
                store.read_path,
                store.read_active_entries,
                store.read_entries,
                store.read_tips,
                store.read_labels,
                store.find_damage,
                store.remove_session,
            ):
                with pytest.raises(UnknownId, match="gone"):
                    method("gone")
            with pytest.raises(UnknownId, match="gone"):
                store.append_entries("gone", make_message_chain("a"))
            assert store.list_sessions() == []

    def test_read_path_of_a_session_without_entries_is_empty(self, tmp_path: Path) -> None:
        """A session without entries has an empty path and the initial state."""
        with self.open(tmp_path) as store:
            assert store.list_sessions() == []
            store.create_session(SAMPLE_KEY)
            assert store.read_path(SAMPLE_KEY) == store.read_entries(SAMPLE_KEY) == store.read_tips(SAMPLE_KEY) == []
            assert store.open_state(SAMPLE_KEY) == ConversationState()
            assert store.append_entries(SAMPLE_KEY, []).leaf is None
            with pytest.raises(LogConflict, match=SAMPLE_KEY):
                store.create_session(SAMPLE_KEY)

    def test_list_sessions_sorts_by_last_change(self, tmp_path: Path) -> None:
        """The session that changed last comes first, and each keeps the information that was stored about it."""
        with self.open(tmp_path) as store:
            for key, at in (("old", 1), ("new", 3), ("middle", 2)):
                store.import_entries(key, [Entry("a", None, make_message_entry_body(key), time_ms=at)])
            assert [info.key for info in store.list_sessions()] == ["new", "middle", "old"]
            store.update_session_info("old", title="t\ud83d", cwd="/w")
            assert (store.get_session("old").cwd, store.get_session("old").model) == ("/w", "")

    def test_remove_session_removes_only_that_session(self, tmp_path: Path) -> None:
        """Removing a session leaves the others, and its key can be used again."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            store.import_entries("other", make_message_chain("ab"))
            store.remove_session(SAMPLE_KEY)
            assert [info.key for info in store.list_sessions()] == ["other"]
            assert list_ids(store.read_path("other")) == ["a", "b"]
            assert store.import_entries(SAMPLE_KEY, make_message_chain("ab")).added_count == 2

    # -- one writer ----------------------------------------------------------------------------------------------------

    def test_hold_lease_refuses_a_second_writer_of_the_session(self, tmp_path: Path) -> None:
        """one-writer: a second writer of a session gets ``StoreLocked``; other sessions are free, and so is this one
        afterwards.
        """
        with self.open(tmp_path) as store:
            with (
                store.hold_lease(SAMPLE_KEY),
                store.hold_lease("other"),
                pytest.raises(StoreLocked, match=SAMPLE_KEY),
                store.hold_lease(SAMPLE_KEY),
            ):
                pass
            with store.hold_lease(SAMPLE_KEY):
                pass

    def test_store_methods_raise_store_error_after_close(self, tmp_path: Path) -> None:
        """A method called after ``close`` raises an error that says that the store is closed."""
        store = self.open(tmp_path)
        store.create_session(SAMPLE_KEY)
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.list_sessions()
        with pytest.raises(StoreError, match="closed"):
            store.append_entries(SAMPLE_KEY, make_message_chain("a"))


class BlobStoreRules:
    """Tests that every blob store must pass."""

    def open(self, folder: Path) -> BlobStore:
        """Return the blob store at ``folder``."""
        raise NotImplementedError

    def test_store_content_round_trips_any_text_under_its_hash(self, tmp_path: Path) -> None:
        """loads-what-was-saved: any text is read back under the hash of its bytes, and storing it again changes
        nothing.
        """
        blobs = self.open(tmp_path)
        for text in ("", ODD_TEXT, "line\n" * 50_000):
            hash_ = blobs.store_content(text)
            assert blobs.store_content(text.encode("utf-8", "surrogatepass")) == hash_
            assert blobs.read_text(hash_) == text
            assert blobs.has_blob(hash_)
            assert blobs.get_size(hash_) == len(blobs.read_bytes(hash_))
        assert len(set(blobs.iter_hashes())) == len(list(blobs.iter_hashes())) == 3

    def test_read_text_and_read_bytes_return_the_requested_slice(self, tmp_path: Path) -> None:
        """A page is the slice of the whole content, in bytes and in characters, also across pieces and past the end."""
        blobs = self.open(tmp_path)
        text = "äb\U0001f980" * 30_000
        hash_ = blobs.store_content(text)
        for start, stop in ((0, 5), (1, 2), (65_530, 65_540), (21_840, 21_860), (89_990, 10**9), (10, 5), (-3, 4)):
            low, high = max(0, start), max(0, stop)
            assert blobs.read_text(hash_, start, stop) == text[low:high]
            assert blobs.read_bytes(hash_, start, stop) == text.encode()[low:high]
        assert blobs.read_text(hash_, 89_999) == text[89_999:]
        assert blobs.read_bytes(hash_, 5) == text.encode()[5:]

    def test_blob_methods_raise_unknown_id_for_names_that_are_no_hash(self, tmp_path: Path) -> None:
        """no-outside-paths: no outside string becomes a path, and a hash without a blob is a clear error."""
        blobs = self.open(tmp_path)
        blobs.store_content("x")
        for bad in ("", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", "/" * 64, "a" * 65):
            for method in (blobs.read_bytes, blobs.has_blob, blobs.get_size, blobs.remove_blob, blobs.read_text):
                with pytest.raises(UnknownId):
                    method(bad)
        with pytest.raises(UnknownId, match="b" * 64):
            blobs.read_bytes("b" * 64)
        assert not blobs.has_blob("b" * 64)

    def test_read_text_replaces_invalid_utf8_and_read_bytes_keeps_it(self, tmp_path: Path) -> None:
        """Bytes that are no UTF-8 are returned unchanged as bytes, and with U+FFFD as text, also in pages."""
        blobs = self.open(tmp_path)
        for data in (b"\xff\xfe\x00ok", b"\xed\xa0", b"\xe6\xbc" * 40_000, bytes(range(256)) * 600):
            hash_ = blobs.store_content(data)
            assert blobs.read_bytes(hash_) == data
            text = blobs.read_text(hash_)
            assert blobs.count_characters(hash_) == len(text)
            assert "".join(blobs.read_text(hash_, at, at + 7_001) for at in range(0, len(text), 7_001)) == text

    def test_read_text_pages_make_up_the_whole_text(self, tmp_path: Path) -> None:
        """A text of n characters is read in n / page calls, and the pages together are the text."""
        blobs = self.open(tmp_path)
        for text in ("line of words\n" * 20_000, "\u89e3\ud83d\U0001f980 x" * 50_000, ""):
            hash_ = blobs.store_content(text)
            assert blobs.count_characters(hash_) == len(text)
            pages = [blobs.read_text(hash_, at, at + 50_000) for at in range(0, len(text), 50_000)]
            assert "".join(pages) == text
            assert len(pages) == -(-len(text) // 50_000)

    def test_remove_if_older_keeps_a_blob_that_was_stored_again(self, tmp_path: Path) -> None:
        """A blob that was stored again since is kept, because an entry may be about to refer to it."""
        blobs = self.open(tmp_path)
        hash_ = blobs.store_content("text")
        (blob,) = blobs.iter_items()
        assert (blob.name, blob.is_draft) == (hash_, False)
        assert blob.size > 0
        assert not blobs.remove_if_older(hash_, blob.stored_at)
        assert not blobs.remove_if_older("b" * 64, blob.stored_at + 10)
        with pytest.raises(UnknownId):
            blobs.remove_if_older("../../x", blob.stored_at + 10)
        blobs.store_content("text")
        assert blobs.remove_if_older(hash_, next(iter(blobs.iter_items())).stored_at + 1)
        assert not blobs.has_blob(hash_)

    def test_remove_blob_removes_only_that_blob(self, tmp_path: Path) -> None:
        """Removing takes one blob, and the same content can be stored again."""
        blobs = self.open(tmp_path)
        removed_hash, kept_hash = blobs.store_content("one"), blobs.store_content("two")
        blobs.remove_blob(removed_hash)
        assert list(blobs.iter_hashes()) == [kept_hash]
        assert blobs.store_content("one") == removed_hash
