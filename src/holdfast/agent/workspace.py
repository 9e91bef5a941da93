"""Where tools work: a folder that they do not leave, who allows commands, and what is read back of the session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.engine.environment.folder import within
from holdfast.engine.environment.skills import SCHEME, SKILL, Skill
from holdfast.engine.recall import Told
from holdfast.errors import FormatError

Allow: TypeAlias = Callable[[str], Awaitable[bool]]
"""Says whether a command may run."""
Recall: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Told]]
"""Reads back what the arguments of a call ask for."""
Answered: TypeAlias = Told
"""What a tool says: a text, and whether it failed."""


async def nothing_allowed(_: str) -> bool:
    """Allow no command."""
    return False


async def everything_allowed(_: str) -> bool:
    """Allow every command."""
    return True


async def nothing_kept(_: Mapping[str, Any]) -> Told:
    """Tell that there is no session to read back from."""
    return Told("there is no session here that could be read back", is_error=True)


class Workplace(Struct, frozen=True):
    """What the tools of one agent work with; made by ``workplace``."""

    root: Path
    """The working folder, with no links in it."""
    skills: tuple[Skill, ...] = ()
    allow: Allow = nothing_allowed
    recall: Recall = nothing_kept
    hidden: frozenset[str] = frozenset()
    """Variables of the environment that commands do not see: the keys of providers."""

    def path(self, named: str) -> Path:
        """Return where ``named`` really is, inside of the working folder; ``FormatError`` for what is outside."""
        if not named.strip():
            raise FormatError("the path is empty; give one below the working folder, or . for the folder itself")
        return within(self.root, named)

    def readable(self, named: str) -> Path:
        """Return where ``named`` is: a file of a skill (``skill:NAME``), or a place inside of the working folder."""
        if named.startswith(SCHEME):
            return _skill_file(self.skills, named.removeprefix(SCHEME))
        return self.path(named)

    def name(self, path: Path) -> str:
        """Return ``path`` as the model knows it: below the working folder."""
        return str(PurePosixPath(path.relative_to(self.root))) if path.is_relative_to(self.root) else path.name


def workplace(folder: str | Path, **more: Any) -> Workplace:
    """Return the workplace in ``folder``; ``FormatError`` where that is no folder."""
    try:
        root = Path(folder).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise FormatError(f"{str(folder)!r} cannot be worked in: {error}; give a folder that is there") from None
    if not root.is_dir():
        raise FormatError(f"{str(folder)!r} is no folder; give one to work in")
    return Workplace(root, **more)


def _skill_file(skills: Sequence[Skill], named: str) -> Path:
    """Return the file that ``NAME`` or ``NAME/FILE`` is of a skill; ``FormatError`` for what is in none."""
    name, _, rest = named.partition("/")
    found = next((skill for skill in skills if skill.name == name), None)
    if found is None:
        known = ", ".join(skill.name for skill in skills) or "none"
        raise FormatError(f"no skill is called {name!r}; there are: {known}")
    return within(Path(found.path).parent, rest or SKILL)
