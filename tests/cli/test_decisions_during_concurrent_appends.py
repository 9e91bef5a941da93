"""Decisions of a command while a proxy or an agent appends to the same session."""

from __future__ import annotations

import pytest
from sample_entries import SAMPLE_KEY

from holdfast.cli.reports.compact_session import compact_session
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import Policy
from holdfast.reports.messages.decision_undo import change_decisions
from holdfast.reports.requests.next_plan import record_next_plan
from holdfast.reports.sessions.history import load_branch_history
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.target import PlanInputs
from holdfast.store.memory import MemoryStore
from holdfast.store.tree.tree import make_entry_id

TARGET, FORCED = get_target("anthropic", "claude-opus-5-5", window=32_000), PlanInputs(force_compaction=True)


class BusyStore(MemoryStore):
    """A store to which a message is appended just before a session's lease is taken for the second time."""

    lease_count = -100

    def hold_lease(self, key):
        """Take the session's lease, after another writer's message the second time."""
        self.lease_count += 1
        if self.lease_count == 2:
            words = MessageEntry(build_sized_message(Message.from_text("user", "And the kelp?")))
            self.append_entries(key, [Entry(make_entry_id(), self.get_session(key).leaf_id, words)])
        return super().hold_lease(key)


@pytest.mark.parametrize(
    "decide",
    [
        lambda store: compact_session(store, SAMPLE_KEY, Policy(), TARGET, FORCED).entry,
        lambda store: record_next_plan(
            store, SAMPLE_KEY, load_branch_history(store, SAMPLE_KEY), TARGET, Policy(), FORCED
        )[0].entry_ids[-1],
        lambda store: change_decisions(store, store.get_session(SAMPLE_KEY)).decision.id,
    ],
    ids=["compact", "context --record", "undo"],
)
def test_decisions_follow_messages_appended_meanwhile(decide):
    """A message appended meanwhile precedes the decision on the same branch: no second branch is created."""
    store = BusyStore()
    journal = Journal.open(store, SAMPLE_KEY)
    journal.append(
        *(Message.from_text(role, f"{at} " + "kelp " * 900) for at in range(9) for role in ("user", "assistant"))
    )
    first_decision = compact_session(store, SAMPLE_KEY, Policy(), TARGET, FORCED).entry
    store.lease_count = 0
    decided = decide(store)
    path = store.read_path(SAMPLE_KEY, store.get_session(SAMPLE_KEY).leaf_id)
    assert store.lease_count >= 2
    assert any(
        isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.text == "And the kelp?"
        for entry in path
    )
    in_force = {id_ for id_, _ in store.open_state(SAMPLE_KEY).view.active_decisions}
    assert (decided in in_force) == (decided != first_decision), "undone, or in force"
