"""Rules of Responses and Gemini: the path of each finding."""

from __future__ import annotations

import pytest

from holdfast.providers.rules.validate import validate_request

CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
USER = {"role": "user", "content": "x"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
QUESTION = {"parts": [{"text": "x"}]}
CALLS = {"role": "model", "parts": [{"text": "so"}, {"functionCall": {"name": "ls", "args": {}}}]}


def build_response(name="ls"):
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {}}}]}


@pytest.mark.parametrize(
    ("api", "history", "rule", "path"),
    [
        ("openai-responses", [USER, CALL, USER], "pair", "$.input[1].call_id"),
        ("openai-responses", [USER, OUTPUT], "orphan", "$.input[1].call_id"),
        ("openai-responses", [OUTPUT, CALL, OUTPUT], "orphan", "$.input[0].call_id"),
        ("openai-responses", [USER, REASONING], "reasoning-unit", "$.input[1]"),
        ("openai-responses", [{"role": "user", "content": [{"type": "text"}]}], "parts", "$.input[0].content[0].type"),
        ("openai-responses", [USER, CALL, {**OUTPUT, "output": [7]}], "part-shape", "$.input[2].output[0]"),
        ("gemini", [QUESTION, CALLS, QUESTION], "call-count", "$.contents[1].parts[1].functionCall"),
        ("gemini", [QUESTION, CALLS, build_response("cat")], "match", "$.contents[2].parts[0].functionResponse.name"),
        ("gemini", [QUESTION, build_response()], "response-place", "$.contents[1].parts[0].functionResponse"),
        ("gemini", [QUESTION, CALLS, build_response()], "signed", "$.contents[1].parts[1]"),
    ],
)
def test_validate_request_reports_the_path_of_a_finding(api, history, rule, path):
    """A finding has the path at which the request breaks the rule."""
    body = {"input" if api == "openai-responses" else "contents": history}
    found = validate_request(body, api, model="gemini-3.1-pro")
    assert (f"{api}.{rule}", path) in [(finding.rule, finding.path) for finding in found]


def test_validate_request_accepts_both_spellings_of_gemini():
    """Names with underscores are the same fields, and paths spell them as the request does."""
    call = {"role": "model", "parts": [{"function_call": {"name": "ls", "args": "x"}, "thought_signature": "c2ln"}]}
    answer = {"parts": [{"function_response": {"name": "ls", "response": {}}}]}
    found = validate_request({"contents": [QUESTION, call, answer]}, "gemini", model="gemini-3-flash")
    assert [(finding.rule, finding.path) for finding in found] == [
        ("gemini.args-object", "$.contents[1].parts[0].function_call.args")
    ]
