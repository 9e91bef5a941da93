"""What an error is. The rules stand in order, and the first that knows decides: order and numbers, not more patterns.

First come numbers that say that no waiting helps; then whoever refuses to serve at all (rates, quotas, money); then
exact names; then what a smaller prompt does not cure (images, identifiers, the answer's length); then the wordings of a
prompt that does not fit, the narrow ones under any status, the wide ones where the status lets them; then the rest.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeAlias

from holdfast.providers.errors import patterns as words
from holdfast.providers.errors.error_facts import ErrorFacts, collect_error_facts
from holdfast.providers.errors.non_size_causes import (
    NON_SIZE_CODES,
    PAYMENT_CODES,
    find_cause_by_code,
    find_non_size_cause,
)
from holdfast.providers.errors.number_text import parse_retry_delay
from holdfast.providers.errors.report import OVERFLOW_KINDS, ErrorReport, Verdict, VerdictKind
from holdfast.providers.errors.stated_sizes import (
    find_body_limit,
    find_combined_sizes,
    find_rate_allowance,
    find_rate_sizes,
    find_stated_sizes,
)

ErrorRule: TypeAlias = Callable[[ErrorFacts, ErrorReport], Verdict | None]

LONG_CONTEXT_TOKENS = 200_000
"""Tokens from which Anthropic asks for extra usage."""
NEARLY_FULL_SHARE = 0.8
"""Share of the window from which a 400 without a reason is one of size (LibreChat's probe of Vertex)."""
MIN_OVERFLOW_SHARE = 0.5
"""[H] Share of the window below which our estimate says that a request is none that is too long."""
_NON_SIZE_STATUSES = frozenset({401, 402})
"""Statuses under which no wording of size is believed; under 429 only one whose numbers agree is."""
_TOO_MANY_REQUESTS = 429
_STRICT_STATUSES = _NON_SIZE_STATUSES | {403, _TOO_MANY_REQUESTS}
"""Statuses under which only a name with the context in it is believed: a plan has its limit of prompts too."""
_LENIENT_STATUSES = frozenset({400, 413, 422})
"""Statuses under which wide wordings of size are believed too; so they are with no error status at all."""
_VAGUE_KINDS = frozenset({"invalid_request", "server"})
"""What the name of an error says that says nothing but that it is one."""
_WAITING_STATUSES = frozenset({400, 403, 422})
"""Statuses that gateways send with a time to come back, as 429 would be."""
_FIRM_STATUSES = frozenset({403, 422})
"""Of them those that mean what they say, unless the error itself speaks of waiting: a header may be on any answer."""
_WINDOW_NUMBER = re.compile(r"(?<![\w.])\d{4,15}(?![\w.]*\d)")
"""Numbers that a window may be."""
_BODYLESS_PROVIDERS = ("cerebras",)
"""Providers that answer an overflow with a bare status."""
_ID_OR_NAME_PATH = re.compile(r"(?:^|[._])(?:id|tool_call_id|call_id|tool_use_id|name)$")
_CONTENT_PATH = re.compile(
    r"^(?:messages|input|contents)\b.*(?:output|content|text|arguments|input|data)[\]\d\[]*$|^input$"
)

_KIND_BY_CODE: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    *PAYMENT_CODES,
    (re.compile(r"image|invalidmedia"), "media"),
    *NON_SIZE_CODES,
    (re.compile(r"modelnotfound|notfound|modeldoesnotexist|unknownmodel"), "model"),
    (re.compile(r"timeout|timedout|econn|connection|network|abort|epipe|eaiagain|deadlineexceeded"), "network"),
    (re.compile(r"^config(?:uration)?$"), "config"),
    (re.compile(r"servererror|apierror|^internal|modelstreamerror|modelerror|serverfault"), "server"),
    (re.compile(r"invalid|validation|badrequest|unprocessable|unsupported|malformed"), "invalid_request"),
)  # fmt: skip
"""Names of errors, letters alone; the ones that say most stand first."""
_SERVICE_REFUSALS: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (words.DEFINITE_QUOTA, "quota"),
    (words.RATE_LIMIT, "rate_limit"),
    (words.BILLING_LIMIT, "billing"),
    (words.QUOTA_LIMIT, "quota"),
)
_FALLBACK_WORDINGS: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (words.NETWORK_ERROR, "network"),
    (words.AUTH_ERROR, "auth"),
    (words.MODEL_ERROR, "model"),
    (words.SERVER_ERROR, "server"),
)
_KIND_BY_STATUS: dict[int, VerdictKind] = {
    400: "invalid_request", 401: "auth", 402: "billing", 403: "auth", 404: "server", 405: "server", 406: "server",
    407: "auth", 408: "network", 409: "server", 410: "model", 414: "server", 422: "invalid_request",
    424: "server", 429: "rate_limit", 431: "server", 499: "network", 503: "overloaded", 504: "network",
    522: "network", 524: "network", 529: "overloaded",
}  # fmt: skip


def classify_error_report(report: ErrorReport) -> Verdict:
    """Return what an error is; ``unknown`` where nothing tells."""
    facts = collect_error_facts(report)
    verdict = next(filter(None, (rule(facts, report) for rule in ERROR_RULES)), Verdict("unknown"))
    if verdict.kind in OVERFLOW_KINDS:
        return verdict
    return Verdict(verdict.kind, verdict.limit, verdict.requested, _find_retry_after(facts, report))


def _find_retry_after(facts: ErrorFacts, report: ErrorReport) -> float | None:
    """Return the seconds to wait: by header, else by a field of the body, else by the text."""
    headers = {name.lower(): value for name, value in report.headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", headers.get(name, "").strip()):
            return float(headers[name]) * unit
    retry_time = _parse_http_date(headers.get("retry-after", ""))
    came = _parse_http_date(headers.get("date", "")) or report.received_at
    if retry_time is not None and came is not None and retry_time > came:  # one that passed says nothing
        return retry_time - came
    return facts.retry_delays[-1] if facts.retry_delays else parse_retry_delay(facts.raw_text)


def _parse_http_date(text: str) -> float | None:
    """Return an HTTP date in seconds since 1970, in UTC where it names no zone; nothing for what is none."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _get_error_status(facts: ErrorFacts, report: ErrorReport) -> int:
    """Return the status of the response; where that is none or a success, the one that the error names."""
    status = report.status or 0
    return status if status >= 400 else max((code for code in facts.statuses if code >= 400), default=status)


def _build_overflow_verdict(facts: ErrorFacts) -> Verdict:
    """Return the overflow with its numbers: of the window alone, or of prompt and answer together."""
    together = find_combined_sizes(facts)
    if together is None:
        sizes = find_stated_sizes(facts)
        return Verdict("context_window", sizes.limit, sizes.requested)
    kind: VerdictKind = "context_window" if together.output == 0 else "input_plus_output"
    return Verdict(kind, together.limit, together.requested)


# -- the rules, in their order -----------------------------------------------------------------------------------------


def _detect_agent_guard(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """An agent's own words about its settings or its compaction are no answer of a provider."""
    return Verdict("config") if words.AGENT_GUARD.search(facts.plain_text) else None


def _detect_rate_ceiling(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Tokens a minute: a request over the whole limit never fits; up to it, waiting helps."""
    sizes = find_rate_sizes(facts)
    if sizes is not None:
        return Verdict("tpm_ceiling" if sizes.is_over_limit else "rate_limit", sizes.limit, sizes.requested)
    allowed = find_rate_allowance(facts)
    if allowed is not None and report.estimate is not None and report.estimate > allowed:
        return Verdict("tpm_ceiling", allowed)
    return None


def _detect_long_context_tier(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Long context that is not paid for: too large, or, where our own estimate says that it was not long, the account.

    Sent to a model of a million tokens even a short one is refused so, and as often as it is sent.
    """
    if not words.LONG_CONTEXT_TIER.search(facts.plain_text):
        return None
    small = report.estimate is not None and report.estimate <= LONG_CONTEXT_TOKENS
    return Verdict("billing" if small else "tier_gate")


def _detect_service_refusal(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Rates, quotas and money, whatever else the text says."""
    kind = next((kind for pattern, kind in _SERVICE_REFUSALS if pattern.search(facts.plain_text)), None)
    if kind == "billing" and _get_error_status(facts, report) in _LENIENT_STATUSES and _has_agreeing_sizes(facts):
        return None
    kind = kind or next((kind for pattern, kind in PAYMENT_CODES if any(map(pattern.search, facts.codes))), None)
    return Verdict(kind) if kind else None


def _has_agreeing_sizes(facts: ErrorFacts) -> bool:
    """Return whether the wording is of size, and the error's numbers agree."""
    return words.CONTEXT_OVERFLOW.search(facts.plain_text) is not None and find_stated_sizes(facts).is_over_limit


def _unless_other_cause(rule: ErrorRule) -> ErrorRule:
    """Return ``rule`` with its size believed only where neither time, money, capacity nor who asks is the matter."""

    @functools.wraps(rule)
    def checked(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
        verdict = rule(facts, report)
        kind = find_non_size_cause(facts) if verdict else None
        return Verdict(kind) if kind else verdict

    return checked


def _detect_context_code(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """A code that names the context decides, also inside of a stream, unless another names a refusal to serve."""
    names = _list_overflow_names(facts)
    has_context_name = (
        any("context" in name for name in names) and _get_error_status(facts, report) not in _NON_SIZE_STATUSES
    )
    return _build_overflow_verdict(facts) if has_context_name and find_cause_by_code(facts) is None else None


@_unless_other_cause
def _detect_size_code(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """A code that names tokens or the prompt may be one of a rate or a plan, where the status says so."""
    return (
        _build_overflow_verdict(facts)
        if _list_overflow_names(facts) and _get_error_status(facts, report) not in _STRICT_STATUSES
        else None
    )


def _list_overflow_names(facts: ErrorFacts) -> list[str]:
    """Return the exact names of an overflow, in codes and in the text."""
    codes = [code for code in facts.codes if words.OVERFLOW_CODE.search(code)]
    return codes + [match[0] for match in words.OVERFLOW_NAME.finditer(facts.plain_text)]


@_unless_other_cause
def _detect_oversized_part(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """One part that is too large, or too many messages; and names too long, which is another matter."""
    if _get_error_status(facts, report) in _STRICT_STATUSES:
        return None
    string = words.STRING_TOO_LONG.search(facts.plain_text)
    if string and _CONTENT_PATH.search(string[1]) and not _ID_OR_NAME_PATH.search(string[1]):
        return Verdict("oversized_part")
    if string:
        history = string[1].startswith(("messages", "input", "contents"))
        return Verdict("invalid_history" if history else "invalid_request")
    if "string too long. expected a string with maximum length" in facts.plain_text:
        return Verdict("oversized_part")
    if words.ARRAY_TOO_LONG.search(facts.plain_text):
        return Verdict("message_count")
    return Verdict("oversized_part") if words.PART_TOO_LARGE.search(facts.plain_text) else None


@_unless_other_cause
def _detect_stated_byte_limit(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """A body too large in bytes, by their number; of images together too, whose number sending fewer cures."""
    max_bytes = find_body_limit(facts) if _is_lenient_status(facts, report) else None
    return Verdict("request_bytes", max_bytes=max_bytes) if max_bytes else None


def _detect_other_remedy(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """Settings of the server, caches, the answer's length and media: a smaller prompt cures none of them."""
    if words.SERVER_SETTINGS.search(facts.plain_text):
        return Verdict("config")
    if words.CACHE_ERROR.search(facts.plain_text) or words.THINKING_BUDGET.search(facts.plain_text):
        return Verdict("invalid_request")
    if words.NO_ROOM_FOR_OUTPUT.search(facts.plain_text) or find_combined_sizes(facts):
        return None
    if words.OUTPUT_LIMIT.search(facts.plain_text) and not _has_agreeing_sizes(facts):
        return Verdict("output_limit")
    return (
        Verdict("media")
        if words.MEDIA_ERROR.search(facts.plain_text) and not words.CONTEXT_OVERFLOW.search(facts.plain_text)
        else None
    )


@_unless_other_cause
def _detect_context_wording(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Wordings that mean the window and nothing else, under nearly every status."""
    wording = (
        words.CONTEXT_OVERFLOW.search(facts.plain_text)
        or words.NO_ROOM_FOR_OUTPUT.search(facts.plain_text)
        or find_combined_sizes(facts)
    )
    status = _get_error_status(facts, report)
    if not wording or status in _NON_SIZE_STATUSES or (status == _TOO_MANY_REQUESTS and not _has_agreeing_sizes(facts)):
        return None
    return _build_overflow_verdict(facts)


@_unless_other_cause
def _detect_body_size(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """A body too large in bytes."""
    has_size_wording = "requesttoolarge" in facts.codes or words.BODY_TOO_LARGE.search(facts.plain_text)
    return Verdict("request_bytes") if has_size_wording and _is_lenient_status(facts, report) else None


@_unless_other_cause
def _detect_token_wording(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Wide wordings of tokens, and bare numbers of tokens of which the one is over the other."""
    if not _is_lenient_status(facts, report):
        return None
    sizes = find_stated_sizes(facts)
    numbers = sizes.is_over_limit and re.search(r"token|context|prompt", facts.plain_text) is not None
    return _build_overflow_verdict(facts) if words.TOKEN_OVERFLOW.search(facts.plain_text) or numbers else None


def _is_lenient_status(facts: ErrorFacts, report: ErrorReport) -> bool:
    status = _get_error_status(facts, report)
    return status < 400 or status in _LENIENT_STATUSES


@_unless_other_cause
def _detect_bare_refusal(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """A bare 400 is one of size where the provider is known for it, or where our estimate nearly fills the window."""
    status = _get_error_status(facts, report)
    if status not in _LENIENT_STATUSES or not words.has_no_reason(facts.plain_text):
        return None
    is_known_provider = any(name in report.provider.lower() for name in _BODYLESS_PROVIDERS)
    if is_known_provider or (
        status != 413 and report.estimate and report.window and report.estimate >= NEARLY_FULL_SHARE * report.window
    ):
        return Verdict("context_window")
    return None


@_unless_other_cause
def _detect_status_413(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Any other 413."""
    return Verdict("request_bytes") if _get_error_status(facts, report) == 413 else None


def _detect_overload(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """A provider that is busy."""
    return Verdict("overloaded") if words.PROVIDER_OVERLOADED.search(facts.plain_text) else None


def _detect_invalid_request(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """A request that is wrong in itself: its model, its history, or anything else of it."""
    status = _get_error_status(facts, report)
    if (status in {400, 404, 410, 422} or status < 400) and words.MODEL_ERROR.search(facts.plain_text):
        return Verdict("model")
    if status in {400, 403} and words.FLAGGED_CONTENT.search(facts.plain_text):
        return Verdict("invalid_request")
    if status in {400, 404} and words.UNKNOWN_PREVIOUS_RESPONSE.search(facts.plain_text):
        return Verdict("invalid_history")
    if status not in {400, 422} and status >= 400:
        return None
    if words.AUTH_ERROR.search(facts.plain_text) and not words.INVALID_HISTORY.search(facts.plain_text):
        return Verdict("auth")
    if words.INVALID_REQUEST.search(facts.plain_text):
        return Verdict("invalid_request")
    return Verdict("invalid_history") if words.INVALID_HISTORY.search(facts.plain_text) else None


def _detect_retry_time(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """A time to come back and no other reason: what is wrong in itself is not cured by waiting, in any language."""
    status = _get_error_status(facts, report)
    stated_delay = facts.retry_delays or parse_retry_delay(facts.raw_text)
    wait_time = stated_delay if status in _FIRM_STATUSES else stated_delay or _find_retry_after(facts, report)
    if (status >= 400 and status not in _WAITING_STATUSES) or not wait_time or _has_other_reason(facts, report):
        return None
    return Verdict("rate_limit")


@_unless_other_cause
def _detect_known_window(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Our own window among the numbers, one over it, and a request that may be so long: too long, in any language."""
    numbers = {*map(int, _WINDOW_NUMBER.findall(facts.plain_text))}
    if report.window not in numbers or max(numbers) <= report.window or not _is_lenient_status(facts, report):
        return None
    is_small = report.estimate is not None and report.estimate < MIN_OVERFLOW_SHARE * report.window
    return None if is_small or _has_other_reason(facts, report) else Verdict("context_window", report.window)


def _has_other_reason(facts: ErrorFacts, report: ErrorReport) -> bool:
    """Whether a name or the wording of an error says what it is."""
    return bool({*_list_kinds_by_code(facts)} - _VAGUE_KINDS or _classify_by_wording(facts, report))


def _classify_by_code(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """The name of the error."""
    status = _get_error_status(facts, report)
    says = [kind for kind in _list_kinds_by_code(facts) if kind not in _VAGUE_KINDS or status <= 400]
    return Verdict(says[0]) if says else None


def _list_kinds_by_code(facts: ErrorFacts) -> list[VerdictKind]:
    """Return what the names in an error are names of, what says most first."""
    return [kind for pattern, kind in _KIND_BY_CODE if any(map(pattern.search, facts.codes))]


def _classify_by_status(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """The status of the response."""
    status = _get_error_status(facts, report)
    if status >= 500:
        return Verdict(_KIND_BY_STATUS.get(status, "server"))
    return Verdict(_KIND_BY_STATUS.get(status, "invalid_request")) if status >= 400 else None


def _classify_by_wording(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """What is left when neither name nor status is known."""
    return next((Verdict(kind) for pattern, kind in _FALLBACK_WORDINGS if pattern.search(facts.plain_text)), None)


ERROR_RULES: tuple[ErrorRule, ...] = (
    _detect_agent_guard,
    _detect_rate_ceiling,
    _detect_long_context_tier,
    _detect_service_refusal,
    _detect_context_code,
    _detect_size_code,
    _detect_oversized_part,
    _detect_stated_byte_limit,
    _detect_other_remedy,
    _detect_context_wording,
    _detect_body_size,
    _detect_token_wording,
    _detect_bare_refusal,
    _detect_status_413,
    _detect_overload,
    _detect_invalid_request,
    _detect_retry_time,
    _detect_known_window,
    _classify_by_code,
    _classify_by_status,
    _classify_by_wording,
)
