"""Answers, refusals and own endpoints of the servers, as a client sees them over HTTP."""

from __future__ import annotations

import json

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.provider.calls import ModelAnswer, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.client import ProviderClient
from holdfast.testing.provider.dialects.ollama import OLLAMA
from holdfast.testing.provider.dialects.registry import SERVERS
from holdfast.testing.provider.dialects.server_dialect import PromptCut
from holdfast.testing.provider.dialects.server_request import ServerRequest
from holdfast.testing.provider.faults.faults import parse_fault
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings
from tests.testing.provider.dialects.case_builders import assistant, chat, messages_body, result, tool, user

CHAT_SERVERS = [name for name in SERVERS if name not in ("bedrock", "vertex")]
SCRIPT = [ScriptedAnswer("Kelp.", (("read", {"path": "a"}),), "Rocks first.")]
LONG = "lorem ipsum " * 400


def make_provider(server, script=(), window=20_000, **settings):
    return Provider(ProviderSettings(server=server, tokenizer="words", window=window, **settings), script)


@pytest.fixture
def serve():
    """Return a function that serves a server until the test ends, and returns a client of it."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(server, script=(), **settings):
            url = stack.enter_context(serve_provider(make_provider(server, script, **settings)))
            return stack.enter_context(httpx2.Client(base_url=url, timeout=60))

        yield start


def ask_thinking(model, **fields):
    """Return a request whose model has a tool and is asked to think."""
    return chat(model, user("call read"), tools=[tool()], **fields)


REASONING = {
    "mistral": ("content", {"reasoning_effort": "high"}),
    "deepseek": ("reasoning_content", {}),
    "kimi": ("reasoning_content", {}),
    "glm": ("reasoning_content", {}),
    "qwen": ("reasoning_content", {"enable_thinking": True}),
    "minimax": ("reasoning_details", {"reasoning_split": True}),
    "xai": ("reasoning_content", {}),
    "groq": ("reasoning", {}),
    "cerebras": ("reasoning", {}),
    "openrouter": ("reasoning_details", {"reasoning": {"effort": "high"}}),
    "vllm": ("reasoning", {"reasoning_effort": "high"}),
    "sglang": ("reasoning_content", {"reasoning_effort": "high"}),
    "llamacpp": ("reasoning_content", {"reasoning_effort": "high"}),
    "ollama": ("reasoning", {}),
    "lmstudio": ("reasoning", {}),
}


@pytest.mark.parametrize("server", REASONING)
def test_answer_has_its_reasoning_where_the_server_puts_it(serve, server):
    """The reasoning is in the server's own field, and the same whether it is streamed or not."""
    field, switches = REASONING[server]
    client = serve(server, SCRIPT * 2)
    body = ask_thinking(SERVERS[server].default_model, **switches)
    message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    streamed = client.post("/v1/chat/completions", json=body | {"stream": True}).text
    deltas = []
    for line in streamed.splitlines():
        if line.startswith("data: {"):
            deltas += [choice["delta"] for choice in json.loads(line[len("data: ") :])["choices"]]
    assert read_reasoning(message[field]) == "Rocks first."
    assert "".join([read_reasoning(delta[field]) for delta in deltas if is_reasoning(delta.get(field))]) == (
        "Rocks first."
    )
    assert ("reasoning_content" in message) == (field == "reasoning_content")


def is_reasoning(value):
    """Return whether the value of a delta's field is reasoning: the content of Mistral is also text."""
    return isinstance(value, list) or (isinstance(value, str) and value not in ("", "Kelp", "."))


def read_reasoning(value):
    """Return the text of reasoning in a field, in details or in thinking chunks."""
    if isinstance(value, str):
        return value
    texts = []
    for part in value:
        if part["type"] == "reasoning.text":
            texts.append(part["text"])
        elif part["type"] == "thinking":
            texts += [chunk["text"] for chunk in part["thinking"]]
    return "".join(texts)


def test_minimax_puts_its_reasoning_into_tags_by_default():
    """Without ``reasoning_split`` the text begins with the reasoning in ``<think>`` tags."""
    reply = make_provider("minimax", SCRIPT).answer_body("openai-chat", ask_thinking("MiniMax-M3"))
    assert reply.parts[0].text == "<think>\nRocks first.\n</think>\n\nKelp."


@pytest.mark.parametrize("server", CHAT_SERVERS)
def test_client_that_sends_everything_back_is_served(server):
    """A conversation with calls and reasoning that comes back as it was given breaks no rule."""
    field_and_switches = REASONING.get(server, ("", {}))
    model = SERVERS[server].default_model
    client = ProviderClient(make_provider(server), "openai-chat", tools=["read"], model=model, **field_and_switches[1])
    for step in range(3):
        reply = client.send_user_text(f'call read {{"step": {step}}}')
        assert isinstance(reply, ModelAnswer), reply
        reply = client.send_results(reply)
        assert isinstance(reply, ModelAnswer), reply


@pytest.mark.parametrize("server", ["deepseek", "kimi"])
def test_client_that_drops_reasoning_is_refused(server):
    """The server gave reasoning with its calls, so a client that drops it is refused in the next request."""
    client = ProviderClient(make_provider(server), "openai-chat", tools=["read"], model=SERVERS[server].default_model)
    reply = client.send_user_text('call read {"a": 1}')
    assert client.history[-1].pop("reasoning_content")
    reply = client.send_results(reply)
    assert isinstance(reply, RefusalReply)
    assert "reasoning_content" in reply.message


def test_call_ids_have_the_form_of_the_server():
    """Ids of calls look like those of the server, and one answer has no id twice."""
    script = [ScriptedAnswer(calls=(("read", {"a": 1}), ("read", {"a": 2})))]
    ids = {}
    for server in ("mistral", "kimi", "minimax", "xai", "lmstudio", "vllm"):
        body = ask_thinking(SERVERS[server].default_model)
        reply = make_provider(server, script).answer_body("openai-chat", body)
        ids[server] = [part.id for part in reply.parts if hasattr(part, "arguments")]
        assert len(set(ids[server])) == 2, ids[server]
    assert len(ids["mistral"][0]) == 9
    assert ids["kimi"][0].startswith("read:")
    assert ids["minimax"][1].endswith("_2")
    assert ids["lmstudio"][0].isdecimal()


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_error_bodies_have_the_form_of_the_server(serve):
    """Some servers have no key error, others a string under it, and OpenRouter a number as code."""
    broken = chat("any", user(), {"role": "user"})
    bodies = {}
    for server in ("mistral", "xai", "groq", "cerebras", "openrouter", "sglang", "lmstudio", "minimax", "glm"):
        response = serve(server).post("/v1/chat/completions", json=broken | {"model": SERVERS[server].default_model})
        assert response.status_code == 400, (server, response.text)
        bodies[server] = response.json()
    for server in ("mistral", "cerebras", "sglang"):
        assert "error" not in bodies[server]
        assert bodies[server]["message"]
    assert isinstance(bodies["xai"]["error"], str)
    assert list(bodies["lmstudio"]) == ["error"]
    assert bodies["openrouter"]["error"]["code"] == 400
    assert isinstance(bodies["glm"]["error"]["code"], str)
    assert bodies["minimax"]["type"] == "error"


def test_mistral_tells_the_path_of_an_unknown_field(serve):
    """The refusal of a field is a list of findings with the path to each."""
    body = chat("mistral-medium-3-5", user(), assistant("1", reasoning_content="x"), user("more"))
    response = serve("mistral").post("/v1/chat/completions", json=body)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "messages", 1, "assistant", "reasoning_content"]


def test_faults_have_the_form_of_the_server():
    """A fault, before an answer or inside of its stream, has a body in the server's form."""
    faults = ["529:head:1", "error:middle:2"]
    provider = make_provider("sglang")
    body = chat("any", user("hello"), stream=True)
    with serve_provider(provider, [parse_fault(fault) for fault in faults]) as url:
        refused = httpx2.post(f"{url}/v1/chat/completions", json=body)
        broken = httpx2.post(f"{url}/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["object"]) == (503, "error")
    # In a stream the same object is under a key of its own.
    assert '"error":{"object":"error"' in broken.text.replace(" ", "")


def test_xai_words_reasoning_that_it_cannot_read():
    """Encrypted reasoning of somebody else is refused in xAI's words."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Zm9yZWlnbg=="}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Kelp."}]}
    body = {"model": "grok-4.7", "store": False, "input": [user(), item, answer, user("more")]}
    reply = Provider(ProviderSettings(server="xai", tokenizer="words")).answer_body("openai-responses", body)
    assert json.loads(reply.body)["error"].startswith("Could not decrypt the provided encrypted_content.")


@pytest.mark.parametrize("server", [name for name in CHAT_SERVERS if name != "ollama"])
def test_request_over_the_window_is_refused_in_the_form_of_the_server(server):
    """An overflow has the server's wording, with its own body."""
    provider = make_provider(server, window=300)
    reply = provider.answer_body("openai-chat", chat(SERVERS[server].default_model, user(LONG)))
    assert isinstance(reply, RefusalReply), reply
    assert json.loads(reply.body)
    assert provider.requests[-1].rule == ""


def test_output_cap_is_told_in_the_words_of_the_server():
    """A limit above the largest is refused with the range."""
    body = chat("deepseek-flash", max_tokens=400_000)
    reply = make_provider("deepseek").answer_body("openai-chat", body)
    assert reply.message == "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]"
    reply = make_provider("qwen", max_output=8_192).answer_body("openai-chat", chat("qwen3-max", max_tokens=9_000))
    assert reply.message.endswith("Range of max_tokens should be [1, 8192]")


def test_vllm_counts_only_the_prompt_and_sglang_the_output_too():
    """max_tokens beside a prompt that fits is cut by vLLM and refused by SGLang."""
    body = chat("any", user("lorem " * 200), max_tokens=900)
    assert isinstance(make_provider("vllm", window=1_000).answer_body("openai-chat", body), ModelAnswer)
    reply = make_provider("sglang", window=1_000).answer_body("openai-chat", body)
    assert "You requested a total of" in reply.message


def test_rules_that_a_server_does_not_have_are_not_applied():
    """xAI takes 200 tools, Kimi free ids, DeepSeek ten stop sequences; OpenAI takes none of these."""
    tools = [tool(f"read_{number}") for number in range(200)]
    many_tools = chat("grok-4.6", tools=tools)
    long_id = "read:" + "1" * 70
    free_id = chat(
        "kimi-k2.6", user(), assistant(None, long_id, reasoning_content="x"), result(long_id), tools=[tool()]
    )
    many_stops = chat("deepseek-flash", stop=[str(number) for number in range(10)])
    for server, body in (("xai", many_tools), ("kimi", free_id), ("deepseek", many_stops)):
        assert isinstance(make_provider(server).answer_body("openai-chat", body), ModelAnswer), server
        assert isinstance(make_provider("").answer_body("openai-chat", body | {"model": "any"}), RefusalReply)


BAD_SCHEMAS = {
    "nothing beside a reference": {"$ref": "#/$defs/path", "type": "string"},
    "a description beside a reference": {"$ref": "#/$defs/path", "description": "Where."},
    "a reference elsewhere": {"$ref": "#/definitions/path"},
    "a tuple": {"type": "array", "items": [{"type": "string"}]},
    "a boolean as schema": {"type": "object", "properties": {"path": True}},
    "an unknown required field": {"type": "object", "properties": {}, "required": ["path"]},
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_kimi_refuses_schemas_that_are_not_of_its_flavour(name):
    """Each restriction of Moonshot's flavour is refused inside of a tool, with the place."""
    schema = {"type": "object", "properties": {"where": BAD_SCHEMAS[name]}, "$defs": {"path": {"type": "string"}}}
    reply = make_provider("kimi").answer_body("openai-chat", chat("kimi-k3", tools=[tool(parameters=schema)]))
    assert isinstance(reply, RefusalReply), reply
    assert "<At path 'properties.where: ".replace(": ", "':") in reply.message


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("kimi-k3", {"tool_choice": "required"}),
        ("kimi-k2.6", {"tool_choice": "required", "thinking": {"type": "disabled"}}),
        ("moonshot-v1-128k", {"temperature": 0.2}),
        ("kimi-k2.5", {"temperature": 0.6, "thinking": {"type": "disabled"}}),
    ],
)
def test_kimi_takes_by_model_what_it_refuses_of_another(model, fields):
    """Forced tools and temperatures depend on the model and on its thinking."""
    body = chat(model, tools=[tool()], **fields)
    assert isinstance(make_provider("kimi").answer_body("openai-chat", body), ModelAnswer)


# -- silent truncation -------------------------------------------------------------------------------------------------


def test_ollama_cuts_a_long_prompt_silently_unless_a_wording_is_chosen():
    """At ``/v1`` the front is dropped and the answer counts what is left; a chosen wording refuses."""
    body = chat("qwen3:32b", user("lorem " * 300), assistant(), user("kelp " * 100))
    provider = make_provider("ollama", window=300)
    assert isinstance(provider.answer_body("openai-chat", body), ModelAnswer)
    assert provider.requests[-1].tokens <= 300
    refusing_provider = make_provider("ollama", window=300, overflow="ollama-context")
    assert isinstance(refusing_provider.answer_body("openai-chat", body), RefusalReply)


def test_openrouter_compresses_only_if_the_request_says_so():
    """With the plugin the middle is cut and the request answered; without it the request is refused."""
    body = chat("anthropic/claude-sonnet-5.5", user(LONG))
    plugin = {"plugins": [{"id": "context-compression"}]}
    assert isinstance(make_provider("openrouter", window=300).answer_body("openai-chat", body), RefusalReply)
    assert isinstance(make_provider("openrouter", window=300).answer_body("openai-chat", body | plugin), ModelAnswer)


@given(
    window=st.integers(10, 10_000),
    setup=st.integers(0, 20_000),
    messages=st.lists(st.integers(0, 5_000), min_size=1, max_size=8),
)
def test_ollama_keeps_the_last_message_or_half_of_the_window(window, setup, messages):
    """What is left fits; if setup and last message fit, no more is dropped than whole messages before the last."""
    cut = PromptCut(window, setup, tuple(messages))
    dropped_tokens = OLLAMA.cut_prompt(ServerRequest("openai-chat", {}, "m"), cut)
    total = setup + sum(messages)
    assert total - dropped_tokens <= window
    if total <= window:
        assert dropped_tokens == 0
    elif setup + messages[-1] <= window:
        assert dropped_tokens in [sum(messages[:count]) for count in range(len(messages))]
    else:
        assert total - dropped_tokens >= window // 2


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_base_urls_of_servers_work(serve):
    """Clients keep the path of their base URL."""
    for server, base in (
        ("groq", "/openai/v1"),
        ("glm", "/api/paas/v4"),
        ("qwen", "/compatible-mode/v1"),
        ("openrouter", "/api/v1"),
        ("azure", "/openai/v1"),
    ):
        body = chat(SERVERS[server].default_model)
        assert serve(server).post(f"{base}/chat/completions", json=body).status_code == 200, server


def test_servers_tell_their_window(serve):
    """Each server that tells its window has it where its own clients look for it."""
    window = 12_345
    assert serve("llamacpp", window=window).get("/props").json()["default_generation_settings"]["n_ctx"] == window
    for server in ("vllm", "sglang"):
        assert serve(server, window=window).get("/v1/models").json()["data"][0]["max_model_len"] == window
    groq = serve("groq", window=window).get("/openai/v1/models").json()
    assert groq["data"][0]["context_window"] == window
    ollama = serve("ollama", window=window)
    assert ollama.get("/api/ps").json()["models"][0]["context_length"] == window
    assert str(window) in ollama.post("/api/show", json={"model": "qwen3:32b"}).json()["parameters"]
    studio = serve("lmstudio", window=window).get("/api/v1/models").json()
    assert studio["models"][0]["loaded_instances"][0]["config"]["context_length"] == window
    assert serve("openrouter", window=window).get("/api/v1/models").json()["data"][0]["context_length"] == window


def test_clouds_have_the_model_in_the_address(serve):
    """InvokeModel and rawPredict take bodies with the version and without a model."""
    body = messages_body(anthropic_version="bedrock-2023-05-31")
    response = serve("bedrock").post("/model/us.anthropic.claude-opus-5-v1:0/invoke", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == "us.anthropic.claude-opus-5-v1:0"
    body = messages_body(anthropic_version="vertex-2023-10-16")
    place = "/v1/projects/p/locations/l/publishers/anthropic/models"
    assert serve("vertex").post(f"{place}/claude-opus-5:rawPredict", json=body).status_code == 200
    response = serve("vertex").post(f"{place}/claude-opus-5:streamRawPredict", json=body | {"stream": True})
    assert "event: message_stop" in response.text
