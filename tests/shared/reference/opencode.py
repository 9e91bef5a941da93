"""What opencode says around a compaction, how it accepts a summary, and when it sends a request again.

It says why it stopped, and what a user is made to say so that the work goes on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from holdfast.policy.summary.prompts import HEADINGS

TOO_LARGE = "Session too large to compact: its messages are over the model's limit even without media"
"""[C] When the compaction's own request overflows and nothing was split off."""
TOO_LARGE_BEFORE = "Conversation history too large to compact: what came before the last message is over the limit"
"""[C] The same where the last message was to be said again behind the summary."""
CONTINUE = (
    "Go on with the next steps if there are any; if something is unclear, or nothing is left to do, stop and ask."
)
"""[C] What is said in the user's place after an automatic compaction that cut a turn; the words are ours."""
MEDIA_GONE = (
    "Images or documents were taken out of the conversation because they did not fit. If one of them is needed, say"
    " so and ask for a smaller one."
)
"""[C] And before that, only where media really were taken out."""
TRIES = 2
"""Requests for one summary: the first and one that reminds of the template. [C]"""
BROKEN_OFF = frozenset({"length", "max_tokens", "content-filter", "content_filter"})
"""Ends of an answer after which no reminder helps. [C]"""
_DELAY, _DELAY_MOST = 2_000, 30_000
"""Milliseconds of its first wait, and of its longest where the provider sent no headers. [C]"""
_DOUBLINGS = 40
"""Doublings after which any wait is over every cap."""


def too_large(*, replayed: bool) -> str:
    """Return what is told where the compaction's own request overflows."""
    return TOO_LARGE_BEFORE if replayed else TOO_LARGE


def continuation(*, auto: bool, replayed: bool = False, allowed: bool = True, media_gone: bool = False) -> str:
    """Return what is said in the user's place after a compaction that succeeded; mostly nothing.

    Nothing after one that was asked for, where the last message is said again, or where a hook does not want it.
    """
    if not auto or replayed or not allowed:
        return ""
    return f"{MEDIA_GONE}\n\n{CONTINUE}" if media_gone else CONTINUE


class Verdict(Struct, frozen=True):
    """What comes of an answer: ``completed``, ``remind`` (ask once more) or ``failed``."""

    status: Literal["completed", "remind", "failed"]
    message: str = ""


def judge(text: str, requests: int, stop: str = "stop") -> Verdict:
    """Return what comes of ``text``, the answer to the last of ``requests`` requests, as opencode 2 takes it."""
    if stop in BROKEN_OFF:
        return Verdict("failed", f"Compaction summary was broken off ({stop})")
    if any(re.search(rf"^#+ *{re.escape(heading)} *$", text, re.MULTILINE) for heading in HEADINGS):
        return Verdict("completed")
    said = "Compaction summary did not match the required template"
    return Verdict("remind" if requests < TRIES else "failed", said)


# -- sending again -----------------------------------------------------------------------------------------------------


def delay(attempt: int, headers: Mapping[str, str] | None) -> float:
    """Return the milliseconds that opencode waits before retry ``attempt``, counted from 1.

    It caps its own doubling only where no headers came.
    """
    told = _told(headers or {})
    if told is not None:
        return told
    grown = _DELAY * 2 ** min(attempt - 1, _DOUBLINGS)
    return float(grown if headers is not None else min(grown, _DELAY_MOST))


def retries(status: int | None, told: bool) -> bool:
    """Return whether opencode sends again: every 5xx, and where the SDK (``told``) calls it so."""
    return told or (status is not None and 500 <= status < 600)


def _told(headers: Mapping[str, str]) -> float | None:
    millis, seconds = _number(headers.get("retry-after-ms")), _number(headers.get("retry-after"))
    return millis if millis is not None or seconds is None else float(math.ceil(seconds * 1_000))


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None
