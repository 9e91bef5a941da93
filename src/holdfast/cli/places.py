"""Where things live: the store, the configuration, the sessions of the user's own tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.cli.output.errors import EXPECTED, reason
from holdfast.cli.output.terminal import clean
from holdfast.errors import UnknownId
from holdfast.store import at_home, open_store
from holdfast.store.base import Quota, SessionStore
from holdfast.store.files import is_there

STORE_VARIABLE = "HOLDFAST_STORE"
FILE = "holdfast.db"

store_option = click.option(
    "--store",
    metavar="PATH",
    help=f"The store: a path, sqlite:///path or :memory:. Default: ${STORE_VARIABLE}, else this user's data folder.",
)
"""The option ``--store`` of all commands that use one."""


class Place(NamedTuple):
    """Where the store is, and who said so."""

    where: str
    origin: str


def store_place(given: str | None) -> Place:
    """Return where the store is: as given, else ``HOLDFAST_STORE``, else in the platform's data folder."""
    if given is not None:
        return Place(given, "--store")
    told = os.environ.get(STORE_VARIABLE)
    if told:
        return Place(told, STORE_VARIABLE)
    from platformdirs import user_data_path

    return Place(str(user_data_path("holdfast", appauthor=False) / FILE), "default")


def file_of(where: str) -> Path:
    """Return the file of the store that ``where`` names."""
    return at_home(where.removeprefix("sqlite:///"))


def is_missing(where: str) -> bool:
    """Return whether ``where`` names a store in a file that is not there."""
    return where != ":memory:" and not is_there(file_of(where))


def absence(given: str | None) -> str:
    """Return that there is no store where ``given`` names one, and what makes it; nothing where there is one."""
    where = store_place(given).where
    if not is_missing(where):
        return ""
    return f"there is no store at {clean(where)}; holdfast import FILE or holdfast run makes it"


def no_place(where: str) -> str:
    """Return why there can never be a store at ``where``, or nothing: it is a folder, or lies under a file."""
    if where == ":memory:":
        return ""
    path = file_of(where)
    if path.is_dir():
        return f"{path} is a folder; give a file's path with --store"
    there = _nearest(path)
    is_file = there != path and not there.is_dir()
    return f"{there} is a file and no folder; give another path with --store" if is_file else ""


def unwritable(where: str) -> str:
    """Return why nothing can be recorded in the store that ``where`` names, or nothing; none is made."""
    try:
        with open_store(where, readonly=True) as store:
            store.sessions()
    except EXPECTED as error:
        return reason(error)
    if where == ":memory:":
        return ""
    if why := no_place(where):
        return why
    path = file_of(where)
    there = _nearest(path)
    wanted = (path, path.parent) if there == path else (there,)
    if not all(os.access(one, os.W_OK) for one in wanted):
        return f"{there} cannot be written; give yourself access, or another path with --store"
    return ""


def _nearest(path: Path) -> Path:
    """Return what is there of ``path``: itself, or the nearest above it."""
    return next(one for one in (path, *path.parents) if os.access(one, os.F_OK))


@contextmanager
def opened(given: str | None, *, readonly: bool = False) -> Iterator[SessionStore]:
    """Open the store that ``given`` names, its writes limited as ``holdfast.toml`` says; it is closed at the end.

    Raises ``UnknownId`` that says so where a session of a store is asked for that is not there.
    """
    where = store_place(given).where
    try:
        with open_store(where, readonly=readonly, quota=None if readonly else _quota()) as store:
            yield store
    except UnknownId as error:
        if not (why := absence(given)):
            raise
        raise UnknownId(f"{str(error).partition(';')[0]}: {why}") from error


def stored(word: str) -> str:
    """Return what to do with ``word``, which is no file, where it is a session of the store; else nothing."""
    with suppress(*EXPECTED), opened(None, readonly=True) as there:
        key = there.session(word).key if word else ""
        return key and f"no file is called so, but a session of the store; holdfast export {key} -o FILE makes a file"
    return ""


def _quota() -> Quota:
    """Return how large a store may grow."""
    from holdfast.config import configuration

    return Quota(**configuration().store.limits)


class Tool(NamedTuple):
    """A tool that records sessions: its folder, and the names of its files there."""

    name: str
    folder: Path
    pattern: str


def tools() -> list[Tool]:
    """Return the tools whose sessions are looked for, with the folders that their own variables name."""
    home = Path.home()

    def root(variable: str, default: str) -> Path:
        told = os.environ.get(variable)
        return at_home(told) if told else home / default

    return [
        Tool("Claude Code", root("CLAUDE_CONFIG_DIR", ".claude") / "projects", "*/*.jsonl"),
        Tool("Codex", root("CODEX_HOME", ".codex") / "sessions", "**/rollout-*.jsonl"),
        Tool("opencode", root("XDG_DATA_HOME", ".local/share") / "opencode", "opencode.db"),
        Tool("Gemini CLI", home / ".gemini" / "tmp", "*/chats/session-*"),
        Tool("pi", root("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions", "**/*.jsonl"),
    ]


def own_sessions(tool: Tool) -> list[Path]:
    """Return the session files of ``tool``, the last changed first; those of sub-agents are left out."""
    found = [path for path in tool.folder.glob(tool.pattern) if not path.name.startswith("agent-") and path.is_file()]
    return sorted(found, key=changed, reverse=True)


def changed(path: Path) -> tuple[float, str]:
    """Return when a file of sessions was written last, in seconds since 1970, and its name.

    What a database has not folded in yet stands beside it.
    """
    times = [0.0]
    for one in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            times.append(one.stat().st_mtime)
    return max(times), str(path)
