"""What opencode says around a compaction, and how it accepts a summary.

It says why it stopped, and what a user is made to say so that the work goes on.
"""

from __future__ import annotations

import re
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
