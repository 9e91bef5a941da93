"""Who speaks next to whom, and first and last: system messages, merging, the two ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Text, ToolResult
from holdfast.normalize.parts import clean_message
from holdfast.normalize.server_tools import is_paused_answer
from holdfast.normalize.tracked_messages import (
    TrackedMessage,
    create_inserted_message,
    get_wire_role,
    merge_tracked_messages,
)
from holdfast.state.dialect import Dialect

OPENING_TEXT = "(the conversation so far)"
"""What a user says where one must begin and none did."""
ACKNOWLEDGEMENT_TEXT = "(noted)"
"""What the assistant says where it must and did not."""
CONTINUE_TEXT = "Continue."
"""What a user says where the assistant may not be the last."""


def place_system_messages(
    items: list[TrackedMessage], dialect: Dialect, *, has_system_field: bool
) -> list[TrackedMessage]:
    """Return the items with system messages turned into user data where the API does not take them.

    ``has_system_field`` is true where those at the start go into a field of their own.
    """
    out: list[TrackedMessage] = []
    for at, item in enumerate(items):
        after = [neighbor.message for neighbor in items[at + 1 : at + 2]]
        if has_valid_system_position(
            item.message, [neighbor.message for neighbor in out[-1:]], after, dialect, is_leading=has_system_field
        ):
            out.append(item)
        elif (user_item := _convert_system_to_user(item)) is not None:
            out.append(user_item)
        has_system_field = has_system_field and (not out or out[-1].message.role == "system")
    return out


def has_valid_system_position(
    message: Message, before: Sequence[Message], after: Sequence[Message], dialect: Dialect, *, is_leading: bool
) -> bool:
    """Return whether ``message`` is no system message, or one that may stand between its two neighbours.

    ``is_leading`` is true when nothing but system messages stands before it.
    """
    if message.role != "system":
        return True
    if not dialect.allows_media_in_system and any(isinstance(part, Media) for part in message.parts):
        return False
    if dialect.system_position == "any" or _is_unreadable_message(message):
        return True
    if is_leading:
        return all(isinstance(part, Text) for part in message.parts)
    if dialect.system_position == "first" or not before:
        return False
    follows_user = get_wire_role(before[0], dialect) == "user" or (
        is_paused_answer(before[0]) and not _is_compaction_answer(before[0])
    )
    return follows_user and (not after or after[0].role == "assistant")


def _is_unreadable_message(message: Message) -> bool:
    """Return whether a message is one that nobody could read: it stays as it is."""
    return any(isinstance(part, Opaque) and part.kind == "message" for part in message.parts)


def _is_compaction_answer(message: Message) -> bool:
    last = message.parts[-1]
    return isinstance(last, Opaque) and last.kind == "compaction"


def _convert_system_to_user(item: TrackedMessage) -> TrackedMessage | None:
    """Return a system message told by the user; what only the system may say (changes of tools) stays behind."""
    parts = tuple(part for part in item.message.parts if not isinstance(part, Opaque))
    if not parts:
        return None
    user_message = Message("user", (Text("[System message]"), *parts))
    return item.replace_message(user_message, "system", "no system message stands here on this model")


def merge_adjacent_messages(
    items: list[TrackedMessage], dialect: Dialect, *, summary_position: int
) -> list[TrackedMessage]:
    """Return the items with neighbours of one role made one message, where the API wants that.

    ``summary_position`` is the slot of what stands for older turns, if there is one.
    """
    out: list[TrackedMessage] = []
    for run in _group_by_role(items, dialect):
        stop = (
            2 if dialect.merges_summary and run[0].start == summary_position else _count_messages_to_merge(run, dialect)
        )
        if stop > 1:
            merged_item = merge_tracked_messages(run[:stop], "neighbours of one role")
            out.append(replace(merged_item, message=clean_message(merged_item.message, dialect)))
        else:
            out += run[:stop]
        out += run[stop:]
    return out


def _group_by_role(items: Sequence[TrackedMessage], dialect: Dialect) -> Iterator[list[TrackedMessage]]:
    """Yield neighbours of one role together."""
    for _, run in groupby(items, key=lambda item: get_wire_role(item.message, dialect)):
        yield list(run)


def _count_messages_to_merge(run: Sequence[TrackedMessage], dialect: Dialect) -> int:
    """Return how many messages of a run must be one."""
    role = get_wire_role(run[0].message, dialect)
    if dialect.merges_same_role and role in {"user", "assistant"}:
        return len(run)
    if dialect.calls_follow_user and role == "assistant":
        return max((at + 1 for at, item in enumerate(run) if item.message.calls), default=0)
    return 0


def is_merge_required(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether two neighbours must be one message."""
    if dialect.calls_follow_user and first.role == "assistant" == second.role and second.calls:
        return True
    if not dialect.merges_same_role:
        return False
    role = get_wire_role(first, dialect)
    return role == get_wire_role(second, dialect) and role in {"user", "assistant"}


def is_summary_merge_required(messages: Sequence[Message], dialect: Dialect, summary_position: int) -> bool:
    """Return whether message ``summary_position``, which stands for older turns, and the one behind it must be one."""
    pair = messages[summary_position : summary_position + 2] if summary_position >= 0 else []
    return dialect.merges_summary and [message.role for message in pair] == ["user", "user"]


def insert_acknowledgements(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with a word of the assistant's between results and a user, where the API wants that."""
    out: list[TrackedMessage] = []
    for item in items:
        if out and not can_follow_results(out[-1].message, item.message, dialect):
            why = "no user speaks right behind results on this server"
            out.append(
                create_inserted_message(item.start, Message.from_text("assistant", ACKNOWLEDGEMENT_TEXT), "answer", why)
            )
        out.append(item)
    return out


def can_follow_results(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether ``second`` may stand right behind ``first``, results aside."""
    if not (dialect.needs_answer_after_results and first.results):
        return True
    return get_wire_role(second, dialect) != "user" and all(isinstance(part, ToolResult) for part in first.parts)


def has_valid_end_roles(messages: Sequence[Message], dialect: Dialect, first_position: int) -> bool:
    """Return whether the right ones speak first and last; ``first_position`` is not 0 where something stands before."""
    opening = next((message for message in messages if message.role != "system"), None)
    if first_position == 0 and opening is not None and not _can_open_conversation(opening, dialect):
        return False
    last = messages[-1] if messages else None
    return (
        last is None
        or last.role != "assistant"
        or not (_is_user_turn_required(last, dialect) or _has_trailing_space(last, dialect))
    )


def _can_open_conversation(message: Message, dialect: Dialect) -> bool:
    """Return whether a conversation may begin with ``message``."""
    if message.role != "assistant":
        return get_wire_role(message, dialect) == "user" or not dialect.must_start_with_user
    if dialect.calls_follow_user and message.calls:
        return False
    first = message.parts[0] if message.parts else None
    return not dialect.must_start_with_user or (isinstance(first, Opaque) and first.kind == "compaction")


def _is_user_turn_required(last: Message, dialect: Dialect) -> bool:
    return dialect.must_end_with_user and not is_paused_answer(last)


def _has_trailing_space(last: Message, dialect: Dialect) -> bool:
    """Whether an answer to be gone on with ends in white space, where that is refused."""
    part = last.parts[-1] if last.parts else None
    return not dialect.allows_trailing_space and isinstance(part, Text) and part.text != part.text.rstrip()


def ensure_valid_ends(
    items: list[TrackedMessage], dialect: Dialect, *, first_position: int, has_content: bool
) -> list[TrackedMessage]:
    """Return the items with a user first and not the assistant last, where the API wants that.

    ``has_content`` is true where something was said: then a request remains, though nothing of it may be sent.
    """
    opening = next((at for at, item in enumerate(items) if item.message.role != "system"), None)
    if first_position == 0 and opening is None and has_content:
        at = items[-1].stop if items else 0
        return [
            *items,
            create_inserted_message(
                at, Message.from_text("user", CONTINUE_TEXT), "start", "nothing else is left to send"
            ),
        ]
    if first_position == 0 and opening is not None and not _can_open_conversation(items[opening].message, dialect):
        begin = create_inserted_message(
            items[opening].start, Message.from_text("user", OPENING_TEXT), "start", "a user starts"
        )
        items = [*items[:opening], begin, *items[opening:]]
    last = items[-1].message if items else Message("user")
    if last.role != "assistant":
        return items
    if _is_user_turn_required(last, dialect):
        return [
            *items,
            create_inserted_message(
                items[-1].stop, Message.from_text("user", CONTINUE_TEXT), "end", "no prefill on this model"
            ),
        ]
    return [*items[:-1], *_trim_trailing_space(items[-1])] if _has_trailing_space(last, dialect) else items


def _trim_trailing_space(item: TrackedMessage) -> list[TrackedMessage]:
    last = item.message.parts[-1]
    words = last.text.rstrip() if isinstance(last, Text) else ""
    parts = (*item.message.parts[:-1], *([Text(words)] if words else []))
    return [item.replace_message(Message("assistant", parts), "end", "it ended in white space")] if parts else []
