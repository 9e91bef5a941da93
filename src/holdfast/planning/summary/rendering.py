"""Rendering: a conversation as labelled text, which is what the writer of a summary reads.

No API's form, no tools, no media, no thinking: a history that no provider would take can still be summarised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message, placeholder, result_text
from holdfast.messages.parts import Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.references import arguments
from holdfast.messages.sized_message import Slot
from holdfast.messages.strip_foreign import words_of
from holdfast.messages.text.cutting import sound
from holdfast.messages.text_runs import parts_said
from holdfast.planning.stages.truncate import is_important
from holdfast.planning.summary.grapheme_cuts import ends

_LABELS = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_TAIL = 0.3
"""Share of a cut result that shows its end, where that looks like an error or an outcome."""
_FORGED = re.compile(r"^([ \t]*)\[(?=(?:system|user|assistant|tool)\b)", re.IGNORECASE | re.MULTILINE)
"""A line in somebody's words that begins like a label of ours."""


class Style(Struct, frozen=True):
    """How long things are told; 0 = whole. The defaults are ours."""

    results: int = 2_000
    """Characters of a result."""
    arguments: int = 2_000
    """Characters of one argument of a call."""
    texts: int = 0
    """Characters of a message's own words."""

    def at_most(self, most: int) -> Style:
        """Return the style with nothing longer than ``most`` characters."""
        short = {name: min(most, getattr(self, name) or most) for name in ("results", "arguments", "texts")}
        return replace(self, **short)


def rendered(head: Iterable[Slot | Message], style: Style = Style()) -> str:
    """Return ``head`` as text: a block for what each message says, its calls, and each result; empty lines between."""
    messages = (one.message if isinstance(one, Slot) else one for one in head)
    return sound("\n\n".join([block for message in messages for block in _blocks(message, style)]))


def _blocks(message: Message, style: Style) -> Iterator[str]:
    """Yield the blocks of one message; results of tools stand before what a user says to them."""
    results = [_result(result, style) for result in message.results]
    if message.role != "assistant":
        yield from filter(None, results)
    said = "\n".join(filter(None, [_words(part, style) for part in parts_said(message)]))
    if said.strip():
        yield f"[{_LABELS[message.role]}]: {said}"
    if message.calls:
        yield f"[Assistant tool calls]: {'; '.join([_call(call, style) for call in message.calls])}"
    if message.role == "assistant":
        yield from filter(None, results)


def _words(part: Part, style: Style) -> str:
    """Return what a part says in plain words; nothing for thinking, and for calls and results, told apart."""
    if isinstance(part, Text):
        return _guarded(_cut(part.text, style.texts))
    if isinstance(part, Thinking | ToolCall | ToolResult):
        return ""
    found = words_of(part) if isinstance(part, Opaque) else ""
    return _guarded(_cut(found or placeholder(part), style.texts or style.results))


def _result(result: ToolResult, style: Style) -> str:
    others = [_words(part, style) for part in result.content if not isinstance(part, Text)]
    told = "\n".join(filter(None, [_guarded(_cut(result_text(result), style.results, _TAIL)), *others]))
    failed = ", failed" if result.is_error else ""
    return f"[Tool result{failed}]: {told}" if told.strip() or failed else ""


# -- calls -------------------------------------------------------------------------------------------------------------


def _call(call: ToolCall, style: Style) -> str:
    """Return a call as ``name(k=json, …)``; arguments that are no object stand as they are."""
    given = arguments(call)
    named = given.items() if isinstance(given, dict) else ()
    told = [f"{name}={_cut(_json(value), style.arguments)}" for name, value in named]
    whole = ", ".join(told) if isinstance(given, dict) else _cut(call.arguments, style.arguments)
    return _guarded(f"{call.name}({whole})")


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, OverflowError, RecursionError):
        return repr(value)


# -- texts -------------------------------------------------------------------------------------------------------------


def _cut(text: str, most: int, tail: float = 0.0) -> str:
    """Return ``text`` in ``most`` characters and a note on how many more there were."""
    if not most or len(text) <= most:
        return text
    head, end = ends(text, most, tail if tail and is_important(text) else 0.0)
    gone = f"[... {len(text) - len(head) - len(end)} more characters truncated]"
    return f"{head}\n\n{gone}\n\n{end}" if end else f"{head}\n\n{gone}"


def _guarded(text: str) -> str:
    """Return ``text`` with a backslash before whatever looks like a label at the start of a line."""
    return _FORGED.sub(r"\1\\[", text)
