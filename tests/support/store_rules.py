"""Rules of a session store that are not about one log read back: copied branches, search and quotas.

``SessionStoreRules`` has them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from samples import KEY, ODD, chain, ids, long_session, same_request, words

from holdfast.errors import LogConflict, QuotaExceeded, UnknownId
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.state.branch.branch import Branch
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    Answer,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Frame,
    Note,
    Request,
    Revoke,
    Said,
    Usage,
)
from holdfast.store.base import Imported, Quota, SessionStore

LONG = 250
"""Entries of a recording that is not written at once."""


class Opening:
    """How the store under test is opened."""

    durable = True
    """Whether opening the same place again finds what was stored."""

    def open(self, place: Path) -> SessionStore:
        """Return the store at ``place``."""
        raise NotImplementedError

    def again(self, store: SessionStore, place: Path) -> SessionStore:
        """Return the store as a new process would find it."""
        if not self.durable:
            return store
        store.close()
        return self.open(place)

    def limited(self, place: Path, quota: Quota) -> SessionStore | None:
        """Return the store at ``place`` with a quota, or nothing if this store has none."""
        return None


class CopyRules(Opening):
    """A branch said again with other messages."""

    def test_a_branch_is_said_again_with_another_message(self, tmp_path: Path) -> None:
        """``branch_with`` copies from the first replaced entry on; the old branch stays, the session goes on anew."""
        with self.open(tmp_path) as store:
            store.put(KEY, long_session())
            old = store.path(KEY)
            cut = Message("tool", (ToolResult("call4", content=(Text("short"),)),))
            leaf = store.branch_with(KEY, {"m5": cut})
            new = store.path(KEY)
            assert leaf == store.session(KEY).leaf == new[-1].id
            assert store.path(KEY, old[-1].id) == old
            first = ids(old).index("m5")
            assert new[:first] == old[:first]
            assert not set(ids(new[first:])) & set(ids(old))
            said, told = Branch.build(old).messages, Branch.build(new).messages
            assert told[5] == cut
            assert told.slice(0, 5) + told.slice(6) == said.slice(0, 5) + said.slice(6)
            assert store.session(KEY).entries == len(old) + len(new) - first
            assert same_request(store.branch(KEY), Branch.build(new))
            assert store.append(KEY, chain("z", leaf)).moved

    def test_what_names_entries_names_the_copies(self, tmp_path: Path) -> None:
        """Revocations, labels, notes and summaries of branches follow to the new ids; older ids stay what they are."""
        entries = [
            *chain("ab"),
            Entry("d", "b", Decision((Edit(Span(0, 1, 0), (Text("cut"),), "prune"),))),
            Entry("e", "d", Decision((Edit(Span(0, 1, 0), (Text("cut again"),), "prune"),))),
            Entry("r", "e", Revoke("e")),
            Entry("n", "r", Note("about", data={"of": ["b", {"deep": "d"}], "b": "a", "n": 3})),
            Entry("s", "n", BranchSummary(measure(Message.of("user", "told")), "b")),
        ]
        with self.open(tmp_path) as store:
            store.put(KEY, entries)
            store.label(KEY, "b", "here")
            store.label(KEY, "a", "before")
            store.branch_with(KEY, {"b": Message.of("assistant", "other")})
            a, b, d, e, r, n, s = store.path(KEY)
            assert a.id == "a"
            assert r.body == Revoke(e.id)
            assert n.body == Note("about", data={"of": [b.id, {"deep": d.id}], "b": "a", "n": 3})
            assert isinstance(s.body, BranchSummary)
            assert s.body.source == b.id
            assert store.labels(KEY) == {"a": "before", "b": "here", b.id: "here"}
            assert [law for law, _ in store.branch(KEY).law] == [d.id]
            assert set(ids(store.leaves(KEY))) == {"s", s.id}

    def test_edits_on_a_replaced_message_are_left_out(self, tmp_path: Path) -> None:
        """An edit that no longer fits goes, the others of its decision stay, and a decision left empty goes whole."""
        edits = [Edit(Span(slot, slot + 1, 0), (Text(f"cut {slot}"),), "prune") for slot in range(3)]
        entries = [
            *chain("abc"),
            Entry("d", "c", Decision((edits[0], edits[1]))),
            Entry("e", "d", Decision((edits[1],))),
            Entry("r", "e", Revoke("e")),
            Entry("k", "r", Compaction(1, Message.of("user", "summary"), 3, (edits[1], edits[2]))),
        ]
        with self.open(tmp_path) as store:
            store.put(KEY, entries)
            store.branch_with(KEY, {"b": Message.of("assistant", "other")})
            *_, d, k = store.path(KEY)
            assert d.body == Decision((edits[0],))
            assert k.body == Compaction(1, Message.of("user", "summary"), 3, (edits[2],))
            assert len(store.path(KEY)) == 5

    def test_a_copied_branch_counts_no_usage_twice(self, tmp_path: Path) -> None:
        """Answers are copied without what they cost, and thinking of the old branch is bound to nothing on the new."""
        thought = Message("assistant", (Thinking("hm", Seal("a", "m", "s")), Text("yes")))
        entries = [
            *chain("a"),
            Entry("f", "a", Frame("frame", 10)),
            Entry("q", "f", Request("basis", 1, "m")),
            Entry("w", "q", Answer("basis", Usage(900, 20), "end_turn")),
            Entry("b", "w", Said(measure(thought))),
        ]
        with self.open(tmp_path) as store:
            store.put(KEY, entries)
            store.branch_with(KEY, {"a": Message.of("user", "less")})
            answers = [entry.body for entry in store.path(KEY) if isinstance(entry.body, Answer)]
            assert answers == [Answer("basis", Usage(), "end_turn")]
            branch = store.branch(KEY)
            assert branch.frame == Frame("frame", 10)
            assert branch.framed == len(branch.slots) == 2
            assert branch.seen == 1

    def test_nothing_to_replace_changes_nothing(self, tmp_path: Path) -> None:
        """Ids that are no message of the branch leave the session as it was."""
        with self.open(tmp_path) as store:
            store.put(KEY, long_session())
            store.append(KEY, chain("x", "m5"), expected_leaf="m5")
            before = (store.sessions(), store.entries(KEY))
            for id_ in ("c1", "nowhere", "x"):
                assert store.branch_with(KEY, {id_: Message.of("user", "other")}) is None
            assert store.branch_with(KEY, {}) is None
            assert (store.sessions(), store.entries(KEY)) == before
            store.create("empty")
            assert store.branch_with("empty", {"a": Message.of("user", "other")}) is None
            assert store.branch_with(KEY, {"x": Message.of("user", "other")}, "x") == store.session(KEY).leaf


class ImportRules(Opening):
    """A recording that is larger than what is written at once."""

    def test_a_long_recording_is_imported_whole(self, tmp_path: Path) -> None:
        """However many entries: each is there once, the leaf is the last, and the branch is that of the entries."""
        entries = chain([f"e{number}" for number in range(LONG)])
        with self.open(tmp_path) as store:
            assert store.put(KEY, entries).added == LONG
            assert store.put(KEY, [*entries, *chain("z", entries[-1].id)]).added == 1
            assert ids(store.entries(KEY)) == [*ids(entries), "z"]
            assert store.session(KEY).leaf == "z"
            assert same_request(store.branch(KEY), Branch.build(store.entries(KEY)))
            assert store.bare(KEY).held == store.branch(KEY).held

    def test_an_id_that_comes_again_much_later_is_one_entry(self, tmp_path: Path) -> None:
        """The same entry twice in a recording is one; another one of the same id undoes the whole import."""
        entries = chain([f"e{number}" for number in range(LONG)])
        with self.open(tmp_path) as store:
            assert store.put(KEY, [*entries, entries[0]]) == Imported(LONG, 1, entries[0].id)
            other = replace(entries[0], body=Note("another"))
            with pytest.raises(LogConflict, match="'e0' is in session 'other' with other content"):
                store.put("other", [*entries, other])
            assert [info.key for info in store.sessions()] == [KEY]

    def test_what_a_compaction_edits_is_counted(self, tmp_path: Path) -> None:
        """An image that gave way together with a head is not among those that the session shows."""
        picture = Media("image", "image/png", 3, source="QUJD")
        shows = Said(measure(Message("user", (Text("look"), picture, Text("what is it?")))))
        edit = Edit(Span(LONG, LONG + 1, 1), (Text("an image"),), saves=1)
        entries = chain([f"e{number}" for number in range(LONG)])
        entries.append(Entry("shows", entries[-1].id, shows))
        entries.append(Entry("compaction", "shows", Compaction(LONG, Message.of("user", "all that"), 3, (edit,))))
        with self.open(tmp_path) as store:
            store.put(KEY, [*entries, *chain("z", "compaction")])
            assert store.bare(KEY).media == store.branch(KEY).media == 0

    def test_entries_can_be_read_one_by_one(self, tmp_path: Path) -> None:
        """``lazy_entries`` are ``entries``, in order and by their place, and of an unknown session there are none."""
        entries = [replace(one, at=at) for at, one in enumerate(chain([f"e{number}" for number in range(LONG)]))]
        with self.open(tmp_path) as store:
            store.put(KEY, entries)
            lazily = store.lazy_entries(KEY)
            assert list(lazily) == store.entries(KEY)
            assert (len(lazily), lazily[LONG - 1]) == (LONG, store.entries(KEY)[-1])
            with pytest.raises(UnknownId):
                store.lazy_entries("nobody")


class SearchRules(Opening):
    """Words found again."""

    def test_words_are_found_in_whatever_was_said(self, tmp_path: Path) -> None:
        """S1: text, thinking, calls and results are found on every branch, the newest first, with who said them."""
        call = ToolCall("c", "grep_files", '{"pattern":"Na\\u00efve"}')
        thought = Message("assistant", (Thinking("a parseHTTPHeader idea"), call))
        result = Message("tool", (ToolResult("c", content=(Text("src/x.py: def parse_http_header():\n  pass"),)),))
        entries = [
            Entry("u", None, words("Please mend parse_http_header, \u89e3\u6790\u5668\u574f\u4e86")),
            Entry("t", "u", Said(measure(thought)), at=7),
            Entry("r", "t", Said(measure(result))),
            *chain(["other"], "u"),
        ]
        first = self.open(tmp_path)
        first.put(KEY, entries)
        with self.again(first, tmp_path) as store:
            for query, expected in (
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
                assert [found.entry for found in store.search(KEY, query)] == list(expected), query
            found = store.search(KEY, "http_header")[0]
            assert (found.role, found.at, found.blob) == ("tool", None, "")
            assert found.snippet == "src/x.py: def parse_\u00abhttp_header\u00bb(): pass"
            assert found.seq == store.entry(KEY, "r").seq
            assert [one.entry for one in store.search(KEY, "header", 1)] == ["r"]

    def test_a_query_is_words_and_no_language(self, tmp_path: Path) -> None:
        """Whatever stands in a query is looked for as it is; nothing in it is an error, and nothing matches nothing."""
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
            ODD,
        ]
        with self.open(tmp_path) as store:
            store.put(KEY, [Entry(f"e{n}", None, words(f"<{text}>")) for n, text in enumerate(odd)])
            for n, text in enumerate(odd):
                if '"' not in text:
                    assert f"e{n}" in [found.entry for found in store.search(KEY, text)], text
            for query in ("", " \n ", '"', '"a', '" "', "x" * 10_000, "\ud83d" * 5, *odd):
                store.search(KEY, query)
            assert store.search(KEY, "") == store.search(KEY, '" "') == store.search(KEY, "<", 0) == []
            assert store.search(KEY, "<", -1) == store.search(KEY, "nowhere to be found") == []
            with pytest.raises(UnknownId, match="gone"):
                store.search("gone", "x")

    def test_a_search_finds_what_was_said_since(self, tmp_path: Path) -> None:
        """Searching again finds new words, in this session alone, and nothing of a session that was removed."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain(["one", "two"]))
            store.put("other", chain(["one"]))
            assert [found.entry for found in store.search(KEY, "text of")] == ["two", "one"]
            store.append(KEY, chain(["three"], "two"))
            assert [found.entry for found in store.search(KEY, "text of")] == ["three", "two", "one"]
            assert [found.entry for found in store.search("other", "text of")] == ["one"]
            store.remove(KEY)
            with pytest.raises(UnknownId):
                store.search(KEY, "text of")
            store.put(KEY, [Entry("new", None, words("nothing alike"))])
            assert store.search(KEY, "text of") == []
            assert [found.entry for found in store.search("other", "text of")] == ["one"]

    def test_a_copied_branch_is_found_once(self, tmp_path: Path) -> None:
        """What ``branch_with`` says again is found where it was said last; what it replaced is found too."""
        with self.open(tmp_path) as store:
            store.put(KEY, [replace(entry, at=n) for n, entry in enumerate(chain("abc"))])
            store.branch_with(KEY, {"b": Message.of("assistant", "text of another")})
            found = [one.entry for one in store.search(KEY, "text of")]
            assert found == [*reversed(ids(store.path(KEY))[1:]), "b", "a"]

    def test_a_summary_that_somebody_wrote_is_found(self, tmp_path: Path) -> None:
        """What a model wrote for a summary stands nowhere else; an extract says what messages say already."""
        with self.open(tmp_path) as store:
            wrote = Compaction(1, Message.of("user", "Kelp was counted."), 4, by="model")
            drawn = Compaction(1, Message.of("user", "Kelp was drawn."), 4)
            store.put(KEY, [*chain("a"), Entry("w", "a", wrote), Entry("x", "w", drawn), *chain("b", "x")])
            (found,) = store.search(KEY, "kelp")
            assert (found.entry, found.role, found.snippet) == ("w", "user", "\u00abKelp\u00bb was counted.")
            store.branch_with(KEY, {"a": Message.of("user", "text of another")})
            assert len(store.search(KEY, "kelp")) == 1

    def test_what_was_capped_is_found(self, tmp_path: Path) -> None:
        """A text that was too long for its message is searched, and its blob named; one that is gone is no error."""
        with self.open(tmp_path) as store:
            blob = store.blobs.put("x" * 3_000_000 + " the Needle in it " + "y" * 100)
            note = Note("capped", data={"blobs": [blob, "0" * 64, 7]})
            store.put(KEY, [*chain("a"), Entry("n", "a", note), *chain("b", "n"), Entry("m", "b", Note("needle"))])
            found = store.search(KEY, "needle the")[0]
            assert (found.entry, found.blob, found.role) == ("n", blob, "")
            assert "the \u00abNeedle\u00bb in it" in found.snippet
            assert [one.entry for one in store.search(KEY, "needle")] == ["n"]
            store.blobs.remove(blob)
            assert store.search(KEY, "needle the") == []


class QuotaRules(Opening):
    """Writes refused before they begin."""

    def test_a_session_over_its_quota_is_refused(self, tmp_path: Path) -> None:
        """A write that would not fit changes nothing and tells the numbers; what fits goes on, other sessions too."""
        store = self.limited(tmp_path, Quota(session_bytes=4_000))
        if store is None:
            pytest.skip("this store has no quota")
        with store:
            store.put(KEY, chain("ab"))
            before = (store.sessions(), store.entries(KEY))
            big = [*chain("c", "b"), Entry("d", "c", words("x" * 4_000))]
            for verb in (lambda: store.append(KEY, big), lambda: store.put(KEY, big)):
                with pytest.raises(QuotaExceeded, match="4,000; nothing was written"):
                    verb()
            with pytest.raises(QuotaExceeded):
                store.put("other", [Entry("d", None, words("x" * 4_000))])
            with pytest.raises(QuotaExceeded):
                store.branch_with(KEY, {"b": Message.of("assistant", "x" * 4_000)})
            assert (store.sessions(), store.entries(KEY)) == before
            assert store.append(KEY, chain("c", "b")).moved
            with pytest.raises(QuotaExceeded):
                _fill(store)
            store.remove(KEY)
            assert store.put(KEY, chain("ab")).added == 2

    def test_blobs_over_their_quota_are_refused(self, tmp_path: Path) -> None:
        """A blob that would not fit is not stored; one that is there may be stored again; room that is made is used."""
        store = self.limited(tmp_path, Quota(blob_bytes=100))
        if store is None:
            pytest.skip("this store has no quota")
        with store:
            first = store.blobs.put("x" * 60)
            with pytest.raises(QuotaExceeded, match="110 bytes, 50 of them new, and the quota is 100"):
                store.blobs.put("y" * 50)
            assert store.blobs.put("x" * 60) == first
            assert len(list(store.blobs.hashes())) == 1
            store.blobs.put("z" * 40)
            store.blobs.remove(first)
            assert store.blobs.put("y" * 50)


def _fill(store: SessionStore) -> None:
    """Append small entries without end."""
    for n in range(10_000):
        store.append(KEY, [Entry(f"e{n}", "c", Note("x" * 100))])
