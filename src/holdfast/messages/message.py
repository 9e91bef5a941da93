"""One message of a conversation, and questions about it that are asked everywhere."""

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
    """An immutable message. Its identity, parent and time belong to the log entry that holds it."""

    role: Role
    parts: tuple[Part, ...] = ()

    @classmethod
    def from_text(cls, role: Role, text: str) -> Message:
        """Build a message with ``text`` as its only part.

        Raises ``ValueError`` for an unknown role and ``TypeError`` for anything but a string.
        """
        if role not in ROLES:
            raise ValueError(f"role is {role!r}; the roles are {', '.join(ROLES)}")
        if not isinstance(text, str):
            raise TypeError(f"text is of type {type(text).__name__}; give words, or make Message(role, parts) of parts")
        return cls(role, (Text(text),))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in this message, in order."""
        return tuple([part for part in self.parts if type(part) is ToolCall])

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results in this message, in order."""
        return tuple([part for part in self.parts if type(part) is ToolResult])

    @property
    def text(self) -> str:
        """The message's own text: its text parts, joined by newlines.

        Adjacent text parts of an answer are joined without one: they are pieces of one text, cut by a signature or a
        citation.
        """
        # A user's parts are separate inputs (a file, a question), so they are kept on lines of their own.
        if self.role != "assistant":
            return "\n".join([part.text for part in self.parts if type(part) is Text])
        texts: list[str] = []
        for part_type, run in groupby(self.parts, type):
            if part_type is Text:
                texts.append("".join([part.text for part in run if type(part) is Text]))
        return "\n".join(texts)

    @property
    def is_turn_start(self) -> bool:
        """Whether a turn starts here: a user message with anything in it but tool results."""
        return self.role == "user" and any(type(part) is not ToolResult for part in self.parts)


def collect_media_in_messages(*messages: Message) -> list[Media]:
    """Return the media in ``messages``, including those inside tool results."""
    return collect_media_in_parts(*[part for message in messages for part in message.parts])


def collect_media_in_parts(*parts: Part) -> list[Media]:
    """Return the media among ``parts``, including those inside tool results."""
    media: list[Media] = []
    for part in parts:
        if type(part) is Media:
            media.append(part)
        elif type(part) is ToolResult:
            media += [inner for inner in part.content if type(inner) is Media]
    return media


def replace_all_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return ``message`` with ``parts``, one for each of its own; itself if all of them are the same objects."""
    if all(map(is_, parts, message.parts)):
        return message
    return Message(message.role, tuple(parts))


def replace_media_with_text(part: Part, describe: Callable[[Media], str]) -> Part:
    """Return ``part`` with each image or document replaced by its description, if ``describe`` has one for it."""
    if type(part) is Media:
        description = describe(part)
        return Text(description) if description else part
    if type(part) is not ToolResult or not any(map(describe, collect_media_in_parts(part))):
        return part
    content: list[Text | Media | Opaque] = []
    for inner in part.content:
        description = describe(inner) if type(inner) is Media else ""
        content.append(Text(description) if description else inner)
    return replace(part, content=tuple(content), raw=None)


def count_message_chars(message: Message) -> int:
    """Return the number of characters of all texts in a message; texts of results count with a line end each."""
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
    """Return the text of a tool result: its text parts, joined by newlines."""
    return "\n".join([part.text for part in result.content if type(part) is Text])


def get_part_text(part: Part) -> str:
    """Return the text of a text part or a result, or ``""`` for any other part."""
    if type(part) is Text:
        return part.text
    return get_result_text(part) if type(part) is ToolResult else ""


def format_part_placeholder(part: Media | Opaque) -> str:
    """Return the text that is sent in place of a part: its type, and its name if it has one."""
    if type(part) is Media:
        name = f": {part.name}" if part.name else ""
        return f"[Attached {part.mime or part.kind}{name}]"
    return f"[Attached {part.kind}]"
