"""Options that a Claude model or a version of the API refuses are changed in the one right way."""

from __future__ import annotations

import json

import pytest

from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.rules.validate import validate_request

API = "anthropic"
HISTORY = [{"role": "user", "content": "hi"}]
LS = {"name": "ls", "input_schema": {"type": "object"}}
MARKER = {"type": "ephemeral"}
SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}


def build_body(**fields):
    return json.dumps({"model": "claude-opus-4-8", "max_tokens": 9, "messages": HISTORY, **fields}).encode()


def fix_fields(version="", **fields):
    """Return the fixed body; assert that it is valid, and that fixing again changes nothing."""
    result = fix_request(build_body(**fields), API, version=version)
    assert result.is_valid
    assert fix_request(result.body, API, version=version).body == result.body
    assert result.fixes
    return json.loads(result.body)


@pytest.mark.parametrize(
    ("model", "given", "kept"),
    [
        ("claude-sonnet-4-6", {"temperature": 0.2, "top_p": 0.9, "top_k": 3}, {"temperature": 0.2, "top_k": 3}),
        ("claude-opus-4-7", {"temperature": 0.2, "top_p": 0.9, "top_k": 3}, {}),
        ("claude-fable-5-2", {"temperature": 1, "top_p": 0.5}, {"temperature": 1}),
    ],
)
def test_fix_request_leaves_out_refused_sampling(model, given, kept):
    """Temperature stays where one option is allowed, default values where only those are, and nothing else."""
    body = fix_fields(model=model, **given)
    assert {key: body[key] for key in ("temperature", "top_p", "top_k") if key in body} == kept


def test_fix_request_goes_by_the_version_header():
    """From version 2026-10-21 on no model takes sampling options, not even at their defaults; before, they stay."""
    data = build_body(model="claude-3-haiku-20240307", temperature=1, top_p=1)
    assert fix_request(data, API, version="2023-06-01").body is data
    body = fix_fields("2026-10-21", model="claude-3-haiku-20240307", temperature=1, top_p=1)
    assert not {"temperature", "top_p"} & body.keys()


def test_fix_request_frees_a_forced_tool():
    """Where tools cannot be forced, the choice becomes auto; the wish for one call at a time stays."""
    choice = {"type": "tool", "name": "ls", "disable_parallel_tool_use": True}
    body = fix_fields(model="claude-opus-5-5", tools=[LS], tool_choice=choice)
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


@pytest.mark.parametrize(
    ("model", "thinking", "fixed"),
    [
        ("claude-sonnet-5-5", {"type": "disabled"}, {"type": "between_tools"}),
        ("claude-opus-5-5", {"type": "disabled"}, {"type": "adaptive"}),
        ("claude-haiku-5-5", {"type": "enabled", "budget_tokens": 2000}, {"type": "adaptive"}),
    ],
)
def test_fix_request_replaces_a_thinking_mode(model, thinking, fixed):
    """A refused mode becomes the one that comes closest to it."""
    assert fix_fields(model=model, max_tokens=4000, thinking=thinking)["thinking"] == fixed


def test_fix_request_moves_a_breakpoint_off_a_deferred_tool():
    """The breakpoint goes to the last tool that is not deferred, with its lifetime; one that is there stays alone."""
    late = {**LS, "name": "late", "defer_loading": True}
    hour = {"type": "ephemeral", "ttl": "1h"}
    body = fix_fields(tools=[SEARCH, LS, {**late, "cache_control": hour}])
    assert body["tools"] == [SEARCH, {**LS, "cache_control": hour}, late]
    body = fix_fields(tools=[SEARCH, {**LS, "cache_control": MARKER}, {**late, "cache_control": MARKER}])
    assert body["tools"] == [SEARCH, {**LS, "cache_control": MARKER}, late]


def test_fix_request_loads_a_tool_if_all_are_deferred():
    """The tool that finds the others is loaded; without one, all are, since nothing could find them."""
    late = {**LS, "defer_loading": True}
    assert fix_fields(tools=[{**SEARCH, "defer_loading": True}, late])["tools"] == [SEARCH, late]
    assert fix_fields(tools=[late])["tools"] == [LS]


def test_fix_request_leaves_out_fast_speed_of_opus_4_7():
    """Opus 4.7 has no fast mode."""
    assert "speed" not in fix_fields(model="claude-opus-4-7", speed="fast")


def test_fix_request_moves_an_output_format():
    """Without its beta, output_format stands in output_config, beside what is there."""
    answer_format = {"type": "json_schema", "schema": {"type": "object", "additionalProperties": False}}
    body = build_body(output_format=answer_format, output_config={"effort": "low"})
    result = fix_request(body, API, betas=["context-1m-2025-08-07"])
    assert result.is_valid
    fixed = json.loads(result.body)
    assert fixed["output_config"] == {"effort": "low", "format": answer_format}
    assert "output_format" not in fixed


def test_convert_request_leaves_out_what_the_claude_model_refuses():
    """The converted request keeps the rules of its model, and each change has a note."""
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
    fields = {"temperature": 0.2, "top_p": 0.5, "tools": [tool], "tool_choice": "required"}
    data = json.dumps({"model": "gpt-4.1", "messages": HISTORY, **fields}).encode()
    body, notes = convert_request(data, API, "claude-opus-5-5")
    assert not {"temperature", "top_p"} & json.loads(body).keys()
    assert json.loads(body)["tool_choice"] == {"type": "auto"}
    assert validate_request(body, API) == ()
    for name in ("temperature", "top_p", "tool_choice"):
        assert name in " | ".join(notes)
