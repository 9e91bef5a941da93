"""``holdfast watch``: one view, JSON lines, wrong input, and a real terminal that is interrupted."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from rich.cells import cell_len
from terminal_output import read_until

from holdfast.cli.always_on.user_instances import load_instances


def test_watch_once_prints_one_view(run, edited_session):
    """The view has a heading and a line for the session, and ends by itself."""
    result = run("watch", "--once")
    assert result.exit_code == 0, result.output
    heading, row, *_ = result.stdout.splitlines()
    assert heading.split()[0] == "session"
    assert "compacted ~900 → ~500" in row
    assert max(map(cell_len, result.stdout.splitlines())) <= 100


def test_watch_without_a_terminal_prints_one_view(run, edited_session):
    """Output to a pipe or a file is not a live view: it would never end and repeat itself."""
    assert run("watch").stdout == run("watch", "--once").stdout


def test_watch_json_prints_one_object_a_line(run, edited_session):
    """Each session is one line of JSON with its figures."""
    result = run("watch", "--once", "--json")
    (line,) = result.stdout.splitlines()
    record = json.loads(line)
    assert (record["session"], record["compactions"], record["client"]) == (edited_session, 1, "claude-code")
    assert record["window"] > record["tokens"] > 0
    assert record["decision"].startswith("compacted")


@pytest.mark.parametrize("arguments", [["--once"], ["--once", "--json"]])
def test_watch_says_what_to_do_without_a_store(run, arguments):
    """Without a store it says so and how to get sessions; that is no error, and no store is created."""
    result = run("watch", *arguments)
    assert result.exit_code == 0
    assert "there is no store" in result.output
    assert "holdfast run -- claude" in " ".join(result.output.split())
    assert "there is no store" in run("watch", *arguments).output


def test_watch_says_what_to_do_with_an_empty_store(run, store):
    """A store without sessions is told from a missing one."""
    key = store.create_session("gone").key
    store.remove_session(key)
    assert "no sessions in" in run("watch", "--once").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "nonsense"], "is not an address"),
        (["--url", "https://example.com"], "is not on this machine"),
        (["--interval", "0"], "0"),
        (["--interval", "soon"], "'soon' is not a number"),
        (["--interval", "nan"], "not a number"),
        (["--store", "."], "folder"),
        (["--store", "mysql://there/x"], "mysql"),
        (["extra"], "extra"),
    ],
)
def test_watch_refuses_wrong_input_in_plain_words(run, arguments, words):
    """Wrong use ends with exit code 2 or 1, one message and no traceback."""
    result = run("watch", "--once", *arguments)
    assert result.exit_code in {1, 2}
    assert words in result.output
    assert "Traceback" not in result.output


def test_watch_url_says_that_no_proxy_answers(run, edited_session, unused_tcp_port):
    """A proxy that does not run is named above the table, which is shown all the same."""
    result = run("watch", "--once", "--url", f"http://127.0.0.1:{unused_tcp_port}")
    assert result.exit_code == 0
    assert "no server answers" in result.stdout
    assert "compacted" in result.stdout
    assert load_instances() == []


def test_watch_url_reads_the_store_of_an_enabled_proxy(run, edited_session, unused_tcp_port, home):
    """The store of a proxy that holdfast enable keeps is watched by its address; --store still names another one."""
    other = home / "other.db"
    arguments = ("--client", "claude-code", "--port", unused_tcp_port, "--no-service", "--store", other, "--yes")
    enabled = run("enable", *arguments)
    assert enabled.exit_code == 0, enabled.output
    (instance,) = load_instances()
    assert str(other) in "".join(run("watch", "--once", "--url", instance.url).output.split())
    usual = home / "store" / "holdfast.db"
    assert "compacted" in run("watch", "--once", "--url", instance.url, "--store", usual).output


@pytest.fixture
def unused_tcp_port() -> int:
    """Return a port of this machine on which nothing listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("no_color", [False, True])
def test_watch_in_a_terminal_shows_sessions_as_they_come_until_interrupted(run, session, no_color):
    """It waits for the first session, shows it, and Ctrl-C ends it with exit code 0 and no traceback.

    With NO_COLOR there is no color in the output.
    """
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = "1"
    master, terminal = pty.openpty()
    program = [sys.executable, "-m", "holdfast", "watch", "--interval", "0.1"]
    process = subprocess.Popen(program, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    output = read_until(master, b"", b"waiting")
    assert b"there is no store" in output
    assert run("import", session).exit_code == 0
    output = read_until(master, output, b"claude-sonnet-4-5")
    process.send_signal(signal.SIGINT)
    output = read_until(master, output, None)
    os.close(master)
    assert process.wait(timeout=20) == 0
    assert b"Traceback" not in output
    assert bool(re.search(rb"\x1b\[[0-9;]*3[1-6]m", output)) is not no_color


def test_watch_json_prints_a_line_for_each_change_until_interrupted(run, session, long_session):
    """Without --once the lines go on: one for each session, as it comes. Ctrl-C ends it with exit code 0."""
    assert run("import", session).exit_code == 0
    program = [sys.executable, "-m", "holdfast", "watch", "--json", "--interval", "0.1"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["session"] == "5e551011-aaaa"
        assert run("import", long_session).exit_code == 0
        assert json.loads(process.stdout.readline())["session"] == "10009-bbbb"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert (process.returncode, rest, errors) == (0, b"", b"")
