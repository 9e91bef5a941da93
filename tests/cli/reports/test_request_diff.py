"""``holdfast diff``: what the model saw before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.reports.history import build_branch_history
from holdfast.cli.reports.request_diff import compare_requests
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry


@pytest.fixture
def diff(run, decided):
    """Return a function that compares two moments, as JSON."""

    def ask(moments: str) -> dict:
        return json.loads(run("diff", decided, moments, "--json").stdout)

    return ask


def kinds(found: dict) -> dict[str, list[int]]:
    """Return the numbers of the messages by what became of them."""
    out: dict[str, list[int]] = {}
    for one in found["changes"]:
        out.setdefault(one["kind"], []).append(one["number"])
    return out


def test_what_a_decision_changed(diff):
    """``..B`` is the request before B beside the one after it: the replaced text, its rule, and the tokens saved."""
    found = diff("..d1")
    assert kinds(found) == {"same": [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11], "changed": [6]}
    changed = found["changes"][6]
    assert (changed["rule"], changed["decided_by"], changed["why"]) == ("spill", "d1", "a result was too long")
    assert (len(changed["removed_lines"]), changed["added_lines"]) == (5, ["[short]"])
    less = changed["before"] - changed["after"]
    assert abs(found["before"] - found["after"] - less) <= 1 < less, "but for rounding"


def test_what_a_compaction_changed(diff, run, decided):
    """The messages that gave way are hidden, and the summary, number -1, comes in their place."""
    found = diff("..c1")
    assert kinds(found) == {"hidden": [0, 1, 2, 3], "new": [-1], "same": [4, 5, 6, 7, 8, 9, 10, 11]}
    assert {one["decided_by"] for one in found["changes"] if one["kind"] == "hidden"} == {"c1"}
    shown = run("diff", decided, "..c1").stdout
    assert "- #0 to #3: 4 messages" in shown
    assert "+ summary" in shown
    assert "+ what happened before" in shown


def test_what_was_said_since(diff):
    """Two numbers compare the moments just after these messages."""
    assert kinds(diff("2..5")) == {"same": [0, 1, 2], "new": [3, 4, 5]}
    assert kinds(diff("9..c1"))["new"] == [-1, 10, 11]


def test_what_an_undo_brings_back(diff, run, decided):
    """Messages that are shown again are *back*, not new, and the summary goes."""
    run("undo", decided, "c1")
    found = diff("c1..")
    assert kinds(found) == {"back": [0, 1, 2, 3], "hidden": [-1], "same": [4, 5, 6, 7, 8, 9, 10, 11]}
    assert {one["decided_by"] for one in found["changes"] if one["kind"] == "back"} == {"c1"}


def test_the_same_moment_twice(run, decided):
    """Nothing changed is said in words."""
    assert "nothing changed" in run("diff", decided, "c1..").stdout


def test_the_sums_are_those_of_the_branches(store, decided):
    """For any two moments: each side's sum is its branch's size, and what one way comes, the other way goes."""
    entries = store.read_path(decided)
    logs = [build_branch_history(entries[:stop]) for stop in range(1, len(entries) + 1)]
    for first in logs:
        for second in logs:
            found, back = compare_requests(first, second), compare_requests(second, first)
            assert (found.before, found.after) == (first.state.view.shown_tokens, second.state.view.shown_tokens)
            assert sum(one.before for one in found.changes) == found.before
            assert sum(one.after for one in found.changes) == found.after
            come = sorted(one.entry for one in found.changes if one.kind in {"new", "back"})
            assert come == sorted(one.entry for one in back.changes if one.kind == "hidden")


def test_backward_comparison_uses_the_same_measure(run, home):
    """``B..A`` shows the two sizes of ``A..B``: both are measured with what was known at the later moment."""
    sample = Path(__file__).parents[3] / "examples" / "long-session.jsonl"
    assert run("import", sample, "--as", "long").exit_code == 0
    for window in ("200000", "96000"):
        recorded = run("context", "long", "--policy", "holdfast", "--window", window, "--record", "--json")
        assert json.loads(recorded.stdout)["next_plan"]["entry_ids"]
    for first, second in (("1", "2"), ("40", "60"), ("5", "500")):
        forward = json.loads(run("diff", "long", f"{first}..{second}", "--json").stdout)
        backward = json.loads(run("diff", "long", f"{second}..{first}", "--json").stdout)
        assert (forward["before"], forward["after"]) == (backward["after"], backward["before"])


def test_two_branches(store, diff, run, decided):
    """A moment on another branch is compared by what both have in common."""
    slot = build_sized_message(Message.from_text("user", "something else"))
    store.append_entries(decided, [Entry("other", "u3", MessageEntry(slot))], expected_leaf="u3")
    found = kinds(diff("other..u5"))
    assert found == {"same": [0, 1, 2, 3], "hidden": [4], "new": [4, 5]}
    store.label_entry(decided, "other", "way not taken")
    assert kinds(diff("way not taken..u5")) == found


def test_lines_are_cut(run, decided):
    """``--lines`` says how many lines of a text are printed; what both sides begin and end with is none."""
    shown = run("diff", decided, "..d1", "--lines", "2").stdout
    assert shown.count("    - def") == 2
    assert "… 3 more lines" in shown
    assert "def" not in run("diff", decided, "..d1", "--lines", "0").stdout


@pytest.mark.parametrize(
    ("moments", "told"),
    [
        ("d1", "is not A..B"),
        ("..", "is not A..B"),
        ("", "is not A..B"),
        ("1...3", "no entry has an id that is or begins with '.3'"),
        ("1..2..3", "is not A..B"),
        ("0..99", "no message #99"),
        ("zz..", "no entry has an id that is or begins with 'zz'"),
        ("u..", "could be any of these"),
        ("\x1b[2J", "is not A..B"),
    ],
)
def test_nonsense_is_refused(run, decided, moments, told):
    """The message says how it is written, or what there is."""
    result = run("diff", decided, moments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "\x1b" not in result.stderr


def test_without_moments_some_are_named(run, decided):
    """The message can be done as it stands."""
    told = run("diff", decided).stderr
    assert "..c1 (what the newest decision changed), 0.. (everything since message 0)" in told
    assert [run("diff", decided, moments).exit_code for moments in ("..c1", "0..")] == [0, 0]


def test_an_empty_session(run, store):
    """Nothing can be named in it, and the message says so."""
    store.create_session("empty")
    assert run("diff", "empty", "0..").exit_code == 2
    assert "it has none" in run("diff", "empty", "0..").stderr
    assert run("diff", "nobody", "0..").exit_code == 2


def test_two_moments_cost_what_was_decided_between_them(work):
    """Twice as many messages that a decision each took take twice the work to compare, not four times."""
    needed = []
    for count in (100, 200):
        slots = [build_sized_message(Message.from_text("user", f"message {at} " * 20)) for at in range(count)]
        gone = [
            Edit(Span(at, at + 1), (Message.from_text("user", "-"),), "prune", "old", slots[at].tokens)
            for at in range(count)
        ]
        bodies = [*map(MessageEntry, slots), *(DecisionEntry((edit,)) for edit in gone)]
        entries = [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate(bodies)]
        before, after = build_branch_history(entries[:count]), build_branch_history(entries)
        assert [one.decided_by for one in compare_requests(before, after).changes] == [
            f"e{at}" for at in range(count, 2 * count)
        ]
        needed.append(work(lambda before=before, after=after: compare_requests(before, after)))
    assert needed[1] < 2.5 * needed[0]
