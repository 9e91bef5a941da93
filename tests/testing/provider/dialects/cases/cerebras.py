"""Cases of Cerebras."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    assistant,
    chat,
    user,
)

MODEL = "gpt-oss-120b"

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
}
