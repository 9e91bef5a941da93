"""What the commands tell of a log is what the log says, for any log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import logs

from holdfast.cli.commands.undo import standing
from holdfast.cli.reports.account import account_and_branch, together
from holdfast.cli.reports.history import acting, acts, as_shown, log_of, states
from holdfast.cli.reports.request_diff import compare, runs
from holdfast.cli.reports.request_size import measured_in
from holdfast.config import shipped
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import origins
from holdfast.state.entries import Compaction, Decision, Entry, Revoke
from holdfast.store.base import SessionInfo


def chained(entries: list[Entry]) -> list[Entry]:
    """Return ``entries`` each with an id of its own and the one before as its parent, as a store would hold them."""
    names = {entry.id: f"{index}:{entry.id}" for index, entry in enumerate(entries)}
    out: list[Entry] = []
    for index, entry in enumerate(entries):
        body = Revoke(names.get(entry.body.id, "")) if isinstance(entry.body, Revoke) else entry.body
        out.append(replace(entry, id=f"{index}:{entry.id}", parent=out[-1].id if out else None, body=body))
    return out


@given(logs().map(chained))
def test_the_account_adds_up(entries):
    """By whatever rules, what is saved is what was said less what a request holds, at every moment."""
    for stop in range(len(entries) + 1):
        branch = Branch.build(entries[:stop])
        found = account_and_branch("", entries[:stop], entries[stop - 1].id if stop else None, shipped())[0]
        assert found.saved == (branch.sums[-1] if len(branch.slots) else 0) - branch.held
    assert together([found, found]).saved == 2 * found.saved


@given(logs().map(chained), st.data())
def test_two_moments_compared(entries, data):
    """Each side's messages are those of its request, and what comes one way goes the other way."""
    first, second = (log_of(entries[: data.draw(st.integers(0, len(entries)))]) for _ in range(2))
    found, back = compare(first, second), compare(second, first)
    assert [one.number for one in found.changes if one.kind in {"same", "changed", "hidden"}] == origins(first.branch)
    assert [one.number for one in found.changes if one.kind in {"same", "changed", "new", "back"}] == origins(
        second.branch
    )
    gone = sorted((one.number, one.entry) for one in back.changes if one.kind == "hidden")
    assert sorted((one.number, one.entry) for one in found.changes if one.kind in {"new", "back"}) == gone
    assert [one for run in runs(found.changes) for one in run] == list(found.changes)
    assert all(one.kind == "same" for one in compare(first, first).changes)


@given(logs().map(chained))
def test_a_message_is_whole_unless_something_was_done(entries):
    """What is not sent as it was said has an act in force that says why; acts in force are those of the law."""
    log = log_of(entries)
    law = {id_ for id_, _ in log.branch.law}
    for index, state in enumerate(states(log.branch)):
        told = list(acts(log, index))
        assert {act.entry for act in told if not act.revoked} <= law
        if state != "whole":
            assert any(not act.revoked for act in told)
        elif index >= log.branch.keep or index < log.branch.pinned:
            assert [slot.message for slot in as_shown(log.branch, index)] == [log.branch.messages[index]]


@given(logs().map(chained))
def test_what_undo_says_comes_true(entries):
    """The tokens that a decision would bring back are those by which the request grows without it."""
    log, info = log_of(entries), SessionInfo("s")
    told = standing(info, log)
    assert [one.id for one in told] == [id_ for id_, _ in reversed(acting(log.branch))]
    for one in told:
        without = extend(log.branch, Entry("", None, Revoke(one.id)))
        assert measured_in(info, without).tokens - measured_in(info, log.branch).tokens == one.tokens
        assert isinstance(dict(log.branch.law)[one.id], Decision if one.kind == "decision" else Compaction)
