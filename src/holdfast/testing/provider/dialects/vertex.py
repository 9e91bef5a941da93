"""Claude and Gemini on Google Vertex AI: rawPredict has the version in the body and the model in the address."""

from __future__ import annotations

import re
from typing import Any

from holdfast.testing.provider.dialects.server_dialect import ServerDialect, ServerError, ServerErrors, ServerRule
from holdfast.testing.provider.dialects.server_request import ServerRequest, list_parts

VERTEX_VERSION = "vertex-2023-10-16"
_SOURCE = "platform.claude.com/docs/en/build-with-claude/claude-on-vertex-ai"
_REFUSED_BETAS = frozenset({"prompt-caching-scope-2026-01-05", "oauth-2025-04-20", "message-threads-2026-08-12"})
"""Betas with a public refusal, or refused by the tables of two clients."""
_UNKNOWN_TOOLS = re.compile(r"memory_|web_fetch_|code_execution_|mcp_")
_OLD_GEMINI = re.compile(r"gemini-(?:1|2)")


def _refuse(message: str) -> ServerError:
    return ServerError(message, kind="invalid_request_error")


def _check_version(request: ServerRequest) -> ServerErrors:
    """The body has the anthropic_version of Vertex."""
    version = request.body.get("anthropic_version")
    if version is None:
        yield _refuse("anthropic_version: Field required")
    elif version != VERTEX_VERSION:
        yield _refuse(f"anthropic_version: Input should be '{VERTEX_VERSION}'")


def _check_model(request: ServerRequest) -> ServerErrors:
    """The body has no model; the address names it."""
    if "model" in request.body:
        yield _refuse("model: Extra inputs are not permitted")


def _check_betas(request: ServerRequest) -> ServerErrors:
    """Vertex knows the betas of the request."""
    unknown_betas = sorted(request.betas & _REFUSED_BETAS)
    if unknown_betas:
        names = ", ".join([f"`{beta}`" for beta in unknown_betas])
        text = f"Unexpected value(s) {names} for the `anthropic-beta` header. Please consult our documentation at"
        yield _refuse(f"{text} docs.anthropic.com or try again without the header.")


def _check_fields(request: ServerRequest) -> ServerErrors:
    """There is no output_format at the top, and no context_management without its beta."""
    if "output_format" in request.body:
        yield _refuse("output_format: This field is deprecated. Use 'output_config.format' instead.")
    has_beta = any(beta.startswith(("context-management", "compact-")) for beta in request.betas)
    if "context_management" in request.body and not has_beta:
        yield _refuse("context_management: Extra inputs are not permitted")


def _check_tools(request: ServerRequest) -> ServerErrors:
    """A tool is of a type that Vertex has: no memory, web fetch, code execution or MCP."""
    for index, tool in request.tools:
        kind = str(tool.get("type", ""))
        if _UNKNOWN_TOOLS.match(kind):
            text = f"tools.{index}: Input tag '{kind}' found using 'type' does not match any of the expected tags:"
            yield _refuse(f"{text} 'bash_20250124', 'custom', 'text_editor_20250728', 'web_search_20250305'")


def _check_cache_scope(request: ServerRequest) -> ServerErrors:
    """cache_control has no scope."""
    for index, message in request.messages:
        for place, part in list_parts(message):
            control = part.get("cache_control")
            if isinstance(control, dict) and "scope" in control:
                path = f"messages.{index}.content.{place}.{part.get('type')}.cache_control.ephemeral.scope"
                yield _refuse(f"{path}: Extra inputs are not permitted")


def _check_call_ids(request: ServerRequest) -> ServerErrors:
    """Before Gemini 3, functionCall and functionResponse have no id."""
    contents = request.body.get("contents")
    if not _OLD_GEMINI.search(request.model):
        return
    for index, content in enumerate(contents if isinstance(contents, list) else []):
        parts = content.get("parts") if isinstance(content, dict) else None
        for place, part in enumerate(parts if isinstance(parts, list) else []):
            for field, name in (("functionCall", "function_call"), ("functionResponse", "function_response")):
                value = part.get(field) if isinstance(part, dict) else None
                if isinstance(value, dict) and "id" in value:
                    where = f"contents[{index}].parts[{place}].{name}"
                    text = f"Invalid JSON payload received. Unknown name \"id\" at '{where}': Cannot find field."
                    yield ServerError(text, code="INVALID_ARGUMENT")


def _encode_error(error: ServerError) -> dict[str, Any]:
    """Encode an error of Google for Gemini, and one of Anthropic for Claude."""
    if error.code is not None and str(error.code).isupper():
        return {"error": {"code": error.status, "message": error.message, "status": error.code}}
    kind = error.kind or str(error.code or "invalid_request_error")
    fields = {"type": kind, "message": error.message}
    return {"type": "error", "error": fields, "request_id": "req_vrtx_011CStrictProvider"}


VERTEX = ServerDialect(
    name="vertex",
    title="Google Vertex AI",
    default_model="claude-sonnet-5-5",
    rules=(
        ServerRule("vertex.version", _check_version, _SOURCE, "anthropic"),
        ServerRule("vertex.model", _check_model, _SOURCE, "anthropic"),
        ServerRule(
            "vertex.betas",
            _check_betas,
            "anthropics/claude-code#21625, 2026-01; better-ccflare#47; table of litellm 1.110.2",
            "anthropic",
        ),
        ServerRule(
            "vertex.fields",
            _check_fields,
            "litellm 1.110.2; anthropics/claude-code#21612, 2026-02. The wording for output_format is not known",
            "anthropic",
        ),
        ServerRule(
            "vertex.tools",
            _check_tools,
            "BerriAI/litellm#15299; anthropics/skills skills/claude-api/shared, 2026-07-01",
            "anthropic",
        ),
        ServerRule(
            "vertex.cache-scope",
            _check_cache_scope,
            "anthropics/claude-code#21625, 2026-01; litellm 1.110.2",
            "anthropic",
        ),
        ServerRule(
            "vertex.call-ids",
            _check_call_ids,
            "litellm 1.110.2, vertex and gemini transformations; the wording is Google's for unknown fields",
            "gemini",
        ),
    ),
    encode_error=_encode_error,
    needs_model=False,
)
