"""The plugin of Codex: its files, its hook by itself, and sessions in the real Codex, all offline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from codex_client import CodexHome, start_server, trust_hooks

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "integrations" / "hosts" / "codex"
SCRIPT = PLUGIN / "hooks" / "holdfast.sh"
RECORDED = ROOT / "examples" / "long-session.jsonl"
RECORDED_ID = "a21116fc-35bd-4653-95cf-238f307d23d0"
NOTE = "This conversation was compacted"
SECRET = "kelp-1764"
ASK_FOR_SECRET = 'call exec_command {"cmd": "echo kelp-$((42*42))"}'
ASK_TO_SEARCH = f'call mcp__holdfast.search {{"query": "{SECRET}"}}'
MISSING = 'Holdfast: no program "holdfast" is on the PATH'

pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel")


def test_plugin_files_say_what_a_marketplace_wants():
    """A README of forty words or more, the licence of the repository, and the version of the package."""
    assert len((PLUGIN / "README.md").read_text("utf-8").split()) >= 40
    assert (PLUGIN / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
    manifest = json.loads((PLUGIN / ".codex-plugin" / "plugin.json").read_text("utf-8"))
    assert f'version = "{manifest["version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")


# -- the hook by itself ------------------------------------------------------------------------------------------------


def run_hook(tmp_path, what, event, path=None):
    """Run the script of the hooks as Codex does, and return what it prints."""
    environment = {
        "PATH": path or os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
        "PLUGIN_DATA": str(tmp_path / "data"),
        "HOLDFAST_STORE": str(tmp_path / "store.db"),
    }
    ran = subprocess.run(
        ["/bin/sh", str(SCRIPT), what],
        input=json.dumps(event, separators=(",", ":")),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stderr == ""
    return ran.stdout


def list_sessions(store):
    """Return the sessions in a store, or none where there is no store yet."""
    command = [sys.executable, "-m", "holdfast", "ls", "--json", "--store", str(store)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(ran.stdout) if ran.returncode == 0 else []


def wait_for_session(store, key, seconds=20):
    """Wait until a session is in the store, and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for session in list_sessions(store):
            if session["key"] == key:
                return session
        time.sleep(0.2)
    raise AssertionError(f"{key} was not recorded")


def make_event(transcript=RECORDED, **fields):
    """Return what Codex hands to a hook."""
    return {"session_id": "s1", "transcript_path": transcript and str(transcript), "cwd": "/", **fields}


@pytest.fixture
def broken_path(tmp_path):
    """Return a PATH with a ``holdfast`` that fails as one that cannot even start."""
    program = tmp_path / "broken" / "holdfast"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "Traceback (most recent call last):" >&2\necho "boom \\"x\\"" >&2\nexit 1\n')
    program.chmod(0o755)
    return os.pathsep.join([str(program.parent), os.defpath])


def test_hook_records_in_the_background(tmp_path):
    """The hook says nothing, and the session is in the store soon after it."""
    assert run_hook(tmp_path, "record", make_event()) == ""
    assert wait_for_session(tmp_path / "store.db", RECORDED_ID)["messages"] > 100


def test_hook_does_not_wait_for_the_import(tmp_path):
    """Codex waits for a hook until its streams are closed; an import that hangs must not hold it up."""
    program = tmp_path / "slow" / "holdfast"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 20\n")
    program.chmod(0o755)
    began = time.monotonic()
    run_hook(tmp_path, "record", make_event(), os.pathsep.join([str(program.parent), os.defpath]))
    assert time.monotonic() - began < 10


def test_hook_records_the_session_of_a_sub_agent(tmp_path):
    """The end of a sub-agent names its file beside that of the session; its own is imported."""
    event = make_event(tmp_path / "none.jsonl", agent_transcript_path=str(RECORDED), last_assistant_message='"x":"y"')
    assert run_hook(tmp_path, "record", event) == ""
    assert wait_for_session(tmp_path / "store.db", RECORDED_ID)


def test_hook_gives_the_note_only_when_the_session_is_recorded(tmp_path):
    """After a compaction the session is imported first; a session without a file gets no note."""
    assert run_hook(tmp_path, "compacted", make_event(None)) == ""
    assert list_sessions(tmp_path / "store.db") == []
    assert run_hook(tmp_path, "compacted", make_event()).startswith(NOTE)
    assert [session["key"] for session in list_sessions(tmp_path / "store.db")] == [RECORDED_ID]


def test_hook_says_once_that_holdfast_is_missing(tmp_path):
    """One line for the user when a session begins, and nothing at its other events."""
    said = json.loads(run_hook(tmp_path, "check", make_event(), os.defpath))
    assert said["systemMessage"].startswith(MISSING)
    for what in ("check", "record", "compacted"):
        assert run_hook(tmp_path, what, make_event(), os.defpath) == ""


def test_hook_says_once_a_session_why_nothing_is_recorded(tmp_path, broken_path):
    """The reason of a failed import is said in the same session or the next, and not again until another session."""
    said = json.loads(run_hook(tmp_path, "compacted", make_event(), broken_path))
    assert said["systemMessage"].startswith('Holdfast: a session was not recorded (boom "x"); to see more, run: ')
    for what in ("record", "compacted", "check"):
        assert run_hook(tmp_path, what, make_event(), broken_path) == ""
    assert "boom" in run_hook(tmp_path, "check", make_event(session_id="s2"), broken_path)
    assert run_hook(tmp_path, "check", make_event(session_id="s2"), broken_path) == ""


def test_hook_forgets_a_failure_once_an_import_succeeds(tmp_path, broken_path):
    """What was mended is not said any more."""
    assert "boom" in run_hook(tmp_path, "compacted", make_event(), broken_path)
    assert run_hook(tmp_path, "compacted", make_event()).startswith(NOTE)
    assert run_hook(tmp_path, "check", make_event(session_id="s2")) == ""


# -- in the real Codex -------------------------------------------------------------------------------------------------


@pytest.fixture
def home(codex, tmp_path):
    """Return a home of Codex in which the plugin is installed from its folder."""
    home = CodexHome(codex, tmp_path)
    for arguments in (("marketplace", "add", str(PLUGIN)), ("add", "holdfast@holdfast")):
        ran = home.run("plugin", *arguments)
        assert ran.returncode == 0, ran.stderr
    return home


@pytest.fixture
def provider():
    """Start the strict provider and return its address."""
    with start_server("provider", "--window", "272000") as (address, _):
        yield address


def read_rollout(home, thread):
    """Return the rows of a session's file."""
    (path,) = (home.home / ".codex" / "sessions").rglob(f"*{thread}.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def list_said(runs):
    """Return what hooks said to the user."""
    return [entry["text"] for run in runs for entry in run["entries"] if entry["kind"] == "warning"]


@pytest.mark.long
def test_codex_lists_the_hooks_and_runs_none_before_they_are_trusted(home, provider):
    """Six hooks, each of them untrusted: the session goes on, and nothing is recorded."""
    with home.open_app_server(provider) as server:
        (listed,) = server.call("hooks/list", {"cwds": [str(home.project)]})["data"]
        server.take_turn(server.start_thread(), "hello")
        runs = server.list_hook_runs()
    assert [hook["trustStatus"] for hook in listed["hooks"]] == ["untrusted"] * 6
    assert listed["errors"] == []
    assert runs == []
    assert list_sessions(home.store) == []


@pytest.mark.long
def test_model_reads_back_what_a_compaction_left_out(home, provider):
    """After ``/compact`` the model gets the note, searches, and gets the old result of a tool word for word."""
    trust_hooks(home, provider)
    with home.open_app_server(provider) as server:
        thread = server.start_thread()
        server.wait_for_tools("holdfast")
        server.take_turn(thread, ASK_FOR_SECRET)
        server.compact(thread)
        server.take_turn(thread, ASK_TO_SEARCH)
        runs = server.list_hook_runs()
    assert {run["status"] for run in runs} == {"completed"}
    assert [run["eventName"] for run in runs] == ["sessionStart", "stop", "sessionStart", "stop"]
    assert list_said(runs) == []
    rows = read_rollout(home, thread)
    (compaction,) = [number for number, row in enumerate(rows) if row["type"] == "compacted"]
    assert SECRET in json.dumps(rows[:compaction])
    assert SECRET not in json.dumps(rows[compaction])
    later = [row["payload"] for row in rows[compaction + 1 :] if row["type"] == "response_item"]
    assert NOTE in json.dumps(later)
    (answer,) = [item["output"] for item in later if item["type"] == "function_call_output"]
    assert SECRET in json.dumps(answer)
    session = wait_for_session(home.store, thread)
    assert session["cwd"] == str(home.project)


@pytest.mark.long
def test_note_comes_also_in_the_middle_of_a_turn(home, provider):
    """An automatic compaction between two calls of a turn is followed by the note before the next request."""
    ran = home.ask(
        "\n".join([ASK_FOR_SECRET] * 2),
        provider,
        *("--dangerously-bypass-hook-trust", "-c", "model_auto_compact_token_limit=1000"),
    )
    assert ran.returncode == 0, ran.stderr
    (session,) = list_sessions(home.store)
    rows = read_rollout(home, session["key"])
    types = [row["type"] for row in rows]
    assert "compacted" in types
    assert NOTE in json.dumps(rows[types.index("compacted") :])


@pytest.mark.long
def test_exec_records_a_session_that_ends_at_once(home, provider):
    """The import outlives ``codex exec``, which ends right after its last answer."""
    ran = home.ask(f"remember {SECRET}", provider, "--dangerously-bypass-hook-trust", "--json")
    assert ran.returncode == 0, ran.stderr
    thread = next(row["thread_id"] for row in map(json.loads, ran.stdout.splitlines()) if "thread_id" in row)
    assert SECRET in wait_for_session(home.store, thread)["title"]


@pytest.mark.long
def test_codex_goes_on_without_holdfast_and_says_so_once(home, provider, tmp_path):
    """Without the program, each turn and a compaction go as ever, and one hook says one line."""
    trust_hooks(home, provider)
    home.environment["PATH"] = os.defpath
    assert shutil.which("holdfast", path=os.defpath) is None
    with home.open_app_server(provider) as server:
        thread = server.start_thread()
        server.take_turn(thread, "hello")
        server.compact(thread)
        server.take_turn(thread, "again")
        runs = server.list_hook_runs()
    assert {run["status"] for run in runs} == {"completed"}
    (said,) = list_said(runs)
    assert said.startswith(MISSING)


@pytest.mark.long
def test_codex_goes_on_with_a_holdfast_that_fails(home, provider, broken_path):
    """A Holdfast that fails at every call is said once, and no hook fails or keeps the host waiting."""
    trust_hooks(home, provider)
    home.environment["PATH"] = broken_path
    with home.open_app_server(provider) as server:
        thread = server.start_thread()
        server.take_turn(thread, "hello")
        server.compact(thread)
        server.take_turn(thread, "again")
        server.take_turn(thread, "and again")
        runs = server.list_hook_runs()
    assert {run["status"] for run in runs} == {"completed"}
    (said,) = list_said(runs)
    assert "boom" in said
