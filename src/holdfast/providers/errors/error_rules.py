"""Classify an error by rules that are tried in order; the first rule with a verdict decides.

Order and numbers separate the errors of providers better than more patterns do: each list of overflow wordings of other
tools that we measured missed a third or more of the overflows, and most had false alarms. ``ERROR_RULES`` goes

1. from numbers which show that waiting cannot help,
2. through refusals to serve at all (rates, quotas, money) and exact error codes,
3. and what a smaller prompt does not cure (images, identifiers, the answer's length),
4. to the wordings of an overflow: narrow ones under nearly any status, wide ones where the status allows it,
5. and at last to whatever code, status or wording is left.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.providers.errors import patterns as words
from holdfast.providers.errors.error_facts import ErrorFacts, collect_error_facts
from holdfast.providers.errors.excess_statements import ExcessStatement, find_excess_statements
from holdfast.providers.errors.non_size_causes import (
    NON_SIZE_CODES,
    PAYMENT_CODES,
    find_cause_by_code,
    find_non_size_cause,
)
from holdfast.providers.errors.number_text import parse_retry_delay
from holdfast.providers.errors.report import OVERFLOW_KINDS, ErrorReport, Verdict, VerdictKind
from holdfast.providers.errors.stated_sizes import (
    complete_sizes,
    find_byte_sizes,
    find_combined_sizes,
    find_output_cap,
    find_rate_allowance,
    find_rate_sizes,
    find_stated_sizes,
    is_lower_bound,
    is_output_number,
)

ErrorRule: TypeAlias = Callable[[ErrorFacts, ErrorReport], Verdict | None]

LONG_CONTEXT_TOKENS = 200_000
"""Prompt tokens above which Anthropic asks for extra usage on models with a window of a million tokens."""
# LibreChat's probe of Vertex got a 400 without any reason for prompts that were too long. Lower, and other bare 400s
# (a wrong field) cause a useless compaction; higher, and an estimate that is a little low misses the overflow.
NEARLY_FULL_SHARE = 0.8
"""Share of the window our estimate must reach for a 400 without a reason to count as an overflow."""
# Chosen by judgement: our estimate is not off by a factor of two, so a request below half of the window did fit.
MIN_OVERFLOW_SHARE = 0.5
"""Share of the window below which our estimate rules an overflow out."""
# Smaller pairs of numbers count messages, images or characters of a name.
MIN_STATED_WINDOW = 1_024
"""Least limit that two numbers without a known wording must state to count as a window."""
_NON_SIZE_STATUSES = frozenset({401, 402})
"""Statuses under which no wording of size is believed. (Under 429, one is believed if its numbers agree.)"""
_TOO_MANY_REQUESTS = 429
# A plan has limits on prompts and tokens too, so only a code with "context" in it is sure to mean the window here.
_STRICT_STATUSES = _NON_SIZE_STATUSES | {403, _TOO_MANY_REQUESTS}
"""Statuses under which only a code that names the context is believed to be about size."""
_LENIENT_STATUSES = frozenset({400, 413, 422})
"""Statuses under which wide wordings of size are believed too, as they are without an error status."""
# OpenAI's 429 `slow_down` and 503 `server_is_overloaded` (openai.com changelog, 2026-09-02), Cerebras' 429
# `queue_exceeded` (inference-docs.cerebras.ai): the server is full, whatever the account may use.
_BUSY_CODE = re.compile(r"^(?:slowdown|serverisoverloaded|queueexceeded|engineoverloaded(?:error)?)$")
_VAGUE_KINDS = frozenset({"invalid_request", "server"})
"""Kinds that generic codes (``invalid_request_error``, ``api_error``) map to; they rule nothing out."""
_WAITING_STATUSES = frozenset({400, 403, 422})
"""Statuses that some gateways send in place of 429, together with a time to come back."""
# Proxies put a Retry-After header on any answer. Under these two the status is taken at its word, and only a delay in
# the error itself makes it a rate limit.
_FIRM_STATUSES = frozenset({403, 422})
"""Those of ``_WAITING_STATUSES`` under which a ``Retry-After`` header alone proves nothing."""
_WINDOW_NUMBER = re.compile(r"(?<![\w.])\d{4,15}(?![\w.]*\d)")
"""Numbers that may be the size of a window."""
# "Prompt exceeds max length", in English or Chinese by the language of the client (docs.z.ai/api-reference/api-code).
_GLM_OVERFLOW_CODE = "1261"
_BODYLESS_PROVIDERS = ("cerebras",)
"""Providers that answer an overflow with a bare status and no body."""
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
"""Normalized error codes and their kinds, the most specific first: one code can match several."""
# In this order, because texts overlap: a monthly quota that is used up also says when it "resets in", as rate limits
# do; a rate limit may mention the account's balance; and a bare "quota" says least.
_SERVICE_REFUSALS: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (words.UPSTREAM_DOWN, "network"),
    (words.SATURATED, "overloaded"),
    (words.MINUTE_QUOTA, "rate_limit"),
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
    """Classify an error; the kind is ``unknown`` if no rule applies."""
    facts = collect_error_facts(report)
    verdict = Verdict("unknown")
    for rule in ERROR_RULES:
        rule_verdict = rule(facts, report)
        if rule_verdict is not None:
            verdict = rule_verdict
            break
    # Waiting does not make a request smaller, so an overflow has no time to come back.
    if verdict.kind in OVERFLOW_KINDS:
        return verdict
    return replace(verdict, retry_after=_find_retry_after(facts, report))


def _find_retry_after(facts: ErrorFacts, report: ErrorReport) -> float | None:
    """Return the seconds to wait from a header, else from a field of the body, else from the text, or None."""
    headers = {name.lower(): value for name, value in report.headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text.strip()):
            return float(text) * unit
    retry_time = _parse_http_date(headers.get("retry-after", ""))
    # The server's own clock where it told its time: the two dates may be off by the same amount from ours.
    sent_at = _parse_http_date(headers.get("date", "")) or report.received_at
    if retry_time is not None and sent_at is not None and retry_time > sent_at:  # a date that has passed says nothing
        return retry_time - sent_at
    if facts.retry_delays:
        return facts.retry_delays[-1]  # the longest: coming back too early costs another refusal
    return parse_retry_delay(facts.raw_text)


def _parse_http_date(text: str) -> float | None:
    """Parse an HTTP date to seconds since 1970, as UTC if it names no time zone, or return None if it is malformed."""
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return date.timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _get_error_status(facts: ErrorFacts, report: ErrorReport) -> int:
    """Return the HTTP status of the response or, if it is missing or a success, the one that the error states.

    Errors inside of a stream come under HTTP 200. The result is 0 if nothing states an error status.
    """
    status = report.status or 0
    if status >= 400:
        return status
    return max((code for code in facts.statuses if code >= 400), default=status)


def _build_overflow_verdict(facts: ErrorFacts) -> Verdict:
    """Build the verdict of an overflow with its numbers, of the prompt alone or of prompt and answer together."""
    combined_sizes = find_combined_sizes(facts)
    if combined_sizes is None:
        sizes = complete_sizes(facts)
        is_minimum = is_lower_bound(facts, sizes.requested)
        return Verdict("context_window", sizes.limit, sizes.requested, is_requested_minimum=is_minimum)
    if combined_sizes.output == 0:
        kind: VerdictKind = "context_window"
    else:
        kind = "input_plus_output"
    is_minimum = is_lower_bound(facts, combined_sizes.requested)
    return Verdict(kind, combined_sizes.limit, combined_sizes.requested, is_requested_minimum=is_minimum)


def _find_first_match(wordings: tuple[tuple[re.Pattern[str], VerdictKind], ...], text: str) -> VerdictKind | None:
    """Return the kind of the first pattern that occurs in ``text``, or None."""
    for pattern, kind in wordings:
        if pattern.search(text):
            return kind
    return None


# -- the rules, in their order -----------------------------------------------------------------------------------------


def _detect_agent_guard(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize an agent's own error about its settings or its tools, which no provider sent.

    Hermes repeats a provider's 413 beside its own "cannot compress further" (NousResearch/hermes-agent#88960).
    """
    status = _get_error_status(facts, report)
    # A server's log about a prompt that it cut (ollama/ollama#10368) refuses nothing.
    if status < 400 and words.LOG_LINE.search(facts.plain_text):
        return Verdict("unknown")
    if words.AGENT_GUARD.search(facts.plain_text) is None:
        return None
    if status == 413 and words.BODY_TOO_LARGE.search(facts.plain_text):
        return None
    return Verdict("config")


def _detect_rate_ceiling(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize a limit of tokens a minute. A request over the whole limit never fits; below it, waiting helps."""
    sizes = find_rate_sizes(facts)
    if sizes is not None:
        return Verdict("tpm_ceiling" if sizes.is_over_limit else "rate_limit", sizes.limit, sizes.requested)
    allowed = find_rate_allowance(facts)
    if allowed is not None and report.estimate is not None and report.estimate > allowed:
        return Verdict("tpm_ceiling", allowed)
    return None


def _detect_long_context_tier(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize the refusal of a long context that the account has not paid for.

    It is an overflow unless our estimate says that the prompt was short: an account without extra usage gets the same
    refusal for every request to a model of a million tokens, and no compaction helps against that.
    """
    if not words.LONG_CONTEXT_TIER.search(facts.plain_text):
        return None
    is_short = report.estimate is not None and report.estimate <= LONG_CONTEXT_TOKENS
    return Verdict("billing" if is_short else "tier_gate")


def _detect_service_refusal(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize limits of rate, quota and money, whatever else the text says about tokens.

    Before all wordings of size: others have read "request reached organization TPD rate limit" as an overflow, and a
    compaction for a rate limit is followed by the next one.
    """
    # The texts of these codes sound like a limit of the account ("slow down", "queue exceeded").
    if any(map(_BUSY_CODE.search, facts.codes)):
        return Verdict("overloaded")
    kind = _find_first_match(_SERVICE_REFUSALS, facts.plain_text)
    # "credits" and "balance" are common words of texts too. Numbers that prove an overflow count for more.
    if kind == "billing" and _get_error_status(facts, report) in _LENIENT_STATUSES and _has_agreeing_sizes(facts):
        return None
    # Clients add advice about rates to every error of Bedrock.
    if kind == "rate_limit" and _has_complete_statement(facts):
        return None
    if kind is None:
        kind = next((kind for pattern, kind in PAYMENT_CODES if any(map(pattern.search, facts.codes))), None)
    return Verdict(kind) if kind else None


def _has_agreeing_sizes(facts: ErrorFacts) -> bool:
    """Return whether the wording is of an overflow and the stated numbers show one too."""
    if words.CONTEXT_OVERFLOW.search(facts.plain_text) is None:
        return False
    sizes = complete_sizes(facts)
    return sizes.is_over_limit and not is_output_number(facts, sizes.requested)


def _has_complete_statement(facts: ErrorFacts) -> bool:
    """Return whether a sentence states that the prompt does not fit, with both sizes, and the rest only advises.

    A time or a rate in the same sentence, or a certain rate in another, makes the limit one of time.
    """
    has_statement = False
    for sentence in words.SENTENCE_END.split(facts.plain_text):
        if words.RATE_LIMIT.search(sentence):
            if words.THROTTLE_ADVICE.search(sentence) is None:
                return False
        elif words.CONTEXT_OVERFLOW.search(sentence):
            sentence_facts = replace(facts, plain_text=sentence, counts={})
            has_statement = has_statement or _has_agreeing_sizes(sentence_facts) or _has_excessive_sum(sentence_facts)
    return has_statement


def _has_excessive_sum(facts: ErrorFacts) -> bool:
    """Return whether the error adds prompt and answer to more than the limit, which only a window has."""
    sizes = find_combined_sizes(facts)
    if sizes is None or sizes.limit is None or sizes.requested is None or not sizes.output:
        return False
    return sizes.requested + sizes.output > sizes.limit


def _detect_failed_compaction(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """Recognize an agent's report of its own failed compaction, unless it quotes the provider.

    A quoted error has a status, or stands behind a colon ("compaction failed: …: Input is too long").
    """
    failed_compaction = words.FAILED_COMPACTION.search(facts.plain_text)
    if failed_compaction is None or facts.codes or max(facts.statuses, default=0) >= 400:
        return None
    reason = facts.plain_text[failed_compaction.end() :].partition(": ")[2]
    if words.CONTEXT_OVERFLOW.search(reason) or words.TOKEN_OVERFLOW.search(reason):
        return None
    return Verdict("config")


def _unless_other_cause(rule: ErrorRule) -> ErrorRule:
    """Decorate a rule for overflows so that another cause in the same error (time, money, capacity, access) wins.

    The cause is looked for only once the rule has a verdict: its patterns ("wait", "busy", "today") are so wide that
    they mean something only in an error which also sounds like an overflow.
    """

    @functools.wraps(rule)
    def check_other_causes(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
        verdict = rule(facts, report)
        if verdict is None:
            return None
        other_cause = find_non_size_cause(facts)
        if other_cause is None:
            return verdict
        # A sum of prompt and answer over a limit has no other meaning, whatever advice stands beside it.
        is_advice = other_cause == "rate_limit" and find_cause_by_code(facts) is None and _has_excessive_sum(facts)
        if is_advice and _has_complete_statement(facts):
            return verdict
        return Verdict(other_cause)

    return check_other_causes


def _detect_context_code(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize an error code that names the context, unless another code names a refusal to serve.

    Without ``_unless_other_cause``: such a code is exact, also inside of a stream, and its text may mention anything.
    """
    has_context_name = any("context" in name for name in _list_overflow_names(facts))
    if not has_context_name or _get_error_status(facts, report) in _NON_SIZE_STATUSES:
        return None
    if find_cause_by_code(facts) is None:
        return _build_overflow_verdict(facts)
    return None


@_unless_other_cause
def _detect_size_code(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize an error code that names tokens or the prompt, unless the status makes it a limit of a rate or plan."""
    if not _list_overflow_names(facts) or _get_error_status(facts, report) in _STRICT_STATUSES:
        return None
    return _build_overflow_verdict(facts)


def _list_overflow_names(facts: ErrorFacts) -> list[str]:
    """List the exact names of an overflow that occur as codes or in the text."""
    names = [code for code in facts.codes if words.OVERFLOW_CODE.search(code) or code == _GLM_OVERFLOW_CODE]
    for match in words.OVERFLOW_NAME.finditer(facts.plain_text):
        names.append(match[0])
    return names


@_unless_other_cause
def _detect_oversized_part(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize one part that is too large, or too many messages.

    OpenAI's "string too long" comes for an id or a name as well. Making the conversation smaller cures only the first.
    """
    if _get_error_status(facts, report) in _STRICT_STATUSES:
        return None
    string_match = words.STRING_TOO_LONG.search(facts.plain_text)
    if string_match:
        path = string_match[1]
        if _CONTENT_PATH.search(path) and not _ID_OR_NAME_PATH.search(path):
            return Verdict("oversized_part")
        is_in_history = path.startswith(("messages", "input", "contents"))
        return Verdict("invalid_history" if is_in_history else "invalid_request")
    if "string too long. expected a string with maximum length" in facts.plain_text:
        return Verdict("oversized_part")
    if words.ARRAY_TOO_LONG.search(facts.plain_text):
        return Verdict("message_count")
    if words.PART_TOO_LARGE.search(facts.plain_text):
        return Verdict("oversized_part")
    return None


@_unless_other_cause
def _detect_stated_byte_limit(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize a body that is too large by a stated number of bytes.

    Before the rule for media: OpenAI's limit on the bytes of all images together is cured by sending fewer of them.
    """
    if not _is_lenient_status(facts, report):
        return None
    sizes = find_byte_sizes(facts)
    if sizes.limit:
        return Verdict("request_bytes", max_bytes=sizes.limit, sent_bytes=sizes.sent)
    return None


def _detect_other_remedy(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """Recognize errors in server settings, caches, the answer's length and media, which no smaller prompt cures."""
    text = facts.plain_text
    if words.SERVER_SETTINGS.search(text):
        return Verdict("config")
    if words.SERVER_MEMORY.search(text):
        return Verdict("server")
    if words.CACHE_ERROR.search(text) or words.THINKING_BUDGET.search(text):
        return Verdict("invalid_request")
    if words.NO_ROOM_FOR_OUTPUT.search(text) or find_combined_sizes(facts):
        return None
    if _is_about_output(facts):
        return Verdict("output_limit", output_cap=find_output_cap(facts))
    is_about_conversation = words.CONTEXT_OVERFLOW.search(text) and not words.MEDIA_SUBJECT.search(text)
    if words.MEDIA_ERROR.search(text) and not is_about_conversation:
        return Verdict("media")
    return None


def _is_about_output(facts: ErrorFacts) -> bool:
    """Return whether the error refuses the answer's length, and does not only mention it in an aside or an advice.

    "Prompt too long: … (leave room for output tokens)" and "… or reduce max_tokens" are about the prompt.
    """
    if words.OUTPUT_LENGTH.search(facts.plain_text):
        return True
    if words.OUTPUT_LIMIT.search(facts.plain_text) is None or _has_agreeing_sizes(facts):
        return False
    main_text = words.ASIDE.sub(" ", facts.plain_text)
    return words.OUTPUT_LIMIT.search(main_text) is not None or not words.CONTEXT_OVERFLOW.search(main_text)


_KIND_BY_SUBJECT: dict[str, VerdictKind] = {
    "media": "media", "output": "output_limit", "item": "invalid_request", "parameter": "invalid_request",
}  # fmt: skip
"""What is wrong if something other than the conversation is said to be too large."""


def _find_other_subject(facts: ErrorFacts) -> ExcessStatement | None:
    """Return the first statement of excess if none is about the conversation or about tokens, or None."""
    statements = find_excess_statements(facts.plain_text)
    if not statements or any(statement.is_about_conversation for statement in statements):
        return None
    if any(statement.has_tokens and statement.subject != "output" for statement in statements):
        return None
    return statements[0]


def _detect_other_subject(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize that something else is too large, where the conversation is only named beside it.

    "An image in the conversation exceeds the dimension limit" has all the words of an overflow.
    """
    if not _is_lenient_status(facts, report) or _has_agreeing_sizes(facts) or find_combined_sizes(facts):
        return None
    statement = _find_other_subject(facts)
    if statement is None or statement.subject not in _KIND_BY_SUBJECT:
        return None
    kind = _KIND_BY_SUBJECT[statement.subject]
    if kind == "media" or (kind == "invalid_request" and _get_error_status(facts, report) == 413):
        return Verdict(kind)
    overflow_wordings = (words.CONTEXT_OVERFLOW, words.TOKEN_OVERFLOW, words.BODY_TOO_LARGE)
    sounds_like_overflow = any(wording.search(facts.plain_text) for wording in overflow_wordings)
    # A time that is exceeded, or a number of attempts, has a kind of its own; "max tokens" may be the window's.
    return Verdict(kind) if sounds_like_overflow == (kind == "invalid_request") else None


@_unless_other_cause
def _detect_stated_excess(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize a statement that the prompt is too large, in words that no pattern has."""
    status = _get_error_status(facts, report)
    if status in _STRICT_STATUSES:
        return None
    for statement in find_excess_statements(facts.plain_text):
        # A server that fails may say anything of a request or a message.
        is_believed = _is_lenient_status(facts, report) or (status == 500 and statement.subject == "prompt")
        if not statement.is_about_conversation or not is_believed:
            continue
        is_body = status == 413 and statement.subject == "message"
        if (is_body or statement.has_bytes) and not statement.has_tokens:
            return Verdict("request_bytes", sent_bytes=find_byte_sizes(facts).sent)
        if statement.is_single_message:
            return Verdict("oversized_part")
        return _build_overflow_verdict(facts)
    return None


@_unless_other_cause
def _detect_context_wording(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize wordings that can only mean the window, under nearly every status.

    Nearly, and not only 400: Cloudflare sends them with 403, early versions of llama.cpp with 500.
    """
    has_overflow_wording = (
        words.CONTEXT_OVERFLOW.search(facts.plain_text)
        or words.NO_ROOM_FOR_OUTPUT.search(facts.plain_text)
        or find_combined_sizes(facts)
    )
    status = _get_error_status(facts, report)
    if not has_overflow_wording or status in _NON_SIZE_STATUSES:
        return None
    if status == _TOO_MANY_REQUESTS and not _has_agreeing_sizes(facts):
        return None
    return _build_overflow_verdict(facts)


@_unless_other_cause
def _detect_token_wording(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize wide wordings about tokens, or stated numbers of tokens that are over the stated limit."""
    if not _is_lenient_status(facts, report):
        return None
    if words.TOKEN_OVERFLOW.search(facts.plain_text):
        return _build_overflow_verdict(facts)
    is_over_limit = find_stated_sizes(facts).is_over_limit
    is_about_tokens = words.TOKEN_WORDS.search(facts.plain_text) is not None
    if is_over_limit and is_about_tokens:
        return _build_overflow_verdict(facts)
    return None


def _is_lenient_status(facts: ErrorFacts, report: ErrorReport) -> bool:
    status = _get_error_status(facts, report)
    return status < 400 or status in _LENIENT_STATUSES


@_unless_other_cause
def _detect_body_size(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize a body that is too large in bytes, by code or wording."""
    has_size_wording = "requesttoolarge" in facts.codes or words.BODY_TOO_LARGE.search(facts.plain_text)
    if has_size_wording and _is_lenient_status(facts, report):
        return Verdict("request_bytes", sent_bytes=find_byte_sizes(facts).sent)
    return None


@_unless_other_cause
def _detect_bare_refusal(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize a refusal without a reason as an overflow, by the provider or by our own estimate.

    Some providers are known to answer an overflow so; from others it is one if our estimate nearly fills the window.
    """
    status = _get_error_status(facts, report)
    if status not in _LENIENT_STATUSES or not words.has_no_reason(facts.plain_text):
        return None
    if _is_small_request(report):
        return None
    if any(name in report.provider.lower() for name in _BODYLESS_PROVIDERS):
        return Verdict("context_window")
    # A bare 413 is about bytes, and left to the next rule.
    if status == 413 or not report.estimate or not report.window:
        return None
    if report.estimate >= NEARLY_FULL_SHARE * report.window:
        return Verdict("context_window")
    return None


@_unless_other_cause
def _detect_status_413(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Treat any other 413 as a body that is too large in bytes."""
    if _get_error_status(facts, report) == 413:
        return Verdict("request_bytes", sent_bytes=find_byte_sizes(facts).sent)
    return None


def _detect_overload(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """Recognize a provider that is busy."""
    if words.PROVIDER_OVERLOADED.search(facts.plain_text):
        return Verdict("overloaded")
    return None


def _detect_invalid_request(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize a request that is wrong in itself: its model, its history, or another part of it."""
    status = _get_error_status(facts, report)
    if (status in {400, 404, 410, 422} or status < 400) and words.MODEL_ERROR.search(facts.plain_text):
        return Verdict("model")
    if (status in {400, 403} or status < 400) and words.FLAGGED_CONTENT.search(facts.plain_text):
        return Verdict("invalid_request")
    if status in {400, 404} and words.UNKNOWN_PREVIOUS_RESPONSE.search(facts.plain_text):
        return Verdict("invalid_history")
    if status not in {400, 422} and status >= 400:
        return None
    # Google refuses a bad API key with 400. An invalid signature or tool id may use the same words ("invalid", "auth").
    if words.AUTH_ERROR.search(facts.plain_text) and not words.INVALID_HISTORY.search(facts.plain_text):
        return Verdict("auth")
    if words.INVALID_REQUEST.search(facts.plain_text):
        return Verdict("invalid_request")
    if words.INVALID_HISTORY.search(facts.plain_text):
        return Verdict("invalid_history")
    return None


@_unless_other_cause
def _detect_unknown_wording(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize an overflow by its numbers: the model's window next to a larger one, or two counts beside "context".

    This finds overflows in languages and wordings that no pattern covers. A request that our estimate calls small is
    left out.
    """
    if not _is_lenient_status(facts, report) or _is_small_request(report) or _has_other_reason(facts, report):
        return None
    numbers = {int(digits) for digits in _WINDOW_NUMBER.findall(facts.plain_text)}
    if report.window in numbers and max(numbers) > report.window:
        return Verdict("context_window", report.window)
    has_error_status = _get_error_status(facts, report) >= 400
    if not has_error_status or words.CONTEXT_WORD.search(facts.plain_text) is None:
        return None
    sizes = complete_sizes(facts)
    if sizes.is_over_limit and (sizes.limit or 0) >= MIN_STATED_WINDOW:
        return Verdict("context_window", sizes.limit, sizes.requested)
    return None


def _is_small_request(report: ErrorReport) -> bool:
    """Return whether the request is known to be far below the window, which outweighs a weak sign of an overflow."""
    if report.estimate is None or not report.window:
        return False
    return report.estimate < MIN_OVERFLOW_SHARE * report.window


def _detect_retry_time(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Recognize a rate limit by a stated delay, if the error has no other reason.

    This finds rate limits in languages that no pattern covers: nobody states a delay for what waiting cannot cure.
    """
    status = _get_error_status(facts, report)
    if status >= 400 and status not in _WAITING_STATUSES:
        return None
    has_delay = bool(facts.retry_delays or parse_retry_delay(facts.raw_text))
    if not has_delay and status not in _FIRM_STATUSES:
        has_delay = bool(_find_retry_after(facts, report))
    if has_delay and not _has_other_reason(facts, report):
        return Verdict("rate_limit")
    return None


def _has_other_reason(facts: ErrorFacts, report: ErrorReport) -> bool:
    """Return whether a code or the wording of the error names a specific kind."""
    has_specific_code = any(kind not in _VAGUE_KINDS for kind in _list_kinds_by_code(facts))
    return has_specific_code or _classify_by_wording(facts, report) is not None


def _classify_by_code(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Classify by the error codes; vague ones count only where the status says no more than they do."""
    status = _get_error_status(facts, report)
    for kind in _list_kinds_by_code(facts):
        if kind not in _VAGUE_KINDS or status <= 400:
            return Verdict(kind)
    return None


def _list_kinds_by_code(facts: ErrorFacts) -> list[VerdictKind]:
    """List the kinds that the error codes stand for, the most specific first."""
    kinds: list[VerdictKind] = []
    for pattern, kind in _KIND_BY_CODE:
        if any(map(pattern.search, facts.codes)):
            kinds.append(kind)
    return kinds


def _classify_by_status(facts: ErrorFacts, report: ErrorReport) -> Verdict | None:
    """Classify by the HTTP status."""
    status = _get_error_status(facts, report)
    if status < 400:
        return None
    return Verdict(_KIND_BY_STATUS.get(status, "server" if status >= 500 else "invalid_request"))


def _classify_by_wording(facts: ErrorFacts, _: ErrorReport) -> Verdict | None:
    """Classify by the wording, for errors without a known code or status."""
    kind = _find_first_match(_FALLBACK_WORDINGS, facts.plain_text)
    return Verdict(kind) if kind else None


# The order is the classifier: moving a rule changes verdicts. The corpus in tests/providers/errors holds real wordings
# for each of them.
ERROR_RULES: tuple[ErrorRule, ...] = (
    _detect_agent_guard,
    _detect_rate_ceiling,
    _detect_long_context_tier,
    _detect_service_refusal,
    _detect_failed_compaction,
    _detect_context_code,
    _detect_size_code,
    _detect_oversized_part,
    _detect_stated_byte_limit,
    _detect_other_remedy,
    _detect_other_subject,
    _detect_context_wording,
    _detect_token_wording,
    _detect_body_size,
    _detect_stated_excess,
    _detect_bare_refusal,
    _detect_status_413,
    _detect_overload,
    _detect_invalid_request,
    _detect_unknown_wording,
    _detect_retry_time,
    _classify_by_code,
    _classify_by_status,
    _classify_by_wording,
)
