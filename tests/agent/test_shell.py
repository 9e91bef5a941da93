"""The agent's tools that run programs: bash, grep and find, their output, and that they always end."""

from __future__ import annotations

import os

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.agent import grep as grepping
from holdfast.agent import shell
from holdfast.agent.processes import MAX_OUTPUT_BYTES, run_process
from holdfast.agent.workspace import deny_command


def read_pid(folder):
    """Return the process id that a command wrote to the file ``pid`` in ``folder``, or 0."""
    file = folder / "pid"
    return int(file.read_text() or 0) if file.exists() else 0


# -- bash --------------------------------------------------------------------------------------------------------------


def test_bash_interleaves_both_streams_and_reports_the_exit_code(call):
    """Standard output and error are interleaved, the exit code stands at the end, and failing is an error."""
    answer = call("bash", command="echo one; echo two >&2; echo three; exit 3")
    assert answer == ("one\ntwo\nthree\n[exit code 3]", True)
    assert call("bash", command="true") == ("(no output)\n[exit code 0]", False)
    assert call("bash", command="kill -9 $$") == ("(no output)\n[ended by signal 9]", True)


def test_bash_runs_in_the_working_folder_without_input(call, folder):
    """A command runs in the working folder with an empty standard input."""
    assert call("bash", command="pwd; cat")[0] == f"{folder}\n[exit code 0]"


def test_bash_hides_provider_keys(call, workspace, monkeypatch):
    """Commands do not see the variables that hold provider keys."""
    monkeypatch.setenv("SOME_API_KEY", "SECRET")
    monkeypatch.setenv("OTHER", "kelp")
    text, _ = call(
        "bash", command="echo $SOME_API_KEY $OTHER", at=replace(workspace, hidden_variables=frozenset({"SOME_API_KEY"}))
    )
    assert text == "kelp\n[exit code 0]"


def test_bash_runs_nothing_without_permission(call, workspace, folder):
    """A denied command does not run and the model is informed; the permission question gets the exact command."""
    commands = []

    async def ask(command):
        commands.append(command)
        return False

    for allow in (deny_command, ask):
        text, is_error = call("bash", command="touch mine", at=replace(workspace, ask_permission=allow))
        assert is_error
        assert "did not allow" in text
    assert commands == ["touch mine"]
    assert not (folder / "mine").exists()


def test_bash_ends_a_command_at_its_time_limit(has_ended, call, folder):
    """The command ends with all its children, its output is kept, and the result suggests what to do."""
    for seconds in (1, 4, 16):  # a busy machine may not even have begun it
        text, is_error = call("bash", command="echo begun; sleep 600 & echo $! > pid; wait", seconds=seconds)
        assert is_error
        if read_pid(folder):
            break
    assert text.startswith(f"begun\n[ended after {seconds} seconds; give more seconds")
    assert has_ended(read_pid(folder))


def test_bash_kills_a_command_that_ignores_sigterm(call):
    """A program that ignores SIGTERM is killed."""
    assert call("bash", command="trap '' TERM; while :; do sleep 0.1; done", seconds=1)[1]


def test_bash_ends_background_processes_with_the_call(has_ended, call, folder):
    """A background process neither delays the call nor outlives it."""
    assert call("bash", command="sleep 600 & echo $! > pid; echo started") == ("started\n[exit code 0]", False)
    assert has_ended(read_pid(folder))


def test_run_process_ends_the_command_when_cancelled(has_ended, folder):
    """Cancelling the call ends the command and all its children."""

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(run_process, ["sh", "-c", "sleep 600 & echo $! > pid; wait"], folder, 600)
            while not read_pid(folder):  # noqa: ASYNC110 -- another process makes it so
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()

    anyio.run(main)
    assert has_ended(read_pid(folder))


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_run_process_leaves_nothing_running_if_cancelled_while_starting(has_ended, folder, after):
    """Whenever the caller is cancelled, also during the start, no process is left running."""

    async def main():
        with anyio.move_on_after(after / 1_000):
            await run_process(["sh", "-c", "sleep 600 & echo $! > pid; wait"], folder, 600)

    anyio.run(main)
    assert not (folder / "pid").exists() or has_ended(read_pid(folder))


def test_bash_keeps_both_ends_of_long_output(call):
    """Of too much output the first and last halves are kept, with the number of missing bytes."""
    size = 3 * MAX_OUTPUT_BYTES
    text, _ = call("bash", command=f"echo begun; head -c {size} /dev/zero | tr '\\0' 'x'; echo; echo ended")
    assert text.startswith("begun\nxxx")
    assert text.endswith("xxx\nended\n[exit code 0]")
    missing_bytes = int(text.partition("[")[2].partition(" bytes of output")[0].replace(",", ""))
    chunk = 65_536
    assert size - MAX_OUTPUT_BYTES - chunk <= missing_bytes <= size
    assert len(text) <= MAX_OUTPUT_BYTES + chunk + 200


def test_bash_shows_output_that_is_not_utf8(call):
    """Bytes that are not UTF-8 are shown with replacement characters."""
    assert call("bash", command="printf 'a\\377b'") == ("a\ufffdb\n[exit code 0]", False)


def test_bash_replaces_a_lone_surrogate_in_the_command(call):
    """A command with half a surrogate pair runs with a question mark in its place."""
    assert call("bash", '{"command": "echo a\\ud800b"}') == ("a?b\n[exit code 0]", False)


@pytest.mark.parametrize(
    "arguments", [{"command": ""}, {"command": "true", "seconds": 0}, {"command": "true", "seconds": 99_999}]
)
def test_bash_refuses_arguments_out_of_range(call, arguments):
    """An empty command or an invalid time limit is an error that lists the parameters."""
    text, is_error = call("bash", **arguments)
    assert is_error
    assert "call bash again with command (string, required), seconds (integer)" in text


# -- grep and find -----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(folder):
    """Create files to search: texts, a binary file, a link, and a file in a folder that searches skip."""
    for name, text in {
        "src/app.py": "import os\n\ndef run():\n    return os.name\n",
        "src/deep/er/test_app.py": "import run\n",
        "notes.md": "run it\n",
        ".git/config": "run\n",
        "long.txt": f"run {'x' * 900}\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "data.bin").write_bytes(b"run\0run\n")
    (folder / "latin.txt").write_bytes(b"run caf\xe9\n")
    (folder / "link.md").symlink_to("notes.md")
    os.mkfifo(folder / "pipe")
    return folder


def test_grep_lists_matching_lines_of_text_files(call, files):
    """Matches in text files are sorted and numbered, long lines are cut; binary files, links and .git are skipped."""
    answer = call("grep", pattern=r"\brun\b")
    assert answer[0].splitlines() == [
        "latin.txt:1: run caf\ufffd",
        f"long.txt:1: run {'x' * (grepping.LINE_CHARS - 4)}…",
        "notes.md:1: run it",
        "src/app.py:3: def run():",
        "src/deep/er/test_app.py:1: import run",
    ]
    assert not answer[1]


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"glob": "*.py"}, ["src/app.py", "src/deep/er/test_app.py"]),
        ({"glob": "src/**/test_*.py"}, ["src/deep/er/test_app.py"]),
        ({"glob": "**/notes.md"}, ["notes.md"]),
        ({"folder": "src/deep"}, ["src/deep/er/test_app.py"]),
        ({"folder": "notes.md"}, ["notes.md"]),
        ({"glob": "*.rs"}, []),
    ],
)
def test_grep_filters_by_glob_and_folder(call, files, more, names):
    """A glob without a slash matches names, with one paths; the folder may be a file; no match is no error."""
    text, is_error = call("grep", pattern="run", **more)
    assert not is_error
    assert ([line.partition(":")[0] for line in text.splitlines()] if names else text) == (names or "no line matches")


NAMES = st.lists(st.sampled_from(["a", "b.c", "test_d"]), min_size=1, max_size=5)


@given(NAMES, st.data())
def test_compile_glob_matches_any_number_of_folders_for_two_stars(parts, data):
    """``**/`` stands for any number of folders, including none."""
    glob = [data.draw(st.sampled_from([part, "*"])) for part in parts]
    for _ in range(data.draw(st.integers(0, 2))):
        first = data.draw(st.integers(0, len(glob) - 1))
        glob[first : data.draw(st.integers(first, len(glob) - 1))] = ["**"]
    start = data.draw(st.sampled_from(["", "./"]))
    assert grepping.compile_glob(start + "/".join(glob))("/".join(parts))


@pytest.mark.parametrize("path", ["src/a.py", "lib/test_a.py", "src/test_a.pyc", "src.test_a.py", "x/src/test_a.py"])
def test_compile_glob_matches_only_whole_folders_for_two_stars(path):
    """What stands beside ``**/`` must occur in the path."""
    assert not grepping.compile_glob("src/**/test_*.py")(path)


@given(st.integers(0, 3_000), st.integers(0, 3_000), st.integers(1, 400))
def test_shorten_line_around_match_shows_the_match(chars_before, chars_after, length):
    """A long line is cut around its match, and a match that is itself too long shows its beginning."""
    match = "n" * length
    text = "x" * chars_before + match + "y" * chars_after
    line = grepping.shorten_line_around_match(text, chars_before, chars_before + length)
    assert match[: grepping.LINE_CHARS] in line
    assert len(line) <= grepping.LINE_CHARS + 2
    assert line == text or "…" in line
    assert line.strip("…") in text


def test_grep_searches_a_long_line_to_its_end(call, folder):
    """A line has no length beyond which matches are missed."""
    (folder / "a.json").write_text("x " * 200_000 + "needle")
    assert call("grep", pattern="needle")[0].endswith("x needle")


def test_grep_explains_an_invalid_pattern_or_folder(call, files):
    """A broken pattern or a missing folder gives an error that explains it."""
    assert "missing )" in call("grep", pattern="(a")[0]
    assert "does not exist" in call("grep", pattern="a", folder="gone")[0]


def test_grep_ends_a_search_at_its_time_limit(call, folder, monkeypatch):
    """A search has a time limit, whatever the pattern does."""
    monkeypatch.setattr(shell, "SEARCH_SECONDS", 1)
    (folder / "a.txt").write_text("a" * 5_000 + "b")
    text, is_error = call("grep", pattern="(a+)+$")
    assert is_error
    assert "simpler pattern" in text


def test_find_ends_a_search_at_its_time_limit(call, folder, monkeypatch):
    """A walk over folders has the same time limit."""
    slow = folder.parent / "slow.py"
    slow.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(shell, "SEARCH_SECONDS", 1)
    monkeypatch.setattr(grepping, "__file__", str(slow))
    text, is_error = call("find", pattern="*")
    assert is_error
    assert "took over 1 seconds" in text


def test_grep_runs_no_code_from_the_searched_folder(call, folder):
    """Modules in the searched folder do not shadow those of the search process."""
    for name in ("re.py", "json.py", "sitecustomize.py", "fnmatch.py"):
        (folder / name).write_text("open('ran', 'w')\n")
    assert call("grep", pattern="ran", glob="re.py")[0] == "re.py:1: open('ran', 'w')"
    assert not (folder / "ran").exists()


def test_grep_limits_the_number_of_lines(call, folder):
    """Of too many matching lines the first are shown, with advice to narrow the search."""
    (folder / "a.txt").write_text("x\n" * (shell.MAX_SEARCH_LINES + 10))
    text, _ = call("grep", pattern="x")
    assert text.count("\n") == shell.MAX_SEARCH_LINES
    assert text.endswith("give a narrower pattern, glob or folder]")


def test_find_lists_files_by_name_newest_first(call, files):
    """The file changed last comes first; links and folders are skipped; no match is no error."""
    os.utime(files / "src" / "app.py", (2**31, 2**31))
    text, _ = call("find", pattern="*.py")
    assert text.splitlines() == ["src/app.py", "src/deep/er/test_app.py"]
    assert call("find", pattern="*.md") == ("notes.md", False)
    assert call("find", pattern="*.rs") == ("no file has such a name", False)
    assert call("find", pattern="*", folder="notes.md")[1]
