"""A tool choice in the body's own form stays, whichever API's form its tools have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request

ASKED = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "anthropic": {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": ASKED},
    "openai-chat": {"model": "gpt-4o", "messages": ASKED},
    "openai-responses": {"model": "gpt-5", "input": "x"},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "x"}]}]},
}
SCHEMA = {"type": "object"}
TOOLS: dict[str, dict[str, Any]] = {
    "anthropic": {"name": "f", "input_schema": SCHEMA},
    "openai-chat": {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    "openai-responses": {"type": "function", "name": "f", "parameters": SCHEMA},
    "gemini": {"functionDeclarations": [{"name": "f"}, {"name": "g"}]},
}
CHOICES: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        {"tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "none"}},
    ],
    "openai-chat": [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tool_choice": "auto", "parallel_tool_calls": False},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
    ],
    "openai-responses": [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "name": "f"}},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
    ],
    "gemini": [{"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"]}}}],
}


@pytest.mark.parametrize("of", TOOLS)
@pytest.mark.parametrize("api", BODIES)
def test_fix_request_keeps_the_tool_choice_in_the_own_form(api: str, of: str) -> None:
    """Tools of another API are rewritten; a tool choice in the body's own form is not."""
    for choice in CHOICES[api]:
        fixed = json.loads(fix_request(json.dumps(BODIES[api] | {"tools": [TOOLS[of]]} | choice).encode(), api).body)
        assert {key: fixed.get(key) for key in choice} == choice


@pytest.mark.parametrize("tool", [{"googleSearch": {}}, {"google_search": {}}, {"codeExecution": {}}])
def test_validate_request_accepts_router_tools_in_chat(tool: dict[str, Any]) -> None:
    """Routers accept tools beside functions that have no type and no form of another API."""
    found = validate_request(json.dumps(BODIES["openai-chat"] | {"tools": [tool]}).encode(), "openai-chat")
    assert not [finding for finding in found if finding.level == "error"]


def test_recognize_api_ignores_properties_of_tool_schemas() -> None:
    """An API is recognized by a tool's own keys, not by what its schema describes."""
    schema = {"type": "object", "properties": {"input_schema": {"type": "string"}}}
    body = BODIES["openai-chat"] | {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}
    assert fix_request(json.dumps(body).encode()).api == "openai-chat"
