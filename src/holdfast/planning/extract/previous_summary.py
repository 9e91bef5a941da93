"""Recognize summaries that a client wrote into the conversation in place of earlier turns.

A client that compacts by itself starts over from such a text. It is recognized by its opening words. Its content is all
that is left of the conversation until then; the sentences that the client wraps around it carry no information.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from holdfast.messages.message import (
    Message,
    collect_media_in_messages,
    format_part_placeholder,
    replace_all_parts,
)
from holdfast.messages.parts import Part, Text
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS

EXTRACT_OPENING = "The conversation before this point was replaced by this extract of it ("
"""Text that every extract begins with; an extract is recognized by it."""
EXTENSION_OPENING = "The extract above goes on: "
"""Text that every extension of an extract begins with."""
EXTENSION_PREFACE = EXTENSION_OPENING + "{messages} messages that came next; what differs from above is newer."
"""First line of an extension. Only a section or nothing follows it; otherwise somebody wrote words like ours."""
PREVIOUS_SUMMARY_OPENING = "What came before, as an earlier summary has it:\n"
"""Opening of the text in which an extract carries an earlier summary on."""
PARTLY_OMITTED_TEXT = "[parts of it are left out here]"
"""Last line of that text if the summary is not whole."""

_HEADING_OPENINGS = tuple(f"## {heading}\n" for heading in SUMMARY_HEADINGS)

_EXTENSION_LINE = re.compile(
    "^" + re.escape(EXTENSION_PREFACE).replace(re.escape("{messages}"), "[0-9]+") + r"(?:\n(?=## )|\s*\Z)", re.MULTILINE
)

# opencode starts over with this user message, and the assistant message after it is the summary (seen in recordings).
_OPENCODE_QUESTION = "What did we do so far?"


class _SplitSummary(NamedTuple):
    """A text in two: the content of a summary, and the words that are not part of it."""

    summary: str
    other_text: str


class _SummaryFormat(Struct, frozen=True):
    """How one client wraps its summaries."""

    opening: re.Pattern[str]
    """Matches from the start of the text up to the content."""
    closings: tuple[str, ...] = ()
    """Texts that may end the content; the first of this list that occurs counts."""

    def split_text(self, text: str) -> _SplitSummary | None:
        """Split ``text`` into summary and other words, or return None if it does not open like this format."""
        opening = self.opening.match(text)
        if opening is None:
            return None
        content_end = self._find_content_end(text, opening.end())
        # The rest is the closing words, which are dropped, and maybe a user's words. A closing tag goes alone, since
        # words may follow on its line; a closing sentence goes with its line.
        closing_lines = "|".join(
            re.escape(closing) if closing.startswith("<") else re.escape(closing) + "[^\n]*"
            for closing in self.closings
        )
        rest = re.sub(closing_lines, "", text[content_end:])
        return _SplitSummary(text[opening.end() : content_end].strip(), rest.strip())

    def _find_content_end(self, text: str, start: int) -> int:
        # The last occurrence counts: a summary may quote the closing words of an earlier one.
        for closing in self.closings:
            position = text.rfind(closing, start)
            if position >= 0:
                return position
        return len(text)


def _define_summary_format(opening: str, *closings: str) -> _SummaryFormat:
    return _SummaryFormat(re.compile(r"\s*" + opening, re.DOTALL), closings)


# Our own two, then Claude Code and Codex (both from recordings), pi, and Gemini CLI (both from their source). Gemini
# CLI puts the answer of its model into the conversation unchanged, with a scratchpad before the summary.
_SUMMARY_FORMATS = (
    _define_summary_format(re.escape(PREVIOUS_SUMMARY_OPENING), f"\n{PARTLY_OMITTED_TEXT}"),
    _define_summary_format(rf"(?:{re.escape(EXTRACT_OPENING)}[^\n]*|(?m:{_EXTENSION_LINE.pattern}))"),
    _define_summary_format(
        r"This session is being continued from a previous conversation[^\n]*\s*(?:Summary:\n)?",
        "\nIf you need specific details from before compaction",
        "\nRecent messages are preserved verbatim.",
        "\nContinue the conversation from where",
        "\nPlease continue the conversation from where",
    ),
    _define_summary_format(r"Another language model started to solve this problem and produced a summary[^\n]*"),
    _define_summary_format(
        r"The conversation history before this point was compacted into the following summary:\s*<summary>",
        "</summary>",
    ),
    _define_summary_format(r"(?:<scratchpad>.*?</scratchpad>\s*)?<state_snapshot>", "</state_snapshot>"),
)


def extract_client_summary(text: str) -> str:
    """Return the content of the summary that ``text`` opens with, or an empty string if it opens with none."""
    return _split_summary(text).summary


def is_client_summary_part(part: Part) -> bool:
    """Return whether a part opens with a summary of earlier turns."""
    return isinstance(part, Text) and bool(extract_client_summary(part.text))


def unwrap_client_summary(message: Message) -> Message:
    """Replace a client's wrapping of summaries in ``message`` by our opening line.

    Words after a summary stay as a part of their own. Extracts of ours stay as they are. Return the same object if the
    message holds no summary.
    """
    parts: list[Part] = []
    for part in message.parts:
        parts += _unwrap_part(part)
    return replace_all_parts(message, parts)


def _unwrap_part(part: Part) -> list[Part]:
    if not isinstance(part, Text) or is_extract(part.text):
        return [part]
    summary, other_text = _split_summary(part.text)
    if not summary:
        return [part]
    unwrapped: list[Part] = [Text(PREVIOUS_SUMMARY_OPENING + summary)]
    if other_text:
        unwrapped.append(Text(other_text))
    return unwrapped


def _split_summary(text: str) -> _SplitSummary:
    """Split ``text`` by the first format that it opens with; without one, all of it is other text."""
    for summary_format in _SUMMARY_FORMATS:
        split = summary_format.split_text(text)
        if split is None:
            continue
        if split.summary:
            return split
        break  # an opening with nothing after it summarizes nothing
    return _SplitSummary("", text)


def find_newest_client_summary(messages: Sequence[Message]) -> str:
    """Return the content of the newest summary in ``messages``, or an empty string without one.

    Of an extract of ours only the summary that it carries on counts: the rest of it is read as the messages that it
    quotes (``returned_extract``). ``messages`` begin where their conversation begins: opencode's summary is recognized
    only there.
    """
    for message in reversed(messages):
        if message.role == "user":
            for summary in iter_client_summaries(map(_remove_extract, _get_message_texts(message))):
                return summary
    if _is_opencode_restart(messages):
        return messages[1].text.strip()
    return ""


def _remove_extract(text: str) -> str:
    """Return the earlier summary that an extract in ``text`` carries on; return any other text as it is."""
    return split_extract(text)[1] if is_extract(text) else text


def is_extract(text: str) -> bool:
    """Return whether ``text`` is an extract of ours, or an extension of one."""
    return text.startswith(EXTRACT_OPENING) or is_extension(text)


def is_extension(text: str) -> bool:
    """Return whether ``text`` is an extension of an extract of ours."""
    return _EXTENSION_LINE.match(text) is not None


def split_extract(text: str) -> tuple[str, str]:
    """Split an extract that came back as one text into its sections and the earlier summary that it carries on.

    Either may be empty. What does not begin with one of our headings is taken for an earlier summary as a whole. The
    sections of extensions follow those of the extract.
    """
    text, *extensions = _EXTENSION_LINE.split(text)
    sections, opening, carried_summary = text.partition("\n")[2].partition(PREVIOUS_SUMMARY_OPENING)
    if sections.strip() and not sections.startswith(_HEADING_OPENINGS):
        opening, carried_summary, sections = PREVIOUS_SUMMARY_OPENING, sections.strip() + carried_summary, ""
    return "\n".join([sections, *extensions]), opening + carried_summary


def iter_client_summaries(texts: Iterable[str]) -> Iterator[str]:
    """Yield the content of each of ``texts`` that opens with a summary."""
    for text in texts:
        summary = extract_client_summary(text)
        if summary:
            yield summary


def iter_user_texts(messages: Sequence[Message], *, with_attachments: bool = False) -> Iterator[str]:
    """Yield the user's words, one text a message, without clients' summaries; skip messages without words.

    If ``with_attachments``, a line stands for each picture and document.
    """
    own_messages = messages[2:] if _is_opencode_restart(messages) else messages
    for message in own_messages:
        if not message.is_turn_start:
            continue
        lines = [_split_summary(text).other_text for text in _get_message_texts(message)]
        if with_attachments:
            for attachment in collect_media_in_messages(message):
                lines.append(format_part_placeholder(attachment))
        user_text = "\n".join(lines).strip()
        if user_text:
            yield user_text


def _get_message_texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _is_opencode_restart(messages: Sequence[Message]) -> bool:
    """Return whether a conversation opens with opencode's question and the summary that answers it."""
    if len(messages) < 2:
        return False
    question, answer = messages[0], messages[1]
    if question.role != "user" or answer.role != "assistant":
        return False
    return question.text.strip() == _OPENCODE_QUESTION and bool(answer.text.strip())
