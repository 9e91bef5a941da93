"""What an answer is that came without an error: whole, cut by the window, or given to a prompt that was cut unseen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.providers.errors.patterns import OVERFLOW_CODE
from holdfast.providers.errors.report import AnswerReport, Verdict

FULL_WINDOW_SHARE = 0.99
"""Share of the window that an answer cut at its first token leaves filled (Xiaomi MiMo; pi's silent overflow)."""
UNREAD_PROMPT_SHARE = 0.5
"""Reported prompt over our estimate, below which the provider cannot have read all of it (Ollama cuts the front)."""
MIN_COMPARED_TOKENS = 1_000
"""Tokens estimated from which that share means anything."""
_NON_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")
_LENGTH_REASONS = frozenset(
    {"length", "maxtokens", "maxoutputtokens", "maxcompletiontokens", "incomplete", "modellength", "tokenlimit"}
)
_COMPACTION_REASON = "compaction"
"""Why an answer ended that is a summary and nothing else (Anthropic): the prompt was read by the one who made it."""
_FAILURE_REASONS = frozenset({"error", "failed", "malformedfunctioncall", "other", "cancelled", "networkerror"})
_PROMPT_FIELDS_WITH_CACHE = (
    "prompt_tokens",
    "promptTokenCount",
    "prompt_token_count",
    "prompt_eval_count",
    "inputTokenCount",
)
"""Fields that count the cached part in (Chat, Gemini, Ollama)."""
_PROMPT_FIELDS = ("input_tokens", "inputTokens", "input")
_CACHE_FIELDS = (
    "cache_read_input_tokens", "cache_creation_input_tokens", "cacheReadInputTokens", "cacheWriteInputTokens",
    "cache_read", "cache_write", "cacheRead", "cacheWrite",
)  # fmt: skip
"""Fields that stand beside ``input_tokens`` and are not counted in it (Anthropic, Bedrock, pi)."""
_OUTPUT_FIELDS = (
    "output_tokens", "completion_tokens", "candidatesTokenCount", "candidates_token_count", "outputTokens", "output",
    "eval_count",
)  # fmt: skip


def classify_answer_report(report: AnswerReport) -> Verdict:
    """Return what an answer is, by its finish reason and its usage alone."""
    reason = _NON_ALPHANUMERIC.sub("", report.finish_reason.lower())
    if OVERFLOW_CODE.search(reason):
        return Verdict("context_window", report.window, count_prompt_tokens(report.usage))
    if reason == _COMPACTION_REASON:
        return Verdict("content")
    is_truncated = reason in _LENGTH_REASONS
    silent = _find_silent_overflow(report, is_truncated=is_truncated)
    if silent is not None:
        return silent
    if reason in _FAILURE_REASONS:
        return Verdict("unknown")
    return Verdict("output_limit" if is_truncated else "content")


def _find_silent_overflow(report: AnswerReport, *, is_truncated: bool) -> Verdict | None:
    """Return the overflow that no error told of; None where the usage shows none."""
    prompt = count_prompt_tokens(report.usage)
    if prompt is None:
        return None
    output, window = _get_first_count(report.usage, _OUTPUT_FIELDS), report.window or 0
    if window and (prompt > window or (is_truncated and not output and prompt >= FULL_WINDOW_SHARE * window)):
        return Verdict("silent_overflow", window, prompt)
    if (
        report.estimate is not None
        and report.estimate >= MIN_COMPARED_TOKENS
        and prompt < UNREAD_PROMPT_SHARE * report.estimate
    ):
        return Verdict("silent_truncation")
    return None


def count_prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """Return the tokens of the prompt, cached ones counted in, for the usage of any API; None where it tells none.

    Where a provider called its model more than once (Anthropic's ``iterations``), it is the longest prompt of these:
    the fields beside them are sums, and leave compactions out.
    """
    calls = usage.get("iterations")
    call_tokens = (
        [_count_call_prompt_tokens(item) for item in calls if isinstance(item, Mapping)]
        if isinstance(calls, list)
        else []
    )
    return max((item for item in call_tokens if item is not None), default=_count_call_prompt_tokens(usage))


def _count_call_prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """Return the tokens of the prompt of one call."""
    whole = _get_first_count(usage, _PROMPT_FIELDS_WITH_CACHE)
    if whole is not None:
        return whole
    fresh = _get_first_count(usage, _PROMPT_FIELDS)
    if fresh is None:
        return None
    return (
        fresh
        if "input_tokens_details" in usage
        else fresh + sum(_parse_token_count(usage.get(name)) or 0 for name in _CACHE_FIELDS)
    )


def _get_first_count(usage: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if (count := _parse_token_count(usage.get(name))) is not None:
            return count
    return None


def _parse_token_count(value: Any) -> int | None:
    """Return a count of tokens; None for what is none."""
    return int(value) if type(value) in {int, float} and 0 <= value < 10**15 else None
