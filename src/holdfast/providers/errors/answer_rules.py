"""Classify an answer that came without an error: complete, cut off, or given to a prompt that was cut silently."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.providers.errors.patterns import OVERFLOW_CODE
from holdfast.providers.errors.report import AnswerReport, Verdict
from holdfast.state.calibration.calibration import MAX_BELIEVED_TOKENS, MAX_CALIBRATION_RATIO, PLAUSIBLE_FACTOR

# Some servers let the prompt fill the window and then stop with `length` before the first word (seen with Xiaomi MiMo;
# pi tests for the same share). The last percent allows for template tokens that usage does not count.
FULL_WINDOW_SHARE = 0.99
"""Share of the window a prompt must fill for an empty answer that ended as too long to count as an overflow."""
# Ollama drops the front of a prompt that is too long and reports only what it kept (a prompt of 159,000 characters was
# counted as 16,386 tokens). Our estimate is never off by a factor of two, so a lower count means an unread prompt.
UNREAD_PROMPT_SHARE = 0.5
"""Share of our estimate that the reported prompt must reach for the provider to have read all of it."""
# Chosen by judgement. Lower, and templates and rounding of short prompts pass for truncation; higher, and truncation
# in a very small window goes unnoticed.
MIN_COMPARED_TOKENS = 1_000
"""Estimated tokens from which ``UNREAD_PROMPT_SHARE`` is applied."""
# The estimate may be too low for documents, and a window may be larger than we assumed, but not both by so much: a
# gateway that sums up a session reported 25 million tokens for a request of 61,000.
IMPOSSIBLE_ESTIMATE_FACTOR = PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO
"""Multiple of our estimate above which a reported prompt is not believed, if it is far over the window too."""
IMPOSSIBLE_WINDOW_FACTOR = 2
"""Multiple of the assumed window that an answered prompt cannot have had."""
_NON_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")
_LENGTH_REASONS = frozenset(
    {"length", "maxtokens", "maxoutputtokens", "maxcompletiontokens", "incomplete", "modellength", "tokenlimit"}
)
# Anthropic ends an answer that holds only a summary with this reason. Its usage is that of the summary's own call,
# which must not be compared with the window or with our estimate.
_COMPACTION_REASON = "compaction"
_FAILURE_REASONS = frozenset({"error", "failed", "malformedfunctioncall", "other", "cancelled", "networkerror"})
_PROMPT_FIELDS_WITH_CACHE = (
    "prompt_tokens",
    "promptTokenCount",
    "prompt_token_count",
    "prompt_eval_count",
    "inputTokenCount",
)
"""Usage fields that include the cached part of the prompt (Chat Completions, Gemini, Ollama)."""
_PROMPT_FIELDS = ("input_tokens", "inputTokens", "input")
_CACHE_FIELDS = (
    "cache_read_input_tokens", "cache_creation_input_tokens", "cacheReadInputTokens", "cacheWriteInputTokens",
    "cache_read", "cache_write", "cacheRead", "cacheWrite",
)  # fmt: skip
"""Usage fields that ``input_tokens`` does not include, and that are added to it (Anthropic, Bedrock, pi)."""
_OUTPUT_FIELDS = (
    "output_tokens", "completion_tokens", "candidatesTokenCount", "candidates_token_count", "outputTokens", "output",
    "eval_count",
)  # fmt: skip


def classify_answer_report(report: AnswerReport) -> Verdict:
    """Classify an answer by its finish reason and its usage; the text of the answer is never looked at."""
    reason = _NON_ALPHANUMERIC.sub("", report.finish_reason.lower())
    # `model_context_window_exceeded` arrives under HTTP 200, without an error object.
    if OVERFLOW_CODE.search(reason):
        return Verdict("context_window", report.window, count_prompt_tokens(report.usage))
    if reason == _COMPACTION_REASON:
        return Verdict("content")
    is_truncated = reason in _LENGTH_REASONS
    silent_overflow = _find_silent_overflow(report, is_truncated=is_truncated)
    if silent_overflow is not None:
        return silent_overflow
    if reason in _FAILURE_REASONS:
        return Verdict("unknown")
    return Verdict("output_limit" if is_truncated else "content")


def _find_silent_overflow(report: AnswerReport, *, is_truncated: bool) -> Verdict | None:
    """Find an overflow that the provider did not report as an error, or return None if the usage shows none."""
    prompt_tokens = count_prompt_tokens(report.usage)
    if prompt_tokens is None:
        return None
    if _is_impossible_usage(report, prompt_tokens):
        return None
    window = report.window or 0
    if window:
        output_tokens = _get_first_count(report.usage, _OUTPUT_FIELDS)
        is_cut_at_first_token = is_truncated and not output_tokens and prompt_tokens >= FULL_WINDOW_SHARE * window
        if prompt_tokens > window or is_cut_at_first_token:
            return Verdict("silent_overflow", window, prompt_tokens)
    estimate = report.estimate
    if estimate is None or estimate < MIN_COMPARED_TOKENS:
        return None
    if prompt_tokens < UNREAD_PROMPT_SHARE * estimate:
        return Verdict("silent_truncation")
    return None


def _is_impossible_usage(report: AnswerReport, prompt_tokens: int) -> bool:
    """Return whether a request that was answered cannot have had ``prompt_tokens``; such a usage says nothing."""
    if prompt_tokens > MAX_BELIEVED_TOKENS:
        return True
    if report.estimate is None or not report.window:
        return False
    is_over_estimate = prompt_tokens > IMPOSSIBLE_ESTIMATE_FACTOR * report.estimate
    return is_over_estimate and prompt_tokens > IMPOSSIBLE_WINDOW_FACTOR * report.window


def count_prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """Return the prompt's tokens, including cached ones, from the usage of any API, or None if it has no count.

    If the provider called its model several times (Anthropic's ``iterations``), return the longest of those prompts:
    the top-level fields are sums over the calls and leave out compactions.
    """
    calls = usage.get("iterations")
    call_tokens = []
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping):
            tokens = _count_call_prompt_tokens(call)
        else:
            tokens = None
        if tokens is not None:
            call_tokens.append(tokens)
    if call_tokens:
        return max(call_tokens)
    return _count_call_prompt_tokens(usage)


def _count_call_prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """Return the prompt's tokens of a single model call, or None if ``usage`` has no count."""
    tokens_with_cache = _get_first_count(usage, _PROMPT_FIELDS_WITH_CACHE)
    if tokens_with_cache is not None:
        return tokens_with_cache
    input_tokens = _get_first_count(usage, _PROMPT_FIELDS)
    if input_tokens is None:
        return None
    # Responses and Anthropic share the name `input_tokens`. Only Responses has details beside it, and only there the
    # cached tokens are included already.
    if "input_tokens_details" in usage:
        return input_tokens
    return input_tokens + sum(_parse_token_count(usage.get(name)) or 0 for name in _CACHE_FIELDS)


def _get_first_count(usage: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        count = _parse_token_count(usage.get(name))
        if count is not None:
            return count
    return None


def _parse_token_count(value: Any) -> int | None:
    """Return ``value`` as a number of tokens, or None if it is not a plausible one."""
    # `type` rather than isinstance: True is an int, and not a count. NaN and infinity fail the comparison.
    if type(value) in {int, float} and 0 <= value < 10**15:
        return int(value)
    return None
