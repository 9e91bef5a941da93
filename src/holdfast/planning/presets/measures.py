"""Measures: how large a policy takes a message, and a request, to be; each tool counts in its own way."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.cutting import sound
from holdfast.planning.builder import Draft
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import messages_at, slot_after

IMAGE_CHARS = 4_800
"""Characters that pi counts for a picture, which makes 1,200 tokens of it. [P]"""


# -- messages ----------------------------------------------------------------------------------------------------------


def estimate_tokens(message: Message, chars_per_token: int = 4) -> int:
    """Return the tokens of ``message`` as pi estimates them: characters over four, rounded up."""
    return math.ceil(sum(map(_chars, message.parts)) / max(1, chars_per_token))


def json_tokens(message: Message) -> int:
    """Return the tokens of ``message`` as opencode estimates them: characters of its JSON over four, rounded."""
    body = {"role": message.role, "content": [_block(part) for part in message.parts]}
    return math.floor(utf16(msgspec.json.encode(body).decode(errors="replace")) / 4 + 0.5)


def text_tokens(text: str) -> int:
    """Return the tokens of ``text`` as opencode estimates them: characters over four, rounded."""
    return math.floor(utf16(text) / 4 + 0.5)


def utf16(text: str) -> int:
    """Return the length of ``text`` as JavaScript tells it: what lies beyond the first plane counts twice."""
    return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)


def _chars(part: Part) -> int:
    if isinstance(part, Text | Thinking):
        return utf16(part.text)
    if isinstance(part, ToolCall):
        return utf16(part.name) + utf16(_compact(part.arguments))
    if isinstance(part, ToolResult):
        return sum(map(_chars, part.content))
    return IMAGE_CHARS if isinstance(part, Media) else len(part.raw or b"")


def _compact(arguments: str) -> str:
    """Return JSON as JavaScript writes it, without blanks between; what is no JSON stays."""
    value = _value(arguments)
    return arguments if value is arguments else msgspec.json.encode(value).decode()


def _value(arguments: str) -> object:
    """Return what JSON says; what is no JSON as it is."""
    try:
        return msgspec.json.decode(arguments)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return arguments


def _block(part: Part) -> dict[str, object]:
    """Return a part in the form in which opencode hands it to a model's library."""
    if isinstance(part, Text | Thinking):
        return {"type": "text" if isinstance(part, Text) else "reasoning", "text": sound(part.text)}
    if isinstance(part, ToolCall):
        given = _value(part.arguments)
        return _of_tool("tool-call", part.id, part.name) | {
            "input": sound(part.arguments) if given is part.arguments else given
        }
    if isinstance(part, ToolResult):
        said = {"type": "content", "value": [_block(inner) for inner in part.content]}
        return _of_tool("tool-result", part.call_id, part.name) | {"output": said}
    if isinstance(part, Media):
        return {"type": "file", "mediaType": part.mime, "data": sound(part.source)}
    return {"type": part.kind, "raw": part.raw}


def _of_tool(kind: str, id_: str, name: str) -> dict[str, object]:
    return {"type": kind, "toolCallId": sound(id_), "toolName": sound(name)}


# -- requests ----------------------------------------------------------------------------------------------------------


class Estimate(Struct, frozen=True):
    """A request by usage and characters: what the last answer told, and what came behind it."""

    usage: int
    trailing: int
    answer: int = -1
    """Slot of the answer that told it; -1 where none counts."""

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.usage + self.trailing


def usage_estimate(branch: Branch, chars_per_token: int = 4) -> Estimate:
    """Return the size of what ``branch`` shows as pi estimates it: the usage of the last good answer, and characters.

    Usage from before the last compaction, of another model or of another beginning counts for nothing; then
    everything that is shown is estimated.
    """
    used = branch.used if branch.anchor is not None else None
    if used is not None:
        return Estimate(used.tokens, total_from(branch, used.slots, Tokens(chars_per_token)), used.slots - 1)
    return Estimate(0, total_shown(branch, Tokens(chars_per_token)))


class Tokens(Struct, frozen=True):
    """The measure of ``estimate_tokens``."""

    chars_per_token: int

    def __call__(self, message: Message) -> int:
        """Return the tokens of ``message``."""
        return estimate_tokens(message, self.chars_per_token)


def request_size(draft: Draft) -> int:
    """Return the size of the request as planned, as this policy measures it; -1 where nothing tells it."""
    return _MEASURES[draft.settings.measure](draft)


def _by_request(draft: Draft) -> int:
    """The exact request to be sent."""
    return draft.at_most


def _by_usage(draft: Draft) -> int:
    """The last good answer's usage, its output included; nothing before there is one."""
    used = draft.branch.used
    return -1 if used is None else used.tokens


def _by_usage_and_chars(draft: Draft) -> int:
    """The last good answer's usage and characters for what came later; without usage the frame and characters."""
    found = usage_estimate(draft.branch, draft.settings.chars_per_token)
    return found.tokens + (draft.room.frame if found.answer < 0 else 0)


_MEASURES: dict[str, Callable[[Draft], int]] = {
    "request": _by_request,
    "usage": _by_usage,
    "usage+chars": _by_usage_and_chars,
}


# -- what is shown -----------------------------------------------------------------------------------------------------


def shown_messages(branch: Branch, start: int) -> list[Message]:
    """Return the messages from slot ``start`` on as the projection shows them, one for each slot."""
    if not branch.edits:
        return branch.messages.slice(start)
    slots = [(index, messages_at(branch, index)) for index in range(start, len(branch.slots))]
    return [found[0] if len(found) == 1 else branch.messages[index] for index, found in slots]


def shown_parts(branch: Branch, index: int) -> dict[int, Part]:
    """Return by its place what is shown of each part of a slot; nothing of those for which not one other stands."""
    put = {edit.span.part: edit.put for edit in branch.edits.get(index, ())}
    parts = enumerate(branch.messages[index].parts if None not in put else ())
    shown = {place: put.get(place, (part,)) for place, part in parts}
    return {place: one[0] for place, one in shown.items() if len(one) == 1 and not isinstance(one[0], Message)}


def total_shown(branch: Branch, measure: Callable[[Message], int]) -> int:
    """Return the sum of ``measure``, as ``Seq.total`` takes it, over the messages of the projection."""
    summary = branch.compaction.summary if branch.compaction is not None else None
    first = [*branch.messages.slice(0, branch.pinned), *([] if summary is None else [summary])]
    return sum(map(measure, first)) + total_from(branch, branch.keep, measure)


def total_from(branch: Branch, start: int, measure: Callable[[Message], int]) -> int:
    """Return the same of what stands for the slots from ``start`` on; only what is new or edited is measured."""
    total = branch.messages.total(measure, start)
    after = start
    for index, _ in branch.edits.find_from(start):
        if index >= after:
            after = slot_after(branch, index)
            total += sum(map(measure, messages_at(branch, index)))
            total -= sum(map(measure, branch.messages.slice(index, after)))
    return total
