"""Requests of clients are made valid for the provider that serves them, where its rules are known."""

from __future__ import annotations

import json

import anyio
import pytest

from holdfast.config import get_target
from holdfast.engine.engine_resources import EngineResources
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.fix.client_options import find_option_fixes
from holdfast.testing.provider import Provider, ProviderSettings

USER = {"role": "user", "content": "hi there"}
CALL = {"id": "call_abc_123", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
CHAT = "/v1/chat/completions"
KIMI, XAI, MISTRAL = "https://api.moonshot.ai/v1", "https://api.x.ai/v1", "https://api.mistral.ai/v1"
GLM = "https://api.z.ai/api/paas/v4"


def send_requests(open_client, make_upstream, requests, **settings):
    """Send ``requests``, each a path and a body; return the replies and the bodies that reached the provider."""
    upstream = make_upstream(Provider(ProviderSettings(tokenizer="words")))

    async def scenario():
        async with open_client(upstream, **settings) as client:
            return [await client.post(path, body, ()) for path, body in requests]

    replies = anyio.run(scenario)
    return replies, upstream.bodies


def test_proxy_sends_mistral_ids_of_its_form_and_a_message_between(open_client, make_upstream):
    """What Mistral refuses about a conversation never leaves the proxy; other messages keep their bytes."""
    body = {
        "model": "mistral-large-latest",
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_abc_123", "content": "a.py"},
            USER,
        ],
    }
    replies, bodies = send_requests(open_client, make_upstream, [(CHAT, body)])
    assert replies[0].status_code == 200
    sent = json.loads(bodies[0])["messages"]
    assert sent[0] == sent[4] == USER
    call_id = sent[1]["tool_calls"][0]["id"]
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert sent[2]["tool_call_id"] == call_id
    assert sent[3]["role"] == "assistant"


def test_proxy_gives_kimi_a_space_for_lost_reasoning_and_keeps_what_there_is(open_client, make_upstream):
    """Reasoning that the client lost is replaced; reasoning that it sends is left as it is."""
    thought = {"role": "assistant", "content": "", "reasoning_content": "look", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_abc_123", "content": "a.py"}
    lost = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    whole = {"model": "kimi-k2.5", "tools": [TOOL], "messages": [USER, thought, result]}
    damaged = {"model": "kimi-k2.5", "tools": [TOOL], "messages": [{**USER, "content": "other"}, lost, result]}
    replies, bodies = send_requests(open_client, make_upstream, [(CHAT, whole), (CHAT, damaged)])
    assert [reply.status_code for reply in replies] == [200, 200]
    assert bodies[0] == json.dumps(whole).encode()
    assert json.loads(bodies[1])["messages"][1] == {**lost, "reasoning_content": " "}


@pytest.mark.parametrize(
    ("address", "body", "left_out"),
    [
        (KIMI, {"model": "kimi-k3", "temperature": 0.3, "messages": [USER]}, "temperature"),
        (XAI, {"model": "grok-4.6", "presence_penalty": 0, "messages": [USER]}, "presence_penalty"),
        (MISTRAL, {"model": "mistral-medium-3-5", "stream_options": {}, "messages": [USER]}, "stream_options"),
    ],
)
def test_proxy_leaves_out_options_that_the_provider_is_known_to_refuse(
    address, body, left_out, open_client, make_upstream
):
    """The option is gone before the first request, with nothing else changed, and a second request does not differ."""
    replies, bodies = send_requests(open_client, make_upstream, [(CHAT, body), (CHAT, body)], openai=address)
    assert [reply.status_code for reply in replies] == [200, 200]
    expected = {key: value for key, value in body.items() if key != left_out}
    assert json.loads(bodies[0]) == expected
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "devstral-small-2507", "seed": 7, "top_k": 5, "min_p": 0.1, "messages": [USER]},
        {
            "model": "glm-4.6",
            "temperature": 1.5,
            "chat_template_kwargs": {"enable_thinking": False},
            "messages": [USER],
        },
        {"model": "deepseek-v3.1", "tools": [TOOL], "tool_choice": "required", "messages": [USER]},
        {"model": "minimax-m2", "temperature": 1.4, "tools": [{**TOOL, "strict": True}], "messages": [USER]},
        {"model": "kimi-k3", "temperature": 0.3, "messages": [USER]},
    ],
)
def test_proxy_leaves_options_alone_at_an_unknown_address(body, open_client, make_upstream):
    """Open weights have the names of hosted models, and their servers take other options; the name proves nothing."""
    replies, bodies = send_requests(open_client, make_upstream, [(CHAT, body)])
    assert replies[0].status_code == 200, replies[0].text
    assert bodies == [json.dumps(body).encode()]


def test_proxy_leaves_options_that_the_api_refuses_to_an_unknown_server(open_client, make_upstream):
    """A guess is no reason to hold the rules of the API's maker against a server that may be any."""
    body = {"model": "glm-4.6", "tools": [], "messages": [USER]}
    _, bodies = send_requests(open_client, make_upstream, [(CHAT, body)])
    assert bodies[0] == json.dumps(body).encode()
    _, bodies = send_requests(open_client, make_upstream, [(CHAT, body)], openai=GLM)
    assert bodies[0] != json.dumps(body).encode()


def test_proxy_makes_messages_valid_but_keeps_options_at_an_unknown_address(open_client, make_upstream):
    """A gateway may pass the request on to the maker, so its rules hold for messages; options stay."""
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    messages.append({"role": "tool", "tool_call_id": "call_abc_123", "content": "a.py"})
    body = {"model": "devstral-small-2507", "seed": 7, "top_k": 5, "tools": [TOOL], "messages": messages}
    replies, bodies = send_requests(open_client, make_upstream, [(CHAT, body)])
    assert replies[0].status_code == 200, replies[0].text
    sent = json.loads(bodies[0])
    assert len(sent["messages"][1]["tool_calls"][0]["id"]) == 9
    assert {**sent, "messages": messages} == body


@pytest.mark.parametrize("settings", [{"observe": True}, {"bypass": True}])
def test_proxy_that_changes_nothing_sends_refused_options_too(settings, open_client, make_upstream):
    """In the modes that only watch or relay, the client's bytes go out as they are."""
    body = {"model": "kimi-k3", "temperature": 0.3, "messages": [USER]}
    _, bodies = send_requests(open_client, make_upstream, [(CHAT, body)], **settings)
    assert bodies == [json.dumps(body).encode()]


def test_proxy_leaves_requests_for_unknown_models_alone(open_client, make_upstream):
    """A model that no provider is known for gets its client's bytes."""
    body = {"model": "house-model", "temperature": 1.9, "messages": [USER, {"role": "assistant", "content": "x"}, USER]}
    _, bodies = send_requests(open_client, make_upstream, [(CHAT, body)])
    assert bodies == [json.dumps(body).encode()]


def test_find_option_fixes_changes_only_options_that_a_local_server_is_known_to_refuse():
    """Rules of the API's maker say nothing about a server of somebody else; its own rules do."""
    dialect = get_target("openai-chat", "qwen3:8b", trusts_client=True, provider="ollama").dialect
    fields = parse_body_fields(b'{"model":"qwen3:8b","temperature":9,"reasoning_effort":"ultra","messages":[]}')
    option_fixes = find_option_fixes("openai-chat", fields, "qwen3:8b", dialect)
    assert option_fixes.changes == {"reasoning_effort": None}
    assert [fix.rule for fix in option_fixes.fixes] == ["ollama.field-value"]


class _Upstream:
    def __init__(self, url):
        self.url = url


@pytest.mark.parametrize(
    ("url", "model", "expected"),
    [
        ("https://api.moonshot.ai/v1/chat/completions", "glm-4.6", "kimi"),
        ("https://api.groq.com/openai/v1/chat/completions", "openai/gpt-oss-120b", "groq"),
        ("https://api.mistral.ai/v1/chat/completions", "house-model", "mistral"),
        ("https://openrouter.ai/api/v1/chat/completions", "moonshotai/kimi-k2.5", "openrouter"),
        ("http://127.0.0.1:11434/v1/chat/completions", "qwen3:8b", "ollama"),
        ("http://127.0.0.1:9999/v1/chat/completions", "kimi-k2.5", "kimi"),
        ("https://gateway.example/v1/chat/completions", "moonshotai/kimi-k2.5", ""),
        ("https://api.openai.com/v1/chat/completions", "gpt-5.5", ""),
    ],
)
def test_resolve_target_goes_by_the_address_before_the_model(url, model, expected):
    """The address says who answers; without a known one the model's name does, if only one provider uses it."""
    resources = EngineResources(store=None, upstream=_Upstream(url), trusts_client_limits=True)
    assert resources.resolve_target("openai-chat", model).dialect.provider == expected


def test_proxy_sends_kimi_a_schema_that_it_takes_and_the_same_each_time(open_client, make_upstream):
    """A tool whose schema Kimi is known to refuse does not end the session, and its repair keeps the cache warm."""
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"properties": {"at": {"type": "string"}}}}}
    body = {"model": "kimi-k3", "tools": [tool], "messages": [USER]}
    upstream = make_upstream(Provider(ProviderSettings(server="kimi", tokenizer="words")))

    async def scenario():
        async with open_client(upstream, openai=KIMI) as client:
            return [await client.post(CHAT, body, ()) for _ in range(2)]

    replies = anyio.run(scenario)
    assert [reply.status_code for reply in replies] == [200, 200]
    assert len(upstream.bodies) == 2
    assert upstream.bodies[0] == upstream.bodies[1]
