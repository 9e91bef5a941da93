"""Recognize errors about a container of the provider's that is gone: the request is taken without it.

Page "Code execution tool" (2026-08-21): an expired container cannot be used again, the request is to be sent without
the field. No report quotes the whole refusal, so the words are few and must stand near the field's name, or near the id
that the request gave (pydantic-ai#7833, 2026-08-28, quotes that page; vercel/ai#11708 has the code of tool results).
"""

from __future__ import annotations

import re

from holdfast.providers.errors.error_facts import collect_error_facts
from holdfast.providers.errors.report import ErrorReport, VerdictKind

_POSSIBLE_KINDS = frozenset({"invalid_history", "invalid_request", "model", "unknown"})
"""Kinds of such refusals; a 404 ("not found") is read as one about the model."""
_GONE = r"(?:expired|not (?:be )?found|no longer (?:exists?|available|running)|does not exist|unknown|has ended)"
_GONE_CONTAINER = re.compile(rf"\bcontainer(?:_id)?\b.{{0,80}}\b{_GONE}\b|\b{_GONE}\b.{{0,20}}\bcontainer\b")
_GONE_CODES = frozenset({"containerexpired", "containernotfound"})
"""Normalized error codes."""


def is_container_error(error: ErrorReport, kind: VerdictKind, container: str) -> bool:
    """Return whether ``error`` says that ``container``, which the request named, is gone; ``kind`` is its verdict."""
    if not container or kind not in _POSSIBLE_KINDS:
        return False
    facts = collect_error_facts(error)
    if not _GONE_CODES.isdisjoint(facts.codes):
        return True
    # The id itself may hold any of the words.
    text = facts.plain_text.replace(container.lower(), "container")
    return _GONE_CONTAINER.search(text) is not None
