"""At 80 columns a line goes on below: no number is cut off, and what is printed to be pasted is one line."""

from __future__ import annotations

import json
import shlex

import pytest

from holdfast.cli.output.terminal import make_console, print_wrapped
from holdfast.state.entries import AnswerEntry, Entry, RequestEntry, Usage
from holdfast.store.open_store import open_store

KEY = "0f8fad5b-d9cb-469f-a165-70867728950e"
TWIN = "0f8fad5b-1111-469f-a165-70867728950e"


@pytest.fixture
def reduced(run, home, talk, write, monkeypatch):
    """Return the id of a session that was reduced; lines have 80 columns, and no colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    run("import", write(home / "long.jsonl", talk(24, session=KEY, words=150)))
    return KEY


@pytest.fixture
def recording(run, reduced):
    """Return what ``context`` printed while it recorded what it decided."""
    return run("context", reduced, "--policy", "holdfast", "--window", "16000", "--record").stdout


def joined(text: str) -> str:
    """Return a text with its lines as one."""
    return " ".join(text.split())


def test_a_line_goes_on_below(capsys, monkeypatch):
    """All words are there in their order, the lines fit, and what goes on is set in; a short line is left alone."""
    from rich.text import Text

    monkeypatch.setenv("COLUMNS", "40")
    words = " ".join(f"word{number}" for number in range(30))
    print_wrapped(make_console(), Text(words))
    first, *rest = capsys.readouterr().out.splitlines()
    assert joined(" ".join([first, *rest])) == words
    assert len(rest) >= 3
    assert all(line.startswith("    word") and len(line) <= 40 for line in rest)
    print_wrapped(make_console(), Text("  short"))
    assert capsys.readouterr().out == "  short\n"


def test_what_a_policy_decides(recording, run, reduced):
    """Sizes before and after, and those of each rule, are read to the end."""
    told = joined(recording.partition("holdfast (cache")[2])
    assert "…" not in told.replace(", …", "")
    before = json.loads(run("undo", reduced, "--list", "--json").stdout)["in_force"]
    assert before
    assert "→" in told
    assert told.partition("→")[2].split()[1].startswith("tokens")


def test_what_undo_would_bring_back(recording, run, reduced):
    """Each decision in force is listed with all of its numbers, and they come before the names of rules."""
    shown = run("undo", reduced, "--list").stdout
    told = joined("\n".join(shown.splitlines()[1:]))
    assert "…" not in told
    for one in json.loads(run("undo", reduced, "--list", "--json").stdout)["in_force"]:
        numbers = f"without it ~{one['token_growth']:,} tokens more, {one['messages']:,} message"
        assert -1 < told.find(numbers) < told.find(one["id"][:8])
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_every_change_of_a_diff(recording, run, reduced):
    """Sizes and reasons are whole; only words of the messages are cut."""
    told = joined(run("diff", reduced, "95..", "--lines", "0").stdout)
    found = json.loads(run("diff", reduced, "95..", "--json").stdout)
    assert f"{found['after']:,} tokens ({found['after'] - found['before']:+,})" in told
    reasons = {one["why"] for one in found["changes"] if one.get("decided_by")}
    assert reasons
    assert all(joined(why) in told for why in reasons)


def test_figures_of_all_sessions(run, reduced, home):
    """The heads of columns are whole words, and large numbers are whole."""
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(reduced).leaf_id
        usage = Usage(input=2_345_678_901, output=123_456_789)
        request = Entry("r", leaf, RequestEntry("b", 12, "claude-sonnet-4-5"))
        store.append_entries(reduced, [request, Entry("a", "r", AnswerEntry("b", usage))])
    shown = run("stats").stdout
    dollars = json.loads(run("stats", "--json").stdout)["all"]["dollars"]
    assert dollars > 1_000
    assert "…" not in shown
    assert shown.splitlines()[-1].split()[0] == "all"
    assert f" {dollars:,.2f} " in shown
    assert {"session", "requests", "saved", "total", "cache", "hit", "dollars", "breaks", "spilled"} <= {*shown.split()}
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("width", [40, 50, 60, 72, 80, 100])
def test_no_figure_is_cut_in_a_narrow_terminal(run, reduced, recording, home, monkeypatch, width):
    """Columns go, the least first, until each figure is whole; of figures of ``stats`` is said which went."""
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(reduced).leaf_id
        usage = Usage(input=345_678, output=789)
        request = Entry("r", leaf, RequestEntry("b", 12, "claude-sonnet-4-5", 400_000))
        store.append_entries(reduced, [request, Entry("a", "r", AnswerEntry("b", usage))])
    monkeypatch.setenv("COLUMNS", str(width))
    (found,) = json.loads(run("stats", "--json").stdout)["sessions"]
    listed, every, one = run("ls").stdout, run("stats").stdout, run("stats", reduced).stdout
    (told,) = json.loads(run("ls", "--json").stdout)
    assert f"~{told['tokens']:,}" in listed.splitlines()[1].split(), "a count that is not believed"
    figures = {f"{found['saved_tokens']:,}", f"{found['dollars']:,.2f}", f"{found['largest']['sent_upstream']:,}"}
    assert figures <= {*every.split()}
    lines = every.splitlines() + one.splitlines()
    assert all(len(line) <= width for line in lines + listed.splitlines())
    assert (f"{found['saved_in_total']:,}" in every.split()) != (
        "saved in total" in joined(every.partition("wider")[2])
    )
    (rule, *_) = [name for name in found["rules"] if name["saved_tokens"]]
    assert any(
        line.startswith(rule["rule"]) and f"{rule['saved_tokens']:,}" in line.split() for line in one.splitlines()
    )
    words = [word for line in every.splitlines() if line.startswith("all") for word in line.split()]
    assert all(any(mark.isdigit() for mark in word) or word in {"all", "-"} for word in words)


def test_a_command_to_paste_is_one_line(recording, run, reduced, home, talk, write):
    """``why`` prints commands that run as they stand, with the shortest id that means this session alone."""
    run("import", write(home / "twin.jsonl", talk(1, session=TWIN)))
    (line, *_) = [line for line in _why(run, reduced) if "holdfast recall" in line]
    command = shlex.split(line.partition(": holdfast ")[2])
    assert command[1] == "0f8fad5b-d"
    assert run(*command).exit_code == 0
    (line, *_) = [line for line in _why(run, reduced) if "holdfast undo" in line]
    assert run(*shlex.split(line.partition(": holdfast ")[2])).exit_code == 0


def _why(run, key: str) -> list[str]:
    """Return the lines on the first message that can be read back."""
    for number in range(96):
        lines = run("why", key, str(number)).stdout.splitlines()
        if any("holdfast recall" in line for line in lines):
            return lines
    raise AssertionError("nothing can be read back")


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_lines_fit_and_end_without_blanks(run, reduced, recording, monkeypatch, width):
    """Whatever the width: no line is longer, none ends with blanks, and the figures of ``context`` are whole."""
    monkeypatch.setenv("COLUMNS", str(width))
    found = json.loads(run("context", reduced, "--json").stdout)
    shown = run("context", reduced).stdout
    for kind, tokens in found["kinds"].items():
        assert any(line.split()[:2] == [kind, f"{tokens:,}"] for line in shown.splitlines())
    assert f"usable {found['usable']:,}" in joined(shown)
    others = [
        run(*words).stdout for words in (("doctor",), ("ls",), ("branch", reduced), ("show", reduced), ("stats",))
    ]
    for line in "\n".join([shown, *others]).splitlines():
        assert len(line) <= width
        assert line == line.rstrip()


def test_a_narrow_terminal_shows_what_was_said(run, reduced, monkeypatch):
    """Of a line of ``show`` the time goes and then the id, so that words are left; of a branch its last words go."""
    monkeypatch.setenv("COLUMNS", "40")
    (line,) = [one for one in run("show", reduced).stdout.splitlines() if one.split()[0] == "#0"]
    assert "Please" in line
    assert "96 messages" in joined(run("branch", reduced).stdout)
