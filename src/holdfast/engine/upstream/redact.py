"""Keep the keys of requests out of logs and errors: some providers repeat a key that they refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus, urlsplit

from msgspec.structs import replace

from holdfast.providers.errors.report import ErrorReport

# Every gateway has a header of its own for its key, so names are matched by their parts. A header masked without need
# costs nothing but a word in an error message.
SECRET_HEADER_PATTERN = re.compile(r"auth|key|token|secret|cookie|credential|password|signature|jwt", re.IGNORECASE)
"""Matches the names of headers that hold secrets."""
HARMLESS_QUERY_FIELDS = frozenset({"alt", "beta", "api-version"})
"""Fields of a URL's query that hold no secret; any other may."""
# Shorter values are ordinary words, and masking those would make messages unreadable. Chosen by judgement.
MIN_SECRET_CHARS = 6
"""Length from which a value with digits, letters or signs mixed counts as a secret."""
# Local servers are given a plain word as their key (``ollama``), and a header with *token* in its name may hold a
# limit. Real keys of letters or digits alone are longer. Chosen by judgement.
MIN_PLAIN_SECRET_CHARS = 20
"""Length from which a value of letters alone, or digits alone, counts as a secret."""
_MASK = "***"


def find_secrets(headers: Iterable[tuple[str, str]], url: str = "") -> tuple[str, ...]:
    """Return the secrets in a request's ``headers`` and in the query of its ``url``, the longest first.

    The longest first, so that masking a short one does not leave the rest of a longer one that contains it.
    """
    values = [value.strip() for name, value in headers if SECRET_HEADER_PATTERN.search(name)]
    for field in urlsplit(url).query.split("&"):
        name, _, value = field.partition("=")
        if name not in HARMLESS_QUERY_FIELDS:
            values += [value, unquote_plus(value)]  # an error may repeat it in either form
    secrets: set[str] = set()
    for value in values:
        # A provider repeats the key alone, without the "Bearer" before it.
        without_scheme = value.rpartition(" ")[2]
        secrets |= {text for text in (value, without_scheme) if _is_secret(text)}
    return tuple(sorted(secrets, key=len, reverse=True))


def _is_secret(value: str) -> bool:
    is_plain = value.isalpha() or value.isdecimal()
    return len(value) >= (MIN_PLAIN_SECRET_CHARS if is_plain else MIN_SECRET_CHARS)


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with each of ``secrets`` masked."""
    for secret in secrets:
        text = text.replace(secret, _MASK)
    return text


def redact_report(report: ErrorReport, secrets: Iterable[str]) -> ErrorReport:
    """Return ``report`` with each of ``secrets`` masked in its message and its body."""
    body = report.body
    if isinstance(body, bytes):
        for secret in secrets:
            body = body.replace(secret.encode(), _MASK.encode())
    return replace(report, message=redact_text(report.message, secrets), body=body)
