"""Judging what a model wrote as a summary: the reasons for which it is not taken, none where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.planning.summary.must_keep import missing, reflects
from holdfast.planning.summary.prompts import HEADINGS, repeats

_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)
_CLOSING = re.compile(r"\s*</[\w-]+>\s*\Z")
_REFUSAL = re.compile(
    r"\b(?:i(?:'|\u2019)?m sorry|i am sorry|i apologi[sz]e|as an ai\b"
    r"|i (?:can(?:'|\u2019)?t|cannot|can not|won(?:'|\u2019)?t|will not|am unable to|am not able to)"
    r"|i(?:'|\u2019)m (?:unable|not able) to|unfortunately,? i )|抱歉|对不起|无法协助|申し訳",
    re.IGNORECASE,
)
"""How a refusal begins."""
_LIMITED = re.compile(
    r"(?:hit|reached|exceeded) (?:your|the|its) [\w -]{0,30}limit|rate[ _-]?limit|usage limit|too many requests"
    r"|quota|resets? (?:at |in )?\d|overloaded|service unavailable|try again (?:later|in)|insufficient credits?"
    r"|\b(?:429|503|529)\b",
    re.IGNORECASE,
)
"""How a provider says that it has had enough, where it says so in an answer."""
_TOOL = re.compile(
    r"^\s*(?:<(?:\w+:)?(?:tool_calls?|function_calls?|invoke|tool_use|function=[\w.-]+)\b|<\|(?:tool|python_tag)"
    r"|<\uff5ctool|\[TOOL_CALLS?\]|```tool_(?:code|call)|\{\s*\"(?:name|tool|function)\"\s*:\s*\"[\w.-]+\"\s*,"
    r"\s*\"(?:arguments|parameters|input)\")",
    re.IGNORECASE | re.MULTILINE,
)
"""A call of a tool that is written as text, at the start of a line."""
_LABEL = re.compile(r"^\[(?:User|Assistant|Assistant tool calls|Tool result(?:, failed)?)\]: ", re.MULTILINE)
_BEGINNING, _SHORT = 400, 2_000
"""Characters before the first heading, or of a short answer without one, that tell whether it is no summary at all."""


class Wanted(Struct, frozen=True):
    """What is asked of an answer; sizes are real tokens."""

    cap: int
    least: int = 0
    headings: tuple[str, ...] = HEADINGS
    identifiers: tuple[str, ...] = ()
    request: str = ""
    """The newest words of the user that are to be summarised."""
    anchor: str = ""
    """The summary before."""


class Told(Struct, frozen=True):
    """An answer: its words, as ``tidy`` left them, why it ended in our words for it, and its real tokens."""

    text: str
    tokens: int
    stop: str = "end"
    calls: tuple[str, ...] = ()
    """Names of the tools that it called."""


def tidy(text: str) -> str:
    """Return ``text`` without a fence around all of it, and without a word of introduction before its first heading."""
    text = text.strip()
    fenced = _FENCE.match(text)
    text = fenced[1].strip() if fenced else text
    found = _heading(HEADINGS[0]).search(text)
    if found is None or found.start() > _BEGINNING or _is_none(text) or _TOOL.match(text):
        return text
    return _CLOSING.sub("", text[found.start() :]).rstrip()


def objections(told: Told, wanted: Wanted) -> tuple[str, ...]:
    """Return why ``told`` is no summary, in words that the one who wrote it can act on; nothing where it is one."""
    whole = tuple(_unfit(told, wanted))
    return whole or (*_form(told, wanted), *_content(told.text, wanted))


def _unfit(told: Told, wanted: Wanted) -> Iterator[str]:
    """Yield why an answer is none at all: nothing else about it needs to be said then."""
    if told.calls:
        yield f"it called the tool {told.calls[0]!r}; no tool is to be called"
    elif told.stop != "end":
        yield f"it ended with {told.stop!r} before it was complete; write less"
    elif not told.text.strip():
        yield "it was empty; write the notes"
    elif _is_none(told.text):
        yield "it was a refusal or a message of a provider; write the notes"
    elif repeats(told.text) or len(_LABEL.findall(told.text)) > 1:
        yield "it repeated what it was given; write the notes themselves"
    elif wanted.anchor and told.text.strip() == wanted.anchor.strip():
        yield "it was the earlier notes word for word; bring them up to date"
    elif _TOOL.search(told.text):
        yield "it held a tool call written as text; write notes alone"


def _is_none(text: str) -> bool:
    """Return whether an answer begins as a refusal does, or as a provider's own message."""
    found = _heading(HEADINGS[0]).search(text)
    start = text[: found.start() if found else _BEGINNING if len(text) <= _SHORT else 0]
    return _LIMITED.search(start) is not None or _REFUSAL.search(start) is not None


def _form(told: Told, wanted: Wanted) -> Iterator[str]:
    gone = _absent(told.text, wanted.headings)
    if gone:
        yield f"these headings are not there or not in their order: {', '.join(gone)}"
    if told.tokens < wanted.least:
        yield f"it has {told.tokens:,} tokens, and at least {wanted.least:,} are wanted"
    if told.tokens > wanted.cap:
        yield f"it has {told.tokens:,} tokens, and at most {wanted.cap:,} are wanted"


def _absent(text: str, headings: Sequence[str]) -> list[str]:
    """Return the headings that do not stand behind the one before them."""
    at, gone = 0, []
    for heading in headings:
        found = _heading(heading).search(text, at)
        if found is None:
            gone.append(heading)
        else:
            at = found.end()
    return gone


def _heading(name: str) -> re.Pattern[str]:
    return re.compile(rf"^#+[ \t]*{re.escape(name)}[ \t]*:?[ \t]*$", re.MULTILINE | re.IGNORECASE)


def _content(text: str, wanted: Wanted) -> Iterator[str]:
    lost = missing(text, wanted.identifiers)
    if lost:
        yield f"these are not in it, letter by letter: {', '.join(lost)}"
    if not reflects(text, wanted.request):
        yield "it does not say what the user asked for last"
