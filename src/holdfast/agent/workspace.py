"""Where tools work: a folder that they do not leave, who allows commands, and what is read back of the session."""

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
"""Says whether a command may run."""
RecallCallback: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[RecallAnswer]]
"""Reads back what the arguments of a call ask for."""
ToolAnswer: TypeAlias = RecallAnswer
"""What a tool says: a text, and whether it failed."""


async def deny_command(_: str) -> bool:
    """Allow no command."""
    return False


async def allow_command(_: str) -> bool:
    """Allow every command."""
    return True


async def refuse_recall(_: Mapping[str, Any]) -> RecallAnswer:
    """Tell that there is no session to read back from."""
    return RecallAnswer("there is no session here that could be read back", is_error=True)


class Workspace(Struct, frozen=True):
    """What the tools of one agent work with; made by ``open_workspace``."""

    root: Path
    """The working folder, with no links in it."""
    skills: tuple[Skill, ...] = ()
    ask_permission: PermissionCallback = deny_command
    recall: RecallCallback = refuse_recall
    hidden_variables: frozenset[str] = frozenset()
    """Variables of the environment that commands do not see: the keys of providers."""

    def resolve_path(self, relative_path: str) -> Path:
        """Return where ``relative_path`` really is, inside of the working folder; ``FormatError`` for what is
        outside.
        """
        if not relative_path.strip():
            raise FormatError("the path is empty; give one below the working folder, or . for the folder itself")
        return resolve_path_inside(self.root, relative_path)

    def resolve_readable(self, file_name: str) -> Path:
        """Return where ``file_name`` is: a file of a skill (``skill:NAME``), or a place inside of the working
        folder.
        """
        if file_name.startswith(SKILL_SCHEME):
            return _resolve_skill_file(self.skills, file_name.removeprefix(SKILL_SCHEME))
        return self.resolve_path(file_name)

    def get_shown_path(self, path: Path) -> str:
        """Return ``path`` as the model knows it: below the working folder."""
        return str(PurePosixPath(path.relative_to(self.root))) if path.is_relative_to(self.root) else path.name


def open_workspace(folder: str | Path, **fields: Any) -> Workspace:
    """Return the workplace in ``folder``; ``FormatError`` where that is no folder."""
    try:
        root = Path(folder).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise FormatError(f"{str(folder)!r} cannot be worked in: {error}; give a folder that is there") from None
    if not root.is_dir():
        raise FormatError(f"{str(folder)!r} is no folder; give one to work in")
    return Workspace(root, **fields)


def _resolve_skill_file(skills: Sequence[Skill], skill_path: str) -> Path:
    """Return the file that ``NAME`` or ``NAME/FILE`` is of a skill; ``FormatError`` for what is in none."""
    name, _, inner_path = skill_path.partition("/")
    match = next((skill for skill in skills if skill.name == name), None)
    if match is None:
        skill_names = ", ".join(skill.name for skill in skills) or "none"
        raise FormatError(f"no skill is called {name!r}; there are: {skill_names}")
    return resolve_path_inside(Path(match.path).parent, inner_path or SKILL_FILENAME)
