"""The plugin's own tests in the real Claude Code, and a session that is compacted and resumed, all offline."""

from __future__ import annotations

import json
import re
import struct

import pytest
from claude_client import PLUGIN, ROOT, SESSION_ID, ClaudeClient, get_user_text, read_rows

from holdfast.planning.extract.previous_summary import EXTRACT_OPENING
from holdfast.testing.provider import RefusalReply

LEAST_ICON_PIXELS, MOST_ICON_PIXELS = 512, 2_048

pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel")


def test_plugin_files_say_what_the_directory_wants():
    """A README of forty words or more, the licence of the repository, a square icon, the version of the package."""
    assert len((PLUGIN / "README.md").read_text("utf-8").split()) >= 40
    assert (PLUGIN / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
    manifest = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text("utf-8"))
    assert f'version = "{manifest["version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    icon = (PLUGIN / ".claude-plugin" / "icon.png").read_bytes()
    width, height = struct.unpack(">II", icon[16:24])
    assert icon.startswith(b"\x89PNG")
    assert LEAST_ICON_PIXELS <= width == height <= MOST_ICON_PIXELS


def test_repository_is_a_marketplace_with_the_plugin():
    """The marketplace's entry leads to the folder of the plugin of that name."""
    marketplace = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text("utf-8"))
    (entry,) = marketplace["plugins"]
    manifest = json.loads((ROOT / entry["source"] / ".claude-plugin" / "plugin.json").read_text("utf-8"))
    assert manifest["name"] == entry["name"]


def test_plugin_is_no_part_of_the_wheel():
    """The wheel is built from src/holdfast alone."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert 'packages = ["src/holdfast"]' in text
    assert "force-include" not in text


def test_claude_accepts_the_plugin(claude, tmp_path, plugin):
    """``claude plugin validate`` finds nothing to refuse, and no hook that would stop the client by failing."""
    ran = ClaudeClient(claude, tmp_path).run_plugin_command("validate", plugin)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "register.ts hooks: session.compact" in ran.stdout
    assert "hook without .catch" not in ran.stdout
    assert "error TS" not in ran.stdout


def test_claude_installs_the_plugin_from_the_repository(claude, tmp_path):
    """The repository is accepted as a marketplace, and the plugin can be installed from it."""
    client = ClaudeClient(claude, tmp_path)
    for arguments in (["validate", ROOT], ["marketplace", "add", ROOT], ["install", "holdfast@holdfast"]):
        ran = client.run_plugin_command(*arguments)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "holdfast@holdfast" in client.run_plugin_command("list").stdout


def test_claude_runs_the_tests_of_the_plugin(claude, tmp_path, plugin):
    """``claude plugin test`` passes: what is handed over, what comes back, and every way to fail open."""
    ran = ClaudeClient(claude, tmp_path).run_plugin_command("test", plugin)
    output = ran.stdout + ran.stderr
    assert ran.returncode == 0, output
    passed = re.search(r"^ (\d+) pass$", output, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) >= 67
    assert re.search(r"^ 0 fail$", output, re.MULTILINE)


@pytest.mark.long
def test_a_compacted_session_stays_compacted_when_it_is_resumed(start_client):
    """Three compactions: each extract goes on from the last, and every request after one is small and valid."""
    client, provider = start_client()
    transcript = client.place_session()
    for number in range(3):
        for prompt in ("/compact mind the ticket HF-2291", f"Go on, round {number}."):
            client.run("-p", "--resume", SESSION_ID, prompt)
    requests = [request for request in provider.requests if request.incoming.endpoint == "generate"]
    assert len(requests) == 3
    assert not any(isinstance(request.reply, RefusalReply) for request in requests)
    assert max(request.tokens for request in requests) < 60_000
    sizes = client.list_compactions()
    assert len(sizes) == 3
    assert sizes[0][0] > 200_000
    assert all(before < 60_000 for before, _ in sizes[1:])
    assert all(after < before for before, after in sizes)
    rows = read_rows(transcript)
    extracts = [text for row in rows if (text := get_user_text(row)).startswith(EXTRACT_OPENING)]
    assert len(extracts) == 3
    assert all("never change the public names" in extract for extract in extracts)
