"""Cases of MiniMax."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    assistant,
    chat,
    result,
    system,
    tool,
    user,
)

MODEL = "MiniMax-M3"
TOOLS = [tool()]

CASES = {
    "minimax.single-system": RuleCase(
        chat(MODEL, system("One. Two."), user()),
        chat(MODEL, system("One."), system("Two."), user()),
        "invalid params, invalid chat setting (2013)",
    ),
    "minimax.result-ids": RuleCase(
        chat(MODEL, user(), assistant(None, "call_1"), result("call_1"), tools=TOOLS),
        chat(MODEL, user(), result("call_1"), tools=TOOLS),
        "tool result's tool id(call_1) not found (2013)",
    ),
    "minimax.arguments": RuleCase(
        chat(MODEL, user(), assistant(None, "call_1", arguments='{"path": "a"}'), result("call_1"), tools=TOOLS),
        chat(MODEL, user(), assistant(None, "call_1", arguments='{"path": '), result("call_1"), tools=TOOLS),
        "invalid function arguments json string, tool_call_id: call_1 (2013)",
    ),
    "minimax.tools": RuleCase(
        chat(MODEL, tools=[tool(parameters={"type": "object", "properties": {}})]),
        chat(MODEL, tools=[{"type": "function", "function": {"name": "read"}}]),
        "function parameters is empty (2013)",
    ),
    "minimax.thinking": RuleCase(
        chat(MODEL, thinking={"type": "adaptive"}),
        chat(MODEL, thinking={"type": "enabled"}),
        'invalid thinking.type: "enabled" (allowed: adaptive, disabled) (2013)',
    ),
    "minimax.sampling": RuleCase(
        chat("MiniMax-M2.7", temperature=1), chat("MiniMax-M2.7", temperature=0), "temperature must be in (0, 1]"
    ),
}
