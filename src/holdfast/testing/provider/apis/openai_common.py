"""What both OpenAI APIs share: errors, when to come again, how tokens are counted."""

from __future__ import annotations

from math import ceil
from typing import Any

from holdfast.testing.provider.calls import RefusalReply, TokenUse

_ERROR_TYPES = {403: "permission_error", 429: "rate_limit_error"}
"""``make_openai_error_object.type`` by status; other errors of the client are ``invalid_request_error``."""


def make_openai_error_object(refusal: RefusalReply) -> dict[str, Any]:
    """Return the error object: message, type, param and code."""
    kind = "server_error" if refusal.status >= 500 else _ERROR_TYPES.get(refusal.status, "invalid_request_error")
    fields = {"message": refusal.message, "type": kind, "param": None, "code": refusal.code or None}
    return fields | dict(refusal.details)


def encode_openai_error(refusal: RefusalReply, ticket: str) -> dict[str, Any]:
    """Return an error body; the request's id is told in a header alone."""
    del ticket
    return {"error": make_openai_error_object(refusal)}


def make_openai_retry_headers(refusal: RefusalReply) -> dict[str, str]:
    """Return when to come again, in whole seconds and in milliseconds."""
    if refusal.retry_after is None:
        return {}
    return {"retry-after": str(ceil(refusal.retry_after)), "retry-after-ms": str(round(refusal.retry_after * 1000))}


def encode_chat_usage(used: TokenUse) -> dict[str, Any]:
    """Return usage as Chat Completions has it; prompt tokens include the cached ones."""
    return {
        "prompt_tokens": used.total_input,
        "completion_tokens": used.output,
        "total_tokens": used.total_input + used.output,
        "prompt_tokens_details": {"cached_tokens": used.cache_read, "cache_write_tokens": used.cache_write},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }


def encode_responses_usage(used: TokenUse) -> dict[str, Any]:
    """Return usage as Responses has it; input tokens include the cached ones."""
    return {
        "input_tokens": used.total_input,
        "input_tokens_details": {"cached_tokens": used.cache_read, "cache_write_tokens": used.cache_write},
        "output_tokens": used.output,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.total_input + used.output,
    }


def encode_openai_count(tokens: int) -> dict[str, Any]:
    """Return the answer of ``/responses/input_tokens``; Chat Completions has no endpoint for it."""
    return {"object": "response.input_tokens", "input_tokens": tokens}
