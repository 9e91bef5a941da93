"""One message of a conversation, and the questions everybody asks about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import is_
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.parts import Media, Opaque, Part, Text, ToolCall, ToolResult

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""Who speaks. A message that holds nothing but tool results is a ``tool`` message, whatever its API calls it."""
ROLES: tuple[str, ...] = get_args(Role)


class Message(Struct, frozen=True, tag="message", gc=False):
    """An immutable message. Identity, parent and time belong to the log entry that holds it."""

    role: Role
    parts: tuple[Part, ...] = ()

    @classmethod
    def from_text(cls, role: Role, text: str) -> Message:
        """Return a message that says ``text`` and nothing else.

        Raises ``ValueError`` for a role that there is not, ``TypeError`` for what is no text.
        """
        if role not in ROLES:
            raise ValueError(f"role is {role!r}; the roles are {', '.join(ROLES)}")
        if not isinstance(text, str):
            raise TypeError(f"text is of type {type(text).__name__}; give words, or make Message(role, parts) of parts")
        return cls(role, (Text(text),))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in this message, in order."""
        return tuple([p for p in self.parts if type(p) is ToolCall])

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results in this message, in order."""
        return tuple([p for p in self.parts if type(p) is ToolResult])

    @property
    def text(self) -> str:
        """The message's own words: its text parts, joined by newlines.

        Those that a model says one behind the other are pieces of one text, parted by a signature or a citation.
        """
        if self.role == "assistant":
            runs = groupby(self.parts, type)
            return "\n".join(["".join([p.text for p in run if type(p) is Text]) for kind, run in runs if kind is Text])
        return "\n".join([p.text for p in self.parts if type(p) is Text])

    @property
    def is_turn_start(self) -> bool:
        """Whether a user speaks here: a user message with more in it than tool results."""
        return self.role == "user" and any(type(p) is not ToolResult for p in self.parts)


def collect_media_in_messages(*messages: Message) -> list[Media]:
    """Return the media in messages, those inside tool results too."""
    return collect_media_in_parts(*[part for message in messages for part in message.parts])


def collect_media_in_parts(*parts: Part) -> list[Media]:
    """Return the media in parts: themselves, or those inside a tool result."""
    candidates = [part for part in parts if type(part) is ToolResult or type(part) is Media]
    return [
        inner
        for part in candidates
        for inner in (part.content if type(part) is ToolResult else (part,))
        if type(inner) is Media
    ]


def replace_all_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return ``message`` with other parts, one for each; the same object where all of them are the same."""
    return message if all(map(is_, parts, message.parts)) else Message(message.role, tuple(parts))


def replace_media_with_text(part: Part, describe: Callable[[Media], str]) -> Part:
    """Return ``part`` with words in place of its media, but those for which ``describe`` has none."""
    if type(part) is Media:
        return Text(text) if (text := describe(part)) else part
    if type(part) is not ToolResult or not any(map(describe, collect_media_in_parts(part))):
        return part
    content = tuple(
        Text(text) if type(inner) is Media and (text := describe(inner)) else inner for inner in part.content
    )
    return replace(part, content=content, raw=None)


def count_message_chars(message: Message) -> int:
    """Return the characters of all texts in a message, with a line end for each that stands in a result."""
    total = 0
    for part in message.parts:
        if type(part) is Text:
            total += len(part.text)
        elif type(part) is ToolResult:
            for inner in part.content:
                if type(inner) is Text:
                    total += len(inner.text) + 1
    return total


def get_result_text(result: ToolResult) -> str:
    """Return the words of a tool result, its text parts joined by newlines."""
    return "\n".join([p.text for p in result.content if type(p) is Text])


def get_part_text(part: Part) -> str:
    """Return the words of a text or of a result; nothing of any other part."""
    if type(part) is Text:
        return part.text
    return get_result_text(part) if type(part) is ToolResult else ""


def format_part_placeholder(part: Media | Opaque) -> str:
    """Return the words that stand for a part that is not sent: what it is, and its name where it has one."""
    if type(part) is Media:
        name = f": {part.name}" if part.name else ""
        return f"[Attached {part.mime or part.kind}{name}]"
    return f"[Attached {part.kind}]"
