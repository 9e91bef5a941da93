"""Cases of Ollama."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    PNG,
    RuleCase,
    assistant,
    chat,
    image,
    result,
    tool,
    user,
)

MODEL = "qwen3:32b"
TOOLS = [tool()]

CASES = {
    "ollama.content": RuleCase(
        chat(MODEL, user(), assistant(None, "a"), result("a"), tools=TOOLS),
        chat(MODEL, user(), assistant(None), user()),
        "invalid message content type: <nil>",
    ),
    "ollama.parts": RuleCase(
        chat(MODEL, user([image(PNG)])),
        chat(MODEL, user([image("https://kelp.example/a.png")])),
        "image URLs are not currently supported, please use base64 encoded data instead",
    ),
    "ollama.arguments": RuleCase(
        chat(MODEL, user(), assistant(None, "a", arguments='{"path": "a"}'), result("a"), tools=TOOLS),
        chat(MODEL, user(), assistant(None, "a", arguments="[1]"), result("a"), tools=TOOLS),
        "invalid tool call arguments",
    ),
    "ollama.effort": RuleCase(
        chat(MODEL, reasoning_effort="none"),
        chat(MODEL, reasoning_effort="ultra"),
        'invalid reasoning value: "ultra" (must be',
    ),
}
