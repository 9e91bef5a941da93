"""Claude on Amazon Bedrock: its own copy of the Messages schema, by InvokeModel or at ``/anthropic``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from holdfast.testing.provider.dialects.server_dialect import ServerDialect, ServerError, ServerErrors, ServerRule
from holdfast.testing.provider.dialects.server_request import ServerRequest, list_parts

INVOKE_VERSION = "bedrock-2023-05-31"
_SOURCE = "docs.aws.amazon.com/bedrock/latest/userguide/inference-messages-api.html"
_INVOKE_FIELDS = frozenset(
    {"anthropic_version", "max_tokens", "messages", "anthropic_beta", "system", "stop_sequences", "temperature",
     "top_p", "top_k", "tools", "tool_choice", "thinking", "metadata", "output_config", "safeguards",
     "context_management", "compaction"}
)  # fmt: skip
"""Top-level fields that InvokeModel knows, those with a beta last."""
_BETAS = frozenset(
    {"compact-2026-01-12", "compact-2026-09-04", "context-management-2025-06-27", "context-1m-2025-08-07",
     "effort-2025-11-24", "thinking-binding-controls-2026-08-01", "thinking-display-updates-2026-08-18",
     "computer-use-2025-01-24", "computer-use-2025-11-24", "fine-grained-tool-streaming-2025-05-14",
     "tool-search-tool-2025-10-19", "mid-conversation-tool-changes-2026-07-01",
     "mid-conversation-output-config-2026-07-01", "interleaved-thinking-2025-05-14", "output-128k-2025-02-19",
     "token-efficient-tools-2025-02-19"}
)  # fmt: skip
"""Betas that InvokeModel takes, or for which there is no report of a refusal."""
# Claude 4.5 and later take a time to live (litellm 1.110.2; skills/claude-api of anthropics/skills, 2026-07-01).
_WITHOUT_TTL = re.compile(r"claude-3|(?:opus|sonnet)-4(?:-[01])?(?:-2025|@|-v|$)|haiku-3")
_WITHOUT_STRICT = ("opus-4-7", "opus-4-8", "opus-5", "fable-5", "sonnet-5")


def _refuse(message: str) -> ServerError:
    return ServerError(message, code="ValidationException")


def is_invoke_form(request: ServerRequest) -> bool:
    """Return whether the body is one for InvokeModel: with the version in it, or without a model."""
    return "anthropic_version" in request.body or "model" not in request.body


def _check_version(request: ServerRequest) -> ServerErrors:
    """A body for InvokeModel has the anthropic_version of Bedrock."""
    if not is_invoke_form(request):
        return
    version = request.body.get("anthropic_version")
    if version is None:
        yield _refuse("anthropic_version: Field required")
    elif version != INVOKE_VERSION:
        yield _refuse(f"anthropic_version: Input should be '{INVOKE_VERSION}'")


def _check_top_fields(request: ServerRequest) -> ServerErrors:
    """A body for InvokeModel has neither model nor stream, nor any field that its schema does not know."""
    if not is_invoke_form(request):
        return
    for name in request.body:
        if name not in _INVOKE_FIELDS:
            yield _refuse(f"{name}: Extra inputs are not permitted")


def _check_body_betas(request: ServerRequest) -> ServerErrors:
    """At the address /anthropic, betas are in the header and not in the body."""
    for name in ("anthropic_beta", "betas"):
        if not is_invoke_form(request) and name in request.body:
            yield ServerError(f"{name}: Extra inputs are not permitted", kind="messages")


def _check_betas(request: ServerRequest) -> ServerErrors:
    """InvokeModel knows the betas of the request."""
    for beta in sorted(request.betas):
        if is_invoke_form(request) and beta not in _BETAS:
            yield ServerError("invalid beta flag", kind="messages")


def _iter_cache_controls(request: ServerRequest) -> Iterator[tuple[str, Any]]:
    """Yield each cache_control with its path."""
    system = request.body.get("system")
    for index, block in enumerate(system if isinstance(system, list) else []):
        if isinstance(block, dict) and "cache_control" in block:
            yield f"system.{index}.cache_control", block["cache_control"]
    for index, tool in request.tools:
        if "cache_control" in tool:
            yield f"tools.{index}.cache_control", tool["cache_control"]
    for index, message in request.messages:
        for place, part in list_parts(message):
            if "cache_control" in part:
                yield f"messages.{index}.content.{place}.cache_control", part["cache_control"]


def _check_cache_control(request: ServerRequest) -> ServerErrors:
    """cache_control has a type, and from Claude 4.5 on a ttl; never a scope."""
    for path, control in _iter_cache_controls(request):
        if not isinstance(control, dict):
            continue
        for name in control:
            is_old_ttl = name == "ttl" and _WITHOUT_TTL.search(request.model)
            if name not in ("type", "ttl") or is_old_ttl:
                yield _refuse(f"{path}.ephemeral.{name}: Extra inputs are not permitted")


def _check_tools(request: ServerRequest) -> ServerErrors:
    """A tool has no wrapper custom, and no strict on models that refuse it."""
    for index, tool in request.tools:
        if "custom" in tool:
            yield _refuse(f"tools.{index}.custom: Extra inputs are not permitted")
        if "strict" in tool and request.is_model(*_WITHOUT_STRICT):
            yield _refuse(f"tools.{index}.custom.strict: Extra inputs are not permitted")


def _check_output_format(request: ServerRequest) -> ServerErrors:
    """output_config has no format on models that refuse it."""
    if request.get_option("output_config", "format") is not None and request.is_model(*_WITHOUT_STRICT):
        yield _refuse("output_config.format: Extra inputs are not permitted")


def _encode_error(error: ServerError) -> dict[str, Any]:
    """Encode an error of InvokeModel, or one that is passed on from behind it."""
    if error.kind == "messages":
        return {"type": "error", "error": {"type": "invalid_request_error", "message": error.message}}
    return {"message": error.message}


BEDROCK = ServerDialect(
    name="bedrock",
    title="Amazon Bedrock (Claude)",
    default_model="anthropic.claude-sonnet-5-5",
    rules=(
        ServerRule("bedrock.version", _check_version, _SOURCE, "anthropic"),
        ServerRule(
            "bedrock.top-fields",
            _check_top_fields,
            f"{_SOURCE}; Wei-Shaw/sub2api#2726, 2026-05; fields as in litellm 1.110.2",
            "anthropic",
        ),
        ServerRule("bedrock.body-betas", _check_body_betas, _SOURCE, "anthropic"),
        ServerRule(
            "bedrock.betas",
            _check_betas,
            "anthropics/claude-code#49370, anthropics/claude-code#49648, anthropics/claude-code#26570, 2026-02 to"
            " 2026-04; table of litellm 1.110.2",
            "anthropic",
        ),
        ServerRule(
            "bedrock.cache-control",
            _check_cache_control,
            "litellm 1.110.2; anthropics/skills skills/claude-api/shared, 2026-07-01",
            "anthropic",
        ),
        ServerRule(
            "bedrock.tools",
            _check_tools,
            "BerriAI/litellm#22847; @ai-sdk/amazon-bedrock 4.0.186 (models without strict)",
            "anthropic",
        ),
        ServerRule(
            "bedrock.output-format",
            _check_output_format,
            "@ai-sdk/amazon-bedrock 4.0.186, with the text of the refusal",
            "anthropic",
        ),
    ),
    encode_error=_encode_error,
    overflow="bedrock-short",
    needs_model=False,
    base_paths=("/anthropic/v1",),
)
