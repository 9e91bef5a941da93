"""Options of Gemini requests that the model refuses are changed in the one right way, by fix and by conversion."""

from __future__ import annotations

import json

import pytest

from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.foreign.convert_request import convert_request

HI = {"role": "user", "parts": [{"text": "hi"}]}
FUNCTION = {"functionDeclarations": [{"name": "find"}]}
SEARCH = {"googleSearch": {}}
FLAG = "includeServerSideToolInvocations"


def fix(model, **fields):
    """Return the fixed body and whether it is valid; assert that fixing again changes nothing."""
    result = fix_request(json.dumps({"contents": [HI], **fields}).encode(), "gemini", model=model)
    assert fix_request(result.body, "gemini", model=model).body is result.body
    return json.loads(result.body), result.is_valid


@pytest.mark.parametrize("model", ["", "gemini-3.1-pro-preview", "models/gemini-3.8-flash"])
@pytest.mark.parametrize("config", [None, {}, {FLAG: False}, {"retrievalConfig": {"languageCode": "de"}}])
def test_fix_request_sets_the_flag_for_both_kinds_of_tools(model, config):
    """Built-in tools beside functions get the flag; what else is in the tool config stays."""
    fields = {"tools": [FUNCTION, SEARCH]} | ({} if config is None else {"toolConfig": config})
    body, is_valid = fix(model, **fields)
    assert is_valid
    assert body["toolConfig"] == {**(config or {}), FLAG: True}
    assert body["tools"] == [FUNCTION, SEARCH]


def test_fix_request_sets_the_flag_in_the_spelling_of_the_request():
    """A tool config with underscores is not joined by one without."""
    body, is_valid = fix("gemini-3-pro", tools=[FUNCTION, SEARCH], tool_config={"retrieval_config": {}})
    assert is_valid
    assert body["tool_config"] == {"retrieval_config": {}, FLAG: True}
    assert "toolConfig" not in body


def test_fix_request_leaves_both_kinds_of_tools_to_the_user_before_gemini_3():
    """An older model takes no mix, and which kind to give up is not ours to say; a flag alone is removed."""
    body, is_valid = fix("gemini-2.5-pro", tools=[FUNCTION, SEARCH])
    assert not is_valid
    assert body["tools"] == [FUNCTION, SEARCH]
    body, is_valid = fix("gemini-2.5-pro", tools=[FUNCTION], toolConfig={FLAG: True})
    assert is_valid
    assert "toolConfig" not in body


@pytest.mark.parametrize(
    ("model", "level", "sent"),
    [
        ("gemini-3.8-flash", "MINIMAL", "LOW"),
        ("gemini-3.7-flash", "minimal", "LOW"),
        ("gemini-3.6-flash", "MINIMAL", "MINIMAL"),
        ("gemini-3.7-flash-lite", "MINIMAL", "MINIMAL"),
        ("gemini-3-pro-preview", "MEDIUM", "HIGH"),
        ("gemini-2.5-flash", "LOW", None),
        ("", "MINIMAL", "MINIMAL"),
    ],
)
def test_fix_request_sends_a_level_that_the_model_takes(model, level, sent):
    """A level that the model refuses becomes the nearest one, or is left out where there are none."""
    body, is_valid = fix(model, generationConfig={"seed": 1, "thinkingConfig": {"thinkingLevel": level}})
    assert is_valid
    thinking = {} if sent is None else {"thinkingConfig": {"thinkingLevel": sent}}
    assert body["generationConfig"] == {"seed": 1, **thinking}


@pytest.mark.parametrize(("model", "is_kept"), [("gemini-3.8-flash", False), ("gemini-2.5-pro", True)])
def test_convert_request_leaves_out_sampling_that_the_model_ignores(model, is_kept):
    """A conversion writes no option that does nothing, and says so; fix leaves what is accepted."""
    chat = {"model": "gpt-4.1", "temperature": 0.5, "messages": [{"role": "user", "content": "hi"}]}
    body, notes = convert_request(json.dumps(chat).encode(), "gemini", model)
    assert ("temperature" in json.loads(body).get("generationConfig", {})) is is_kept
    assert any("temperature" in note for note in notes) is not is_kept
    body, is_valid = fix(model, generationConfig={"temperature": 0.5})
    assert is_valid
    assert body["generationConfig"] == {"temperature": 0.5}
