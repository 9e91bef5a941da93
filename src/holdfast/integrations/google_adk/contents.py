"""Contents of ADK in our terms, and what a request shows of them in ADK's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from google.genai import types
from msgspec import Raw
from msgspec.structs import replace

from holdfast.integrations.common.parts import match_kept_parts
from holdfast.messages.message import Message, Role, format_part_placeholder, get_result_text
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.gemini.messages import link_results_to_calls
from holdfast.state.entries import Usage

RESPONSE_FIELDS = frozenset({"output", "result", "error"})
"""Fields of a function's response whose value alone is its text (docs of Gemini's API, FunctionResponse)."""


def read_contents(contents: Sequence[types.Content]) -> list[Message]:
    """Return contents in our terms, one part for each of theirs; responses without ids belong to calls by order."""
    return link_results_to_calls([_read_content(content) for content in contents])


def _read_content(content: types.Content) -> Message:
    counts: Counter[tuple[type, str]] = Counter()
    parts: list[Part] = []
    for adk_part in content.parts or ():
        part = _read_part(adk_part)
        # ADK removes its own ids before Gemini sees them. Such an id is for pairing alone and never sent.
        if isinstance(part, ToolCall) and not part.id:
            counts[ToolCall, part.name] += 1
            part = replace(part, id=f"{part.name}#{counts[ToolCall, part.name]}")
        elif isinstance(part, ToolResult) and not part.call_id:
            counts[ToolResult, part.name] += 1
            part = replace(part, call_id=f"{part.name}#{counts[ToolResult, part.name]}")
        parts.append(part)
    return Message(_get_role(content, parts), tuple(parts))


def _get_role(content: types.Content, parts: Sequence[Part]) -> Role:
    if content.role == "model":
        return "assistant"
    return "tool" if parts and all(isinstance(part, ToolResult) for part in parts) else "user"


def _read_part(part: types.Part) -> Part:
    if part.function_call:
        call = part.function_call
        return ToolCall(call.id or "", call.name or "", _encode_json(call.args or {}))
    if part.function_response:
        return _read_response(part.function_response)
    if part.text and part.thought:
        return Thinking(part.text)
    if part.text:
        return Text(part.text)
    if part.inline_data or part.file_data:
        return _read_media(part.inline_data or part.file_data)
    fields = part.model_dump(mode="json", exclude_none=True, exclude={"thought", "thought_signature"})
    if fields:
        return Opaque(next(iter(fields)), Raw(_encode_json(fields).encode()))
    # Nothing but a signature, perhaps.
    return Thinking("")


def _read_response(response: types.FunctionResponse) -> ToolResult:
    text = _read_response_text(response.response or {})
    content: list[Text | Media | Opaque] = [Text(text)] if text else []
    for part in response.parts or ():
        content.append(_read_media(part.inline_data or part.file_data))
    is_error = "error" in (response.response or {})
    return ToolResult(response.id or "", response.name or "", tuple(content), is_error)


def _read_response_text(response: Mapping[str, Any]) -> str:
    """Return the text of a response: the value of its only field if that has a usual name, else all of it as JSON."""
    filled = {name: value for name, value in response.items() if value not in (None, "")}
    if not filled:
        return ""
    if len(filled) == 1 and filled.keys() <= RESPONSE_FIELDS:
        (value,) = filled.values()
        return value if isinstance(value, str) else _encode_json(value)
    return _encode_json(filled)


def _read_media(media: Any) -> Media:
    """Return a picture or a document; of its data only a digest, since ADK keeps the data."""
    mime = media.mime_type or ""
    kind = mime.partition("/")[0]
    kind = kind if kind in {"image", "audio", "video"} else "document"
    data = getattr(media, "data", None)
    if data is None:
        return Media(kind, mime, 0, media.display_name or "", getattr(media, "file_uri", None) or "")
    return Media(kind, mime, len(data), media.display_name or "", blake2b(data, digest_size=16).hexdigest())


def _encode_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def read_usage(usage: types.GenerateContentResponseUsageMetadata | None) -> Usage | None:
    """Return what a request took; None if its provider has not said so yet."""
    if usage is None or not usage.prompt_token_count:
        return None
    input_tokens = usage.prompt_token_count + (usage.tool_use_prompt_token_count or 0)
    thought_tokens = usage.thoughts_token_count or 0
    output_tokens = (usage.candidates_token_count or 0) + thought_tokens
    return Usage(input_tokens, output_tokens, usage.cached_content_token_count or 0, 0, thought_tokens)


def write_own_content(original: types.Content, given: Message, shown: Message) -> types.Content:
    """Return ``original`` with the texts that ``shown`` has in place of its own; itself if there are none.

    The parts belong to the session too, so they are copied and never changed.
    """
    if shown == given:
        return original
    parts = list(original.parts or ())
    if len(shown.parts) != len(given.parts):
        kept_parts = []
        for shown_part, place in match_kept_parts(given.parts, shown.parts):
            kept_parts.append(_write_part(shown_part) if place is None else parts[place])
        return original.model_copy(update={"parts": kept_parts})
    new_parts = []
    for part, given_part, shown_part in zip(parts, given.parts, shown.parts, strict=True):
        new_parts.append(part if shown_part == given_part else _rewrite_part(part, given_part, shown_part))
    return original.model_copy(update={"parts": new_parts})


def _rewrite_part(part: types.Part, given: Part, shown: Part) -> types.Part:
    """Return ``part`` as it is ``shown``; a signature stays with it."""
    if isinstance(shown, Text) and part.text:
        return part.model_copy(update={"text": shown.text})
    if isinstance(shown, ToolResult) and isinstance(given, ToolResult) and part.function_response:
        response = _rewrite_response(part.function_response, given, shown)
        return part.model_copy(update={"function_response": response})
    return _write_part(shown)


def _rewrite_response(response: types.FunctionResponse, given: ToolResult, shown: ToolResult) -> types.FunctionResponse:
    """Return a function's response with the text that is shown, and those of its pictures that are."""
    given_media = [part for part in given.content if not isinstance(part, Text)]
    kept_parts = []
    for part, media in zip(response.parts or (), given_media, strict=True):
        if media in shown.content:
            kept_parts.append(part)
    new_response = _make_response(shown)
    return response.model_copy(update={"response": new_response, "parts": kept_parts or None})


def _make_response(result: ToolResult) -> dict[str, str]:
    return {"error" if result.is_error else "result": get_result_text(result)}


def write_new_content(message: Message) -> types.Content:
    """Return a message that the session does not have: an extract, or what takes the place of older messages."""
    role = "model" if message.role == "assistant" else "user"
    return types.Content(role=role, parts=[_write_part(part) for part in message.parts])


def _write_part(part: Part) -> types.Part:
    if isinstance(part, ToolCall):
        call_id = None if "#" in part.id else part.id
        call = types.FunctionCall(id=call_id, name=part.name, args=json.loads(part.arguments))
        return types.Part(function_call=call)
    if isinstance(part, ToolResult):
        call_id = None if "#" in part.call_id else part.call_id
        response = types.FunctionResponse(id=call_id, name=part.name, response=_make_response(part))
        return types.Part(function_response=response)
    if isinstance(part, Text | Thinking):
        return types.Part(text=part.text)
    return types.Part(text=format_part_placeholder(part))
