"""Summaries that stand in a conversation for what came before it: what they say, and what the user said beside them.

A client that compacts by itself begins anew from such a text. It is known by the words it opens with; what it says is
all that is left of the conversation until then, and what the client wraps around it tells nothing of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.messages.message import (
    Message,
    collect_media_in_messages,
    format_part_placeholder,
    get_part_text,
    replace_all_parts,
)
from holdfast.messages.parts import Part, Text

PREVIOUS_SUMMARY_OPENING = "What came before, as an earlier summary has it:\n"
"""How the text opens in which an extract carries such a summary on."""
PARTLY_OMITTED_TEXT = "[parts of it are left out here]"
"""The line behind it where it is not whole."""
_OPENCODE_QUESTION = "What did we do so far?"
"""How opencode begins anew: this is the first message, and the answer to it is the summary [M]."""


class _SummaryFormat(Struct, frozen=True):
    """How such a text opens, and what closes it, of which the first that is there counts; its client wrote both."""

    opening: re.Pattern[str]
    closings: tuple[str, ...] = ()

    def split_text(self, text: str) -> tuple[str, str] | None:
        """Return what ``text`` says of what came before and what stands behind that, where it opens so."""
        match = self.opening.match(text)
        if match is None:
            return None
        last = (text.rfind(end, match.end()) for end in self.closings)
        at = next((at for at in last if at >= 0), len(text))
        lines = (re.escape(end) + ("" if end.startswith("<") else "[^\n]*") for end in self.closings)
        return text[match.end() : at].strip(), re.sub("|".join(lines), "", text[at:]).strip()


def _define_summary_format(opening: str, *ends: str) -> _SummaryFormat:
    return _SummaryFormat(re.compile(r"\s*" + opening, re.DOTALL), ends)


_SUMMARY_FORMATS = (
    _define_summary_format(re.escape(PREVIOUS_SUMMARY_OPENING), f"\n{PARTLY_OMITTED_TEXT}"),
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
"""Our own · Claude Code [M] · Codex [M] · pi [S] · Gemini CLI, where it is the answer of its model as it came [S]."""


def extract_client_summary(text: str) -> str:
    """Return what ``text`` says of what came before, if it opens as such a summary does, else nothing."""
    return _split_summary(text)[0]


def is_client_summary_part(part: Part) -> bool:
    """Return whether a part says what came before, in the words of who summarised it."""
    return isinstance(part, Text) and bool(extract_client_summary(part.text))


def unwrap_client_summary(message: Message) -> Message:
    """Return ``message`` with nothing of a client's around a summary that it holds; the same object without one."""
    return replace_all_parts(message, [new for part in message.parts for new in _strip_part_wrapping(part)])


def _strip_part_wrapping(part: Part) -> Iterator[Part]:
    summary, beside = _split_summary(get_part_text(part)) if is_client_summary_part(part) else ("", "")
    yield Text(PREVIOUS_SUMMARY_OPENING + summary) if summary else part
    if summary and beside:
        yield Text(beside)


def _split_summary(text: str) -> tuple[str, str]:
    """Return what ``text`` says of what came before, and what else it says: all of it where it is no summary."""
    split_text = next(
        (split_text for form in _SUMMARY_FORMATS if (split_text := form.split_text(text)) is not None), ("", text)
    )
    return split_text if split_text[0] else ("", text)


def find_newest_client_summary(messages: Sequence[Message]) -> str:
    """Return what the newest summary in ``messages`` says, which are a conversation from its start, or nothing."""
    summary = (
        summary
        for message in reversed(messages)
        if message.role == "user"
        for summary in iter_client_summaries(_get_message_texts(message))
    )
    return next(summary, messages[1].text.strip() if _is_opencode_restart(messages) else "")


def iter_client_summaries(texts: Iterable[str]) -> Iterator[str]:
    """Yield what those of ``texts`` say that are summaries."""
    return filter(None, map(extract_client_summary, texts))


def iter_user_texts(messages: Sequence[Message], *, with_attachments: bool = False) -> Iterator[str]:
    """Yield what each message of the user says, others' summaries aside; what is blank is nothing.

    A line stands for each picture and document that is ``with_attachments``, if those are asked for.
    """
    for message in messages[2:] if _is_opencode_restart(messages) else messages:
        if message.is_turn_start:
            lines = (
                [format_part_placeholder(attachment) for attachment in collect_media_in_messages(message)]
                if with_attachments
                else []
            )
            user_text = "\n".join([*[_split_summary(text)[1] for text in _get_message_texts(message)], *lines]).strip()
            yield from [user_text] if user_text else []


def _get_message_texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _is_opencode_restart(messages: Sequence[Message]) -> bool:
    """Return whether a conversation begins with a client's own question and the summary that answers it."""
    if len(messages) < 2 or messages[0].role != "user" or messages[1].role != "assistant":
        return False
    return messages[0].text.strip() == _OPENCODE_QUESTION and bool(messages[1].text.strip())
