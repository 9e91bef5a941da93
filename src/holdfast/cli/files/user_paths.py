"""Locate the user's files: the store, the configuration, and sessions that other tools recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.output.errors import EXPECTED_ERRORS, describe_error
from holdfast.errors import UnknownId
from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.base import Quota, SessionStore
from holdfast.store.location import STORE_VARIABLE, find_store_file, hide_password, locate_store
from holdfast.store.open_store import expand_home, open_store
from holdfast.store.private_files import is_existing_path

if TYPE_CHECKING:
    from holdfast.config import StoreSettings

store_option = click.option(
    "--store",
    metavar="PATH",
    help=(
        "The store: a path, sqlite:///path, :memory: or postgresql://user@host/database. "
        f"Default: ${STORE_VARIABLE}, else this user's data folder."
    ),
)
"""The ``--store`` option of every command that uses a store."""


def is_store_missing(store_url: str) -> bool:
    """Return whether the store at ``store_url`` is a file that does not exist."""
    path = find_store_file(store_url)
    return path is not None and not is_existing_path(path)


def describe_missing_store(option: str | None) -> str:
    """Say that the store does not exist and how to make one, or return an empty string if it exists."""
    where = locate_store(option).url
    if not is_store_missing(where):
        return ""
    name = clean_single_line(hide_password(where))
    return f"there is no store at {name}; holdfast import FILE or holdfast run creates it"


def explain_impossible_path(store_url: str) -> str:
    """Explain why no store can exist at ``store_url`` (a folder, or below a file), or return an empty string."""
    path = find_store_file(store_url)
    if path is None:
        return ""
    if path.is_dir():
        return f"{path} is a folder; give a file's path with --store"
    ancestor = _find_existing_ancestor(path)
    if ancestor != path and not ancestor.is_dir():
        return f"{ancestor} is a file, not a folder; give another path with --store"
    return ""


def explain_unwritable_store(store_url: str) -> str:
    """Explain why the store cannot be written, or return an empty string; no store is created."""
    try:
        with open_store(store_url, readonly=True) as store, suppress(UnknownId):
            store.get_session("any")  # reads the store without listing it
    except EXPECTED_ERRORS as error:
        return describe_error(error)
    path = find_store_file(store_url)
    if path is None:
        return ""
    if why := explain_impossible_path(store_url):
        return why
    # A missing store can be created if the nearest existing folder is writable.
    there = _find_existing_ancestor(path)
    paths = (path, path.parent) if there == path else (there,)
    if not all(os.access(candidate, os.W_OK) for candidate in paths):
        return f"{there} cannot be written; change its permissions, or give another path with --store"
    return ""


def _find_existing_ancestor(path: Path) -> Path:
    """Return ``path`` if it exists, else its nearest existing parent."""
    return next(candidate for candidate in (path, *path.parents) if os.access(candidate, os.F_OK))


@contextmanager
def open_named_store(option: str | None, *, readonly: bool = False) -> Iterator[SessionStore]:
    """Open the store that ``option`` names, with the settings of ``holdfast.toml``, and close it at the end.

    If a session is asked for and there is no store at all, the ``UnknownId`` says so.
    """
    where = locate_store(option).url
    settings = load_store_settings()
    # A reader stores nothing, so it needs no quota.
    quota = None if readonly else Quota(**settings.set_limits)
    try:
        with open_store(where, readonly=readonly, quota=quota, blobs=settings.blobs) as store:
            yield store
    except UnknownId as error:
        why = describe_missing_store(option)
        if not why:
            raise
        raise UnknownId(f"{str(error).partition(';')[0]}: {why}") from error


def suggest_export_for_session(word: str) -> str:
    """If ``word`` is a session of the store, say how to make a file of it; otherwise return an empty string."""
    with suppress(*EXPECTED_ERRORS), open_named_store(None, readonly=True) as there:
        key = there.get_session(word).key if word else ""
        return key and f"this is not a file but a session of the store; write it with holdfast export {key} -o FILE"
    return ""


def load_store_settings() -> StoreSettings:
    """Return the configured limits of a store, and where its blobs are."""
    from holdfast.config import load_configuration

    return load_configuration().store


class SessionTool(NamedTuple):
    """A tool that records sessions: its folder, and the pattern of its file names there."""

    name: str
    folder: Path
    pattern: str


def list_session_tools() -> list[SessionTool]:
    """List the tools with sessions that are looked for, in the folders their own variables name."""
    home = Path.home()

    def root(variable: str, default: str) -> Path:
        folder = os.environ.get(variable)
        return expand_home(folder) if folder else home / default

    return [
        SessionTool("Claude Code", root("CLAUDE_CONFIG_DIR", ".claude") / "projects", "*/*.jsonl"),
        SessionTool("Codex", root("CODEX_HOME", ".codex") / "sessions", "**/rollout-*.jsonl"),
        SessionTool("opencode", root("XDG_DATA_HOME", ".local/share") / "opencode", "opencode*.db"),
        SessionTool("Gemini CLI", home / ".gemini" / "tmp", "*/chats/session-*"),
        SessionTool("Copilot CLI", root("COPILOT_HOME", ".copilot") / "session-state", "*/events.jsonl"),
        SessionTool("goose", root("XDG_DATA_HOME", ".local/share") / "goose" / "sessions", "sessions.db"),
        SessionTool("OpenClaw", root("OPENCLAW_STATE_DIR", ".openclaw") / "agents", "*/agent/openclaw-agent.sqlite"),
        SessionTool("pi", root("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions", "**/*.jsonl"),
    ]


def list_session_files(tool: SessionTool) -> list[Path]:
    """List the session files of ``tool``, the most recently changed first, without those of sub-agents."""
    files = []
    for path in tool.folder.glob(tool.pattern):
        # Claude Code writes the sessions of sub-agents beside their parents as agent-*.jsonl.
        if path.is_file() and not path.name.startswith("agent-"):
            files.append(path)
    return sorted(files, key=get_modification_sort_key, reverse=True)


def get_modification_sort_key(path: Path) -> tuple[float, str]:
    """Return when a session file was last written, in seconds since 1970, and its name.

    For a database, its write-ahead log counts too: the newest changes may be only there.
    """
    times = [0.0]
    for file in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times), str(path)
