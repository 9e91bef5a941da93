"""What Holdfast knows of a provider is compared with the strict provider's own rows about it.

Both were written from the same kind of sources by different people, and share no code.
"""

from __future__ import annotations

import importlib
import json

import pytest

from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.dialects.registry import SERVERS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

JUDGE_CASES = {}
for server_name in SERVERS:
    JUDGE_CASES |= importlib.import_module(f"tests.testing.provider.dialects.cases.{server_name}").CASES
JUDGE_RULES = [(server.name, rule) for server in SERVERS.values() for rule in server.rules]
NOT_FOUND = {
    "kimi.message-size": "a limit of one plan, in bytes: learned from the refusal",
    "vertex.fields": "needs the betas of the headers, which the case does not give",
    "azure.max-tokens": "a deployment does not tell its model: the refusal names the field, and is acted on",
}
"""Refusals that nothing in the request foretells, with the reason."""
ONLY_WARNED = {
    "xai.tool-count": "one route takes more",
    "bedrock.betas": "which betas are refused changes within weeks",
    "vertex.call-ids": "some servers of the same model take ids",
}
NOT_FIXED = {
    "groq.tool-count": "which tools to give up is the user's decision",
    "vertex.betas": "the beta stands in a header",
    "vertex.tools": "nothing can stand for a tool that the platform lacks",
}


def list_levels(server, rule, body, headers):
    betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",") if beta.strip()]
    model = JUDGE_CASES[rule.name].model
    findings = validate_request(body, rule.api, model=model, provider=server, betas=betas or None)
    return {finding.level for finding in findings}


@pytest.mark.parametrize(("server", "rule"), JUDGE_RULES, ids=[rule.name for _, rule in JUDGE_RULES])
def test_validate_request_accepts_what_the_strict_provider_accepts(server, rule):
    """No request that the strict provider takes is an error, and none is changed by ``fix``."""
    case = JUDGE_CASES[rule.name]
    body = json.dumps(case.accepted).encode()
    assert "error" not in list_levels(server, rule, body, {})
    assert fix_request(body, rule.api, model=case.model, provider=server).body is body


@pytest.mark.parametrize(("server", "rule"), JUDGE_RULES, ids=[rule.name for _, rule in JUDGE_RULES])
def test_validate_request_finds_what_the_strict_provider_refuses(server, rule):
    """A request that the strict provider refuses is an error, unless nothing in it foretells that."""
    case = JUDGE_CASES[rule.name]
    levels = list_levels(server, rule, json.dumps(case.refused).encode(), case.headers)
    if rule.name in NOT_FOUND:
        assert not levels
    elif rule.name in ONLY_WARNED:
        assert levels == {"warning"}
    else:
        assert "error" in levels


@pytest.mark.parametrize(("server", "rule"), JUDGE_RULES, ids=[rule.name for _, rule in JUDGE_RULES])
def test_fix_request_makes_what_the_strict_provider_takes(server, rule):
    """A refused request is taken after ``fix``, unless it cannot be mended in the body."""
    case = JUDGE_CASES[rule.name]
    fixed = fix_request(json.dumps(case.refused).encode(), rule.api, model=case.model, provider=server)
    strict = Provider(ProviderSettings(server=server, tokenizer="words", accepted_seals="any"))
    reply = strict.answer_body(rule.api, fixed.body, model=case.model, headers=case.headers)
    is_left = rule.name in NOT_FOUND or rule.name in ONLY_WARNED or rule.name in NOT_FIXED
    assert isinstance(reply, RefusalReply) is is_left, reply
