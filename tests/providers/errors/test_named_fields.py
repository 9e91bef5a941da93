"""The field that a refusal names is read from the wordings of every server, and from nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.named_fields import NamedField, find_named_fields, read_named_fields, split_field_path
from holdfast.providers.errors.report import ErrorReport


def list_fields(message="", body=b"", status=400):
    """Return the named fields of an error with its real verdict, each as kind, path and number or name."""
    report = ErrorReport(status=status, message=message, body=body)
    found = find_named_fields(report, classify_error(report).kind)
    return [(field.kind, ".".join(field.path), field.limit or field.value or field.beside) for field in found]


REFUSED = {
    "Unknown parameter: 'input[2].action'.": "input.2.action",
    "Unsupported parameter: 'temperature' is not supported with this model.": "temperature",
    "Unsupported parameter: max_output_tokens": "max_output_tokens",
    "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.": (
        "temperature"
    ),
    "Unrecognized request argument supplied: store": "store",
    "property 'store' is unsupported, did you mean 'stop'?": "store",
    "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning_content'"
    " is unsupported)]": "messages.2.reasoning_content",
    "messages.2.assistant.reasoning_content: property 'messages.2.assistant.reasoning_content' is unsupported": (
        "messages.2.assistant.reasoning_content"
    ),
    "body.reasoning: property 'body.reasoning' is unsupported": "reasoning",
    "Argument not supported on this model: reasoningEffort": "reasoningEffort",
    "Model grok-x does not support parameter presencePenalty.": "presencePenalty",
    "context_management: Extra inputs are not permitted": "context_management",
    "output_config.effort: Extra inputs are not permitted": "output_config.effort",
    "tools.0.custom.defer_loading: Extra inputs are not permitted": "tools.0.custom.defer_loading",
    "#/stream_options: Extra inputs are not permitted": "stream_options",
    "malformed input request: #: extraneous key [output_config] is not permitted, please reformat": "output_config",
    "`temperature` is deprecated for this model.": "temperature",
    "`temperature` and `top_p` cannot both be specified for this model. Please use only one.": "top_p",
    "Invalid JSON payload received. Unknown name \"speed\" at 'contents[0].parts[1]': Cannot find field.": (
        "contents.0.parts.1.speed"
    ),
    'Invalid JSON payload received. Unknown name "strict": Cannot find field.': "strict",
    "Failed to deserialize the JSON body into the target type: unknown field `metadata`, expected `a`": "metadata",
    "Additional properties are not allowed ('store' was unexpected)": "store",
}
NVIDIA = {"Validation: Unsupported parameter(s): reasoning_budget": "reasoning_budget"}
REFUSED |= NVIDIA | {
    "unsupported chat completion parameter: prompt_cache_options": "prompt_cache_options",
    "Unrecognized key(s) in object: 'prompt_cache_key'": "prompt_cache_key",
    "body -> presence_penalty\n  Extra inputs are not permitted (type=extra_forbidden)": "presence_penalty",
    "body -> messages -> 2 -> name\n  extra fields not permitted (type=value_error.extra)": "messages.2.name",
    "1 validation error for ChatCompletionRequest\nthinking\n  Extra inputs are not permitted [type=extra_forbidden,"
    " input_value={'type': 'enabled'}, input_type=dict]\n    For further information visit": "thinking",
}
MISSING = {
    "Missing required parameter: 'input[3].summary'.": ("input.3.summary", ""),
    "tools.0.custom.input_schema: Field required": ("tools.0.custom.input_schema", ""),
    "The `reasoning_content` in the thinking mode must be passed back to the API.": ("reasoning_content", ""),
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2": (
        "reasoning_content",
        "tool_calls",
    ),
    "Missing `reasoning_content` field in the assistant message at message index 4. For more information": (
        "reasoning_content",
        "",
    ),
    "body -> messages -> 1 -> content\n  field required (type=value_error.missing)": ("messages.1.content", ""),
    "invalid params, function parameters is empty (2013)": ("tools.0.function.parameters", ""),
}
CAPS = {
    "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude-x": 64_000,
    "max_tokens is too large: 200000. This model supports at most 16384 completion tokens, whereas you provided 2": (
        16_384
    ),
    "max_completion_tokens is too large: 90000.This model supports at most 4096 completion tokens": 4_096,
    "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]": 393_216,
    "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]": 8_192,
    "`max_tokens` must be less than or equal to `32768`, the maximum value for `max_tokens` is less than the": 32_768,
    "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 128000, but got 200000": 128_000,
    "Unable to submit request because it has a maxOutputTokens value of 100000 but the supported range is from 1"
    " (inclusive) to 65537 (exclusive).": 65_536,
    "The maximum tokens you requested exceeds the model limit of 8192. Try again with a lower value.": 8_192,
}
OTHERS = (
    "messages: Unexpected role 'system'",
    "tools.3.custom.input_schema: JSON schema is invalid",
    "Invalid value: 'developer'. Supported values are: 'system', 'assistant', 'user'",
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1",
    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
    "Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.",
    "Thinking mode does not support this tool_choice",
    "The model `gpt-nobody` does not exist or you do not have access to it.",
    "prompt is too long: 212345 tokens > 200000 maximum",
    "Range of input length should be [1, 983616]",
    "The user said: everything is required",
)


@pytest.mark.parametrize(("text", "path"), REFUSED.items())
def test_find_named_fields_reads_the_field_that_a_server_does_not_take(text, path):
    """Each server's wording names the same field, in its own notation."""
    assert list_fields(text) == [("refused", path, "")]
    assert list_fields(body=json.dumps({"error": {"message": text, "type": "x"}}).encode()) == [("refused", path, "")]


@pytest.mark.parametrize(("text", "expected"), MISSING.items())
def test_find_named_fields_reads_the_field_that_a_server_misses(text, expected):
    """A missing field is named with what stands beside it, if the text says so."""
    assert list_fields(text) == [("missing", *expected)]


@pytest.mark.parametrize(("text", "limit"), CAPS.items())
def test_find_named_fields_reads_the_largest_answer(text, limit):
    """The number that is read is the cap and never the one that was asked for."""
    ((kind, _, number),) = list_fields(text)
    assert (kind, number) == ("capped", limit)


def test_find_named_fields_takes_the_cap_of_the_verdict_where_no_pattern_reads_one():
    """The classifier knows more wordings of a cap; a number that a pattern read is kept."""
    strange = ErrorReport(status=400, message="too many answer tokens")
    assert find_named_fields(strange, "output_limit", 4_096) == (NamedField("capped", ("max_tokens",), 4_096),)
    known = ErrorReport(status=400, message="max_tokens: 9 > 64, which is the maximum allowed number")
    assert [field.limit for field in find_named_fields(known, "output_limit", 4_096)] == [64]


@pytest.mark.parametrize("text", OTHERS)
def test_find_named_fields_reads_nothing_from_other_refusals(text):
    """A refusal that is about order, ids, sizes or a value names no field that could be left out or filled."""
    assert list_fields(text) == []


@pytest.mark.parametrize("status", [401, 403, 404, 413, 429, 500, 529])
def test_find_named_fields_reads_nothing_under_other_statuses(status):
    """Only the statuses of a wrong request are about its fields."""
    assert list_fields("Unknown parameter: 'store'.", status=status) == []


def test_find_named_fields_reads_paths_of_validators():
    """Mistral gives the path beside the words, with the role in it; what it quotes of the request is not read."""
    detail = {
        "type": "extra_forbidden",
        "loc": ["body", "messages", 3, "assistant", "reasoning_content"],
        "msg": "Extra inputs are not permitted",
        "input": "Unknown parameter: 'model'",
    }
    body = json.dumps({"object": "Error", "detail": [detail], "code": 3001}).encode()
    assert list_fields(body=body, status=422) == [("refused", "messages.3.assistant.reasoning_content", "")]
    absent = json.dumps({"detail": [{"type": "missing", "loc": ["body", "tools", 0, "input_schema"], "msg": "x"}]})
    assert list_fields(body=absent.encode(), status=422) == [("missing", "tools.0.input_schema", "")]


def test_find_named_fields_reads_errors_inside_of_errors():
    """A gateway wraps the provider's error as JSON in a text."""
    raw = json.dumps({"error": {"message": "property 'store' is unsupported"}})
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    assert list_fields(body=json.dumps(body).encode()) == [("refused", "store", "")]


def test_find_named_fields_reads_every_field_of_a_refusal():
    """Some servers name all wrong fields at once."""
    assert list_fields("Unrecognized request arguments supplied: store, metadata") == [
        ("refused", "store", ""),
        ("refused", "metadata", ""),
    ]
    text = "a.b: property 'a.b' is unsupported\nbody.store: property 'body.store' is unsupported"
    assert list_fields(text) == [("refused", "a.b", ""), ("refused", "store", "")]


def test_find_named_fields_reads_lists_of_fields():
    """NVIDIA lists fields in one line, or in lines of their own; neither is an error about a key ("forbidden")."""
    listed = "Validation: Unsupported parameter(s): `store`, `prompt_cache_key`"
    assert [path for _, path, _ in list_fields(listed)] == ["store", "prompt_cache_key"]
    lines = [f"body -> {name}\n  Extra inputs are not permitted (type=extra_forbidden)" for name in ("store", "n")]
    body = json.dumps({"error": "\n".join(lines)}).encode()
    assert [path for _, path, _ in list_fields(body=body, status=422)] == ["store", "n"]
    quoted = "NvidiaException - data:" + json.dumps({"status": 422, "detail": "\n".join(lines)})
    assert [path for _, path, _ in list_fields(quoted)] == ["store", "n"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unsupported_parameter", "refused"),
        ("unknown_parameter", "refused"),
        ("unrecognized_request_argument", "refused"),
        ("missing_required_parameter", "missing"),
    ],
)
def test_find_named_fields_reads_codes_with_a_field_in_any_language(code, kind):
    """A code says what is wrong with ``param`` where no words are known; known words come first, having the place."""
    error = {"message": "Ce champ pose problème.", "code": code, "param": "input[3].summary"}
    assert list_fields(body=json.dumps({"error": error}).encode()) == [(kind, "input.3.summary", "")]
    worded = {**error, "message": "Unsupported parameter: 'top_p' is not supported with this model."}
    assert list_fields(body=json.dumps({"error": worded}).encode()) == [("refused", "top_p", "")]
    other = {**error, "code": "invalid_value"}
    assert list_fields(body=json.dumps({"error": other}).encode()) == []


def test_find_named_fields_reads_a_cap_that_stands_in_param():
    """A gateway put OpenAI's sentence into ``param``; a name there is still no sentence."""
    sentence = "max_tokens is too large: 1048576. This model supports at most 131072 completion tokens"
    body = {"error": {"message": "Param Incorrect", "param": sentence, "code": "400"}}
    assert list_fields(body=json.dumps(body).encode()) == [("capped", "max_tokens", 131_072)]


def test_find_named_fields_reads_betas_and_new_names():
    """Betas are read by name, or without one; a field with a new name is told with it."""
    text = "Unexpected value(s) `context-1m-2025-08-07`, `b-2` for the `anthropic-beta` header. Please consult"
    assert list_fields(text) == [("beta", "", "context-1m-2025-08-07"), ("beta", "", "b-2")]
    assert list_fields("invalid beta flag") == [("beta", "", "")]
    text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    assert list_fields(text) == [("renamed", "max_tokens", "max_completion_tokens")]


@pytest.mark.parametrize("text", ["# is not supported with this model. Use 'x' instead", "Unknown parameter: '#'."])
def test_read_named_fields_reads_no_field_where_the_body_as_a_whole_is_named(text):
    """A name that leads nowhere is no field."""
    assert list(read_named_fields(text)) == []


@given(st.text(max_size=300))
def test_read_named_fields_reads_any_text(text):
    """Whatever an error says, reading it ends, and every field has a path or a name."""
    for field in read_named_fields(text):
        assert isinstance(field, NamedField)
        assert field.path or field.kind == "beta"


@pytest.mark.parametrize("unit", ["_", "a", "a.", "a[", "a/", "#", "a and ", "'a' ", "\n a", "a -> ", "\n "])
def test_read_named_fields_takes_time_in_proportion_to_the_text(unit, assert_subquadratic):
    """The longest names are no trap."""

    def make_reading(count):
        text = unit * count
        return lambda: list(read_named_fields(text))

    assert_subquadratic(make_reading, 2_000)


@given(st.lists(st.from_regex(r"[a-z_]{1,8}|[0-9]{1,3}", fullmatch=True), min_size=1, max_size=6))
def test_split_field_path_reads_both_notations(steps):
    """Dots and brackets are the same path."""
    dotted = ".".join(steps)
    bracketed = "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in steps).removeprefix(".")
    assert split_field_path(dotted) == split_field_path(bracketed)
