"""``holdfast enable``, ``disable`` and ``status``: shown, written, undone exactly, and wrong input refused."""

from __future__ import annotations

import json
import re
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli import holdfast_command

ALL_CLIENTS = [
    word
    for client in ("claude-code", "codex", "opencode", "pi", "gemini", "aider", "llm", "sdk")
    for word in ("--client", client)
]
SERVICE_MANAGER = '''#!{python}
"""A small systemctl: it reads the unit and starts its command, as systemd does for a user."""
import os, pathlib, re, shlex, signal, subprocess, sys, time
folder = pathlib.Path(os.environ["HOME"], ".config/systemd/user")
words = sys.argv[2:]
if {refuse!r} in words:
    sys.exit("the user manager refuses")
if words[0] in ("enable", "disable", "is-active"):
    unit = folder / words[-1]
    pid_file = pathlib.Path({state!r}, words[-1])
    link = folder / "default.target.wants" / words[-1]
if words[0] == "enable":
    fields = dict(re.findall("(?m)^([A-Za-z]+)=(.*)$", unit.read_text()))
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(unit)
    log = open(fields["StandardOutput"].removeprefix("append:"), "ab")
    process = subprocess.Popen(shlex.split(fields["ExecStart"]), cwd=fields["WorkingDirectory"], stdout=log,
        stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, close_fds=True)
    pid_file.write_text(str(process.pid))
if words[0] == "disable":
    link.unlink(missing_ok=True)
    if link.parent.exists():
        link.parent.rmdir()
    if pid_file.exists():
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        for _ in range(200):
            if pathlib.Path("/proc", str(pid), "stat").exists() and ") Z" not in open(f"/proc/{{pid}}/stat").read():
                time.sleep(0.05)
        pid_file.unlink()
if words[0] == "is-active":
    print("active" if pid_file.exists() else "inactive")
'''
"""systemd itself cannot run in a container without a login session."""


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(holdfast_command, list(arguments), env=variables)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes] | str]:
    """Return every file with its mode and bytes, every link with its target, and every folder."""
    found: dict[str, tuple[int, bytes] | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
    return found


@pytest.fixture(autouse=True)
def no_programs(home, tmp_path_factory, monkeypatch) -> Path:
    """Return the only folder of programs, which is empty: no client is found, and no service manager."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("SHELL", "/bin/bash")
    return folder


@pytest.fixture
def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def install_service_manager(programs: Path, refuse: str = "nothing") -> None:
    """Make the small service manager the ``systemctl`` of this test."""
    state = programs.parent / f"{programs.name}-state"
    state.mkdir(exist_ok=True)
    text = SERVICE_MANAGER.format(python=sys.executable, refuse=refuse, state=str(state))
    (programs / "systemctl").write_text(text, "utf-8")
    (programs / "systemctl").chmod(0o755)


profiles = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"a", b"a\r\nb\r\n", b"", b"\n\n"]))
claude_files = st.sampled_from(
    [
        None,
        b"",
        b"{}",
        b"{ }\r\n",
        b'{\r\n\t"env":{"A":"1",}, // c\r\n}',
        b'{"env":{"ANTHROPIC_BASE_URL":"https://own"}}',
    ]
)
codex_files = st.sampled_from(
    [
        None,
        b"",
        b'a="b"',
        b"[t]\r\nx=1",
        b"openai_base_url = 'https://own/v1'",
        b'[model_providers.x]\nbase_url="https://x"',
    ]
)
opencode_files = st.sampled_from([None, b"// c\n{}", b'{"provider":{"anthropic":{}}}'])


@settings(max_examples=25, deadline=None)
@given(
    profile=profiles,
    claude=claude_files,
    codex=codex_files,
    opencode=opencode_files,
    mode=st.sampled_from([0o600, 0o644]),
)
def test_disable_leaves_any_home_byte_identical(profile, claude, codex, opencode, mode):
    """Whatever files a home has, the same files, folders, modes and bytes are there after enable and disable."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        files = {
            ".bashrc": profile,
            ".claude/settings.json": claude,
            ".codex/config.toml": codex,
            ".config/opencode/opencode.json": opencode,
        }
        for name, data in files.items():
            if data is not None:
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_bytes(data)
                (home / name).chmod(mode)
        before = snapshot(home)
        variables = {"HOME": folder, "ANTHROPIC_API_KEY": "k", "HOLDFAST_STORE": str(home / "no.db")}
        result = run("enable", *ALL_CLIENTS, "--no-service", "--yes", **variables)
        assert result.exit_code == 0, result.output
        assert snapshot(home) != before
        result = run("disable", "--yes", **variables)
        assert result.exit_code == 0, result.output
        assert snapshot(home) == before


def test_service_runs_until_disabled(home, no_programs, free_port):
    """The service answers, status says since when, and after disable nothing of it is left."""
    install_service_manager(no_programs)
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text("{}")
    before = snapshot(home)
    arguments = ("enable", "--client", "claude-code", "--port", free_port, "--yes", "--json")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    written = json.loads(result.output)
    assert written["written"]
    assert [Path(change["path"]).name for change in written["changes"]] == ["holdfast-default.service", "settings.json"]
    (status,) = json.loads(run("status", "--json").output)
    assert status["running"], status
    assert re.match(r"\d{4}-\d\d-\d\d", status["since"])
    assert status["service_state"] == "active"
    assert status["clients"] == ["claude-code"]
    assert status["pointing_files"] == [str(home / ".claude" / "settings.json")]
    assert stat.S_IMODE(Path(status["log"]).parent.stat().st_mode) == 0o700
    text = run("status").output
    assert "running since" in text
    assert "\x1b" not in text
    result = run("disable", "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["done"]
    shutil.rmtree(home / "store", ignore_errors=True)
    assert snapshot(home) == before
    assert json.loads(run("status", "--json").output) == []


@pytest.mark.parametrize("refuse", ["show", "enable"])
def test_refusing_service_manager_leaves_nothing(home, no_programs, free_port, refuse):
    """A service manager that is not there for this user, or does not start the service: nothing half-done."""
    install_service_manager(no_programs, refuse)
    before = snapshot(home)
    result = run("enable", *ALL_CLIENTS, "--port", free_port, "--yes")
    assert result.exit_code == 2
    assert "the user manager refuses" in result.output
    assert "holdfast serve --port" in result.output
    assert snapshot(home) == before


def test_missing_service_manager_names_the_way_out(home):
    """Without systemctl the command says what to do, and writes nothing."""
    before = snapshot(home)
    result = run("enable", "--client", "sdk", "--yes")
    assert result.exit_code == 2
    assert "there is no systemctl" in result.output
    assert "--no-service" in result.output
    assert snapshot(home) == before


def test_nothing_is_written_without_consent(home):
    """A dry run shows each path with its lines and writes nothing, as does a run that cannot ask."""
    before = snapshot(home)
    result = run("enable", "--client", "sdk", "--dry-run")
    assert result.exit_code == 0
    assert f"+++ {home}/.bashrc" in result.output
    assert "+export ANTHROPIC_BASE_URL=http://127.0.0.1:8642" in result.output
    assert "holdfast-default.service" in result.output
    assert run("enable", "--client", "sdk", "--no-service").exit_code == 2
    assert snapshot(home) == before
    run("enable", "--client", "sdk", "--no-service", "--yes")
    enabled = snapshot(home)
    assert "-export ANTHROPIC_BASE_URL" in run("disable", "--dry-run").output
    assert run("disable").exit_code == 2
    assert snapshot(home) == enabled


def test_edits_between_are_kept(home):
    """What the user wrote after enable is still there after disable, and what was left is said."""
    (home / ".claude").mkdir()
    claude = home / ".claude" / "settings.json"
    claude.write_text('{"model": "opus"}')
    assert run("enable", *ALL_CLIENTS, "--no-service", "--yes").exit_code == 0
    document = json.loads(claude.read_text())
    document["added"] = True
    claude.write_text(json.dumps(document))
    with (home / ".bashrc").open("a") as file:
        file.write("alias later=true\n")
    extension = home / ".pi" / "agent" / "extensions" / "holdfast-default.js"
    extension.write_text("// mine")
    result = run("disable", "--yes")
    assert result.exit_code == 0, result.output
    assert json.loads(claude.read_text()) == {"model": "opus", "added": True}
    assert (home / ".bashrc").read_text() == "alias later=true\n"
    assert extension.read_text() == "// mine"
    assert f"left in {extension}" in result.output


def test_profile_that_is_a_link_stays_one(home):
    """A profile kept elsewhere is written there, and the link stays."""
    kept = home / "dotfiles"
    kept.mkdir()
    (kept / "bashrc").write_bytes(b"a")
    (home / ".bashrc").symlink_to(kept / "bashrc")
    before = snapshot(home)
    assert run("enable", "--client", "sdk", "--no-service", "--yes").exit_code == 0
    assert b"holdfast" in (kept / "bashrc").read_bytes()
    assert run("disable", "--yes").exit_code == 0
    assert snapshot(home) == before


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield str(server.getsockname()[1])


def test_wrong_input_is_refused(home, no_programs, taken_port):
    """Unknown client, a taken port, an impossible name, no home, broken settings, no such instance."""
    install_service_manager(no_programs)
    before = snapshot(home)
    cases = [
        (("enable", "--client", "emacs"), {}, "claude-code"),
        (("enable", "--client", "sdk", "--port", taken_port, "--yes"), {}, "is in use"),
        (("enable", "--port", "0"), {}, "0 is not in the range"),
        (("enable", "--name", "../x"), {}, "cannot name an instance"),
        (("enable", "--dry-run"), {"HOME": ""}, "HOME is not set"),
        (("enable", "--dry-run"), {"HOME": "/does/not/exist"}, "which is not a folder"),
        (("disable", "--yes"), {}, "there is no instance default"),
    ]
    for arguments, variables, message in cases:
        result = run(*arguments, **variables)
        assert result.exit_code == 2, arguments
        assert message in result.output, result.output
    assert snapshot(home) == before


def test_second_instance_needs_its_own_name_port_and_clients(home):
    """Two proxies one behind the other would reduce twice, so an instance's client is not pointed at another."""
    assert run("enable", "--client", "claude-code", "--no-service", "--yes").exit_code == 0
    same_name = run("enable", "--client", "sdk", "--no-service", "--yes", "--port", "8700")
    assert (same_name.exit_code, "exists already" in same_name.output) == (2, True)
    same_port = run("enable", "--client", "sdk", "--no-service", "--yes", "--name", "work")
    assert (same_port.exit_code, "belongs to instance default" in same_port.output) == (2, True)
    work = ("enable", "--no-service", "--yes", "--name", "work", "--port", "8700")
    same_client = run(*work, "--client", "claude-code")
    assert (same_client.exit_code, "is pointed at instance default" in same_client.output) == (2, True)
    # The shell that runs this has the variables of the first instance already.
    assert run(*work, "--client", "sdk", ANTHROPIC_BASE_URL="http://127.0.0.1:8642").exit_code == 0
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8700\n" in (home / ".bashrc").read_text()
    assert [status["name"] for status in json.loads(run("status", "--json").output)] == ["default", "work"]
    assert run("disable", "--name", "work", "--yes").exit_code == 0
    assert [status["name"] for status in json.loads(run("status", "--json").output)] == ["default"]


def test_service_alone_touches_no_client(home):
    """With ``--client none`` only the record of the instance is written, whatever is installed: the plugins of clients
    ask the proxy by themselves.
    """
    before = snapshot(home)
    assert run("enable", "--client", "none", "--no-service", "--yes").exit_code == 0
    written = {path for path in snapshot(home) if path not in before}
    assert {Path(path).suffix for path in written} <= {"", ".json", ".log"}
    assert all("instances" in str(path) for path in written if Path(path).suffix)
    assert run("enable", "--client", "none", "--client", "pi", "--no-service", "--yes").exit_code == 2
    assert run("disable", "--yes").exit_code == 0
    assert snapshot(home) == before


def test_settings_that_cannot_be_written_stop_everything(home):
    """A path that cannot be written is named before anything is."""
    (home / ".pi").write_text("a file where a folder must be")
    before = snapshot(home)
    result = run("enable", "--client", "sdk", "--client", "pi", "--no-service", "--yes")
    assert result.exit_code == 2
    assert f"{home}/.pi/agent/extensions/holdfast-default.js cannot be written" in result.output
    assert snapshot(home) == before


def test_interrupted_enable_can_be_undone(home):
    """A process that was killed had written its record first, and then some of the files; disable undoes those."""
    (home / ".bashrc").write_bytes(b"a")
    before = snapshot(home)
    assert run("enable", *ALL_CLIENTS, "--no-service", "--yes").exit_code == 0
    (home / ".bashrc").write_bytes(b"a")
    (home / ".claude" / "settings.json").unlink()
    assert run("disable", "--yes").exit_code == 0
    assert snapshot(home) == before


def test_damaged_record_is_named(home):
    """A record that cannot be read is an error with its path, for each command."""
    assert run("enable", "--client", "sdk", "--no-service", "--yes").exit_code == 0
    (record,) = home.rglob("instances/default.json")
    record.write_text("{")
    for command in ("status", "disable", "enable"):
        result = run(command)
        assert (result.exit_code, f"{record} is damaged" in result.output) == (2, True), result.output


def test_damaged_record_of_another_instance_keeps_none_from_being_undone(home):
    """An instance whose own record can be read is disabled, whatever state the others are in."""
    assert run("enable", "--client", "sdk", "--no-service", "--yes").exit_code == 0
    (record,) = home.rglob("instances/default.json")
    record.with_name("broken.json").write_text("{")
    result = run("disable", "--yes")
    assert result.exit_code == 0, result.output
    assert not record.exists()
    assert "1 file put back" in result.output
