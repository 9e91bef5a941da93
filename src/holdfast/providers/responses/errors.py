"""Errors of a provider, out of a body or an event."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import count_of, fields_of, given, text_of
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.overflow.report import ErrorReport

_NO_ERROR = frozenset({b"{}", b"[]", b'""', b"false"})


def fault_of(found: Mapping[str, Raw], api: str, name: str = "") -> ErrorReport | None:
    """Return the error that an object says, if it says one: in ``error``, by its type, or by the name of its event."""
    error = found.get("error")
    if error is not None and bytes(error) != b"null":
        return None if bytes(error) in _NO_ERROR else _told(given(found), error, api)
    if "error" not in (name, text_of(found.get("type")), text_of(found.get("object"))):
        return None
    found = given(found)
    return _told(found, Raw(write(found)), api)


def _told(found: Mapping[str, Raw], error: Raw, api: str) -> ErrorReport:
    """Return what ``error``, an object or a text, says; ``found`` is all that stands around it."""
    inside = given(fields_of(error)) or {"message": error, **({"code": found["code"]} if "code" in found else {})}
    status = count_of(inside.get("code")) or count_of(inside.get("status"))
    return ErrorReport(
        api,
        status if 400 <= status < 600 else None,
        _code(inside),
        text_of(inside.get("message")),
        write(found),
    )


def _code(inside: Mapping[str, Raw]) -> str:
    """Return the most specific word for an error: its code, else its status or type."""
    details = fields_of(inside.get("details"))
    words = (details.get("error_code"), *(inside.get(key) for key in ("code", "status", "type")))
    return next((word for word in map(text_of, words) if word and word != "error"), "")
