"""The fixture that others use in their own tests, and the command that serves the provider."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import httpx2
import pytest
from click.testing import CliRunner

from holdfast.cli import command as program

BODY = {"model": "claude-opus-5", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
THEIRS = """
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
def test_the_fixture(tmp_path):
    """One line in a ``conftest.py`` gives any project's tests a strict provider, with warnings being errors."""
    (tmp_path / "conftest.py").write_text("from holdfast.testing.plugin import strict_provider as strict_provider\n")
    (tmp_path / "test_theirs.py").write_text(THEIRS.replace("{body!r}", repr(BODY)))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_the_plugin_is_light():
    """Loading the plugin loads neither a server nor a provider: pytest does so at every start."""
    script = "import sys, holdfast.testing.plugin; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    assert [name for name in ("uvicorn", "starlette", "anyio", "holdfast.testing.provider") if name in loaded] == []


# -- the command -------------------------------------------------------------------------------------------------------


def started(*args: str) -> tuple[subprocess.Popen, dict]:
    """Return a running command that prints JSON, and its first line."""
    run = [sys.executable, "-m", "holdfast", "provider", "--json", *args]
    running = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return running, json.loads(running.stdout.readline())


@pytest.mark.long
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(tmp_path, sign):
    """The command tells where it is and what was asked, a line a request, and ends cleanly when it is told to."""
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "kelp", "thinking": "hm"}\n\n{"calls": [["read", {"path": "a"}]]}\n')
    running, first = started("--window", "900", "--script", str(script), "--fault", "500:head:3", "--factor", "2")
    try:
        url = first["environment"]["ANTHROPIC_BASE_URL"]
        found = [httpx2.post(f"{url}/v1/messages", json=BODY).json() for _ in range(3)]
        httpx2.get(f"{first['environment']['OPENAI_BASE_URL']}/models")
        lines = [json.loads(running.stdout.readline()) for _ in range(4)]
    finally:
        running.send_signal(sign)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (0, "", "stopped after 4 requests\n")
    assert [one.get("stop_reason") for one in found] == ["end_turn", "tool_use", None]
    assert [line["status"] for line in lines] == [200, 200, 500, 200]
    assert lines[0]["tokens"] > 0
    assert lines[2]["verdict"] == "api_error, 500 at head"
    assert first["window"] == 900


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
def test_wrong_use_is_told(args, script, message):
    """What cannot be served is told with its place and what to give, with exit code 2 and no traceback."""
    ran = CliRunner().invoke(program, ["provider", *args], input=script)
    assert ran.exit_code == 2
    assert message in " ".join(ran.output.split())
    assert "Traceback" not in ran.output


def test_a_port_that_is_taken():
    """A port that somebody else has is told, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = CliRunner().invoke(program, ["provider", "--port", str(port)])
    assert ran.exit_code == 2
    assert f"port {port} is already in use; give another --port" in ran.output
