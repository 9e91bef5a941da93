"""Why a request is refused that may sound too large: time, money, capacity, or who asks. Sending less cures none.

Providers say "too many tokens" of a minute, a day, a plan and a queue as they say it of a prompt. What they name beside
the tokens tells them apart, in the error's name or in its text.
"""

from __future__ import annotations

import re

from holdfast.providers.overflow import patterns as words
from holdfast.providers.overflow.numerals import delay
from holdfast.providers.overflow.reading import Facts
from holdfast.providers.overflow.report import Kind

MONEY: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"insufficientquota|quotaexceeded|usagelimit|usagenotincluded"), "quota"),
    (re.compile(r"billing|paymentrequired|insufficient(?:balance|credits|funds)|creditbalance|arrearage"), "billing"),
)
"""Names of errors, letters alone, that decide before any text."""
_NAMES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"ratelimit|throttl|toomanyrequests|resourceexhausted|requestlimit"), "rate_limit"),
    (re.compile(r"overloaded|unavailable|slowdown|modelnotready"), "overloaded"),
    (re.compile(r"auth|apikey|permission|accessdenied|expiredtoken|forbidden"), "auth"),
)
REFUSING = (*MONEY, *_NAMES)
"""Names of errors, letters alone, that are never those of a size."""
_REFUSED = frozenset({402, 403, 429})
"""Statuses under which a plan or an account is the matter where the text names one."""
_WORDED: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (words.OVERLOADED, "overloaded"),
    (words.AFTER_A_WHILE, "rate_limit"),
    (words.PERIOD, "quota"),
    (words.CROWDED, "overloaded"),
    (words.WHO_ASKS, "auth"),
)


def named(facts: Facts) -> Kind | None:
    """Return what the names in an error say of time, money, capacity or who asks; None where they say nothing."""
    return next((kind for pattern, kind in REFUSING if any(map(pattern.search, facts.codes))), None)


def cause(facts: Facts) -> Kind | None:
    """Return what other than its size makes a request fail, by names, by a time to come back, or by the text."""
    if (kind := named(facts)) is not None:
        return kind
    if any(facts.delays) or delay(facts.raw) is not None or words.DURATION.search(facts.raw):
        return "rate_limit"
    if facts.statuses & _REFUSED and words.PLAN.search(facts.text):
        return "quota"
    return next((kind for pattern, kind in _WORDED if pattern.search(facts.text)), None)
