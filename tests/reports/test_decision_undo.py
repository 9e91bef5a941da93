"""What undoing or restoring a decision would do, said before it is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis_strategies import log_strategy

from holdfast.errors import UnknownId
from holdfast.reports.messages.decision_undo import change_decisions, preview_undo
from holdfast.state.conversation_state import ConversationState
from holdfast.state.view import build_projection
from holdfast.store.open_store import open_store

KEY = "s"


@given(log_strategy(max_messages=8))
def test_a_preview_says_what_happens_and_a_restore_takes_the_undo_back(entries):
    """For each decision in force: the sizes of the preview are those of the outcome, and after a restore the request
    shows what it showed before the undo. The preview writes nothing.
    """
    with open_store(":memory:") as store:
        store.import_entries(KEY, entries)
        state = ConversationState.from_entries(entries)
        shown_before = build_projection(state)
        for id_, _ in state.view.active_decisions:
            for is_restored in (False, True):
                count = store.get_session(KEY).entry_count
                preview = preview_undo(store, store.get_session(KEY), id_, is_restored=is_restored)
                assert store.get_session(KEY).entry_count == count
                outcome = change_decisions(store, store.get_session(KEY), id_, is_restored=is_restored)
                assert (preview.before, preview.after) == (outcome.before, outcome.after)
                assert preview.decision == outcome.decision
                with pytest.raises(UnknownId):
                    change_decisions(store, store.get_session(KEY), id_, is_restored=is_restored)
            path = store.read_path(KEY)
            assert build_projection(ConversationState.from_entries(path)) == shown_before
            assert store.get_session(KEY).leaf_id == path[-1].id
