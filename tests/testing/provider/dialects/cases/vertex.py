"""Cases of Vertex."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    messages_body,
    user,
)

VERSION = {"anthropic_version": "vertex-2023-10-16"}
OPUS = "claude-opus-5"
SCOPED = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral", "scope": "global"}}
CACHED = SCOPED | {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "read", "input_schema": {"type": "object", "properties": {}}}


def contents(**id_field):
    """Return a body of Gemini with a call and its response."""
    call = {"functionCall": {"name": "read", "args": {}, **id_field}}
    response = {"functionResponse": {"name": "read", "response": {"output": "done"}, **id_field}}
    turns = [("user", {"text": "hello"}), ("model", call), ("user", response)]
    return {"contents": [{"role": role, "parts": [part]} for role, part in turns]}


CASES = {
    "vertex.version": RuleCase(
        messages_body(**VERSION), messages_body(), "anthropic_version: Field required", model=OPUS
    ),
    "vertex.model": RuleCase(
        messages_body(**VERSION), messages_body(**VERSION, model=OPUS), "model: Extra inputs", model=OPUS
    ),
    "vertex.betas": RuleCase(
        messages_body(**VERSION, anthropic_beta=["effort-2025-11-24"]),
        messages_body(**VERSION),
        "Unexpected value(s) `prompt-caching-scope-2026-01-05` for the `anthropic-beta` header.",
        headers={"anthropic-beta": "prompt-caching-scope-2026-01-05"},
        model=OPUS,
    ),
    "vertex.fields": RuleCase(
        messages_body(**VERSION),
        messages_body(**VERSION, context_management={"edits": []}),
        "context_management: Extra inputs are not permitted",
        model=OPUS,
    ),
    "vertex.tools": RuleCase(
        messages_body(**VERSION, tools=[TOOL]),
        messages_body(**VERSION, tools=[{"type": "memory_20250818", "name": "memory"}]),
        "Input tag 'memory_20250818' found using 'type' does not match any of the expected tags",
        model=OPUS,
    ),
    "vertex.cache-scope": RuleCase(
        messages_body(user([CACHED]), **VERSION),
        messages_body(user([SCOPED]), **VERSION),
        "cache_control.ephemeral.scope: Extra inputs are not permitted",
        model=OPUS,
    ),
    "vertex.call-ids": RuleCase(
        contents(),
        contents(id="call_1"),
        "Unknown name \"id\" at 'contents[1].parts[0].function_call'",
        model="gemini-2.5-pro",
    ),
}
