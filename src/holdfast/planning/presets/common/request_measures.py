"""Sizes of messages and requests as pi, opencode, and tools that count like pi estimate them.

A preset must compact exactly when its tool would, so these count like the tool, errors included, and not like ours.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.text_cuts import replace_surrogates_in_text
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.shown_messages import sum_shown_messages, sum_shown_messages_from
from holdfast.state.conversation_state import ConversationState
from holdfast.state.view import get_valid_last_answer, get_valid_measured_request

PI_IMAGE_CHARS = 4_800
"""Characters that pi counts for an image: 1,200 tokens."""


# -- messages ----------------------------------------------------------------------------------------------------------


def estimate_pi_tokens(message: Message, chars_per_token: int = 4) -> int:
    """Estimate the tokens of ``message`` like pi: its characters over ``chars_per_token``, rounded up."""
    return math.ceil(sum(map(_count_pi_chars, message.parts)) / max(1, chars_per_token))


def estimate_opencode_tokens(message: Message) -> int:
    """Estimate the tokens of ``message`` like opencode: the characters of its JSON over four, rounded."""
    body = {"role": message.role, "content": [_to_ai_sdk_part(part) for part in message.parts]}
    json_text = msgspec.json.encode(body).decode(errors="replace")
    # Math.round of JavaScript rounds a half up, round of Python to the even neighbour.
    return math.floor(count_utf16_units(json_text) / 4 + 0.5)


def estimate_opencode_text_tokens(text: str) -> int:
    """Estimate the tokens of ``text`` like opencode: its characters over four, rounded half up as in JavaScript."""
    return math.floor(count_utf16_units(text) / 4 + 0.5)


def count_utf16_units(text: str) -> int:
    """Return the length of ``text`` as JavaScript counts it: a character beyond the basic plane (an emoji) is two."""
    if text.isascii():
        return len(text)
    return len(text) + sum(char > "\uffff" for char in text)


def _count_pi_chars(part: Part) -> int:
    """Return the characters that pi counts for a part."""
    if isinstance(part, Text | Thinking):
        return count_utf16_units(part.text)
    if isinstance(part, ToolCall):
        return count_utf16_units(part.name) + count_utf16_units(_minify_json(part.arguments))
    if isinstance(part, ToolResult):  # its text and images; pi does not count the id
        return sum(map(_count_pi_chars, part.content))
    if isinstance(part, Media):
        return PI_IMAGE_CHARS
    return len(part.raw or b"")


def _minify_json(arguments: str) -> str:
    """Return JSON as JavaScript writes it, without white space; text that is not JSON as it is."""
    value = _parse_json_or_keep(arguments)
    if value is arguments:
        return arguments
    return msgspec.json.encode(value).decode()


def _parse_json_or_keep(arguments: str) -> object:
    """Return the value of a JSON text; the same text if it is not JSON."""
    try:
        return msgspec.json.decode(arguments)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return arguments


def _to_ai_sdk_part(part: Part) -> dict[str, object]:
    """Return a part in the form of the AI SDK; opencode measures the JSON of that."""
    if isinstance(part, Text | Thinking):
        kind = "text" if isinstance(part, Text) else "reasoning"
        return {"type": kind, "text": replace_surrogates_in_text(part.text)}
    if isinstance(part, ToolCall):
        call_input = _parse_json_or_keep(part.arguments)
        if call_input is part.arguments:  # not JSON: sent as a string
            call_input = replace_surrogates_in_text(part.arguments)
        return _to_ai_sdk_tool_part("tool-call", part.id, part.name) | {"input": call_input}
    if isinstance(part, ToolResult):
        output = {"type": "content", "value": [_to_ai_sdk_part(inner) for inner in part.content]}
        return _to_ai_sdk_tool_part("tool-result", part.call_id, part.name) | {"output": output}
    if isinstance(part, Media):
        return {"type": "file", "mediaType": part.mime, "data": replace_surrogates_in_text(part.source)}
    return {"type": part.kind, "raw": part.raw}


def _to_ai_sdk_tool_part(kind: str, id_: str, name: str) -> dict[str, object]:
    return {"type": kind, "toolCallId": replace_surrogates_in_text(id_), "toolName": replace_surrogates_in_text(name)}


# -- requests ----------------------------------------------------------------------------------------------------------


class UsageEstimate(Struct, frozen=True):
    """The size of a request by usage and characters."""

    usage_tokens: int
    """Tokens that the last answer reported, its output included."""
    trailing_tokens: int
    """Estimate of the messages after that answer; of all messages if its usage does not count."""
    answer_index: int = -1
    """Index of the answer; -1 if its usage does not count."""

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.usage_tokens + self.trailing_tokens


def estimate_pi_request(state: ConversationState, chars_per_token: int = 4) -> UsageEstimate:
    """Estimate the messages that ``state`` shows like pi: the last good answer's usage, plus characters after it.

    Usage does not count if it is from before the last compaction, of another model, or of another prefix; then all
    shown messages are estimated.
    """
    measure = PiTokenMeasure(chars_per_token)
    if get_valid_measured_request(state) is not None:
        last_answer = get_valid_last_answer(state)
        if last_answer is not None:
            trailing_tokens = sum_shown_messages_from(state, last_answer.message_count, measure)
            return UsageEstimate(last_answer.window_tokens, trailing_tokens, last_answer.message_count - 1)
    return UsageEstimate(0, sum_shown_messages(state, measure))


class PiTokenMeasure(Struct, frozen=True):
    """``estimate_pi_tokens`` as a value.

    Sums over shown messages are remembered by their measure, so it must be equal to itself in the next request.
    """

    chars_per_token: int

    def __call__(self, message: Message) -> int:
        """Estimate the tokens of ``message``."""
        return estimate_pi_tokens(message, self.chars_per_token)


def measure_last_usage(builder: PlanBuilder) -> int:
    """Return the last good answer's usage in tokens, its output included; -1 before the first one."""
    last_answer = get_valid_last_answer(builder.state)
    return -1 if last_answer is None else last_answer.window_tokens


def measure_usage_and_chars(builder: PlanBuilder, chars_per_token: int = 4) -> int:
    """Return the last good answer's usage plus an estimate, by characters, of the messages after it.

    Usage covers the setup; without usage the setup is added.
    """
    estimate = estimate_pi_request(builder.state, chars_per_token)
    has_usage = estimate.answer_index >= 0
    if has_usage:
        return estimate.tokens
    return estimate.tokens + builder.budget.setup_tokens
