"""Cases of LM Studio."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    NAMED_TOOL,
    RuleCase,
    chat,
    tool,
)

MODEL = "openai/gpt-oss-20b"
TOOLS = [tool()]

CASES = {
    "lmstudio.tool-choice": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice="required"),
        chat(MODEL, tools=TOOLS, tool_choice=NAMED_TOOL),
        "Invalid tool_choice type: 'object'. Supported string values: none, auto, required",
    ),
}
