"""Tools that run programs: what they print, how they end, and that they always do."""

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


def pid_in(folder):
    """Return the number of the process that a command wrote into ``folder``, or 0."""
    file = folder / "pid"
    return int(file.read_text() or 0) if file.exists() else 0


# -- bash --------------------------------------------------------------------------------------------------------------


def test_both_streams_come_as_they_were_printed(call):
    """Standard output and standard error are interleaved, and the exit code stands at the end; failing is an error."""
    told = call("bash", command="echo one; echo two >&2; echo three; exit 3")
    assert told == ("one\ntwo\nthree\n[exit code 3]", True)
    assert call("bash", command="true") == ("(no output)\n[exit code 0]", False)
    assert call("bash", command="kill -9 $$") == ("(no output)\n[ended by signal 9]", True)


def test_a_command_runs_in_the_folder_without_input(call, folder):
    """Its folder is the working folder, its input is empty, and its environment is the user's without hidden keys."""
    assert call("bash", command="pwd; cat")[0] == f"{folder}\n[exit code 0]"


def test_keys_are_hidden(call, place, monkeypatch):
    """Commands do not see the variables that hold the keys of providers."""
    monkeypatch.setenv("SOME_API_KEY", "SECRET")
    monkeypatch.setenv("OTHER", "kelp")
    text, _ = call(
        "bash", command="echo $SOME_API_KEY $OTHER", at=replace(place, hidden_variables=frozenset({"SOME_API_KEY"}))
    )
    assert text == "kelp\n[exit code 0]"


def test_a_command_that_is_not_allowed_is_not_run(call, place, folder):
    """Without permission nothing runs and the model is told; who is asked sees the command word for word."""
    asked = []

    async def ask(command):
        asked.append(command)
        return False

    for allow in (deny_command, ask):
        text, is_error = call("bash", command="touch mine", at=replace(place, ask_permission=allow))
        assert is_error
        assert "did not allow" in text
    assert asked == ["touch mine"]
    assert not (folder / "mine").exists()


def test_a_command_ends_when_its_time_is_over(has_ended, call, folder):
    """It is ended with all that it started, what it printed is kept, and the model is told how to go on."""
    for seconds in (1, 4, 16):  # a busy machine may not even have begun it
        text, is_error = call("bash", command="echo begun; sleep 600 & echo $! > pid; wait", seconds=seconds)
        assert is_error
        if pid_in(folder):
            break
    assert text.startswith(f"begun\n[ended after {seconds} seconds; give more seconds")
    assert has_ended(pid_in(folder))


def test_who_does_not_listen_is_killed(call):
    """A program that ignores being told to end, and never would, is killed."""
    assert call("bash", command="trap '' TERM; while :; do sleep 0.1; done", seconds=1)[1]


def test_what_runs_on_in_the_background_ends_with_the_call(has_ended, call, folder):
    """A program left behind does not keep the call waiting, and does not outlive it."""
    assert call("bash", command="sleep 600 & echo $! > pid; echo started") == ("started\n[exit code 0]", False)
    assert has_ended(pid_in(folder))


def test_a_cancelled_command_ends(has_ended, folder):
    """Who cancels the call ends the command and all that it started."""

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(run_process, ["sh", "-c", "sleep 600 & echo $! > pid; wait"], folder, 600)
            while not pid_in(folder):  # noqa: ASYNC110 -- another process makes it so
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()

    anyio.run(main)
    assert has_ended(pid_in(folder))


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_command_that_is_cancelled_as_it_begins_ends(has_ended, folder, after):
    """Whenever the caller is cancelled, in the middle of starting too, nothing goes on behind it."""

    async def main():
        with anyio.move_on_after(after / 1_000):
            await run_process(["sh", "-c", "sleep 600 & echo $! > pid; wait"], folder, 600)

    anyio.run(main)
    assert not (folder / "pid").exists() or has_ended(pid_in(folder))


def test_output_is_kept_at_both_ends(call):
    """Of more output than a call may have the first half and the last are kept, and how much is missing is told."""
    size = 3 * MAX_OUTPUT_BYTES
    text, _ = call("bash", command=f"echo begun; head -c {size} /dev/zero | tr '\\0' 'x'; echo; echo ended")
    assert text.startswith("begun\nxxx")
    assert text.endswith("xxx\nended\n[exit code 0]")
    gone = int(text.partition("[")[2].partition(" bytes of output")[0].replace(",", ""))
    chunk = 65_536
    assert size - MAX_OUTPUT_BYTES - chunk <= gone <= size
    assert len(text) <= MAX_OUTPUT_BYTES + chunk + 200


def test_output_that_is_no_text_is_shown(call):
    """Bytes that are no UTF-8 are shown as such, not raised."""
    assert call("bash", command="printf 'a\\377b'") == ("a\ufffdb\n[exit code 0]", False)


def test_half_a_character_is_no_reason_to_break_off(call):
    """A command with half a surrogate pair runs, with a question mark in its place."""
    assert call("bash", '{"command": "echo a\\ud800b"}') == ("a?b\n[exit code 0]", False)


@pytest.mark.parametrize(
    "given", [{"command": ""}, {"command": "true", "seconds": 0}, {"command": "true", "seconds": 99_999}]
)
def test_arguments_out_of_range(call, given):
    """An empty command and a time that is none are refused with what the tool takes."""
    text, is_error = call("bash", **given)
    assert is_error
    assert "call bash again with command (string, required), seconds (integer)" in text


# -- grep and find -----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(folder):
    """Make some files to search, one of them no text, one behind a link, one in a folder that is passed over."""
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


def test_lines_are_found(call, files):
    """Text files below the folder, sorted, with line numbers; long lines are cut; no binary file, link or .git."""
    found = call("grep", pattern=r"\brun\b")
    assert found[0].splitlines() == [
        "latin.txt:1: run caf\ufffd",
        f"long.txt:1: run {'x' * (grepping.LINE_CHARS - 4)}…",
        "notes.md:1: run it",
        "src/app.py:3: def run():",
        "src/deep/er/test_app.py:1: import run",
    ]
    assert not found[1]


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
def test_where_lines_are_found(call, files, more, names):
    """A glob without a slash is of names, with one of paths; a folder may be a file; nothing found is no error."""
    text, is_error = call("grep", pattern="run", **more)
    assert not is_error
    assert ([line.partition(":")[0] for line in text.splitlines()] if names else text) == (names or "no line matches")


NAMES = st.lists(st.sampled_from(["a", "b.c", "test_d"]), min_size=1, max_size=5)


@given(NAMES, st.data())
def test_two_stars_are_any_folders_and_none(parts, data):
    """Law: a glob with ``**/`` in the place of folders of a path, or between any two, names the path."""
    glob = [data.draw(st.sampled_from([part, "*"])) for part in parts]
    for _ in range(data.draw(st.integers(0, 2))):
        first = data.draw(st.integers(0, len(glob) - 1))
        glob[first : data.draw(st.integers(first, len(glob) - 1))] = ["**"]
    start = data.draw(st.sampled_from(["", "./"]))
    assert grepping.compile_glob(start + "/".join(glob))("/".join(parts))


@pytest.mark.parametrize("path", ["src/a.py", "lib/test_a.py", "src/test_a.pyc", "src.test_a.py", "x/src/test_a.py"])
def test_two_stars_are_folders_only(path):
    """What stands beside ``**/`` has to stand in the path."""
    assert not grepping.compile_glob("src/**/test_*.py")(path)


@given(st.integers(0, 3_000), st.integers(0, 3_000), st.integers(1, 400))
def test_a_line_is_shown_where_it_matches(before, behind, length):
    """Law: of a long line the match is shown, the beginning of one that is too long itself, and not much more."""
    match = "n" * length
    text = "x" * before + match + "y" * behind
    line = grepping.shorten_line_around_match(text, before, before + length)
    assert match[: grepping.LINE_CHARS] in line
    assert len(line) <= grepping.LINE_CHARS + 2
    assert line == text or "…" in line
    assert line.strip("…") in text


def test_the_end_of_a_long_line_is_searched(call, folder):
    """A line has no length beyond which nothing is found."""
    (folder / "a.json").write_text("x " * 200_000 + "needle")
    assert call("grep", pattern="needle")[0].endswith("x needle")


def test_a_pattern_that_is_none(call, files):
    """A broken pattern, and a folder that is not there, are told with what to do."""
    assert "missing )" in call("grep", pattern="(a")[0]
    assert "does not exist" in call("grep", pattern="a", folder="gone")[0]


def test_a_pattern_that_never_ends_is_ended(call, folder, monkeypatch):
    """A search has its time, whatever the pattern does."""
    monkeypatch.setattr(shell, "SEARCH_SECONDS", 1)
    (folder / "a.txt").write_text("a" * 5_000 + "b")
    text, is_error = call("grep", pattern="(a+)+$")
    assert is_error
    assert "simpler pattern" in text


def test_a_search_for_names_has_its_time_too(call, folder, monkeypatch):
    """A walk over folders that does not end is ended as well."""
    slow = folder.parent / "slow.py"
    slow.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(shell, "SEARCH_SECONDS", 1)
    monkeypatch.setattr(grepping, "__file__", str(slow))
    text, is_error = call("find", pattern="*")
    assert is_error
    assert "took over 1 seconds" in text


def test_a_module_in_the_folder_does_not_get_in_the_way(call, folder):
    """A search runs no code that lies in the folder it searches, whatever its files are called."""
    for name in ("re.py", "json.py", "sitecustomize.py", "fnmatch.py"):
        (folder / name).write_text("open('ran', 'w')\n")
    assert call("grep", pattern="ran", glob="re.py")[0] == "re.py:1: open('ran', 'w')"
    assert not (folder / "ran").exists()


def test_many_lines_are_cut(call, folder):
    """Of very many lines that match the first are shown, with what to do."""
    (folder / "a.txt").write_text("x\n" * (shell.MAX_SEARCH_LINES + 10))
    text, _ = call("grep", pattern="x")
    assert text.count("\n") == shell.MAX_SEARCH_LINES
    assert text.endswith("give a narrower pattern, glob or folder]")


def test_files_are_found_by_name(call, files):
    """The last changed comes first; links and folders are passed over; nothing found is no error."""
    os.utime(files / "src" / "app.py", (2**31, 2**31))
    text, _ = call("find", pattern="*.py")
    assert text.splitlines() == ["src/app.py", "src/deep/er/test_app.py"]
    assert call("find", pattern="*.md") == ("notes.md", False)
    assert call("find", pattern="*.rs") == ("no file has such a name", False)
    assert call("find", pattern="*", folder="notes.md")[1]
