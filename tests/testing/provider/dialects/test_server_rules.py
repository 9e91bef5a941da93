"""The servers of the strict provider: each rule has an accepted and a refused request, each error its server's form."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.testing.provider.calls import ModelAnswer, RefusalReply
from holdfast.testing.provider.dialects.registry import SERVERS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

RULES = [rule for server in SERVERS.values() for rule in server.rules]
CASES = {}
for server_name in SERVERS:
    CASES |= importlib.import_module(f"tests.testing.provider.dialects.cases.{server_name}").CASES


def make_provider(server, **settings):
    """Return a provider that is ``server``; signatures of others are accepted, as the cases have some."""
    return Provider(ProviderSettings(server=server, tokenizer="words", accepted_seals="any", **settings))


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


def test_page_lists_every_server():
    """The table of the page about the strict provider has each server by its name and title."""
    page = (Path(__file__).parents[4] / "docs/provider.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page.partition("## Settings")[0], re.MULTILINE)
    assert listed == [(server.name, server.title) for server in SERVERS.values()]


def test_settings_refuse_a_server_that_is_not_known():
    """The error for an unknown server lists the known ones."""
    with pytest.raises(ConfigError, match="'mistrall'; choose one of mistral, deepseek"):
        ProviderSettings(server="mistrall")
