"""The servers of the strict provider: each rule has an accepted and a refused request, each error its server's form."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.testing.provider.calls import ModelAnswer, RefusalReply
from holdfast.testing.provider.dialects.registry import SERVERS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from tests.support.example_counts import choose

RULES = [rule for server in SERVERS.values() for rule in server.rules]
CASES = {}
for server_name in SERVERS:
    CASES |= importlib.import_module(f"tests.testing.provider.dialects.cases.{server_name}").CASES


def make_provider(server, **fields):
    """Return a provider that is ``server``; signatures of others are accepted, as the cases have some."""
    return Provider(ProviderSettings(server=server, tokenizer="words", accepted_seals="any", **fields))


def send_case_body(rule, body, case):
    """Return the reply to a body of a case, and the name of the rule that it broke."""
    provider = make_provider(rule.name.partition(".")[0])
    reply = provider.answer_body(rule.api, body, model=case.model, headers=case.headers)
    return reply, provider.requests[-1].rule


def test_every_rule_of_a_server_has_one_case_and_a_source():
    """Rules and cases are the same list, names are unique, and every rule says what it is and where that is known."""
    names = [rule.name for rule in RULES]
    assert sorted(names) == sorted(CASES)
    for server in SERVERS.values():
        for rule in server.rules:
            assert rule.name.startswith(f"{server.name}."), rule.name
            assert rule.source
            assert (rule.check.__doc__ or "").endswith("."), rule.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_server_answers_the_accepted_request_of_a_rule(rule):
    """The accepted case of a rule breaks no rule of the server or its API."""
    case = CASES[rule.name]
    reply, _ = send_case_body(rule, case.accepted, case._replace(headers={}))
    assert isinstance(reply, ModelAnswer), reply


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_server_refuses_the_refused_request_of_a_rule(rule):
    """The refused case of a rule is refused for that rule, in the words and with the status of the server."""
    case = CASES[rule.name]
    reply, broken_rule = send_case_body(rule, case.refused, case)
    assert isinstance(reply, RefusalReply), reply
    assert broken_rule == rule.name
    assert case.words in reply.message
    assert reply.status == case.status
    # The words are also in the body that a client gets, whatever its form.
    text = json.dumps(json.loads(reply.body), ensure_ascii=False)
    assert json.dumps(case.words, ensure_ascii=False)[1:-1] in text.replace('\\\\"', '\\"') or case.words in text


ODD_VALUES = (None, True, 0, -1, 1.5, "", "x", [], {}, [[]], [{}], [None], {"type": []}, {"a": None}, 2**70)


def list_places(value, steps=()):
    """Return the path of every value inside of a JSON value."""
    places = [steps] if steps else []
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places += list_places(inner, (*steps, key))
    return places


def replace_place(body, steps, value):
    """Return the body with another value at the path."""
    changed = json.loads(json.dumps(body))
    holder = changed
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = value
    return changed


@pytest.mark.counts
@settings(max_examples=choose(quick=150, ci=500, thorough=20_000))
@given(data=st.data())
def test_server_answers_any_request_without_an_exception(data):
    """A request with odd values anywhere gets a reply, and its rules say no more than yes or no."""
    rule = data.draw(st.sampled_from(RULES))
    case = CASES[rule.name]
    body = data.draw(st.sampled_from([case.accepted, case.refused]))
    assume(len(json.dumps(body)) < 20_000)
    for _ in range(data.draw(st.integers(1, 3))):
        places = list_places(body)
        if places:
            body = replace_place(body, data.draw(st.sampled_from(places)), data.draw(st.sampled_from(ODD_VALUES)))
    reply, _ = send_case_body(rule, body, case)
    assert isinstance(reply, ModelAnswer | RefusalReply)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_case_is_refused_for_its_rule_alone(rule):
    """Without the rule the refused case meets no other rule of the server."""
    case = CASES[rule.name]
    provider = make_provider(rule.name.partition(".")[0])
    provider.server = replace(provider.server, rules=tuple([row for row in provider.server.rules if row is not rule]))
    provider.answer_body(rule.api, case.refused, model=case.model, headers=case.headers)
    assert provider.requests[-1].rule == ""


def test_page_lists_every_server():
    """The table of the page about the strict provider has each server by its name and title."""
    page = (Path(__file__).parents[4] / "docs/provider.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page.partition("## Settings")[0], re.MULTILINE)
    assert listed == [(server.name, server.title) for server in SERVERS.values()]


def test_settings_refuse_a_server_that_is_not_known():
    """The error for an unknown server lists the known ones."""
    with pytest.raises(ConfigError, match="'mistrall'; choose one of mistral, deepseek"):
        ProviderSettings(server="mistrall")
