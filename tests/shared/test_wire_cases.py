"""The worked wire cases beside this checkout, where they are there."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.wire.lens import open_body, render
from holdfast.wire.rules import validate

_FILE = Path(__file__).parents[3] / "shared" / "cases" / "wire.json"
_APIS = ("anthropic", "openai-chat")


def _cases():
    """Return the cases of our APIs that need nothing but the request to be judged."""
    cases = json.loads(_FILE.read_text()) if _FILE.exists() else []
    return [one for one in cases if one["provider"] in _APIS]


def _body(case):
    return {**case.get("extra", {}), "messages": case["messages"]}


def _decidable(case):
    """Return whether the request alone decides: ``x_`` fields are what only the provider knows."""
    return not any(key.startswith("x_") for key in case.get("extra", {}))


def test_the_validator_agrees_with_every_case():
    """A request is refused exactly where the case says that the provider refuses it."""
    wrong = []
    for case in filter(_decidable, _cases()):
        refused = any(one.level == "error" for one in validate(_body(case), case["provider"]))
        if refused is case["valid"]:
            wrong.append(case["id"])
    assert wrong == []


def test_every_case_comes_back_as_it_was():
    """Opening and rendering a case changes nothing, valid or not."""
    for case in _cases():
        raw = json.dumps(_body(case)).encode()
        lens = open_body(raw, case["provider"])
        assert render(lens, lens.slots) is raw
