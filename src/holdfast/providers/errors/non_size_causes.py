"""Why a request is refused that may sound too large: time, money, capacity, or who asks. Sending less cures none.

Providers say "too many tokens" of a minute, a day, a plan and a queue as they say it of a prompt. What they name beside
the tokens tells them apart, in the error's name or in its text.
"""

from __future__ import annotations

import re

from holdfast.providers.errors import patterns as words
from holdfast.providers.errors.error_facts import ErrorFacts
from holdfast.providers.errors.number_text import parse_retry_delay
from holdfast.providers.errors.report import VerdictKind

PAYMENT_CODES: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (re.compile(r"insufficientquota|quotaexceeded|usagelimit|usagenotincluded"), "quota"),
    (re.compile(r"billing|paymentrequired|insufficient(?:balance|credits|funds)|creditbalance|arrearage"), "billing"),
)
"""Names of errors, letters alone, that decide before any text."""
_REFUSAL_CODES: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (re.compile(r"ratelimit|throttl|toomanyrequests|resourceexhausted|requestlimit"), "rate_limit"),
    (re.compile(r"overloaded|unavailable|slowdown|modelnotready"), "overloaded"),
    (re.compile(r"auth|apikey|permission|accessdenied|expiredtoken|forbidden"), "auth"),
)
NON_SIZE_CODES = (*PAYMENT_CODES, *_REFUSAL_CODES)
"""Names of errors, letters alone, that are never those of a size."""
_PLAN_STATUSES = frozenset({402, 403, 429})
"""Statuses under which a plan or an account is the matter where the text names one."""
_NON_SIZE_WORDINGS: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (words.PROVIDER_OVERLOADED, "overloaded"),
    (words.TEMPORARY_LIMIT, "rate_limit"),
    (words.PERIOD_LIMIT, "quota"),
    (words.SHARED_CAPACITY, "overloaded"),
    (words.ACCESS_DENIED, "auth"),
)


def find_cause_by_code(facts: ErrorFacts) -> VerdictKind | None:
    """Return what the names in an error say of time, money, capacity or who asks; None where they say nothing."""
    return next((kind for pattern, kind in NON_SIZE_CODES if any(map(pattern.search, facts.codes))), None)


def find_non_size_cause(facts: ErrorFacts) -> VerdictKind | None:
    """Return what other than its size makes a request fail, by names, by a time to come back, or by the text."""
    if (kind := find_cause_by_code(facts)) is not None:
        return kind
    if (
        any(facts.retry_delays)
        or parse_retry_delay(facts.raw_text) is not None
        or words.STATED_DURATION.search(facts.raw_text)
    ):
        return "rate_limit"
    if facts.statuses & _PLAN_STATUSES and words.PLAN_LIMIT.search(facts.plain_text):
        return "quota"
    return next((kind for pattern, kind in _NON_SIZE_WORDINGS if pattern.search(facts.plain_text)), None)
