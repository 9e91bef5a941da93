"""Whether an error is about what the provider sealed itself: a signature or encrypted content that it takes no more.

So it is where a conversation goes on with another key, account or organisation. It is then an error of an invalid
history or request, and says so by its status: one of a key, of a limit or of a server may mention what is sealed, and
so may one of a parameter that is called like it.
"""

from __future__ import annotations

import re

from holdfast.providers.errors.error_facts import collect_error_facts
from holdfast.providers.errors.report import ErrorReport, VerdictKind

_POSSIBLE_KINDS = frozenset({"invalid_history", "invalid_request", "unknown"})
_INVALID_REQUEST_STATUSES = frozenset({400, 422})
"""Statuses by which a request is wrong in itself."""
_SIGNATURE_ERROR_CODES = frozenset({"invalidencryptedcontent", "compactionsignatureinvalid"})
"""Codes that say it, as letters."""
_ENCRYPTED_CONTENT = r"(?<!reasoning\.)encrypted[_ ]content\b"
"""Not the value that asks for it: ``include`` has ``reasoning.encrypted_content``."""
_PARAMETER_CHOICES = re.compile(r"(?:supported|allowed|valid) values (?:are|is|include)\b")
"""What is said of a parameter."""
_SIGNATURE_WORDING = re.compile(
    rf"{_ENCRYPTED_CONTENT}.{{0,120}}(?:could not be|cannot be|was not issued|(?:did|does) not match|not valid|invalid)"
    rf"|(?:invalid|decrypt|verify)\b.{{0,40}}{_ENCRYPTED_CONTENT}"
    r"|(?:invalid|corrupt(?:ed)?) (?:thought[_ ]?signature|(?:signature|data) in (?:redacted_)?thinking)"
    r"|thought[_ ]?signature is (?:not valid|invalid)"
    r"|signature of the compaction block is invalid"
)
"""OpenAI's and xAI's words, Anthropic's, and Google's; quotes are gone."""


def is_signature_error(error: ErrorReport, kind: VerdictKind) -> bool:
    """Return whether the same request may be answered once nothing in it is sealed; ``kind`` is the error's."""
    facts = collect_error_facts(error)
    if kind not in _POSSIBLE_KINDS or any(
        status >= 400 and status not in _INVALID_REQUEST_STATUSES for status in facts.statuses
    ):
        return False
    says = (
        _SIGNATURE_WORDING.search(facts.plain_text) is not None and _PARAMETER_CHOICES.search(facts.plain_text) is None
    )
    return says or not _SIGNATURE_ERROR_CODES.isdisjoint(facts.codes)
