"""How a message is shown, without the state of its branch."""

from __future__ import annotations

from hypothesis import given
from hypothesis_strategies import log_strategy

from holdfast.reports.history import get_shown_messages, list_message_visibility
from holdfast.reports.message_view import build_message_view
from holdfast.state.conversation_state import ConversationState


@given(log_strategy(max_messages=10))
def test_a_message_is_shown_as_the_whole_state_shows_it(entries):
    """For every message of every log, with decisions undone and restored: the same visibility, and the same text."""
    state = ConversationState.from_entries(entries)
    visibility = list_message_visibility(state)
    for number, message in enumerate(state.history.sized_messages.slice()):
        view = build_message_view(message, len(visibility), state.view.pinned_count, entries)
        assert list_message_visibility(view) == visibility
        if visibility[number] == "reduced":
            assert get_shown_messages(view, number) == get_shown_messages(state, number)
