"""The worked wire cases and the recorded requests beside this checkout, where they are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.providers.rules.validate import validate_request

_SHARED = Path(__file__).parents[3] / "shared"
_FILE = _SHARED / "cases" / "wire.json"
_RECORDED = sorted(_SHARED.glob("shapes/req-*.jsonl"))
_LISTS = {"openai-responses": "input", "gemini": "contents"}
"""What the field with the history is called, where it is not ``messages``."""
_PATHS = {"/messages": "anthropic", "/chat/completions": "openai-chat", "/responses": "openai-responses"}
_PROVIDER_ONLY = ["a-think-bad-modified", "r-bad-msg-without-reasoning"]
"""Refused for what only the provider knows: what a signature signed, which item came of which reasoning."""


def _cases():
    return json.loads(_FILE.read_text()) if _FILE.exists() else []


def _body(case):
    """Return the request of a case, without what only the provider knows."""
    known = {key: value for key, value in case.get("extra", {}).items() if not key.startswith("x_")}
    return {**known, _LISTS.get(case["provider"], "messages"): case["messages"]}


def _refused(body, api, **more):
    return any(one.level == "error" for one in validate_request(body, api, **more))


def test_the_validator_agrees_with_every_case():
    """A request is refused exactly where the case says that the provider refuses it, for a reason it shows."""
    wrong = [case["id"] for case in _cases() if _refused(_body(case), case["provider"]) is case["valid"]]
    assert wrong == (_PROVIDER_ONLY if _cases() else [])


def _asked(line):
    """Return API, model and body of a recorded request that makes an answer, or nothing."""
    path, body = line["path"].partition("?")[0], line.get("body")
    if not isinstance(body, dict):
        return None
    if "enerateContent" in path:
        return "gemini", path.rpartition("/")[2].partition(":")[0], body
    return next(((api, "", body) for end, api in _PATHS.items() if path.endswith(end)), None)


def _uncut(body):
    """Return a body without the fields that the recording cut short: tools are only names there."""
    return {key: value for key, value in body.items() if key not in ("tools", "tool_choice", "parallel_tool_calls")}


def _betas(line):
    """Return the beta features that were asked for, or nothing where the recording cut them short."""
    told = {key.lower(): value for key, value in line["headers"].items()}.get("anthropic-beta", "<")
    return None if told.startswith("<") else told.split(",")


if _RECORDED:

    @pytest.mark.parametrize("file", _RECORDED, ids=[file.stem for file in _RECORDED])
    def test_recorded_requests_are_taken(file):
        """No request of a real client, as it was recorded, breaks a rule that refuses it."""
        for line in map(json.loads, file.read_text().splitlines()):
            asked = _asked(line)
            if asked is not None:
                api, model, body = asked
                found = validate_request(_uncut(body), api, model=model, betas=_betas(line))
                assert [one for one in found if one.level == "error"] == []
