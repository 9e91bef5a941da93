"""Wrong input ends in a message and an exit code, never in a traceback, and never half-done."""

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

from holdfast.cli import command
from holdfast.cli.files.input_files import open_private_file
from holdfast.cli.output.errors import CommandInterrupted, describe_error, translate_error

ODD = {
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


def is_a_message(result) -> bool:
    """Return whether a run ended with a message: an exit, and no traceback."""
    return isinstance(result.exception, SystemExit) and "Traceback" not in result.output


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("verb", ["replay", "import"])
def test_what_is_no_session_is_refused_with_a_message(run, home, verb, what):
    """Neither is a session; both verbs say so and name the file."""
    file = home / "odd file"
    file.write_bytes(ODD[what])
    result = run(verb, file)
    assert result.exit_code == 2
    assert is_a_message(result)
    assert "odd file: " in result.stderr
    assert json.loads(run("ls", "--json").stdout) == []


@pytest.mark.parametrize("verb", ["replay", "import", "lint"])
def test_a_folder_is_refused_with_a_message(run, home, verb):
    """A folder is no file, and the message says what to give."""
    result = run(verb, home)
    assert result.exit_code == 2
    assert is_a_message(result)
    assert result.stderr.removeprefix("Error: ").startswith(f"{home} is a folder; give the files in it")


def test_a_database_of_something_else_is_refused(run, home):
    """A database that is not opencode's is named, with what is missing in it."""
    with sqlite3.connect(home / "other.db") as database:
        database.execute("CREATE TABLE session (id)")
    database.close()
    result = run("replay", home / "other.db")
    assert result.exit_code == 2
    assert "not opencode's: message.data" in result.stderr


@pytest.mark.parametrize(
    ("change", "told"),
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
def test_a_damaged_session_is_taken_as_far_as_it_goes(run, home, talk, write, change, told):
    """What is wrong is told by its line; what is good is replayed, imported and shown."""
    file = write(home / "damaged.jsonl", change(talk(2)))
    replayed = run("replay", file, "--policy", "holdfast", "--json", "--no-cuts")
    assert replayed.exit_code == 0
    assert json.loads(replayed.stdout)[0]["invalid_requests"] == 0
    imported = run("import", file)
    assert imported.exit_code == 0
    assert told in imported.stdout
    assert run("show", "5e55").exit_code == 0
    assert run("context", "5e55").exit_code == 0


def test_control_characters_never_reach_the_terminal(run, home, talk, write):
    """Escape sequences and line ends in a recorded text are not printed as such."""
    lines = [text.replace("Please", "\\u001b[2J\\u0007\\r\\n\\u202ePlease") for text in talk(1)]
    run("import", write(home / "escapes.jsonl", lines))
    for verb in ("ls", "show", "context"):
        shown = run(verb, *([] if verb == "ls" else ["5e55"])).stdout
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)
        assert "Please" in shown


@pytest.mark.long
def test_a_line_of_fifty_megabytes_is_taken(run, home, talk, line, write):
    """A very long line is imported, and found again by its size."""
    long = line(8, "user", "x y z " * 8_500_000)
    file = write(home / "long.jsonl", [*talk(2), long])
    assert file.stat().st_size > 50_000_000
    assert run("import", file).exit_code == 0
    file.unlink()
    assert json.loads(run("context", "5e55", "--json").stdout)["largest"][0]["tokens"] > 10_000_000


@pytest.mark.parametrize(
    ("error", "told"),
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
def test_errors_of_the_system_say_what_to_do(error, told):
    """Each message has what happened and one thing to do."""
    assert told in describe_error(error)


@pytest.mark.parametrize("arguments", [("doctor",), ("mcp", "--json")])
def test_a_working_folder_that_is_gone(run, decided, home, monkeypatch, arguments):
    """Who needs to know where that is says that it is gone."""
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = run(*arguments)
    monkeypatch.chdir(home)
    assert (done.exit_code, done.stderr) == (
        2,
        "Error: the working folder no longer exists; change to another one\n",
    )


@pytest.mark.parametrize("arguments", [("policy", "list"), ("policy", "list", "--json"), ("--help",)])
def test_a_reader_that_ends_early(arguments):
    """``holdfast show … | head`` ends quietly, with a code that tells it from what ``lint`` finds."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        command = [sys.executable, "-m", "holdfast", *arguments]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_is_exit_code_130():
    """^C ends with the code that shells expect."""
    found = translate_error(KeyboardInterrupt())
    assert isinstance(found, CommandInterrupted)
    assert found.exit_code == 130


def test_a_file_is_whole_or_what_it_was(home):
    """Where writing ends early, the old content is still there and nothing lies beside it."""
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


def test_interrupting_an_import_leaves_the_store_as_it_was(run, home, talk, line, write):
    """^C in the middle of an import is exit code 130, and of that session nothing is in the store."""
    run("import", write(home / "first.jsonl", talk(2)))
    second = home / "second"
    os.mkfifo(second)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "import", str(second)], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with second.open("wb") as feed:  # opens when the process has begun to read
        feed.write(talk(1, session="half")[0].encode())
        feed.flush()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in told
    assert [one["key"] for one in json.loads(run("ls", "--json").stdout)] == ["5e551011-aaaa"]


@pytest.mark.parametrize(
    "arguments",
    example_counts.spare(
        [("ls",), ("policy", "show", "holdfast"), ("doctor",), ("replay", "session.jsonl", "--policy", "sliding")],
        keep=1,
    ),
)
def test_a_closed_standard_output_is_no_fault(session, arguments):
    """With ``>&-`` there is nowhere to print to; the command ends without a traceback."""
    program = [sys.executable, "-m", "holdfast", *arguments]
    told = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *program], capture_output=True, check=False)
    assert told.returncode == 0
    assert b"Traceback" not in told.stderr


@pytest.mark.parametrize("options", [(), ("--jsonl",)])
def test_a_request_without_standard_output_is_repaired_for_nobody(home, options):
    """``fix`` has nowhere to print to either; it ends as it would."""
    (home / "body.json").write_text('{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    program = [sys.executable, "-m", "holdfast", "fix", home / "body.json", *options]
    told = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *program], capture_output=True, check=False)
    assert (told.returncode, b"Traceback" in told.stderr) == (0, False)


@pytest.mark.parametrize(
    "arguments",
    example_counts.spare(
        [("lint", "-"), ("fix", "-"), ("fix", "-", "--jsonl"), ("classify", "-", "--jsonl"), ("import", "-"), ("mcp",)],
        keep=2,
    ),
)
def test_a_closed_standard_input_is_told(home, arguments):
    """With ``<&-`` there is nothing to read from, and that is said."""
    program = [sys.executable, "-m", "holdfast", *arguments]
    told = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *program], capture_output=True, check=False)
    assert (told.returncode, b"Error: standard input is closed" in told.stderr) == (2, True), told.stderr


@pytest.mark.parametrize("verb", ["export", "recall"])
def test_standard_output_is_no_file(run, decided, home, monkeypatch, verb):
    """``-o -`` would make a file of that name; it is told how standard output is meant."""
    monkeypatch.chdir(home)
    result = run(verb, decided, *(["#6"] if verb == "recall" else []), "-o", "-")
    assert (result.exit_code, (home / "-").exists()) == (2, False)
    assert "'-' is not a file name for output; leave --output out to use standard output" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--policy", ","), "names no policy"),
        (("--window", "99999999999999999999"), "1000000000"),
        (("--window", "10", "--policy", "sliding"), "has no room for messages"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_in_words(run, session, arguments, told):
    """No policy at all, a window out of this world, one too small for any message: exit 2 and the reason."""
    result = run("replay", session, *arguments)
    assert result.exit_code == 2
    assert is_a_message(result)
    assert told in result.stderr
    assert " 0 are needed" not in result.stderr


def test_an_empty_name_is_no_folder(run):
    """``replay ''`` names nothing, and the message says that."""
    result = run("replay", "")
    assert result.exit_code == 2
    assert "folder" not in result.stderr
    assert "file name is empty" in result.stderr


@pytest.mark.parametrize("verb", ["lint", "fix", "classify", "replay", "import"])
def test_a_device_is_refused(run, verb):
    """What may never end is not read; the message says what to give."""
    result = run(verb, "/dev/zero")
    assert result.exit_code == 2
    assert "/dev/zero is a device, not a file; give a file, or - for standard input" in result.stderr


@pytest.mark.parametrize("verb", ["repair", "replay", "import", "lint"])
def test_an_empty_name_is_called_that(run, verb):
    """The message begins with a word, not with a colon or the folder that an empty name would mean."""
    result = run(verb, "")
    assert result.exit_code == 2
    assert result.stderr.removeprefix("Error: ").startswith("the file name is empty")


def test_a_session_is_no_request_and_no_error(run, session):
    """Who gives a recorded session to a command for one request, or one error, is told what mends it."""
    for verb in ("lint", "fix"):
        result = run(verb, session)
        assert result.exit_code != 0
        assert "a session of Claude Code: repair it with holdfast repair" in " ".join(result.output.split())
    result = run("classify", session)
    assert result.exit_code == 2
    assert "a session of Claude Code, not an error" in result.stderr
    session.write_bytes(session.read_text().encode("utf-16"))
    told = " ".join(run("fix", session).stderr.split())  # repair takes no such file either, and import says what does
    assert "encode it as UTF-8 (this is a session of Claude Code: run holdfast import to see how" in told


def test_requests_on_lines_hint_at_jsonl(run, home):
    """``fix`` says so as ``lint`` does, and with it each line is repaired."""
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
    file = home / "cases.jsonl"
    file.write_text(f"{json.dumps(body)}\n" * 2)
    result = run("fix", file)
    assert result.exit_code == 2
    assert result.stderr.endswith("(for one request per line, give --jsonl)\n")
    assert len(run("fix", file, "--jsonl").stdout.splitlines()) == 2


def test_a_file_that_cannot_be_written_is_named(run, home):
    """The message names the file that was asked for, not the one that is written meanwhile."""
    file = home / "body.json"
    file.write_text(json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}))
    result = run("fix", file, "-o", home / "gone" / "x")
    assert result.stderr == f"Error: {home / 'gone' / 'x'}: no such file or directory; check the path\n"


def test_no_number_of_the_system_is_told(run, session, home):
    """What the system says inside of another error is told in its words, without a number."""
    (home / "store").mkdir()
    (home / "store" / "holdfast.db.locks").write_text("")
    result = run("import", session)
    assert result.exit_code == 2
    assert "no lock file could be made in" in result.stderr
    assert "not a directory" in result.stderr
    assert "[Errno" not in result.stderr


def test_one_bad_file_is_one_line(run):
    """A replay of one file says once why there is none; of several it says so for each, and then of all."""
    assert run("replay", "gone").stderr == "Error: gone: no such file or directory; check the path\n"
    assert run("replay", "gone", "lost").stderr.count("\n") == 3


@pytest.mark.parametrize("verb", ["lint", "fix", "classify"])
def test_an_empty_file_has_no_cases(run, home, verb):
    """Nothing a line in is nothing a line out, of a file as of standard input."""
    (home / "empty").touch()
    for file in ("empty", "-"):
        done = run(verb, "--jsonl", file, given="")
        assert (done.exit_code, done.stdout) == (0, ""), file


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls", "--help"], []])
def test_help_on_a_full_disk(arguments, capsys):
    """What cannot be printed is told, and no traceback."""

    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SystemExit) as ended, redirect_stdout(Full()):
        command.main(arguments, prog_name="holdfast")
    assert (ended.value.code, capsys.readouterr().err) == (2, "Error: no space left on device; free some space\n")


def test_one_message_is_one(run, home):
    """A request that nobody answered is told in the singular."""
    (home / "body.json").write_text('{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}')
    assert "recorded in it (1 message); nothing to replay" in run("replay", "body.json").stderr
