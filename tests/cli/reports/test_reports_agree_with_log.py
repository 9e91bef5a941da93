"""What the commands tell of a log is what the log says, for any log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy
from msgspec.structs import replace

from holdfast.cli.commands.undo import list_undoable
from holdfast.cli.reports.account import compute_savings_and_state, sum_savings
from holdfast.cli.reports.history import (
    build_branch_history,
    get_shown_messages,
    iter_message_actions,
    list_active_decisions,
    list_message_visibility,
)
from holdfast.cli.reports.request_diff import compare_requests, group_message_changes
from holdfast.cli.reports.request_size import measure_session_request
from holdfast.config import load_shipped_catalog
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, RevokeEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import list_projection_origins
from holdfast.store.base import SessionInfo


def chained(entries: list[Entry]) -> list[Entry]:
    """Return ``entries`` each with an id of its own and the one before as its parent, as a store would hold them."""
    names = {entry.id: f"{index}:{entry.id}" for index, entry in enumerate(entries)}
    out: list[Entry] = []
    for index, entry in enumerate(entries):
        body = RevokeEntry(names.get(entry.body.revoked_id, "")) if isinstance(entry.body, RevokeEntry) else entry.body
        out.append(replace(entry, id=f"{index}:{entry.id}", parent=out[-1].id if out else None, body=body))
    return out


@given(log_strategy().map(chained))
def test_the_account_adds_up(entries):
    """By whatever rules, what is saved is what was said less what a request holds, at every moment."""
    for stop in range(len(entries) + 1):
        branch = ConversationState.from_entries(entries[:stop])
        found = compute_savings_and_state(
            "", entries[:stop], entries[stop - 1].id if stop else None, load_shipped_catalog()
        )[0]
        assert (
            found.saved_tokens
            == (branch.history.cumulative_tokens[-1] if len(branch.history.sized_messages) else 0)
            - branch.view.shown_tokens
        )
    assert sum_savings([found, found]).saved_tokens == 2 * found.saved_tokens


@given(log_strategy().map(chained), st.data())
def test_two_moments_compared(entries, data):
    """Each side's messages are those of its request, and what comes one way goes the other way."""
    first, second = (build_branch_history(entries[: data.draw(st.integers(0, len(entries)))]) for _ in range(2))
    found, back = compare_requests(first, second), compare_requests(second, first)
    assert [
        one.number for one in found.changes if one.kind in {"same", "changed", "hidden"}
    ] == list_projection_origins(first.state)
    assert [
        one.number for one in found.changes if one.kind in {"same", "changed", "new", "back"}
    ] == list_projection_origins(second.state)
    gone = sorted((one.number, one.entry) for one in back.changes if one.kind == "hidden")
    assert sorted((one.number, one.entry) for one in found.changes if one.kind in {"new", "back"}) == gone
    assert [one for run in group_message_changes(found.changes) for one in run] == list(found.changes)
    assert all(one.kind == "same" for one in compare_requests(first, first).changes)


@given(log_strategy().map(chained))
def test_a_message_is_whole_unless_something_was_done(entries):
    """What is not sent as it was said has an act in force that says why; acts in force are those of the law."""
    log = build_branch_history(entries)
    law = {id_ for id_, _ in log.state.view.active_decisions}
    for index, state in enumerate(list_message_visibility(log.state)):
        told = list(iter_message_actions(log, index))
        assert {act.entry for act in told if not act.revoked_by} <= law
        if state != "whole":
            assert any(not act.revoked_by for act in told)
        elif index >= log.state.view.first_kept or index < log.state.view.pinned_count:
            assert [slot.message for slot in get_shown_messages(log.state, index)] == [
                log.state.history.messages[index]
            ]


@given(log_strategy().map(chained))
def test_what_undo_says_comes_true(entries):
    """The tokens that a decision would bring back are those by which the request grows without it."""
    log, info = build_branch_history(entries), SessionInfo("s")
    told = list_undoable(info, log)
    assert [one.id for one in told] == [id_ for id_, _ in reversed(list_active_decisions(log.state))]
    for one in told:
        without = apply_entry(log.state, Entry("", None, RevokeEntry(one.id)))
        assert (
            measure_session_request(info, without).tokens - measure_session_request(info, log.state).tokens
            == one.token_growth
        )
        assert isinstance(
            dict(log.state.view.active_decisions)[one.id], DecisionEntry if one.kind == "decision" else CompactionEntry
        )
