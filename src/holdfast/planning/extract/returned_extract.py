"""Read an extract of ours that comes back, as the messages that it quotes.

A client that begins a new conversation with the messages of its last request sends our extract as a message of the
user. Quoted as one text, it would lose something with each compaction. Taken apart, the user's words in it are the
user's again and count as when they were said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.extract.previous_summary import is_extract, split_extract
from holdfast.planning.open_work.section import is_open_work_section
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS

_HEADING = re.compile(rf"^## ({'|'.join(map(re.escape, SUMMARY_HEADINGS))})$", re.MULTILINE)
# What stands before each quote of the user or of the user's program, and a line that counts what is not quoted.
_QUOTE_LABEL = re.compile(
    r"^(?:(?P<newest>Newest request of the user, verbatim:\n)|(?P<first>First request of the user, verbatim:\n)|"
    r"(?P<user>User: )|(?P<program>Told by the user's program: )|(?P<notes>Noted by the user's program, at the "
    r"beginning: )|(?P<count>\[(?:\d+ more messages?|parts of messages) of [^\n]*\]$))",
    re.MULTILINE,
)
_BULLET = re.compile(r"^- ", re.MULTILINE)
_FIXED_LINE = re.compile(r"^(?:###? .*|\((?:continue|no messages follow)[^\n]*\))$\n?", re.MULTILINE)


def expand_returned_extracts(head: Sequence[SizedMessage]) -> list[SizedMessage]:
    """Return ``head`` with the messages that an extract of ours quotes in place of each message that holds one."""
    expanded: list[SizedMessage] = []
    for sized_message in head:
        if _holds_extract(sized_message.message):
            expanded += map(build_sized_message, _expand_message(sized_message.message))
        else:
            expanded.append(sized_message)
    return expanded


def count_quoted_messages(head: Sequence[SizedMessage]) -> int:
    """Return how many messages at the start of the expanded ``head`` are quotes of an extract that it begins with.

    Words that stand beside the extract in the same message are new; they come after its quotes.
    """
    count = 0
    for part in head[0].message.parts if head else ():
        if isinstance(part, Text) and is_extract(part.text):
            sections, _ = split_extract(part.text)
            count += sum(1 for _ in _read_sections(sections))
    return count


def _holds_extract(message: Message) -> bool:
    return message.is_turn_start and any(isinstance(part, Text) and is_extract(part.text) for part in message.parts)


def _expand_message(message: Message) -> Iterator[Message]:
    """Yield the messages that the extracts in ``message`` quote; other parts follow as a message of their own."""
    other_parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, Text):
            other_parts.append(part)
        elif is_extract(part.text):
            sections, carried_summary = split_extract(part.text)
            yield from _read_sections(sections)
            if carried_summary:
                other_parts.append(Text(carried_summary))
        elif not is_open_work_section(part.text):  # a new one will be made
            other_parts.append(part)
    if other_parts:
        yield Message("user", tuple(other_parts))


def _read_sections(text: str) -> Iterator[Message]:
    """Yield the messages that sections of an extract quote: what the agent did and saw, then the user's in order."""
    sections = dict.fromkeys(SUMMARY_HEADINGS, "")
    _, *headings_and_sections = _HEADING.split(text)
    for heading, section in zip(headings_and_sections[::2], headings_and_sections[1::2], strict=True):
        sections[heading] += section
    user_text = sections.pop("Goal") + "\n" + sections.pop("Constraints & Preferences")
    # Quoted lines may be anybody's. As a result they are nobody's decision.
    quoted_lines = sections.pop("Critical Context").strip()
    if quoted_lines:
        yield Message("tool", (ToolResult("", "", (Text(quoted_lines),)),))
    agent_lines = [_BULLET.sub("", _FIXED_LINE.sub("", section).strip()) for section in sections.values()]
    if any(agent_lines):
        yield Message.from_text("assistant", "\n".join(filter(None, agent_lines)))

    newest: Message | None = None
    for label, quote in _split_quotes(user_text):
        if label == "newest":
            newest = Message.from_text("user", quote)
        elif label == "program":
            yield Message.from_text("system", quote)
        elif label in ("first", "user", "notes"):
            yield Message.from_text("user", quote)
    if newest is not None:
        yield newest


def _split_quotes(text: str) -> Iterator[tuple[str, str]]:
    """Yield each quote in ``text`` with the name of the label before it."""
    labels = list(_QUOTE_LABEL.finditer(text))
    quote_ends = [*(label.start() for label in labels[1:]), len(text)]
    for label, quote_end in zip(labels, quote_ends, strict=False):
        quote = text[label.end() : quote_end].strip()
        if quote:
            yield label.lastgroup or "", quote
