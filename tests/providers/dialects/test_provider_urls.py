"""A provider is recognized by the address that requests go to."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from holdfast.engine.engine_resources import EngineResources
from holdfast.errors import ConfigError
from holdfast.providers.dialects.request_provider import check_provider_name, find_request_provider


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
    with pytest.raises(ConfigError, match=r"no provider is called 'mistrl'.*anthropic, openai, gemini, mistral"):
        check_provider_name("mistrl")


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
