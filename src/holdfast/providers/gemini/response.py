"""Gemini generateContent: a body or its chunks as an answer.

Each chunk is a whole body with a piece of the answer. Neighbouring parts that are words alone, of one kind (thoughts or
not) and unsigned, are one part; a part that carries a signature or anything else stays as it came, but for a call whose
arguments come in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import count_of, fields_of, given, items_of, text_of
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.gemini.partial_args import PartialCall, is_partial
from holdfast.providers.responses.base import NOTHING, decoded, lookup, said, with_calls
from holdfast.providers.responses.values import Answer, Stop

STOPS: dict[str, Stop] = {
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

_NAMES = ("usageMetadata", "modelVersion", "responseId")


def read(found: Mapping[str, Raw]) -> Answer:
    """Return the answer in the fields of a body."""
    candidate = _first(found)
    native, blocked = text_of(candidate.get("finishReason")), _blocked(found)
    element = _element(fields_of(candidate.get("content")))
    message = decoded(gemini.decode, element) if element else NOTHING
    stop = with_calls(lookup(STOPS, native), message)
    if blocked and not native:
        stop, native = "content_filter", blocked
    return said(gemini.API, found, message, (element,), (stop, native), _NAMES)


def _first(found: Mapping[str, Raw]) -> dict[str, Raw]:
    candidates = [one for raw in items_of(found.get("candidates")) if (one := fields_of(raw))]
    return min(candidates, key=lambda one: count_of(one.get("index")), default={})


def _blocked(found: Mapping[str, Raw]) -> str:
    """Return why the prompt was blocked, if it was."""
    return text_of(fields_of(found.get("promptFeedback")).get("blockReason"))


def _element(content: Mapping[str, Raw]) -> bytes:
    """Return the content as a request takes it back: the model's, with the parts that are objects."""
    parts = [raw for raw in items_of(content.get("parts")) if bytes(raw).startswith(b"{")]
    return write({"role": "model", "parts": parts}) if parts else b""


def _says(found: Mapping[str, Raw]) -> bool:
    """Return whether a chunk holds something the model said: a part that is more than empty words."""
    contents = (fields_of(fields_of(raw).get("content")) for raw in items_of(found.get("candidates")))
    parts = (fields_of(raw) for content in contents for raw in items_of(content.get("parts")))
    return any(text_of(part.get("text")) or part.keys() - {"text", "thought"} for part in parts)


# -- chunks ------------------------------------------------------------------------------------------------------------


class _Words:
    """Neighbouring words of one kind."""

    __slots__ = ("pieces", "thought")

    def __init__(self, thought: bytes) -> None:
        self.thought = thought
        self.pieces: list[str] = []

    def whole(self) -> dict[str, Any]:
        """Return the part that says them."""
        said = {"text": "".join(self.pieces)}
        return said | ({"thought": Raw(self.thought)} if self.thought else {})


class _Candidate:
    """A candidate that grows."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._parts: list[Raw | _Words | PartialCall] = []

    def add(self, found: Mapping[str, Raw]) -> None:
        """Take a chunk of it; of what is no content the last word counts."""
        self._fields |= {key: raw for key, raw in given(found).items() if key != "content"}
        for raw in items_of(fields_of(found.get("content")).get("parts")):
            self._part(raw, fields_of(raw))

    def _part(self, raw: Raw, part: Mapping[str, Raw]) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, PartialCall) and last.open and "functionCall" in part:
            last.add(part)
        elif is_partial(part):
            self._parts.append(PartialCall(part))
        elif not part or part.keys() - {"text", "thought"} or not bytes(part.get("text", b"")).startswith(b'"'):
            self._parts.append(raw)
        else:
            self._say(text_of(part["text"]), bytes(part.get("thought", b"")))

    def _say(self, words: str, thought: bytes) -> None:
        """Add words to those of their kind that stand last; no words begin nothing."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Words) or last.thought != thought:
            if not words:
                return
            last = _Words(thought)
            self._parts.append(last)
        last.pieces.append(words)

    def whole(self) -> dict[str, Any]:
        """Return the candidate as a body has it."""
        parts = [part if isinstance(part, Raw) else part.whole() for part in self._parts]
        return {"content": {"role": "model", "parts": parts}} | self._fields


class Folding:
    """The chunks of one answer. It is complete with a ``finishReason``, or when the prompt was blocked."""

    def __init__(self) -> None:
        self.complete = False
        self._head: dict[str, Raw] = {}
        self._usage: dict[str, Raw] = {}
        self._candidates: dict[int, _Candidate] = {}

    def add(self, _name: str, found: Mapping[str, Raw]) -> bool:
        """Take the fields of one chunk."""
        self._usage |= given(fields_of(found.get("usageMetadata")))
        self._head |= {key: raw for key, raw in given(found).items() if key not in ("candidates", "error")}
        for raw in items_of(found.get("candidates")):
            one = fields_of(raw)
            self._candidates.setdefault(count_of(one.get("index")), _Candidate()).add(one)
            self.complete = self.complete or bool(text_of(one.get("finishReason")))
        self.complete = self.complete or bool(_blocked(found))
        return _says(found)

    def go_on(self, data: bytes) -> bool | None:
        """Return nothing: chunks are few and each has more than words."""

    def body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""
        body: dict[str, Any] = dict(self._head) | ({"usageMetadata": self._usage} if self._usage else {})
        candidates = [self._candidates[index].whole() for index in sorted(self._candidates)]
        return body | ({"candidates": candidates} if candidates else {})
