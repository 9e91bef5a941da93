"""What a conversation tells of skills and plans: which are in use, so that they stand behind a summary again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall
from holdfast.policy.ledger import PATH_KEYS
from holdfast.view.references import arguments
from holdfast.view.text import clip, one_line
from holdfast.view.tokens import count

PLANS = frozenset({"todo", "TodoWrite", "todowrite", "update_plan"})
"""Tools whose newest call is the plan: ours, Claude Code's, opencode's and Codex's."""
SCHEME = "skill:"
"""What the path of a skill's file begins with where it is read by its name."""
IN_USE = re.compile(r"Skill ([\w.-]+), in use:\n")
PLAN = "The plan as it stands:\n"
ITEM_CHARS = 300
"""[H] Characters of an item of the plan."""
_WORDS = ("text", "content", "step", "task", "title")
_DONE = ("done", "completed", "cancelled")


class Told(Struct, frozen=True):
    """What is in use: skills by name, the last one first, and the plan in words, or nothing where all of it is done."""

    skills: tuple[str, ...] = ()
    plan: str = ""


def after(messages: Iterable[Message], skills: Mapping[str, str]) -> Told:
    """Return what is in use behind ``messages``; ``skills`` are the files of those there are, by name.

    What an earlier summary brought back counts as long as nothing newer takes its place.
    """
    used: dict[str, None] = {}
    plan = ""
    for message in messages:
        for part in message.parts:
            for name in _names(part, skills):
                used.pop(name, None)
                used[name] = None
            told = _plan(part, message)
            plan = plan if told is None else told
    return Told(tuple(reversed(used)), plan)


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
    for key in (*PATH_KEYS, "skill", "name") if isinstance(values, dict) else ():
        named = values.get(key)
        if isinstance(named, str):
            yield from _skill(named, skills, is_name=key in ("skill", "name"))


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


def _plan(part: object, message: Message) -> str | None:
    """Return the plan that a part makes; nothing where it makes none."""
    if isinstance(part, Text) and message.role == "user" and part.text.startswith(PLAN):
        return part.text
    if not isinstance(part, ToolCall) or part.name not in PLANS:
        return None
    lists = [value for value in _values(arguments(part)) if isinstance(value, list)]
    items = [item for item in (lists[0] if lists else ()) if isinstance(item, dict)]
    if all(item.get("status") in _DONE for item in items):
        return ""
    return PLAN + "\n".join(map(line_of, items))


def _values(given: Any) -> list[Any]:
    return list(given.values()) if isinstance(given, dict) else []


def line_of(item: Mapping[str, Any]) -> str:
    """Return an item of a plan on one line."""
    text = next((item[key] for key in _WORDS if isinstance(item.get(key), str)), "")
    return f"- [{item.get('status') or 'open'}] {one_line(text, ITEM_CHARS)}"
