"""Worked wire cases and recorded requests, checked by the validator where the corpus is present."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.providers.rules.validate import validate_request

_SHARED = Path(__file__).parents[3] / "shared"
_FILE = _SHARED / "cases" / "wire.json"
_RECORDED = sorted(_SHARED.glob("shapes/req-*.jsonl"))
_MESSAGE_FIELDS = {"openai-responses": "input", "gemini": "contents"}
"""The name of the field with the history, where it is not ``messages``."""
_APIS_BY_PATH = {"/messages": "anthropic", "/chat/completions": "openai-chat", "/responses": "openai-responses"}
_PROVIDER_ONLY = ["a-think-bad-modified", "r-bad-msg-without-reasoning"]
"""Refused for facts that only the provider has: what a signature covers, which item belongs to which reasoning."""


def _load_cases():
    return json.loads(_FILE.read_text()) if _FILE.exists() else []


def _build_body(case):
    """Return the request of a case without the facts that only the provider has."""
    known = {key: value for key, value in case.get("extra", {}).items() if not key.startswith("x_")}
    return {**known, _MESSAGE_FIELDS.get(case["provider"], "messages"): case["messages"]}


def _has_errors(body, api, **options):
    return any(finding.level == "error" for finding in validate_request(body, api, **options))


def test_validate_request_agrees_with_every_case():
    """A request has errors exactly where the case says that the provider refuses it for a visible reason."""
    mismatches = [
        case["id"] for case in _load_cases() if _has_errors(_build_body(case), case["provider"]) is case["valid"]
    ]
    assert mismatches == (_PROVIDER_ONLY if _load_cases() else [])


def _find_request(line):
    """Return API, model and body of a recorded request for an answer, or None."""
    path, body = line["path"].partition("?")[0], line.get("body")
    if not isinstance(body, dict):
        return None
    if "enerateContent" in path:
        return "gemini", path.rpartition("/")[2].partition(":")[0], body
    return next(((api, "", body) for end, api in _APIS_BY_PATH.items() if path.endswith(end)), None)


def _drop_shortened_fields(body):
    """Return a body without the fields that the recording shortened: tools are only names there."""
    return {key: value for key, value in body.items() if key not in ("tools", "tool_choice", "parallel_tool_calls")}


def _list_betas(line):
    """Return the requested beta features, or None if the recording shortened them."""
    header = {key.lower(): value for key, value in line["headers"].items()}.get("anthropic-beta", "<")
    return None if header.startswith("<") else header.split(",")


if _RECORDED:

    @pytest.mark.parametrize("file", _RECORDED, ids=[file.stem for file in _RECORDED])
    def test_validate_request_accepts_recorded_requests(file):
        """No recorded request of a real client has an error."""
        for line in map(json.loads, file.read_text().splitlines()):
            request = _find_request(line)
            if request is not None:
                api, model, body = request
                findings = validate_request(_drop_shortened_fields(body), api, model=model, betas=_list_betas(line))
                assert [finding for finding in findings if finding.level == "error"] == []
