"""Every rule of every API, with worked requests that keep it and that break it."""

from __future__ import annotations

from functools import cache

import pytest
import rule_cases

from holdfast.providers.rules.validate import ALL_RULES


@cache
def validate_cases(api):
    """Return each case of an API with the validator's findings."""
    return [(case, rule_cases.validate_case(case)) for case in rule_cases.load_cases(api)]


def list_cases_of_rule(name):
    return [(case, found) for case, found in validate_cases(name.partition(".")[0]) if case["rule"] == name]


NAMES = [rule.name for rule in ALL_RULES]


def test_rule_cases_belong_to_existing_rules():
    """No case is left over from a removed rule, and case ids are unique."""
    for listed in map(validate_cases, rule_cases.APIS):
        assert {case["rule"] for case, _ in listed} <= set(NAMES)
        assert len({case["id"] for case, _ in listed}) == len(listed)


@pytest.mark.parametrize("name", NAMES)
def test_validate_request_accepts_requests_that_keep_the_rule(name):
    """Kept examples break no rule at all, and each rule has at least one."""
    kept = [found for case, found in list_cases_of_rule(name) if case["kept"]]
    assert kept
    assert [found for found in kept if found] == []


@pytest.mark.parametrize("name", NAMES)
def test_validate_request_finds_requests_that_break_the_rule(name):
    """Broken examples are found under the rule's name, with its level, a path, and one thing to do."""
    for case, found in list_cases_of_rule(name):
        hits = [hit for hit in found if hit.rule == name]
        assert bool(hits) is not case["kept"], case["id"]
        for hit in hits:
            assert hit.level == rule_cases.LEVELS[name]
            assert hit.path.startswith("$")
            assert "; " in hit.message
            assert "None" not in hit.message


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_alone_catches_a_broken_request(name):
    """Some broken request is caught by this rule only."""
    assert any({hit.rule for hit in found} == {name} for case, found in list_cases_of_rule(name) if not case["kept"])


@pytest.mark.long
def test_rule_cases_notice_a_deleted_rule():
    """Without any one rule some case is judged wrong; with all rules, none is."""
    assert [case["id"] for api in rule_cases.APIS for case, found in validate_cases(api)
            if rule_cases.get_verdict(found) != rule_cases.get_expected_verdict(case)] == []  # fmt: skip
    assert [name for name, count in rule_cases.count_wrong_without_each_rule().items() if not count] == []


def test_each_rule_has_text_evidence_and_source():
    """A rule that is only inferred warns; all others are errors."""
    assert len(set(NAMES)) == len(ALL_RULES)
    for rule in ALL_RULES:
        assert rule.text.endswith(".")
        assert rule.source
        assert rule.level == ("warning" if rule.evidence == "inferred" else "error")
