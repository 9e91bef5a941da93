"""Gemini generateContent: parse a body or the chunks of a stream as an answer.

Each chunk is a whole body with a piece of the answer. Neighbouring parts of unsigned text of one kind (thought or not)
are joined into one part. A part with a signature or anything else stays unchanged, except a call that arrives in
pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw

from holdfast.providers.answers.accumulator import (
    EMPTY_ANSWER,
    adjust_stop_for_calls,
    build_parsed_answer,
    decode_message_or_empty,
    map_stop_reason,
)
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
from holdfast.providers.api_spec import AnswerFormat
from holdfast.providers.common.event_text import as_object, get_first_object, get_text_at
from holdfast.providers.common.json.lenient_json import (
    drop_null_fields,
    read_json_count,
    read_json_fields,
    read_json_items,
    read_json_text,
)
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.gemini.partial_args import PartialCall, is_partial_call
from holdfast.state.entries import Usage

STOP_REASONS: dict[str, StopReason] = {
    "stop": "end",
    "max_tokens": "length",
    "continuation": "pause",
    "safety": "content_filter",
    "recitation": "content_filter",
    "language": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "image_safety": "content_filter",
    "image_prohibited_content": "content_filter",
    "image_recitation": "content_filter",
    "escalation": "content_filter",
    "model_armor": "content_filter",
    "jailbreak": "content_filter",
    "malformed_function_call": "error",
    "unexpected_tool_call": "error",
    "too_many_tool_calls": "error",
    "missing_thought_signature": "error",
    "malformed_response": "error",
    "pup_limited_disabled": "error",
    "no_image": "error",
    "image_other": "error",
}
"""Stop reasons by ``finishReason`` or ``blockReason`` in lower case (SDK 3.4). ``OTHER`` and the unspecified ones tell
nothing and map to unknown."""

# The names that this API has for usage, model and id of an answer.
_ANSWER_FIELDS = ("usageMetadata", "modelVersion", "responseId")


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Parse the tokens of a ``usageMetadata`` object.

    ``promptTokenCount`` includes cached tokens, but not the input of Google's own tools. Thoughts are counted beside
    the candidates, unless ``totalTokenCount`` shows that the candidates include them.
    """
    prompt_tokens = read_json_count(fields.get("promptTokenCount"))
    input_tokens = prompt_tokens + read_json_count(fields.get("toolUsePromptTokenCount"))
    output_tokens = read_json_count(fields.get("candidatesTokenCount"))
    thought_tokens = read_json_count(fields.get("thoughtsTokenCount"))
    # If the total is reached without the thoughts, this server counts them among the candidates.
    if read_json_count(fields.get("totalTokenCount")) != input_tokens + output_tokens:
        output_tokens += thought_tokens
    cached_tokens = read_json_count(fields.get("cachedContentTokenCount"))
    return Usage(input_tokens, output_tokens, cached_tokens, 0, thought_tokens)


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the text of the answer in one decoded chunk, without thoughts."""
    parts = as_object(get_first_object(payload.get("candidates")).get("content")).get("parts")
    for part in parts if isinstance(parts, list) else ():
        # Thoughts come as text parts too, with a flag.
        if not as_object(part).get("thought"):
            yield get_text_at(as_object(part), "text")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Parse the answer in the fields of a body."""
    candidate = _get_first_candidate(fields)
    element = _encode_content_element(read_json_fields(candidate.get("content")))
    if element:
        message = decode_message_or_empty(gemini.decode_message, element)
    else:
        message = EMPTY_ANSWER
    finish_reason = read_json_text(candidate.get("finishReason"))
    block_reason = _get_block_reason(fields)
    stop = (adjust_stop_for_calls(map_stop_reason(STOP_REASONS, finish_reason), message), finish_reason)
    # A blocked prompt has no candidate, and so no finish reason.
    if block_reason and not finish_reason:
        stop = ("content_filter", block_reason)
    return build_parsed_answer(
        gemini.API_NAME,
        fields,
        message,
        (element,),
        stop,
        parse_usage,
        _ANSWER_FIELDS,
    )


def _get_first_candidate(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    candidates = [read_json_fields(raw) for raw in read_json_items(fields.get("candidates"))]
    filled_candidates = [candidate for candidate in candidates if candidate]
    return min(
        filled_candidates,
        key=lambda candidate: read_json_count(candidate.get("index")),
        default={},
    )


def _get_block_reason(fields: Mapping[str, Raw]) -> str:
    """Return the reason why the prompt was blocked; empty if it was not."""
    return read_json_text(read_json_fields(fields.get("promptFeedback")).get("blockReason"))


def _encode_content_element(content: Mapping[str, Raw]) -> bytes:
    """Encode the content of an answer as a request takes it back: as the model's, without malformed parts."""
    parts = []
    for raw in read_json_items(content.get("parts")):
        if bytes(raw).startswith(b"{"):
            parts.append(raw)
    return encode_json({"role": "model", "parts": parts}) if parts else b""


def _has_spoken_content(fields: Mapping[str, Raw]) -> bool:
    """Return whether a chunk has content: a part that is more than empty text."""
    for raw_candidate in read_json_items(fields.get("candidates")):
        content = read_json_fields(read_json_fields(raw_candidate).get("content"))
        for raw_part in read_json_items(content.get("parts")):
            part = read_json_fields(raw_part)
            if read_json_text(part.get("text")) or part.keys() - {"text", "thought"}:
                return True
    return False


# -- chunks ------------------------------------------------------------------------------------------------------------


class _TextRun:
    """Neighbouring texts of one kind."""

    __slots__ = ("pieces", "thought")

    def __init__(self, thought: bytes) -> None:
        self.thought = thought
        self.pieces: list[str] = []

    def build_part(self) -> dict[str, Any]:
        """Build the part with the joined text."""
        part = {"text": "".join(self.pieces)}
        return part | ({"thought": Raw(self.thought)} if self.thought else {})


class _GrowingCandidate:
    """A candidate under construction."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._parts: list[Raw | _TextRun | PartialCall] = []

    def add_chunk(self, fields: Mapping[str, Raw]) -> None:
        """Merge a chunk: parts of the content are added, other fields replaced."""
        for key, raw in drop_null_fields(fields).items():
            if key != "content":
                self._fields[key] = raw
        for raw in read_json_items(read_json_fields(fields.get("content")).get("parts")):
            self._add_part(raw, read_json_fields(raw))

    def _add_part(self, raw: Raw, part: Mapping[str, Raw]) -> None:
        last = self._parts[-1] if self._parts else None
        has_text = bytes(part.get("text", b"")).startswith(b'"')
        is_unsigned_text = has_text and part.keys() <= {"text", "thought"}
        if isinstance(last, PartialCall) and last.is_open and "functionCall" in part:
            last.add_part(part)
        elif is_partial_call(part):
            self._parts.append(PartialCall(part))
        elif is_unsigned_text:
            self._add_text(read_json_text(part["text"]), bytes(part.get("thought", b"")))
        else:
            self._parts.append(raw)  # a signature belongs to exactly this part, so it is never joined with another

    def _add_text(self, words: str, thought: bytes) -> None:
        """Append text to the run of its kind at the end, or begin a new run unless the text is empty."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _TextRun) or last.thought != thought:
            if not words:
                return
            last = _TextRun(thought)
            self._parts.append(last)
        last.pieces.append(words)

    def build_candidate(self) -> dict[str, Any]:
        """Build the candidate as a body has it."""
        parts = []
        for part in self._parts:
            parts.append(part if isinstance(part, Raw) else part.build_part())
        return {"content": {"role": "model", "parts": parts}} | self._fields


class GeminiAccumulator:
    """The chunks of one answer, merged. Complete with a ``finishReason``, or when the prompt was blocked."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Raw] = {}
        self._usage: dict[str, Raw] = {}
        self._candidates: dict[int, _GrowingCandidate] = {}

    def add_event(self, _name: str, fields: Mapping[str, Raw]) -> bool:
        """Merge the fields of one chunk, and return whether it has content."""
        self._usage |= drop_null_fields(read_json_fields(fields.get("usageMetadata")))
        for key, raw in drop_null_fields(fields).items():
            if key not in ("candidates", "error"):
                self._head[key] = raw
        for raw in read_json_items(fields.get("candidates")):
            candidate_fields = read_json_fields(raw)
            index = read_json_count(candidate_fields.get("index"))
            self._candidates.setdefault(index, _GrowingCandidate()).add_chunk(candidate_fields)
            if read_json_text(candidate_fields.get("finishReason")):
                self.is_complete = True
        if _get_block_reason(fields):
            self.is_complete = True
        return _has_spoken_content(fields)

    def add_text_delta(self, data: bytes) -> bool | None:
        """Return None: chunks are few, and each has more than text."""

    def build_body(self) -> dict[str, Any]:
        """Build the fields of the body from the chunks so far."""
        body: dict[str, Any] = dict(self._head)
        if self._usage:
            body["usageMetadata"] = self._usage
        if self._candidates:
            body["candidates"] = [self._candidates[index].build_candidate() for index in sorted(self._candidates)]
        return body


ANSWERS = AnswerFormat(
    parse_answer_body,
    GeminiAccumulator,
    parse_usage,
    iter_event_text,
    keep_alive=b"\n\n",
    streams_json_array=True,
)
"""The keep-alive is a blank line. google-genai 3.4 skips it, but takes every other line without ``data:`` for JSON and
fails on a comment (measured)."""
