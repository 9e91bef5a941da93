"""Approvals of OpenAI's MCP tools: a response whose request is gone is refused, so it is dropped.

A request stands in an answer, its response is a message of the client's; both are signed with the request's id
(``openai_responses/items.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Text
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect

APPROVAL_REQUEST_KIND = "mcp_approval_request"


class _Approval(Struct):
    reason: str | None = None


_APPROVAL_DECODER = Decoder(_Approval)


def drop_orphan_approvals(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Drop approvals without their request before them; the reason that a user gave stays, as the user's words."""
    orphans = set(find_orphan_approvals([item.message for item in items], dialect))
    if not orphans:
        return items
    kept_items: list[TrackedMessage] = []
    for index, item in enumerate(items):
        if index not in orphans:
            kept_items.append(item)
            continue
        reason = _read_approval_reason(item.message)
        if reason.strip():
            message = Message("user", (Text(reason),))
            why = "the request that this approval answers is gone; its reason stays"
            kept_items.append(item.replace_message(message, "pairing", why))
    return kept_items


def find_orphan_approvals(messages: Sequence[Message], dialect: Dialect) -> list[int]:
    """Return the indexes of approvals without their request before them.

    There are none if a part of the history is stored by the server, where the request may be.
    """
    orphans: list[int] = []
    request_ids: set[str] = set()
    for index, message in enumerate(messages):
        if message.role == "assistant":
            for part in message.parts:
                if type(part) is Opaque and part.kind == APPROVAL_REQUEST_KIND and part.signature is not None:
                    request_ids.add(part.signature.data)
            continue
        approval_id = get_approval_id(message)
        if approval_id and approval_id not in request_ids:
            orphans.append(index)
    if not orphans or dialect.has_server_history or _refers_to_stored_items(messages):
        return []
    return orphans


def get_approval_id(message: Message) -> str:
    """Return the id of the request that a message approves or denies, or an empty string for any other message."""
    if message.role != "system" or len(message.parts) != 1:
        return ""
    part = message.parts[0]
    if type(part) is not Opaque or part.kind != "message" or part.signature is None:
        return ""
    return part.signature.data


def _refers_to_stored_items(messages: Sequence[Message]) -> bool:
    for message in messages:
        for part in message.parts:
            if type(part) is Opaque and part.raw is not None and b'"item_reference"' in bytes(part.raw):
                return True
    return False


def _read_approval_reason(message: Message) -> str:
    part = message.parts[0]
    raw = part.raw if isinstance(part, Opaque) else None
    try:
        return _APPROVAL_DECODER.decode(raw or Raw(b"{}")).reason or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
