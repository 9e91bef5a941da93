"""Cases of Kimi."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    assistant,
    chat,
    image,
    result,
    tool,
    user,
)

MODEL = "kimi-k3"
TOOLS = [tool()]
WHY = "I read it first."


def with_schema(**properties):
    """Return a body with a tool that has these properties."""
    return chat(MODEL, tools=[tool(parameters={"type": "object", "properties": properties})])


CASES = {
    "kimi.message-size": RuleCase(
        chat(MODEL, user("kelp " * 100_000)), chat(MODEL, user("kelp " * 500_000)), "exceeds limit 2097152"
    ),
    "kimi.empty-assistant": RuleCase(
        chat(MODEL, user(), assistant(None, "read:1", reasoning_content=WHY), result("read:1"), tools=TOOLS),
        chat(MODEL, user(), assistant(""), user("more")),
        "the message at position 1 with role 'assistant' must not be empty",
    ),
    "kimi.reasoning-returned": RuleCase(
        chat(MODEL, user(), assistant(None, "read:1", reasoning_content=" "), result("read:1"), tools=TOOLS),
        chat(MODEL, user(), assistant(None, "read:1", reasoning_content=""), result("read:1"), tools=TOOLS),
        "reasoning_content is missing in assistant tool call message at index 1",
    ),
    "kimi.media": RuleCase(
        chat(MODEL, user([image()])),
        chat(MODEL, user([image("data:text/plain;charset=utf-8;base64,aGVsbG8=")])),
        "unsupported image format: text/plain",
    ),
    "kimi.thinking": RuleCase(
        chat("kimi-k2.7-code", thinking={"type": "enabled"}),
        chat("kimi-k2.7-code", thinking={"type": "disabled"}),
        "invalid thinking: only type=enabled is allowed for this model",
    ),
    "kimi.sampling": RuleCase(
        chat("kimi-k2.6", temperature=0.6, top_p=0.95, thinking={"type": "disabled"}),
        chat(MODEL, temperature=0.2),
        "invalid temperature: only 1 is allowed for this model",
    ),
    "kimi.forced-tools": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice="required"),
        chat("kimi-k2.6", tools=TOOLS, tool_choice="required"),
        "tool_choice 'required' is incompatible with thinking enabled",
    ),
    "kimi.tool-names": RuleCase(
        chat(MODEL, tools=[tool("read_2")]), chat(MODEL, tools=[tool("2_read")]), "must start with a letter"
    ),
    "kimi.schema-root": RuleCase(
        chat(MODEL, tools=TOOLS),
        chat(MODEL, tools=[tool(parameters={"properties": {"path": {"type": "string"}}})]),
        'tools.function.parameters.type is required and must be "object"',
    ),
    "kimi.schema": RuleCase(
        with_schema(path={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        with_schema(path={"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]}),
        "when using anyOf, type should be defined in anyOf items instead of the parent schema",
    ),
}
