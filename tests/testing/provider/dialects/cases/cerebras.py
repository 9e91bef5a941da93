"""Cases of Cerebras."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    assistant,
    chat,
    user,
)

MODEL = "gpt-oss-120b"


def with_strict_schema(**fields):
    """Return a body that asks for an answer by a strict schema."""
    schema = {"type": "object", "properties": {"step": {"type": "string"}}, "required": ["step"], **fields}
    answer_format = {"name": "plan", "schema": schema, "strict": True}
    return chat(MODEL, response_format={"type": "json_schema", "json_schema": answer_format})


CASES = {
    "cerebras.message-fields": RuleCase(
        chat(MODEL, user(), assistant("1", reasoning="Rocks first."), user("more")),
        chat(MODEL, user(), assistant("1", reasoning_content="Rocks first."), user("more")),
        "property 'messages.1.assistant.reasoning_content' is unsupported",
    ),
    "cerebras.call-roles": RuleCase(
        chat(MODEL, user()), chat(MODEL, user(tool_calls=None)), "property 'messages.0.user.tool_calls' is unsupported"
    ),
    "cerebras.top-fields": RuleCase(
        chat(MODEL, reasoning_effort="low"),
        chat(MODEL, reasoning={"effort": "low"}),
        "body.reasoning: property 'body.reasoning' is unsupported",
    ),
    "cerebras.effort": RuleCase(
        chat(MODEL, reasoning_effort="high"),
        chat(MODEL, reasoning_effort="xhigh"),
        "Input should be 'low', 'medium' or 'high'",
    ),
    "cerebras.strict-schema": RuleCase(
        with_strict_schema(additionalProperties=False),
        with_strict_schema(),
        "'additionalProperties' is required to be supplied and set to false.",
        status=422,
    ),
}
