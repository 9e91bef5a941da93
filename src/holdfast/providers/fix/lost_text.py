"""What users, system prompts and summaries say in a body, in any form: to see that no change loses a word of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.registry import API_SPECS

SYSTEM_PROMPT_FIELDS = ("system", "systemInstruction", "system_instruction", "instructions")
"""Fields that hold the system prompt in some API."""
TEXT_BLOCK_TYPES = frozenset({"text", "input_text", "output_text", "summary_text"})
"""Types under which some API writes words."""
CONTENT_FIELDS = ("content", "parts", "text")
"""Fields under which some API keeps what a message says."""
_MESSAGE_LIKE_TYPES = TEXT_BLOCK_TYPES | {"", "message"}
_NON_USER_ROLES = frozenset({"assistant", "model", "ai", "bot", "tool", "function"})
"""Roles of those whose words may go: the model, and tools."""


def count_user_texts(body: bytes, spec: ApiSpec) -> Counter[str]:
    """Return the words of users and system prompts, each text as often as it is said; nothing for unreadable bytes.

    What the newest block says that stands for older messages is among them.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Counter()
    if not isinstance(value, dict):
        return Counter()
    user_texts = [text for name in SYSTEM_PROMPT_FIELDS for text in iter_block_texts(value.get(name))]
    lists = dict.fromkeys([spec.messages_field, *(other_form.messages_field for other_form in API_SPECS.values())])
    user_texts += [text for name in lists for text in _iter_user_texts(value.get(name))]
    user_texts += _list_compaction_texts(value.get(spec.messages_field))[-1:]
    return Counter(text.strip() for text in user_texts if text.strip())


def iter_block_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a string, a list, a message or a block of words, in order."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            waiting += reversed(node)
        elif isinstance(node, dict) and str(node.get("type") or "") in _MESSAGE_LIKE_TYPES:
            waiting += [node[key] for key in reversed(CONTENT_FIELDS) if key in node]


def _iter_user_texts(value: Any) -> Iterator[str]:
    """Yield the texts of users and systems in a list of messages, one message, or a bare text."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += reversed(node)
        elif not isinstance(node, dict) or str(node.get("role")).lower() not in _NON_USER_ROLES:
            yield from iter_block_texts(node)


def _list_compaction_texts(messages: Any) -> list[str]:
    """Return what the blocks of a list of messages say that stand for what was before them."""
    contents = (
        [message.get("content") for message in messages if isinstance(message, dict)]
        if isinstance(messages, list)
        else []
    )
    blocks = [
        block for content in contents if isinstance(content, list) for block in content if isinstance(block, dict)
    ]
    return [str(block["content"]) for block in blocks if block.get("type") == "compaction" and block.get("content")]


def has_lost_text(before: Counter[str], after: Counter[str], *, allow_merged: bool = False) -> bool:
    """Return whether a text is said less often; one that was ``allow_merged`` may stand inside another one."""
    missing = before - after
    if not missing or not allow_merged:
        return bool(missing)
    all_of_it, place = "\n".join(after), 0
    for text in missing:
        place = all_of_it.find(text, place)  # words seldom change places, so this is read about once
        place = all_of_it.find(text) if place < 0 else place
        if place < 0:
            return True
    return False
