"""Count the texts of users, system prompts and summaries in a body, to check that no change loses a word of them.

The texts are found in every form and field that any API uses, because a body is checked while it is in a mixture of
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.registry import API_SPECS

SYSTEM_PROMPT_FIELDS = ("system", "systemInstruction", "system_instruction", "instructions")
"""Fields of the system prompt, in any API."""
TEXT_BLOCK_TYPES = frozenset({"text", "input_text", "output_text", "summary_text"})
"""Types of text blocks, in any API."""
CONTENT_FIELDS = ("content", "parts", "text")
"""Fields of the content of a message, in any API."""
_MESSAGE_LIKE_TYPES = TEXT_BLOCK_TYPES | {"", "message"}
_NON_USER_ROLES = frozenset({"assistant", "model", "ai", "bot", "tool", "function"})
"""Roles of models and tools; their words may be dropped, a user's never."""


def count_user_texts(body: bytes, spec: ApiSpec) -> Counter[str]:
    """Count the texts of users and system prompts in a body; the count is empty if it cannot be read.

    The text of the newest compaction block is counted too: it is all that is left of older messages.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Counter()
    if not isinstance(value, dict):
        return Counter()
    user_texts: list[str] = []
    for field in SYSTEM_PROMPT_FIELDS:
        user_texts += iter_block_texts(value.get(field))
    for field in dict.fromkeys([spec.messages_field, *(other.messages_field for other in API_SPECS.values())]):
        user_texts += _iter_user_texts(value.get(field))
    user_texts += list(_iter_compaction_texts(value.get(spec.messages_field)))[-1:]
    return Counter(text.strip() for text in user_texts if text.strip())


def iter_block_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a string, a list, a message or a text block, in order."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            waiting += reversed(node)
        elif isinstance(node, dict) and str(node.get("type") or "") in _MESSAGE_LIKE_TYPES:
            for key in reversed(CONTENT_FIELDS):
                if key in node:
                    waiting.append(node[key])


def _iter_user_texts(value: Any) -> Iterator[str]:
    """Yield the texts of users and system prompts in a list of messages, a message, or a bare text."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += reversed(node)
        elif not isinstance(node, dict) or str(node.get("role")).lower() not in _NON_USER_ROLES:
            yield from iter_block_texts(node)


def _iter_compaction_texts(messages: Any) -> Iterator[str]:
    """Yield the texts of compaction blocks in a list of messages, oldest first."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") == "compaction" and block.get("content"):
                yield str(block["content"])


def has_lost_text(before: Counter[str], after: Counter[str], *, allow_merged: bool = False) -> bool:
    """Return whether a text occurs less often in ``after`` than in ``before``.

    With ``allow_merged``, a text that became part of a longer one does not count as lost.
    """
    missing = before - after
    if not missing or not allow_merged:
        return bool(missing)
    joined_text = "\n".join(after)
    position = 0
    for text in missing:
        # Texts seldom change their order, so searching on from the last one reads the whole about once.
        position = joined_text.find(text, position)
        if position < 0:
            position = joined_text.find(text)
        if position < 0:
            return True
    return False
