"""What the plugin does besides compacting, in the real Claude Code: a server, the store, recall, a cold cache."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from claude_client import PLUGIN, SESSION_ID, write_program

from holdfast.testing.provider import ScriptedAnswer

pytestmark = [
    pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel"),
    pytest.mark.long,
]

RECALL = "mcp__plugin_holdfast_holdfast__recall"
NEW_SESSION_ID = "5d0c9d0e-3f0f-4b53-9d4e-0d2b5b1f7a12"


@pytest.fixture
def server_url(tmp_path):
    """Start ``holdfast serve`` with a store of its own; yield its address."""
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        "--port",
        "0",
        "--json",
        "--store",
        str(tmp_path / "serve.db"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def test_a_running_server_answers_the_compaction(start_client, server_url, tmp_path):
    """No process is needed: here the program ``holdfast`` would fail."""
    client, _ = start_client()
    client.path = write_program(tmp_path / "programs", "holdfast", "exit 9")
    client.place_session()
    # Claude Code 2.1.287 counts a plugin's request to this machine as traffic that this variable forbids.
    variables = {"HOLDFAST_URL": server_url, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": ""}
    client.run("-p", "--resume", SESSION_ID, "/compact", **variables)
    (sizes,) = client.list_compactions()
    assert sizes[1] < sizes[0] / 10


def test_a_server_that_is_not_there_costs_no_line(start_client):
    """The process is asked instead, and the person reads only of the compaction."""
    client, _ = start_client()
    client.place_session()
    client.run("-p", "--resume", SESSION_ID, "/compact", HOLDFAST_URL="http://127.0.0.1:9")
    (said,) = client.list_said_lines()
    assert said.startswith("Holdfast compacted")


def test_the_model_reads_back_by_recall_what_was_compacted(start_client):
    """After a compaction that imported the session, the model's call of the plugin's tool returns old text."""
    search = {"query": f"select:{RECALL}", "max_results": 3}
    client, provider = start_client(
        ScriptedAnswer("", [("ToolSearch", search)], "find the tool"),
        ScriptedAnswer("", [(RECALL, {"search": "4e8c1d7 surface"})], "call it"),
        ScriptedAnswer("I have it back.", (), "done"),
    )
    client.place_session()
    client.run("-p", "--resume", SESSION_ID, "/compact")
    tools = ["--allowedTools", f"{RECALL},ToolSearch"]
    client.run("-p", "--resume", SESSION_ID, *tools, "--", "Which commit was the surface frozen at?")
    bodies = [json.loads(request.incoming.body) for request in provider.requests]
    (result,) = [
        block
        for message in bodies[-1]["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result" and "found in this conversation" in json.dumps(block)
    ]
    assert not result.get("is_error")
    assert "HF-2291" in json.dumps(result["content"])


def run_with_subagent(start_client, *arguments):
    """Run a session that starts a sub-agent; return the client."""
    call = {"description": "say hi", "prompt": "Say hi, please.", "subagent_type": "general-purpose"}
    client, _ = start_client(ScriptedAnswer("", [("Agent", call)], "let another do it"))
    # Not auto mode, whose classifier would have to be scripted too.
    permissions = ["--permission-mode", "default", "--allowedTools", "Agent"]
    client.run("-p", "--session-id", NEW_SESSION_ID, *permissions, *arguments, "--", "Start.")
    return client


def test_sessions_and_their_subagents_are_recorded(start_client):
    """The end of a session imports what is new, in a process that goes on after it."""
    client = run_with_subagent(start_client)
    (agent_transcript,) = client.get_transcript_path(NEW_SESSION_ID).with_suffix("").glob("subagents/agent-*.jsonl")
    expected_ids = {NEW_SESSION_ID, agent_transcript.stem.removeprefix("agent-")}
    deadline = time.monotonic() + 30
    while set(client.list_recorded_sessions()) != expected_ids:
        assert time.monotonic() < deadline, client.list_recorded_sessions()
        time.sleep(0.2)


def test_nothing_is_recorded_if_the_person_does_not_want_it(start_client):
    """With the option ``record`` switched off no import is started."""
    options = {"pluginConfigs": {"holdfast": {"options": {"record": False}}}}
    client = run_with_subagent(start_client, "--settings", json.dumps(options))
    assert "$.process.run (holdfast)" not in client.read_log()


def test_a_session_that_is_resumed_cold_is_told_what_the_prompt_costs(start_client):
    """Where nobody can be asked it is said before the prompt is sent, once."""
    client, provider = start_client()
    client.place_session()
    client.run("-p", "--resume", SESSION_ID, "Go on.")
    (said,) = client.list_said_lines()
    assert re.search(r"cache has expired \(\d+ days .* sends \d+k tokens anew \(about \$[\d.]+ at list price\)", said)
    assert len(provider.requests) >= 1


def test_a_person_may_compact_before_a_cold_prompt_is_sent(start_client):
    """In a terminal the person is asked, the prompt comes back to the box, and only the small request is sent."""
    client, provider = start_client()
    client.place_session()
    trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    settings = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": ["sk-test"], "rejected": []},
        "projects": {str(client.project): trusted},
    }
    (client.home / ".claude.json").write_text(json.dumps(settings), "utf-8")
    with open_terminal(client, "--resume", SESSION_ID) as press:
        client.wait_for_log(r"session\.start settled")
        time.sleep(3)  # until the prompt is drawn
        press("Go on with it")
        time.sleep(1)  # keys that come at once are a paste, and its Enter is part of it
        press("\r")
        client.wait_for_log(r"holdfast exited 0")
        time.sleep(2)  # until the question is drawn; its first answer is to compact
        press("\r")
        client.wait_for_log(r"Holdfast compacted")
        time.sleep(2)
        assert len(provider.requests) == 0
        press("\r")
        client.wait_for_log(r"turn\.complete settled")
    (request,) = provider.requests
    assert request.tokens < 60_000
    assert json.loads(request.incoming.body)["messages"][-1]["content"] != []
    assert request.incoming.body.count(b"Go on with it") == 1


@contextmanager
def open_terminal(client, *arguments):
    """Run the client in a terminal; yield a function that presses keys."""
    terminal, client_end = pty.openpty()
    termios.tcsetwinsize(client_end, (40, 120))
    process = subprocess.Popen(
        client.build_command(*arguments),
        cwd=client.project,
        env=client.build_environment(TERM="xterm-256color"),
        stdin=client_end,
        stdout=client_end,
        stderr=client_end,
        start_new_session=True,
    )
    os.close(client_end)
    threading.Thread(target=discard_output, args=[terminal], daemon=True).start()
    try:
        yield lambda keys: os.write(terminal, keys.encode())
    finally:
        process.kill()
        process.wait()


def discard_output(terminal):
    """Read what the client draws, so that it can go on; ends with the client."""
    with suppress(OSError):
        while os.read(terminal, 65_536):
            pass
    os.close(terminal)
