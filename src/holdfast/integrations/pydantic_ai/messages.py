"""Messages of Pydantic AI in our terms, and what a request shows of them in Pydantic AI's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import pydantic_core
from msgspec import Raw
from pydantic_ai.messages import (
    ERROR_OUTCOMES,
    BinaryContent,
    CapabilityLoadDeltaPart,
    CompactionPart,
    FilePart,
    FileUrl,
    ImageUrl,
    InstructionBaselinePart,
    InstructionDeltaPart,
    LoadCapabilityCallPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelSettingsDeltaPart,
    NativeToolSearchReturnPart,
    RetryFeedbackPart,
    RetryPromptPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    ToolSearchReturnPart,
    UserPromptPart,
)

from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.agent_history import GivenMessage
from holdfast.integrations.common.parts import match_kept_parts
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.state.entries import Usage

RECORD_TYPES = (
    CapabilityLoadDeltaPart,
    InstructionBaselinePart,
    InstructionDeltaPart,
    ModelSettingsDeltaPart,
    ToolAvailabilityDeltaPart,
)
"""Parts in which Pydantic AI keeps its own books: it adds them to a request after we have seen it, and needs
them in every request that follows."""


ModelMessagePart: TypeAlias = ModelRequestPart | ModelResponsePart


class _Group(NamedTuple):
    """Parts of one message of Pydantic AI that are one message in our terms."""

    message_index: int
    parts: list[Any]
    message: Message
    usage: Usage | None = None


class GivenHistory(NamedTuple):
    """The messages of Pydantic AI in our terms."""

    groups: list[_Group]
    system_parts: list[SystemPromptPart]
    """The system prompt at the beginning, which every request shows."""
    group_counts: Counter[int]
    """How many groups each message has, by its index."""

    def list_given_messages(self) -> list[GivenMessage]:
        """Return the messages, each with what its answer took."""
        return [GivenMessage(group.message, group.usage) for group in self.groups]


def read_history(messages: Sequence[ModelMessage]) -> GivenHistory:
    """Return the messages in our terms; those of a request may be several."""
    system_parts: list[SystemPromptPart] = []
    if messages and isinstance(messages[0], ModelRequest):
        system_parts += takewhile(_is_standing_prompt, messages[0].parts)
    groups: list[_Group] = []
    for index, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            groups.append(_read_response(index, message))
        else:
            groups += _read_request(index, message.parts[len(system_parts) :] if index == 0 else message.parts)
    return GivenHistory(groups, system_parts, Counter([group.message_index for group in groups]))


def _is_standing_prompt(part: ModelMessagePart) -> TypeGuard[SystemPromptPart]:
    return isinstance(part, SystemPromptPart) and not _is_record(part)


def _is_record(part: ModelMessagePart) -> bool:
    """Return whether Pydantic AI alone decides what becomes of a part.

    A system prompt for one request is one: the model is not shown it again, so no extract may repeat it.
    """
    if isinstance(part, SystemPromptPart):
        return bool(part.scope == "request")
    return isinstance(part, RECORD_TYPES)


def _read_request(message_index: int, parts: Sequence[ModelRequestPart]) -> list[_Group]:
    """Return the messages of a request: its tool results, then what the user and the framework say, in order."""
    spoken_parts = [part for part in parts if not _is_record(part)]
    result_parts = [part for part in spoken_parts if _is_result(part)]
    other_parts = [part for part in spoken_parts if not _is_result(part)]
    groups: list[_Group] = []
    if result_parts:
        results = tuple([_read_result(part) for part in result_parts])
        groups.append(_Group(message_index, result_parts, Message("tool", results)))
    for is_system, run in groupby(other_parts, lambda part: isinstance(part, SystemPromptPart)):
        run_parts = list(run)
        read_parts = tuple(read_part for part in run_parts for read_part, _ in _read_user_part(part))
        groups.append(_Group(message_index, run_parts, Message("system" if is_system else "user", read_parts)))
    # An agent that is run without a prompt sends a request without parts. It must not get lost: it may be the last.
    return groups or [_Group(message_index, [], Message.from_text("user", ""))]


def _is_result(part: ModelRequestPart) -> TypeGuard[ToolReturnPart | RetryPromptPart]:
    return isinstance(part, ToolReturnPart) or (isinstance(part, RetryPromptPart) and part.tool_name is not None)


def _read_result(part: ToolReturnPart | RetryPromptPart) -> ToolResult:
    content = tuple(_read_item(item) for item in _list_result_items(part))
    is_error = isinstance(part, RetryPromptPart) or part.outcome in ERROR_OUTCOMES
    return ToolResult(part.tool_call_id, part.tool_name or "", content, is_error)


def _list_result_items(part: ToolReturnPart | RetryPromptPart) -> list[Any]:
    """Return the texts and files of a result; anything else that a tool has returned is JSON text."""
    if isinstance(part, RetryPromptPart):
        return [part.model_response()]
    return list(part.content_items(mode="str", wrap_if_error=False))


def _read_user_part(part: ModelRequestPart) -> list[tuple[Text | Media | Opaque, Any]]:
    """Return each thing that a part says in our terms, and Pydantic AI's own object for it."""
    if isinstance(part, UserPromptPart):
        items = [part.content] if isinstance(part.content, str) else part.content
        return [(_read_item(item), item) for item in items]
    if isinstance(part, RetryFeedbackPart | RetryPromptPart):
        return [(Text(part.model_response()), part)]
    if isinstance(part, SystemPromptPart | CompactionPart) and part.content is not None:
        return [(Text(part.content), part)]
    return [(_read_unknown(part.part_kind, part), part)]


def _read_item(item: Any) -> Text | Media | Opaque:
    """Return an item of a prompt or of a tool result."""
    if isinstance(item, str):
        return Text(item)
    if isinstance(item, TextContent):
        return Text(item.content)
    if isinstance(item, BinaryContent):
        kind = "image" if item.is_image else "document"
        # The bytes stay where they are, in the framework's history.
        return Media(kind, item.media_type, len(item.data), item.identifier, form="base64")
    if isinstance(item, FileUrl):
        return Media("image" if isinstance(item, ImageUrl) else "document", "", 0, "", item.url, form="url")
    return _read_unknown(getattr(item, "kind", "unknown"), item)


def _read_unknown(kind: str, value: Any) -> Opaque:
    """Return something that Holdfast does not interpret: it is counted, and shown as it is or not at all."""
    return Opaque(kind, Raw(pydantic_core.to_json(value, bytes_mode="base64", fallback=str)))


def _read_response(message_index: int, response: ModelResponse) -> _Group:
    parts = tuple(_read_response_part(part, response.model_name or "") for part in response.parts)
    message = Message("assistant", parts or (Text(""),))
    return _Group(message_index, list(response.parts), message, _read_usage(response))


def _read_response_part(part: ModelResponsePart, model_name: str) -> Part:
    if isinstance(part, TextPart):
        return Text(part.content)
    if isinstance(part, ThinkingPart):
        signature = ProviderSignature(part.provider_name or "", model_name, part.signature) if part.signature else None
        return Thinking(part.content, signature)
    if isinstance(part, ToolCallPart):
        return ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())
    if isinstance(part, FilePart):
        return _read_item(part.content)
    return _read_unknown(part.part_kind, part)


def _read_usage(response: ModelResponse) -> Usage | None:
    usage = response.usage
    if not usage.input_tokens:
        return None
    return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)


def write_history(
    whole: Sequence[ModelMessage], given_history: GivenHistory, shown_messages: Sequence[ShownMessage]
) -> list[ModelMessage]:
    """Return the messages that a request shows: Pydantic AI's own where nothing is left out."""
    messages: list[ModelMessage] = []
    shown_indexes: set[int] = set()
    for message_index, run in groupby(shown_messages, lambda shown: _find_message_index(given_history, shown)):
        if message_index is None:
            messages += [_write_new_message(shown.message) for shown in run]
        else:
            shown_indexes.add(message_index)
            messages.append(_write_own_message(whole[message_index], message_index, given_history, list(run)))
    system_parts = [] if 0 in shown_indexes else given_history.system_parts
    left_out_parts: list[ModelMessagePart] = []
    for index, message in enumerate(whole):
        if index not in shown_indexes:
            left_out_parts += message.parts[len(given_history.system_parts) :] if index == 0 else message.parts
    return _put_first(messages, system_parts, _list_lasting_records(left_out_parts))


def _find_message_index(given_history: GivenHistory, shown: ShownMessage) -> int | None:
    return None if shown.index is None else given_history.groups[shown.index].message_index


def _list_records(request: ModelRequest) -> list[ModelRequestPart]:
    return [part for part in request.parts if _is_record(part)]


def _list_lasting_records(left_out_parts: Sequence[ModelMessagePart]) -> list[ModelRequestPart]:
    """Return what Pydantic AI must still find in a request without these parts, so that no tool and no instruction is
    lost: its records, one for each tool that was found by a search and each capability that was loaded, and what has
    become of system prompts that change.
    """
    records: list[ModelRequestPart] = []
    changes: dict[object, InstructionDeltaPart] = {}
    """The last change of each instruction; those before it are no longer true."""
    statements: dict[str, SystemPromptPart] = {}
    """The last statement of each system prompt whose changes are appended."""
    id_by_call: dict[str, str] = {}
    for part in left_out_parts:
        if isinstance(part, SystemPromptPart):
            if part.context_id and part.scope == "conversation":
                statements[part.context_id] = part
        elif isinstance(part, InstructionDeltaPart):
            changes[part.id] = part
        elif isinstance(part, RECORD_TYPES):
            records.append(part)
        elif isinstance(part, ToolSearchReturnPart | NativeToolSearchReturnPart):
            found_names = [found["name"] for found in part.content["discovered_tools"]]
            records.append(ToolAvailabilityDeltaPart(tools_added=found_names))
        elif isinstance(part, LoadCapabilityCallPart) and part.capability_id:
            id_by_call[part.tool_call_id] = part.capability_id
        elif isinstance(part, LoadCapabilityReturnPart) and part.tool_call_id in id_by_call:
            records.append(CapabilityLoadDeltaPart(loaded=[id_by_call[part.tool_call_id]]))
    return [*statements.values(), *records, *changes.values()]


def _put_first(
    messages: list[ModelMessage], system_parts: Sequence[SystemPromptPart], records: Sequence[ModelRequestPart]
) -> list[ModelMessage]:
    """Return ``messages`` with ``system_parts`` at their beginning, and ``records`` after the system prompt."""
    if not system_parts and not records:
        return messages
    if messages and isinstance(messages[0], ModelRequest):
        own_parts = messages[0].parts
        own_system_parts = list(takewhile(_is_standing_prompt, own_parts))
        parts = [*system_parts, *own_system_parts, *records, *own_parts[len(own_system_parts) :]]
        return [replace(messages[0], parts=parts), *messages[1:]]
    return [ModelRequest(parts=[*system_parts, *records]), *messages]


def _write_own_message(
    original: ModelMessage, message_index: int, given_history: GivenHistory, shown_messages: Sequence[ShownMessage]
) -> ModelMessage:
    """Return ``original`` with what is shown of it; itself if that is all."""
    groups = [given_history.groups[shown.index] for shown in shown_messages if shown.index is not None]
    shown_groups = list(zip(groups, [shown.message for shown in shown_messages], strict=True))
    has_all_groups = given_history.group_counts[message_index] == len(groups)
    if has_all_groups and all(group.message == shown for group, shown in shown_groups):
        return original
    if isinstance(original, ModelResponse):
        (group, shown), *_ = shown_groups
        return replace(original, parts=_write_response_parts(group, shown))
    parts: list[ModelRequestPart] = [*given_history.system_parts] if message_index == 0 else []
    for group, shown in shown_groups:
        if group.message == shown or shown.role == "system":
            parts += group.parts
        elif shown.role == "tool":
            parts += _write_results(group, shown)
        else:
            parts += _write_user_parts(group, shown)
    return replace(original, parts=[*parts, *_list_records(original)])


def _write_results(group: _Group, shown: Message) -> list[ModelRequestPart]:
    parts: list[ModelRequestPart] = []
    for part, given_result, shown_result in zip(group.parts, group.message.results, shown.results, strict=True):
        # Pydantic AI reads the results of its own tools (a search for tools, a loaded capability) back.
        if given_result == shown_result or type(part) is not ToolReturnPart:
            parts.append(part)
            continue
        content = _choose_items(given_result.content, _list_result_items(part), shown_result.content)
        has_only_texts = all(isinstance(item, str) for item in content)
        parts.append(replace(part, content="\n".join(content) if has_only_texts else content))
    return parts


def _write_user_parts(group: _Group, shown: Message) -> list[ModelRequestPart]:
    own_items = [item for part in group.parts for _, item in _read_user_part(part)]
    chosen_items = _choose_items(group.message.parts, own_items, shown.parts)
    parts: list[ModelRequestPart] = []
    for is_part, run in groupby(chosen_items, lambda item: hasattr(item, "part_kind")):
        items = list(run)
        if is_part:
            parts += items
        else:
            is_text = len(items) == 1 and isinstance(items[0], str)
            parts.append(UserPromptPart(items[0] if is_text else items))
    return parts


def _choose_items(given_parts: Sequence[Part], own_items: Sequence[Any], shown_parts: Sequence[Part]) -> list[Any]:
    """Return Pydantic AI's own object for each part that is as it was, and the text of each that is new."""
    items: list[Any] = []
    for part, place in match_kept_parts(given_parts, shown_parts):
        if place is not None:
            items.append(own_items[place])
        elif isinstance(part, Text):
            items.append(part.text)
    return items


def _write_response_parts(group: _Group, shown: Message) -> list[ModelResponsePart]:
    # An answer without parts is one with an empty text in our terms.
    own_parts = group.parts or [TextPart("")]
    # All of its calls are shown, in their order.
    own_calls = iter([part for part in own_parts if isinstance(part, ToolCallPart)])
    parts: list[ModelResponsePart] = []
    for part, place in match_kept_parts(group.message.parts, shown.parts):
        if isinstance(part, ToolCall):
            own_call = next(own_calls)
            parts.append(own_call if place is not None else replace(own_call, args=part.arguments))
        elif place is not None:
            parts.append(own_parts[place])
        elif isinstance(part, Text):
            parts.append(TextPart(part.text))
    return parts


def _write_new_message(message: Message) -> ModelMessage:
    """Return a message that Pydantic AI does not have: an extract, or what takes the place of older messages."""
    if message.role == "assistant":
        calls = [ToolCallPart(call.name, call.arguments, call.id) for call in message.calls]
        return ModelResponse(parts=[*([TextPart(message.text)] if message.text else ()), *calls])
    parts: list[ModelRequestPart] = []
    for result in message.results:
        parts.append(ToolReturnPart(result.name, get_result_text(result), result.call_id))
    if message.text:
        parts.append(UserPromptPart(message.text))
    return ModelRequest(parts=parts)
