"""Summaries that stand in a conversation for what came before it: what they say, and what the user said beside them.

A client that compacts by itself begins anew from such a text. It is known by the words it opens with; what it says is
all that is left of the conversation until then, and what the client wraps around it tells nothing of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.messages.message import Message, media_of, part_text, placeholder, with_parts
from holdfast.messages.parts import Part, Text

CARRIED = "What came before, as an earlier summary has it:\n"
"""How the text opens in which an extract carries such a summary on."""
LEFT_OUT = "[parts of it are left out here]"
"""The line behind it where it is not whole."""
_ASKED = "What did we do so far?"
"""How opencode begins anew: this is the first message, and the answer to it is the summary [M]."""


class _Form(Struct, frozen=True):
    """How such a text opens, and what closes it, of which the first that is there counts; its client wrote both."""

    opening: re.Pattern[str]
    ends: tuple[str, ...] = ()

    def apart(self, text: str) -> tuple[str, str] | None:
        """Return what ``text`` says of what came before and what stands behind that, where it opens so."""
        found = self.opening.match(text)
        if found is None:
            return None
        last = (text.rfind(end, found.end()) for end in self.ends)
        at = next((at for at in last if at >= 0), len(text))
        lines = (re.escape(end) + ("" if end.startswith("<") else "[^\n]*") for end in self.ends)
        return text[found.end() : at].strip(), re.sub("|".join(lines), "", text[at:]).strip()


def _form(opening: str, *ends: str) -> _Form:
    return _Form(re.compile(r"\s*" + opening, re.DOTALL), ends)


_FORMS = (
    _form(re.escape(CARRIED), f"\n{LEFT_OUT}"),
    _form(
        r"This session is being continued from a previous conversation[^\n]*\s*(?:Summary:\n)?",
        "\nIf you need specific details from before compaction",
        "\nRecent messages are preserved verbatim.",
        "\nContinue the conversation from where",
        "\nPlease continue the conversation from where",
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
    return _apart(text)[0]


def is_summary(part: Part) -> bool:
    """Return whether a part says what came before, in the words of who summarised it."""
    return isinstance(part, Text) and bool(summary_of(part.text))


def unwrapped(message: Message) -> Message:
    """Return ``message`` with nothing of a client's around a summary that it holds; the same object without one."""
    return with_parts(message, [new for part in message.parts for new in _unwrapped(part)])


def _unwrapped(part: Part) -> Iterator[Part]:
    told, beside = _apart(part_text(part)) if is_summary(part) else ("", "")
    yield Text(CARRIED + told) if told else part
    if told and beside:
        yield Text(beside)


def _apart(text: str) -> tuple[str, str]:
    """Return what ``text`` says of what came before, and what else it says: all of it where it is no summary."""
    told = next((told for form in _FORMS if (told := form.apart(text)) is not None), ("", text))
    return told if told[0] else ("", text)


def newest_summary(messages: Sequence[Message]) -> str:
    """Return what the newest summary in ``messages`` says, which are a conversation from its start, or nothing."""
    told = (told for message in reversed(messages) if message.role == "user" for told in summaries(_texts(message)))
    return next(told, messages[1].text.strip() if _is_asked(messages) else "")


def summaries(texts: Iterable[str]) -> Iterator[str]:
    """Yield what those of ``texts`` say that are summaries."""
    return filter(None, map(summary_of, texts))


def said_by_user(messages: Sequence[Message], *, attached: bool = False) -> Iterator[str]:
    """Yield what each message of the user says, others' summaries aside; what is blank is nothing.

    A line stands for each picture and document that is ``attached``, if those are asked for.
    """
    for message in messages[2:] if _is_asked(messages) else messages:
        if message.starts_turn:
            lines = [placeholder(one) for one in media_of(message)] if attached else []
            said = "\n".join([*[_apart(text)[1] for text in _texts(message)], *lines]).strip()
            yield from [said] if said else []


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _is_asked(messages: Sequence[Message]) -> bool:
    """Return whether a conversation begins with a client's own question and the summary that answers it."""
    if len(messages) < 2 or messages[0].role != "user" or messages[1].role != "assistant":
        return False
    return messages[0].text.strip() == _ASKED and bool(messages[1].text.strip())
