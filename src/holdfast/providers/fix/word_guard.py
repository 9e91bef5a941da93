"""What users, system prompts and summaries say in a body, in any form: to see that no change loses a word of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.providers.registry import FORMS, Form

SYSTEMS = ("system", "systemInstruction", "system_instruction", "instructions")
"""Fields that hold the system prompt in some API."""
TEXTS = frozenset({"text", "input_text", "output_text", "summary_text"})
"""Types under which some API writes words."""
HOLDERS = ("content", "parts", "text")
"""Fields under which some API keeps what a message says."""
_SPOKEN = TEXTS | {"", "message"}
_OTHERS = frozenset({"assistant", "model", "ai", "bot", "tool", "function"})
"""Roles of those whose words may go: the model, and tools."""


def heard(body: bytes, form: Form) -> Counter[str]:
    """Return the words of users and system prompts, each text as often as it is said; nothing for unreadable bytes.

    What the newest block says that stands for older messages is among them.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Counter()
    if not isinstance(value, dict):
        return Counter()
    said = [text for name in SYSTEMS for text in texts(value.get(name))]
    lists = dict.fromkeys([form.field, *(other.field for other in FORMS.values())])
    said += [text for name in lists for text in _of_list(value.get(name))]
    said += _summed_up(value.get(form.field))[-1:]
    return Counter(text.strip() for text in said if text.strip())


def texts(value: Any) -> Iterator[str]:
    """Yield the texts in a string, a list, a message or a block of words, in order."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list):
            waiting += reversed(one)
        elif isinstance(one, dict) and str(one.get("type") or "") in _SPOKEN:
            waiting += [one[key] for key in reversed(HOLDERS) if key in one]


def _of_list(value: Any) -> Iterator[str]:
    """Yield the texts of users and systems in a list of messages, one message, or a bare text."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += reversed(one)
        elif not isinstance(one, dict) or str(one.get("role")).lower() not in _OTHERS:
            yield from texts(one)


def _summed_up(listed: Any) -> list[str]:
    """Return what the blocks of a list of messages say that stand for what was before them."""
    held = [one.get("content") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    blocks = [block for content in held if isinstance(content, list) for block in content if isinstance(block, dict)]
    return [str(block["content"]) for block in blocks if block.get("type") == "compaction" and block.get("content")]


def lost(before: Counter[str], after: Counter[str], *, moved: bool = False) -> bool:
    """Return whether a text is said less often; one that was ``moved`` may stand inside another one."""
    missing = before - after
    if not missing or not moved:
        return bool(missing)
    all_of_it, place = "\n".join(after), 0
    for text in missing:
        place = all_of_it.find(text, place)  # words seldom change places, so this is read about once
        place = all_of_it.find(text) if place < 0 else place
        if place < 0:
            return True
    return False
