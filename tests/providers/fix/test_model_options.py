"""Options that a model of OpenAI's refuses are changed in the one right way, by ``fix`` and by a conversion."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.common.openai.model_traits import find_nearest_effort, get_openai_traits
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.rules.validate import validate_request

TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
HISTORY = {"openai-chat": "messages", "openai-responses": "input"}


def build_body(api, **fields):
    return json.dumps({**fields, HISTORY[api]: [{"role": "user", "content": "hi"}]}).encode()


def fix_body(api, **fields):
    """Return the fixed body without its messages, and the result; assert that fixing again changes nothing."""
    result = fix_request(build_body(api, **fields), api)
    assert fix_request(result.body, api).body == result.body
    body = json.loads(result.body)
    assert body.pop(HISTORY[api]) == [{"role": "user", "content": "hi"}]
    return body, result


@pytest.mark.parametrize(
    ("api", "fields", "fixed"),
    [
        (
            "openai-responses",
            {
                "model": "gpt-6.2-sol",
                "temperature": 0.2,
                "top_p": 0.9,
                "reasoning": {"effort": "none", "summary": "auto"},
            },
            {"model": "gpt-6.2-sol", "reasoning": {"effort": "low", "summary": "auto"}},
        ),
        (
            "openai-responses",
            {"model": "gpt-5.6-sol", "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]},
            {"model": "gpt-5.6-sol", "include": ["reasoning.encrypted_content"]},
        ),
        (
            "openai-responses",
            {"model": "gpt-5.5", "include": ["message.output_text.logprobs"], "prompt_cache_retention": "in_memory"},
            {"model": "gpt-5.5"},
        ),
        ("openai-chat", {"model": "o3", "temperature": 0}, {"model": "o3"}),
        (
            "openai-chat",
            {"model": "gpt-5.6-sol", "temperature": 0.2, "tools": [TOOL]},
            {"model": "gpt-5.6-sol", "temperature": 0.2, "tools": [TOOL], "reasoning_effort": "none"},
        ),
        (
            "openai-chat",
            {"model": "gpt-5.4", "reasoning_effort": "high", "tools": [TOOL]},
            {"model": "gpt-5.4", "tools": [TOOL]},
        ),
    ],
    ids=["gpt-6.2", "logprobs", "cache", "o3", "tools need none", "tools without effort"],
)
def test_fix_request_fits_options_to_the_model(api, fields, fixed):
    """Refused fields are left out, an effort becomes the nearest, and each change is told with its rule and path."""
    body, result = fix_body(api, **fields)
    assert body == fixed
    assert result.is_valid
    assert result.fixes
    assert all(fix.rule.startswith(f"{api}.") and fix.path.startswith("$.") for fix in result.fixes)


def test_fix_request_leaves_tools_that_chat_never_takes():
    """Nothing makes Chat Completions take the tools of gpt-6.2, so the finding stays, and names the Responses API."""
    body, result = fix_body("openai-chat", model="gpt-6.2-astra", tools=[TOOL])
    assert body["tools"] == [TOOL]
    assert [finding.rule for finding in result.findings] == ["openai-chat.model-tools"]
    assert "Responses" in result.findings[0].message


@pytest.mark.parametrize("model", ["openai/gpt-6.2-sol", "gpt-4.1", "gpt-5-chat-latest", "my-model"])
def test_fix_request_leaves_options_of_other_models(model):
    """A gateway's name, or a model without rules of its own, changes nothing."""
    data = build_body("openai-chat", model=model, temperature=0.2, reasoning_effort="none", tools=[TOOL])
    assert fix_request(data, "openai-chat").body is data


def convert(data, to, model):
    converted, notes = convert_request(data, to, model)
    return json.loads(converted), " | ".join(notes)


def test_convert_request_leaves_out_what_the_new_model_refuses():
    """The converted request keeps the rules of its model, and each change has a note."""
    data = build_body("openai-chat", model="gpt-4.1", temperature=0.2, top_p=0.5, tools=[TOOL])
    body, notes = convert(data, "openai-responses", "gpt-6.2-sol")
    assert not {"temperature", "top_p"} & body.keys()
    assert "temperature: left out" in notes
    assert "top_p: left out" in notes
    assert validate_request(json.dumps(body).encode(), "openai-responses") == ()


def test_convert_request_tells_of_tools_that_chat_does_not_take():
    """A conversion to Chat writes the effort that tools need, or says that the model takes none there."""
    tool = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}, "strict": False}
    data = build_body("openai-responses", model="gpt-6-luna", tools=[tool], reasoning={"effort": "high"})
    body, notes = convert(data, "openai-chat", "gpt-6-luna")
    assert body["reasoning_effort"] == "none"
    assert "without reasoning" in notes
    _, notes = convert(data, "openai-chat", "gpt-6-astra")
    assert "gpt-6-astra takes tools only in the Responses API" in notes


@pytest.mark.parametrize(
    ("model", "effort", "nearest"),
    [
        ("gpt-5.6", "minimal", "none"),
        ("gpt-6.2-sol", "minimal", "low"),
        ("gpt-5.1", "max", "high"),
        ("gpt-5", "none", "minimal"),
        ("o3", "xhigh", "high"),
        ("o3", "extreme", ""),
    ],
)
def test_find_nearest_effort(model, effort, nearest):
    """The nearest effort is the one with the fewest steps between, the lower of two; an unknown one has none."""
    assert find_nearest_effort(get_openai_traits(model).efforts, effort) == nearest


MODELS = (
    *("gpt-6.2-sol", "gpt-6-astra", "gpt-6.1-sol", "gpt-6-luna", "gpt-6.1-terra", "gpt-5.6-sol", "gpt-5.5", "gpt-5.4"),
    *("gpt-5.2", "gpt-5.2-pro", "gpt-5.1-2025-11-13", "gpt-5", "gpt-5-pro", "o3", "gpt-4.1", "openai/gpt-6.2-sol"),
)
EFFORTS = st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max"])
NAMED_MODEL = {"model": st.sampled_from(MODELS)}
SHARED_OPTIONS = {
    "temperature": st.sampled_from([0, 0.5, 1]),
    "top_p": st.sampled_from([0.5, 1]),
    "top_logprobs": st.integers(0, 3),
    "prompt_cache_retention": st.sampled_from(["in_memory", "24h"]),
}
OPTIONS = {
    "openai-chat": st.fixed_dictionaries(
        NAMED_MODEL,
        optional=SHARED_OPTIONS
        | {
            "reasoning_effort": EFFORTS,
            "tools": st.just([TOOL]),
            "logprobs": st.booleans(),
            "frequency_penalty": st.sampled_from([0, 1]),
        },
    ),
    "openai-responses": st.fixed_dictionaries(
        NAMED_MODEL,
        optional=SHARED_OPTIONS
        | {
            "reasoning": st.fixed_dictionaries({}, optional={"effort": EFFORTS, "summary": st.just("auto")}),
            "include": st.lists(st.sampled_from(["message.output_text.logprobs", "reasoning.encrypted_content"])),
        },
    ),
}


@given(st.sampled_from(sorted(OPTIONS)).flatmap(lambda api: st.tuples(st.just(api), OPTIONS[api])))
def test_fix_request_satisfies_every_model(case):
    """Any options for any model are valid after one fix, but for tools that Chat never takes; nothing else changes."""
    api, fields = case
    fixed, result = fix_body(api, **fields)
    assert {finding.rule for finding in result.findings if finding.level == "error"} <= {"openai-chat.model-tools"}
    assert fixed["model"] == fields["model"]
    assert fixed.get("tools") == fields.get("tools")
    changed_fields = {fix.path.removeprefix("$.").partition(".")[0] for fix in result.fixes}
    assert {key: value for key, value in fixed.items() if key not in changed_fields} == {
        key: value for key, value in fields.items() if key not in changed_fields
    }
