"""How large pi, opencode and the tools that count like pi take a message, and a request, to be."""

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
"""Characters that pi counts for a picture, which makes 1,200 tokens of it. [P]"""


# -- messages ----------------------------------------------------------------------------------------------------------


def estimate_pi_tokens(message: Message, chars_per_token: int = 4) -> int:
    """Return the tokens of ``message`` as pi estimates them: characters over four, rounded up."""
    return math.ceil(sum(map(_count_pi_chars, message.parts)) / max(1, chars_per_token))


def estimate_opencode_tokens(message: Message) -> int:
    """Return the tokens of ``message`` as opencode estimates them: characters of its JSON over four, rounded."""
    body = {"role": message.role, "content": [_to_ai_sdk_part(part) for part in message.parts]}
    return math.floor(count_utf16_units(msgspec.json.encode(body).decode(errors="replace")) / 4 + 0.5)


def estimate_opencode_text_tokens(text: str) -> int:
    """Return the tokens of ``text`` as opencode estimates them: characters over four, rounded."""
    return math.floor(count_utf16_units(text) / 4 + 0.5)


def count_utf16_units(text: str) -> int:
    """Return the length of ``text`` as JavaScript tells it: what lies beyond the first plane counts twice."""
    return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)


def _count_pi_chars(part: Part) -> int:
    if isinstance(part, Text | Thinking):
        return count_utf16_units(part.text)
    if isinstance(part, ToolCall):
        return count_utf16_units(part.name) + count_utf16_units(_minify_json(part.arguments))
    if isinstance(part, ToolResult):
        return sum(map(_count_pi_chars, part.content))
    return PI_IMAGE_CHARS if isinstance(part, Media) else len(part.raw or b"")


def _minify_json(arguments: str) -> str:
    """Return JSON as JavaScript writes it, without blanks between; what is no JSON stays."""
    value = _parse_json_or_keep(arguments)
    return arguments if value is arguments else msgspec.json.encode(value).decode()


def _parse_json_or_keep(arguments: str) -> object:
    """Return what JSON says; what is no JSON as it is."""
    try:
        return msgspec.json.decode(arguments)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return arguments


def _to_ai_sdk_part(part: Part) -> dict[str, object]:
    """Return a part in the form in which opencode hands it to a model's library."""
    if isinstance(part, Text | Thinking):
        return {
            "type": "text" if isinstance(part, Text) else "reasoning",
            "text": replace_surrogates_in_text(part.text),
        }
    if isinstance(part, ToolCall):
        parsed_arguments = _parse_json_or_keep(part.arguments)
        return _to_ai_sdk_tool_part("tool-call", part.id, part.name) | {
            "input": replace_surrogates_in_text(part.arguments)
            if parsed_arguments is part.arguments
            else parsed_arguments
        }
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
    """A request by usage and characters: what the last answer told, and what came behind it."""

    usage_tokens: int
    trailing_tokens: int
    answer_index: int = -1
    """Slot of the answer that told it; -1 where none counts."""

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.usage_tokens + self.trailing_tokens


def estimate_pi_request(state: ConversationState, chars_per_token: int = 4) -> UsageEstimate:
    """Return the size of what ``state`` shows as pi estimates it: the usage of the last good answer, and characters.

    Usage from before the last compaction, of another model or of another beginning counts for nothing; then
    everything that is shown is estimated.
    """
    used = get_valid_last_answer(state) if get_valid_measured_request(state) is not None else None
    if used is not None:
        return UsageEstimate(
            used.window_tokens,
            sum_shown_messages_from(state, used.message_count, PiTokenMeasure(chars_per_token)),
            used.message_count - 1,
        )
    return UsageEstimate(0, sum_shown_messages(state, PiTokenMeasure(chars_per_token)))


class PiTokenMeasure(Struct, frozen=True):
    """The measure of ``estimate_pi_tokens``."""

    chars_per_token: int

    def __call__(self, message: Message) -> int:
        """Return the tokens of ``message``."""
        return estimate_pi_tokens(message, self.chars_per_token)


def measure_last_usage(builder: PlanBuilder) -> int:
    """Return the last good answer's usage, its output included; -1 before there is one."""
    used = get_valid_last_answer(builder.state)
    return -1 if used is None else used.window_tokens


def measure_usage_and_chars(builder: PlanBuilder, chars_per_token: int = 4) -> int:
    """Return the last good answer's usage and characters for what came later; without usage setup and characters."""
    estimate = estimate_pi_request(builder.state, chars_per_token)
    return estimate.tokens + (builder.budget.setup_tokens if estimate.answer_index < 0 else 0)
