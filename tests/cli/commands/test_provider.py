"""``holdfast provider`` serves the strict provider, and a pytest fixture offers it to other projects."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import httpx2
import pytest
from click.testing import CliRunner

from holdfast.cli import holdfast_command as program

BODY = {"model": "claude-opus-5", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
OTHER_PROJECTS_TESTS = """
import httpx2
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.faults.faults import Fault

BODY = {body!r}

def test_mine(strict_provider):
    served = strict_provider(window=500, script=[ScriptedAnswer("kelp")], faults=["529:head:2", Fault("401", at=3)])
    found = [httpx2.post(served.url + "/v1/messages", json=BODY) for _ in range(3)]
    assert [one.status_code for one in found] == [200, 529, 401]
    assert found[0].json()["content"][0]["text"] == "kelp"
    assert len(served.provider.incoming_requests) == 1
    assert served.provider.settings.window == 500

def test_two(strict_provider):
    first, second = strict_provider(), strict_provider()
    assert first.url != second.url
"""


@pytest.mark.long
def test_strict_provider_fixture_works_in_another_project(tmp_path):
    """One line in a ``conftest.py`` gives any project's tests a strict provider, without warnings."""
    (tmp_path / "conftest.py").write_text("from holdfast.testing.plugin import strict_provider as strict_provider\n")
    (tmp_path / "test_theirs.py").write_text(OTHER_PROJECTS_TESTS.replace("{body!r}", repr(BODY)))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout


def test_testing_plugin_loads_no_server():
    """pytest loads the plugin at every start, so it must import neither a server nor a provider."""
    script = "import sys, holdfast.testing.plugin; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = result.stdout.split()
    assert [name for name in ("uvicorn", "starlette", "anyio", "holdfast.testing.provider") if name in loaded] == []


# -- the command -------------------------------------------------------------------------------------------------------


def start_provider(*args: str) -> tuple[subprocess.Popen, dict]:
    """Return a running ``holdfast provider --json`` and its first line."""
    run = [sys.executable, "-m", "holdfast", "provider", "--json", *args]
    running = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return running, json.loads(running.stdout.readline())


@pytest.mark.long
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_provider_serves_until_a_signal(tmp_path, sign):
    """The command prints its address and one line a request, and exits cleanly on a signal."""
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "kelp", "thinking": "hm"}\n\n{"calls": [["read", {"path": "a"}]]}\n')
    running, greeting = start_provider(
        "--window", "900", "--script", str(script), "--fault", "500:head:3", "--factor", "2"
    )
    try:
        url = greeting["environment"]["ANTHROPIC_BASE_URL"]
        replies = [httpx2.post(f"{url}/v1/messages", json=BODY).json() for _ in range(3)]
        httpx2.get(f"{greeting['environment']['OPENAI_BASE_URL']}/models")
        lines = [json.loads(running.stdout.readline()) for _ in range(4)]
    finally:
        running.send_signal(sign)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (0, "", "stopped after 4 requests\n")
    assert [reply.get("stop_reason") for reply in replies] == ["end_turn", "tool_use", None]
    assert [line["status"] for line in lines] == [200, 200, 500, 200]
    assert lines[0]["tokens"] > 0
    assert lines[2]["verdict"] == "api_error, 500 at head"
    assert greeting["window"] == 900


@pytest.mark.parametrize(
    ("args", "script", "message"),
    [
        (["--fault", "rest"], "", "no fault is called 'rest'; give one of reset"),
        (["--fault", "429:middle"], "", "cannot strike at 'middle'"),
        (["--overflow", "shouting"], "", "no provider says an overflow as 'shouting'; choose one of native"),
        (["--script", "-"], '{"text":"a"}\n{"txt":"b"}\n', "the script, line 2: an answer has no 'txt'; use text"),
        (["--script", "-"], "\n\n{oops\n", "the script, line 3"),
        (["--script", "-"], '{"text": 1}', "the script, line 1 is not an answer: Expected `str`, got `int`"),
        (["--script", "-"], '{"stop": "tired"}', "the script, line 1 is not an answer: Invalid enum value 'tired'"),
        (["--script", "nowhere.jsonl"], "", "nowhere.jsonl: no such file or directory"),
        (["--window", "0"], "", "0 is not in the range x>=1"),
        (["--factor", "0"], "", "0.0 is not in the range 0<x<=100"),
        (["--factor", "inf"], "", "inf is not in the range 0<x<=100"),
        (["--factor", "nan"], "", "is not a number; use digits, for example 0.5"),
        (["--port", "99999"], "", "99999 is not in the range"),
    ],
)
def test_provider_exits_2_on_wrong_use(args, script, message):
    """A wrong option or script line is named with what to give, with exit code 2 and no traceback."""
    result = CliRunner().invoke(program, ["provider", *args], input=script)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_provider_exits_2_when_its_port_is_in_use():
    """A port in use is named with advice."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = CliRunner().invoke(program, ["provider", "--port", str(port)])
    assert result.exit_code == 2
    assert f"port {port} is already in use; give another --port" in result.output


def test_provider_refuses_a_server_that_is_not_known():
    """The error for an unknown ``--server`` lists the servers."""
    result = CliRunner().invoke(program, ["provider", "--server", "mistrall"])
    assert result.exit_code == 2
    assert "'mistrall' is not one of 'mistral', 'deepseek'" in result.output


@pytest.mark.long
def test_provider_answers_as_the_server_that_is_chosen():
    """With ``--server`` refusals have the server's words and form."""
    running, greeting = start_provider("--server", "lmstudio")
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "tools": [tool]}
    body["tool_choice"] = {"type": "function", "function": {"name": "read"}}
    try:
        response = httpx2.post(f"{greeting['url']}/v1/chat/completions", json=body)
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=30)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert response.json()["error"].startswith("Invalid tool_choice type: 'object'.")
