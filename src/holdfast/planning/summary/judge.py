"""Judging what a model wrote as a summary: the reasons for which it is not taken, none where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.planning.summary.must_keep import find_missing_identifiers, has_request_keywords
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS, is_prompt_echo

_CODE_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)
_CLOSING_TAG = re.compile(r"\s*</[\w-]+>\s*\Z")
_REFUSAL_OPENING = re.compile(
    r"\b(?:i(?:'|\u2019)?m sorry|i am sorry|i apologi[sz]e|as an ai\b"
    r"|i (?:can(?:'|\u2019)?t|cannot|can not|won(?:'|\u2019)?t|will not|am unable to|am not able to)"
    r"|i(?:'|\u2019)m (?:unable|not able) to|unfortunately,? i )|抱歉|对不起|无法协助|申し訳",
    re.IGNORECASE,
)
"""How a refusal begins."""
_PROVIDER_LIMIT_TEXT = re.compile(
    r"(?:hit|reached|exceeded) (?:your|the|its) [\w -]{0,30}limit|rate[ _-]?limit|usage limit|too many requests"
    r"|quota|resets? (?:at |in )?\d|overloaded|service unavailable|try again (?:later|in)|insufficient credits?"
    r"|\b(?:429|503|529)\b",
    re.IGNORECASE,
)
"""How a provider says that it has had enough, where it says so in an answer."""
_TOOL_CALL_TEXT = re.compile(
    r"^\s*(?:<(?:\w+:)?(?:tool_calls?|function_calls?|invoke|tool_use|function=[\w.-]+)\b|<\|(?:tool|python_tag)"
    r"|<\uff5ctool|\[TOOL_CALLS?\]|```tool_(?:code|call)|\{\s*\"(?:name|tool|function)\"\s*:\s*\"[\w.-]+\"\s*,"
    r"\s*\"(?:arguments|parameters|input)\")",
    re.IGNORECASE | re.MULTILINE,
)
"""A call of a tool that is written as text, at the start of a line."""
_TRANSCRIPT_LABEL = re.compile(r"^\[(?:User|Assistant|Assistant tool calls|Tool result(?:, failed)?)\]: ", re.MULTILINE)
_INTRO_CHARS, _SHORT_ANSWER_CHARS = 400, 2_000
"""Characters before the first heading, or of a short answer without one, that tell whether it is no summary at all."""


class SummaryRequirements(Struct, frozen=True):
    """What is asked of an answer; sizes are real tokens."""

    max_tokens: int
    min_tokens: int = 0
    headings: tuple[str, ...] = SUMMARY_HEADINGS
    identifiers: tuple[str, ...] = ()
    newest_request: str = ""
    """The newest words of the user that are to be summarised."""
    previous_summary: str = ""
    """The summary before."""


class SummaryAnswer(Struct, frozen=True):
    """An answer: its words, as ``strip_fence_and_introduction`` left them, why it ended in our words for it, and its
    real tokens.
    """

    text: str
    tokens: int
    stop_reason: str = "end"
    called_tools: tuple[str, ...] = ()
    """Names of the tools that it called."""


def strip_fence_and_introduction(text: str) -> str:
    """Return ``text`` without a fence around all of it, and without a word of introduction before its first heading."""
    text = text.strip()
    fence_match = _CODE_FENCE.match(text)
    text = fence_match[1].strip() if fence_match else text
    heading_match = _compile_heading_pattern(SUMMARY_HEADINGS[0]).search(text)
    if (
        heading_match is None
        or heading_match.start() > _INTRO_CHARS
        or _is_refusal_or_limit(text)
        or _TOOL_CALL_TEXT.match(text)
    ):
        return text
    return _CLOSING_TAG.sub("", text[heading_match.start() :]).rstrip()


def find_summary_problems(answer: SummaryAnswer, requirements: SummaryRequirements) -> tuple[str, ...]:
    """Return why ``answer`` is no summary, in words that the one who wrote it can act on; nothing where it is one."""
    whole = tuple(_find_fatal_problem(answer, requirements))
    return whole or (*_check_summary_form(answer, requirements), *_check_summary_content(answer.text, requirements))


def _find_fatal_problem(answer: SummaryAnswer, requirements: SummaryRequirements) -> Iterator[str]:
    """Yield why an answer is none at all: nothing else about it needs to be said then."""
    if answer.called_tools:
        yield f"it called the tool {answer.called_tools[0]!r}; no tool is to be called"
    elif answer.stop_reason != "end":
        yield f"it ended with {answer.stop_reason!r} before it was complete; write less"
    elif not answer.text.strip():
        yield "it was empty; write the notes"
    elif _is_refusal_or_limit(answer.text):
        yield "it was a refusal or a message of a provider; write the notes"
    elif is_prompt_echo(answer.text) or len(_TRANSCRIPT_LABEL.findall(answer.text)) > 1:
        yield "it repeated what it was given; write the notes themselves"
    elif requirements.previous_summary and answer.text.strip() == requirements.previous_summary.strip():
        yield "it was the earlier notes word for word; bring them up to date"
    elif _TOOL_CALL_TEXT.search(answer.text):
        yield "it held a tool call written as text; write notes alone"


def _is_refusal_or_limit(text: str) -> bool:
    """Return whether an answer begins as a refusal does, or as a provider's own message."""
    heading_match = _compile_heading_pattern(SUMMARY_HEADINGS[0]).search(text)
    start = text[: heading_match.start() if heading_match else _INTRO_CHARS if len(text) <= _SHORT_ANSWER_CHARS else 0]
    return _PROVIDER_LIMIT_TEXT.search(start) is not None or _REFUSAL_OPENING.search(start) is not None


def _check_summary_form(answer: SummaryAnswer, requirements: SummaryRequirements) -> Iterator[str]:
    missing_headings = _find_missing_headings(answer.text, requirements.headings)
    if missing_headings:
        yield f"these headings are not there or not in their order: {', '.join(missing_headings)}"
    if answer.tokens < requirements.min_tokens:
        yield f"it has {answer.tokens:,} tokens, and at least {requirements.min_tokens:,} are wanted"
    if answer.tokens > requirements.max_tokens:
        yield f"it has {answer.tokens:,} tokens, and at most {requirements.max_tokens:,} are wanted"


def _find_missing_headings(text: str, headings: Sequence[str]) -> list[str]:
    """Return the headings that do not stand behind the one before them."""
    at, missing_headings = 0, []
    for heading in headings:
        match = _compile_heading_pattern(heading).search(text, at)
        if match is None:
            missing_headings.append(heading)
        else:
            at = match.end()
    return missing_headings


def _compile_heading_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"^#+[ \t]*{re.escape(name)}[ \t]*:?[ \t]*$", re.MULTILINE | re.IGNORECASE)


def _check_summary_content(text: str, requirements: SummaryRequirements) -> Iterator[str]:
    missing_identifiers = find_missing_identifiers(text, requirements.identifiers)
    if missing_identifiers:
        yield f"these are not in it, letter by letter: {', '.join(missing_identifiers)}"
    if not has_request_keywords(text, requirements.newest_request):
        yield "it does not say what the user asked for last"
