"""Judge what a model wrote as a summary: list the reasons to reject it.

A summary that is accepted replaces the turns for good, so an apology, an echo of the prompt or a provider's error text
must not be accepted as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.planning.summary.must_keep import find_missing_identifiers, has_request_keywords
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS, is_prompt_echo

_CODE_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)
_CLOSING_TAG = re.compile(r"\s*</[\w-]+>\s*\Z")
# How a refusal begins. Only the beginning of an answer is searched: the conversation itself may be about such words.
_REFUSAL_OPENING = re.compile(
    r"\b(?:i(?:'|\u2019)?m sorry|i am sorry|i apologi[sz]e|as an ai\b"
    r"|i (?:can(?:'|\u2019)?t|cannot|can not|won(?:'|\u2019)?t|will not|am unable to|am not able to)"
    r"|i(?:'|\u2019)m (?:unable|not able) to|unfortunately,? i )|抱歉|对不起|无法协助|申し訳",
    re.IGNORECASE,
)
# How a provider or gateway says in an ordinary answer that a limit is reached.
_PROVIDER_LIMIT_TEXT = re.compile(
    r"(?:hit|reached|exceeded) (?:your|the|its) [\w -]{0,30}limit|rate[ _-]?limit|usage limit|too many requests"
    r"|quota|resets? (?:at |in )?\d|overloaded|service unavailable|try again (?:later|in)|insufficient credits?"
    r"|\b(?:429|503|529)\b",
    re.IGNORECASE,
)
# A tool call written as text at the start of a line, as models do that are given no tools.
_TOOL_CALL_TEXT = re.compile(
    r"^\s*(?:<(?:\w+:)?(?:tool_calls?|function_calls?|invoke|tool_use|function=[\w.-]+)\b|<\|(?:tool|python_tag)"
    r"|<\uff5ctool|\[TOOL_CALLS?\]|```tool_(?:code|call)|\{\s*\"(?:name|tool|function)\"\s*:\s*\"[\w.-]+\"\s*,"
    r"\s*\"(?:arguments|parameters|input)\")",
    re.IGNORECASE | re.MULTILINE,
)
# The labels of the transcript that the model was given (planning/summary/rendering.py).
_TRANSCRIPT_LABEL = re.compile(r"^\[(?:User|Assistant|Assistant tool calls|Tool result(?:, failed)?)\]: ", re.MULTILINE)
# Characters searched for a refusal: up to the first heading, or the first 400 of an answer without headings if it is
# shorter than 2,000. An introduction before the first heading is no longer than 400 either. Chosen by judgement: a
# refusal is short and comes first.
_INTRODUCTION_CHARS, _SHORT_ANSWER_CHARS = 400, 2_000


class SummaryRequirements(Struct, frozen=True):
    """The requirements for an answer; sizes are real tokens."""

    max_tokens: int
    min_tokens: int = 0
    headings: tuple[str, ...] = SUMMARY_HEADINGS
    identifiers: tuple[str, ...] = ()
    newest_request: str = ""
    """The newest request of the user in the turns to summarize."""
    previous_summary: str = ""
    """The summary that the answer should update."""


class SummaryAnswer(Struct, frozen=True):
    """A model's answer to the request for a summary."""

    text: str
    """Its words, after ``strip_summary_wrapping``."""
    tokens: int
    """Real tokens."""
    stop_reason: str = "end"
    """Why it ended, as in ``ParsedAnswer.stop_reason``."""
    called_tools: tuple[str, ...] = ()
    """Names of the tools that it called."""


def strip_summary_wrapping(text: str) -> str:
    """Return ``text`` without what models put around a summary.

    That is a code fence around all of it, an introduction before its first heading, and, if it has that heading, a
    closing tag after it. If the introduction holds a refusal, a provider's limit or a tool call, the answer is returned
    whole, so that ``find_summary_problems`` sees that and rejects it.
    """
    text = text.strip()
    fence_match = _CODE_FENCE.match(text)
    if fence_match:
        text = fence_match[1].strip()
    heading_match = _compile_heading_pattern(SUMMARY_HEADINGS[0]).search(text)
    if heading_match is None or heading_match.start() > _INTRODUCTION_CHARS:
        return text
    if _is_refusal_or_limit(text) or _TOOL_CALL_TEXT.search(text, 0, heading_match.start()):
        return text
    return _CLOSING_TAG.sub("", text[heading_match.start() :]).rstrip()


def find_summary_problems(answer: SummaryAnswer, requirements: SummaryRequirements) -> tuple[str, ...]:
    """Return the reasons to reject ``answer``, in words that its model can act on; empty if it is acceptable."""
    fatal_problem = _find_fatal_problem(answer, requirements)
    if fatal_problem:
        return (fatal_problem,)
    return (*_check_summary_form(answer, requirements), *_check_summary_content(answer.text, requirements))


def _find_fatal_problem(answer: SummaryAnswer, requirements: SummaryRequirements) -> str:
    """Return why ``answer`` is not a summary at all, or an empty string.

    Other problems need not be listed then: a model that refused learns nothing from missing headings.
    """
    if answer.called_tools:
        return f"it called the tool {answer.called_tools[0]!r}; no tool is to be called"
    if answer.stop_reason != "end":
        return f"it ended with {answer.stop_reason!r} before it was complete; write less"
    if not answer.text.strip():
        return "it was empty; write the notes"
    if _is_refusal_or_limit(answer.text):
        return "it was a refusal or a message of a provider; write the notes"
    if is_prompt_echo(answer.text) or len(_TRANSCRIPT_LABEL.findall(answer.text)) > 1:
        return "it repeated what it was given; write the notes themselves"
    if requirements.previous_summary and answer.text.strip() == requirements.previous_summary.strip():
        return "it was the earlier notes word for word; bring them up to date"
    if _TOOL_CALL_TEXT.search(answer.text):
        return "it held a tool call written as text; write notes alone"
    return ""


def _is_refusal_or_limit(text: str) -> bool:
    """Return whether an answer begins like a refusal or a provider's own message."""
    heading_match = _compile_heading_pattern(SUMMARY_HEADINGS[0]).search(text)
    if heading_match:
        opening = text[: heading_match.start()]
    elif len(text) <= _SHORT_ANSWER_CHARS:
        opening = text[:_INTRODUCTION_CHARS]
    else:
        return False
    return _PROVIDER_LIMIT_TEXT.search(opening) is not None or _REFUSAL_OPENING.search(opening) is not None


def _check_summary_form(answer: SummaryAnswer, requirements: SummaryRequirements) -> Iterator[str]:
    missing_headings = _find_missing_headings(answer.text, requirements.headings)
    if missing_headings:
        yield f"these headings are not there or not in their order: {', '.join(missing_headings)}"
    if answer.tokens < requirements.min_tokens:
        yield f"it has {answer.tokens:,} tokens, and at least {requirements.min_tokens:,} are wanted"
    if answer.tokens > requirements.max_tokens:
        yield f"it has {answer.tokens:,} tokens, and at most {requirements.max_tokens:,} are wanted"


def _find_missing_headings(text: str, headings: Sequence[str]) -> list[str]:
    """Return the headings that are missing from ``text`` or do not follow the one before them."""
    position = 0
    missing_headings: list[str] = []
    for heading in headings:
        match = _compile_heading_pattern(heading).search(text, position)
        if match is None:
            missing_headings.append(heading)
        else:
            position = match.end()
    return missing_headings


def _compile_heading_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"^#+[ \t]*{re.escape(name)}[ \t]*:?[ \t]*$", re.MULTILINE | re.IGNORECASE)


def _check_summary_content(text: str, requirements: SummaryRequirements) -> Iterator[str]:
    missing_identifiers = find_missing_identifiers(text, requirements.identifiers)
    if missing_identifiers:
        yield f"these are not in it, letter by letter: {', '.join(missing_identifiers)}"
    if not has_request_keywords(text, requirements.newest_request):
        yield "it does not say what the user asked for last"
