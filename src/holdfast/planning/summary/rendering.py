"""Rendering: a conversation as labelled text, which is what the writer of a summary reads.

No API's form, no tools, no media, no thinking: a history that no provider would take can still be summarised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message, format_part_placeholder, get_result_text
from holdfast.messages.parts import Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import decode_call_arguments
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import get_opaque_text
from holdfast.messages.text.text_cuts import replace_surrogates_in_text
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.planning.stages.truncate import has_important_end
from holdfast.planning.summary.grapheme_cuts import take_both_grapheme_ends

_ROLE_LABELS = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_RESULT_END_SHARE = 0.3
"""Share of a cut result that shows its end, where that looks like an error or an outcome."""
_FORGED_LABEL = re.compile(r"^([ \t]*)\[(?=(?:system|user|assistant|tool)\b)", re.IGNORECASE | re.MULTILINE)
"""A line in somebody's words that begins like a label of ours."""


class TranscriptStyle(Struct, frozen=True):
    """How long things are told; 0 = whole. The defaults are ours."""

    result_chars: int = 2_000
    """Characters of a result."""
    argument_chars: int = 2_000
    """Characters of one argument of a call."""
    text_chars: int = 0
    """Characters of a message's own words."""

    def cap_lengths(self, max_chars: int) -> TranscriptStyle:
        """Return the style with nothing longer than ``max_chars`` characters."""
        short = {
            name: min(max_chars, getattr(self, name) or max_chars)
            for name in ("result_chars", "argument_chars", "text_chars")
        }
        return replace(self, **short)


def render_transcript(head: Iterable[SizedMessage | Message], style: TranscriptStyle = TranscriptStyle()) -> str:
    """Return ``head`` as text: a block for what each message says, its calls, and each result; empty lines between."""
    messages = (item.message if isinstance(item, SizedMessage) else item for item in head)
    return replace_surrogates_in_text(
        "\n\n".join([block for message in messages for block in _render_message_blocks(message, style)])
    )


def _render_message_blocks(message: Message, style: TranscriptStyle) -> Iterator[str]:
    """Yield the blocks of one message; results of tools stand before what a user says to them."""
    results = [_render_result_block(result, style) for result in message.results]
    if message.role != "assistant":
        yield from filter(None, results)
    text = "\n".join(filter(None, [_render_part_words(part, style) for part in merge_adjacent_texts(message)]))
    if text.strip():
        yield f"[{_ROLE_LABELS[message.role]}]: {text}"
    if message.calls:
        yield f"[Assistant tool calls]: {'; '.join([_render_call(call, style) for call in message.calls])}"
    if message.role == "assistant":
        yield from filter(None, results)


def _render_part_words(part: Part, style: TranscriptStyle) -> str:
    """Return what a part says in plain words; nothing for thinking, and for calls and results, told apart."""
    if isinstance(part, Text):
        return _escape_labels(_cut_with_count(part.text, style.text_chars))
    if isinstance(part, Thinking | ToolCall | ToolResult):
        return ""
    text = get_opaque_text(part) if isinstance(part, Opaque) else ""
    return _escape_labels(
        _cut_with_count(text or format_part_placeholder(part), style.text_chars or style.result_chars)
    )


def _render_result_block(result: ToolResult, style: TranscriptStyle) -> str:
    other_texts = [_render_part_words(part, style) for part in result.content if not isinstance(part, Text)]
    text = "\n".join(
        filter(
            None,
            [
                _escape_labels(_cut_with_count(get_result_text(result), style.result_chars, _RESULT_END_SHARE)),
                *other_texts,
            ],
        )
    )
    failure_note = ", failed" if result.is_error else ""
    return f"[Tool result{failure_note}]: {text}" if text.strip() or failure_note else ""


# -- calls -------------------------------------------------------------------------------------------------------------


def _render_call(call: ToolCall, style: TranscriptStyle) -> str:
    """Return a call as ``name(k=json, …)``; arguments that are no object stand as they are."""
    call_arguments = decode_call_arguments(call)
    pairs = call_arguments.items() if isinstance(call_arguments, dict) else ()
    fields = [f"{name}={_cut_with_count(_encode_argument_value(value), style.argument_chars)}" for name, value in pairs]
    whole = (
        ", ".join(fields) if isinstance(call_arguments, dict) else _cut_with_count(call.arguments, style.argument_chars)
    )
    return _escape_labels(f"{call.name}({whole})")


def _encode_argument_value(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, OverflowError, RecursionError):
        return repr(value)


# -- texts -------------------------------------------------------------------------------------------------------------


def _cut_with_count(text: str, max_chars: int, tail: float = 0.0) -> str:
    """Return ``text`` in ``max_chars`` characters and a note on how many more there were."""
    if not max_chars or len(text) <= max_chars:
        return text
    head, end = take_both_grapheme_ends(text, max_chars, tail if tail and has_important_end(text) else 0.0)
    note = f"[... {len(text) - len(head) - len(end)} more characters truncated]"
    return f"{head}\n\n{note}\n\n{end}" if end else f"{head}\n\n{note}"


def _escape_labels(text: str) -> str:
    """Return ``text`` with a backslash before whatever looks like a label at the start of a line."""
    return _FORGED_LABEL.sub(r"\1\\[", text)
