"""The version of a Gemini model, from its name."""

from __future__ import annotations

import re

_VERSION = re.compile(r"gemini-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)")
"""``gemini-2.5-pro``, ``models/gemini-3.1-pro-preview``, ``google/gemini-3-flash``"""


def version(model: str) -> tuple[int, int]:
    """Return major and minor version of a Gemini model, 0.0 for a name that does not say."""
    found = _VERSION.search(model.lower())
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)
