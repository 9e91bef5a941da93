"""Replies that faults put in place of an answer: refusals in the wording of each API, and unexpected answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.parts import Opaque
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.calls import ModelAnswer, RefusalReply
from holdfast.testing.provider.checks.overflow_wordings import make_nginx_page
from holdfast.testing.provider.faults.faults import Fault

ANTHROPIC_ERRORS: Mapping[str, tuple[str, str]] = {
    "400": ("invalid_request_error", "messages.0.content: Input should be a valid list"),
    "400-overflow": ("invalid_request_error", "prompt is too long: 212345 tokens > 200000 maximum"),
    "401": ("authentication_error", "invalid x-api-key"),
    "403": ("permission_error", "Your API key does not have permission to use the specified resource."),
    "404": ("not_found_error", "model: claude-nobody"),
    "408": ("timeout_error", "Request timed out"),
    "409": ("invalid_request_error", "The request conflicts with another one"),
    "413": ("request_too_large", "Request exceeds the maximum allowed number of bytes."),
    "422": ("invalid_request_error", "max_tokens: Input should be greater than or equal to 1"),
    "429": ("rate_limit_error", "Number of requests has exceeded your per-minute rate limit"),
    "429-tokens": (
        "rate_limit_error",
        "This request would exceed the rate limit for your organization of 40,000 input tokens per minute.",
    ),
    "429-overflow": ("rate_limit_error", "Extra usage is required for long context requests."),
    "500": ("api_error", "Internal server error"),
    "503": ("api_error", "Service unavailable"),
    "529": ("overloaded_error", "Overloaded"),
}
"""``error.type`` and message of the Messages API."""
_TPM_TEXT = "in organization org-x on tokens per min (TPM): Limit 200000"
OPENAI_ERRORS: Mapping[str, tuple[str, str]] = {
    "400": ("invalid_type", "Invalid type for 'input': expected one of a string or array, but got an integer."),
    "400-overflow": (
        "context_length_exceeded",
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 141209 tokens. "
            "Please reduce the length of the messages."
        ),
    ),
    "401": ("invalid_api_key", "Incorrect API key provided: sk-fake."),
    "403": ("", "You have insufficient permissions for this operation."),
    "404": ("model_not_found", "The model `gpt-nobody` does not exist or you do not have access to it."),
    "408": ("", "Request timed out."),
    "409": ("", "The request conflicts with another one."),
    "413": ("", "Maximum content size limit (26214400) exceeded (26801123 bytes read)"),
    "422": ("", "Invalid value for 'temperature'."),
    "429": (
        "rate_limit_exceeded",
        (
            "Rate limit reached for gpt-x in organization org-x on requests per min (RPM): Limit 500, Used 500, "
            "Requested 1. Please try again in 1s."
        ),
    ),
    "429-tokens": ("rate_limit_exceeded", f"Rate limit reached for gpt-x {_TPM_TEXT}, Used 199000, Requested 4212."),
    "429-overflow": ("rate_limit_exceeded", f"Request too large for gpt-x {_TPM_TEXT}, Requested 412377."),
    "500": ("", "The server had an error while processing your request. Sorry about that!"),
    "503": ("", "The engine is currently overloaded, please try again later."),
}
"""``error.code`` and message of both OpenAI APIs."""
GEMINI_ERRORS: Mapping[str, tuple[str, str]] = {
    "400": ("INVALID_ARGUMENT", "Invalid value at 'contents' (type.googleapis.com/google.ai.Content), \"x\""),
    "400-overflow": (
        "INVALID_ARGUMENT",
        "The input token count (1103921) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "401": ("UNAUTHENTICATED", "API keys are not supported by this API."),
    "403": ("PERMISSION_DENIED", "The caller does not have permission"),
    "404": ("NOT_FOUND", "models/gemini-nobody is not found for API version v1beta"),
    "408": ("DEADLINE_EXCEEDED", "Deadline expired before operation could complete."),
    "409": ("ABORTED", "The operation was aborted."),
    "413": ("INVALID_ARGUMENT", "Request payload size exceeds the limit: 20971520 bytes."),
    "422": ("INVALID_ARGUMENT", "Invalid value at 'generation_config.temperature'"),
    "429": ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
    "429-tokens": (
        "RESOURCE_EXHAUSTED",
        (
            "You exceeded your current quota. Quota exceeded for metric: "
            "generativelanguage.googleapis.com/generate_content_free_tier_input_token_count, limit: 250000"
        ),
    ),
    "429-overflow": (
        "RESOURCE_EXHAUSTED",
        (
            "Quota exceeded for metric: "
            "generativelanguage.googleapis.com/generate_content_paid_tier_input_token_count, limit: 200000"
        ),
    ),
    "500": ("INTERNAL", "An internal error has occurred."),
    "503": ("UNAVAILABLE", "The model is overloaded. Please try again later."),
}
"""``error.status`` and message of generateContent."""
_ERRORS_OF_API = {
    "anthropic": ANTHROPIC_ERRORS,
    "openai-chat": OPENAI_ERRORS,
    "openai-responses": OPENAI_ERRORS,
    "gemini": GEMINI_ERRORS,
}

LLAMA_SERVER_OVERFLOW = (
    b'{"error":{"code":400,"type":"exceed_context_size_error","message":"the request exceeds the available context '
    b'size, try increasing it","n_prompt_tokens":41022,"n_ctx":32768}}'
)
"""The error of llama-server for an overflow, the same under any API."""
_HTML_TITLES = {"413-html": "413 Request Entity Too Large", "502-html": "502 Bad Gateway"}


def make_fault_refusal(fault: Fault, api: str) -> RefusalReply:
    """Build the refusal of a status fault in the wording of ``api``."""
    kind = fault.kind
    # Only Anthropic has the status 529.
    if kind == "529" and api != "anthropic":
        kind = "503"
    status_text = kind[:3]
    body = b""
    if kind == "400-foreign":
        body = LLAMA_SERVER_OVERFLOW
    elif kind in _HTML_TITLES:
        body = make_nginx_page(_HTML_TITLES[kind])
    code = message = ""
    if not body:
        errors = _ERRORS_OF_API[api]
        code, message = errors.get(kind) or errors[status_text]
    is_openai_rate_limit = kind.startswith("429-") and api.startswith("openai")
    details = {"type": "tokens"} if is_openai_rate_limit else {}
    return RefusalReply(int(status_text), code, message, fault.seconds, body=body, details=details)


def make_stream_error(api: str) -> RefusalReply:
    """Return the error for the inside of a stream: the model is overloaded."""
    return make_fault_refusal(Fault("529"), api)


UNKNOWN_BLOCKS: Mapping[str, Any] = {
    "anthropic": {"type": "hologram", "hologram": {"depth": 3}},
    "openai-responses": {"type": "hologram_call", "id": "hg_1", "status": "completed", "depth": 3},
    "gemini": {"hologram": {"depth": 3}},
}
"""A block, an item and a part of kinds that do not exist; a message of Chat has no place for one."""


def add_unknown_block(model_answer: ModelAnswer, api: str) -> ModelAnswer:
    """Return the answer with an additional block and a stop reason that no client knows."""
    parts = model_answer.parts
    if api in UNKNOWN_BLOCKS:
        parts = (*parts, Opaque("hologram", Raw(encode_json(UNKNOWN_BLOCKS[api]))))
    return replace(model_answer, parts=parts, stop="TIRED" if api == "gemini" else "tired")


def make_empty_answer(model_answer: ModelAnswer) -> ModelAnswer:
    """Return the answer without any content."""
    return replace(
        model_answer,
        parts=(),
        stop="end",
        usage=replace(model_answer.usage, output=0, reasoning=0),
    )
