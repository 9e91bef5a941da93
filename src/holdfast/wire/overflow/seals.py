"""Whether an error is about what the provider sealed itself: a signature or encrypted content that it takes no more.

So it is where a conversation goes on with another key, account or organisation. What kind of error it is says nothing
of that: it is one of an invalid history, or of an invalid request.
"""

from __future__ import annotations

import re

from holdfast.wire.overflow.reading import read
from holdfast.wire.overflow.report import ErrorReport

_NAMES = frozenset({"invalidencryptedcontent", "compactionsignatureinvalid"})
"""Codes that say it, as letters."""
_SEALED = r"encrypted[_ ]content\b"
_WORDS = re.compile(
    rf"{_SEALED}.{{0,120}}(?:could not be|cannot be|was not issued|(?:did|does) not match|not valid|invalid)"
    rf"|(?:invalid|decrypt|verify)\b.{{0,40}}{_SEALED}"
    r"|(?:invalid|corrupt(?:ed)?) (?:thought[_ ]?signature|(?:signature|data) in (?:redacted_)?thinking)"
    r"|thought[_ ]?signature is (?:not valid|invalid)"
    r"|signature of the compaction block is invalid"
)
"""OpenAI's and xAI's words, Anthropic's, and Google's; quotes are gone."""


def refuses_seals(error: ErrorReport) -> bool:
    """Return whether the same request may be answered once nothing in it is sealed."""
    facts = read(error)
    return not _NAMES.isdisjoint(facts.codes) or _WORDS.search(facts.text) is not None
