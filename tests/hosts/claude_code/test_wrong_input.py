"""Whatever is wrong with Holdfast or around it, the real Claude Code goes on as without it, and that is said once."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from claude_client import PLUGIN, SESSION_ID, get_user_text, read_rows, write_program

from holdfast.planning.extract.previous_summary import EXTRACT_OPENING

pytestmark = [
    pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel"),
    pytest.mark.long,
]

NEW_SESSION_ID = "5d0c9d0e-3f0f-4b53-9d4e-0d2b5b1f7a11"
HANDLE_ERROR = '{"error": {"path": "messages[0].role", "why": "no role", "advice": "update Holdfast"}}'
BROKEN_PROGRAMS = {
    "missing": None,
    "old": "echo 'Error: No such option: --stdin' >&2; exit 2",
    "killed in the middle": """printf '{"messages": ['; kill -9 $$""",
    "half an answer": """printf '{"messages": ['""",
    "a newer transcript": f"echo '{HANDLE_ERROR}' >&2; exit 2",
}
"""What the program ``holdfast`` does, by what is wrong with it."""
REASONS = {
    "missing": "no program holdfast on the PATH",
    "old": "too old for the plugin",
    "killed in the middle": "holdfast ended with",
    "half an answer": "of another version",
    "a newer transcript": "messages[0].role: no role; update Holdfast",
}

OTHER_PLUGIN = """
import type { Register } from 'claude-code'
export const register: Register = on => {
  on('session.compact', async ($, e, next) => {
    $.ui.log(`the other plugin compacts ${e.messages.length} messages`)
    return { messages: [{ role: 'user', text: 'THE OTHER SUMMARY', toolUses: [] }] }
  })
}
"""


@pytest.mark.parametrize("what", BROKEN_PROGRAMS)
def test_a_broken_holdfast_leaves_the_compaction_to_claude(start_client, tmp_path, what):
    """Claude Code writes its own summary, one line says why, and the session goes on."""
    client, provider = start_client()
    script = BROKEN_PROGRAMS[what]
    if script is None:
        (tmp_path / "programs").mkdir()
        client.path = str(tmp_path / "programs")
    else:
        client.path = write_program(tmp_path / "programs", "holdfast", script)
    client.run("-p", "--session-id", NEW_SESSION_ID, "Never touch main.py.")
    before = len(provider.requests)
    client.run("-p", "--resume", NEW_SESSION_ID, "/compact")
    assert len(provider.requests) > before  # the summary is a call to the model
    (said,) = client.list_said_lines()
    assert REASONS[what] in said
    client.run("-p", "--resume", NEW_SESSION_ID, "Go on.")
    assert client.list_said_lines() == [said]


def test_a_session_of_a_newer_format_is_compacted_and_recorded(start_client):
    """Rows and fields that nobody knows yet are left alone."""
    client, _ = start_client()
    transcript = client.place_session()
    rows = read_rows(transcript)
    for row in rows:
        row["newField"] = {"deep": [1.5, None]}
    rows.insert(3, {"type": "hologram", "uuid": "9f1d7a9e-0000-4000-8000-000000000000", "shape": {"sides": 7}})
    transcript.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    client.run("-p", "--resume", SESSION_ID, "/compact")
    (said,) = client.list_said_lines()
    assert said.startswith("Holdfast compacted")
    assert client.list_recorded_sessions() == [SESSION_ID]


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_plugins_that_compact_one_answers(start_client, tmp_path, is_first):
    """The one that was loaded last is asked first and answers; the other is not asked; the session goes on."""
    client, _ = start_client()
    other = tmp_path / "other"
    (other / ".claude-plugin").mkdir(parents=True)
    (other / "hooks").mkdir()
    manifest = {"name": "other", "description": "compacts too", "version": "0.1.0"}
    (other / ".claude-plugin" / "plugin.json").write_text(json.dumps(manifest), "utf-8")
    (other / "hooks" / "hooks.json").write_text('{"modules": ["compact.ts"]}', "utf-8")
    (other / "hooks" / "compact.ts").write_text(OTHER_PLUGIN, "utf-8")
    client.plugins.insert(len(client.plugins) if is_first else 0, other)
    transcript = client.place_session()
    client.run("-p", "--resume", SESSION_ID, "/compact")
    texts = [get_user_text(row) for row in read_rows(transcript)]
    is_ours = sum(text.startswith(EXTRACT_OPENING) for text in texts)
    is_other = sum("THE OTHER SUMMARY" in text for text in texts)
    assert (is_ours, is_other) == ((1, 0) if is_first else (0, 1))
    client.run("-p", "--resume", SESSION_ID, "Go on.")


@pytest.fixture
def forbidding_wrapper(tmp_path):
    """Return a command before whose program an organization's settings forbid all plugins with hooks of that kind.

    Claude Code reads such settings from a folder of the system, so the program gets a system folder of its own.
    """
    folder = tmp_path / "etc"
    shutil.copytree("/etc", folder, symlinks=True, ignore_dangling_symlinks=True, ignore=_skip_unreadable_files)
    (folder / "claude-code").mkdir(exist_ok=True)
    options = {"cc-plugin-sec-default@builtin": {"options": {"allowManagedModsOnly": True}}}
    settings = json.dumps({"pluginConfigs": options})
    (folder / "claude-code" / "managed-settings.json").write_text(settings, "utf-8")
    mount = f'mount --bind {folder} /etc && exec "$@"'
    wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*wrapper, "true"], check=False).returncode != 0:
        pytest.skip("this system allows no mount of one's own, so no organization's settings can be tried")
    return wrapper


def _skip_unreadable_files(folder, names):
    """Return the names of what cannot be copied: files of other users, and sockets."""
    return [name for name in names if not _is_copyable(Path(folder) / name)]


def _is_copyable(path):
    if path.is_symlink() or path.is_dir():
        return True
    try:
        path.open("rb").close()
    except OSError:
        return False
    return path.is_file()


def test_where_an_organization_forbids_such_plugins_claude_goes_on_without(start_client, forbidding_wrapper):
    """The hooks are not loaded, and Claude Code compacts by itself; its debug log says why."""
    client, provider = start_client()
    client.run("-p", "--session-id", NEW_SESSION_ID, "Never touch main.py.", wrapper=forbidding_wrapper)
    before = len(provider.requests)
    client.run("-p", "--resume", NEW_SESSION_ID, "/compact", wrapper=forbidding_wrapper)
    assert len(provider.requests) > before
    assert client.list_said_lines() == []
    assert "allowManagedModsOnly" in client.read_log()


@pytest.fixture
def http_proxy():
    """Listen as an HTTP proxy that answers nothing; yield its address and the requests it got."""
    requests = []
    listener = socket.create_server(("127.0.0.1", 0))

    def accept_requests():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(10_000))

    threading.Thread(target=accept_requests, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    listener.close()


def test_a_transcript_is_not_sent_through_an_http_proxy(start_client, http_proxy):
    """Claude Code would send even what is for this machine through it, so a process compacts instead."""
    client, _ = start_client()
    client.place_session()
    address, requests = http_proxy
    variables = {"HTTP_PROXY": address, "NO_PROXY": "", "HOLDFAST_URL": "http://127.0.0.1:9"}
    client.run("-p", "--resume", SESSION_ID, "/compact", **variables)
    assert len(client.list_compactions()) == 1
    assert not any(b"/v1/compact" in request for request in requests)
