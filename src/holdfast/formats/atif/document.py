"""The objects of an ATIF file, and the messages that a step holds.

A step of the agent holds an answer, its calls and their results; reading makes one message of the answer and one of
each result. What ATIF has no field for (signatures, an order of parts that is not thinking, content, calls, the id of a
result's call in another step) stands in ``extra.holdfast``; a file without it reads just as well. Versions differ only
by fields that are added: 1.5 copied steps, 1.6 pictures, 1.7 sub-agents and ``extra`` everywhere, 1.8 sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from holdfast.formats.common.lines import LenientDecoder, decode_raw_elements, decode_raw_fields
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import encode_json

FORMAT = "atif"
MARK = "holdfast"
"""Name of the field in ``extra`` with what ATIF has no field for."""
THINKING_SEPARATOR = "\n\n"
"""Stands between the thinking parts of one answer, which has a single text for them."""
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""MIME types of pictures that a step may show."""
AUDIO_TYPES = frozenset(
    {"audio/wav", "audio/mpeg", "audio/mp4", "audio/aac", "audio/ogg", "audio/flac", "audio/webm", "audio/aiff"}
)
"""MIME types of sound that a step may hold (1.8)."""
ROLE_OF_SOURCE: dict[str, Role] = {"system": "system", "user": "user", "agent": "assistant"}
"""The role of a step's message, by its source."""


class AtifAgent(Struct, frozen=True):
    """The agent that wrote a file, as far as it is read."""

    name: str = ""
    model_name: str | None = None
    tool_definitions: Raw = Raw(b"null")


class AtifDocument(Struct):
    """A file, or a sub-agent's trajectory in one; any field may be missing."""

    schema_version: str = ""
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent = AtifAgent()
    steps: list[Raw] = []
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list[Raw] = []


class AtifStep(Struct):
    """A step; any field may be missing."""

    source: str = ""
    message: Raw = Raw(b'""')
    timestamp: str | float | None = None
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Raw = Raw(b"null")
    observation: Raw = Raw(b"null")
    metrics: Raw = Raw(b"null")
    is_copied_context: bool | None = None
    llm_call_count: int | None = None
    extra: Raw = Raw(b"null")


class _Observation(Struct):
    results: list[Raw] = []


class _Result(Struct):
    source_call_id: str | None = None
    content: Raw = Raw(b"null")
    extra: Raw = Raw(b"null")


class _Call(Struct):
    tool_call_id: str = ""
    function_name: str = ""
    arguments: Raw = Raw(b"{}")
    extra: Raw = Raw(b"null")


class _Source(Struct, frozen=True):
    media_type: str = ""
    path: str = ""


class _ContentPart(Struct):
    type: str = ""
    text: str | None = None
    source: _Source = _Source()


class _Text(Struct):
    text: str = ""


class Signature(Struct):
    """A signature as ``extra.holdfast`` has it."""

    api: str = ""
    model: str = ""
    data: str = ""


class RecipePart(Struct, omit_defaults=True):
    """One part of an answer, in order: so many characters of the thinking, the next piece of content, or the next call.

    Written only where the order, or a signature, is not what every reader assumes.
    """

    thinking: int | None = None
    content: bool = False
    call: bool = False
    signature: Signature | None = None
    redacted: str = ""
    """Encrypted thinking, which has no text."""


class StepMark(Struct):
    """What ``extra.holdfast`` of a step says."""

    parts: list[RecipePart] = []
    stop: str = ""
    usage: str = ""
    has_no_message: bool = False
    """Whether the step only holds results."""
    branch_summary: str | None = None
    compaction: Raw = Raw(b"null")


class _ResultMark(Struct):
    call_id: str | None = None
    name: str = ""
    is_error: bool = False


class _CallMark(Struct):
    id: str | None = None
    arguments: str | None = None
    signature: Signature | None = None


class _Extra(Struct):
    holdfast: Raw = Raw(b"{}")


ATIF_DOCUMENT = LenientDecoder(AtifDocument)
ATIF_STEP = LenientDecoder(AtifStep)
_OBSERVATION = LenientDecoder(_Observation)
_RESULT = LenientDecoder(_Result)
_CALL = LenientDecoder(_Call)
_CONTENT_PART = LenientDecoder(_ContentPart)
_TEXT = LenientDecoder(_Text)
_EXTRA = LenientDecoder(_Extra)
_STEP_MARK = LenientDecoder(StepMark)
_RESULT_MARK = LenientDecoder(_ResultMark)
_CALL_MARK = LenientDecoder(_CallMark)


def get_step_mark(step: AtifStep) -> StepMark:
    """Return what Holdfast wrote beside a step."""
    return _STEP_MARK.decode_or_default(_get_mark(step.extra))


def _get_mark(extra: Raw) -> Raw:
    return _EXTRA.decode_or_default(extra).holdfast


def is_atif_file(fields: dict[str, Raw]) -> bool:
    """Return whether a JSON object with these fields is a trajectory in ATIF."""
    if "steps" not in fields:
        return False
    if "schema_version" in fields:
        return True
    # The version is required since 1.0, and left out all the same.
    first_steps = [decode_raw_fields(step) for step in decode_raw_elements(fields["steps"])[:1]]
    return "agent" in fields and any({"source", "message"} <= step.keys() for step in first_steps)


# -- messages of a step ------------------------------------------------------------------------------------------------


def decode_step_messages(step: AtifStep) -> list[Message]:
    """Return the messages of a step: its own, and one for each result; empty for an unknown source."""
    role = ROLE_OF_SOURCE.get(step.source)
    if role is None:
        return []
    results = _OBSERVATION.decode_or_default(step.observation).results
    content = _decode_content(step.message)
    calls: list[ToolCall] = []
    call_ids: list[str] = []
    if role == "assistant":
        for raw in decode_raw_elements(step.tool_calls):
            wire_call = _CALL.decode_or_default(raw)
            calls.append(_decode_call(wire_call))
            call_ids.append(wire_call.tool_call_id)
    messages = []
    # A step of the system without words only carries what its observation says.
    is_only_results = bool(results) and not content and role != "assistant"
    if not is_only_results and not get_step_mark(step).has_no_message:
        messages.append(Message(role, _order_parts(step, content, calls)))
    return messages + _decode_results(results, calls, call_ids)


def _order_parts(step: AtifStep, content: Sequence[Part], calls: Sequence[ToolCall]) -> tuple[Part, ...]:
    """Return the parts of an answer in the order that was recorded, or thinking, content, calls."""
    reasoning = step.reasoning_content or ""
    recipe = get_step_mark(step).parts
    if recipe:
        parts = _follow_recipe(recipe, reasoning, content, calls)
        # Somebody may have changed the step: then the recipe is of another one.
        if parts is not None:
            return tuple(parts)
    thinking = [Thinking(reasoning)] if reasoning else []
    return (*thinking, *content, *calls)


def _follow_recipe(
    recipe: Sequence[RecipePart],
    reasoning: str,
    content: Sequence[Part],
    calls: Sequence[ToolCall],
) -> list[Part] | None:
    """Return the parts as the recipe has them, or None if it does not use everything exactly once."""
    parts: list[Part] = []
    position = 0
    has_thinking = False
    remaining_content = list(content)
    remaining_calls = list(calls)
    for item in recipe:
        signature = decode_signature(item.signature)
        if item.thinking is not None:
            if has_thinking:
                position += len(THINKING_SEPARATOR)
            has_thinking = True
            text = reasoning[position : position + max(0, item.thinking)]
            position += len(text)
            parts.append(Thinking(text, signature, _build_redacted_block(item.redacted)))
        elif item.content and remaining_content:
            part = remaining_content.pop(0)
            parts.append(Text(part.text, signature) if isinstance(part, Text) else part)
        elif item.call and remaining_calls:
            parts.append(remaining_calls.pop(0))
        else:
            return None
    is_used_up = not remaining_content and not remaining_calls and position == len(reasoning)
    return parts if is_used_up else None


def _build_redacted_block(data: str) -> Raw | None:
    """Return the block that redacted thinking is made of, whose bytes are all there is of it."""
    return Raw(encode_json({"type": "redacted_thinking", "data": data})) if data else None


def decode_signature(signature: Signature | None) -> ProviderSignature | None:
    """Return a signature that was kept beside a part."""
    return None if signature is None else ProviderSignature(signature.api, signature.model, signature.data)


def _decode_call(call: _Call) -> ToolCall:
    mark = _CALL_MARK.decode_or_default(_get_mark(call.extra))
    id_ = call.tool_call_id if mark.id is None else mark.id
    arguments = bytes(call.arguments).decode(errors="replace") if mark.arguments is None else mark.arguments
    return ToolCall(id_, call.function_name, arguments, decode_signature(mark.signature))


def _decode_results(results: Sequence[Raw], calls: Sequence[ToolCall], call_ids: Sequence[str]) -> list[Message]:
    """Return a message for each result of a step, and an empty result for calls that one result answers together.

    A result without a call is an answer to the only open one. If several are open it is the outcome of all of them, as
    of an agent that sends several commands to one terminal: the last one gets it. Without any call it is a message that
    the user's side sent.
    """
    wires = [_RESULT.decode_or_default(raw) for raw in results]
    marks = [_RESULT_MARK.decode_or_default(_get_mark(wire.extra)) for wire in wires]
    open_calls = list(range(len(calls)))
    targets: list[int | None] = []
    for wire in wires:
        target = next((index for index in open_calls if call_ids[index] == wire.source_call_id), None)
        if target is not None:
            open_calls.remove(target)
        targets.append(target)
    unassigned = [
        index
        for index, target in enumerate(targets)
        if target is None and wires[index].source_call_id is None and marks[index].call_id is None
    ]
    answered_together: list[int] = []
    if len(unassigned) == 1 and open_calls:
        *answered_together, targets[unassigned[0]] = open_calls
    else:
        for index, call_index in zip(unassigned, open_calls, strict=False):
            targets[index] = call_index
    messages = []
    for call_index in answered_together:
        messages.append(Message("tool", (ToolResult(calls[call_index].id, calls[call_index].name),)))
    for wire, mark, target in zip(wires, marks, targets, strict=True):
        content = tuple([part for part in _decode_content(wire.content, keeps_empty=True) if _is_result_part(part)])
        if target is not None:
            result = ToolResult(calls[target].id, calls[target].name, content, mark.is_error)
            messages.append(Message("tool", (result,)))
        elif mark.call_id is not None or wire.source_call_id is not None:
            call_id = mark.call_id if mark.call_id is not None else wire.source_call_id or ""
            messages.append(Message("tool", (ToolResult(call_id, mark.name, content, mark.is_error),)))
        elif content:
            messages.append(Message("user", content))
    return messages


def _is_result_part(part: Part) -> bool:
    return isinstance(part, Text | Media | Opaque)


def _decode_content(raw: Raw, *, keeps_empty: bool = False) -> tuple[Text | Media | Opaque, ...]:
    """Return a message or the content of a result as parts: it is a text, a list of parts, or null."""
    data = bytes(raw)
    if data.startswith(b'"'):
        text = _TEXT.decode_or_default(b'{"text":' + data + b"}").text
        return (Text(text),) if text or keeps_empty else ()
    return tuple([_decode_content_part(element) for element in decode_raw_elements(raw)])


def _decode_content_part(raw: Raw) -> Text | Media | Opaque:
    """Return a part of a content; a file beside the trajectory, and anything unknown, is kept as it is."""
    part = _CONTENT_PART.decode_or_default(raw)
    if part.type == "text" and part.text is not None:
        return Text(part.text)
    if part.type in ("image", "audio") and part.source.path.startswith(("https://", "http://")):
        return Media(part.type, part.source.media_type, 0, "", part.source.path, None, "url")
    return Opaque(part.type or "unknown", raw)


def has_audio(step: AtifStep) -> bool:
    """Return whether a step refers to sound, which version 1.7 does not know."""
    contents = [step.message]
    for raw in _OBSERVATION.decode_or_default(step.observation).results:
        contents.append(_RESULT.decode_or_default(raw).content)
    for content in contents:
        for element in decode_raw_elements(content):
            if _CONTENT_PART.decode_or_default(element).type == "audio":
                return True
    return False


# -- content of a step -------------------------------------------------------------------------------------------------


def encode_content_part(part: Part) -> Any:
    """Return a part of a content as ATIF has it, or None if it has no form for it.

    Files are references there: data inside a message is not allowed.
    """
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Media) and part.form == "url":
        types = {"image": IMAGE_TYPES, "audio": AUDIO_TYPES}.get(part.kind, frozenset())
        mime = part.mime or _guess_image_type(part)
        if mime in types:
            return {"type": part.kind, "source": {"media_type": mime, "path": part.source}}
    if isinstance(part, Opaque) and part.raw is not None and is_media_reference(part.raw):
        return part.raw
    return None


def is_media_reference(raw: Raw) -> bool:
    """Return whether the bytes are a picture or sound as ATIF refers to it; no API has a ``path``."""
    part = _CONTENT_PART.decode_or_default(raw)
    return (
        part.type in ("image", "audio") and bool(part.source.path) and set(decode_raw_fields(raw)) == {"type", "source"}
    )


_IMAGE_TYPE_OF_SUFFIX = {"jpg": "image/jpeg", "jpeg": "image/jpeg", "png": "image/png", "gif": "image/gif"} | {
    "webp": "image/webp"
}


def _guess_image_type(part: Media) -> str:
    """Return the MIME type that the address of a picture ends with, or an empty string."""
    address = part.source.partition("?")[0].partition("#")[0]
    return _IMAGE_TYPE_OF_SUFFIX.get(address.rpartition(".")[2].lower(), "") if part.kind == "image" else ""
