"""The validator under damage and load, for every API."""

from __future__ import annotations

import json

import example_counts
import pytest
import rule_cases
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UnrecognizedContent
from holdfast.providers.rules.validate import ALL_RULES, validate_request

APIS = ("anthropic", "openai-chat", "openai-responses", "gemini")
HISTORY = {"openai-responses": "input", "gemini": "contents"}
"""What the field with the history is called, where it is not ``messages``."""
_BIG = 3_000
"""Bytes from which on a case is too long to be damaged everywhere."""


def _small_cases():
    listed = [one for api in APIS for one in rule_cases.cases(api)]
    return [(one["api"], json.loads(one["request"])) for one in listed if len(one["request"]) < _BIG]


CASES = _small_cases()
ODD = (None, 5, "x", [], {}, [5], {"type": {}}, [{"type": []}])
"""Values that a field may hold in place of the one it should."""

_WORDS = (
    *("text", "tool_use", "tool_result", "image", "function", "base64", "compaction", "assistant", "user", "model"),
    *("message", "reasoning", "function_call", "function_call_output", "input_text", "msg_1", "fc_1", "rs_1", "system"),
)
_KEYS = (
    *("type", "role", "content", "id", "name", "tool_use_id", "source", "cache_control", "tool_calls", "tool_call_id"),
    *("function", "arguments", "caller", "tool", "trigger", "value", "ttl", "text", "parts", "functionCall", "args"),
    *("functionResponse", "response", "thoughtSignature", "call_id", "output", "summary", "encrypted_content"),
)
_FIELDS = (
    *("system", "tools", "tool_choice", "thinking", "compaction", "context_management", "cache_control", "betas"),
    *("model", "max_tokens", "output_config", "temperature", "top_p", "thread", "max_completion_tokens", "store"),
    *("generationConfig", "toolConfig", "systemInstruction", "metadata", "conversation", "truncation", "stop"),
)
_NUMBERS = st.integers(-9, 9) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=4) | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=12,
)


def places(value, path=()):
    """Yield the path of every value inside ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def damaged(value, path, odd):
    """Return ``value`` with ``odd`` in place of what stood at ``path``."""
    if not path:
        return odd
    first, *rest = path
    out = value.copy()
    out[first] = damaged(value[first], rest, odd)
    return out


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.counts
@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
def test_validate_request_survives_any_damaged_value(odd):
    """Whatever replaces any value of any case, the validator returns findings."""
    for api, body in CASES[:: example_counts.choose(quick=6, ci=2, thorough=1)]:
        for path in places(body):
            assert isinstance(validate_request(damaged(body, path, odd), api), tuple)


@given(st.data(), st.sampled_from(CASES), JSON)
def test_validate_request_judges_text_and_values_alike(data, case, odd):
    """A case with any JSON in place of any value gets the same findings as bytes and as values."""
    api, body = case
    body = damaged(body, data.draw(st.sampled_from(list(places(body)))), odd)
    assert validate_request(body, api) == validate_request(json.dumps(body).encode(), api)


@given(JSON, st.dictionaries(st.sampled_from(_FIELDS), JSON, max_size=4), st.sampled_from(APIS))
def test_validate_request_survives_any_json(history, fields, api):
    """Any JSON gets findings, never an exception."""
    body = {**fields, HISTORY.get(api, "messages"): history}
    assert validate_request(body, api) == validate_request(json.dumps(body).encode(), api)


@given(st.lists(JSON, max_size=4), st.sampled_from(APIS))
def test_validate_request_survives_any_message_list(listed, api):
    """Any list of messages gets findings, never an exception."""
    shaped = [
        {"role": "assistant", "content": one, "tool_calls": one, "parts": one, "type": "message", "output": one}
        if isinstance(one, list)
        else one
        for one in listed
    ]
    assert isinstance(validate_request({HISTORY.get(api, "messages"): shaped}, api), tuple)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), st.sampled_from((*APIS, None)))
def test_validate_request_survives_any_bytes(data, api):
    """Any bytes get findings; only without an API may they be unrecognized."""
    try:
        assert isinstance(validate_request(data, api), tuple)
    except UnrecognizedContent:
        assert api is None


@given(st.data(), st.sampled_from(CASES))
def test_validate_request_reports_truncated_json(data, case):
    """A case truncated anywhere is one ``json`` finding."""
    api, body = case
    whole = json.dumps(body).encode()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert [(one.rule, one.path) for one in validate_request(cut, api)] == [("json", "$")]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":NaN}',
        b'{"a":"\\ud800 x"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        {"messages": ["\ud800"]},
    ],
    ids=lambda body: repr(body)[:20],
)
def test_validate_request_reports_unreadable_json_at_the_root(body, api):
    """A body that no API can read is one finding at its root."""
    assert [(one.rule, one.path) for one in validate_request(body, api)] == [("json", "$")]


def test_validate_request_recognizes_the_api_or_raises():
    """Without an API the body decides; a body of no known API, or an API without rules, is rejected."""
    said = {"messages": [{"role": "user", "content": "x"}]}
    assert validate_request(json.dumps(said).encode()) == ()
    with pytest.raises(UnrecognizedContent):
        validate_request({"prompt": "x"})
    with pytest.raises(UnrecognizedContent):
        validate_request(said, "cohere")


# -- load --------------------------------------------------------------------------------------------------------------


def messages(turns):
    """Return a Messages conversation, right but for one id in each turn."""
    listed = [{"role": "user", "content": "x"}]
    for turn in range(turns):
        use = {"type": "tool_use", "id": f"t{turn}", "name": "ls", "input": {}}
        answer = {"type": "tool_result", "tool_use_id": f"u{turn}", "content": "ok"}
        listed += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    return {"messages": listed}


def chat(turns):
    """Return a Chat conversation, right but for one id in each turn."""
    listed = [{"role": "user", "content": "x"}]
    for turn in range(turns):
        call = {"id": f"t{turn}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        listed.append({"role": "assistant", "content": None, "tool_calls": [call]})
        listed.append({"role": "tool", "tool_call_id": f"u{turn}", "content": "ok"})
    return {"messages": listed}


def responses(turns):
    """Return a Responses conversation, right but for one id in each turn."""
    listed = [{"role": "user", "content": "x"}]
    for turn in range(turns):
        listed.append({"type": "function_call", "call_id": f"t{turn}", "name": "ls", "arguments": "{}"})
        listed.append({"type": "function_call_output", "call_id": f"u{turn}", "output": "ok"})
    return {"input": listed}


def gemini(turns):
    """Return a Gemini conversation, right but for one name and one id in each turn."""
    listed = [{"parts": [{"text": "x"}]}]
    for turn in range(turns):
        call = {"functionCall": {"name": "ls", "id": "t", "args": {}}}
        answer = {"functionResponse": {"name": f"u{turn}", "response": {}}}
        listed += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [answer]}]
    return {"contents": listed}


def parallel(calls):
    """Return one Chat message with so many calls, each answered under a wrong id."""
    body = chat(calls)
    asked = [one["tool_calls"][0] for one in body["messages"][1::2]]
    return {"messages": [{"role": "assistant", "content": None, "tool_calls": asked}, *body["messages"][2::2]]}


@pytest.mark.parametrize(
    ("make", "api"),
    [
        (messages, "anthropic"),
        (chat, "openai-chat"),
        (parallel, "openai-chat"),
        (responses, "openai-responses"),
        (gemini, "gemini"),
    ],
)
def test_validate_request_takes_linear_time(make, api, grows_slowly):
    """A body is validated in time proportional to its messages, all of them wrong."""

    def validating(size):
        data = json.dumps(make(size)).encode()
        return lambda: len(validate_request(data, api)) >= 400 or pytest.fail("it found less")

    grows_slowly(validating, 500)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"betas": [1]}, r"betas\[0\] is of type int"),
        ({"betas": "context-1m"}, "betas is of type str; give a list of str"),
        ({"rules": ["anthropic.size"]}, r"rules\[0\] is of type str; give a value of type Rule"),
        ({"rules": None}, "rules is of type NoneType"),
    ],
)
def test_validate_request_names_wrong_arguments(arguments, problem):
    """Beta features and rules of a wrong type are a ``TypeError`` that names the argument."""
    with pytest.raises(TypeError, match=problem):
        validate_request(b'{"model": "m", "messages": []}', "anthropic", **arguments)


def test_foreign_block_findings_have_the_order_of_the_body():
    """Findings of foreign blocks come in the order of the body, in every process."""
    kinds = ["output_text", "input_image", "image_url", "input_text", "refusal"]
    body = {"messages": [{"role": "user", "content": [{"type": kind} for kind in kinds]}]}
    findings = validate_request(body, "anthropic", rules=[rule for rule in ALL_RULES if "foreign-block" in rule.name])
    assert [finding.path for finding in findings] == [
        f"$.messages[0].content[{index}].type" for index in range(len(kinds))
    ]
