"""Where things live: the store, the configuration, the sessions of the user's own tools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.store import at_home, open_store
from holdfast.store.base import Quota, SessionStore

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


def store_place(given: str | None, environment: Mapping[str, str] = os.environ) -> Place:
    """Return where the store is: as given, else ``HOLDFAST_STORE``, else in the platform's data folder."""
    if given is not None:
        return Place(given, "--store")
    told = environment.get(STORE_VARIABLE)
    if told:
        return Place(told, STORE_VARIABLE)
    from platformdirs import user_data_path

    return Place(str(user_data_path("holdfast", appauthor=False) / FILE), "default")


def file_of(where: str) -> Path:
    """Return the file of the store that ``where`` names."""
    return at_home(where.removeprefix("sqlite:///"))


def is_missing(where: str) -> bool:
    """Return whether ``where`` names a store in a file that is not there."""
    return where != ":memory:" and not file_of(where).exists()


@contextmanager
def opened(given: str | None, *, readonly: bool = False) -> Iterator[SessionStore]:
    """Open the store that ``given`` names, its writes limited as ``holdfast.toml`` says; it is closed at the end."""
    with open_store(store_place(given).where, readonly=readonly, quota=None if readonly else _quota()) as store:
        yield store


def _quota() -> Quota:
    """Return how large a store may grow."""
    from holdfast.config import configuration

    return Quota(**configuration().store.limits)


class Tool(NamedTuple):
    """A tool that records sessions: its folder, and the names of its files there."""

    name: str
    folder: Path
    pattern: str


def tools(environment: Mapping[str, str] = os.environ) -> list[Tool]:
    """Return the tools whose sessions are looked for, with the folders that their own variables name."""
    home = Path.home()

    def root(variable: str, default: str) -> Path:
        told = environment.get(variable)
        return at_home(told) if told else home / default

    return [
        Tool("Claude Code", root("CLAUDE_CONFIG_DIR", ".claude") / "projects", "*/*.jsonl"),
        Tool("Codex", root("CODEX_HOME", ".codex") / "sessions", "**/rollout-*.jsonl"),
        Tool("Gemini CLI", home / ".gemini" / "tmp", "*/chats/session-*"),
        Tool("pi", root("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions", "**/*.jsonl"),
    ]


def own_sessions(tool: Tool) -> list[Path]:
    """Return the session files of ``tool``, the last changed first; those of sub-agents are left out."""
    found = [path for path in tool.folder.glob(tool.pattern) if not path.name.startswith("agent-") and path.is_file()]
    return sorted(found, key=_changed, reverse=True)


def _changed(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, str(path)
    except OSError:
        return 0.0, str(path)
