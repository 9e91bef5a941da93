"""In a narrow terminal lines wrap: no number is cut off, and a command to paste stays on one line."""

from __future__ import annotations

import json
import shlex

import pytest

from holdfast.cli.output.terminal import DEFAULT_WIDTH, make_console, print_wrapped
from holdfast.state.entries import AnswerEntry, Entry, RequestEntry, Usage
from holdfast.store.open_store import open_store

KEY = "0f8fad5b-d9cb-469f-a165-70867728950e"
TWIN = "0f8fad5b-1111-469f-a165-70867728950e"


@pytest.fixture
def reduced_session(run, home, make_session_lines, write_lines, monkeypatch):
    """Return the id of a session, with 80 columns and no colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    run("import", write_lines(home / "long.jsonl", make_session_lines(24, session=KEY, words=150)))
    return KEY


@pytest.fixture
def recorded_output(run, reduced_session):
    """Reduce the session and return what ``context --record`` printed."""
    return run("context", reduced_session, "--policy", "holdfast", "--window", "16000", "--record").stdout


def join_lines(text: str) -> str:
    """Return a text with its lines joined into one."""
    return " ".join(text.split())


def test_print_wrapped_indents_continuation_lines(capsys, monkeypatch):
    """All words are printed in order within the width, continuation lines are indented, and a short line stays as it
    is.
    """
    from rich.text import Text

    monkeypatch.setenv("COLUMNS", "40")
    words = " ".join(f"word{number}" for number in range(30))
    print_wrapped(make_console(), Text(words))
    first_line, *other_lines = capsys.readouterr().out.splitlines()
    assert join_lines(" ".join([first_line, *other_lines])) == words
    assert len(other_lines) >= 3
    assert all(line.startswith("    word") and len(line) <= 40 for line in other_lines)
    print_wrapped(make_console(), Text("  short"))
    assert capsys.readouterr().out == "  short\n"


@pytest.mark.parametrize("columns", ["0", "00", "-5", "wide", ""])
def test_a_width_that_is_none_leaves_the_usual_one(capsys, monkeypatch, columns):
    """``COLUMNS`` with no number above 0 counts as not set; with a 0 nothing at all used to be printed."""
    monkeypatch.setenv("COLUMNS", columns)
    console = make_console()
    assert console.width == DEFAULT_WIDTH
    console.print("kelp")
    assert capsys.readouterr().out == "kelp\n"


def test_context_wraps_the_plan_without_cutting_numbers(recorded_output, run, reduced_session):
    """Sizes before and after, and those of each rule, are complete at 80 columns."""
    plan_text = join_lines(recorded_output.partition("holdfast (cache")[2])
    assert "…" not in plan_text.replace(", …", "")
    decisions = json.loads(run("undo", reduced_session, "--list", "--json").stdout)["in_force"]
    assert decisions
    assert "→" in plan_text
    assert plan_text.partition("→")[2].split()[1].startswith("tokens")


def test_undo_list_wraps_decisions_without_cutting_numbers(recorded_output, run, reduced_session):
    """Each active decision is listed with all its numbers, before its id."""
    listed = run("undo", reduced_session, "--list").stdout
    printed = join_lines("\n".join(listed.splitlines()[1:]))
    assert "…" not in printed
    for decision in json.loads(run("undo", reduced_session, "--list", "--json").stdout)["in_force"]:
        numbers = f"without it ~{decision['token_growth']:,} tokens more, {decision['messages']:,} message"
        assert -1 < printed.find(numbers) < printed.find(decision["id"][:8])
    assert all(len(line) <= 80 for line in listed.splitlines())


def test_diff_wraps_changes_without_cutting_reasons(recorded_output, run, reduced_session):
    """Sizes and reasons are complete; only message text is cut."""
    printed = join_lines(run("diff", reduced_session, "95..", "--lines", "0").stdout)
    report = json.loads(run("diff", reduced_session, "95..", "--json").stdout)
    assert f"{report['after']:,} tokens ({report['after'] - report['before']:+,})" in printed
    reasons = {change["why"] for change in report["changes"] if change.get("decided_by")}
    assert reasons
    assert all(join_lines(why) in printed for why in reasons)


def test_stats_prints_whole_headings_and_figures(run, reduced_session, home):
    """Column headings are whole words, and large numbers are complete."""
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(reduced_session).leaf_id
        usage = Usage(input=2_345_678_901, output=123_456_789)
        request = Entry("r", leaf, RequestEntry("b", 12, "claude-sonnet-4-5"))
        store.append_entries(reduced_session, [request, Entry("a", "r", AnswerEntry("b", usage))])
    printed = run("stats").stdout
    dollars = json.loads(run("stats", "--json").stdout)["all"]["dollars"]
    assert dollars > 1_000
    assert "…" not in printed
    assert printed.splitlines()[-1].split()[0] == "all"
    assert f" {dollars:,.2f} " in printed
    assert {"session", "requests", "saved", "total", "cache", "hit", "dollars", "breaks", "spilled"} <= {
        *printed.split()
    }
    assert all(len(line) <= 80 for line in printed.splitlines())


@pytest.mark.parametrize("width", [40, 50, 60, 72, 80, 100])
def test_ls_and_stats_drop_columns_before_cutting_figures(
    run, reduced_session, recorded_output, home, monkeypatch, width
):
    """A narrow terminal loses the least important columns, every figure stays complete, and ``stats`` says which
    columns are missing.
    """
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(reduced_session).leaf_id
        usage = Usage(input=345_678, output=789)
        request = Entry("r", leaf, RequestEntry("b", 12, "claude-sonnet-4-5", 400_000))
        store.append_entries(reduced_session, [request, Entry("a", "r", AnswerEntry("b", usage))])
    monkeypatch.setenv("COLUMNS", str(width))
    (session_figures,) = json.loads(run("stats", "--json").stdout)["sessions"]
    listed, of_all, of_session = run("ls").stdout, run("stats").stdout, run("stats", reduced_session).stdout
    (listed_session,) = json.loads(run("ls", "--json").stdout)
    assert f"~{listed_session['tokens']:,}" in listed.splitlines()[1].split(), "a count that is not believed"
    figures = {
        f"{session_figures['saved_tokens']:,}",
        f"{session_figures['dollars']:,.2f}",
        f"{session_figures['largest']['sent_upstream']:,}",
    }
    assert figures <= {*of_all.split()}
    lines = of_all.splitlines() + of_session.splitlines()
    assert all(len(line) <= width for line in lines + listed.splitlines())
    assert (f"{session_figures['saved_in_total']:,}" in of_all.split()) != (
        "saved in total" in join_lines(of_all.partition("wider")[2])
    )
    (rule, *_) = [name for name in session_figures["rules"] if name["saved_tokens"]]
    assert any(
        line.startswith(rule["rule"]) and f"{rule['saved_tokens']:,}" in line.split()
        for line in of_session.splitlines()
    )
    words = [word for line in of_all.splitlines() if line.startswith("all") for word in line.split()]
    assert all(any(mark.isdigit() for mark in word) or word in {"all", "-"} for word in words)


def test_why_prints_commands_on_one_line(recorded_output, run, reduced_session, home, make_session_lines, write_lines):
    """``why`` prints commands that run as they are, with the shortest unique session id."""
    run("import", write_lines(home / "twin.jsonl", make_session_lines(1, session=TWIN)))
    (line, *_) = [line for line in _find_why_lines(run, reduced_session) if "holdfast recall" in line]
    command = shlex.split(line.partition(": holdfast ")[2])
    assert command[1] == "0f8fad5b-d"
    assert run(*command).exit_code == 0
    (line, *_) = [line for line in _find_why_lines(run, reduced_session) if "holdfast undo" in line]
    assert run(*shlex.split(line.partition(": holdfast ")[2])).exit_code == 0


def _find_why_lines(run, key: str) -> list[str]:
    """Return the lines of ``why`` for the first message that can be recalled."""
    for number in range(96):
        lines = run("why", key, str(number)).stdout.splitlines()
        if any("holdfast recall" in line for line in lines):
            return lines
    raise AssertionError("nothing can be read back")


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_commands_print_lines_within_the_width(run, reduced_session, recorded_output, monkeypatch, width):
    """At any width no line is longer or ends in blanks, and the figures of ``context`` are complete."""
    monkeypatch.setenv("COLUMNS", str(width))
    report = json.loads(run("context", reduced_session, "--json").stdout)
    printed = run("context", reduced_session).stdout
    for kind, tokens in report["kinds"].items():
        assert any(line.split()[:2] == [kind, f"{tokens:,}"] for line in printed.splitlines())
    assert f"usable {report['usable']:,}" in join_lines(printed)
    others = [
        run(*words).stdout
        for words in (("doctor",), ("ls",), ("branch", reduced_session), ("show", reduced_session), ("stats",))
    ]
    for line in "\n".join([printed, *others]).splitlines():
        assert len(line) <= width
        assert line == line.rstrip()


def test_show_keeps_message_text_in_a_narrow_terminal(run, reduced_session, monkeypatch):
    """``show`` drops the time and then the id to keep text; ``branch`` keeps its counts."""
    monkeypatch.setenv("COLUMNS", "40")
    (line,) = [
        text_line for text_line in run("show", reduced_session).stdout.splitlines() if text_line.split()[0] == "#0"
    ]
    assert "Please" in line
    assert "96 messages" in join_lines(run("branch", reduced_session).stdout)
