"""Cases of xAI."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    chat,
    tool,
)

MODEL = "grok-4.6"

CASES = {
    "xai.penalties": RuleCase(
        chat(MODEL, temperature=0.5),
        chat(MODEL, presence_penalty=0),
        "Model grok-4.6 does not support parameter presencePenalty.",
    ),
    "xai.tool-count": RuleCase(
        chat(MODEL, tools=[tool(f"read_{number}") for number in range(200)]),
        chat(MODEL, tools=[tool(f"read_{number}") for number in range(201)]),
        "201",
    ),
    "xai.effort": RuleCase(
        chat(MODEL, reasoning_effort="xhigh"),
        chat("grok-4.20-reasoning", reasoning_effort="high"),
        "does not support parameter reasoningEffort",
    ),
}
