"""Cases of OpenRouter."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    assistant,
    chat,
    user,
)

MODEL = "anthropic/claude-sonnet-5.5"
DETAIL = {"type": "reasoning.text", "text": "Rocks first.", "format": "anthropic-claude-v1", "index": 0}

CASES = {
    "openrouter.reasoning-options": RuleCase(
        chat(MODEL, reasoning={"max_tokens": 2_000}),
        chat(MODEL, reasoning={"max_tokens": 2_000, "effort": "high"}),
        'Only one of "reasoning.effort" and "reasoning.max_tokens" can be specified',
    ),
    "openrouter.signed-details": RuleCase(
        chat(MODEL, user(), assistant("1", reasoning_details=[DETAIL | {"signature": "c2VhbA=="}]), user("more")),
        chat(MODEL, user(), assistant("1", reasoning_details=[DETAIL]), user("more")),
        "Provider returned error",
    ),
}
