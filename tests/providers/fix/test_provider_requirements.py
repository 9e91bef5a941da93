"""What breaks a provider's own requirement is changed as that requirement says, not by what is meant for an API."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.registry import PROVIDER_SPECS
from holdfast.providers.dialects.request_provider import RequestProvider
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.fix.fix_request import fix_request

CLAUDE = "claude-sonnet-4-5"
TOOL = {"type": "function", "function": {"name": "1 ls", "parameters": {"type": "object", "properties": {}}}}


class NoUser(Requirement, frozen=True, kw_only=True):
    """A request has no user, under the name of a rule whose fields may be left out."""

    rule: ClassVar[str] = "limits"

    def find_violations(self, request):
        """Yield the user."""
        if "user" in request.body:
            yield "$.user", "the user is refused here; leave it out"


class NoDigitFirst(Requirement, frozen=True, kw_only=True):
    """A tool's name does not begin with a digit, under the name of a rule that renames tools."""

    rule: ClassVar[str] = "tool-names"

    def find_violations(self, request):
        """Yield the name of the first tool."""
        tools = request.get_list("tools")
        if tools and tools[0]["function"]["name"][0].isdigit():
            yield "$.tools[0].function.name", "the name begins with a digit; rename it"


class NoDigitFirstLikeTheApi(NoDigitFirst, frozen=True, kw_only=True):
    """The same, and it says that the API's fix serves."""

    mended_like: ClassVar[str] = "tool-names"


def fix(monkeypatch, requirement, body):
    """Fix ``body`` for a provider with one requirement and no further rules."""
    rules = ProviderRules(
        requirements=(requirement,),
        dialect_changes={"name_pattern": "[a-z][a-z0-9_-]*"},
        skipped_rules=frozenset({"tools", "tool-names"}),
    )
    build_rules = {"openai-chat": lambda _model: rules}
    monkeypatch.setitem(PROVIDER_SPECS, "house", ProviderSpec(name="house", title="House", rules_by_api=build_rules))
    model = type(requirement).__name__  # rules are kept by the model's name
    data = json.dumps({"model": model, "messages": [{"role": "user", "content": "go"}], **body}).encode()
    return data, fix_request(data, "openai-chat", provider=RequestProvider("house"))


@pytest.mark.parametrize(
    ("requirement", "body"),
    [
        (NoUser(source="here"), {"user": "ann"}),
        (NoDigitFirst(source="here"), {"tools": [TOOL]}),
    ],
    ids=["limits", "tool-names"],
)
def test_fix_request_leaves_a_requirement_that_is_only_named_like_a_rule_of_the_api(monkeypatch, requirement, body):
    """A requirement named like an API's rule gets no fix of that rule: its finding stays, and the body its bytes."""
    data, result = fix(monkeypatch, requirement, body)
    assert [finding.rule for finding in result.findings] == [f"house.{requirement.rule}"]
    assert result.body == data


def test_fix_request_takes_the_fix_of_the_api_that_a_requirement_names(monkeypatch):
    """A requirement may say that the fix of a rule of the API serves."""
    _, result = fix(monkeypatch, NoDigitFirstLikeTheApi(source="here"), {"tools": [TOOL]})
    assert result.is_valid
    assert not json.loads(result.body)["tools"][0]["function"]["name"][0].isdigit()
    assert [done.rule for done in result.fixes] == ["house.tool-names"]


@pytest.mark.parametrize("field", ["betas", "anthropic_beta"])
def test_fix_request_takes_a_refused_beta_out_of_the_field_that_lists_it(field):
    """Betas stand in either field of a body, and both are read."""
    refused, kept = "prompt-caching-scope-2026-01-05", "context-1m-2025-08-07"
    body = {
        "anthropic_version": "vertex-2023-10-16",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "go"}],
        field: [refused, kept],
    }
    result = fix_request(json.dumps(body).encode(), "anthropic", model=CLAUDE, provider="vertex")
    assert json.loads(result.body)[field] == [kept]
    assert "vertex.beta" in {done.rule for done in result.fixes}
