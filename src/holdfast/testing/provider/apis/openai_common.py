"""Encoders that both OpenAI APIs share: errors, retry headers, usage."""

from __future__ import annotations

from math import ceil
from typing import Any

from holdfast.testing.provider.calls import RefusalReply, TokenUse

_ERROR_TYPES = {403: "permission_error", 429: "rate_limit_error"}
"""``error.type`` by status; other statuses under 500 have ``invalid_request_error``."""


def make_openai_error_object(refusal: RefusalReply) -> dict[str, Any]:
    """Encode an error as an object with message, type, param and code."""
    default_type = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error_type = _ERROR_TYPES.get(refusal.status, default_type)
    fields = {"message": refusal.message, "type": error_type, "param": None, "code": refusal.code or None}
    return fields | dict(refusal.details)


def encode_openai_error(refusal: RefusalReply, ticket: str) -> dict[str, Any]:
    """Encode an error for a body; the request id is only in a header."""
    del ticket
    return {"error": make_openai_error_object(refusal)}


def make_openai_retry_headers(refusal: RefusalReply) -> dict[str, str]:
    """Return the headers with the delay in whole seconds and in milliseconds, if there is one."""
    if refusal.retry_after is None:
        return {}
    return {"retry-after": str(ceil(refusal.retry_after)), "retry-after-ms": str(round(refusal.retry_after * 1000))}


def encode_chat_usage(usage: TokenUse) -> dict[str, Any]:
    """Encode the usage for Chat Completions; prompt tokens include the cached ones."""
    return {
        "prompt_tokens": usage.total_input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total_input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def encode_responses_usage(usage: TokenUse) -> dict[str, Any]:
    """Encode the usage for Responses; input tokens include the cached ones."""
    return {
        "input_tokens": usage.total_input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total_input + usage.output,
    }


def encode_openai_count(tokens: int) -> dict[str, Any]:
    """Encode the reply to ``/responses/input_tokens``; Chat Completions has no such endpoint."""
    return {"object": "response.input_tokens", "input_tokens": tokens}
