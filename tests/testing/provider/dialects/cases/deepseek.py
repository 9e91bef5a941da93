"""Cases of DeepSeek."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    NAMED_TOOL,
    RuleCase,
    assistant,
    chat,
    image,
    result,
    system,
    tool,
    user,
)

MODEL = "deepseek-flash"
TOOLS = [tool()]
OFF = {"type": "disabled"}

CASES = {
    "deepseek.roles": RuleCase(
        chat(MODEL, system(), user()), chat(MODEL, system(role="developer"), user()), "unknown variant `developer`"
    ),
    "deepseek.parts": RuleCase(
        chat(MODEL, user([image()])),
        chat("deepseek-v4-pro", user([image()])),
        "messages[0]: unknown variant `image_url`, expected `text`",
    ),
    "deepseek.tool-choice": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice="required", thinking=OFF),
        chat(MODEL, tools=TOOLS, tool_choice="any", thinking=OFF),
        "unknown variant `any`",
    ),
    "deepseek.forced-tools": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice=NAMED_TOOL, thinking=OFF),
        chat(MODEL, tools=TOOLS, tool_choice=NAMED_TOOL),
        "Thinking mode does not support this tool_choice",
    ),
    "deepseek.reasoning-returned": RuleCase(
        chat(MODEL, user(), assistant(None, "call_1", reasoning_content=""), result("call_1"), tools=TOOLS),
        chat(MODEL, user(), assistant(None, "call_1"), result("call_1"), tools=TOOLS),
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
    ),
}
