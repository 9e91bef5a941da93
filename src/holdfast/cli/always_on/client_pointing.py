"""Point clients at a running proxy in their own settings, or in the shell profile where they have none for it.

What each client needs is known by ``holdfast run`` (``cli/clients/launch.py``). Here the same variables, options and
addresses go into files. This module does no I/O.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.cli.always_on.file_changes import FileChange, OwnFile, ReplacedText, append_block, set_json_members
from holdfast.cli.clients.client_settings import (
    ClientEnvironment,
    get_nested_value,
    list_settings_files,
    parse_lenient_json,
)
from holdfast.cli.clients.launch import LaunchPlan, LaunchRequest, list_launch_files, plan_launch
from holdfast.errors import ConfigError

CLIENT_PROGRAMS = {
    "claude-code": "claude",
    "codex": "codex",
    "opencode": "opencode",
    "pi": "pi",
    "gemini": "gemini",
    "aider": "aider",
    "llm": "llm",
    "sdk": "",
}
"""The clients that can be pointed at the proxy, with the program of each. ``sdk`` stands for any program that uses the
SDK of a provider."""
PROFILE_CLIENTS = ("gemini", "aider", "llm", "sdk")
"""Clients that read their address from a variable, which the shell profile sets."""
_RUN_HEADER = "// Written by `holdfast run`"
"""How the extension for pi begins."""


class PointingRequest(Struct, frozen=True):
    """What is to be pointed where.

    ``environment`` has the texts of the files that ``list_pointing_files`` names; ``file_bytes`` has their bytes.
    """

    name: str
    """The instance."""
    proxy: str
    """Its address."""
    clients: tuple[str, ...]
    environment: ClientEnvironment
    file_bytes: Mapping[str, bytes] = {}
    system: str = "linux"
    """As in ``sys.platform``."""
    explicit_upstreams: frozenset[str] = frozenset()
    is_chatgpt: bool = False
    """Whether Codex is logged in with ChatGPT."""


class ClientPointing(Struct, frozen=True):
    """The changes that point clients at the proxy, and notes on requests that do not go there."""

    changes: tuple[FileChange, ...]
    notes: tuple[str, ...]


def list_pointing_files(request: PointingRequest) -> tuple[str, ...]:
    """List the files that must be read, if they exist, before ``plan_pointing``."""
    paths = [_find_profile(request), _get_pi_extension_path(request)]
    for client in request.clients:
        program = CLIENT_PROGRAMS[client]
        paths += list_settings_files(program, request.environment)
        # The settings of a working folder are not among them: the service belongs to no folder.
        if program != "claude":
            paths += list_launch_files(program, request.environment)
    return tuple(dict.fromkeys(paths))


def plan_pointing(request: PointingRequest) -> ClientPointing:
    """Plan the changes for all clients. Raises ``ConfigError`` for settings that cannot be read."""
    changes: list[FileChange] = []
    notes: list[str] = []
    profile_variables: dict[str, str] = {}
    for client in request.clients:
        plan = _plan_client_launch(client, request)
        notes += [f"{client}: {note}" for note in plan.notes]
        if client in PROFILE_CLIENTS:
            profile_variables |= _select_profile_variables(client, plan, notes)
        elif client == "claude-code":
            changes.append(_point_claude_code(plan, request))
        elif client == "codex":
            changes.append(_point_codex(plan, request, notes))
        elif client == "opencode":
            changes += _point_opencode(plan, request)
        elif client == "pi":
            changes.append(_point_pi(plan, request))
    if profile_variables:
        changes.append(_point_profile(profile_variables, request))
    changed_files = [change for change in changes if change.before != change.after]
    return ClientPointing(tuple(changed_files), tuple(dict.fromkeys(notes)))


def _plan_client_launch(client: str, request: PointingRequest) -> LaunchPlan:
    launch_request = LaunchRequest(
        request.proxy,
        request.environment,
        explicit_upstreams=request.explicit_upstreams,
        is_chatgpt=request.is_chatgpt,
    )
    return plan_launch(CLIENT_PROGRAMS[client], launch_request)


# -- each client -------------------------------------------------------------------------------------------------------


def _point_claude_code(plan: LaunchPlan, request: PointingRequest) -> FileChange:
    """Set the variables in ``env`` of Claude Code's user settings, which override variables of the shell."""
    (path,) = list_settings_files("claude", request.environment)
    values = [(("env", name), value) for name, value in plan.environment.items()]
    return set_json_members(path, request.file_bytes.get(path), values)


def _point_opencode(plan: LaunchPlan, request: PointingRequest) -> list[FileChange]:
    """Set ``baseURL`` of each provider in opencode's global configuration."""
    content = parse_lenient_json(plan.environment.get("OPENCODE_CONFIG_CONTENT", ""))
    values = []
    for name, provider in (content.get("provider") or {}).items():
        url = get_nested_value(provider, "options", "baseURL")
        # The variable may hold more of the user's own, which needs no second place.
        if isinstance(url, str) and url.startswith(request.proxy):
            values.append((("provider", name, "options", "baseURL"), url))
    if not values:
        return []
    folder = request.environment.resolve_folder("XDG_CONFIG_HOME", ".config") / "opencode"
    # The strongest first; a file that the user has is preferred to a new one.
    candidates = [str(folder / name) for name in ("opencode.jsonc", "opencode.json", "config.json")]
    existing = [path for path in candidates if path in request.file_bytes]
    path = existing[0] if existing else str(folder / "opencode.json")
    return [set_json_members(path, request.file_bytes.get(path), values)]


def _get_pi_extension_path(request: PointingRequest) -> str:
    folder = request.environment.resolve_folder("PI_CODING_AGENT_DIR", ".pi/agent") / "extensions"
    return str(folder / f"holdfast-{request.name}.js")


def _point_pi(plan: LaunchPlan, request: PointingRequest) -> FileChange:
    """Write an extension: pi loads every file of that folder."""
    path = _get_pi_extension_path(request)
    (text,) = plan.files.values()
    own_text = text.replace(_RUN_HEADER, "// Written by `holdfast enable`", 1)
    return FileChange(path, request.file_bytes.get(path), own_text.encode(), (OwnFile(),))


def _point_codex(plan: LaunchPlan, request: PointingRequest, notes: list[str]) -> FileChange:
    """Set the addresses of the built-in provider and of the user's own in Codex's ``config.toml``."""
    (path,) = list_settings_files("codex", request.environment)
    before = request.file_bytes.get(path)
    data = before or b""
    document = _parse_toml(path, data)
    addresses = {}
    for option in plan.arguments[1::2]:
        key, _, value = option.partition("=")
        addresses[key] = str(msgspec.json.decode(value))
    marks = []
    own_urls = {key: _get_toml_value(document, key) for key in addresses}
    for key, url in addresses.items():
        own_url = own_urls[key]
        if not isinstance(own_url, str) or own_url == url:
            continue
        replacement = _find_toml_replacement(data, key, own_url, url)
        if replacement is None:
            notes.append(f"codex: {key} cannot be changed in {path}; set it to {url} there")
            continue
        data = data.replace(replacement.old, replacement.new, 1)
        marks.append(replacement)
    built_in = "openai_base_url"
    if own_urls.get(built_in) is not None:
        return FileChange(path, before, data, tuple(marks))
    line = f"{built_in} = {msgspec.json.encode(addresses[built_in]).decode()}"
    # At the top, because after a table's heading it would belong to the table.
    block = append_block(path, data, request.name, [line], at_top=True)
    return FileChange(path, before, block.after, (*marks, *block.marks))


def _parse_toml(path: str, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML ({error}); correct it first") from error


def _get_toml_value(document: object, key: str) -> Any:
    return get_nested_value(document, *key.split("."))


def _find_toml_replacement(data: bytes, key: str, own_url: str, url: str) -> ReplacedText | None:
    """Find the one text that sets ``key``; None if the file does not tell it apart from others."""
    last_name = key.rpartition(".")[2]
    expected = _parse_toml("", data)
    table = get_nested_value(expected, *key.split(".")[:-1]) if "." in key else expected
    if not isinstance(table, dict):
        return None
    table[last_name] = url
    for quote in ('"', "'"):
        for gap in (" = ", "=", " =", "= "):
            old = f"{last_name}{gap}{quote}{own_url}{quote}".encode()
            new = f"{last_name}{gap}{quote}{url}{quote}".encode()
            if data.count(old) == 1 and _parse_toml("", data.replace(old, new)) == expected:
                return ReplacedText(old, new)
    return None


# -- the shell profile -------------------------------------------------------------------------------------------------


def _select_profile_variables(client: str, plan: LaunchPlan, notes: list[str]) -> dict[str, str]:
    """Return the variables that the profile sets for ``client``, and note what only ``holdfast run`` can do."""
    variables = dict(plan.environment)
    if plan.files or plan.arguments:
        # Such a folder or option is made anew at each start.
        variables.pop("LLM_USER_PATH", None)
        notes.append(
            f"{client}: its own settings name a server, which keeps bypassing the proxy; holdfast run -- {client} "
            "sends that through one, too"
        )
    return variables


def _find_profile(request: PointingRequest) -> str:
    """Return the file that the user's shell reads when it starts at a terminal."""
    variables = request.environment.environment
    home = PurePath(request.environment.home)
    shell = PurePath(variables.get("SHELL", "")).name
    if shell == "zsh":
        return str(request.environment.resolve_folder("ZDOTDIR", "") / ".zshrc")
    if shell == "fish":
        folder = request.environment.resolve_folder("XDG_CONFIG_HOME", ".config") / "fish" / "conf.d"
        return str(folder / f"holdfast-{request.name}.fish")
    if shell == "bash":
        # Terminals on macOS start login shells, which do not read .bashrc.
        return str(home / (".bash_profile" if request.system == "darwin" else ".bashrc"))
    return str(home / ".profile")


def _point_profile(variables: Mapping[str, str], request: PointingRequest) -> FileChange:
    path = _find_profile(request)
    lines: Sequence[str]
    if path.endswith(".fish"):
        lines = [f"set -gx {name} {_quote_for_fish(value)}" for name, value in variables.items()]
    else:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return append_block(path, request.file_bytes.get(path), request.name, lines)


def _quote_for_fish(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
