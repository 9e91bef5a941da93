"""Find the messages that set options from their place on, so that a compaction can state them again.

An item ``configuration_update`` of OpenAI's Responses API sets the reasoning effort or the form of the answer until a
later one sets it anew. Without it the rest of the conversation would go back to the request's own options. The server's
own compaction states the latest values again, right after its item (OpenAI's guide to compaction, 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.messages.parts import Opaque
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.conversation_state import ConversationState

_UPDATE_TYPE = "configuration_update"
_UPDATE_MARK = b'"configuration_update"'
_UNIQUE_FIELDS = frozenset({"type", "id"})


def find_options_in_force(state: ConversationState, first_kept: int) -> tuple[int, ...]:
    """Return the indexes of the messages before ``first_kept`` that set an option which no later one of them sets."""
    set_options: set[str] = set()
    indexes_in_force: list[int] = []
    stop = min(first_kept, len(state.history.sized_messages))
    for index in range(stop - 1, state.view.pinned_count - 1, -1):
        options = set(_iter_set_options(state.history.sized_messages[index]))
        if not options <= set_options:
            indexes_in_force.append(index)
        set_options |= options
    return tuple(reversed(indexes_in_force))


def _iter_set_options(sized_message: SizedMessage) -> Iterator[str]:
    """Yield the options that a message sets, as ``outer.inner``; none for any other message."""
    parts = sized_message.message.parts
    if len(parts) != 1 or not isinstance(parts[0], Opaque) or parts[0].raw is None:
        return
    # Nearly every message is none of these, and decoding each would take its time.
    if _UPDATE_MARK not in bytes(parts[0].raw):
        return
    update = _decode_object(bytes(parts[0].raw))
    if update.get("type") != _UPDATE_TYPE:
        return
    for outer, values in update.items():
        if outer in _UNIQUE_FIELDS:
            continue
        for inner in values if isinstance(values, dict) else ():
            yield f"{outer}.{inner}"


def _decode_object(raw: bytes) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}
