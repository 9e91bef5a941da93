"""Events of GitHub Copilot CLI, decoded into parts of messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from holdfast.formats.common.lines import DECODE_ERRORS, LenientDecoder
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import count_base64_bytes


class CopilotEvent(Struct, rename="camel"):
    """A line of ``events.jsonl``; any field may be missing."""

    type: str = ""
    id: str = ""
    timestamp: str | None = None
    data: Raw = Raw(b"{}")
    agent_id: str | None = None
    """The sub-agent that the event belongs to; None for the main conversation."""


class CopilotData(Struct, rename="camel"):
    """The fields of ``data`` that the reader uses; which are present depends on the type of the event."""

    session_id: str = ""
    context: Raw = Raw()
    selected_model: str | None = None
    new_model: str | None = None
    content: str = ""
    transformed_content: str | None = None
    """A prompt as it was sent, with the reminders that the client added."""
    attachments: list[Raw] | None = None
    message_id: str = ""
    chunk_count: int | None = None
    """Number of pieces in which a long answer is written."""
    model: str | None = None
    reasoning_text: str | None = None
    tool_requests: list[Raw] | None = None
    output_tokens: int | None = None
    parent_tool_call_id: str | None = None
    tool_call_id: str = ""
    tool_name: str = ""
    success: bool | None = None
    result: Raw = Raw()
    error: Raw = Raw()
    agent_name: str | None = None
    agent_display_name: str | None = None
    trigger: str | None = None
    summary_content: str | None = None
    messages_removed: int | None = None
    pre_compaction_messages_length: int | None = None
    pre_compaction_tokens: int | None = None
    post_compaction_tokens: int | None = None
    request_id: str = ""


class _ToolRequest(Struct, rename="camel"):
    tool_call_id: str = ""
    name: str = ""
    arguments: Raw = Raw(b"{}")


class _ToolOutput(Struct, rename="camel"):
    content: str | None = None
    """What the model got; ``detailedContent`` beside it is for the screen."""
    contents: list[Raw] | None = None
    binary_results_for_llm: list[Raw] | None = None


class _TextBlock(Struct):
    type: str = ""
    text: str = ""


class _BinaryBlock(Struct, rename="camel"):
    type: str = ""
    data: str = ""
    mime_type: str = ""
    display_name: str | None = None


class _ErrorMessage(Struct):
    message: str = ""


class _Context(Struct):
    cwd: str = ""


class _Prompt(Struct):
    prompt: str = ""


COPILOT_EVENT = LenientDecoder(CopilotEvent)
COPILOT_DATA = LenientDecoder(CopilotData)
_TOOL_REQUEST = LenientDecoder(_ToolRequest)
_TOOL_OUTPUT = LenientDecoder(_ToolOutput)
_TEXT_BLOCK = LenientDecoder(_TextBlock)
_BINARY_BLOCK = LenientDecoder(_BinaryBlock)
_ERROR_MESSAGE = LenientDecoder(_ErrorMessage)
_CONTEXT = LenientDecoder(_Context)
_PROMPT = LenientDecoder(_Prompt)


def decode_working_folder(data: CopilotData) -> str:
    """Return the working folder that a ``session.start`` names, or an empty string."""
    return _CONTEXT.decode_or_default(data.context).cwd


def decode_prompt_parts(data: CopilotData) -> tuple[Part, ...]:
    """Return a prompt as it was sent, with the images and files whose bytes are in the event."""
    parts: list[Part] = [Text(data.transformed_content or data.content)]
    for raw in data.attachments or ():
        block = _BINARY_BLOCK.decode_or_default(raw)
        # Other attachments name a file, and what was sent of it is in the text.
        if block.type == "blob" and block.data:
            parts.append(_make_media(block))
    return tuple(parts)


def decode_answer_parts(pieces: Sequence[CopilotData]) -> tuple[Part, ...]:
    """Return an answer, of which a long one is written in several pieces with the same message id."""
    parts: list[Part] = []
    reasoning = "".join(piece.reasoning_text or "" for piece in pieces)
    if reasoning:
        parts.append(Thinking(reasoning))
    text = "".join(piece.content for piece in pieces)
    if text:
        parts.append(Text(text))
    for piece in pieces:
        parts += map(_decode_call, piece.tool_requests or ())
    return tuple(parts)


def _decode_call(raw: Raw) -> ToolCall:
    request = _TOOL_REQUEST.decode_or_default(raw)
    return ToolCall(request.tool_call_id, request.name, _decode_arguments(request.arguments))


def _decode_arguments(raw: Raw) -> str:
    """Return the arguments of a call as JSON text. Older versions write an object as a string of JSON."""
    text = bytes(raw).decode("utf-8", "replace")
    if not text.startswith('"'):
        return text
    try:
        inner = msgspec.json.decode(raw, type=str)
    except DECODE_ERRORS:
        return text
    return inner if inner.lstrip().startswith("{") else text


def decode_result(data: CopilotData, name: str) -> ToolResult:
    """Return the result that a ``tool.execution_complete`` has for the model."""
    output = _decode_output(data.result)
    content: list[Text | Media] = []
    text = output.content
    if text is None:
        blocks = [_TEXT_BLOCK.decode_or_default(raw) for raw in output.contents or ()]
        text = "\n".join(block.text for block in blocks if block.text)
    is_error = data.success is False
    if is_error and not text:
        text = _decode_error(data.error)
    if text:
        content.append(Text(text))
    for raw in output.binary_results_for_llm or ():
        block = _BINARY_BLOCK.decode_or_default(raw)
        if block.data:
            content.append(_make_media(block))
    return ToolResult(data.tool_call_id, name, tuple(content), is_error)


def _decode_output(raw: Raw) -> _ToolOutput:
    """Return a result's fields; older versions write the text alone."""
    if bytes(raw).startswith(b'"'):
        return _ToolOutput(content=_decode_text(raw))
    return _TOOL_OUTPUT.decode_or_default(raw)


def _decode_error(raw: Raw) -> str:
    if bytes(raw).startswith(b'"'):
        return _decode_text(raw)
    return _ERROR_MESSAGE.decode_or_default(raw).message


def _decode_text(raw: Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except DECODE_ERRORS:
        return ""


def _make_media(block: _BinaryBlock) -> Media:
    kind = "image" if block.mime_type.startswith("image/") else "document"
    return Media(kind, block.mime_type, count_base64_bytes(block.data), block.display_name or "", block.data)


def decode_agent_prompt(arguments: str) -> str:
    """Return the prompt in the arguments of the call that started a sub-agent, or an empty string."""
    return _PROMPT.decode_or_default(arguments.encode()).prompt
