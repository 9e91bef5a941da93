"""Cases of Groq."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    assistant,
    chat,
    tool,
    user,
)

MODEL = "openai/gpt-oss-120b"
TOOLS = [tool()]


def with_answer_schema(**fields):
    """Return a body that asks for a list of texts."""
    steps = {"type": "array", "items": {"type": "string"}, **fields}
    schema = {"type": "object", "properties": {"next_step": steps}, "required": ["next_step"]}
    return chat(MODEL, response_format={"type": "json_schema", "json_schema": {"name": "plan", "schema": schema}})


def with_strict_schema(schema):
    """Return a body that asks for an answer by a strict schema."""
    answer_format = {"name": "plan", "schema": schema, "strict": True}
    return chat(MODEL, response_format={"type": "json_schema", "json_schema": answer_format})


CASES = {
    "groq.top-fields": RuleCase(chat(MODEL, seed=7, n=1), chat(MODEL, store=True), "property 'store' is unsupported"),
    "groq.message-fields": RuleCase(
        chat(MODEL, user(), assistant("1", reasoning="Rocks first."), user("more")),
        chat(MODEL, user(), assistant("1", reasoning_content="Rocks first."), user("more")),
        "('messages.1' : property 'reasoning_content' is unsupported)",
    ),
    "groq.tool-count": RuleCase(
        chat(MODEL, tools=[tool(f"read_{number}") for number in range(128)]),
        chat(MODEL, tools=[tool(f"read_{number}") for number in range(129)]),
        "'tools' : maximum number of items is 128",
    ),
    "groq.reasoning-format": RuleCase(
        chat(MODEL, tools=TOOLS, reasoning_format="parsed"), chat(MODEL, tools=TOOLS, reasoning_format="raw"), "raw"
    ),
    "groq.effort": RuleCase(
        chat("qwen/qwen3.8-27b", reasoning_effort="none"),
        chat("qwen/qwen3.8-27b", reasoning_effort="low"),
        "must be one of `none`, `default`",
    ),
    "groq.answer-schema": RuleCase(
        with_answer_schema(),
        with_answer_schema(minItems=1),
        "response_format/json_schema/next_step: minItems is not supported",
    ),
    "groq.strict-schema": RuleCase(
        with_strict_schema({"type": "object", "properties": {}, "additionalProperties": False, "required": []}),
        with_strict_schema({"type": "object", "properties": {"step": {"type": "string"}}, "required": ["step"]}),
        "`additionalProperties:false` must be set on every object",
    ),
}
