"""Errors in the wording of OpenAI's APIs."""

from __future__ import annotations

from holdfast.providers.common.error_forms import ErrorForm

OPENAI_ERROR_FORMS = {
    "context_window": ErrorForm(400, "invalid_request_error", "context_length_exceeded"),
    "input_plus_output": ErrorForm(400, "invalid_request_error", "context_length_exceeded"),
    "request_bytes": ErrorForm(413, "invalid_request_error", "request_too_large", "Request body is too large."),
    "invalid_request": ErrorForm(400, "invalid_request_error"),
    "auth": ErrorForm(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    "model": ErrorForm(404, "invalid_request_error", "model_not_found"),
    "rate_limit": ErrorForm(429, "requests", "rate_limit_exceeded"),
    "server": ErrorForm(500, "server_error", "server_error", "The server had an error while processing your request."),
    "overloaded": ErrorForm(503, "service_unavailable_error", "server_is_overloaded"),
}
"""Error forms of Chat and Responses. ``server_is_overloaded`` is the code by which Codex knows an overload."""


def word_overflow(
    kind: str,
    limit: int | None,
    requested_tokens: int | None,
    output: int | None,
) -> str:
    """Word an overflow as OpenAI does, with as many of the numbers as are known; an unknown number is None."""
    if limit is None:
        limit_text = ""
    else:
        limit_text = f"This model's maximum context length is {limit} tokens. "
    if kind == "input_plus_output":
        return (
            f"{limit_text}{_format_token_shares(requested_tokens, output)} Please reduce the length of the "
            "messages or completion."
        )
    if requested_tokens is not None:
        request_text = f"your messages resulted in {requested_tokens} tokens. "
        limit_text += f"However, {request_text}" if limit_text else request_text.capitalize()
    return f"{limit_text}Please reduce the length of the messages."


def _format_token_shares(requested_tokens: int | None, output: int | None) -> str:
    if requested_tokens is None:
        return "The sum of prompt and completion tokens exceeds it."
    if output is None:
        return f"However, you requested more ({requested_tokens} in the messages, and the completion)."
    total = requested_tokens + output
    return f"However, you requested {total} tokens ({requested_tokens} in the messages, {output} in the completion)."
