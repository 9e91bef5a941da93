"""Messages of smolagents in our terms, and what is shown of ours as messages of smolagents.

smolagents sends a step of an agent as up to five messages: the text of the answer, its tool calls written as a Python
list, pictures, the observation, and an error. In our terms the first two are one answer, and the others are the results
of its calls: otherwise an observation would count as something that the user said, and could be parted from its call.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from msgspec import Raw
from smolagents.models import ChatMessage, MessageRole

from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.common.parts import match_kept_parts
from holdfast.messages.message import Message, Role, get_result_text
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolCall, ToolResult

CALLS_PREFIX = "Calling tools:\n"
OBSERVATION_PREFIX = "Observation:\n"
ERROR_PREFIX = "Error:\n"
CALL_ID_PREFIX = "Call id: "
PLAN_REPLY = "Now proceed and carry out this plan."
"""What smolagents lets the user say after each plan."""
CODE_TOOL_NAME = "python_interpreter"
"""What a ``CodeAgent`` calls with its code."""

MAX_PARSED_CALLS = 2_000
"""Texts with tool calls that are kept parsed: those of some long conversations. Chosen by judgement."""


class MessageGroup(NamedTuple):
    """Messages of smolagents that are one message in our terms."""

    originals: tuple[ChatMessage | dict[str, Any], ...]
    message: Message
    is_plan: bool = False


class GivenHistory(NamedTuple):
    """The messages of a request."""

    system_messages: tuple[ChatMessage | dict[str, Any], ...]
    """Those at the beginning, which every request shows."""
    groups: list[MessageGroup]

    @property
    def system_text(self) -> str:
        """The system prompt."""
        return "\n".join(_get_text(message) for message in self.system_messages)


# -- from smolagents ---------------------------------------------------------------------------------------------------


def read_messages(messages: Sequence[ChatMessage | dict[str, Any]]) -> GivenHistory:
    """Return the messages of a request in our terms."""
    system_count = _find_end(messages, 0, lambda message: _get_role(message) == MessageRole.SYSTEM)
    groups: list[MessageGroup] = []
    used_ids: set[str] = set()
    position = system_count
    while position < len(messages):
        role = _get_role(messages[position])
        if role in (MessageRole.ASSISTANT, MessageRole.TOOL_CALL):
            step_groups = _read_step(messages, position, used_ids, step_number=len(groups))
        else:
            message = messages[position]
            our_role: Role = "system" if role == MessageRole.SYSTEM else "user"
            step_groups = [MessageGroup((message,), Message(our_role, tuple(_read_content(message))))]
        groups += step_groups
        position += sum(len(group.originals) for group in step_groups)
    return GivenHistory(tuple(messages[:system_count]), groups)


def _read_step(messages: Sequence[Any], start: int, used_ids: set[str], step_number: int) -> list[MessageGroup]:
    """Return the answer at ``start``, and the results of its calls if there are any."""
    end = start + 1
    if _get_role(messages[start]) == MessageRole.ASSISTANT and _has_role(messages, end, MessageRole.TOOL_CALL):
        end += 1
    originals = tuple(messages[start:end])
    has_calls = _get_role(originals[-1]) == MessageRole.TOOL_CALL
    results = messages[end : _find_end_of_results(messages, end, has_calls=has_calls)]
    parts: list[Part] = []
    if _get_role(originals[0]) == MessageRole.ASSISTANT:
        parts += _read_content(originals[0])
    is_plan = bool(results) and _is_plan_reply(results[0])
    calls: list[ToolCall] = []
    if has_calls:
        calls = _read_calls(_get_text(originals[-1]), step_number)
    elif results:
        # An answer that could not be parsed, or a plan: what smolagents says to it is no word of the user.
        calls = [ToolCall(f"step_{step_number}", "plan" if is_plan else "step")]
    calls = _make_ids_unique(calls, used_ids)
    answer = MessageGroup(originals, Message("assistant", (*parts, *calls)), is_plan)
    return [answer, _read_results(results, calls)] if results else [answer]


def _find_end_of_results(messages: Sequence[Any], start: int, *, has_calls: bool) -> int:
    """Return where the pictures, observations and errors end that belong to the answer before ``start``."""
    if not has_calls and start < len(messages) and _is_plan_reply(messages[start]):
        return start + 1
    pictures_end = _find_end(messages, start, _has_only_pictures)
    responses_end = _find_end(messages, pictures_end, lambda message: _get_role(message) == MessageRole.TOOL_RESPONSE)
    has_responses = responses_end > pictures_end
    return responses_end if has_calls or has_responses else start


def _read_calls(text: str, step_number: int) -> list[ToolCall]:
    """Return the calls of a step; one call with the text if it is not what smolagents writes."""
    calls = _parse_calls(text)
    return list(calls) or [ToolCall(f"step_{step_number}", "tools", _write_arguments("tools", text))]


# Parsing was half the time of planning: each request has the calls of all steps again.
@lru_cache(maxsize=MAX_PARSED_CALLS)
def _parse_calls(text: str) -> tuple[ToolCall, ...]:
    """Return the calls that smolagents has written as a Python list; none if the text is no such list."""
    try:
        calls: list[ToolCall] = []
        for call in ast.literal_eval(text.removeprefix(CALLS_PREFIX)):
            name = str(call["function"]["name"])
            calls.append(ToolCall(str(call["id"]), name, _write_arguments(name, call["function"]["arguments"])))
        return tuple(calls)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return ()


def _write_arguments(name: str, arguments: Any) -> str:
    """Return the arguments of a call as the text of a JSON object."""
    if not isinstance(arguments, dict):
        arguments = {_get_argument_name(name): arguments}
    return json.dumps(arguments, ensure_ascii=False, default=str)


def _get_argument_name(name: str) -> str:
    """Return what we call the argument of a tool that takes no named ones."""
    return "code" if name == CODE_TOOL_NAME else "arguments"


def _make_ids_unique(calls: Sequence[ToolCall], used_ids: set[str]) -> list[ToolCall]:
    """Return ``calls`` with ids that no call before has: some servers count from 0 again in each answer."""
    unique_calls: list[ToolCall] = []
    for call in calls:
        id_, number = call.id, 1
        while id_ in used_ids:
            number += 1
            id_ = f"{call.id}#{number}"
        used_ids.add(id_)
        unique_calls.append(ToolCall(id_, call.name, call.arguments))
    return unique_calls


def _read_results(originals: Sequence[Any], calls: Sequence[ToolCall]) -> MessageGroup:
    """Return the results of ``calls``: all in that of the first, since smolagents joins the observations of a step."""
    content: list[Text | Media | Opaque] = []
    is_error = False
    for original in originals:
        for part in _read_content(original):
            if isinstance(part, Text):
                is_error = is_error or part.text.startswith((ERROR_PREFIX, CALL_ID_PREFIX))
                content.append(Text(part.text.removeprefix(OBSERVATION_PREFIX)))
            else:
                content.append(part)
    results: list[ToolResult] = []
    for call in calls:
        results.append(ToolResult(call.id, call.name, () if results else tuple(content), is_error))
    return MessageGroup(tuple(originals), Message("tool", tuple(results)))


def _read_content(message: Any) -> list[Text | Media | Opaque]:
    """Return one part for each element of the content."""
    return [_read_element(element) for element in _list_elements(message)]


def _read_element(element: dict[str, Any]) -> Text | Media | Opaque:
    kind = str(element.get("type"))
    if kind == "text":
        return Text(str(element["text"]))
    if kind == "image":
        return _read_image(element["image"])
    if kind == "image_url":
        link = element["image_url"]
        url = str(link.get("url") if isinstance(link, dict) else link)
        return Media("image", "image/*", len(url), source=url if url.startswith("http") else _compute_digest(url))
    return Opaque(kind, Raw(json.dumps(element, default=str, sort_keys=True).encode()))


def _read_image(image: Any) -> Media:
    """Return a picture by the digest of its pixels: the agent keeps the picture itself."""
    if hasattr(image, "tobytes"):
        pixels = image.tobytes()
        return Media("image", "image/png", len(pixels), source=_compute_digest(pixels))
    return Media("image", "image/png", 1, source=_compute_digest(str(image)))


def _compute_digest(data: str | bytes) -> str:
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return blake2b(raw, digest_size=16).hexdigest()


def _get_role(message: Any) -> MessageRole:
    role = message["role"] if isinstance(message, dict) else message.role
    return role if isinstance(role, MessageRole) else MessageRole(role)


def _list_elements(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else message.content
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or ())


def _get_text(message: Any) -> str:
    return "\n".join(str(element["text"]) for element in _list_elements(message) if element.get("type") == "text")


def _has_role(messages: Sequence[Any], index: int, role: MessageRole) -> bool:
    return index < len(messages) and _get_role(messages[index]) == role


def _has_only_pictures(message: Any) -> bool:
    elements = _list_elements(message)
    is_user = _get_role(message) == MessageRole.USER
    return is_user and bool(elements) and all(element.get("type") in ("image", "image_url") for element in elements)


def _is_plan_reply(message: Any) -> bool:
    return _get_role(message) == MessageRole.USER and _get_text(message) == PLAN_REPLY


def _find_end(messages: Sequence[Any], start: int, has_property: Callable[[Any], bool]) -> int:
    """Return the index of the first message from ``start`` on that does not have the property."""
    end = start
    while end < len(messages) and has_property(messages[end]):
        end += 1
    return end


# -- to smolagents -----------------------------------------------------------------------------------------------------


def write_messages(given: GivenHistory, shown_messages: Sequence[ShownMessage]) -> list[Any]:
    """Return the messages to send: smolagents' own objects where nothing is left out."""
    messages: list[Any] = [*given.system_messages]
    for shown in shown_messages:
        if shown.index is None:
            messages += _write_new_message(shown.message)
        else:
            messages += _write_group(given.groups[shown.index], shown.message)
    if any(shown.index is None for shown in shown_messages):
        # smolagents joins neighbours of one role, for which their contents must be lists.
        messages = [_make_content_a_list(message) for message in messages]
    return messages


def _write_group(group: MessageGroup, shown: Message) -> list[Any]:
    """Return the messages of ``group`` with the texts that ``shown`` has in place of their own."""
    if shown == group.message or shown.role == "system":
        return list(group.originals)
    if shown.role == "assistant":
        return _write_answer(group, shown)
    if shown.role == "tool":
        return _write_results(group, shown)
    (original,) = group.originals
    return [_write_content(original, group.message.parts, shown.parts)]


def _write_answer(group: MessageGroup, shown: Message) -> list[Any]:
    messages: list[Any] = []
    for original in group.originals:
        if _get_role(original) == MessageRole.TOOL_CALL:
            has_same_calls = shown.calls == group.message.calls
            messages.append(original if has_same_calls else _write_calls(shown.calls))
        else:
            given_parts = [part for part in group.message.parts if not isinstance(part, ToolCall)]
            shown_parts = [part for part in shown.parts if not isinstance(part, ToolCall)]
            if shown_parts:
                messages.append(_write_content(original, given_parts, shown_parts))
    return messages


def _write_calls(calls: Iterable[ToolCall]) -> ChatMessage:
    """Return calls as smolagents writes them."""
    written_calls = []
    for call in calls:
        arguments = json.loads(call.arguments)
        if set(arguments) == {_get_argument_name(call.name)}:
            (arguments,) = arguments.values()
        function = {"name": call.name, "arguments": arguments}
        written_calls.append({"id": call.id, "type": "function", "function": function})
    return _make_message(MessageRole.TOOL_CALL, CALLS_PREFIX + str(written_calls))


def _write_results(group: MessageGroup, shown: Message) -> list[Any]:
    """Return pictures that are still shown, then all texts as one message."""
    given_content = group.message.results[0].content
    shown_content = [part for result in shown.results for part in result.content]
    elements = [element for original in group.originals for element in _list_elements(original)]
    chosen_elements = _choose_elements(given_content, shown_content, elements)
    pictures = [element for element in chosen_elements if element["type"] != "text"]
    text = "\n".join(str(element["text"]) for element in chosen_elements if element["type"] == "text")
    last_original = group.originals[-1]
    role = _get_role(last_original)
    is_observation = any(_get_text(original).startswith(OBSERVATION_PREFIX) for original in group.originals)
    if is_observation and not text.startswith(OBSERVATION_PREFIX):
        text = OBSERVATION_PREFIX + text
    messages: list[Any] = []
    if pictures:
        messages.append(ChatMessage(MessageRole.USER, pictures))
    if text:
        messages.append(_make_message(role, text))
    return messages


def _write_content(original: Any, given: Sequence[Part], shown: Sequence[Part]) -> Any:
    """Return ``original`` with the content that ``shown`` stands for; itself if that is its own."""
    if list(given) == list(shown):
        return original
    content: list[dict[str, Any]] = []
    for element in _choose_elements(given, shown, _list_elements(original)):
        is_text_after_text = element["type"] == "text" and bool(content) and content[-1]["type"] == "text"
        if is_text_after_text:
            # Models that take plain text only read nothing but the first element.
            content[-1] = {"type": "text", "text": f"{content[-1]['text']}\n{element['text']}"}
        else:
            content.append(element)
    if isinstance(original, dict):
        return {**original, "content": content}
    return replace(original, content=content)


def _choose_elements(
    given: Sequence[Part], shown: Sequence[Part], elements: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return smolagents' own element for each part that is as it was, and a text for each that is new."""
    chosen_elements: list[dict[str, Any]] = []
    for part, place in match_kept_parts(given, shown):
        if place is not None:
            chosen_elements.append(elements[place])
        elif isinstance(part, Text):
            chosen_elements.append({"type": "text", "text": part.text})
    return chosen_elements


def _write_new_message(message: Message) -> list[Any]:
    """Return a message that the agent does not have: an extract, or what takes the place of older messages."""
    messages: list[Any] = []
    if message.text:
        role = MessageRole.ASSISTANT if message.role == "assistant" else MessageRole.USER
        messages.append(_make_message(role, message.text))
    if message.calls:
        messages.append(_write_calls(message.calls))
    if message.results:
        text = "\n".join(get_result_text(result) for result in message.results if result.content)
        messages.append(_make_message(MessageRole.TOOL_RESPONSE, OBSERVATION_PREFIX + text))
    return messages


def _make_message(role: MessageRole, text: str) -> ChatMessage:
    return ChatMessage(role, [{"type": "text", "text": text}])


def _make_content_a_list(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else message.content
    if not isinstance(content, str):
        return message
    elements = [{"type": "text", "text": content}]
    return {**message, "content": elements} if isinstance(message, dict) else replace(message, content=elements)
