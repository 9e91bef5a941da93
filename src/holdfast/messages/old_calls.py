"""Calls in the old form of Chat Completions, rewritten as calls and results.

Before ``tool_calls`` an answer had one call in its field ``function_call``, and its result was a message of the role
``function`` after it. Neither has an id; a result has the name of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text, ToolCall, ToolResult

OLD_CALL_FIELD = "function_call"
"""The field of an answer, or of a request, in which the old form stands."""
OLD_RESULT_ROLE = "function"
"""The role of a result in the old form."""
_OLD_CALL_KIND = f"message.{OLD_CALL_FIELD}"
_MEDIA_PART_TYPES = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file", "document"}
)
_MAX_MEDIA_CHARS = 500
"""Characters up to which a media part is an address or an id; no picture worth seeing is smaller. Chosen by judgement.
"""
_UNREADABLE_CALL_LABEL = "[Call of a function]"


class _OldCall(Struct):
    name: str
    arguments: Any = ""


class _OldMessage(Struct):
    role: str = ""
    name: str | None = None
    content: Any = None


_CALL_DECODER = msgspec.json.Decoder(_OldCall)
_MESSAGE_DECODER = msgspec.json.Decoder(_OldMessage)
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


def has_old_call(message: Message) -> bool:
    """Return whether ``message`` is a call or a result in the old form."""
    if message.role == "assistant":
        return any(isinstance(part, Opaque) and part.kind == _OLD_CALL_KIND for part in message.parts)
    return _read_old_result(message) is not None


def rewrite_old_calls(messages: Sequence[Message], make_id: Callable[[str], str]) -> list[Message]:
    """Return ``messages`` with calls and results in place of the old form; other messages stay the same objects.

    A result answers the first open call of its function. One without a call becomes a user's text, and so does, in its
    answer, a call that cannot be read. ``make_id`` makes the id of a call from a text that distinguishes it; the text
    is of the call's own message alone, so that leaving out earlier messages changes no id.
    """
    rewritten: list[Message] = []
    open_calls: list[ToolCall] = []
    for message in messages:
        if not has_old_call(message):
            rewritten.append(message)
            continue
        old_result = _read_old_result(message)
        if old_result is None:
            answer = _rewrite_answer(message, make_id)
            open_calls += answer.calls[-1:]
            rewritten.append(answer)
            continue
        call = _find_open_call(open_calls, old_result.name or "")
        if call is None:
            rewritten.append(Message("user", (Text(_retell_result(old_result)),)))
            continue
        open_calls.remove(call)
        text = join_result_texts(old_result.content)
        content = (Text(text),) if text else ()
        rewritten.append(Message("tool", (ToolResult(call.id, call.name, content),)))
    return rewritten


def _read_old_result(message: Message) -> _OldMessage | None:
    if message.role != "tool" or len(message.parts) != 1:
        return None
    part = message.parts[0]
    if not isinstance(part, Opaque) or part.kind != "message" or part.raw is None:
        return None
    try:
        old_message = _MESSAGE_DECODER.decode(part.raw)
    except _DECODE_ERRORS:
        return None
    return old_message if old_message.role == OLD_RESULT_ROLE else None


def _rewrite_answer(message: Message, make_id: Callable[[str], str]) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, Opaque) or part.kind != _OLD_CALL_KIND:
            parts.append(part)
            continue
        new_part = _rewrite_call(part.raw, message, make_id)
        # Some clients send a call in both forms; the other one has an id already.
        if not isinstance(new_part, ToolCall) or not _has_call(message, new_part):
            parts.append(new_part)
    return Message(message.role, tuple(parts))


def _rewrite_call(raw: Raw | None, message: Message, make_id: Callable[[str], str]) -> ToolCall | Text:
    data = b"null" if raw is None else bytes(raw)
    try:
        old_call = _CALL_DECODER.decode(data)
    except _DECODE_ERRORS:
        return Text(f"{_UNREADABLE_CALL_LABEL} {data.decode(errors='replace')}")
    arguments = old_call.arguments
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    seed = f"{message.text!r} {old_call.name} {arguments}"
    return ToolCall(make_id(seed), old_call.name, arguments)


def _has_call(message: Message, call: ToolCall) -> bool:
    return any(other.name == call.name and other.arguments == call.arguments for other in message.calls)


def _find_open_call(open_calls: Sequence[ToolCall], name: str) -> ToolCall | None:
    """Return the first open call of the function; without a name, the first open call."""
    for call in open_calls:
        if not name or call.name == name:
            return call
    return None


def join_result_texts(content: Any) -> str:
    """Return the content of a result as one text: a string, or a list of parts; anything else as JSON.

    A line stands for the bytes of an image, a file or a sound, which would be noise as text; an address is kept.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join([_render_part(part) for part in (content if isinstance(content, list) else [content])])


def _render_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    if isinstance(text, str):
        return text
    encoded = msgspec.json.encode(part).decode()
    is_media = isinstance(part, dict) and part.get("type") in _MEDIA_PART_TYPES
    if is_media and len(encoded) > _MAX_MEDIA_CHARS:
        return f"[{part['type']} left out: a result of the role {OLD_RESULT_ROLE} has text alone]"
    return encoded


def _retell_result(old_result: _OldMessage) -> str:
    name = f" {old_result.name}" if old_result.name else ""
    label = f"[Result of the function{name}, whose call is not here]"
    text = join_result_texts(old_result.content)
    return f"{label}\n{text}" if text else label
