"""Whether an error is about what the provider sealed itself: a signature or encrypted content that it takes no more.

So it is where a conversation goes on with another key, account or organisation. It is then an error of an invalid
history or request, and says so by its status: one of a key, of a limit or of a server may mention what is sealed, and
so may one of a parameter that is called like it.
"""

from __future__ import annotations

import re

from holdfast.providers.overflow.reading import read
from holdfast.providers.overflow.report import ErrorReport, Kind

_KINDS = frozenset({"invalid_history", "invalid_request", "unknown"})
_STATUSES = frozenset({400, 422})
"""Statuses by which a request is wrong in itself."""
_NAMES = frozenset({"invalidencryptedcontent", "compactionsignatureinvalid"})
"""Codes that say it, as letters."""
_SEALED = r"(?<!reasoning\.)encrypted[_ ]content\b"
"""Not the value that asks for it: ``include`` has ``reasoning.encrypted_content``."""
_CHOICE = re.compile(r"(?:supported|allowed|valid) values (?:are|is|include)\b")
"""What is said of a parameter."""
_WORDS = re.compile(
    rf"{_SEALED}.{{0,120}}(?:could not be|cannot be|was not issued|(?:did|does) not match|not valid|invalid)"
    rf"|(?:invalid|decrypt|verify)\b.{{0,40}}{_SEALED}"
    r"|(?:invalid|corrupt(?:ed)?) (?:thought[_ ]?signature|(?:signature|data) in (?:redacted_)?thinking)"
    r"|thought[_ ]?signature is (?:not valid|invalid)"
    r"|signature of the compaction block is invalid"
)
"""OpenAI's and xAI's words, Anthropic's, and Google's; quotes are gone."""


def refuses_seals(error: ErrorReport, kind: Kind) -> bool:
    """Return whether the same request may be answered once nothing in it is sealed; ``kind`` is the error's."""
    facts = read(error)
    if kind not in _KINDS or any(one >= 400 and one not in _STATUSES for one in facts.statuses):
        return False
    says = _WORDS.search(facts.text) is not None and _CHOICE.search(facts.text) is None
    return says or not _NAMES.isdisjoint(facts.codes)
