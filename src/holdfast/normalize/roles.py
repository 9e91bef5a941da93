"""The order of roles: where system messages stand, which neighbours merge, and how a request begins and ends."""

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
"""The user message in front of a history that does not begin with one, where the API wants that."""
ACKNOWLEDGEMENT_TEXT = "(noted)"
"""The assistant message between results and a user's words, where the API wants one."""
CONTINUE_TEXT = "Continue."
"""The user message after a last answer, where the API refuses a prefill."""


def place_system_messages(
    items: list[TrackedMessage], dialect: Dialect, *, has_system_field: bool
) -> list[TrackedMessage]:
    """Turn system messages into user messages where the API does not take them.

    ``has_system_field`` says that those at the start go into a field of their own.
    """
    placed_items: list[TrackedMessage] = []
    for index, item in enumerate(items):
        # The message before is one already placed: it may have been the system's until now.
        before = [neighbor.message for neighbor in placed_items[-1:]]
        after = [neighbor.message for neighbor in items[index + 1 : index + 2]]
        if has_valid_system_position(
            item.message,
            before,
            after,
            dialect,
            is_leading=has_system_field,
        ):
            placed_items.append(item)
        elif (user_item := _convert_system_to_user(item)) is not None:
            placed_items.append(user_item)
        has_only_system_messages = not placed_items or placed_items[-1].message.role == "system"
        has_system_field = has_system_field and has_only_system_messages
    return placed_items


def has_valid_system_position(
    message: Message,
    before: Sequence[Message],
    after: Sequence[Message],
    dialect: Dialect,
    *,
    is_leading: bool,
) -> bool:
    """Return whether ``message`` may stand between its neighbours; true for all roles but the system's.

    ``before`` and ``after`` hold the neighbour on that side, or nothing. ``is_leading`` is true when only system
    messages stand before it.
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
    # Anthropic's newest models take a system message after a user's or after an answer that a server tool paused, and
    # only if an answer follows or nothing does.
    follows_user = get_wire_role(before[0], dialect) == "user"
    follows_paused_tool = is_paused_answer(before[0]) and not _is_compaction_answer(before[0])
    precedes_answer = not after or after[0].role == "assistant"
    return (follows_user or follows_paused_tool) and precedes_answer


def _is_unreadable_message(message: Message) -> bool:
    """Return whether a message could not be parsed; it is sent as the client wrote it."""
    return any(isinstance(part, Opaque) and part.kind == "message" for part in message.parts)


def _is_compaction_answer(message: Message) -> bool:
    last = message.parts[-1]
    return isinstance(last, Opaque) and last.kind == "compaction"


def _convert_system_to_user(item: TrackedMessage) -> TrackedMessage | None:
    """Return a system message as a user's, or None if all its parts (changed tools) are the system's alone."""
    parts = tuple(part for part in item.message.parts if not isinstance(part, Opaque))
    if not parts:
        return None
    user_message = Message("user", (Text("[System message]"), *parts))
    return item.replace_message(user_message, "system", "the model does not allow a system message here")


def merge_adjacent_messages(
    items: list[TrackedMessage], dialect: Dialect, *, summary_position: int
) -> list[TrackedMessage]:
    """Merge neighbours of one role where the API wants that.

    ``summary_position`` is the position of the summary of older turns, if there is one.
    """
    merged_items: list[TrackedMessage] = []
    for run in _group_by_role(items, dialect):
        if dialect.merges_summary and run[0].start == summary_position:
            merge_count = 2
        else:
            merge_count = _count_messages_to_merge(run, dialect)
        if merge_count > 1:
            merged_item = merge_tracked_messages(run[:merge_count], "adjacent messages of the same role are merged")
            # Parts that may stand alone, but not beside others, are refused only now.
            merged_items.append(replace(merged_item, message=clean_message(merged_item.message, dialect)))
        else:
            merged_items += run[:merge_count]
        merged_items += run[merge_count:]
    return merged_items


def _group_by_role(items: Sequence[TrackedMessage], dialect: Dialect) -> Iterator[list[TrackedMessage]]:
    """Yield the runs of neighbours that are sent under one role."""
    for _, run in groupby(items, key=lambda item: get_wire_role(item.message, dialect)):
        yield list(run)


def _count_messages_to_merge(run: Sequence[TrackedMessage], dialect: Dialect) -> int:
    """Return how many messages from the start of a run of one role must become one."""
    role = get_wire_role(run[0].message, dialect)
    if dialect.merges_same_role and role in {"user", "assistant"}:
        return len(run)
    if dialect.merges_system and role == "system":
        return len(run)
    count = 0
    if dialect.calls_follow_user and role == "assistant":
        # Calls may not stand after another answer, so all answers up to the last one with calls are merged.
        for index, item in enumerate(run):
            if item.message.calls:
                count = index + 1
    return count


def is_merge_required(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether two neighbours must become one message."""
    are_answers = first.role == second.role == "assistant"
    if dialect.calls_follow_user and are_answers and second.calls:
        return True
    if dialect.merges_system and first.role == second.role == "system":
        return True
    if not dialect.merges_same_role:
        return False
    role = get_wire_role(first, dialect)
    return role == get_wire_role(second, dialect) and role in {"user", "assistant"}


def is_summary_merge_required(messages: Sequence[Message], dialect: Dialect, summary_position: int) -> bool:
    """Return whether the summary at ``summary_position`` (-1 for none) must merge with a user's message after it."""
    if not dialect.merges_summary or summary_position < 0:
        return False
    summary_and_next = messages[summary_position : summary_position + 2]
    return [message.role for message in summary_and_next] == ["user", "user"]


def insert_acknowledgements(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Insert an assistant message between results and a user's words where the API wants one."""
    acknowledged_items: list[TrackedMessage] = []
    for item in items:
        if acknowledged_items and not can_follow_results(acknowledged_items[-1].message, item.message, dialect):
            acknowledgement = Message.from_text("assistant", ACKNOWLEDGEMENT_TEXT)
            why = "this server does not allow a user message directly after tool results"
            acknowledged_items.append(create_inserted_message(item.start, acknowledgement, "answer", why))
        acknowledged_items.append(item)
    return acknowledged_items


def can_follow_results(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether ``second`` may directly follow ``first``: some APIs refuse a user after results."""
    if not dialect.needs_answer_after_results or not first.results:
        return True
    has_only_results = all(isinstance(part, ToolResult) for part in first.parts)
    return has_only_results and get_wire_role(second, dialect) != "user"


def has_valid_end_roles(messages: Sequence[Message], dialect: Dialect, first_position: int) -> bool:
    """Return whether a request may begin and end as ``messages`` do.

    ``first_position`` is not 0 if other messages are sent before them.
    """
    opening = next((message for message in messages if message.role != "system"), None)
    if first_position == 0 and opening is None and messages and _needs_user_after_system(dialect):
        return False
    if first_position == 0 and opening is not None and not _can_open_conversation(opening, dialect):
        return False
    if not messages or messages[-1].role != "assistant":
        return True
    last = messages[-1]
    return not _is_user_turn_required(last, dialect) and not _has_refused_trailing_space(last, dialect)


def _needs_user_after_system(dialect: Dialect) -> bool:
    """Return whether a request of system messages alone is refused, although they are among the messages."""
    return dialect.must_start_with_user and not dialect.has_system_field


def _can_open_conversation(message: Message, dialect: Dialect) -> bool:
    """Return whether a conversation may begin with ``message``."""
    if message.role != "assistant":
        return get_wire_role(message, dialect) == "user" or not dialect.must_start_with_user
    if dialect.calls_follow_user and message.calls:
        return False
    # A provider's compaction is an answer, and stands for the turns before it.
    first = message.parts[0] if message.parts else None
    return not dialect.must_start_with_user or (isinstance(first, Opaque) and first.kind == "compaction")


def _is_user_turn_required(last: Message, dialect: Dialect) -> bool:
    # A paused answer is sent back as it is; a user message after it would end it.
    if not dialect.must_end_with_user or is_paused_answer(last):
        return False
    return not any(isinstance(part, Opaque) and part.kind in dialect.prefill_marks for part in last.parts)


def _has_refused_trailing_space(last: Message, dialect: Dialect) -> bool:
    """Return whether a prefill ends in white space and the API refuses that."""
    if dialect.allows_trailing_space or not last.parts:
        return False
    last_part = last.parts[-1]
    return isinstance(last_part, Text) and last_part.text != last_part.text.rstrip()


def ensure_valid_ends(
    items: list[TrackedMessage],
    dialect: Dialect,
    *,
    first_position: int,
    has_content: bool,
) -> list[TrackedMessage]:
    """Make a user's message the first and not an assistant's the last, where the API wants that.

    ``has_content`` says that the history holds content: then a request remains even if no message of it may be sent.
    """
    if first_position == 0:
        items = _ensure_valid_opening(items, dialect, has_content=has_content)
    last = items[-1].message if items else None
    if last is None or last.role != "assistant":
        return items
    if _is_user_turn_required(last, dialect):
        closing = Message.from_text("user", CONTINUE_TEXT)
        return [
            *items,
            create_inserted_message(
                items[-1].stop, closing, "end", "this model does not accept a final assistant message (prefill)"
            ),
        ]
    if _has_refused_trailing_space(last, dialect):
        return [*items[:-1], *_trim_trailing_space(items[-1])]
    return items


def _ensure_valid_opening(items: list[TrackedMessage], dialect: Dialect, *, has_content: bool) -> list[TrackedMessage]:
    """Insert a user message where a conversation must begin with one; also if only system messages are left."""
    opening_index = 0
    while opening_index < len(items) and items[opening_index].message.role == "system":
        opening_index += 1
    if opening_index == len(items):
        if not has_content and not (items and _needs_user_after_system(dialect)):
            return items
        position = items[-1].stop if items else 0
        only_message = Message.from_text("user", CONTINUE_TEXT)
        return [*items, create_inserted_message(position, only_message, "start", "no other message is left to send")]
    opening_item = items[opening_index]
    if _can_open_conversation(opening_item.message, dialect):
        return items
    opening_message = Message.from_text("user", OPENING_TEXT)
    opening = create_inserted_message(
        opening_item.start, opening_message, "start", "the conversation must begin with a user message"
    )
    return [*items[:opening_index], opening, *items[opening_index:]]


def _trim_trailing_space(item: TrackedMessage) -> list[TrackedMessage]:
    """Return the answer without white space at its end, or no item if nothing else is in it."""
    last_part = item.message.parts[-1]
    text = last_part.text.rstrip() if isinstance(last_part, Text) else ""
    parts = item.message.parts[:-1]
    if text:
        parts = (*parts, Text(text))
    if not parts:
        return []
    return [
        item.replace_message(Message("assistant", parts), "end", "the final assistant message ended in white space")
    ]
