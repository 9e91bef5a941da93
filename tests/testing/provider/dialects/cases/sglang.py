"""Cases of SGLang."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    NAMED_TOOL,
    RuleCase,
    assistant,
    chat,
    system,
    tool,
    user,
)

MODEL = "deepseek-ai/DeepSeek-V3.2"
TOOLS = [tool()]
THOUGHT = [{"type": "thinking", "thinking": "Rocks first."}, {"type": "text", "text": "1"}]

CASES = {
    "sglang.roles": RuleCase(
        chat(MODEL, system(role="developer"), user()), chat(MODEL, user(role="narrator")), "'role' must be one of"
    ),
    "sglang.parts": RuleCase(
        chat(MODEL, user(), assistant(THOUGHT), user("more")),
        chat(MODEL, user(THOUGHT)),
        "parts are only allowed in assistant messages",
    ),
    "sglang.tool-names": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice=NAMED_TOOL),
        chat(MODEL, tools=[tool("write")], tool_choice=NAMED_TOOL),
        "Tool 'read' not found in tools list.",
    ),
    "sglang.required-tools": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice="required"),
        chat(MODEL, tool_choice="required"),
        "Tools cannot be empty if tool choice is set to required.",
    ),
    "sglang.schemas": RuleCase(
        chat(MODEL, tools=TOOLS),
        chat(MODEL, tools=[tool(parameters={"type": "object", "properties": {"path": {"type": "text"}}})]),
        "Tool 0 function has invalid 'parameters' schema",
    ),
}
