"""Conformance tests of session stores for copied branches, long imports, search and quotas.

``SessionStoreRules`` inherits them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from sample_entries import (
    ODD_TEXT,
    SAMPLE_KEY,
    is_same_request,
    list_ids,
    make_long_session,
    make_message_chain,
    make_message_entry_body,
)

from holdfast.errors import LogConflict, QuotaExceeded, UnknownId
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.store.base import ImportResult, Quota, SessionStore

LONG_RECORDING = 250
"""Entries of a recording that a store imports in several batches."""


class StoreOpening:
    """Opens the store under test; subclasses override ``open``."""

    is_durable = True
    """Whether opening the same place again finds what was stored."""

    def open(self, folder: Path) -> SessionStore:
        """Return the store at ``folder``."""
        raise NotImplementedError

    def reopen(self, store: SessionStore, folder: Path) -> SessionStore:
        """Return the store as a new process would find it."""
        if not self.is_durable:
            return store
        store.close()
        return self.open(folder)

    def open_limited(self, folder: Path, quota: Quota) -> SessionStore | None:
        """Return the store at ``folder`` with a quota, or None if this kind of store has no quotas."""
        return None


class CopyRules(StoreOpening):
    """Tests of ``copy_branch``."""

    def test_copy_branch_copies_from_the_first_replaced_entry_on(self, tmp_path: Path) -> None:
        """The copy starts at the first replaced entry, the old branch stays, and the session continues on the copy."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            old = store.read_path(SAMPLE_KEY)
            short_message = Message("tool", (ToolResult("call4", content=(Text("short"),)),))
            leaf = store.copy_branch(SAMPLE_KEY, {"m5": short_message})
            new = store.read_path(SAMPLE_KEY)
            assert leaf == store.get_session(SAMPLE_KEY).leaf_id == new[-1].id
            assert store.read_path(SAMPLE_KEY, old[-1].id) == old
            first = list_ids(old).index("m5")
            assert new[:first] == old[:first]
            assert not set(list_ids(new[first:])) & set(list_ids(old))
            old_messages, new_messages = (
                ConversationState.from_entries(old).history.messages,
                ConversationState.from_entries(new).history.messages,
            )
            assert new_messages[5] == short_message
            assert new_messages.slice(0, 5) + new_messages.slice(6) == old_messages.slice(0, 5) + old_messages.slice(6)
            assert store.get_session(SAMPLE_KEY).entry_count == len(old) + len(new) - first
            assert is_same_request(store.open_state(SAMPLE_KEY), ConversationState.from_entries(new))
            assert store.append_entries(SAMPLE_KEY, make_message_chain("z", leaf)).is_leaf_moved

    def test_copy_branch_updates_references_to_copied_entries(self, tmp_path: Path) -> None:
        """Revocations, labels, notes and branch summaries refer to the new ids; ids of entries before the copy stay
        unchanged.
        """
        entries = [
            *make_message_chain("ab"),
            Entry("d", "b", DecisionEntry((Edit(Span(0, 1, 0), (Text("cut"),), "prune"),))),
            Entry("e", "d", DecisionEntry((Edit(Span(0, 1, 0), (Text("cut again"),), "prune"),))),
            Entry("r", "e", RevokeEntry("e")),
            Entry("n", "r", NoteEntry("about", data={"of": ["b", {"deep": "d"}], "b": "a", "n": 3})),
            Entry("s", "n", BranchSummaryEntry(build_sized_message(Message.from_text("user", "told")), "b")),
        ]
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, entries)
            store.label_entry(SAMPLE_KEY, "b", "here")
            store.label_entry(SAMPLE_KEY, "a", "before")
            store.copy_branch(SAMPLE_KEY, {"b": Message.from_text("assistant", "other")})
            a, b, d, e, r, n, s = store.read_path(SAMPLE_KEY)
            assert a.id == "a"
            assert r.body == RevokeEntry(e.id)
            assert n.body == NoteEntry("about", data={"of": [b.id, {"deep": d.id}], "b": "a", "n": 3})
            assert isinstance(s.body, BranchSummaryEntry)
            assert s.body.source_id == b.id
            assert store.read_labels(SAMPLE_KEY) == {"a": "before", "b": "here", b.id: "here"}
            assert [entry_id for entry_id, _ in store.open_state(SAMPLE_KEY).view.active_decisions] == [d.id]
            assert set(list_ids(store.read_tips(SAMPLE_KEY))) == {"s", s.id}

    def test_copy_branch_drops_edits_of_a_replaced_message(self, tmp_path: Path) -> None:
        """An edit of a replaced message is dropped, the other edits of its decision stay, and an empty decision is
        dropped too.
        """
        edits = [Edit(Span(slot, slot + 1, 0), (Text(f"cut {slot}"),), "prune") for slot in range(3)]
        entries = [
            *make_message_chain("abc"),
            Entry("d", "c", DecisionEntry((edits[0], edits[1]))),
            Entry("e", "d", DecisionEntry((edits[1],))),
            Entry("r", "e", RevokeEntry("e")),
            Entry("k", "r", CompactionEntry(1, Message.from_text("user", "summary"), 3, (edits[1], edits[2]))),
        ]
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, entries)
            store.copy_branch(SAMPLE_KEY, {"b": Message.from_text("assistant", "other")})
            *_, d, k = store.read_path(SAMPLE_KEY)
            assert d.body == DecisionEntry((edits[0],))
            assert k.body == CompactionEntry(1, Message.from_text("user", "summary"), 3, (edits[2],))
            assert len(store.read_path(SAMPLE_KEY)) == 5

    def test_copy_branch_copies_answers_without_their_usage(self, tmp_path: Path) -> None:
        """Copied answers have no usage, so nothing is counted twice, and copied thinking belongs to no earlier
        request.
        """
        thought = Message("assistant", (Thinking("hm", ProviderSignature("a", "m", "s")), Text("yes")))
        entries = [
            *make_message_chain("a"),
            Entry("f", "a", RequestSetup("frame", 10)),
            Entry("q", "f", RequestEntry("basis", 1, "m")),
            Entry("w", "q", AnswerEntry("basis", Usage(900, 20), "end_turn")),
            Entry("b", "w", MessageEntry(build_sized_message(thought))),
        ]
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, entries)
            store.copy_branch(SAMPLE_KEY, {"a": Message.from_text("user", "less")})
            answers = [entry.body for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)]
            assert answers == [AnswerEntry("basis", Usage(), "end_turn")]
            branch = store.open_state(SAMPLE_KEY)
            assert branch.setup == RequestSetup("frame", 10)
            assert branch.setup_changed_at == len(branch.history.sized_messages) == 2
            assert branch.last_request.seen_count == 1

    def test_copy_branch_without_a_message_to_replace_changes_nothing(self, tmp_path: Path) -> None:
        """Ids that are no message of the branch leave the session as it was."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_long_session())
            store.append_entries(SAMPLE_KEY, make_message_chain("x", "m5"), expected_leaf="m5")
            before = (store.list_sessions(), store.read_entries(SAMPLE_KEY))
            for id_ in ("c1", "nowhere", "x"):
                assert store.copy_branch(SAMPLE_KEY, {id_: Message.from_text("user", "other")}) is None
            assert store.copy_branch(SAMPLE_KEY, {}) is None
            assert (store.list_sessions(), store.read_entries(SAMPLE_KEY)) == before
            store.create_session("empty")
            assert store.copy_branch("empty", {"a": Message.from_text("user", "other")}) is None
            assert (
                store.copy_branch(SAMPLE_KEY, {"x": Message.from_text("user", "other")}, "x")
                == store.get_session(SAMPLE_KEY).leaf_id
            )


class ImportRules(StoreOpening):
    """Tests of imports that are larger than one batch."""

    def test_import_entries_imports_a_recording_longer_than_one_batch(self, tmp_path: Path) -> None:
        """Each entry of a long recording is stored once, the leaf is the last one, and the state is that of the
        entries.
        """
        entries = make_message_chain([f"e{number}" for number in range(LONG_RECORDING)])
        with self.open(tmp_path) as store:
            assert store.import_entries(SAMPLE_KEY, entries).added_count == LONG_RECORDING
            assert (
                store.import_entries(SAMPLE_KEY, [*entries, *make_message_chain("z", entries[-1].id)]).added_count == 1
            )
            assert list_ids(store.read_entries(SAMPLE_KEY)) == [*list_ids(entries), "z"]
            assert store.get_session(SAMPLE_KEY).leaf_id == "z"
            assert is_same_request(
                store.open_state(SAMPLE_KEY), ConversationState.from_entries(store.read_entries(SAMPLE_KEY))
            )
            assert store.open_size_state(SAMPLE_KEY).view.shown_tokens == store.open_state(SAMPLE_KEY).view.shown_tokens

    def test_import_entries_checks_repeated_ids_across_batches(self, tmp_path: Path) -> None:
        """An equal entry that repeats much later is one entry; another one under the same id undoes the whole
        import.
        """
        entries = make_message_chain([f"e{number}" for number in range(LONG_RECORDING)])
        with self.open(tmp_path) as store:
            assert store.import_entries(SAMPLE_KEY, [*entries, entries[0]]) == ImportResult(
                LONG_RECORDING, 1, entries[0].id
            )
            conflicting_entry = replace(entries[0], body=NoteEntry("another"))
            with pytest.raises(LogConflict, match="'e0' is in session 'other' with other content"):
                store.import_entries("other", [*entries, conflicting_entry])
            assert [info.key for info in store.list_sessions()] == [SAMPLE_KEY]

    def test_open_size_state_does_not_count_media_that_a_compaction_removed(self, tmp_path: Path) -> None:
        """An image that the edits of a compaction removed does not count as shown media."""
        picture = Media("image", "image/png", 3, source="QUJD")
        shows = MessageEntry(build_sized_message(Message("user", (Text("look"), picture, Text("what is it?")))))
        edit = Edit(Span(LONG_RECORDING, LONG_RECORDING + 1, 1), (Text("an image"),), saves=1)
        entries = make_message_chain([f"e{number}" for number in range(LONG_RECORDING)])
        entries.append(Entry("shows", entries[-1].id, shows))
        entries.append(
            Entry(
                "compaction",
                "shows",
                CompactionEntry(LONG_RECORDING, Message.from_text("user", "all that"), 3, (edit,)),
            )
        )
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, [*entries, *make_message_chain("z", "compaction")])
            assert (
                store.open_size_state(SAMPLE_KEY).view.media_count == store.open_state(SAMPLE_KEY).view.media_count == 0
            )

    def test_read_lazy_entries_equals_read_entries(self, tmp_path: Path) -> None:
        """Lazy entries are the same as the list, in order and by index, and an unknown session is an error."""
        entries = [
            replace(entry, time_ms=at)
            for at, entry in enumerate(make_message_chain([f"e{number}" for number in range(LONG_RECORDING)]))
        ]
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, entries)
            lazily = store.read_lazy_entries(SAMPLE_KEY)
            assert list(lazily) == store.read_entries(SAMPLE_KEY)
            assert (len(lazily), lazily[LONG_RECORDING - 1]) == (LONG_RECORDING, store.read_entries(SAMPLE_KEY)[-1])
            with pytest.raises(UnknownId):
                store.read_lazy_entries("nobody")


class SearchRules(StoreOpening):
    """Tests of ``search_session``."""

    def test_search_session_finds_text_thinking_calls_and_results(self, tmp_path: Path) -> None:
        """nothing-lost: text, thinking, calls and results of every branch are found, the newest first, with their
        role.
        """
        call = ToolCall("c", "grep_files", '{"pattern":"Na\\u00efve"}')
        thought = Message("assistant", (Thinking("a parseHTTPHeader idea"), call))
        result = Message("tool", (ToolResult("c", content=(Text("src/x.py: def parse_http_header():\n  pass"),)),))
        entries = [
            Entry("u", None, make_message_entry_body("Please mend parse_http_header, \u89e3\u6790\u5668\u574f\u4e86")),
            Entry("t", "u", MessageEntry(build_sized_message(thought)), time_ms=7),
            Entry("r", "t", MessageEntry(build_sized_message(result))),
            *make_message_chain(["other"], "u"),
        ]
        first = self.open(tmp_path)
        first.import_entries(SAMPLE_KEY, entries)
        with self.reopen(first, tmp_path) as store:
            for query, entry_ids in (
                ("PARSE_http_header", "ru"),
                ("parsehttpheader", "t"),
                ("grep_files", "t"),
                ("na\u00efve", "t"),
                ("\u6790\u5668\u574f", "u"),
                ("\u574f", "u"),
                ("header mend", "u"),
                ('"def parse"', "r"),
                ('"header def"', ""),
                ("py", "r"),
                ("text of other", ["other"]),
            ):
                assert [hit.entry_id for hit in store.search_session(SAMPLE_KEY, query)] == list(entry_ids), query
            hit = store.search_session(SAMPLE_KEY, "http_header")[0]
            assert (hit.role, hit.time_ms, hit.blob_hash) == ("tool", None, "")
            assert hit.snippet == "src/x.py: def parse_\u00abhttp_header\u00bb(): pass"
            assert hit.seq == store.get_entry(SAMPLE_KEY, "r").seq
            assert [any_hit.entry_id for any_hit in store.search_session(SAMPLE_KEY, "header", 1)] == ["r"]

    def test_search_session_takes_query_syntax_as_plain_words(self, tmp_path: Path) -> None:
        """No character of a query is an operator or an error, and a query without words finds nothing."""
        odd = [
            'a"b',
            "x AND",
            "NEAR(",
            "col:",
            "*",
            "^q",
            "-w",
            "(",
            '""',
            "\x00z",
            "\ud83d half",
            "'; DROP",
            "%_\\",
            ODD_TEXT,
        ]
        with self.open(tmp_path) as store:
            store.import_entries(
                SAMPLE_KEY, [Entry(f"e{n}", None, make_message_entry_body(f"<{text}>")) for n, text in enumerate(odd)]
            )
            for n, text in enumerate(odd):
                if '"' not in text:
                    assert f"e{n}" in [hit.entry_id for hit in store.search_session(SAMPLE_KEY, text)], text
            for query in ("", " \n ", '"', '"a', '" "', "x" * 10_000, "\ud83d" * 5, *odd):
                store.search_session(SAMPLE_KEY, query)
            assert (
                store.search_session(SAMPLE_KEY, "")
                == store.search_session(SAMPLE_KEY, '" "')
                == store.search_session(SAMPLE_KEY, "<", 0)
                == []
            )
            assert (
                store.search_session(SAMPLE_KEY, "<", -1)
                == store.search_session(SAMPLE_KEY, "nowhere to be found")
                == []
            )
            with pytest.raises(UnknownId, match="gone"):
                store.search_session("gone", "x")

    def test_search_session_finds_entries_appended_since_the_last_search(self, tmp_path: Path) -> None:
        """A second search finds new entries of this session only, and none of a removed session."""
        with self.open(tmp_path) as store:
            store.import_entries(SAMPLE_KEY, make_message_chain(["one", "two"]))
            store.import_entries("other", make_message_chain(["one"]))
            assert [hit.entry_id for hit in store.search_session(SAMPLE_KEY, "text of")] == ["two", "one"]
            store.append_entries(SAMPLE_KEY, make_message_chain(["three"], "two"))
            assert [hit.entry_id for hit in store.search_session(SAMPLE_KEY, "text of")] == ["three", "two", "one"]
            assert [hit.entry_id for hit in store.search_session("other", "text of")] == ["one"]
            store.remove_session(SAMPLE_KEY)
            with pytest.raises(UnknownId):
                store.search_session(SAMPLE_KEY, "text of")
            store.import_entries(SAMPLE_KEY, [Entry("new", None, make_message_entry_body("nothing alike"))])
            assert store.search_session(SAMPLE_KEY, "text of") == []
            assert [hit.entry_id for hit in store.search_session("other", "text of")] == ["one"]

    def test_search_session_finds_copied_entries_once(self, tmp_path: Path) -> None:
        """A copied message is found only in its newest copy; the message that the copy replaced is found too."""
        with self.open(tmp_path) as store:
            store.import_entries(
                SAMPLE_KEY, [replace(entry, time_ms=n) for n, entry in enumerate(make_message_chain("abc"))]
            )
            store.copy_branch(SAMPLE_KEY, {"b": Message.from_text("assistant", "text of another")})
            hit_ids = [hit.entry_id for hit in store.search_session(SAMPLE_KEY, "text of")]
            assert hit_ids == [*reversed(list_ids(store.read_path(SAMPLE_KEY))[1:]), "b", "a"]

    def test_search_session_finds_summaries_written_by_a_model(self, tmp_path: Path) -> None:
        """A summary of a model is searched; an extract is not, because it repeats text of messages."""
        with self.open(tmp_path) as store:
            written_summary = CompactionEntry(1, Message.from_text("user", "Kelp was counted."), 4, author="model")
            extract = CompactionEntry(1, Message.from_text("user", "Kelp was drawn."), 4)
            store.import_entries(
                SAMPLE_KEY,
                [
                    *make_message_chain("a"),
                    Entry("w", "a", written_summary),
                    Entry("x", "w", extract),
                    *make_message_chain("b", "x"),
                ],
            )
            (hit,) = store.search_session(SAMPLE_KEY, "kelp")
            assert (hit.entry_id, hit.role, hit.snippet) == ("w", "user", "\u00abKelp\u00bb was counted.")
            store.copy_branch(SAMPLE_KEY, {"a": Message.from_text("user", "text of another")})
            assert len(store.search_session(SAMPLE_KEY, "kelp")) == 1

    def test_search_session_finds_text_that_was_moved_to_a_blob(self, tmp_path: Path) -> None:
        """A text that was too long for its message is searched, with its blob named in the hit; a missing blob is no
        error.
        """
        with self.open(tmp_path) as store:
            blob = store.blobs.store_content("x" * 3_000_000 + " the Needle in it " + "y" * 100)
            note = NoteEntry("capped", data={"blobs": [blob, "0" * 64, 7]})
            store.import_entries(
                SAMPLE_KEY,
                [
                    *make_message_chain("a"),
                    Entry("n", "a", note),
                    *make_message_chain("b", "n"),
                    Entry("m", "b", NoteEntry("needle")),
                ],
            )
            hit = store.search_session(SAMPLE_KEY, "needle the")[0]
            assert (hit.entry_id, hit.blob_hash, hit.role) == ("n", blob, "")
            assert "the \u00abNeedle\u00bb in it" in hit.snippet
            assert [any_hit.entry_id for any_hit in store.search_session(SAMPLE_KEY, "needle")] == ["n"]
            store.blobs.remove_blob(blob)
            assert store.search_session(SAMPLE_KEY, "needle the") == []


class QuotaRules(StoreOpening):
    """Tests of quotas: a write over the quota is refused before anything is written."""

    def test_store_refuses_writes_over_the_session_quota(self, tmp_path: Path) -> None:
        """A write over the quota changes nothing and reports the numbers; smaller writes and other sessions still
        succeed.
        """
        store = self.open_limited(tmp_path, Quota(session_bytes=4_000))
        if store is None:
            pytest.skip("this store has no quota")
        with store:
            store.import_entries(SAMPLE_KEY, make_message_chain("ab"))
            before = (store.list_sessions(), store.read_entries(SAMPLE_KEY))
            big = [*make_message_chain("c", "b"), Entry("d", "c", make_message_entry_body("x" * 4_000))]
            for write in (lambda: store.append_entries(SAMPLE_KEY, big), lambda: store.import_entries(SAMPLE_KEY, big)):
                with pytest.raises(QuotaExceeded, match="4,000; nothing was written"):
                    write()
            with pytest.raises(QuotaExceeded):
                store.import_entries("other", [Entry("d", None, make_message_entry_body("x" * 4_000))])
            with pytest.raises(QuotaExceeded):
                store.copy_branch(SAMPLE_KEY, {"b": Message.from_text("assistant", "x" * 4_000)})
            assert (store.list_sessions(), store.read_entries(SAMPLE_KEY)) == before
            assert store.append_entries(SAMPLE_KEY, make_message_chain("c", "b")).is_leaf_moved
            with pytest.raises(QuotaExceeded):
                _append_endlessly(store)
            store.remove_session(SAMPLE_KEY)
            assert store.import_entries(SAMPLE_KEY, make_message_chain("ab")).added_count == 2

    def test_store_content_refuses_blobs_over_the_quota(self, tmp_path: Path) -> None:
        """A blob over the quota is not stored; a known blob may be stored again, and removing a blob frees its room."""
        store = self.open_limited(tmp_path, Quota(blob_bytes=100))
        if store is None:
            pytest.skip("this store has no quota")
        with store:
            first = store.blobs.store_content("x" * 60)
            with pytest.raises(QuotaExceeded, match="110 bytes, 50 of them new, and the quota is 100"):
                store.blobs.store_content("y" * 50)
            assert store.blobs.store_content("x" * 60) == first
            assert len(list(store.blobs.iter_hashes())) == 1
            store.blobs.store_content("z" * 40)
            store.blobs.remove_blob(first)
            assert store.blobs.store_content("y" * 50)


def _append_endlessly(store: SessionStore) -> None:
    """Append small entries until the store refuses one."""
    for n in range(10_000):
        store.append_entries(SAMPLE_KEY, [Entry(f"e{n}", "c", NoteEntry("x" * 100))])
