"""Summaries that stand in a conversation for what came before it: what they say, and what the user said beside them.

A client that compacts by itself begins anew from such a text. It is known by the words it opens with; what it says is
all that is left of the conversation until then, and what the client wraps around it tells nothing of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.model.messages import Message, part_text, with_parts
from holdfast.model.parts import Part, Text
from holdfast.policy.client_notes import own_words

CARRIED = "What came before, as an earlier summary has it:\n"
"""How the text opens in which an extract carries such a summary on."""
_ASKED = "What did we do so far?"
"""How opencode begins anew: this is the first message, and the answer to it is the summary [M]."""


class _Form(Struct, frozen=True):
    """How such a text opens, and the lines of which the first that is there ends it."""

    opening: re.Pattern[str]
    ends: tuple[str, ...] = ()


def _form(opening: str, *ends: str) -> _Form:
    return _Form(re.compile(r"\s*" + opening, re.DOTALL), ends)


_FORMS = (
    _form(re.escape(CARRIED)),
    _form(
        r"This session is being continued from a previous conversation[^\n]*\s*(?:Summary:\n)?",
        "\nIf you need specific details from before compaction",
        "\nRecent messages are preserved verbatim.",
        "\nContinue the conversation from where it left off",
        "\nPlease continue the conversation from where we left it off",
    ),
    _form(r"Another language model started to solve this problem and produced a summary[^\n]*"),
    _form(
        r"The conversation history before this point was compacted into the following summary:\s*<summary>",
        "</summary>",
    ),
    _form(r"(?:<scratchpad>.*?</scratchpad>\s*)?<state_snapshot>", "</state_snapshot>"),
)
"""Our own · Claude Code [M] · Codex [M] · pi [S] · Gemini CLI, where it is the answer of its model as it came [S]."""


def summary_of(text: str) -> str:
    """Return what ``text`` says of what came before, if it opens as such a summary does, else nothing."""
    for form in _FORMS:
        found = form.opening.match(text)
        if found is not None:
            ends = [at for end in form.ends if (at := text.rfind(end, found.end())) >= 0]
            return text[found.end() : min(ends, default=len(text))].strip("\n")
    return ""


def is_summary(part: Part) -> bool:
    """Return whether a part says what came before, in the words of who summarised it."""
    return isinstance(part, Text) and bool(summary_of(part.text))


def unwrapped(message: Message) -> Message:
    """Return ``message`` with nothing of a client's around a summary that it holds; the same object without one."""
    parts = [Text(CARRIED + summary_of(part_text(part))) if is_summary(part) else part for part in message.parts]
    return with_parts(message, parts)


def newest_summary(messages: Sequence[Message]) -> str:
    """Return what the newest summary in ``messages`` says, which are a conversation from its start, or nothing."""
    told = (told for message in reversed(messages) if message.role == "user" for told in summaries(_texts(message)))
    return next(told, messages[1].text.strip() if _is_asked(messages) else "")


def summaries(texts: Iterable[str]) -> Iterator[str]:
    """Yield what those of ``texts`` say that are summaries."""
    return filter(None, map(summary_of, texts))


def said_by_user(messages: Sequence[Message]) -> Iterator[str]:
    """Yield what the user said in each message, others' summaries and notes aside; what is blank is nothing."""
    for message in messages[2:] if _is_asked(messages) else messages:
        if message.starts_turn:
            said = own_words("\n".join([text for text in _texts(message) if not summary_of(text)]))
            yield from [said] if said else []


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _is_asked(messages: Sequence[Message]) -> bool:
    """Return whether a conversation begins with a client's own question and the summary that answers it."""
    if len(messages) < 2 or messages[0].role != "user" or messages[1].role != "assistant":
        return False
    return messages[0].text.strip() == _ASKED and bool(messages[1].text.strip())
