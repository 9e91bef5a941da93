"""Log entries and states for tests of overflow recovery."""

from __future__ import annotations

from sample_entries import make_message_entry_body

from holdfast.messages.message import Message
from holdfast.planning.settings import Settings
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, EntryBody

SETTINGS = Settings()
COMPACTED = CompactionEntry(1, Message.from_text("user", "what was"))
"""A compaction, which uses up a compaction step."""
CUT = DecisionEntry((Edit(Span(0, 1), (), "truncate"),))
"""A decision to truncate, which uses up the truncation step."""


def make_state(*bodies: EntryBody) -> ConversationState:
    """Fold a log of one user message and ``bodies``."""
    return ConversationState.from_entries(
        Entry(str(at), None, body) for at, body in enumerate([make_message_entry_body("go"), *bodies])
    )
