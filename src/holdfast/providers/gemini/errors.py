"""Errors in the form of generateContent."""

from __future__ import annotations

from typing import Any

from holdfast.providers.common.error_forms import ErrorForm, ErrorFormat, format_token_sum

_FORMS = {
    "context_window": ErrorForm(400, "INVALID_ARGUMENT"),
    "input_plus_output": ErrorForm(400, "INVALID_ARGUMENT"),
    "request_bytes": ErrorForm(400, "INVALID_ARGUMENT", text="Request payload size exceeds the limit."),
    "invalid_request": ErrorForm(400, "INVALID_ARGUMENT", text="Request contains an invalid argument."),
    "auth": ErrorForm(401, "UNAUTHENTICATED", text="API key not valid. Please pass a valid API key."),
    "model": ErrorForm(404, "NOT_FOUND"),
    "rate_limit": ErrorForm(429, "RESOURCE_EXHAUSTED", text="Resource exhausted. Please try again later."),
    "server": ErrorForm(500, "INTERNAL", text="An internal error has occurred."),
    "overloaded": ErrorForm(503, "UNAVAILABLE", text="The model is overloaded. Please try again later."),
}


def _word_overflow(
    kind: str,
    limit: int | None,
    requested_tokens: int | None,
    output: int | None,
) -> str:
    if kind == "input_plus_output":
        numbers = format_token_sum(limit, requested_tokens, output)
        return f"The input length and max_tokens exceed context limit{numbers and ': '}{numbers}."
    count_text = "" if requested_tokens is None else f" ({requested_tokens})"
    allowed = "" if limit is None else f" ({limit})"
    return f"The input token count{count_text} exceeds the maximum number of tokens allowed{allowed}."


def _build_body(form: ErrorForm, text: str, _is_overflow: bool) -> dict[str, Any]:
    return {"error": {"code": form.status, "message": text, "status": form.type}}


ERROR_FORMAT = ErrorFormat(_FORMS, _word_overflow, _build_body)
