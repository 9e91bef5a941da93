"""The reports of the commands agree with the log, for any log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy
from msgspec.structs import replace

from holdfast.config import load_shipped_catalog
from holdfast.reports.messages.decision_undo import list_undoable
from holdfast.reports.requests.request_diff import compare_requests, group_message_changes
from holdfast.reports.requests.request_size import measure_session_request
from holdfast.reports.sessions.account import compute_savings_and_state, sum_savings
from holdfast.reports.sessions.history import (
    build_branch_history,
    get_shown_messages,
    iter_message_actions,
    list_active_decisions,
    list_message_visibility,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, RevokeEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import list_projection_origins
from holdfast.store.base import SessionInfo


def chain_entries(entries: list[Entry]) -> list[Entry]:
    """Return ``entries`` with unique ids, each the child of the one before, as a store would hold them."""
    names = {entry.id: f"{index}:{entry.id}" for index, entry in enumerate(entries)}
    out: list[Entry] = []
    for index, entry in enumerate(entries):
        body = RevokeEntry(names.get(entry.body.revoked_id, "")) if isinstance(entry.body, RevokeEntry) else entry.body
        out.append(replace(entry, id=f"{index}:{entry.id}", parent=out[-1].id if out else None, body=body))
    return out


@given(log_strategy().map(chain_entries))
def test_compute_savings_equals_the_tokens_not_shown(entries):
    """After every entry of any log, the savings are all tokens less those a request shows."""
    for stop in range(len(entries) + 1):
        state = ConversationState.from_entries(entries[:stop])
        savings = compute_savings_and_state(
            "", entries[:stop], entries[stop - 1].id if stop else None, load_shipped_catalog()
        )[0]
        assert (
            savings.saved_tokens
            == (state.history.cumulative_tokens[-1] if len(state.history.sized_messages) else 0)
            - state.view.shown_tokens
        )
    assert sum_savings([savings, savings]).saved_tokens == 2 * savings.saved_tokens


@given(log_strategy().map(chain_entries), st.data())
def test_compare_requests_is_symmetric_and_complete(entries, data):
    """Each side has the messages of its request, and what appears one way is hidden the other way."""
    first, second = (build_branch_history(entries[: data.draw(st.integers(0, len(entries)))]) for _ in range(2))
    forward, backward = compare_requests(first, second), compare_requests(second, first)
    assert [
        change.number for change in forward.changes if change.kind in {"same", "changed", "hidden"}
    ] == list_projection_origins(first.state)
    assert [
        change.number for change in forward.changes if change.kind in {"same", "changed", "new", "back"}
    ] == list_projection_origins(second.state)
    hidden = sorted((change.number, change.entry) for change in backward.changes if change.kind == "hidden")
    assert (
        sorted((change.number, change.entry) for change in forward.changes if change.kind in {"new", "back"}) == hidden
    )
    assert [change for run in group_message_changes(forward.changes) for change in run] == list(forward.changes)
    assert all(change.kind == "same" for change in compare_requests(first, first).changes)


@given(log_strategy().map(chain_entries))
def test_message_visibility_agrees_with_message_actions(entries):
    """A message that is not whole has an active action that explains it, and active actions are active decisions."""
    log = build_branch_history(entries)
    active_ids = {id_ for id_, _ in log.state.view.active_decisions}
    for index, visibility in enumerate(list_message_visibility(log.state)):
        actions = list(iter_message_actions(log, index))
        assert {action.entry for action in actions if not action.revoked_by} <= active_ids
        if visibility != "whole":
            assert any(not action.revoked_by for action in actions)
        elif index >= log.state.view.first_kept or index < log.state.view.pinned_count:
            assert [sized_message.message for sized_message in get_shown_messages(log.state, index)] == [
                log.state.history.messages[index]
            ]


@given(log_strategy().map(chain_entries))
def test_list_undoable_growth_equals_the_growth_after_undo(entries):
    """The growth listed for a decision is the growth of the request without it."""
    log, info = build_branch_history(entries), SessionInfo("s")
    listed = list_undoable(info, log)
    assert [decision.id for decision in listed] == [id_ for id_, _ in reversed(list_active_decisions(log.state))]
    for decision in listed:
        without = apply_entry(log.state, Entry("", None, RevokeEntry(decision.id)))
        assert (
            measure_session_request(info, without).tokens - measure_session_request(info, log.state).tokens
            == decision.token_growth
        )
        assert isinstance(
            dict(log.state.view.active_decisions)[decision.id],
            DecisionEntry if decision.kind == "decision" else CompactionEntry,
        )
