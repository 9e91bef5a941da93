"""Errors of a provider, out of a body or an event."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from holdfast.providers.common.json.lenient_json import (
    drop_null_fields,
    read_json_count,
    read_json_fields,
    read_json_text,
)
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.errors.report import ErrorReport

_EMPTY_ERRORS = frozenset({b"{}", b"[]", b'""', b"false"})


def parse_error_report(fields: Mapping[str, Raw], api: str, name: str = "") -> ErrorReport | None:
    """Return the error that an object says, if it says one: in ``error``, by its type, or by the name of its event."""
    error = fields.get("error")
    if error is not None and bytes(error) != b"null":
        return None if bytes(error) in _EMPTY_ERRORS else _build_error_report(drop_null_fields(fields), error, api)
    if "error" not in (name, read_json_text(fields.get("type")), read_json_text(fields.get("object"))):
        return None
    fields = drop_null_fields(fields)
    return _build_error_report(fields, Raw(encode_json(fields)), api)


def _build_error_report(fields: Mapping[str, Raw], error: Raw, api: str) -> ErrorReport:
    """Return what ``error``, an object or a text, says; ``fields`` is all that stands around it."""
    inside = drop_null_fields(read_json_fields(error)) or {
        "message": error,
        **({"code": fields["code"]} if "code" in fields else {}),
    }
    status = read_json_count(inside.get("code")) or read_json_count(inside.get("status"))
    return ErrorReport(
        api,
        status if 400 <= status < 600 else None,
        _pick_error_code(inside),
        read_json_text(inside.get("message")),
        encode_json(fields),
    )


def _pick_error_code(error_fields: Mapping[str, Raw]) -> str:
    """Return the most specific word for an error: its code, else its status or type."""
    details = read_json_fields(error_fields.get("details"))
    words = (details.get("error_code"), *(error_fields.get(key) for key in ("code", "status", "type")))
    return next((word for word in map(read_json_text, words) if word and word != "error"), "")
