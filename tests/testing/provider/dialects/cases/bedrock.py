"""Cases of Bedrock."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    messages_body,
    user,
)

VERSION = {"anthropic_version": "bedrock-2023-05-31"}
OPUS = "us.anthropic.claude-opus-5"
CACHED = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
SCOPED = CACHED | {"cache_control": {"type": "ephemeral", "scope": "global"}}
TOOL = {"name": "read", "input_schema": {"type": "object", "properties": {}}}
FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}

CASES = {
    "bedrock.version": RuleCase(
        messages_body(**VERSION), messages_body(), "anthropic_version: Field required", model=OPUS
    ),
    "bedrock.top-fields": RuleCase(
        messages_body(**VERSION),
        messages_body(**VERSION, model=OPUS),
        "model: Extra inputs are not permitted",
        model=OPUS,
    ),
    "bedrock.body-betas": RuleCase(
        messages_body(model=OPUS),
        messages_body(model=OPUS, anthropic_beta=["effort-2025-11-24"]),
        "anthropic_beta: Extra inputs are not permitted",
    ),
    "bedrock.betas": RuleCase(
        messages_body(**VERSION, anthropic_beta=["context-1m-2025-08-07"]),
        messages_body(**VERSION, anthropic_beta=["claude-code-20250219"]),
        "invalid beta flag",
        model=OPUS,
    ),
    "bedrock.cache-control": RuleCase(
        messages_body(user([CACHED]), **VERSION),
        messages_body(user([SCOPED]), **VERSION),
        "messages.0.content.0.cache_control.ephemeral.scope: Extra inputs are not permitted",
        model=OPUS,
    ),
    "bedrock.tools": RuleCase(
        messages_body(**VERSION, tools=[TOOL]),
        messages_body(**VERSION, tools=[TOOL | {"strict": True}]),
        "tools.0.custom.strict: Extra inputs are not permitted",
        model=OPUS,
    ),
    "bedrock.output-format": RuleCase(
        messages_body(**VERSION, output_config={"effort": "low"}),
        messages_body(**VERSION, output_config={"format": FORMAT}),
        "output_config.format: Extra inputs are not permitted",
        model=OPUS,
    ),
}
