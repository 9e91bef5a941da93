"""Cases of Qwen."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    chat,
    system,
    tool,
    user,
)

MODEL = "qwen3.7-plus"
TOOLS = [tool()]

CASES = {
    "qwen.roles": RuleCase(
        chat(MODEL, system(), user()),
        chat(MODEL, system(role="developer"), user()),
        "developer is not one of ['system', 'assistant', 'user', 'tool', 'function']",
    ),
    "qwen.forced-tools": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice="required", enable_thinking=False),
        chat(MODEL, tools=TOOLS, tool_choice="required", enable_thinking=True),
        "does not support being set to required or object in thinking mode",
    ),
    "qwen.stream": RuleCase(
        chat("qwen3-32b", enable_thinking=False),
        chat("qwen3-32b"),
        "parameter.enable_thinking must be set to false for non-streaming calls",
    ),
    "qwen.thinking-budget": RuleCase(
        chat(MODEL, enable_thinking=True, thinking_budget=1_000),
        chat(MODEL, enable_thinking=True, thinking_budget=0),
        "must be a positive integer",
    ),
}
