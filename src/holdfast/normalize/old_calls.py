"""Rewrite calls in the old form of Chat Completions (``function_call``) where the server is known to refuse them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.messages.message import Message
from holdfast.messages.old_calls import has_old_call, rewrite_old_calls
from holdfast.normalize.ids import mint_call_id
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import Dialect

OLD_CALL_RULE = "old-call"
"""Rule of the edits that rewrite the old form of calls and results."""


def replace_old_calls(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Put calls and results in the place of the old form, if the server refuses that."""
    messages = [item.message for item in items]
    if not has_refused_old_calls(messages, dialect):
        return items
    new_messages = rewrite_old_calls(messages, lambda seed: mint_call_id(seed, dialect))
    new_items: list[TrackedMessage] = []
    for item, message in zip(items, new_messages, strict=True):
        if message is item.message:
            new_items.append(item)
        else:
            new_items.append(item.replace_message(message, OLD_CALL_RULE, _explain_change(item.message, message)))
    return new_items


def has_refused_old_calls(messages: Iterable[Message], dialect: Dialect) -> bool:
    """Return whether one of ``messages`` has the old form of calls, and the server refuses that."""
    return dialect.refuses_old_calls and any(map(has_old_call, messages))


def _explain_change(before: Message, after: Message) -> str:
    if before.role == "assistant":
        form = "tool_calls" if after.calls else "text, since it cannot be read"
        return f"function_call is refused here; the call is sent as {form}"
    if after.results:
        return "the role function is refused here; the result is sent as a tool message"
    return "the role function is refused here, and this result has no call; it is told as text"
