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
"""The field with the history of the APIs that do not call it ``messages``."""
_BIG = 3_000
"""Cases of this many bytes or more are too long to be damaged everywhere."""


def _small_cases():
    listed = [case for api in APIS for case in rule_cases.load_cases(api)]
    return [(case["api"], json.loads(case["request"])) for case in listed if len(case["request"]) < _BIG]


CASES = _small_cases()
REPLACEMENTS = (None, 5, "x", [], {}, [5], {"type": {}}, [{"type": []}])
"""Wrong values for a field."""

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


def iter_paths(value, path=()):
    """Yield the path of every value inside ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, element in inner:
        yield (*path, key)
        yield from iter_paths(element, (*path, key))


def replace_at_path(value, path, replacement):
    """Return ``value`` with ``replacement`` at ``path``."""
    if not path:
        return replacement
    first, *rest = path
    out = value.copy()
    out[first] = replace_at_path(value[first], rest, replacement)
    return out


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.counts
@pytest.mark.parametrize("replacement", REPLACEMENTS, ids=json.dumps)
def test_validate_request_survives_any_damaged_value(replacement):
    """Whatever replaces any value of any case, the validator returns findings."""
    for api, body in CASES[:: example_counts.choose(quick=6, ci=2, thorough=1)]:
        for path in iter_paths(body):
            assert isinstance(validate_request(replace_at_path(body, path, replacement), api), tuple)


@given(st.data(), st.sampled_from(CASES), JSON)
def test_validate_request_judges_text_and_values_alike(data, case, replacement):
    """A case with any JSON in place of any value gets the same findings as bytes and as values."""
    api, body = case
    body = replace_at_path(body, data.draw(st.sampled_from(list(iter_paths(body)))), replacement)
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
        {"role": "assistant", "content": case, "tool_calls": case, "parts": case, "type": "message", "output": case}
        if isinstance(case, list)
        else case
        for case in listed
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
    assert [(finding.rule, finding.path) for finding in validate_request(cut, api)] == [("json", "$")]


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
    assert [(finding.rule, finding.path) for finding in validate_request(body, api)] == [("json", "$")]


def test_validate_request_recognizes_the_api_or_raises():
    """Without an API the body decides; a body of no known API, or an API without rules, is rejected."""
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert validate_request(json.dumps(body).encode()) == ()
    with pytest.raises(UnrecognizedContent):
        validate_request({"prompt": "x"})
    with pytest.raises(UnrecognizedContent):
        validate_request(body, "cohere")


# -- load --------------------------------------------------------------------------------------------------------------


def build_anthropic_body(turns):
    """Build a Messages conversation with one wrong id in each turn."""
    listed = [{"role": "user", "content": "x"}]
    for turn in range(turns):
        use = {"type": "tool_use", "id": f"t{turn}", "name": "ls", "input": {}}
        answer = {"type": "tool_result", "tool_use_id": f"u{turn}", "content": "ok"}
        listed += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    return {"messages": listed}


def build_chat_body(turns):
    """Build a Chat conversation with one wrong id in each turn."""
    listed = [{"role": "user", "content": "x"}]
    for turn in range(turns):
        call = {"id": f"t{turn}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        listed.append({"role": "assistant", "content": None, "tool_calls": [call]})
        listed.append({"role": "tool", "tool_call_id": f"u{turn}", "content": "ok"})
    return {"messages": listed}


def build_responses_body(turns):
    """Build a Responses conversation with one wrong id in each turn."""
    listed = [{"role": "user", "content": "x"}]
    for turn in range(turns):
        listed.append({"type": "function_call", "call_id": f"t{turn}", "name": "ls", "arguments": "{}"})
        listed.append({"type": "function_call_output", "call_id": f"u{turn}", "output": "ok"})
    return {"input": listed}


def build_gemini_body(turns):
    """Build a Gemini conversation with one wrong name and one wrong id in each turn."""
    listed = [{"parts": [{"text": "x"}]}]
    for turn in range(turns):
        call = {"functionCall": {"name": "ls", "id": "t", "args": {}}}
        answer = {"functionResponse": {"name": f"u{turn}", "response": {}}}
        listed += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [answer]}]
    return {"contents": listed}


def build_parallel_calls_body(calls):
    """Build one Chat message with ``calls`` calls, each answered under a wrong id."""
    body = build_chat_body(calls)
    calls_made = [message["tool_calls"][0] for message in body["messages"][1::2]]
    return {"messages": [{"role": "assistant", "content": None, "tool_calls": calls_made}, *body["messages"][2::2]]}


@pytest.mark.parametrize(
    ("make", "api"),
    [
        (build_anthropic_body, "anthropic"),
        (build_chat_body, "openai-chat"),
        (build_parallel_calls_body, "openai-chat"),
        (build_responses_body, "openai-responses"),
        (build_gemini_body, "gemini"),
    ],
)
def test_validate_request_takes_linear_time(make, api, assert_subquadratic):
    """A body is validated in time proportional to its messages, all of them wrong."""

    def prepare_validation(size):
        data = json.dumps(make(size)).encode()
        return lambda: len(validate_request(data, api)) >= 400 or pytest.fail("too few findings")

    assert_subquadratic(prepare_validation, 500)


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
