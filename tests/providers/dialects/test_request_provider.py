"""The provider of a request is told by an option, its address, a setting, its body, or the model's name."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from holdfast.config import get_target
from holdfast.config.catalog import CatalogModel
from holdfast.engine.engine_resources import EngineResources
from holdfast.errors import ConfigError
from holdfast.providers.dialects.request_provider import RequestProvider, check_provider_name, find_request_provider
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.rules.validate import validate_request


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://api.moonshot.cn/v1", "kimi"),
        ("https://api.kimi.com/coding/v1", "kimi"),
        ("https://open.bigmodel.cn/api/paas/v4", "glm"),
        ("https://api.cerebras.ai/v1", "cerebras"),
        ("https://API.MISTRAL.AI./v1", "mistral"),
        ("https://api.openai.com/v1", "openai"),
        ("https://api.anthropic.com", "anthropic"),
        ("https://api.mistral.ai.example.org/v1", ""),
        ("https://gateway.example/api.mistral.ai", ""),
        ("http://127.0.0.1:9/v1", ""),
        ("http://[::1", ""),
        ("http://[::1]:11434/v1", "ollama"),
        ("http://[fd00::7]:11434/v1", "ollama"),
        ("http://[2a00:1450:4001::7]:11434/v1", ""),
        ("http://host:99999999/v1", ""),
        ("", ""),
    ],
)
def test_find_request_provider_goes_by_the_host_alone(url, expected):
    """The host tells the provider, whatever its case; look-alikes and addresses that cannot be read tell none."""
    assert find_request_provider("openai-chat", "", address=url).name == expected


def test_check_provider_name_lists_the_known_ones():
    """An unknown provider is refused with the list of those that are known; no name at all is fine."""
    check_provider_name("")
    check_provider_name("mistral")
    with pytest.raises(ConfigError, match=r"no provider is called 'mistrl'.*anthropic, openai.*did you mean mistral\?"):
        check_provider_name("mistrl")


@pytest.mark.parametrize(
    "use_name",
    [
        lambda name: get_target("openai-chat", "house-model", provider=name),
        lambda name: CatalogModel("house-*", provider=name),
        lambda name: find_request_provider("openai-chat", "house-model", configured=name),
        lambda name: validate_request(b"{}", "openai-chat", provider=name),
        lambda name: fix_request(b"{}", "openai-chat", provider=name),
    ],
)
def test_unknown_provider_is_refused_wherever_it_is_named(use_name):
    """No function takes an unknown provider in silence."""
    with pytest.raises(ConfigError, match="did you mean groq"):
        use_name("groqq")


VERTEX_BODY = {"anthropic_version": Raw(b'"vertex-2023-10-16"')}
STRONGEST_FIRST = [
    ({"named": "azure"}, "azure", "option"),
    ({"address": "https://eu-aiplatform.googleapis.com/v1"}, "vertex", "address"),
    ({"configured": "bedrock"}, "bedrock", "setting"),
    ({"address": "http://127.0.0.1:11434"}, "ollama", "address"),
    ({"fields": VERTEX_BODY}, "vertex", "body"),
]


@pytest.mark.parametrize("count", range(1, len(STRONGEST_FIRST) + 1))
def test_find_request_provider_goes_by_the_strongest_sign(count):
    """What somebody said and a host win over a setting, that over a port, and a field of the body over the model."""
    signs, expected, told_by = STRONGEST_FIRST[-count]
    weaker_signs = {}
    for more_signs, _, _ in reversed(STRONGEST_FIRST[-count:]):
        weaker_signs |= more_signs
    assert find_request_provider("anthropic", "kimi-k3", **signs) == RequestProvider(expected, told_by)
    found = find_request_provider("anthropic", "kimi-k3", **weaker_signs)
    assert found == RequestProvider(expected, told_by)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", RequestProvider("glm", "model")),
        ("http://127.0.0.1:8000/v1", RequestProvider("glm", "guess")),
        ("https://gateway.example/v1", RequestProvider("glm", "guess")),
        ("https://api.z.ai/v1", RequestProvider("glm", "address")),
        ("https://api.openai.com/v1", RequestProvider("openai", "address")),
    ],
)
def test_find_request_provider_only_guesses_by_the_model_at_an_unknown_address(address, expected):
    """Without any address the maker's own server is the best guess; a known address never leaves it to the name."""
    assert find_request_provider("openai-chat", "glm-4.6", address=address) == expected


def test_validate_request_leaves_options_to_a_guessed_provider():
    """Of a guess the rules about messages hold; those about options and tools do not."""
    call = {"id": "call_abc_123", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "call_abc_123", "content": "a.py"})
    body = {"model": "mistral-small-2506", "seed": 7, "top_k": 3, "messages": messages}
    guess = find_request_provider("openai-chat", "mistral-small-2506", address="http://127.0.0.1:8000")
    all_rules = {finding.rule for finding in validate_request(body, "openai-chat")}
    rules_of_guess = {finding.rule for finding in validate_request(body, "openai-chat", provider=guess)}
    assert all_rules == {"mistral.unknown-field", "mistral.call-ids"}
    assert rules_of_guess == {"mistral.call-ids"}
    result = fix_request(json.dumps(body).encode(), "openai-chat", provider=guess)
    fixed_body = json.loads(result.body)
    assert result.is_valid
    assert fixed_body["messages"] != messages
    assert {**fixed_body, "messages": messages} == body


@pytest.mark.parametrize(
    ("version", "expected"),
    [("bedrock-2023-05-31", "bedrock"), ("vertex-2023-10-16", "vertex"), ("2023-06-01", ""), (7, ""), (None, "")],
)
def test_find_request_provider_reads_the_version_of_a_cloud(version, expected):
    """Claude on Bedrock and Vertex AI is told by ``anthropic_version`` in the body, for the dialect as for lint."""
    fields = {"anthropic_version": Raw(json.dumps(version).encode())}
    assert find_request_provider("anthropic", "", fields=fields).name == expected
    assert find_request_provider("openai-chat", "", fields=fields).name == ""
    assert find_request_provider("anthropic", "").name == ""
    resources = EngineResources(store=None, upstream=None)
    target = resources.resolve_target("anthropic", "claude-sonnet-4-5", None, fields)
    assert target.dialect.provider == expected
