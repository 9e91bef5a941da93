"""Errors in the form of the Messages API."""

from __future__ import annotations

from typing import Any

from holdfast.providers.common.error_forms import ErrorForm, ErrorFormat, encode_error_json, format_token_sum

_FORMS = {
    "context_window": ErrorForm(400, "invalid_request_error"),
    "input_plus_output": ErrorForm(400, "invalid_request_error"),
    "request_bytes": ErrorForm(413, "request_too_large", text="Request exceeds the maximum size"),
    "invalid_request": ErrorForm(400, "invalid_request_error"),
    "auth": ErrorForm(401, "authentication_error", text="invalid x-api-key"),
    "model": ErrorForm(404, "not_found_error"),
    "rate_limit": ErrorForm(429, "rate_limit_error"),
    "server": ErrorForm(500, "api_error", text="Internal server error"),
    "overloaded": ErrorForm(529, "overloaded_error", text="Overloaded"),
}


def _word_overflow(
    kind: str,
    limit: int | None,
    requested_tokens: int | None,
    output: int | None,
) -> str:
    if kind == "input_plus_output":
        problem = "input length and `max_tokens` exceed context limit"
        numbers = format_token_sum(limit, requested_tokens, output)
        return f"{problem}{numbers and ': '}{numbers}, decrease input length or `max_tokens` and try again"
    if limit is not None and requested_tokens is not None:
        return f"prompt is too long: {requested_tokens} tokens > {limit} maximum"
    if limit is not None:
        return f"prompt is too long: at most {limit} tokens fit"
    if requested_tokens is not None:
        return f"prompt is too long: {requested_tokens} tokens"
    return "prompt is too long"


def _build_body(form: ErrorForm, text: str, _is_overflow: bool) -> dict[str, Any]:
    return {"type": "error", "error": {"type": form.type, "message": text}}


def _render_event(body: dict[str, Any], _sequence_number: int) -> bytes:
    return b"event: error\ndata: " + encode_error_json(body) + b"\n\n"


ERROR_FORMAT = ErrorFormat(_FORMS, _word_overflow, _build_body, _render_event)
