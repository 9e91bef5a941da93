"""The workspace of an agent's tools: the folder they stay in, who allows commands, and how to read back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.engine.environment.folder import resolve_path_inside
from holdfast.engine.environment.skills import SKILL_FILENAME, SKILL_SCHEME, Skill
from holdfast.engine.recall import RecallAnswer
from holdfast.errors import FormatError

PermissionCallback: TypeAlias = Callable[[str], Awaitable[bool]]
"""Returns whether a command may run."""
RecallCallback: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[RecallAnswer]]
"""Reads back from the session, given the arguments of a call."""
ToolAnswer: TypeAlias = RecallAnswer
"""The answer of a tool: a text, and whether it is an error."""


async def deny_command(_: str) -> bool:
    """Allow no command."""
    return False


async def allow_command(_: str) -> bool:
    """Allow every command."""
    return True


async def refuse_recall(_: Mapping[str, Any]) -> RecallAnswer:
    """Answer that there is no session to read back from."""
    return RecallAnswer("there is no session here that could be read back", is_error=True)


class Workspace(Struct, frozen=True):
    """Everything that the tools of one agent work with; built by ``open_workspace``."""

    root: Path
    """The working folder, with links resolved."""
    skills: tuple[Skill, ...] = ()
    ask_permission: PermissionCallback = deny_command
    recall: RecallCallback = refuse_recall
    hidden_variables: frozenset[str] = frozenset()
    """Environment variables that commands do not see, such as API keys."""

    def resolve_path(self, relative_path: str) -> Path:
        """Return the real path of ``relative_path``; raise ``FormatError`` if it is outside of the working folder."""
        if not relative_path.strip():
            raise FormatError("the path is empty; give one below the working folder, or . for the folder itself")
        return resolve_path_inside(self.root, relative_path)

    def resolve_readable(self, file_name: str) -> Path:
        """Return the path of a file that may be read: one of a skill (``skill:NAME``), or inside the working folder."""
        if file_name.startswith(SKILL_SCHEME):
            return _resolve_skill_file(self.skills, file_name.removeprefix(SKILL_SCHEME))
        return self.resolve_path(file_name)

    def get_shown_path(self, path: Path) -> str:
        """Return ``path`` as the model knows it: relative to the working folder."""
        if not path.is_relative_to(self.root):
            return path.name
        return str(PurePosixPath(path.relative_to(self.root)))


def open_workspace(folder: str | Path, **fields: Any) -> Workspace:
    """Open the workspace in ``folder``; raise ``FormatError`` if it is not a folder."""
    try:
        root = Path(folder).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise FormatError(f"{str(folder)!r} cannot be opened: {error}; give a folder that exists") from None
    if not root.is_dir():
        raise FormatError(f"{str(folder)!r} is not a folder; give the folder to work in")
    return Workspace(root, **fields)


def _resolve_skill_file(skills: Sequence[Skill], skill_path: str) -> Path:
    """Return the path of a skill's file, given as ``NAME`` or ``NAME/FILE``; raise ``FormatError`` without one."""
    name, _, inner_path = skill_path.partition("/")
    for skill in skills:
        if skill.name == name:
            return resolve_path_inside(Path(skill.path).parent, inner_path or SKILL_FILENAME)
    skill_names = ", ".join([skill.name for skill in skills]) or "none"
    raise FormatError(f"no skill is called {name!r}; there are: {skill_names}")
