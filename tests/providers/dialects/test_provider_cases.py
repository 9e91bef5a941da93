"""Each requirement of a provider is proven by requests that keep and that break it.

The cases are in ``cases/PROVIDER.json``: ``{"id", "rule", "kept", "request"}``, with ``"api"`` if it is not Chat
Completions, and ``"stays": true`` if ``fix`` has no right way to change it. The rule is empty if none in particular is
kept. ``"fixed"`` has the values of fields after ``fix``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.providers.dialects.registry import PROVIDER_SPECS, get_provider_rules
from holdfast.providers.dialects.request_provider import find_request_provider
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request

CASES = Path(__file__).with_name("cases")


def load_cases():
    """Return ``(provider, case)`` for all cases of all providers."""
    return [(path.stem, case) for path in sorted(CASES.glob("*.json")) for case in json.loads(path.read_text())]


def list_case_params():
    return [pytest.param(name, case, id=f"{name}-{case['id']}") for name, case in load_cases()]


def encode_request(case):
    return json.dumps(case["request"]).encode()


def get_api(case):
    return case.get("api", "openai-chat")


def list_levels(provider, case):
    """Return the level of each rule that a case breaks."""
    findings = validate_request(encode_request(case), get_api(case), provider=provider)
    return {finding.rule: finding.level for finding in findings}


@pytest.mark.parametrize(("provider", "case"), list_case_params())
def test_validate_request_judges_each_case_by_the_rule_it_is_about(provider, case):
    """A kept request has no finding, a refused one breaks its rule and no other. Some cases are but a warning."""
    expected = {} if case["kept"] else {f"{provider}.{case['rule']}": case.get("level", "error")}
    assert list_levels(provider, case) == expected


@pytest.mark.parametrize(("provider", "case"), list_case_params())
def test_fix_request_makes_each_case_valid_and_leaves_valid_ones_alone(provider, case):
    """A kept request comes back as the same object; a refused one is valid after one fix, and a second changes it no
    more.
    """
    body = encode_request(case)
    result = fix_request(body, get_api(case), provider=provider)
    if case["kept"] or case.get("level") == "warning":
        assert result.body is body
        return
    assert result.is_valid is not case.get("stays", False), result.findings
    assert fix_request(result.body, get_api(case), provider=provider).body == result.body
    fixed_body = json.loads(result.body)
    for field, value in case.get("fixed", {}).items():
        assert fixed_body[field] == value


def list_requirement_params():
    """Return each rule of each provider once, with the cases about it."""
    params = []
    for name, spec in PROVIDER_SPECS.items():
        cases = [case for provider, case in load_cases() if provider == name]
        rules = set()
        for case in cases:
            model = case["request"].get("model", "")
            provider_rules = get_provider_rules(get_api(case), model, name)
            assert provider_rules is not None, f"{name} has no rules for {get_api(case)}"
            rules |= {requirement.rule for requirement in provider_rules.requirements}
        for api in spec.rules_by_api:
            rules |= {requirement.rule for requirement in get_provider_rules(api, "", name).requirements}
        params += [pytest.param(cases, rule, id=f"{name}-{rule}") for rule in sorted(rules)]
    return params


@pytest.mark.parametrize(("cases", "rule"), list_requirement_params())
def test_cases_have_a_kept_and_a_refused_request_for_each_rule(cases, rule):
    """No rule of a provider is without a request that keeps it and one that breaks it."""
    verdicts = {case["kept"] for case in cases if case["rule"] == rule}
    assert verdicts == {True, False}


@pytest.mark.parametrize("spec", PROVIDER_SPECS.values(), ids=PROVIDER_SPECS)
def test_each_requirement_has_a_source_and_a_sentence(spec):
    """A requirement says where it was read, and what it asks in one sentence."""
    for api, build_rules in spec.rules_by_api.items():
        for requirement in build_rules("").requirements:
            assert requirement.source, (api, requirement.rule)
            assert requirement.text.endswith("."), requirement.text


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("mistral-large-latest", "mistral"),
        ("devstral-2512", "mistral"),
        ("kimi-k2.5", "kimi"),
        ("moonshot-v1-32k", "kimi"),
        ("glm-5.3-flash", "glm"),
        ("qwen-3.8-27b", "cerebras"),
        ("qwen-3-235b-a22b-instruct-2507", "cerebras"),
        ("ministral-8b-latest", "mistral"),
        ("pixtral-12b-2409", "mistral"),
        ("devstral-small-2507", "mistral"),
        ("devstral-small-2-24b-instruct-2512", ""),
        ("mistral-7b-instruct-v0.3", ""),
        ("magistral-small-24b", ""),
        ("codestral-22b-v0.1", ""),
        ("glm-4.6", "glm"),
        ("glm-4.6-fp8", ""),
        ("glm-4-9b-chat", ""),
        ("kimi-k2-thinking", "kimi"),
        ("kimi-k2-instruct-0905", ""),
        ("deepseek-v3.1", "deepseek"),
        ("deepseek-v3.1-base", ""),
        ("minimax-m2-awq", ""),
        ("mistralai/mistral-large", ""),
        ("moonshotai/kimi-k2.5", ""),
        ("gpt-5.5", ""),
        ("claude-sonnet-4-5", ""),
        ("", ""),
    ],
)
def test_find_request_provider_tells_only_names_that_one_provider_gives(model, expected):
    """A model's bare name tells its provider. One with a vendor is a gateway's or an open model's, one with the marks
    of published weights that of somebody's own server; these tell none.
    """
    assert find_request_provider("openai-chat", model).name == expected
