"""Recognize errors about signed data: a signature or encrypted content that its provider no longer accepts.

They occur when a conversation goes on with another key, account or organization. They come with the status of an
invalid request. Errors of keys, limits and servers may mention signatures too, and so may errors about a parameter of a
similar name; those are not cured by leaving the signed data out.
"""

from __future__ import annotations

import re

from holdfast.providers.errors.error_facts import collect_error_facts
from holdfast.providers.errors.report import ErrorReport, VerdictKind

_POSSIBLE_KINDS = frozenset({"invalid_history", "invalid_request", "unknown"})
_INVALID_REQUEST_STATUSES = frozenset({400, 422})
"""Statuses that say that the request itself is wrong."""
_SIGNATURE_ERROR_CODES = frozenset({"invalidencryptedcontent", "compactionsignatureinvalid"})
"""Normalized error codes of a rejected signature."""
# Not after "reasoning.": that is the value of the parameter `include`, and an error about it is about the parameter.
_ENCRYPTED_CONTENT = r"(?<!reasoning\.)encrypted[_ ]content\b"
_PARAMETER_CHOICES = re.compile(r"(?:supported|allowed|valid) values (?:are|is|include)\b")
"""Wording of errors about the value of a parameter."""
_SIGNATURE_WORDING = re.compile(
    rf"{_ENCRYPTED_CONTENT}.{{0,120}}(?:could not be|cannot be|was not issued|(?:did|does) not match|not valid|invalid)"
    rf"|(?:invalid|decrypt|verify)\b.{{0,40}}{_ENCRYPTED_CONTENT}"
    r"|(?:invalid|corrupt(?:ed)?) (?:thought[_ ]?signature|(?:signature|data) in (?:redacted_)?thinking)"
    r"|thought[_ ]?signature is (?:not valid|invalid)"
    r"|signature of the compaction block is invalid"
)
"""Wordings of OpenAI and xAI, of Anthropic and of Google, as normalized text (without quotes)."""


def is_signature_error(error: ErrorReport, kind: VerdictKind) -> bool:
    """Return whether the same request may succeed without its signed data; ``kind`` is the verdict on ``error``."""
    if kind not in _POSSIBLE_KINDS:
        return False
    facts = collect_error_facts(error)
    for status in facts.statuses:
        if status >= 400 and status not in _INVALID_REQUEST_STATUSES:
            return False
    if not _SIGNATURE_ERROR_CODES.isdisjoint(facts.codes):
        return True
    has_signature_wording = _SIGNATURE_WORDING.search(facts.plain_text) is not None
    return has_signature_wording and _PARAMETER_CHOICES.search(facts.plain_text) is None
