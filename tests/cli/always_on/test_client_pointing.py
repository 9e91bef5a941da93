"""Each client's own settings point at the proxy, as the reader that ``holdfast run`` uses sees them."""

from __future__ import annotations

import subprocess
import tomllib

import pytest

from holdfast.cli.always_on.client_pointing import (
    CLIENT_PROGRAMS,
    PROFILE_CLIENTS,
    ClientPointing,
    PointingRequest,
    list_pointing_files,
    plan_pointing,
)
from holdfast.cli.always_on.file_changes import record_change, undo_change
from holdfast.cli.clients.client_settings import ClientEnvironment, find_configured_urls
from holdfast.cli.clients.launch import CLIENT_LAUNCHERS
from holdfast.errors import ConfigError

PROXY = "http://127.0.0.1:8642"


def point(client: str, files: dict[str, bytes] | None = None, **variables: str) -> ClientPointing:
    """Plan for ``client`` in a home at ``/home/me``; ``files`` are its files, by path below it."""
    file_bytes = {f"/home/me/{path}": data for path, data in (files or {}).items()}
    texts = {path: data.decode("utf-8-sig") for path, data in file_bytes.items()}
    place = ClientEnvironment(variables, "/home/me", "/", texts)
    request = PointingRequest("default", PROXY, (client,), place, file_bytes)
    pointing = plan_pointing(request)
    for change in pointing.changes:
        assert change.path in list_pointing_files(request), "a file is written that was not read before"
        assert undo_change(record_change(change), change.after).after == change.before
    return pointing


def read_urls(program: str, pointing: ClientPointing) -> dict[str, str]:
    """Return the addresses that the files now give the client."""
    texts = {change.path: change.after.decode("utf-8-sig") for change in pointing.changes}
    found = find_configured_urls(program, ClientEnvironment({}, "/home/me", "/", texts))
    return {configured.key: configured.url for configured in found}


def test_every_launcher_has_a_client():
    """What ``holdfast run`` can start, ``holdfast enable`` can point."""
    assert {program for program in CLIENT_PROGRAMS.values() if program} == set(CLIENT_LAUNCHERS)


@pytest.mark.parametrize(
    ("client", "files", "variables", "urls"),
    [
        ("claude-code", {}, {}, {"ANTHROPIC_BASE_URL": PROXY}),
        (
            "claude-code",
            {".claude/settings.json": b'{"env": {"ANTHROPIC_BASE_URL": "https://own"}}'},
            {},
            {"ANTHROPIC_BASE_URL": f"{PROXY}/u/https://own"},
        ),
        ("codex", {}, {}, {"openai_base_url": f"{PROXY}/v1"}),
        ("codex", {".codex/config.toml": b'[a]\r\nb = "c"'}, {}, {"openai_base_url": f"{PROXY}/v1"}),
        (
            "codex",
            {
                ".codex/config.toml": b"openai_base_url='https://own/v1' # mine\n[model_providers.x]\nbase_url=\"https://x\"\n"
            },
            {},
            {"openai_base_url": f"{PROXY}/u/https://own/v1", "model_providers.x.base_url": f"{PROXY}/u/https://x"},
        ),
        ("opencode", {}, {"ANTHROPIC_API_KEY": "k"}, {"anthropic": f"{PROXY}/v1"}),
        (
            "opencode",
            {".config/opencode/opencode.jsonc": b'{"provider": {"own": {"options": {"baseURL": "https://own"}}}} // c'},
            {},
            {"own": f"{PROXY}/u/https://own"},
        ),
    ],
)
def test_settings_point_at_the_proxy(client, files, variables, urls):
    """The address that a client had becomes the upstream in the path, as with ``holdfast run``."""
    pointing = point(client, files, **variables)
    assert read_urls(CLIENT_PROGRAMS[client], pointing) == urls


def test_claude_code_keeps_its_long_window():
    """At the proxy's plain address Claude Code is told that it leads to Anthropic; at another's it is noted."""
    (change,) = point("claude-code").changes
    assert b'"_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1"' in change.after
    other = point("claude-code", {".claude/settings.json": b'{"env": {"ANTHROPIC_BASE_URL": "https://own"}}'})
    assert b"ASSUME_FIRST_PARTY" not in other.changes[0].after
    assert "1,000,000" in other.notes[0]


def test_codex_settings_stay_before_the_first_table():
    """The address is a setting of the whole file, and all others keep their values."""
    before = b'\xef\xbb\xbfmodel = "m"\n[profiles.a]\nmodel = "b"\n'
    (change,) = point("codex", {".codex/config.toml": before}).changes
    document = tomllib.loads(change.after.decode("utf-8-sig"))
    assert document == {"openai_base_url": f"{PROXY}/v1", "model": "m", "profiles": {"a": {"model": "b"}}}


def test_codex_address_that_cannot_be_told_apart_is_noted():
    """Two providers with one address: neither is changed by guess."""
    text = b'[model_providers.x]\nbase_url = "https://x"\n[model_providers.y]\nbase_url = "https://x"\n'
    pointing = point("codex", {".codex/config.toml": text})
    assert len([note for note in pointing.notes if "cannot be changed" in note]) == 2


@pytest.mark.parametrize("client", PROFILE_CLIENTS)
@pytest.mark.parametrize(("shell", "name"), [("/bin/sh", ".profile"), ("/bin/bash", ".bashrc")])
def test_profile_sets_the_variables(tmp_path, client, shell, name):
    """A real shell that reads the profile has the variables that ``holdfast run`` would set."""
    (change,) = point(client, {name: b"OTHER='a b'"}, SHELL=shell).changes
    assert change.path == f"/home/me/{name}"
    profile = tmp_path / "profile"
    profile.write_bytes(change.after)
    result = subprocess.run([shell, "-c", f". {profile}; env"], capture_output=True, text=True, check=True, env={})
    assert f"={PROXY}" in result.stdout
    if client in {"aider", "llm", "sdk"}:
        assert f"OPENAI_BASE_URL={PROXY}/v1\n" in result.stdout
    if client == "gemini":
        assert f"GOOGLE_GEMINI_BASE_URL={PROXY}\n" in result.stdout


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"SHELL": "/bin/zsh"}, "/home/me/.zshrc"),
        ({"SHELL": "/bin/zsh", "ZDOTDIR": "/home/me/z"}, "/home/me/z/.zshrc"),
        ({"SHELL": "/usr/bin/fish"}, "/home/me/.config/fish/conf.d/holdfast-default.fish"),
        ({}, "/home/me/.profile"),
    ],
)
def test_profile_is_that_of_the_shell(variables, path):
    """Each shell reads a file of its own; fish has another language."""
    (change,) = point("gemini", **variables).changes
    assert change.path == path
    word = b"set -gx GOOGLE" if path.endswith(".fish") else b"export GOOGLE"
    assert word in change.after


def test_clients_of_the_profile_share_one_block():
    """Several clients need the same variables once."""
    place = ClientEnvironment({"SHELL": "/bin/bash"}, "/home/me", "/")
    pointing = plan_pointing(PointingRequest("default", PROXY, PROFILE_CLIENTS, place))
    (change,) = pointing.changes
    assert change.after.count(b"export OPENAI_BASE_URL=") == 1


def test_pi_gets_an_extension():
    """pi has no setting for all its providers, so its folder of extensions gets one."""
    (change,) = point("pi").changes
    assert change.path == "/home/me/.pi/agent/extensions/holdfast-default.js"
    assert f'"{PROXY}"'.encode() in change.after
    assert b"holdfast enable" in change.after


@pytest.mark.parametrize(
    ("client", "path", "data"),
    [("claude-code", ".claude/settings.json", b"[1]"), ("codex", ".codex/config.toml", b"a = ")],
)
def test_broken_settings_are_refused(client, path, data):
    """Settings that cannot be read are not written; the error names the file."""
    with pytest.raises(ConfigError, match=path):
        point(client, {path: data})
