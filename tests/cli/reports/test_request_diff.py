"""``holdfast diff``: what the model saw at two moments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.requests.request_diff import compare_requests
from holdfast.reports.sessions.history import build_branch_history
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry


@pytest.fixture
def diff(run, edited_session):
    """Return a function that returns the JSON of ``holdfast diff`` for two moments."""

    def ask(moments: str) -> dict:
        return json.loads(run("diff", edited_session, moments, "--json").stdout)

    return ask


def group_by_kind(report: dict) -> dict[str, list[int]]:
    """Return the numbers of the messages by the kind of their change."""
    out: dict[str, list[int]] = {}
    for change in report["changes"]:
        out.setdefault(change["kind"], []).append(change["number"])
    return out


def test_diff_shows_what_a_decision_changed(diff):
    """``..B`` compares the request before B with the one after it: the replaced text, its rule, the tokens saved."""
    report = diff("..d1")
    assert group_by_kind(report) == {"same": [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11], "changed": [6]}
    changed = report["changes"][6]
    assert (changed["rule"], changed["decided_by"], changed["why"]) == ("spill", "d1", "a result was too long")
    assert (len(changed["removed_lines"]), changed["added_lines"]) == (5, ["[short]"])
    less = changed["before"] - changed["after"]
    assert abs(report["before"] - report["after"] - less) <= 1 < less, "but for rounding"


def test_diff_shows_what_a_compaction_hid(diff, run, edited_session):
    """The summarized messages are hidden, and the summary, number -1, is new."""
    report = diff("..c1")
    assert group_by_kind(report) == {"hidden": [0, 1, 2, 3], "new": [-1], "same": [4, 5, 6, 7, 8, 9, 10, 11]}
    assert {change["decided_by"] for change in report["changes"] if change["kind"] == "hidden"} == {"c1"}
    printed = run("diff", edited_session, "..c1").stdout
    assert "- #0 to #3: 4 messages" in printed
    assert "+ summary" in printed
    assert "+ what happened before" in printed


def test_diff_compares_two_message_numbers(diff):
    """Two numbers compare the moments just after these messages."""
    assert group_by_kind(diff("2..5")) == {"same": [0, 1, 2], "new": [3, 4, 5]}
    assert group_by_kind(diff("9..c1"))["new"] == [-1, 10, 11]


def test_diff_shows_what_an_undo_brings_back(diff, run, edited_session):
    """Messages shown again are *back*, not new, and the summary is hidden."""
    run("undo", edited_session, "c1")
    report = diff("c1..")
    assert group_by_kind(report) == {"back": [0, 1, 2, 3], "hidden": [-1], "same": [4, 5, 6, 7, 8, 9, 10, 11]}
    assert {change["decided_by"] for change in report["changes"] if change["kind"] == "back"} == {"c1"}


def test_diff_of_one_moment_reports_no_change(run, edited_session):
    """Comparing a moment with itself prints that nothing changed."""
    assert "nothing changed" in run("diff", edited_session, "c1..").stdout


def test_compare_requests_sums_equal_the_request_sizes(store, edited_session):
    """For any two moments each side's sum is its request's size, and what appears one way is hidden the other way."""
    entries = store.read_path(edited_session)
    logs = [build_branch_history(entries[:stop]) for stop in range(1, len(entries) + 1)]
    for first in logs:
        for second in logs:
            forward, backward = compare_requests(first, second), compare_requests(second, first)
            assert (forward.before, forward.after) == (first.state.view.shown_tokens, second.state.view.shown_tokens)
            assert sum(change.before for change in forward.changes) == forward.before
            assert sum(change.after for change in forward.changes) == forward.after
            appearing = sorted(change.entry for change in forward.changes if change.kind in {"new", "back"})
            assert appearing == sorted(change.entry for change in backward.changes if change.kind == "hidden")


def test_diff_backward_uses_the_same_measure(run, home):
    """``B..A`` has the two sizes of ``A..B``: both are measured with what is known at the later moment."""
    sample = Path(__file__).parents[3] / "examples" / "long-session.jsonl"
    assert run("import", sample, "--as", "long").exit_code == 0
    for window in ("200000", "96000"):
        recorded = run("context", "long", "--policy", "holdfast", "--window", window, "--record", "--json")
        assert json.loads(recorded.stdout)["next_plan"]["entry_ids"]
    for first, second in (("1", "2"), ("40", "60"), ("5", "500")):
        forward = json.loads(run("diff", "long", f"{first}..{second}", "--json").stdout)
        backward = json.loads(run("diff", "long", f"{second}..{first}", "--json").stdout)
        assert (forward["before"], forward["after"]) == (backward["after"], backward["before"])


def test_diff_compares_moments_on_two_branches(store, diff, run, edited_session):
    """A moment on another branch is compared from the last common entry."""
    sized_message = build_sized_message(Message.from_text("user", "something else"))
    store.append_entries(edited_session, [Entry("other", "u3", MessageEntry(sized_message))], expected_leaf="u3")
    expected = group_by_kind(diff("other..u5"))
    assert expected == {"same": [0, 1, 2, 3], "hidden": [4], "new": [4, 5]}
    store.label_entry(edited_session, "other", "way not taken")
    assert group_by_kind(diff("way not taken..u5")) == expected


def test_diff_lines_limits_the_printed_lines(run, edited_session):
    """``--lines`` sets how many lines of a text are printed; lines that both sides share at the ends are left out."""
    printed = run("diff", edited_session, "..d1", "--lines", "2").stdout
    assert printed.count("    - def") == 2
    assert "… 3 more lines" in printed
    assert "def" not in run("diff", edited_session, "..d1", "--lines", "0").stdout


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ("d1", "is not A..B"),
        ("..", "is not A..B"),
        ("", "is not A..B"),
        ("1...3", "no entry is '.3' or begins with it"),
        ("1..2..3", "is not A..B"),
        ("0..99", "no message #99"),
        ("zz..", "no entry is 'zz' or begins with it"),
        ("u..", "could be any of these"),
        ("\x1b[2J", "is not A..B"),
    ],
)
def test_diff_exits_2_for_invalid_moments(run, edited_session, moments, expected):
    """The message says how to write moments, or what there is."""
    result = run("diff", edited_session, moments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "\x1b" not in result.stderr


def test_diff_without_moments_suggests_some_that_work(run, edited_session):
    """The suggested moments can be used as printed."""
    message = run("diff", edited_session).stderr
    assert "..c1 (what the newest decision changed), 0.. (everything since message 0)" in message
    assert [run("diff", edited_session, moments).exit_code for moments in ("..c1", "0..")] == [0, 0]


def test_diff_exits_2_for_an_empty_session(run, store):
    """An empty session has no moments, and the message says so."""
    store.create_session("empty")
    assert run("diff", "empty", "0..").exit_code == 2
    assert "it has none" in run("diff", "empty", "0..").stderr
    assert run("diff", "nobody", "0..").exit_code == 2


def test_compare_requests_takes_linear_time(count_calls):
    """Twice as many messages with a decision each take twice the work to compare, not four times."""
    calls_made = []
    for count in (100, 200):
        sized_messages = [build_sized_message(Message.from_text("user", f"message {at} " * 20)) for at in range(count)]
        edits = [
            Edit(Span(at, at + 1), (Message.from_text("user", "-"),), "prune", "old", sized_messages[at].tokens)
            for at in range(count)
        ]
        bodies = [*map(MessageEntry, sized_messages), *(DecisionEntry((edit,)) for edit in edits)]
        entries = [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate(bodies)]
        before, after = build_branch_history(entries[:count]), build_branch_history(entries)
        assert [change.decided_by for change in compare_requests(before, after).changes] == [
            f"e{at}" for at in range(count, 2 * count)
        ]
        calls_made.append(count_calls(lambda before=before, after=after: compare_requests(before, after)))
    assert calls_made[1] < 2.5 * calls_made[0]
