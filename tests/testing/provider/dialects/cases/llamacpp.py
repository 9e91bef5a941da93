"""Cases of llama.cpp."""

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

MODEL = "qwen3-32b"
TOOLS = [tool()]
THINKING = {"enable_thinking": True}

CASES = {
    "llamacpp.content": RuleCase(
        chat(MODEL, user(), assistant(None, "a"), result("a"), tools=TOOLS),
        chat(MODEL, user(), assistant(None), user()),
        "Assistant message must contain either 'content' or 'tool_calls'!",
    ),
    "llamacpp.parts": RuleCase(
        chat(MODEL, user([image()])), chat(MODEL, user([{"type": "file", "file": {}}])), "unsupported content[].type"
    ),
    "llamacpp.prefill": RuleCase(
        chat(MODEL, user(), assistant("Kelp is")),
        chat(MODEL, user(), assistant("Kelp is"), chat_template_kwargs=THINKING),
        "Assistant response prefill is incompatible with enable_thinking.",
    ),
    "llamacpp.grammar": RuleCase(
        chat(MODEL, grammar='root ::= "kelp"'),
        chat(MODEL, grammar='root ::= "kelp"', tools=TOOLS),
        "Cannot use custom grammar constraints with tools.",
    ),
    "llamacpp.template-switch": RuleCase(
        chat(MODEL, chat_template_kwargs=THINKING),
        chat(MODEL, chat_template_kwargs={"enable_thinking": "true"}),
        "expected boolean, got string",
    ),
}
