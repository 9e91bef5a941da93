"""How a message is shown, without the state of its branch."""

from __future__ import annotations

from hypothesis import given
from hypothesis_strategies import log_strategy

from holdfast.reports.messages.message_events import list_message_events
from holdfast.reports.messages.message_view import view_message
from holdfast.reports.sessions.history import get_shown_messages, list_message_visibility
from holdfast.reports.sessions.timeline import Timeline
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    MessageEntry,
    RevokeEntry,
)


@given(log_strategy(max_messages=10))
def test_a_message_is_shown_as_the_whole_state_shows_it(entries):
    """For every message of every log, with decisions undone and restored: the same visibility, and the same text."""
    state = ConversationState.from_entries(entries)
    visibility = list_message_visibility(state)
    for number, message in enumerate(state.history.sized_messages.slice()):
        view = view_message(message, number, len(visibility), state.view.pinned_count, entries)
        assert view.visibility == visibility[number]
        if view.visibility != "hidden":
            assert view.shown == get_shown_messages(state, number)


@given(log_strategy(max_messages=10))
def test_the_story_of_a_message_ends_as_it_is_shown(entries):
    """A message that a compaction hides has one event that says so and is in force; one that is shown has none."""
    state = ConversationState.from_entries(entries)
    timeline = Timeline((), (), frozenset(entry.id for entry in entries))
    decisions = [entry for entry in entries if isinstance(entry.body, DecisionEntry | CompactionEntry | RevokeEntry)]
    message_entries = [entry for entry in entries if isinstance(entry.body, MessageEntry | BranchSummaryEntry)]
    pinned_count = state.view.pinned_count
    for number, (said, visibility) in enumerate(zip(message_entries, list_message_visibility(state), strict=True)):
        events = list_message_events(timeline, decisions, number, said, pinned_count=pinned_count)
        hiding = [event for event in events if event.kind == "hidden" and not event.is_undone]
        if pinned_count <= number < state.view.first_kept:
            assert (visibility, len(hiding)) == ("hidden", 1)
        else:
            assert hiding == []
