"""Check the edits of stages before they are folded: a stage may be the caller's own function."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import raise_if_wrong_type
from holdfast.messages.message import Message
from holdfast.messages.text.counts import format_count
from holdfast.state.codec.packing import describe_type_mismatch
from holdfast.state.conversation_state import MessageHistory
from holdfast.state.edits import Edit, Span
from holdfast.state.validation import is_valid_part


def require_valid_edits(edits: Sequence[Edit], history: MessageHistory) -> None:
    """Raise for the first edit that cannot be applied to ``history``.

    Raises ``TypeError`` for a value of a wrong type, and ``IndexError`` for messages or a part that do not exist.
    """
    raise_if_wrong_type(TypeError, edits=(edits, tuple | list))
    for index, edit in enumerate(edits):
        if not _has_valid_types(edit):
            raise TypeError(
                f"edits[{index}] is not a valid edit: {_describe_mistake(edit)};"
                " give Edit(Span(start, stop), (replacement, ...))"
            )
        _require_existing_span(edit, index, history)


def _has_valid_types(edit: object) -> bool:
    if not isinstance(edit, Edit) or not isinstance(edit.span, Span):
        return False
    if not isinstance(edit.rule, str) or not isinstance(edit.why, str) or not isinstance(edit.saves, int):
        return False
    span = edit.span
    indexes_are_valid = type(span.start) is int and type(span.stop) is int and type(span.part) in (int, type(None))
    if not indexes_are_valid or not isinstance(edit.replacement, tuple | list):
        return False
    if span.part is None:
        return all(isinstance(item, Message) for item in edit.replacement)
    return all(map(is_valid_part, edit.replacement))


def _describe_mistake(edit: object) -> str:
    if not isinstance(edit, Edit):
        return f"it is of type {type(edit).__name__}"
    why = describe_type_mismatch(edit, Edit) or "a part is replaced by parts, and messages by messages"
    return why.replace("$.put", "$.replacement")  # the name under which it is stored


def _require_existing_span(edit: Edit, index: int, history: MessageHistory) -> None:
    """Raise ``IndexError`` if the span of ``edit``, which is ``edits[index]``, lies outside of ``history``."""
    span = edit.span
    message_count = len(history.sized_messages)
    if not 0 <= span.start <= span.stop <= message_count:
        raise IndexError(
            f"edits[{index}].span is messages {span.start} to {span.stop} (exclusive);"
            f" the history has {format_count(message_count, 'message')}, counted from 0"
        )
    if span.part is None:
        return
    if span.start == message_count:
        raise IndexError(
            f"edits[{index}].span is a part of message {span.start};"
            f" the history has {format_count(message_count, 'message')}, counted from 0"
        )
    part_count = len(history.messages[span.start].parts)
    if not 0 <= span.part < part_count:
        raise IndexError(
            f"edits[{index}].span is part {span.part} of message {span.start};"
            f" that message has {format_count(part_count, 'part')}, counted from 0"
        )
