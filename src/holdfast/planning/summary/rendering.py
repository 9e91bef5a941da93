"""Render a conversation as labelled text for the model that summarizes it.

Media become placeholders; thinking and the form of any API are left out. So a history that no provider would accept can
still be summarized.
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
# Share of a cut result for its end, if that looks like an error or an outcome, as in truncation (planning/stages).
_RESULT_END_SHARE = 0.3
# A line of a message that begins like one of our labels: unescaped, a tool result could speak as the user.
_FORGED_LABEL = re.compile(r"^([ \t]*)\[(?=(?:system|user|assistant|tool)\b)", re.IGNORECASE | re.MULTILINE)


class TranscriptStyle(Struct, frozen=True):
    """Limits on the length of texts in characters; 0 = no limit."""

    result_chars: int = 2_000
    """Of a tool result; opencode's number."""
    argument_chars: int = 2_000
    """Of one argument of a call."""
    text_chars: int = 0
    """Of a message's own words."""

    def cap_lengths(self, max_chars: int) -> TranscriptStyle:
        """Return the style with no limit above ``max_chars``."""
        return replace(
            self,
            result_chars=min(max_chars, self.result_chars or max_chars),
            argument_chars=min(max_chars, self.argument_chars or max_chars),
            text_chars=min(max_chars, self.text_chars or max_chars),
        )


def render_transcript(head: Iterable[SizedMessage | Message], style: TranscriptStyle = TranscriptStyle()) -> str:
    """Render ``head`` as blocks, with empty lines between: one for each message's words, its calls, and each result."""
    blocks: list[str] = []
    for item in head:
        message = item.message if isinstance(item, SizedMessage) else item
        blocks += _render_message_blocks(message, style)
    return replace_surrogates_in_text("\n\n".join(blocks))


def _render_message_blocks(message: Message, style: TranscriptStyle) -> Iterator[str]:
    """Yield the blocks of one message.

    Results stand before the words of a user in the same message, who speaks after reading them.
    """
    result_blocks = []
    for result in message.results:
        if block := _render_result_block(result, style):
            result_blocks.append(block)
    if message.role != "assistant":
        yield from result_blocks
    words = [_render_part_words(part, style) for part in merge_adjacent_texts(message)]
    text = "\n".join(filter(None, words))
    if text.strip():
        yield f"[{_ROLE_LABELS[message.role]}]: {text}"
    if message.calls:
        yield f"[Assistant tool calls]: {'; '.join([_render_call(call, style) for call in message.calls])}"
    if message.role == "assistant":
        yield from result_blocks


def _render_part_words(part: Part, style: TranscriptStyle) -> str:
    """Return the words of a part, or an empty string for thinking, and for calls and results, which have own blocks."""
    if isinstance(part, Text):
        return _escape_labels(_cut_with_count(part.text, style.text_chars))
    if isinstance(part, Thinking | ToolCall | ToolResult):
        return ""
    text = get_opaque_text(part) if isinstance(part, Opaque) else ""
    max_chars = style.text_chars or style.result_chars
    return _escape_labels(_cut_with_count(text or format_part_placeholder(part), max_chars))


def _render_result_block(result: ToolResult, style: TranscriptStyle) -> str:
    """Render a result, or return an empty string for one that is empty and did not fail."""
    result_text = _cut_with_count(get_result_text(result), style.result_chars, _RESULT_END_SHARE)
    texts = [_escape_labels(result_text)]
    for part in result.content:
        if not isinstance(part, Text):
            texts.append(_render_part_words(part, style))
    text = "\n".join(filter(None, texts))
    if not text.strip() and not result.is_error:
        return ""
    failure_note = ", failed" if result.is_error else ""
    return f"[Tool result{failure_note}]: {text}"


# -- calls -------------------------------------------------------------------------------------------------------------


def _render_call(call: ToolCall, style: TranscriptStyle) -> str:
    """Render a call as ``name(key=json, …)``; arguments that are not an object stand as they are."""
    call_arguments = decode_call_arguments(call)
    if not isinstance(call_arguments, dict):
        return _escape_labels(f"{call.name}({_cut_with_count(call.arguments, style.argument_chars)})")
    fields: list[str] = []
    for name, value in call_arguments.items():
        fields.append(f"{name}={_cut_with_count(_encode_argument_value(value), style.argument_chars)}")
    return _escape_labels(f"{call.name}({', '.join(fields)})")


def _encode_argument_value(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, OverflowError, RecursionError):
        return repr(value)


# -- texts -------------------------------------------------------------------------------------------------------------


def _cut_with_count(text: str, max_chars: int, tail_share: float = 0.0) -> str:
    """Cut ``text`` to ``max_chars`` characters, and add a note on how many are missing; 0 is no limit.

    The tail gets ``tail_share`` if it looks important, else nothing.
    """
    if not max_chars or len(text) <= max_chars:
        return text
    if tail_share and not has_important_end(text):
        tail_share = 0.0
    head, end = take_both_grapheme_ends(text, max_chars, tail_share)
    note = f"[... {len(text) - len(head) - len(end)} more characters truncated]"
    return f"{head}\n\n{note}\n\n{end}" if end else f"{head}\n\n{note}"


def _escape_labels(text: str) -> str:
    """Put a backslash before everything in ``text`` that looks like a label at the start of a line."""
    return _FORGED_LABEL.sub(r"\1\\[", text)
