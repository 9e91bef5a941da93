"""Find the causes of errors that sound like an overflow but are about time, money, capacity or access.

Providers say "too many tokens" about a minute, a day, a plan and a queue just as they say it about a prompt. The other
words of the error tell them apart, in its code or in its text. Sending less cures none of these.
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
"""Normalized error codes of money and quotas; they decide before any text does."""
_REFUSAL_CODES: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (re.compile(r"ratelimit|throttl|toomanyrequests|resourceexhausted|requestlimit"), "rate_limit"),
    (re.compile(r"overloaded|unavailable|slowdown|modelnotready"), "overloaded"),
    (re.compile(r"auth|apikey|permission|accessdenied|expiredtoken|(?<!extra)forbidden"), "auth"),
)
NON_SIZE_CODES = (*PAYMENT_CODES, *_REFUSAL_CODES)
"""Normalized error codes that never mean a request is too large."""
_PLAN_STATUSES = frozenset({402, 403, 429})
"""Statuses under which a text that mentions a plan or an account is about it."""
_NON_SIZE_WORDINGS: tuple[tuple[re.Pattern[str], VerdictKind], ...] = (
    (words.PROVIDER_OVERLOADED, "overloaded"),
    (words.TEMPORARY_LIMIT, "rate_limit"),
    (words.PERIOD_LIMIT, "quota"),
    (words.SHARED_CAPACITY, "overloaded"),
    (words.ACCESS_DENIED, "auth"),
)


def find_cause_by_code(facts: ErrorFacts) -> VerdictKind | None:
    """Return the kind that the error codes name, if it is one of time, money, capacity or access, or None."""
    for pattern, kind in NON_SIZE_CODES:
        if any(map(pattern.search, facts.codes)):
            return kind
    return None


def find_non_size_cause(facts: ErrorFacts) -> VerdictKind | None:
    """Return the kind of an error that is not about size, by its code, a stated time or its text, or None.

    Only for errors that sound like an overflow: the patterns are too wide for any other text.
    """
    kind_by_code = find_cause_by_code(facts)
    if kind_by_code is not None:
        return kind_by_code
    # No prompt is too long for 60 seconds: where a time is stated, the limit is one of time.
    states_time = (
        any(facts.retry_delays)
        or parse_retry_delay(facts.raw_text) is not None
        or words.STATED_DURATION.search(facts.raw_text)
    )
    if states_time:
        return "rate_limit"
    if facts.statuses & _PLAN_STATUSES and words.PLAN_LIMIT.search(facts.plain_text):
        return "quota"
    for pattern, kind in _NON_SIZE_WORDINGS:
        if pattern.search(facts.plain_text):
            return kind
    return None
