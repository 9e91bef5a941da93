"""What must stand in no log: the keys that a request goes out with. Some providers repeat a key that they refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus, urlsplit

from msgspec.structs import replace

from holdfast.providers.overflow import ErrorReport

NAMES = re.compile(r"auth|key|token|secret|cookie|credential|password|signature|jwt", re.IGNORECASE)
"""What the names of headers hold whose values are secrets: every gateway has one of its own."""
HARMLESS = frozenset({"alt", "beta", "api-version"})
"""Fields of an address whose values are none; those of any other may be."""
SHORTEST = 6
"""[H] Characters of a secret at least; fewer may be any word."""
WORD = 20
"""[H] Letters or digits alone are a secret from so many on: local servers are given words for keys (``ollama``), and a
name with *token* in it may hold a limit."""
_MASK = "***"


def secrets(headers: Iterable[tuple[str, str]], url: str = "") -> tuple[str, ...]:
    """Return the values of the keys in a request's ``headers`` and address, the longest first."""
    values = [value.strip() for name, value in headers if NAMES.search(name)]
    told = (field.partition("=") for field in urlsplit(url).query.split("&"))
    values += [form for name, _, value in told if name not in HARMLESS for form in (value, unquote_plus(value))]
    found = {piece for value in values for piece in (value, value.rpartition(" ")[2])}
    return tuple(sorted(filter(_is_secret, found), key=len, reverse=True))


def _is_secret(value: str) -> bool:
    return len(value) >= (WORD if value.isalpha() or value.isdecimal() else SHORTEST)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` without the ``secrets``."""
    for secret in secrets:
        text = text.replace(secret, _MASK)
    return text


def told(report: ErrorReport, secrets: Iterable[str]) -> ErrorReport:
    """Return ``report`` with none of the ``secrets`` in the words that somebody may be shown."""
    body = report.body
    for secret in secrets if isinstance(body, bytes) else ():
        body = body.replace(secret.encode(), _MASK.encode())
    return replace(report, message=redacted(report.message, secrets), body=body)
