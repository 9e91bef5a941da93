"""Wrong input ends in a message and an exit code, never in a traceback or a half-done change."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import redirect_stdout

import example_counts
import pytest

from holdfast.cli import holdfast_command
from holdfast.cli.files.input_files import open_private_file
from holdfast.cli.output.errors import CommandInterrupted, describe_error, translate_error

NOT_SESSIONS = {
    "empty": b"",
    "blank": b"\n \n\n",
    "binary": bytes(range(256)),
    "text": b"hello\nworld\n",
    "nul": b"\x00" * 10,
    "deep": b"[" * 1_000_000 + b"]" * 1_000_000,
    "deep body": b'{"messages":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "utf-16": '{"type":"user"}'.encode("utf-16"),
    "unknown JSON": b'{"a": 1}',
    "number": b"42",
}


def ended_with_message(result) -> bool:
    """Return whether a command exited with a message instead of a traceback."""
    return isinstance(result.exception, SystemExit) and "Traceback" not in result.output


@pytest.mark.parametrize("kind", NOT_SESSIONS)
@pytest.mark.parametrize("verb", ["replay", "import"])
def test_replay_and_import_refuse_files_that_are_no_session(run, home, verb, kind):
    """The message names the file, and nothing is imported."""
    file = home / "odd file"
    file.write_bytes(NOT_SESSIONS[kind])
    result = run(verb, file)
    assert result.exit_code == 2
    assert ended_with_message(result)
    assert "odd file: " in result.stderr
    assert json.loads(run("ls", "--json").stdout) == []


@pytest.mark.parametrize("verb", ["replay", "import", "lint"])
def test_commands_refuse_a_folder_as_file(run, home, verb):
    """The message says to give the files in the folder."""
    result = run(verb, home)
    assert result.exit_code == 2
    assert ended_with_message(result)
    assert result.stderr.removeprefix("Error: ").startswith(f"{home} is a folder; give the files in it")


def test_replay_refuses_a_database_that_is_not_opencodes(run, home):
    """The message says what the database lacks."""
    with sqlite3.connect(home / "other.db") as database:
        database.execute("CREATE TABLE session (id)")
    database.close()
    result = run("replay", home / "other.db")
    assert result.exit_code == 2
    assert "not opencode's: message.data" in result.stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda lines: [*lines, lines[0][:60]], "line 9", id="truncated last line"),
        pytest.param(lambda lines: [*lines[:4], "{oops", *lines[4:]], "line 5", id="damaged line"),
        pytest.param(lambda lines: [*lines[:-1], lines[-1], lines[1].replace("Read", "Reed")], "u1", id="duplicate id"),
        pytest.param(lambda lines: [lines[0].replace("Please", "\\ud800"), *lines[1:]], "line 1", id="half surrogate"),
        pytest.param(lambda lines: [lines[0].replace("Please", "\\u0000"), *lines[1:]], "", id="NUL"),
        pytest.param(lambda lines: [lines[0].replace("Please", "a\u2028b\u0085c"), *lines[1:]], "", id="U+2028"),
        pytest.param(lambda lines: [*lines, '{"type":' + "[" * 1_000_000 + "]" * 1_000_000 + "}"], "line 9", id="deep"),
        pytest.param(lambda lines: [lines[0].replace("u0", "u7", 1), *lines[1:]], "", id="cyclic parents"),
        pytest.param(lambda lines: [text.replace('"u3"', '"gone"') for text in lines], "", id="missing parent"),
        pytest.param(lambda lines: [*lines[:7], lines[7].replace('"text", ', '"odd", ')], "", id="unknown block"),
    ],
)
def test_import_and_replay_accept_a_damaged_session(run, home, make_session_lines, write_lines, change, expected):
    """Damage is reported by line, and the rest is replayed, imported and shown."""
    file = write_lines(home / "damaged.jsonl", change(make_session_lines(2)))
    replayed = run("replay", file, "--policy", "holdfast", "--json", "--no-cuts")
    assert replayed.exit_code == 0
    assert json.loads(replayed.stdout)[0]["invalid_requests"] == 0
    imported = run("import", file)
    assert imported.exit_code == 0
    assert expected in imported.stdout
    assert run("show", "5e55").exit_code == 0
    assert run("context", "5e55").exit_code == 0


def test_commands_print_no_control_characters(run, home, make_session_lines, write_lines):
    """Escape sequences and line ends in recorded text are not printed as such."""
    lines = [text.replace("Please", "\\u001b[2J\\u0007\\r\\n\\u202ePlease") for text in make_session_lines(1)]
    run("import", write_lines(home / "escapes.jsonl", lines))
    for verb in ("ls", "show", "context"):
        printed = run(verb, *([] if verb == "ls" else ["5e55"])).stdout
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(printed)
        assert "Please" in printed


@pytest.mark.long
def test_import_accepts_a_line_of_50_megabytes(run, home, make_session_lines, make_session_line, write_lines):
    """A very long line is imported, and ``context`` shows its size."""
    long = make_session_line(8, "user", "x y z " * 8_500_000)
    file = write_lines(home / "long.jsonl", [*make_session_lines(2), long])
    assert file.stat().st_size > 50_000_000
    assert run("import", file).exit_code == 0
    file.unlink()
    assert json.loads(run("context", "5e55", "--json").stdout)["largest"][0]["tokens"] > 10_000_000


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.jsonl"), "a.jsonl: no such file or directory; check"),
        (PermissionError(13, "Permission denied", "a.jsonl"), "a.jsonl: permission denied; give yourself access"),
        (OSError(28, "No space left on device"), "no space left on device; free some space"),
        (
            OSError(40, "Too many levels of symbolic links", "a"),
            "a: too many levels of symbolic links; check the links",
        ),
        (OSError(5, "Input/output error", "a"), "a: input/output error; check the disk, or give another file"),
        (RecursionError("deep"), "nested too deeply"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_describe_error_gives_one_thing_to_do(error, expected):
    """Each system error has what happened and one thing to do."""
    assert expected in describe_error(error)


@pytest.mark.parametrize("arguments", [("doctor",), ("mcp", "--json")])
def test_commands_exit_2_when_the_working_folder_is_gone(run, edited_session, home, monkeypatch, arguments):
    """A command that needs the working folder says that it no longer exists."""
    missing_folder = home / "gone"
    missing_folder.mkdir()
    monkeypatch.chdir(missing_folder)
    missing_folder.rmdir()
    result = run(*arguments)
    monkeypatch.chdir(home)
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: the working folder no longer exists; change to another one\n",
    )


@pytest.mark.parametrize("arguments", [("policy", "list"), ("policy", "list", "--json"), ("--help",)])
def test_commands_exit_141_on_a_closed_pipe(arguments):
    """Piping output into ``head`` ends quietly, with a code that differs from lint's findings."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        command = [sys.executable, "-m", "holdfast", *arguments]
        result = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (141, b"")


def test_translate_error_maps_an_interrupt_to_exit_code_130():
    """^C ends with the code that shells expect."""
    error = translate_error(KeyboardInterrupt())
    assert isinstance(error, CommandInterrupted)
    assert error.exit_code == 130


def test_open_private_file_keeps_the_old_content_on_failure(home):
    """If writing fails, the old content stays and no temporary file is left."""
    file = home / "out"
    file.write_text("before")

    def interrupted() -> None:
        with open_private_file(file) as out:
            out.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in home.iterdir()] == ["out"]
    assert file.read_text() == "before"


def test_import_interrupted_leaves_the_store_unchanged(run, home, make_session_lines, make_session_line, write_lines):
    """^C during an import exits with 130, and nothing of that session is stored."""
    run("import", write_lines(home / "first.jsonl", make_session_lines(2)))
    second = home / "second"
    os.mkfifo(second)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "import", str(second)], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with second.open("wb") as feed:  # opens when the process has begun to read
        feed.write(make_session_lines(1, session="half")[0].encode())
        feed.flush()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, error_output = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in error_output
    assert [session["key"] for session in json.loads(run("ls", "--json").stdout)] == ["5e551011-aaaa"]


@pytest.mark.parametrize(
    "arguments",
    example_counts.mark_rest_long(
        [("ls",), ("policy", "show", "holdfast"), ("doctor",), ("replay", "session.jsonl", "--policy", "sliding")],
        keep=1,
    ),
)
def test_commands_exit_0_with_standard_output_closed(session, arguments):
    """With ``>&-`` the command ends without a traceback."""
    program = [sys.executable, "-m", "holdfast", *arguments]
    result = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *program], capture_output=True, check=False)
    assert result.returncode == 0
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize("options", [(), ("--jsonl",)])
def test_fix_exits_0_with_standard_output_closed(home, options):
    """``fix`` also ends as usual if it cannot print."""
    (home / "body.json").write_text('{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    program = [sys.executable, "-m", "holdfast", "fix", home / "body.json", *options]
    result = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *program], capture_output=True, check=False)
    assert (result.returncode, b"Traceback" in result.stderr) == (0, False)


@pytest.mark.parametrize(
    "arguments",
    example_counts.mark_rest_long(
        [("lint", "-"), ("fix", "-"), ("fix", "-", "--jsonl"), ("classify", "-", "--jsonl"), ("import", "-"), ("mcp",)],
        keep=2,
    ),
)
def test_commands_exit_2_with_standard_input_closed(home, arguments):
    """With ``<&-`` the message says that standard input is closed."""
    program = [sys.executable, "-m", "holdfast", *arguments]
    result = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *program], capture_output=True, check=False)
    assert (result.returncode, b"Error: standard input is closed" in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("verb", ["export", "recall"])
def test_output_option_refuses_a_dash(run, edited_session, home, monkeypatch, verb):
    """``-o -`` would create a file of that name; the message says how to use standard output."""
    monkeypatch.chdir(home)
    result = run(verb, edited_session, *(["#6"] if verb == "recall" else []), "-o", "-")
    assert (result.exit_code, (home / "-").exists()) == (2, False)
    assert "'-' is not a file name for output; leave --output out to use standard output" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--policy", ","), "names no policy"),
        (("--window", "99999999999999999999"), "1000000000"),
        (("--window", "10", "--policy", "sliding"), "has no room for messages"),
    ],
)
def test_replay_exits_2_for_impossible_options(run, session, arguments, expected):
    """An empty policy list, an absurd window or one without room exits with 2 and the reason."""
    result = run("replay", session, *arguments)
    assert result.exit_code == 2
    assert ended_with_message(result)
    assert expected in result.stderr
    assert " 0 are needed" not in result.stderr


def test_replay_does_not_take_an_empty_name_for_a_folder(run):
    """``replay ''`` is an empty file name, not the working folder."""
    result = run("replay", "")
    assert result.exit_code == 2
    assert "folder" not in result.stderr
    assert "file name is empty" in result.stderr


@pytest.mark.parametrize("verb", ["lint", "fix", "classify", "replay", "import"])
def test_commands_refuse_a_device(run, verb):
    """A device may never end, so it is not read, and the message says what to give."""
    result = run(verb, "/dev/zero")
    assert result.exit_code == 2
    assert "/dev/zero is a device, not a file; give a file, or - for standard input" in result.stderr


@pytest.mark.parametrize("verb", ["repair", "replay", "import", "lint"])
def test_commands_name_an_empty_file_name(run, verb):
    """The message begins with words, not with a colon or the working folder."""
    result = run(verb, "")
    assert result.exit_code == 2
    assert result.stderr.removeprefix("Error: ").startswith("the file name is empty")


def test_lint_fix_and_classify_recognize_a_session(run, session):
    """A recorded session given instead of a request or an error is named, with the command for it."""
    for verb in ("lint", "fix"):
        result = run(verb, session)
        assert result.exit_code != 0
        assert "a session of Claude Code: repair it with holdfast repair" in " ".join(result.output.split())
    result = run("classify", session)
    assert result.exit_code == 2
    assert "a session of Claude Code, not an error" in result.stderr
    session.write_bytes(session.read_text().encode("utf-16"))
    # repair takes no such file either, and import says what does
    message = " ".join(run("fix", session).stderr.split())
    assert "encode it as UTF-8 (this is a session of Claude Code: run holdfast import to see how" in message


def test_fix_suggests_jsonl_for_a_file_of_cases(run, home):
    """``fix`` suggests ``--jsonl`` as ``lint`` does, and with it each line is fixed."""
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
    file = home / "cases.jsonl"
    file.write_text(f"{json.dumps(body)}\n" * 2)
    result = run("fix", file)
    assert result.exit_code == 2
    assert result.stderr.endswith("(for one request per line, give --jsonl)\n")
    assert len(run("fix", file, "--jsonl").stdout.splitlines()) == 2


def test_fix_names_the_output_file_that_cannot_be_written(run, home):
    """The message names the requested file, not the temporary one."""
    file = home / "body.json"
    file.write_text(json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}))
    result = run("fix", file, "-o", home / "gone" / "x")
    assert result.stderr == f"Error: {home / 'gone' / 'x'}: no such file or directory; check the path\n"


def test_import_reports_a_system_error_without_its_number(run, session, home):
    """A system error inside another error is given in words, without errno."""
    (home / "store").mkdir()
    (home / "store" / "holdfast.db.locks").write_text("")
    result = run("import", session)
    assert result.exit_code == 2
    assert "no lock file could be made in" in result.stderr
    assert "not a directory" in result.stderr
    assert "[Errno" not in result.stderr


def test_replay_prints_one_line_for_one_bad_file(run):
    """One unreadable file is one line; several are one line each and a summary."""
    assert run("replay", "gone").stderr == "Error: gone: no such file or directory; check the path\n"
    assert run("replay", "gone", "lost").stderr.count("\n") == 3


@pytest.mark.parametrize("verb", ["lint", "fix", "classify"])
def test_jsonl_commands_accept_an_empty_file(run, home, verb):
    """No input lines yield no output lines, for a file and for standard input."""
    (home / "empty").touch()
    for file in ("empty", "-"):
        result = run(verb, "--jsonl", file, stdin="")
        assert (result.exit_code, result.stdout) == (0, ""), file


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls", "--help"], []])
def test_help_on_a_full_disk_exits_2(arguments, capsys):
    """A help page that cannot be printed is an error without a traceback."""

    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SystemExit) as ended, redirect_stdout(Full()):
        holdfast_command.main(arguments, prog_name="holdfast")
    assert (ended.value.code, capsys.readouterr().err) == (2, "Error: no space left on device; free some space\n")


def test_replay_counts_one_message_in_the_singular(run, home):
    """A session with one message is described in the singular."""
    (home / "body.json").write_text('{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}')
    assert "recorded in it (1 message); nothing to replay" in run("replay", "body.json").stderr
