"""The rules of a store as tests: subclass ``SessionStoreRules`` or ``BlobStoreRules`` in your own test module.

::

    class TestMine(SessionStoreRules):
        def open(self, place: Path) -> SessionStore:
            return MyStore(place / "sessions")

``open`` is called with a directory of the test's own; called with the same one again it must find what was stored
there (a store that keeps nothing sets ``durable = False``). Needs pytest.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from samples import KEY, ODD, chain, every_kind, ids, long_session, same_request, unnumbered, words
from store_rules import CopyRules, ImportRules, QuotaRules, SearchRules

from holdfast.errors import LogConflict, StoreError, StoreLocked, UnknownId
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch
from holdfast.state.entries import Answer, Body, Compaction, Entry, Note, Revoke, Said, Usage
from holdfast.store.base import BlobStore, SessionInfo
from holdfast.store.tree.outline import bare
from holdfast.store.tree.tree import FEW


class SessionStoreRules(CopyRules, ImportRules, SearchRules, QuotaRules):
    """What every session store does."""

    # -- the log -------------------------------------------------------------------------------------------------------

    def test_path_is_what_was_appended(self, tmp_path: Path) -> None:
        """S1: everything whose append returned is read back, also by another process, in order."""
        entries = chain("abcd")
        first = self.open(tmp_path)
        first.create(KEY)
        for entry in entries:
            assert first.append(KEY, [entry]).moved
        with self.again(first, tmp_path) as store:
            assert unnumbered(store.path(KEY)) == entries
            assert store.session(KEY).leaf == "d"
            assert store.session(KEY).entries == 4

    def test_every_kind_comes_back_equal(self, tmp_path: Path) -> None:
        """S15: ``load(save(x)) == x`` for every kind of entry and every awkward value."""
        bodies = every_kind()
        entries = [Entry(f"e{n}", f"e{n - 1}" if n else None, body, at=n) for n, body in enumerate(bodies)]
        first = self.open(tmp_path)
        first.put(KEY, entries)
        with self.again(first, tmp_path) as store:
            found = unnumbered(store.entries(KEY))
        for entry, stored in zip(entries, found, strict=True):
            assert stored == entry
        raw, stored_raw = entries[0].body.slot.raw, found[0].body.slot.raw  # type: ignore[union-attr]
        assert bytes(stored_raw or b"") == bytes(raw or b"")

    def test_order_is_the_log_not_the_clock(self, tmp_path: Path) -> None:
        """S8: a clock that runs backwards changes no order."""
        entries = [replace(entry, at=1_000 - n) for n, entry in enumerate(chain("abc"))]
        with self.open(tmp_path) as store:
            store.put(KEY, entries)
            found = store.entries(KEY)
            assert ids(found) == ["a", "b", "c"]
            assert sorted({entry.seq for entry in found}) == [entry.seq for entry in found]

    def test_unknown_parent_is_refused_whole(self, tmp_path: Path) -> None:
        """S7: no entry without its parent, and one bad entry keeps the whole batch out."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("ab"))
            before = store.session(KEY)
            with pytest.raises(LogConflict, match="nowhere"):
                store.append(KEY, [*chain("cd", "b"), *chain("e", "nowhere")])
            assert ids(store.entries(KEY)) == ["a", "b"]
            assert store.session(KEY) == before
            assert store.append(KEY, chain("c", "b")).moved

    def test_child_before_parent_is_refused(self, tmp_path: Path) -> None:
        """S7: the parent comes first also within a batch, so no cycle can be written."""
        with self.open(tmp_path) as store, pytest.raises(LogConflict):
            store.put(KEY, [Entry("a", "b", words("x")), Entry("b", "a", words("y"))])

    def test_a_value_of_a_wrong_type_is_refused_whole(self, tmp_path: Path) -> None:
        """What could not be read again is not acknowledged: the error names the field, and nothing is written."""
        wrong: dict[str, Body] = {
            "arguments": Said(Slot(Message("assistant", (ToolCall("c", "bash", {"a": 1}),)))),  # type: ignore[arg-type]
            r"\.id`": Said(Slot(Message("assistant", (ToolCall(5, "bash", "{}"),)))),  # type: ignore[arg-type]
            "is_error": Said(Slot(Message("tool", (ToolResult("c", is_error="yes"),)))),  # type: ignore[arg-type]
            r"\.role`": Said(Slot(Message("boss", (Text("work"),)))),  # type: ignore[arg-type]
            "input": Answer("basis", Usage(input="many")),  # type: ignore[arg-type]
            "object": Note("remark", data={"of": object()}),
        }
        with self.open(tmp_path) as store:
            store.put(KEY, chain("a"))
            for field, body in wrong.items():
                for verb in (store.append, store.put):
                    with pytest.raises(LogConflict, match=field):
                        verb(KEY, [Entry("b", "a", words("fine")), Entry("c", "b", body)])
            assert ids(store.path(KEY)) == ["a"]
            assert store.damage(KEY) == []

    def test_an_id_is_given_once(self, tmp_path: Path) -> None:
        """S9: an id is unique in its session over all kinds, and free in another."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("ab"))
            with pytest.raises(LogConflict, match="'a'"):
                store.append(KEY, [Entry("a", "b", Note("other"))])
            with pytest.raises(LogConflict, match="'c'"):
                store.append(KEY, [*chain("c", "b"), *chain("c", "b")])
            assert store.put("session-2", chain("ab")).added == 2

    def test_names_that_no_index_holds_are_refused(self, tmp_path: Path) -> None:
        """X2: an id that is empty, endless, half a character, or a way to somewhere else is refused everywhere."""
        with self.open(tmp_path) as store:
            store.create(KEY)
            for bad in ("", "\ud83d", "x" * 10_000):
                with pytest.raises(LogConflict):
                    store.append(KEY, [Entry(bad, None, words("x"))])
                with pytest.raises(LogConflict):
                    store.create(bad)
            for bad in ("../../x", "a/..", "..", "CON", "nul.txt", "a\nb", "\x00"):
                for make in (store.create, lambda key: store.put(key, chain("a"))):
                    with pytest.raises(LogConflict, match="no session key"):
                        make(bad)
                for find in (store.session, store.path, store.remove, lambda id_: store.entry(KEY, id_)):
                    with pytest.raises(UnknownId):
                        find(bad)
            assert [info.key for info in store.sessions()] == [KEY]
            assert store.entries(KEY) == []

    # -- leaves and forks ----------------------------------------------------------------------------------------------

    def test_another_leaf_forks(self, tmp_path: Path) -> None:
        """S10: who appends behind an older leaf makes a fork; nothing is overwritten and the label stays."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("abc"))
            made = store.append(KEY, chain("xy", "b"), expected_leaf="b")
            assert (made.leaf, made.moved) == ("y", False)
            assert store.session(KEY).leaf == "c"
            assert ids(store.path(KEY)) == ["a", "b", "c"]
            assert ids(store.path(KEY, "y")) == ["a", "b", "x", "y"]
            assert ids(store.leaves(KEY)) == ["c", "y"]

    def test_the_leaf_moves_only_from_where_it_was_expected(self, tmp_path: Path) -> None:
        """A caller that names the leaf it knows may rewind from it, and moves nothing once the leaf is another."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("abc"))
            assert store.append(KEY, chain("x", "a"), expected_leaf="c").moved
            assert store.session(KEY).leaf == "x"
            assert not store.append(KEY, chain("y", "x"), expected_leaf="c").moved
            assert store.session(KEY).leaf == "x"

    def test_leaf_moves_where_it_is_put(self, tmp_path: Path) -> None:
        """The leaf is a label: it can be set to any entry, and appending goes on from there."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain(["one", "two", "three"]))
            assert store.set_leaf(KEY, "tw") == "two"
            assert ids(store.path(KEY)) == ["one", "two"]
            assert store.append(KEY, chain("x", "two")).moved
            with pytest.raises(UnknownId):
                store.set_leaf(KEY, "four")

    def test_labels_hang_beside_the_branch(self, tmp_path: Path) -> None:
        """A label names an entry, is no tip, moves no leaf, and an empty name takes it away."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("abc"))
            store.label(KEY, "b", "before the refactoring")
            store.label(KEY, "c", "end")
            assert store.labels(KEY) == {"b": "before the refactoring", "c": "end"}
            store.label(KEY, "b", "")
            assert store.labels(KEY) == {"c": "end"}
            assert store.session(KEY).leaf == "c"
            assert ids(store.leaves(KEY)) == ["c"]
            assert store.append(KEY, chain("d", "c")).moved

    # -- imports -------------------------------------------------------------------------------------------------------

    def test_importing_twice_changes_nothing(self, tmp_path: Path) -> None:
        """An import is idempotent and says so."""
        entries = [replace(entry, at=5) for entry in chain("abc")]
        info = SessionInfo(KEY, "title", "claude-code", "/home/me", "model", 1, 9)
        with self.open(tmp_path) as store:
            first = store.put(KEY, entries, info=info)
            assert (first.added, first.kept, first.leaf) == (3, 0, "c")
            before = (store.sessions(), store.entries(KEY))
            second = store.put(KEY, entries, info=info)
            assert (second.added, second.kept, second.is_unchanged) == (0, 3, True)
            assert (store.sessions(), store.entries(KEY)) == before
            assert store.session(KEY) == replace(info, entries=3, leaf="c")

    def test_a_grown_file_adds_what_is_new(self, tmp_path: Path) -> None:
        """Only new entries are added, and the leaf goes on with the file."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("abc"))
            grown = store.put(KEY, chain("abcde"), info=SessionInfo(KEY, "new title"))
            assert (grown.added, grown.kept, grown.leaf) == (2, 3, "e")
            assert store.session(KEY).title == "new title"
            assert ids(store.path(KEY)) == list("abcde")

    def test_an_import_leaves_no_branch(self, tmp_path: Path) -> None:
        """What was said here since the first import stays the session's leaf."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("abc"))
            store.append(KEY, chain("x", "c"))
            assert store.put(KEY, chain("abcde")).leaf == "x"
            assert ids(store.path(KEY)) == ["a", "b", "c", "x"]

    def test_other_content_under_an_id_is_refused(self, tmp_path: Path) -> None:
        """A file that changed under its ids is an error, and nothing of it is written."""
        with self.open(tmp_path) as store:
            store.put(KEY, chain("abc"))
            before = (store.sessions(), store.entries(KEY))
            with pytest.raises(LogConflict, match="other content"):
                store.put(KEY, [*chain("ab"), Entry("c", "b", words("changed")), *chain("d", "c")])
            with pytest.raises(LogConflict, match="other content"):
                store.put(KEY, [*chain("ab"), replace(chain("abc")[2], parent="a")])
            assert (store.sessions(), store.entries(KEY)) == before

    def test_a_leaf_must_be_an_entry(self, tmp_path: Path) -> None:
        """An import whose leaf is not there is refused whole."""
        with self.open(tmp_path) as store:
            with pytest.raises(LogConflict, match="nowhere"):
                store.put(KEY, chain("ab"), leaf="nowhere")
            assert store.sessions() == []

    # -- the active branch ---------------------------------------------------------------------------------------------

    def test_active_branch_makes_the_same_request(self, tmp_path: Path) -> None:
        """S12: a branch opened from its newest compaction has every number and byte that the whole path gives."""
        first = self.open(tmp_path)
        first.put(KEY, long_session())
        with self.again(first, tmp_path) as store:
            whole, active = Branch.build(store.path(KEY)), store.active(KEY)
            branch = store.branch(KEY)
        assert active.compaction is not None
        assert ids(active.head) == ["s0"]
        assert ids(active.tail) == ["m8", "m9"]
        assert same_request(branch, whole)
        assert branch.slots[8] == whole.slots[8]
        with pytest.raises(LookupError, match="slots 1 to 7"):
            branch.slots.slice()

    def test_a_branch_without_its_words_is_that_of_the_leaf(self, tmp_path: Path) -> None:
        """S12: an import that grew, a leaf that moved and what was appended since tell the sizes of their own path."""
        grown = chain([f"e{at}" for at in range(2 * FEW)])
        first = self.open(tmp_path)
        for count in (3, FEW, 2 * FEW, 2 * FEW):
            first.put(KEY, grown[:count])
            assert first.bare(KEY) == bare(Branch.build(grown[:count]))
        with self.again(first, tmp_path) as store:
            assert store.bare(KEY) == bare(Branch.build(grown))
            store.append(KEY, chain("g", grown[-1].id))
            assert store.bare(KEY) == bare(Branch.build(store.path(KEY)))
            store.set_leaf(KEY, "e1")
            assert store.bare(KEY) == bare(Branch.build(grown[:2]))

    def test_a_fork_knows_no_later_compaction(self, tmp_path: Path) -> None:
        """A branch from before a compaction is whole: the summary belongs to the other branch (F174)."""
        with self.open(tmp_path) as store:
            store.put(KEY, long_session())
            store.append(KEY, chain("x", "m5"))
            assert store.active(KEY, "x").compaction is None
            assert same_request(store.branch(KEY, "x"), Branch.build(store.path(KEY, "x")))

    def test_a_revoked_compaction_hides_nothing(self, tmp_path: Path) -> None:
        """Undo brings the older turns back; the next compaction is opened from again."""
        with self.open(tmp_path) as store:
            store.put(KEY, long_session())
            store.append(KEY, [Entry("r", "m11", Revoke("c2"))])
            assert store.active(KEY).compaction is None
            assert same_request(store.branch(KEY), Branch.build(store.path(KEY)))
            store.append(KEY, [Entry("c3", "r", Compaction(10, Message.of("user", "third"), 5)), *chain("z", "c3")])
            assert store.active(KEY).compaction is not None
            assert same_request(store.branch(KEY), Branch.build(store.path(KEY)))

    def test_a_compaction_may_keep_more_than_the_one_before(self, tmp_path: Path) -> None:
        """A tail that reaches behind an older compaction is found."""
        with self.open(tmp_path) as store:
            store.put(KEY, long_session())
            store.append(KEY, [Entry("c3", "m11", Compaction(3, Message.of("user", "third"), 5))])
            assert ids(store.active(KEY).tail)[0] == "m3"
            assert same_request(store.branch(KEY), Branch.build(store.path(KEY)))

    # -- finding -------------------------------------------------------------------------------------------------------

    def test_entries_of_one_kind(self, tmp_path: Path) -> None:
        """Asked for a kind, the tree's entries of that kind come in order; a kind that is not there has none."""
        with self.open(tmp_path) as store:
            store.put(KEY, long_session())
            assert ids(store.entries(KEY, "compaction")) == ["c1", "c2"]
            assert ids(store.entries(KEY, "decision")) == ["d"]
            assert store.entries(KEY, "message") == [one for one in store.entries(KEY) if isinstance(one.body, Said)]
            assert store.entries(KEY, "label") == store.entries(KEY, "' OR 1") == []

    def test_entries_behind_one(self, tmp_path: Path) -> None:
        """What was appended behind an entry comes in order, of every kind or of one, whatever else is in the store."""
        with self.open(tmp_path) as store:
            store.put("session-2", chain("ab"))
            store.put(KEY, long_session())
            store.append("session-2", chain("cd", "b"))
            every = store.entries(KEY)
            for at in (0, len(every) // 2, len(every) - 1):
                behind = store.entries(KEY, after=every[at].seq)
                assert behind == every[at + 1 :]
                assert store.entries(KEY, "message", after=every[at].seq) == [
                    one for one in behind if isinstance(one.body, Said)
                ]
            assert store.entries(KEY, after=0) == every

    def test_sessions_and_entries_by_prefix(self, tmp_path: Path) -> None:
        """Any unique prefix finds; an exact id wins over longer ones; else the candidates are listed."""
        with self.open(tmp_path) as store:
            for key in ("aa", "aab", "abc"):
                store.put(key, chain(["e1", "e11", "e2"]))
            assert store.session("ab").key == "abc"
            assert store.session("aa").key == "aa"
            assert store.entry("aa", "e2").id == "e2"
            assert store.entry("aa", "e1").id == "e1"
            for prefix in ("a", "", "zz"):
                with pytest.raises(UnknownId):
                    store.session(prefix)
            with pytest.raises(UnknownId, match="aa, aab, abc"):
                store.session("a")
            with pytest.raises(UnknownId, match="e1, e11, e2"):
                store.entry("aa", "e")

    def test_unknown_sessions_are_an_error(self, tmp_path: Path) -> None:
        """Each verb on a session that is not there raises ``UnknownId`` and makes none."""
        with self.open(tmp_path) as store:
            for verb in (
                store.path,
                store.active,
                store.entries,
                store.leaves,
                store.labels,
                store.damage,
                store.remove,
            ):
                with pytest.raises(UnknownId, match="gone"):
                    verb("gone")
            with pytest.raises(UnknownId, match="gone"):
                store.append("gone", chain("a"))
            assert store.sessions() == []

    def test_an_empty_session_is_readable(self, tmp_path: Path) -> None:
        """A session without entries has an empty path and an empty branch."""
        with self.open(tmp_path) as store:
            assert store.sessions() == []
            store.create(KEY)
            assert store.path(KEY) == store.entries(KEY) == store.leaves(KEY) == []
            assert store.branch(KEY) == Branch()
            assert store.append(KEY, []).leaf is None
            with pytest.raises(LogConflict, match=KEY):
                store.create(KEY)

    def test_the_last_changed_session_comes_first(self, tmp_path: Path) -> None:
        """The list is by last change, and carries what was said about the session."""
        with self.open(tmp_path) as store:
            for key, at in (("old", 1), ("new", 3), ("middle", 2)):
                store.put(key, [Entry("a", None, words(key), at=at)])
            assert [info.key for info in store.sessions()] == ["new", "middle", "old"]
            store.describe("old", title="t\ud83d", cwd="/w")
            assert (store.session("old").cwd, store.session("old").model) == ("/w", "")

    def test_remove_takes_one_session(self, tmp_path: Path) -> None:
        """Removing is explicit and takes that session's tree alone."""
        with self.open(tmp_path) as store:
            store.put(KEY, long_session())
            store.put("other", chain("ab"))
            store.remove(KEY)
            assert [info.key for info in store.sessions()] == ["other"]
            assert ids(store.path("other")) == ["a", "b"]
            assert store.put(KEY, chain("ab")).added == 2

    # -- one writer ----------------------------------------------------------------------------------------------------

    def test_one_writer_a_session(self, tmp_path: Path) -> None:
        """S10: a second writer of the same session is told so; other sessions are free, and so is this one later."""
        with self.open(tmp_path) as store:
            with store.writing(KEY), store.writing("other"), pytest.raises(StoreLocked, match=KEY), store.writing(KEY):
                pass
            with store.writing(KEY):
                pass

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        """A verb after ``close`` is a clear error."""
        store = self.open(tmp_path)
        store.create(KEY)
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.sessions()
        with pytest.raises(StoreError, match="closed"):
            store.append(KEY, chain("a"))


class BlobStoreRules:
    """What every blob store does."""

    def open(self, place: Path) -> BlobStore:
        """Return the blob store at ``place``."""
        raise NotImplementedError

    def test_blobs_come_back(self, tmp_path: Path) -> None:
        """S15: any text comes back, under the hash of its bytes, and storing it again changes nothing."""
        blobs = self.open(tmp_path)
        for text in ("", ODD, "line\n" * 50_000):
            hash_ = blobs.put(text)
            assert blobs.put(text.encode("utf-8", "surrogatepass")) == hash_
            assert blobs.text(hash_) == text
            assert blobs.has(hash_)
            assert blobs.size(hash_) == len(blobs.get(hash_))
        assert len(set(blobs.hashes())) == len(list(blobs.hashes())) == 3

    def test_blobs_are_read_in_pages(self, tmp_path: Path) -> None:
        """A page is what slicing the whole gives, in bytes and in characters, also across pieces and past the end."""
        blobs = self.open(tmp_path)
        text = "äb\U0001f980" * 30_000
        hash_ = blobs.put(text)
        for start, stop in ((0, 5), (1, 2), (65_530, 65_540), (21_840, 21_860), (89_990, 10**9), (10, 5), (-3, 4)):
            low, high = max(0, start), max(0, stop)
            assert blobs.text(hash_, start, stop) == text[low:high]
            assert blobs.get(hash_, start, stop) == text.encode()[low:high]
        assert blobs.text(hash_, 89_999) == text[89_999:]
        assert blobs.get(hash_, 5) == text.encode()[5:]

    def test_only_hashes_name_blobs(self, tmp_path: Path) -> None:
        """X2: no outside string becomes a path; what is not there is a clear error."""
        blobs = self.open(tmp_path)
        blobs.put("x")
        for bad in ("", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", "/" * 64, "a" * 65):
            for verb in (blobs.get, blobs.has, blobs.size, blobs.remove, blobs.text):
                with pytest.raises(UnknownId):
                    verb(bad)
        with pytest.raises(UnknownId, match="b" * 64):
            blobs.get("b" * 64)
        assert not blobs.has("b" * 64)

    def test_whatever_bytes_there_are_can_be_read(self, tmp_path: Path) -> None:
        """Bytes that are no UTF-8 come back as they are, as a text with U+FFFD, and in pages of that text."""
        blobs = self.open(tmp_path)
        for held in (b"\xff\xfe\x00ok", b"\xed\xa0", b"\xe6\xbc" * 40_000, bytes(range(256)) * 600):
            hash_ = blobs.put(held)
            assert blobs.get(hash_) == held
            text = blobs.text(hash_)
            assert blobs.characters(hash_) == len(text)
            assert "".join(blobs.text(hash_, at, at + 7_001) for at in range(0, len(text), 7_001)) == text

    def test_every_page_is_reached(self, tmp_path: Path) -> None:
        """A text of n characters is read in n / page calls, and the pages are the text."""
        blobs = self.open(tmp_path)
        for text in ("line of words\n" * 20_000, "\u89e3\ud83d\U0001f980 x" * 50_000, ""):
            hash_ = blobs.put(text)
            assert blobs.characters(hash_) == len(text)
            pages = [blobs.text(hash_, at, at + 50_000) for at in range(0, len(text), 50_000)]
            assert "".join(pages) == text
            assert len(pages) == -(-len(text) // 50_000)

    def test_only_what_is_old_is_discarded(self, tmp_path: Path) -> None:
        """A blob that was stored since, also again, stays: it may be about to be named."""
        blobs = self.open(tmp_path)
        hash_ = blobs.put("text")
        (held,) = blobs.held()
        assert (held.name, held.size, held.is_draft) == (hash_, 4, False)
        assert not blobs.discard(hash_, held.at)
        assert not blobs.discard("b" * 64, held.at + 10)
        with pytest.raises(UnknownId):
            blobs.discard("../../x", held.at + 10)
        blobs.put("text")
        assert blobs.discard(hash_, next(iter(blobs.held())).at + 1)
        assert not blobs.has(hash_)

    def test_removed_blobs_are_gone(self, tmp_path: Path) -> None:
        """Removing takes one blob, and it can be stored again."""
        blobs = self.open(tmp_path)
        one, two = blobs.put("one"), blobs.put("two")
        blobs.remove(one)
        assert list(blobs.hashes()) == [two]
        assert blobs.put("one") == one
