"""Random operations on a store, compared with a simple model: run ``StoreMachine`` with your store."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sample_entries import SAMPLE_KEY, drop_sequence_numbers, is_same_request, list_ids

from holdfast.errors import LogConflict
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store
from holdfast.store.search.search import get_searchable_text, lower_keeping_length, parse_search_terms
from holdfast.store.sql.rows import compute_entry_identity
from holdfast.store.tree.outline import reduce_to_sizes

STEPS = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
picks = st.integers(0, 2**16)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A memory file system, because durability is not tested here."""


class StoreMachine(RuleBasedStateMachine):
    """Appends, forks, decides, compacts, revokes, copies, searches and reopens; the model is a dict of entries."""

    where = ":memory:"

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory(dir=MEMORY)
        self.store: SessionStore = self.open_again()
        self.model: dict[str, Entry] = {}
        self.leaf: str | None = None
        self.payloads: Counter[bytes] = Counter()

    def open_again(self) -> SessionStore:
        """Open the store."""
        if self.where == ":memory:":
            return open_store(self.where)
        return self.open_at(Path(self.place.name))

    def open_at(self, place: Path) -> SessionStore:
        """Open the store that belongs to the folder ``place``."""
        return open_store(place / self.where)

    def teardown(self) -> None:
        """Close and delete the store."""
        self.store.close()
        self.place.cleanup()

    @initialize()
    def begin(self) -> None:
        """Start with an empty session."""
        self.store.create_session(SAMPLE_KEY)

    def path(self, leaf: str | None) -> list[Entry]:
        """Return the model's path to ``leaf``."""
        entries = []
        while leaf is not None:
            entries.append(self.model[leaf])
            leaf = self.model[leaf].parent
        return entries[::-1]

    def pick(self, number: int) -> str | None:
        """Return an entry of the model; often the leaf."""
        names = [*self.model, *[self.leaf] * (len(self.model) + 1)]
        return names[number % len(names)]

    def add(self, parent: str | None, body: EntryBody) -> None:
        """Append ``body`` to the store and the model."""
        entry = Entry(f"e{len(self.model)}", parent, body, time_ms=len(self.model))
        result = self.store.append_entries(SAMPLE_KEY, [entry])
        assert result.is_leaf_moved == (parent == self.leaf)
        self.model[entry.id] = entry
        self.payloads[compute_entry_identity(entry)] += 1
        if result.is_leaf_moved:
            self.leaf = entry.id

    @rule(where=picks, kind=st.sampled_from(["system", "user", "assistant", "tool"]), text=st.text(max_size=40))
    def append_message(self, where: int, kind: str, text: str) -> None:
        """Append a message, at the leaf or elsewhere."""
        call = f"c{where % 3}"
        parts = {"assistant": (Text(text), ToolCall(call, "read")), "tool": (ToolResult(call, content=(Text(text),)),)}
        message = Message(kind, parts.get(kind, (Text(text),)))  # type: ignore[arg-type]
        self.add(self.pick(where), MessageEntry(build_sized_message(message)))

    @rule(where=picks, tokens=st.integers(1, 3_000))
    def append_request(self, where: int, tokens: int) -> None:
        """Append a request and its answer with usage."""
        parent = self.pick(where)
        self.add(parent, RequestEntry(f"b{where}", self.count_messages(parent), "model"))
        self.add(f"e{len(self.model) - 1}", AnswerEntry(f"b{where}", Usage(tokens)))

    @rule(where=picks, other=st.sampled_from([RequestSetup("f", 90), RequestSetup("g", 7), FailureEntry("timed_out")]))
    def append_other(self, where: int, other: EntryBody) -> None:
        """Append an entry that is not a message."""
        self.add(self.pick(where), other)

    @rule(where=picks, at=picks)
    def decide(self, where: int, at: int) -> None:
        """Replace a part of a message by an edit."""
        parent = self.pick(where)
        if count := self.count_messages(parent):
            span = Span(at % count, at % count + 1, 0)
            self.add(parent, DecisionEntry((Edit(span, (Text(f"cut {at}"),), "prune", saves=at % 5),)))

    @rule(where=picks, at=picks)
    def compact(self, where: int, at: int) -> None:
        """Replace older turns by a summary."""
        parent = self.pick(where)
        branch = ConversationState.from_entries(self.path(parent))
        keep = branch.view.pinned_count + at % (len(branch.history.sized_messages) - branch.view.pinned_count + 1)
        self.add(parent, CompactionEntry(keep, Message.from_text("user", f"summary {at}") if at % 4 else None, at % 50))

    @rule(where=picks, at=picks)
    def revoke(self, where: int, at: int) -> None:
        """Revoke a decision or a compaction."""
        parent = self.pick(where)
        revocable = [entry.id for entry in self.path(parent) if isinstance(entry.body, DecisionEntry | CompactionEntry)]
        if revocable:
            self.add(parent, RevokeEntry(revocable[at % len(revocable)]))

    @rule(where=picks)
    def move(self, where: int) -> None:
        """Move the leaf elsewhere."""
        leaf = self.pick(where)
        if leaf is not None:
            self.leaf = self.store.set_leaf(SAMPLE_KEY, leaf)

    @rule(where=picks, at=picks, text=st.text(max_size=9))
    def copy_branch(self, where: int, at: int, text: str) -> None:
        """Copy a branch with one message replaced: the old branch stays and the new one is complete."""
        leaf = self.pick(where)
        messages = [entry for entry in self.path(leaf) if isinstance(entry.body, MessageEntry)]
        if not messages:
            return
        old = messages[at % len(messages)]
        before = ConversationState.from_entries(self.path(leaf))
        other = Message(old.body.sized_message.message.role, (Text(text),))  # type: ignore[union-attr]
        new = self.store.copy_branch(SAMPLE_KEY, {old.id: other}, leaf)
        for entry in drop_sequence_numbers(self.store.read_entries(SAMPLE_KEY)[len(self.model) :]):
            self.model[entry.id] = entry
            self.payloads[compute_entry_identity(entry)] += 1
        self.leaf = new
        after = ConversationState.from_entries(self.path(new))
        assert [m for m in after.history.messages if m != other] == [
            m for n, m in enumerate(before.history.messages) if n != messages.index(old) and m != other
        ]
        assert (
            after.last_request.seen_count,
            after.view.compaction is None,
            after.counters.failed_compactions,
            after.counters.compactions_since_answer,
        ) == (
            before.last_request.seen_count,
            before.view.compaction is None,
            before.counters.failed_compactions,
            before.counters.compactions_since_answer,
        )
        assert len(after.view.active_decisions) <= len(before.view.active_decisions)

    @rule(where=picks, length=st.integers(1, 9))
    def search(self, where: int, length: int) -> None:
        """Search for the start of a text: it is found wherever it occurs and nowhere else."""
        leaf = self.pick(where)
        wanted = parse_search_terms(get_searchable_text(self.model[leaf])[:length]) if leaf is not None else ()
        texts = {
            id_: lower_keeping_length(get_searchable_text(entry))
            for id_, entry in self.model.items()
            if isinstance(entry.body, MessageEntry)
        }
        expected = {text for text in texts.values() if wanted and all(term in text for term in wanted)}
        query = get_searchable_text(self.model[leaf])[:length] if leaf is not None else ""
        found = self.store.search_session(SAMPLE_KEY, query, 10**6)
        assert {texts[hit.entry_id] for hit in found} == expected

    @rule()
    def refuse(self) -> None:
        """Refuse entries that would break the log, without any change."""
        for bad in (Entry("x", "nowhere", FailureEntry("x")), Entry("e0", None, FailureEntry("x"))):
            if bad.id != "e0" or self.model:
                try:
                    self.store.append_entries(SAMPLE_KEY, [Entry("y", self.leaf, FailureEntry("y")), bad])
                except LogConflict:
                    continue
                raise AssertionError(bad)

    @rule()
    def import_again(self) -> None:
        """Import everything again, which changes nothing."""
        assert self.store.import_entries(SAMPLE_KEY, self.model.values(), leaf=self.leaf).is_unchanged

    @rule()
    def reopen(self) -> None:
        """Open the store again, as another process does."""
        if self.where != ":memory:":
            self.store.close()
            self.store = self.open_again()

    @rule(where=picks)
    def open_branch(self, where: int) -> None:
        """opening-costs-one-branch: any branch opened from its active part makes the request that
        the whole path makes.
        """
        leaf = self.pick(where)
        whole = ConversationState.from_entries(self.store.read_path(SAMPLE_KEY, leaf))
        assert is_same_request(self.store.open_state(SAMPLE_KEY, leaf), whole)

    @rule()
    def open_sizes(self) -> None:
        """Open the sizes at the leaf: they equal those of the whole path."""
        assert self.store.open_size_state(SAMPLE_KEY) == reduce_to_sizes(
            ConversationState.from_entries(self.store.read_path(SAMPLE_KEY))
        )

    def count_messages(self, leaf: str | None) -> int:
        """Return the number of messages on the model's path."""
        return sum(isinstance(entry.body, MessageEntry) for entry in self.path(leaf))

    @invariant()
    def nothing_is_lost(self) -> None:
        """nothing-lost: every payload whose append returned is in the log, as often as it was appended."""
        if self.model:
            stored = Counter(compute_entry_identity(entry) for entry in self.store.read_entries(SAMPLE_KEY))
            assert stored == self.payloads

    @invariant()
    def paths_agree(self) -> None:
        """parent-first: the leaf and its path are the model's, numbered upwards."""
        if self.model:
            found = self.store.read_path(SAMPLE_KEY)
            assert drop_sequence_numbers(found) == self.path(self.leaf)
            assert [entry.seq for entry in found] == sorted({entry.seq for entry in found})
            assert self.store.get_session(SAMPLE_KEY).entry_count == len(self.model)
            parents = {entry.parent for entry in self.model.values()}
            assert list_ids(self.store.read_tips(SAMPLE_KEY)) == [id_ for id_ in self.model if id_ not in parents]
