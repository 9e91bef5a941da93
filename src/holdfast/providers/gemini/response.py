"""Gemini generateContent: a body or its chunks as an answer.

Each chunk is a whole body with a piece of the answer. Neighbouring parts that are words alone, of one kind (thoughts or
not) and unsigned, are one part; a part that carries a signature or anything else stays as it came, but for a call whose
arguments come in pieces.
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
"""``finishReason`` and ``blockReason`` (SDK 3.4). ``OTHER`` and the unspecified ones say nothing: unknown."""

_ANSWER_FIELDS = ("usageMetadata", "modelVersion", "responseId")


def parse_usage(fields: Mapping[str, Raw]) -> Usage:
    """Return the tokens of a ``usageMetadata``.

    ``promptTokenCount`` includes ``cachedContentTokenCount``, not what Google's own tools put in. Candidates and
    thoughts are two counts that do not overlap, unless ``totalTokenCount`` says so.
    """
    input_ = read_json_count(fields.get("promptTokenCount")) + read_json_count(fields.get("toolUsePromptTokenCount"))
    output, thoughts = (
        read_json_count(fields.get("candidatesTokenCount")),
        read_json_count(fields.get("thoughtsTokenCount")),
    )
    if read_json_count(fields.get("totalTokenCount")) != input_ + output:
        output += thoughts
    return Usage(input_, output, read_json_count(fields.get("cachedContentTokenCount")), 0, thoughts)


def iter_event_text(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the words of the answer in one chunk of a stream; its thoughts are none."""
    parts = as_object(get_first_object(payload.get("candidates")).get("content")).get("parts")
    for part in parts if isinstance(parts, list) else ():
        if not as_object(part).get("thought"):
            yield get_text_at(as_object(part), "text")


def parse_answer_body(fields: Mapping[str, Raw]) -> ParsedAnswer:
    """Return the answer in the fields of a body."""
    candidate = _get_first_candidate(fields)
    native, block_reason = read_json_text(candidate.get("finishReason")), _get_block_reason(fields)
    element = _encode_content_element(read_json_fields(candidate.get("content")))
    message = decode_message_or_empty(gemini.decode_message, element) if element else EMPTY_ANSWER
    stop = adjust_stop_for_calls(map_stop_reason(STOP_REASONS, native), message)
    if block_reason and not native:
        stop, native = "content_filter", block_reason
    return build_parsed_answer(
        gemini.API_NAME, fields, message, (element,), (stop, native), parse_usage, _ANSWER_FIELDS
    )


def _get_first_candidate(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    candidates = [
        candidate for raw in read_json_items(fields.get("candidates")) if (candidate := read_json_fields(raw))
    ]
    return min(candidates, key=lambda candidate: read_json_count(candidate.get("index")), default={})


def _get_block_reason(fields: Mapping[str, Raw]) -> str:
    """Return why the prompt was blocked, if it was."""
    return read_json_text(read_json_fields(fields.get("promptFeedback")).get("blockReason"))


def _encode_content_element(content: Mapping[str, Raw]) -> bytes:
    """Return the content as a request takes it back: the model's, with the parts that are objects."""
    parts = [raw for raw in read_json_items(content.get("parts")) if bytes(raw).startswith(b"{")]
    return encode_json({"role": "model", "parts": parts}) if parts else b""


def _has_spoken_content(fields: Mapping[str, Raw]) -> bool:
    """Return whether a chunk holds something the model said: a part that is more than empty words."""
    contents = (
        read_json_fields(read_json_fields(raw).get("content")) for raw in read_json_items(fields.get("candidates"))
    )
    parts = (read_json_fields(raw) for content in contents for raw in read_json_items(content.get("parts")))
    return any(read_json_text(part.get("text")) or part.keys() - {"text", "thought"} for part in parts)


# -- chunks ------------------------------------------------------------------------------------------------------------


class _TextRun:
    """Neighbouring words of one kind."""

    __slots__ = ("pieces", "thought")

    def __init__(self, thought: bytes) -> None:
        self.thought = thought
        self.pieces: list[str] = []

    def build_part(self) -> dict[str, Any]:
        """Return the part that says them."""
        part = {"text": "".join(self.pieces)}
        return part | ({"thought": Raw(self.thought)} if self.thought else {})


class _GrowingCandidate:
    """A candidate that grows."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._parts: list[Raw | _TextRun | PartialCall] = []

    def add_chunk(self, fields: Mapping[str, Raw]) -> None:
        """Take a chunk of it; of what is no content the last word counts."""
        self._fields |= {key: raw for key, raw in drop_null_fields(fields).items() if key != "content"}
        for raw in read_json_items(read_json_fields(fields.get("content")).get("parts")):
            self._add_part(raw, read_json_fields(raw))

    def _add_part(self, raw: Raw, part: Mapping[str, Raw]) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, PartialCall) and last.is_open and "functionCall" in part:
            last.add_part(part)
        elif is_partial_call(part):
            self._parts.append(PartialCall(part))
        elif not part or part.keys() - {"text", "thought"} or not bytes(part.get("text", b"")).startswith(b'"'):
            self._parts.append(raw)
        else:
            self._add_text(read_json_text(part["text"]), bytes(part.get("thought", b"")))

    def _add_text(self, words: str, thought: bytes) -> None:
        """Add words to those of their kind that stand last; no words begin nothing."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _TextRun) or last.thought != thought:
            if not words:
                return
            last = _TextRun(thought)
            self._parts.append(last)
        last.pieces.append(words)

    def build_candidate(self) -> dict[str, Any]:
        """Return the candidate as a body has it."""
        parts = [part if isinstance(part, Raw) else part.build_part() for part in self._parts]
        return {"content": {"role": "model", "parts": parts}} | self._fields


class GeminiAccumulator:
    """The chunks of one answer. It is complete with a ``finishReason``, or when the prompt was blocked."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head: dict[str, Raw] = {}
        self._usage: dict[str, Raw] = {}
        self._candidates: dict[int, _GrowingCandidate] = {}

    def add_event(self, _name: str, fields: Mapping[str, Raw]) -> bool:
        """Take the fields of one chunk."""
        self._usage |= drop_null_fields(read_json_fields(fields.get("usageMetadata")))
        self._head |= {key: raw for key, raw in drop_null_fields(fields).items() if key not in ("candidates", "error")}
        for raw in read_json_items(fields.get("candidates")):
            candidate_fields = read_json_fields(raw)
            self._candidates.setdefault(read_json_count(candidate_fields.get("index")), _GrowingCandidate()).add_chunk(
                candidate_fields
            )
            self.is_complete = self.is_complete or bool(read_json_text(candidate_fields.get("finishReason")))
        self.is_complete = self.is_complete or bool(_get_block_reason(fields))
        return _has_spoken_content(fields)

    def add_text_delta(self, data: bytes) -> bool | None:
        """Return nothing: chunks are few and each has more than words."""

    def build_body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""
        body: dict[str, Any] = dict(self._head) | ({"usageMetadata": self._usage} if self._usage else {})
        candidates = [self._candidates[index].build_candidate() for index in sorted(self._candidates)]
        return body | ({"candidates": candidates} if candidates else {})


ANSWERS = AnswerFormat(
    parse_answer_body,
    GeminiAccumulator,
    parse_usage,
    iter_event_text,
    keep_alive=b"\n\n",
    streams_json_array=True,
)
"""[M] google-genai 3.4 takes every line that is neither blank nor ``data:`` for JSON and dies of a comment; a blank
line it skips."""
