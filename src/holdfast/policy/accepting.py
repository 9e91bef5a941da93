"""Accepting a summary that a model wrote: by its form and by what it keeps, with the reasons where it is refused."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

HEADINGS = (
    "Goal",
    "Constraints & Preferences",
    "Progress",
    "Key Decisions",
    "Next Steps",
    "Critical Context",
    "Relevant Files",
)
"""What a summary is made of, in this order. [C]"""
TRIES = 2
"""Requests for one summary: the first and one that reminds of the template. [C]"""
BROKEN_OFF = frozenset({"length", "max_tokens", "content-filter", "content_filter"})
"""Ends of an answer after which no reminder helps. [C]"""


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
