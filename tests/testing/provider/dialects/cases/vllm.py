"""Cases of vLLM."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    chat,
    tool,
)

MODEL = "Qwen/Qwen3-32B"
TOOLS = [tool()]

CASES = {
    "vllm.tools": RuleCase(chat(MODEL, tools=TOOLS), chat(MODEL, tools=[]), "`tools` must not be an empty array."),
    "vllm.tool-choice": RuleCase(
        chat(MODEL, tools=TOOLS, tool_choice="required"),
        chat(MODEL, tool_choice="auto"),
        "When using `tool_choice`, `tools` must be set.",
    ),
    "vllm.stream-options": RuleCase(
        chat(MODEL, stream=True, stream_options={"include_usage": True}),
        chat(MODEL, stream_options={"include_usage": True}),
        "Stream options can only be defined when `stream=True`.",
    ),
    "vllm.logprobs": RuleCase(
        chat(MODEL, logprobs=True, top_logprobs=2), chat(MODEL, top_logprobs=2), "`logprobs` must be set to true"
    ),
    "vllm.cache-salt": RuleCase(chat(MODEL, cache_salt="kelp"), chat(MODEL, cache_salt="k@lp"), "cache_salt"),
}
