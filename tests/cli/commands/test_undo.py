"""``holdfast undo``: a decision no longer counts, and nothing else moves."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.commands.undo import list_undoable
from holdfast.cli.reports.history import build_branch_history
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
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
from holdfast.store.base import SessionInfo


def size(run, key: str) -> int:
    """Return how large the next request is, as ``context`` says."""
    return json.loads(run("context", key, "--json").stdout)["tokens"]


def test_the_newest_goes_first(run, decided, store):
    """Each undo takes back one more, until nothing is in force; the log only grows."""
    before = store.read_path(decided)
    taken = [json.loads(run("undo", decided, "--json").stdout)["decision"]["id"] for _ in range(2)]
    assert taken == ["c1", "d1"]
    after = store.read_path(decided)
    assert after[: len(before)] == before
    assert [entry.body for entry in after[len(before) :]] == [RevokeEntry("c1"), RevokeEntry("d1")]
    result = run("undo", decided)
    assert result.exit_code == 2
    assert "nothing to undo" in result.stderr


def test_a_named_one(run, decided, store):
    """A decision under a newer one can be taken back alone."""
    run("undo", decided, "d1")
    assert [id_ for id_, _ in build_branch_history(store.read_path(decided)).state.view.active_decisions] == ["c1"]


def test_several_at_once(run, decided, store):
    """All that are named go, in that order, each told by what it brought back; none goes where one is none."""
    before, path = size(run, decided), store.read_path(decided)
    assert run("undo", decided, "c1", "nothing").exit_code == 2
    assert store.read_path(decided) == path
    found = json.loads(run("undo", decided, "d1", "c1", "d", "--json").stdout)
    assert [entry.body for entry in store.read_path(decided)[len(path) :]] == [RevokeEntry("d1"), RevokeEntry("c1")]
    assert [found["decision"]["id"], *(one["id"] for one in found["also"])] == ["d1", "c1"]
    assert found["decision"]["token_growth"] + found["also"][0]["token_growth"] == size(run, decided) - before


def test_what_comes_back_is_told(run, decided, store):
    """The tokens before and after are those of the requests, and the messages that change are counted."""
    before = size(run, decided)
    found = json.loads(run("undo", decided, "--json").stdout)
    assert (found["before"], found["after"]) == (before, size(run, decided))
    assert (
        abs(found["decision"]["token_growth"] - found["after"] + found["before"])
        <= 1
        < found["decision"]["token_growth"]
    )
    assert found["decision"]["messages"] == 4
    assert "1 message is shown differently" in run("undo", decided).stdout


def test_the_list_writes_nothing(run, decided, store):
    """``--list`` says what each would bring back if it alone went, the newest first."""
    before = store.read_path(decided)
    found = json.loads(run("undo", decided, "--list", "--json").stdout)
    assert found["session"] == decided
    assert [(one["id"], one["kind"], one["rules"], one["messages"]) for one in found["in_force"]] == [
        ("c1", "compaction", ["compaction"], 4),
        ("d1", "decision", ["spill"], 1),
    ]
    assert store.read_path(decided) == before
    before = size(run, decided)
    for one in found["in_force"]:
        run("undo", decided, one["id"])
        assert abs(size(run, decided) - before - one["token_growth"]) <= 1, "but for rounding"
        before = size(run, decided)
    assert "nothing is in force" in run("undo", decided, "--list").stdout


@pytest.mark.parametrize(("cap", "window"), [(0, 200_000), (100_000, 100_000)])
def test_a_window_that_was_learned_is_forgotten(run, session, store, home, cap, window):
    """It is as it is configured again; without a lesson, or beside another wish, nothing is written."""
    (home / "holdfast.toml").write_text(f"[policy.window]\ncap = {cap}\n" if cap else "")
    run("import", session)
    key = "5e551011-aaaa"
    assert "no refusal told of a smaller window" in run("undo", key, "--window").stderr
    asked, refused = (
        RequestEntry("b", 12, "claude-sonnet-4-5", 200_000),
        FailureEntry("overflow", "too large", 16_000, 20_000),
    )
    store.append_entries(key, [Entry("q", store.get_session(key).leaf_id, asked), Entry("f", "q", refused)])
    assert json.loads(run("context", key, "--json").stdout)["window"] == 16_000
    assert run("undo", key, "f", "--window").exit_code == run("undo", key, "--list", "--window").exit_code == 2
    before = store.read_path(key)
    found = json.loads(run("undo", key, "--window", "--json").stdout)
    assert (found["before"], found["after"]) == (16_000, window)
    assert json.loads(run("context", key, "--json").stdout)["window"] == window
    assert store.read_path(key)[:-1] == before
    assert "window forgotten (limit 16000" in run("show", key).stdout
    assert "no refusal told of a smaller window" in run("undo", key, "--window").stderr


def test_a_session_without_decisions(run, session, store):
    """There is nothing to undo, and nothing is written."""
    run("import", session)
    key = "5e551011-aaaa"
    before = store.read_path(key)
    assert run("undo", key).exit_code == 2
    assert json.loads(run("undo", key, "--list", "--json").stdout) == {"session": key, "in_force": []}
    assert store.read_path(key) == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("zz",), "no active decision has the id 'zz'; give"),
        (("u6",), "no active decision has the id 'u6'; give the id of one; newest: "),
        (("c1", "--list"), "leave DECISION out"),
    ],
)
def test_wrong_use(run, decided, arguments, told):
    """A message is no decision, and ``--list`` takes none."""
    result = run("undo", decided, *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_an_unknown_or_empty_session(run, store):
    """Neither is created by the way."""
    assert run("undo", "nobody").exit_code == 2
    store.create_session("empty")
    assert run("undo", "empty").exit_code == 2
    assert [info.key for info in store.list_sessions()] == ["empty"]


def cleared(turns: int, behind: tuple[object, ...] = ()) -> list[Entry]:
    """Return a session of so many turns in which every question was replaced by a decision of its own."""
    bodies: list[object] = []
    for turn in range(turns):
        slot = 2 * turn
        question, answer = (
            build_sized_message(Message.from_text(role, f"{role} {turn} " * 50)) for role in ("user", "assistant")
        )
        short = build_sized_message(Message.from_text("user", "[cleared]"))
        edit = Edit(Span(slot, slot + 1), (short.message,), "prune", "old", question.tokens - short.tokens)
        asked = RequestEntry(f"b{turn}", slot + 1, "claude-sonnet-4-5", 200_000)
        told = AnswerEntry(f"b{turn}", Usage(100 + 60 * turn, 5))
        bodies += [MessageEntry(question), asked, MessageEntry(answer), told, DecisionEntry((edit,))]
    return [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate((*bodies, *behind))]


@pytest.mark.parametrize("behind", [(), (CompactionEntry(20, Message.from_text("user", "before")),)])
def test_a_list_costs_what_is_in_force(work, behind):
    """Twice as much in force takes twice the work to list, not four times: nothing is folded anew for each."""
    short, long = build_branch_history(cleared(40, behind)), build_branch_history(cleared(80, behind))
    assert len(list_undoable(SessionInfo("s"), long)) == 80 - (9 if behind else 0)
    assert work(lambda: list_undoable(SessionInfo("s"), long)) < 2.6 * work(
        lambda: list_undoable(SessionInfo("s"), short)
    )


def test_a_list_is_as_long_as_is_asked_for(run, store):
    """The newest are listed, what is left out is counted on standard error; JSON has all of it."""
    store.import_entries("many", cleared(30), leaf="e149")
    found = run("undo", "many", "--list")
    assert found.stdout.count("without it") == 20
    assert found.stderr == "… and 10 older decisions; --limit shows more, --json all\n"
    newest = run("undo", "many", "--list", "-n", "2")
    assert ("e149" in newest.stdout, "e139" in newest.stdout) == (True, False)
    assert "28 older" in newest.stderr
    assert run("undo", "many", "--list", "-n", "30").stderr == ""
    assert len(json.loads(run("undo", "many", "--list", "--json").stdout)["in_force"]) == 30
