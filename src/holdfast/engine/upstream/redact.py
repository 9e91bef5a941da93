"""What must stand in no log: the keys that a request goes out with. Some providers repeat a key that they refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus, urlsplit

from msgspec.structs import replace

from holdfast.providers.errors.report import ErrorReport

SECRET_HEADER_PATTERN = re.compile(r"auth|key|token|secret|cookie|credential|password|signature|jwt", re.IGNORECASE)
"""What the names of headers hold whose values are secrets: every gateway has one of its own."""
HARMLESS_QUERY_FIELDS = frozenset({"alt", "beta", "api-version"})
"""Fields of an address whose values are none; those of any other may be."""
MIN_SECRET_CHARS = 6
"""[H] Characters of a secret at least; fewer may be any word."""
MIN_PLAIN_SECRET_CHARS = 20
"""[H] Letters or digits alone are a secret from so many on: local servers are given words for keys (``ollama``), and a
name with *token* in it may hold a limit."""
_MASK = "***"


def find_secrets(headers: Iterable[tuple[str, str]], url: str = "") -> tuple[str, ...]:
    """Return the values of the keys in a request's ``headers`` and address, the longest first."""
    values = [value.strip() for name, value in headers if SECRET_HEADER_PATTERN.search(name)]
    query_fields = (field.partition("=") for field in urlsplit(url).query.split("&"))
    values += [
        form
        for name, _, value in query_fields
        if name not in HARMLESS_QUERY_FIELDS
        for form in (value, unquote_plus(value))
    ]
    candidates = {piece for value in values for piece in (value, value.rpartition(" ")[2])}
    return tuple(sorted(filter(_is_secret, candidates), key=len, reverse=True))


def _is_secret(value: str) -> bool:
    return len(value) >= (MIN_PLAIN_SECRET_CHARS if value.isalpha() or value.isdecimal() else MIN_SECRET_CHARS)


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` without the ``secrets``."""
    for secret in secrets:
        text = text.replace(secret, _MASK)
    return text


def redact_report(report: ErrorReport, secrets: Iterable[str]) -> ErrorReport:
    """Return ``report`` with none of the ``secrets`` in the words that somebody may be shown."""
    body = report.body
    for secret in secrets if isinstance(body, bytes) else ():
        body = body.replace(secret.encode(), _MASK.encode())
    return replace(report, message=redact_text(report.message, secrets), body=body)
