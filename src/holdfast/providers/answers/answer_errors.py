"""Read the error of a provider out of a body or an event."""

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

# Some servers send an empty "error" beside a good answer.
_EMPTY_ERRORS = frozenset({b"{}", b"[]", b'""', b"false"})


def parse_error_report(fields: Mapping[str, Raw], api: str, name: str = "") -> ErrorReport | None:
    """Read the error in an object, or return None if it is not one.

    It is one if it has a field ``error``, or if its type or the ``name`` of its event is ``error``. Some servers write
    the error's own fields into the body, also under HTTP 200.
    """
    error = fields.get("error")
    if error is not None and bytes(error) in _EMPTY_ERRORS:
        return None
    if error is not None and bytes(error) != b"null":
        return _build_error_report(drop_null_fields(fields), error, api)
    is_named_error = "error" in (name, read_json_text(fields.get("type")), read_json_text(fields.get("object")))
    if not is_named_error and not _is_bare_error(fields):
        return None
    fields = drop_null_fields(fields)
    return _build_error_report(fields, Raw(encode_json(fields)), api)


def _is_bare_error(fields: Mapping[str, Raw]) -> bool:
    """Return whether an object has an error's own fields: Cerebras' ``message`` and ``type``, or MiniMax's status."""
    if read_json_text(fields.get("message")) and read_json_text(fields.get("type")).endswith("_error"):
        return True
    base_response = read_json_fields(fields["base_resp"]) if "base_resp" in fields else {}
    return read_json_count(base_response.get("status_code")) != 0


def _build_error_report(fields: Mapping[str, Raw], error: Raw, api: str) -> ErrorReport:
    """Build the report of ``error``, an object or a text; ``fields`` are those of the object around it."""
    error_fields = drop_null_fields(read_json_fields(error))
    if not error_fields:  # a text, with its code beside it
        error_fields = {"message": error}
        if "code" in fields:
            error_fields["code"] = fields["code"]
    # Google and OpenRouter give the HTTP status as a number in "code". Inside of a stream it is stated nowhere else.
    status = read_json_count(error_fields.get("code")) or read_json_count(error_fields.get("status"))
    return ErrorReport(
        provider=api,
        status=status if 400 <= status < 600 else None,
        code=_pick_error_code(error_fields),
        message=read_json_text(error_fields.get("message")),
        body=encode_json(fields),
    )


def _pick_error_code(error_fields: Mapping[str, Raw]) -> str:
    """Return the most specific code of an error, or an empty string if it has none."""
    # Anthropic's `details.error_code` says more than its type; Google's "status" is a word, its "code" a number.
    details = read_json_fields(error_fields.get("details"))
    for raw in (details.get("error_code"), *map(error_fields.get, ("code", "status", "type"))):
        code = read_json_text(raw)
        if code and code != "error":
            return code
    return ""
