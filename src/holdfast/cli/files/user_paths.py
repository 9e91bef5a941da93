"""Where things live: the store, the configuration, the sessions of the user's own tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.cli.output.errors import EXPECTED_ERRORS, describe_error
from holdfast.cli.output.terminal import clean_single_line
from holdfast.errors import UnknownId
from holdfast.store.base import Quota, SessionStore
from holdfast.store.open_store import expand_home, open_store
from holdfast.store.private_files import is_existing_path

STORE_VARIABLE = "HOLDFAST_STORE"
STORE_FILE_NAME = "holdfast.db"

store_option = click.option(
    "--store",
    metavar="PATH",
    help=f"The store: a path, sqlite:///path or :memory:. Default: ${STORE_VARIABLE}, else this user's data folder.",
)
"""The option ``--store`` of all commands that use one."""


class StoreLocation(NamedTuple):
    """Where the store is, and who said so."""

    url: str
    origin: str


def locate_store(option: str | None) -> StoreLocation:
    """Return where the store is: as given, else ``HOLDFAST_STORE``, else in the platform's data folder."""
    if option is not None:
        return StoreLocation(option, "--store")
    url = os.environ.get(STORE_VARIABLE)
    if url:
        return StoreLocation(url, STORE_VARIABLE)
    from platformdirs import user_data_path

    return StoreLocation(str(user_data_path("holdfast", appauthor=False) / STORE_FILE_NAME), "default")


def get_store_path(store_url: str) -> Path:
    """Return the file of the store that ``store_url`` names."""
    return expand_home(store_url.removeprefix("sqlite:///"))


def is_store_missing(store_url: str) -> bool:
    """Return whether ``store_url`` names a store in a file that is not there."""
    return store_url != ":memory:" and not is_existing_path(get_store_path(store_url))


def describe_missing_store(option: str | None) -> str:
    """Return that there is no store where ``option`` names one, and what makes it; nothing where there is one."""
    where = locate_store(option).url
    if not is_store_missing(where):
        return ""
    return f"there is no store at {clean_single_line(where)}; holdfast import FILE or holdfast run makes it"


def explain_impossible_path(store_url: str) -> str:
    """Return why there can never be a store at ``store_url``, or nothing: it is a folder, or lies under a file."""
    if store_url == ":memory:":
        return ""
    path = get_store_path(store_url)
    if path.is_dir():
        return f"{path} is a folder; give a file's path with --store"
    there = _find_existing_ancestor(path)
    is_file = there != path and not there.is_dir()
    return f"{there} is a file and no folder; give another path with --store" if is_file else ""


def explain_unwritable_store(store_url: str) -> str:
    """Return why nothing can be recorded in the store that ``store_url`` names, or nothing; none is made."""
    try:
        with open_store(store_url, readonly=True) as store:
            store.list_sessions()
    except EXPECTED_ERRORS as error:
        return describe_error(error)
    if store_url == ":memory:":
        return ""
    if why := explain_impossible_path(store_url):
        return why
    path = get_store_path(store_url)
    there = _find_existing_ancestor(path)
    paths = (path, path.parent) if there == path else (there,)
    if not all(os.access(candidate, os.W_OK) for candidate in paths):
        return f"{there} cannot be written; give yourself access, or another path with --store"
    return ""


def _find_existing_ancestor(path: Path) -> Path:
    """Return what is there of ``path``: itself, or the nearest above it."""
    return next(candidate for candidate in (path, *path.parents) if os.access(candidate, os.F_OK))


@contextmanager
def open_named_store(option: str | None, *, readonly: bool = False) -> Iterator[SessionStore]:
    """Open the store that ``option`` names, its writes limited as ``holdfast.toml`` says; it is closed at the end.

    Raises ``UnknownId`` that says so where a session of a store is asked for that is not there.
    """
    where = locate_store(option).url
    try:
        with open_store(where, readonly=readonly, quota=None if readonly else _load_store_quota()) as store:
            yield store
    except UnknownId as error:
        if not (why := describe_missing_store(option)):
            raise
        raise UnknownId(f"{str(error).partition(';')[0]}: {why}") from error


def suggest_export_for_session(word: str) -> str:
    """Return what to do with ``word``, which is no file, where it is a session of the store; else nothing."""
    with suppress(*EXPECTED_ERRORS), open_named_store(None, readonly=True) as there:
        key = there.get_session(word).key if word else ""
        return key and f"no file is called so, but a session of the store; holdfast export {key} -o FILE makes a file"
    return ""


def _load_store_quota() -> Quota:
    """Return how large a store may grow."""
    from holdfast.config import load_configuration

    return Quota(**load_configuration().store.set_limits)


class SessionTool(NamedTuple):
    """A tool that records sessions: its folder, and the names of its files there."""

    name: str
    folder: Path
    pattern: str


def list_session_tools() -> list[SessionTool]:
    """Return the tools whose sessions are looked for, with the folders that their own variables name."""
    home = Path.home()

    def root(variable: str, default: str) -> Path:
        folder = os.environ.get(variable)
        return expand_home(folder) if folder else home / default

    return [
        SessionTool("Claude Code", root("CLAUDE_CONFIG_DIR", ".claude") / "projects", "*/*.jsonl"),
        SessionTool("Codex", root("CODEX_HOME", ".codex") / "sessions", "**/rollout-*.jsonl"),
        SessionTool("opencode", root("XDG_DATA_HOME", ".local/share") / "opencode", "opencode.db"),
        SessionTool("Gemini CLI", home / ".gemini" / "tmp", "*/chats/session-*"),
        SessionTool("pi", root("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions", "**/*.jsonl"),
    ]


def list_session_files(tool: SessionTool) -> list[Path]:
    """Return the session files of ``tool``, the last changed first; those of sub-agents are left out."""
    files = [path for path in tool.folder.glob(tool.pattern) if not path.name.startswith("agent-") and path.is_file()]
    return sorted(files, key=get_modification_sort_key, reverse=True)


def get_modification_sort_key(path: Path) -> tuple[float, str]:
    """Return when a file of sessions was written last, in seconds since 1970, and its name.

    What a database has not folded in yet stands beside it.
    """
    times = [0.0]
    for file in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times), str(path)
