"""``holdfast stats --by`` and the options that choose days and sessions, also of ``ls``: output and wrong input."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest
from rich.cells import cell_len
from terminal_output import read_until

from holdfast.cli.output.session_filters import SessionOptions, parse_day
from holdfast.state.entries import AnswerEntry, Entry, RequestEntry, Usage
from holdfast.store.base import SessionInfo

EXAMPLE_KEY = "5e551011-aaaa"


@pytest.fixture
def two_sessions(run, session, store):
    """Import a session of 2026-01-01 in /srv/shop, and add one below it, of other models and two days before today."""
    assert run("import", session).exit_code == 0
    at = int((datetime.now(UTC) - timedelta(days=2)).timestamp() * 1_000)
    store.create_session("other", SessionInfo("other", cwd="/srv/shop/deep", format="codex"))
    entries = []
    for number, model in enumerate(("gpt-5", "nobody-knows")):
        parent = entries[-1].id if entries else None
        entries.append(Entry(f"r{number}", parent, RequestEntry("d", 0, model), time_ms=at))
        usage = Usage(30_000, 100, 20_000)
        entries.append(Entry(f"a{number}", f"r{number}", AnswerEntry("d", usage), time_ms=at))
    store.append_entries("other", entries)
    return store


def ask(run, *arguments):
    result = run("stats", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("by", ["day", "week", "month", "project", "model", "tool", "session"])
def test_stats_by_has_the_totals_of_stats(run, two_sessions, by):
    """The total of all groups, and their sum, are the figures of stats without --by."""
    report = ask(run, "--by", by)
    whole = json.loads(run("stats", "--json").stdout)["all"]
    for name in ("requests", "input", "output", "cache_read", "cache_write", "unpriced_calls"):
        assert report["all"][name] == whole[name] == sum(group[name] for group in report["groups"]), name
    assert report["all"]["dollars"] == pytest.approx(whole["dollars"], abs=0.0001)
    parts = ("fresh_input_dollars", "cache_read_dollars", "cache_write_dollars", "output_dollars")
    assert sum(report["all"][name] for name in parts) == pytest.approx(whole["dollars"], abs=0.0001)
    assert report["all"]["sessions"] == 2
    assert all(group[by] for group in report["groups"])


def test_stats_by_counts_what_was_saved_as_stats_does(run, edited_session, store):
    """Savings are those of stats, in the model's tokens."""
    store.append_entries(edited_session, [Entry("b1", "c1", RequestEntry("b1", 12))])
    (group,) = ask(run, "--by", "tool")["groups"]
    account = json.loads(run("stats", edited_session, "--json").stdout)
    assert group["saved_tokens"] == pytest.approx(account["saved_in_total"], abs=1)
    assert account["saved_in_total"] != 0
    assert group["saved_dollars"] == pytest.approx(account["saved_dollars"])


def test_stats_by_one_session_counts_that_one(run, two_sessions):
    """With SESSION, all groups are of it; its id may be shortened."""
    report = ask(run, "othe", "--by", "model")
    assert [(group["model"], group["requests"]) for group in report["groups"]] == [("gpt-5", 1), ("nobody-knows", 1)]
    assert report["groups"][1]["dollars"] is None
    assert report["groups"][1]["unpriced_calls"] == 1


@pytest.mark.parametrize(
    ("options", "sessions"),
    [
        (["--since", "7d"], ["other"]),
        (["--since", "1w", "--until", "today"], ["other"]),
        (["--since", "2026-01-01", "--until", "20260101", "--utc"], [EXAMPLE_KEY]),
        (["--until", "2025-12-30"], []),
        (["--project", "/srv/shop"], [EXAMPLE_KEY, "other"]),
        (["--project", "/srv/shop/deep/"], ["other"]),
        (["--project", "/wor"], []),
        (["--model", "GPT-*"], ["other"]),
        (["--model", "gpt"], []),
        (["--tool", "Codex"], ["other"]),
        (["--tool", "claude-code", "--model", "claude-sonnet-4-5"], [EXAMPLE_KEY]),
        (["--tool", "codex", "--model", "claude-sonnet-4-5"], []),
    ],
)
def test_filters_choose_the_same_sessions_in_stats_and_ls(run, two_sessions, options, sessions):
    """Both commands read the options alike; stats with a filter and no --by has a line for each session."""
    report = ask(run, *options)
    assert sorted(group["session"] for group in report["groups"]) == sessions
    listed = run("ls", *options, "--json")
    assert sorted(record["key"] for record in json.loads(listed.stdout)) == sessions
    printed = run("stats", *options).stdout + run("ls", *options).stdout
    assert ("no request matches" in printed) is ("no session matches" in printed) is (not sessions)


def test_project_is_relative_to_the_working_folder(run, store, home, monkeypatch):
    """``--project .`` is the folder in which the command runs."""
    (home / "sub").mkdir()
    store.create_session("s", SessionInfo("s", cwd=str(home / "sub")))
    assert len(json.loads(run("ls", "--project", ".", "--json").stdout)) == 1
    assert len(json.loads(run("ls", "--project", "~/sub", "--json").stdout)) == 1
    assert json.loads(run("ls", "--project", "su", "--json").stdout) == []
    monkeypatch.chdir(home / "sub")
    assert len(json.loads(run("ls", "--project", ".", "--json").stdout)) == 1


@pytest.mark.parametrize("command", ["stats", "ls"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "soon"], "'soon' is not a day; write 2026-11-30"),
        (["--since", ""], "'' is not a day"),
        (["--until", "2026-02-30"], "is not in the calendar"),
        (["--until", "0000-01-01"], "is not in the calendar"),
        (["--since", "99999d"], "is not a day"),
        (["--since", "-1d"], "is not a day"),
        (["--since", "２０２６-01-01"], "is not a day"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "--since 2026-01-02 is after --until 2026-01-01"),
        (["--since", "today", "--until", "yesterday"], "give the earlier day to --since"),
    ],
)
def test_wrong_days_are_refused_in_plain_words(run, two_sessions, command, options, words):
    """A day that is none, or two in the wrong order, ends with exit code 2, one message and no traceback."""
    result = run(command, *options)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--by", "hour"], "'hour' is not one of 'day'"),
        (["--live", "--json"], "--live is for a terminal"),
        (["--by", "day", "--foresee"], "leave out --by"),
        (["--since", "7d", "--no-foresee"], "leave out --by"),
    ],
)
def test_wrong_use_of_groups_is_refused(run, two_sessions, options, words):
    """Unknown groups, and options that exclude each other, are usage errors."""
    result = run("stats", *options)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_an_unknown_session_is_an_error(run, two_sessions):
    """A session that does not exist is no empty report."""
    result = run("stats", "nosuch", "--by", "day")
    assert result.exit_code == 2
    assert "no session is 'nosuch'" in result.output


@pytest.mark.parametrize("width", [30, 50, 80, 100, 200])
@pytest.mark.parametrize("by", ["day", "project", "session"])
def test_the_table_fits_any_terminal_with_no_figure_cut(run, two_sessions, monkeypatch, width, by):
    """Columns that do not fit are named below the table; the cost is always there, a dash where it is not known."""
    folder = "/srv/shop/" + "a-long-name/" * 9
    two_sessions.create_session("far", SessionInfo("far", cwd=folder))
    two_sessions.append_entries("far", [Entry("r", None, RequestEntry("d", 0, "nobody-knows"))])
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    output = run("stats", "--by", by).stdout
    assert max(map(cell_len, output.splitlines())) <= width
    assert "…" not in output
    assert "\x1b" not in output
    assert "dollars" in output
    assert "all" in output
    joined = " ".join(output.split())
    assert ("hidden columns" in joined) is (width < 200)
    assert "2 calls of models without a known price" in joined
    if by == "project":
        assert folder.rstrip("/") in re.sub(r"\s|[\d,.~-]+\s", "", output) or width < 200


def test_limit_shortens_the_list_and_totals_cover_all(run, two_sessions, monkeypatch):
    """The rest is counted on standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    result = run("stats", "--by", "model", "--limit", "1")
    assert result.stdout.splitlines()[1].startswith("claude-sonnet-4-5")
    assert "… and 2 groups; --limit shows more" in result.stderr
    report = ask(run, "--by", "model", "--limit", "1")
    assert len(report["groups"]) == 1
    assert report["all"]["requests"] == 8


@pytest.mark.parametrize("options", [["--by", "day"], ["--live"], ["--by", "day", "--json"]])
def test_stats_by_says_what_to_do_without_a_store(run, options):
    """No store is no error; it says how one comes to be, and JSON stays JSON."""
    result = run("stats", *options)
    assert result.exit_code == 0
    if "--json" in options:
        assert json.loads(result.stdout)["groups"] == []
    else:
        assert "there is no store" in result.output


def test_a_damaged_session_is_named_and_the_others_are_shown(run, two_sessions, home):
    """Text and JSON name it; ls names it if its models are asked for."""
    import sqlite3

    with sqlite3.connect(home / "store" / "holdfast.db") as db:
        db.execute("UPDATE entries SET body = x'00' WHERE id = 'r0'")
    db.close()
    result = run("stats", "--by", "session")
    assert result.exit_code == 0
    assert "left out, since it cannot be read: other" in result.stdout
    assert EXAMPLE_KEY[:8] in result.stdout
    assert [left_out["session"] for left_out in ask(run, "--by", "day")["left_out"]] == ["other"]
    result = run("stats")
    assert result.exit_code == 0
    assert "left out, since it cannot be read: other" in result.stdout
    accounts = ask(run)
    assert [account["session"] for account in accounts["sessions"]] == [EXAMPLE_KEY]
    assert [left_out["session"] for left_out in accounts["left_out"]] == ["other"]
    listed = run("ls", "--model", "*")
    assert "left out, since it cannot be read: other" in listed.stderr
    assert EXAMPLE_KEY[:8] in listed.stdout


def test_live_without_a_terminal_is_one_print(run, two_sessions):
    """Output to a pipe or a file would never end and repeat itself."""
    assert run("stats", "--by", "model", "--live").stdout == run("stats", "--by", "model").stdout


@pytest.mark.parametrize("no_color", [False, True])
def test_live_in_a_terminal_shows_the_groups_until_interrupted(run, two_sessions, no_color):
    """The total stays visible in a low terminal, and Ctrl-C ends it with exit code 0 and no traceback."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "6"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = "1"
    master, terminal = pty.openpty()
    program = [sys.executable, "-m", "holdfast", "stats", "--by", "model", "--live"]
    process = subprocess.Popen(program, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    output = read_until(master, b"", b"all ")
    process.send_signal(signal.SIGINT)
    output = read_until(master, output, None)
    os.close(master)
    assert process.wait(timeout=20) == 0
    assert b"Traceback" not in output
    assert b"claude-sonnet-4-5" in output
    assert bool(re.search(rb"\x1b\[[0-9;]*3[1-6]m", output)) is False


@pytest.mark.parametrize("command", ["stats", "ls"])
def test_help_has_examples_with_the_new_options(run, command):
    """Each option is in the help, and an example shows how they are used."""
    text = run(command, "--help").stdout
    for option in ("--since DAY", "--until DAY", "--utc", "--project FOLDER", "--model NAME", "--tool NAME"):
        assert option in text
    assert f"holdfast {command} --" in text.partition("Examples:")[2]


def test_days_are_counted_from_today():
    """``7d`` is the day a week ago, also over the end of a month; the options agree on what today is."""
    context, parameter = None, None
    assert parse_day(context, parameter, " 7D ").resolve(date(2026, 3, 3)) == date(2026, 2, 24)  # type: ignore[arg-type, union-attr]
    assert parse_day(context, parameter, "2w").resolve(date(2026, 1, 10)) == date(2025, 12, 27)  # type: ignore[arg-type, union-attr]
    assert SessionOptions(is_utc=True).has_any
    assert not SessionOptions().has_any
