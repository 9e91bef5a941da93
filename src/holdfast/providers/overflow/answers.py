"""What an answer is that came without an error: whole, cut by the window, or given to a prompt that was cut unseen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.providers.overflow.patterns import OVERFLOW_CODE
from holdfast.providers.overflow.report import AnswerReport, Verdict

FULL = 0.99
"""Share of the window that an answer cut at its first token leaves filled (Xiaomi MiMo; pi's silent overflow)."""
UNSEEN = 0.5
"""Reported prompt over our estimate, below which the provider cannot have read all of it (Ollama cuts the front)."""
TELLING = 1_000
"""Tokens estimated from which that share means anything."""
_NO_LETTER = re.compile(r"[^a-z0-9]+")
_CUT = frozenset(
    {"length", "maxtokens", "maxoutputtokens", "maxcompletiontokens", "incomplete", "modellength", "tokenlimit"}
)
_COMPACTED = "compaction"
"""Why an answer ended that is a summary and nothing else (Anthropic): the prompt was read by the one who made it."""
_FAILED = frozenset({"error", "failed", "malformedfunctioncall", "other", "cancelled", "networkerror"})
_PROMPT_WITH_CACHE = ("prompt_tokens", "promptTokenCount", "prompt_token_count", "prompt_eval_count", "inputTokenCount")
"""Fields that count the cached part in (Chat, Gemini, Ollama)."""
_PROMPT = ("input_tokens", "inputTokens", "input")
_CACHE = (
    "cache_read_input_tokens", "cache_creation_input_tokens", "cacheReadInputTokens", "cacheWriteInputTokens",
    "cache_read", "cache_write", "cacheRead", "cacheWrite",
)  # fmt: skip
"""Fields that stand beside ``input_tokens`` and are not counted in it (Anthropic, Bedrock, pi)."""
_OUTPUT = (
    "output_tokens", "completion_tokens", "candidatesTokenCount", "candidates_token_count", "outputTokens", "output",
    "eval_count",
)  # fmt: skip


def of_answer(report: AnswerReport) -> Verdict:
    """Return what an answer is, by its finish reason and its usage alone."""
    reason = _NO_LETTER.sub("", report.finish_reason.lower())
    if OVERFLOW_CODE.search(reason):
        return Verdict("context_window", report.window, prompt_tokens(report.usage))
    if reason == _COMPACTED:
        return Verdict("content")
    cut = reason in _CUT
    silent = _silent(report, cut=cut)
    if silent is not None:
        return silent
    if reason in _FAILED:
        return Verdict("unknown")
    return Verdict("output_limit" if cut else "content")


def _silent(report: AnswerReport, *, cut: bool) -> Verdict | None:
    """Return the overflow that no error told of; None where the usage shows none."""
    prompt = prompt_tokens(report.usage)
    if prompt is None:
        return None
    output, window = _first(report.usage, _OUTPUT), report.window or 0
    if window and (prompt > window or (cut and not output and prompt >= FULL * window)):
        return Verdict("silent_overflow", window, prompt)
    if report.estimate is not None and report.estimate >= TELLING and prompt < UNSEEN * report.estimate:
        return Verdict("silent_truncation")
    return None


def prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """Return the tokens of the prompt, cached ones counted in, for the usage of any API; None where it tells none.

    Where a provider called its model more than once (Anthropic's ``iterations``), it is the longest prompt of these:
    the fields beside them are sums, and leave compactions out.
    """
    calls = usage.get("iterations")
    each = [_prompt(one) for one in calls if isinstance(one, Mapping)] if isinstance(calls, list) else []
    return max((one for one in each if one is not None), default=_prompt(usage))


def _prompt(usage: Mapping[str, Any]) -> int | None:
    """Return the tokens of the prompt of one call."""
    whole = _first(usage, _PROMPT_WITH_CACHE)
    if whole is not None:
        return whole
    fresh = _first(usage, _PROMPT)
    if fresh is None:
        return None
    return fresh if "input_tokens_details" in usage else fresh + sum(_count(usage.get(name)) or 0 for name in _CACHE)


def _first(usage: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if (count := _count(usage.get(name))) is not None:
            return count
    return None


def _count(value: Any) -> int | None:
    """Return a count of tokens; None for what is none."""
    return int(value) if type(value) in {int, float} and 0 <= value < 10**15 else None
