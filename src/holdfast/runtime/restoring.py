"""What a conversation tells of skills: which are in use, so that they stand behind a summary again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall
from holdfast.policy.ledger import PATH_KEYS
from holdfast.view.references import arguments
from holdfast.view.text import clip
from holdfast.view.tokens import count

SCHEME = "skill:"
"""What the path of a skill's file begins with where it is read by its name."""
IN_USE = re.compile(r"Skill ([\w.-]+), in use:\n")


def used_skills(messages: Iterable[Message], skills: Mapping[str, str]) -> tuple[str, ...]:
    """Return the skills that ``messages`` used, the last one first; ``skills`` are the files of those there are.

    What an earlier summary brought back counts as used.
    """
    used: dict[str, None] = {}
    for message in messages:
        for part in message.parts:
            for name in _names(part, skills):
                used.pop(name, None)
                used[name] = None
    return tuple(reversed(used))


def clipped(text: str, tokens: int, name: str) -> str:
    """Return ``text``, or as much of it as about ``tokens`` tokens hold, with a line that says what is left out."""
    whole = count(text)
    if whole <= tokens:
        return text
    held = clip(text, int(len(text) * max(0, tokens) / whole))
    return f"{held}\n[{len(text) - len(held):,} characters of {name} are left out here]"


def _names(part: object, skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills that a part uses."""
    if isinstance(part, Text):
        yield from (name for name in IN_USE.findall(part.text) if name in skills)
        return
    values = arguments(part) if isinstance(part, ToolCall) else None
    if not isinstance(values, dict):
        return
    is_name = isinstance(part, ToolCall) and part.name.lower() == "skill"
    for key in ("skill", "name") if is_name else PATH_KEYS:
        named = values.get(key)
        if isinstance(named, str):
            yield from _skill(named, skills, is_name=is_name)


def _skill(named: str, skills: Mapping[str, str], *, is_name: bool) -> Iterator[str]:
    """Yield the skill that ``named`` is: its name, or the path of its file."""
    if is_name or named.startswith(SCHEME):
        name = named.removeprefix(SCHEME).partition("/")[0]
        yield from (name,) if name in skills else ()
        return
    path = PurePosixPath(named).parts
    for name, file in skills.items():
        if len(path) > 1 and PurePosixPath(file).parts[-len(path) :] == path:
            yield name
