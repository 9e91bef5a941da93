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

from holdfast.providers.overflow import patterns as words
from holdfast.providers.overflow.causes import MONEY, REFUSING, cause, named
from holdfast.providers.overflow.numerals import delay
from holdfast.providers.overflow.reading import Facts, read
from holdfast.providers.overflow.report import OVERFLOWS, ErrorReport, Kind, Verdict
from holdfast.providers.overflow.sizes import allowance, body_limit, per_time, stated, summed

Rule: TypeAlias = Callable[[Facts, ErrorReport], Verdict | None]

LONG_CONTEXT = 200_000
"""Tokens from which Anthropic asks for extra usage."""
PRESSURE = 0.8
"""Share of the window from which a 400 without a reason is one of size (LibreChat's probe of Vertex)."""
MAY_BE = 0.5
"""[H] Share of the window below which our estimate says that a request is none that is too long."""
_NEVER_SIZE = frozenset({401, 402})
"""Statuses under which no wording of size is believed; under 429 only one whose numbers agree is."""
_TOO_MANY = 429
_NAMELESS = _NEVER_SIZE | {403, _TOO_MANY}
"""Statuses under which only a name with the context in it is believed: a plan has its limit of prompts too."""
_LENIENT = frozenset({400, 413, 422})
"""Statuses under which wide wordings of size are believed too; so they are with no error status at all."""
_VAGUE = frozenset({"invalid_request", "server"})
"""What the name of an error says that says nothing but that it is one."""
_PATIENT = frozenset({400, 403, 422})
"""Statuses that gateways send with a time to come back, as 429 would be."""
_FIRM = frozenset({403, 422})
"""Of them those that mean what they say, unless the error itself speaks of waiting: a header may be on any answer."""
_NUMBER = re.compile(r"(?<![\w.])\d{4,15}(?![\w.]*\d)")
"""Numbers that a window may be."""
_BODYLESS = ("cerebras",)
"""Providers that answer an overflow with a bare status."""
_IDENTIFIER = re.compile(r"(?:^|[._])(?:id|tool_call_id|call_id|tool_use_id|name)$")
_CONTENT = re.compile(r"^(?:messages|input|contents)\b.*(?:output|content|text|arguments|input|data)[\]\d\[]*$|^input$")

_CODES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    *MONEY,
    (re.compile(r"image|invalidmedia"), "media"),
    *REFUSING,
    (re.compile(r"modelnotfound|notfound|modeldoesnotexist|unknownmodel"), "model"),
    (re.compile(r"timeout|timedout|econn|connection|network|abort|epipe|eaiagain|deadlineexceeded"), "network"),
    (re.compile(r"^config(?:uration)?$"), "config"),
    (re.compile(r"servererror|apierror|^internal|modelstreamerror|modelerror|serverfault"), "server"),
    (re.compile(r"invalid|validation|badrequest|unprocessable|unsupported|malformed"), "invalid_request"),
)  # fmt: skip
"""Names of errors, letters alone; the ones that say most stand first."""
_REFUSALS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (words.QUOTA_FIRST, "quota"),
    (words.RATE, "rate_limit"),
    (words.BILLING, "billing"),
    (words.QUOTA, "quota"),
)
_LEFT: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (words.NETWORK, "network"),
    (words.AUTH, "auth"),
    (words.MODEL, "model"),
    (words.SERVER, "server"),
)
_STATUSES: dict[int, Kind] = {
    400: "invalid_request", 401: "auth", 402: "billing", 403: "auth", 404: "server", 405: "server", 406: "server",
    407: "auth", 408: "network", 409: "server", 410: "model", 414: "server", 422: "invalid_request",
    424: "server", 429: "rate_limit", 431: "server", 499: "network", 503: "overloaded", 504: "network",
    522: "network", 524: "network", 529: "overloaded",
}  # fmt: skip


def of_error(report: ErrorReport) -> Verdict:
    """Return what an error is; ``unknown`` where nothing tells."""
    facts = read(report)
    found = next(filter(None, (rule(facts, report) for rule in RULES)), Verdict("unknown"))
    if found.kind in OVERFLOWS:
        return found
    return Verdict(found.kind, found.limit, found.requested, _retry_after(facts, report))


def _retry_after(facts: Facts, report: ErrorReport) -> float | None:
    """Return the seconds to wait: by header, else by a field of the body, else by the text."""
    headers = {name.lower(): value for name, value in report.headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", headers.get(name, "").strip()):
            return float(headers[name]) * unit
    dated = _date(headers.get("retry-after", ""))
    came = _date(headers.get("date", "")) or report.at
    if dated is not None and came is not None and dated > came:  # one that passed says nothing
        return dated - came
    return facts.delays[-1] if facts.delays else delay(facts.raw)


def _date(text: str) -> float | None:
    """Return an HTTP date in seconds since 1970, in UTC where it names no zone; nothing for what is none."""
    try:
        told = parsedate_to_datetime(text)
        return (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _status(facts: Facts, report: ErrorReport) -> int:
    """Return the status of the response; where that is none or a success, the one that the error names."""
    known = report.status or 0
    return known if known >= 400 else max((one for one in facts.statuses if one >= 400), default=known)


def _sized(facts: Facts) -> Verdict:
    """Return the overflow with its numbers: of the window alone, or of prompt and answer together."""
    together = summed(facts)
    if together is None:
        sizes = stated(facts)
        return Verdict("context_window", sizes.limit, sizes.asked)
    kind: Kind = "context_window" if together.output == 0 else "input_plus_output"
    return Verdict(kind, together.limit, together.asked)


# -- the rules, in their order -----------------------------------------------------------------------------------------


def _own_guard(facts: Facts, _: ErrorReport) -> Verdict | None:
    """An agent's own words about its settings or its compaction are no answer of a provider."""
    return Verdict("config") if words.OWN_GUARD.search(facts.text) else None


def _per_time(facts: Facts, report: ErrorReport) -> Verdict | None:
    """Tokens a minute: a request over the whole limit never fits; up to it, waiting helps."""
    sizes = per_time(facts)
    if sizes is not None:
        return Verdict("tpm_ceiling" if sizes.over else "rate_limit", sizes.limit, sizes.asked)
    allowed = allowance(facts)
    if allowed is not None and report.estimate is not None and report.estimate > allowed:
        return Verdict("tpm_ceiling", allowed)
    return None


def _tier(facts: Facts, report: ErrorReport) -> Verdict | None:
    """Long context that is not paid for: too large, or, where our own estimate says that it was not long, the account.

    Sent to a model of a million tokens even a short one is refused so, and as often as it is sent.
    """
    if not words.LONG_CONTEXT_TIER.search(facts.text):
        return None
    small = report.estimate is not None and report.estimate <= LONG_CONTEXT
    return Verdict("billing" if small else "tier_gate")


def _refused_to_serve(facts: Facts, report: ErrorReport) -> Verdict | None:
    """Rates, quotas and money, whatever else the text says."""
    kind = next((kind for pattern, kind in _REFUSALS if pattern.search(facts.text)), None)
    if kind == "billing" and _status(facts, report) in _LENIENT and _fits_not(facts):
        return None
    kind = kind or next((kind for pattern, kind in MONEY if any(map(pattern.search, facts.codes))), None)
    return Verdict(kind) if kind else None


def _fits_not(facts: Facts) -> bool:
    """Return whether the wording is of size, and the error's numbers agree."""
    return words.CONTEXT.search(facts.text) is not None and stated(facts).over


def _size(rule: Rule) -> Rule:
    """Return ``rule`` with its size believed only where neither time, money, capacity nor who asks is the matter."""

    @functools.wraps(rule)
    def checked(facts: Facts, report: ErrorReport) -> Verdict | None:
        found = rule(facts, report)
        kind = cause(facts) if found else None
        return Verdict(kind) if kind else found

    return checked


def _exact_name(facts: Facts, report: ErrorReport) -> Verdict | None:
    """A code that names the context decides, also inside of a stream, unless another names a refusal to serve."""
    names = _names(facts)
    told = any("context" in name for name in names) and _status(facts, report) not in _NEVER_SIZE
    return _sized(facts) if told and named(facts) is None else None


@_size
def _other_name(facts: Facts, report: ErrorReport) -> Verdict | None:
    """A code that names tokens or the prompt may be one of a rate or a plan, where the status says so."""
    return _sized(facts) if _names(facts) and _status(facts, report) not in _NAMELESS else None


def _names(facts: Facts) -> list[str]:
    """Return the exact names of an overflow, in codes and in the text."""
    codes = [code for code in facts.codes if words.OVERFLOW_CODE.search(code)]
    return codes + [match[0] for match in words.OVERFLOW_NAME.finditer(facts.text)]


@_size
def _part(facts: Facts, report: ErrorReport) -> Verdict | None:
    """One part that is too large, or too many messages; and names too long, which is another matter."""
    if _status(facts, report) in _NAMELESS:
        return None
    string = words.STRING_TOO_LONG.search(facts.text)
    if string and _CONTENT.search(string[1]) and not _IDENTIFIER.search(string[1]):
        return Verdict("oversized_part")
    if string:
        history = string[1].startswith(("messages", "input", "contents"))
        return Verdict("invalid_history" if history else "invalid_request")
    if "string too long. expected a string with maximum length" in facts.text:
        return Verdict("oversized_part")
    if words.ARRAY_TOO_LONG.search(facts.text):
        return Verdict("message_count")
    return Verdict("oversized_part") if words.PART_TOO_LARGE.search(facts.text) else None


@_size
def _named_bytes(facts: Facts, report: ErrorReport) -> Verdict | None:
    """A body too large in bytes, by their number; of images together too, whose number sending fewer cures."""
    most = body_limit(facts) if _lenient(facts, report) else None
    return Verdict("request_bytes", bytes=most) if most else None


def _other_cure(facts: Facts, _: ErrorReport) -> Verdict | None:
    """Settings of the server, caches, the answer's length and media: a smaller prompt cures none of them."""
    if words.SERVER_SETTINGS.search(facts.text):
        return Verdict("config")
    if words.CACHE.search(facts.text) or words.THINKING_BUDGET.search(facts.text):
        return Verdict("invalid_request")
    if words.NO_ROOM_FOR_OUTPUT.search(facts.text) or summed(facts):
        return None
    if words.OUTPUT_LIMIT.search(facts.text) and not _fits_not(facts):
        return Verdict("output_limit")
    return Verdict("media") if words.MEDIA.search(facts.text) and not words.CONTEXT.search(facts.text) else None


@_size
def _context(facts: Facts, report: ErrorReport) -> Verdict | None:
    """Wordings that mean the window and nothing else, under nearly every status."""
    worded = words.CONTEXT.search(facts.text) or words.NO_ROOM_FOR_OUTPUT.search(facts.text) or summed(facts)
    status = _status(facts, report)
    if not worded or status in _NEVER_SIZE or (status == _TOO_MANY and not _fits_not(facts)):
        return None
    return _sized(facts)


@_size
def _bytes(facts: Facts, report: ErrorReport) -> Verdict | None:
    """A body too large in bytes."""
    named = "requesttoolarge" in facts.codes or words.BYTES.search(facts.text)
    return Verdict("request_bytes") if named and _lenient(facts, report) else None


@_size
def _tokens(facts: Facts, report: ErrorReport) -> Verdict | None:
    """Wide wordings of tokens, and bare numbers of tokens of which the one is over the other."""
    if not _lenient(facts, report):
        return None
    sizes = stated(facts)
    numbers = sizes.over and re.search(r"token|context|prompt", facts.text) is not None
    return _sized(facts) if words.TOKENS.search(facts.text) or numbers else None


def _lenient(facts: Facts, report: ErrorReport) -> bool:
    status = _status(facts, report)
    return status < 400 or status in _LENIENT


@_size
def _without_reason(facts: Facts, report: ErrorReport) -> Verdict | None:
    """A bare 400 is one of size where the provider is known for it, or where our estimate nearly fills the window."""
    status = _status(facts, report)
    if status not in _LENIENT or not words.without_reason(facts.text):
        return None
    known = any(name in report.provider.lower() for name in _BODYLESS)
    if known or (status != 413 and report.estimate and report.window and report.estimate >= PRESSURE * report.window):
        return Verdict("context_window")
    return None


@_size
def _too_large(facts: Facts, report: ErrorReport) -> Verdict | None:
    """Any other 413."""
    return Verdict("request_bytes") if _status(facts, report) == 413 else None


def _overloaded(facts: Facts, _: ErrorReport) -> Verdict | None:
    """A provider that is busy."""
    return Verdict("overloaded") if words.OVERLOADED.search(facts.text) else None


def _wrong_request(facts: Facts, report: ErrorReport) -> Verdict | None:
    """A request that is wrong in itself: its model, its history, or anything else of it."""
    status = _status(facts, report)
    if (status in {400, 404, 410, 422} or status < 400) and words.MODEL.search(facts.text):
        return Verdict("model")
    if status in {400, 403} and words.FLAGGED.search(facts.text):
        return Verdict("invalid_request")
    if status in {400, 404} and words.UNKNOWN_ANSWER.search(facts.text):
        return Verdict("invalid_history")
    if status not in {400, 422} and status >= 400:
        return None
    if words.AUTH.search(facts.text) and not words.HISTORY.search(facts.text):
        return Verdict("auth")
    if words.REQUEST.search(facts.text):
        return Verdict("invalid_request")
    return Verdict("invalid_history") if words.HISTORY.search(facts.text) else None


def _told_to_wait(facts: Facts, report: ErrorReport) -> Verdict | None:
    """A time to come back and no other reason: what is wrong in itself is not cured by waiting, in any language."""
    status = _status(facts, report)
    said = facts.delays or delay(facts.raw)
    told = said if status in _FIRM else said or _retry_after(facts, report)
    if (status >= 400 and status not in _PATIENT) or not told or _other_reason(facts, report):
        return None
    return Verdict("rate_limit")


@_size
def _over_our_window(facts: Facts, report: ErrorReport) -> Verdict | None:
    """Our own window among the numbers, one over it, and a request that may be so long: too long, in any language."""
    numbers = {*map(int, _NUMBER.findall(facts.text))}
    if report.window not in numbers or max(numbers) <= report.window or not _lenient(facts, report):
        return None
    is_small = report.estimate is not None and report.estimate < MAY_BE * report.window
    return None if is_small or _other_reason(facts, report) else Verdict("context_window", report.window)


def _other_reason(facts: Facts, report: ErrorReport) -> bool:
    """Whether a name or the wording of an error says what it is."""
    return bool({*_named(facts)} - _VAGUE or _by_wording(facts, report))


def _by_code(facts: Facts, report: ErrorReport) -> Verdict | None:
    """The name of the error."""
    status = _status(facts, report)
    says = [kind for kind in _named(facts) if kind not in _VAGUE or status <= 400]
    return Verdict(says[0]) if says else None


def _named(facts: Facts) -> list[Kind]:
    """Return what the names in an error are names of, what says most first."""
    return [kind for pattern, kind in _CODES if any(map(pattern.search, facts.codes))]


def _by_status(facts: Facts, report: ErrorReport) -> Verdict | None:
    """The status of the response."""
    status = _status(facts, report)
    if status >= 500:
        return Verdict(_STATUSES.get(status, "server"))
    return Verdict(_STATUSES.get(status, "invalid_request")) if status >= 400 else None


def _by_wording(facts: Facts, _: ErrorReport) -> Verdict | None:
    """What is left when neither name nor status is known."""
    return next((Verdict(kind) for pattern, kind in _LEFT if pattern.search(facts.text)), None)


RULES: tuple[Rule, ...] = (
    _own_guard, _per_time, _tier, _refused_to_serve, _exact_name, _other_name, _part, _named_bytes, _other_cure,
    _context, _bytes, _tokens, _without_reason, _too_large, _overloaded, _wrong_request, _told_to_wait,
    _over_our_window, _by_code, _by_status, _by_wording,
)  # fmt: skip
