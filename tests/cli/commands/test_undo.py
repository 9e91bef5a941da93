"""``holdfast undo``: a decision is revoked, and nothing else changes."""

from __future__ import annotations

import json

import pytest

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.messages.decision_undo import list_undoable
from holdfast.reports.sessions.history import build_branch_history
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RevokeEntry,
    Usage,
)
from holdfast.state.view import build_projection
from holdfast.store.base import SessionInfo


def get_context_size(run, key: str) -> int:
    """Return the size of the next request, as ``context`` prints it."""
    return json.loads(run("context", key, "--json").stdout)["tokens"]


def test_undo_revokes_the_newest_decision_first(run, edited_session, store):
    """Each undo revokes one more decision until none is active; the log only grows."""
    path_before = store.read_path(edited_session)
    revoked = [json.loads(run("undo", edited_session, "--json").stdout)["decision"]["id"] for _ in range(2)]
    assert revoked == ["c1", "d1"]
    path_after = store.read_path(edited_session)
    assert path_after[: len(path_before)] == path_before
    assert [entry.body for entry in path_after[len(path_before) :]] == [RevokeEntry("c1"), RevokeEntry("d1")]
    result = run("undo", edited_session)
    assert result.exit_code == 2
    assert "nothing to undo" in result.stderr


def test_restore_puts_back_what_was_undone(run, edited_session, store):
    """The decision that was undone last comes back first, and at the end the request is the one from before."""
    size_before, shown_before = (
        get_context_size(run, edited_session),
        build_projection(store.open_state(edited_session)),
    )
    for _ in range(2):
        run("undo", edited_session)
    listed = json.loads(run("undo", edited_session, "--restore", "--list", "--json").stdout)["undone"]
    assert [decision["id"] for decision in listed] == ["d1", "c1"]
    outcomes = [json.loads(run("undo", edited_session, "--restore", "--json").stdout) for _ in range(2)]
    assert [outcome["decision"]["id"] for outcome in outcomes] == ["d1", "c1"]
    assert all(outcome["is_restored"] for outcome in outcomes)
    assert outcomes[-1]["after"] == get_context_size(run, edited_session) == size_before
    assert build_projection(store.open_state(edited_session)) == shown_before
    assert outcomes[0]["decision"]["token_growth"] < 0
    result = run("undo", edited_session, "--restore")
    assert result.exit_code == 2
    assert "nothing to restore" in result.stderr
    run("undo", edited_session)
    result = run("undo", edited_session, "--restore", "c1")
    assert "compaction c1 restored: " in result.stdout
    assert "tokens fewer" in result.stdout


def test_a_decision_in_force_is_not_restored(run, edited_session, store):
    """Only undone decisions can be; nothing is written otherwise."""
    path_before = store.read_path(edited_session)
    result = run("undo", edited_session, "--restore", "c1")
    assert result.exit_code == 2
    assert "no decision of this branch is undone" in result.stderr or "no undone decision" in result.stderr
    assert store.read_path(edited_session) == path_before


def test_undo_revokes_a_named_decision(run, edited_session, store):
    """A decision below a newer one can be revoked alone."""
    run("undo", edited_session, "d1")
    assert [id_ for id_, _ in build_branch_history(store.read_path(edited_session)).state.view.active_decisions] == [
        "c1"
    ]


def test_undo_revokes_several_decisions_or_none(run, edited_session, store):
    """All named decisions are revoked in that order, each with its growth; an unknown one leaves all active."""
    size_before, path_before = get_context_size(run, edited_session), store.read_path(edited_session)
    assert run("undo", edited_session, "c1", "nothing").exit_code == 2
    assert store.read_path(edited_session) == path_before
    report = json.loads(run("undo", edited_session, "d1", "c1", "d", "--json").stdout)
    assert [entry.body for entry in store.read_path(edited_session)[len(path_before) :]] == [
        RevokeEntry("d1"),
        RevokeEntry("c1"),
    ]
    assert [report["decision"]["id"], *(decision["id"] for decision in report["also"])] == ["d1", "c1"]
    assert (
        report["decision"]["token_growth"] + report["also"][0]["token_growth"]
        == get_context_size(run, edited_session) - size_before
    )


def test_undo_reports_the_growth_of_the_request(run, edited_session, store):
    """Before and after are the sizes of the requests, and the changed messages are counted."""
    size_before = get_context_size(run, edited_session)
    report = json.loads(run("undo", edited_session, "--json").stdout)
    assert (report["before"], report["after"]) == (size_before, get_context_size(run, edited_session))
    assert (
        abs(report["decision"]["token_growth"] - report["after"] + report["before"])
        <= 1
        < report["decision"]["token_growth"]
    )
    assert report["decision"]["messages"] == 4
    assert "1 message is shown differently" in run("undo", edited_session).stdout


def test_undo_list_shows_each_growth_and_writes_nothing(run, edited_session, store):
    """``--list`` says what undoing each decision alone would add, newest first."""
    before = store.read_path(edited_session)
    report = json.loads(run("undo", edited_session, "--list", "--json").stdout)
    assert report["session"] == edited_session
    assert [
        (decision["id"], decision["kind"], decision["rules"], decision["messages"]) for decision in report["in_force"]
    ] == [
        ("c1", "compaction", ["compaction"], 4),
        ("d1", "decision", ["spill"], 1),
    ]
    assert store.read_path(edited_session) == before
    before = get_context_size(run, edited_session)
    for decision in report["in_force"]:
        run("undo", edited_session, decision["id"])
        assert abs(get_context_size(run, edited_session) - before - decision["token_growth"]) <= 1, "but for rounding"
        before = get_context_size(run, edited_session)
    assert "nothing is in force" in run("undo", edited_session, "--list").stdout


@pytest.mark.parametrize(("cap", "window"), [(0, 200_000), (100_000, 100_000)])
def test_undo_window_forgets_the_learned_window(run, session, store, home, cap, window):
    """The configured window applies again; without a learned window, or with another option, nothing is written."""
    (home / "holdfast.toml").write_text(f"[policy.window]\ncap = {cap}\n" if cap else "")
    run("import", session)
    key = "5e551011-aaaa"
    assert "no refusal told of a smaller window" in run("undo", key, "--window").stderr
    request, refused = (
        RequestEntry("b", 12, "claude-sonnet-4-5", 200_000),
        FailureEntry("overflow", "too large", 16_000, 20_000),
    )
    store.append_entries(key, [Entry("q", store.get_session(key).leaf_id, request), Entry("f", "q", refused)])
    assert json.loads(run("context", key, "--json").stdout)["window"] == 16_000
    assert run("undo", key, "f", "--window").exit_code == run("undo", key, "--list", "--window").exit_code == 2
    path_before = store.read_path(key)
    report = json.loads(run("undo", key, "--window", "--json").stdout)
    assert (report["before"], report["after"]) == (16_000, window)
    assert json.loads(run("context", key, "--json").stdout)["window"] == window
    assert store.read_path(key)[:-1] == path_before
    assert "window forgotten (limit 16000" in run("show", key).stdout
    assert "no refusal told of a smaller window" in run("undo", key, "--window").stderr


def test_undo_exits_2_for_a_session_without_decisions(run, session, store):
    """There is nothing to undo, and nothing is written."""
    run("import", session)
    key = "5e551011-aaaa"
    path_before = store.read_path(key)
    assert run("undo", key).exit_code == 2
    assert json.loads(run("undo", key, "--list", "--json").stdout) == {"session": key, "in_force": []}
    assert store.read_path(key) == path_before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("zz",), "no active decision has the id 'zz'; give"),
        (("u6",), "no active decision has the id 'u6'; give the id of one; newest: "),
        (("c1", "--list"), "leave DECISION out"),
    ],
)
def test_undo_exits_2_on_wrong_use(run, edited_session, arguments, expected):
    """A message is no decision, and ``--list`` takes no decision."""
    result = run("undo", edited_session, *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_undo_creates_no_session(run, store):
    """An unknown session and an empty one are errors, and neither is created."""
    assert run("undo", "nobody").exit_code == 2
    store.create_session("empty")
    assert run("undo", "empty").exit_code == 2
    assert [info.key for info in store.list_sessions()] == ["empty"]


def build_session_with_edits(turns: int, later_bodies: tuple[object, ...] = ()) -> list[Entry]:
    """Return a session in which every turn's question was replaced by a decision of its own."""
    bodies: list[object] = []
    for turn in range(turns):
        slot = 2 * turn
        question, answer = (
            build_sized_message(Message.from_text(role, f"{role} {turn} " * 50)) for role in ("user", "assistant")
        )
        short = build_sized_message(Message.from_text("user", "[cleared]"))
        edit = Edit(Span(slot, slot + 1), (short.message,), "prune", "old", question.tokens - short.tokens)
        request = RequestEntry(f"b{turn}", slot + 1, "claude-sonnet-4-5", 200_000)
        answer_entry = AnswerEntry(f"b{turn}", Usage(100 + 60 * turn, 5))
        bodies += [MessageEntry(question), request, MessageEntry(answer), answer_entry, DecisionEntry((edit,))]
    return [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate((*bodies, *later_bodies))]


@pytest.mark.parametrize("later_bodies", [(), (CompactionEntry(20, Message.from_text("user", "before")),)])
def test_list_undoable_takes_linear_time(count_calls, later_bodies):
    """Twice as many active decisions take twice the work, not four times: no state is folded again for each."""
    short, long = (
        build_branch_history(build_session_with_edits(40, later_bodies)),
        build_branch_history(build_session_with_edits(80, later_bodies)),
    )
    assert len(list_undoable(SessionInfo("s"), long)) == 80 - (9 if later_bodies else 0)
    assert count_calls(lambda: list_undoable(SessionInfo("s"), long)) < 2.6 * count_calls(
        lambda: list_undoable(SessionInfo("s"), short)
    )


def test_undo_list_is_limited_and_counts_the_rest(run, store):
    """The newest are listed and the rest counted on standard error; JSON has all."""
    store.import_entries("many", build_session_with_edits(30), leaf="e149")
    report = run("undo", "many", "--list")
    assert report.stdout.count("without it") == 20
    assert report.stderr == "… and 10 older decisions; --limit shows more, --json all\n"
    newest = run("undo", "many", "--list", "-n", "2")
    assert ("e149" in newest.stdout, "e139" in newest.stdout) == (True, False)
    assert "28 older" in newest.stderr
    assert run("undo", "many", "--list", "-n", "30").stderr == ""
    assert len(json.loads(run("undo", "many", "--list", "--json").stdout)["in_force"]) == 30
