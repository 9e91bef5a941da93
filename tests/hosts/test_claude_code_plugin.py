"""The plugin in the real Claude Code: its own tests, and a session that is compacted and resumed, all offline."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.planning.extract.previous_summary import EXTRACT_OPENING

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "integrations" / "hosts" / "claude-code"
SESSION = ROOT / "examples" / "long-session.jsonl"
SESSION_ID = "a21116fc-35bd-4653-95cf-238f307d23d0"


def run_claude(claude, home, *arguments, **variables):
    """Run Claude Code with a home and an environment of its own, and return the finished process."""
    environment = {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        **variables,
    }
    project = home / "project"
    project.mkdir(exist_ok=True)
    command = [claude, *map(str, arguments)]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.fixture
def plugin(tmp_path):
    """Return a copy of the plugin: Claude Code writes its types into the folder whose tests it runs."""
    return shutil.copytree(PLUGIN, tmp_path / "plugin")


@pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel")
def test_plugin_files_say_what_the_directory_wants():
    """A README of forty words or more, the licence of the repository, and the version of the package."""
    assert len((PLUGIN / "README.md").read_text("utf-8").split()) >= 40
    assert (PLUGIN / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
    manifest = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text("utf-8"))
    assert f'version = "{manifest["version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_plugin_is_no_part_of_the_wheel():
    """The wheel is built from src/holdfast alone."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert 'packages = ["src/holdfast"]' in text
    assert "force-include" not in text


def test_claude_accepts_the_plugin(claude, tmp_path, plugin):
    """``claude plugin validate`` finds nothing to refuse, and no hook that would stop a compaction by failing."""
    ran = run_claude(claude, tmp_path, "plugin", "validate", plugin)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "compact.ts hooks: session.compact" in ran.stdout
    assert "hook without .catch" not in ran.stdout


def test_claude_runs_the_tests_of_the_plugin(claude, tmp_path, plugin):
    """``claude plugin test`` passes: what is handed over, what comes back, and every way to fail open."""
    ran = run_claude(claude, tmp_path, "plugin", "test", plugin)
    output = ran.stdout + ran.stderr
    assert ran.returncode == 0, output
    passed = re.search(r"^ (\d+) pass$", output, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) >= 22
    assert re.search(r"^ 0 fail$", output, re.MULTILINE)


@pytest.fixture
def provider():
    """Start the strict provider with a large window; yield its address and its process."""
    command = [sys.executable, "-m", "holdfast", "provider", "--window", "1000000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["url"]
        yield address, process
        process.kill()


@pytest.mark.long
def test_a_compacted_session_stays_compacted_when_it_is_resumed(claude, tmp_path, plugin, provider):
    """Three compactions: each extract goes on from the last, and every request after one is small and valid."""
    address, process = provider
    project = re.sub(r"[^A-Za-z0-9]", "-", str(tmp_path / "project"))
    transcript = tmp_path / ".claude" / "projects" / project / f"{SESSION_ID}.jsonl"
    transcript.parent.mkdir(parents=True)
    shutil.copy(SESSION, transcript)
    log = tmp_path / "debug.log"
    for number in range(3):
        for prompt in ("/compact mind the ticket HF-2291", f"Go on, round {number}."):
            ran = run_claude(
                claude,
                tmp_path,
                *("--plugin-dir", plugin, "--debug-file", log, "-p", "--resume", SESSION_ID, prompt),
                ANTHROPIC_BASE_URL=address,
                ANTHROPIC_API_KEY="sk-test",
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
    process.kill()
    lines = [json.loads(line) for line in process.stdout]
    requests = [line for line in lines if line["path"] == "/v1/messages"]  # older versions ask for other things too
    assert [request["status"] for request in requests] == [200] * 3
    assert max(request["tokens"] for request in requests) < 60_000
    notices = re.findall(r"Holdfast compacted: ([\d,]+) → ([\d,]+) tokens", log.read_text("utf-8"))
    sizes = [(int(before.replace(",", "")), int(after.replace(",", ""))) for before, after in notices]
    assert len(sizes) == 3
    assert sizes[0][0] > 200_000
    assert all(before < 60_000 for before, _ in sizes[1:])
    assert all(after < before for before, after in sizes)
    rows = [json.loads(line) for line in transcript.read_text("utf-8").splitlines()]
    extracts = [text for row in rows if (text := get_user_text(row)).startswith(EXTRACT_OPENING)]
    assert len(extracts) == 3
    assert all("never change the public names" in extract for extract in extracts)


def get_user_text(row):
    """Return the text of a user's row of a session file, or an empty string."""
    content = row.get("message", {}).get("content", "") if row.get("type") == "user" else ""
    return content if isinstance(content, str) else ""
