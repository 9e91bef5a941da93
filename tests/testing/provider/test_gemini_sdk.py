"""Google's own SDK as a client of the strict provider."""

from __future__ import annotations

import pytest
from google import genai
from google.genai import errors, types

from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings

MODEL = "gemini-3-pro"
DECLARED = types.FunctionDeclaration(
    name="read",
    description="Read.",
    parameters_json_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
TOOLS = types.GenerateContentConfig(
    tools=[types.Tool(function_declarations=[DECLARED])], thinking_config=types.ThinkingConfig(include_thoughts=True)
)
LONG = "Kelp grows where rock and light meet, 海藻 too; " * 40
SCRIPT = [
    ScriptedAnswer(
        LONG, (("read", {"path": "a/b.txt", "lines": [1, 2]}), ("read", {"path": "c"})), "Where is the file?"
    )
]
CALL = 'call read {"path": "a.txt"}'


def sdk(url: str) -> genai.Client:
    return genai.Client(api_key="any", http_options=types.HttpOptions(base_url=url))


@pytest.fixture(scope="module")
def client():
    """The SDK, pointed at a strict provider with a small window."""
    with serve_provider(Provider(ProviderSettings(window=2_000))) as url, sdk(url) as one:
        yield one


def test_plain(client):
    """A response comes as the SDK's own type, which takes no field it does not know."""
    found = client.models.generate_content(model=MODEL, contents="hello")
    assert found.text.startswith("ok")
    assert found.candidates[0].finish_reason is types.FinishReason.STOP
    assert (found.model_version, found.usage_metadata.prompt_token_count > 0) == (MODEL, True)


def test_a_stream_says_the_same():
    """The chunks of a stream, put together, are the answer in one piece: thoughts, text, calls, usage."""
    with serve_provider(Provider(script=SCRIPT)) as url, sdk(url) as client:
        plain = client.models.generate_content(model=MODEL, contents="hello", config=TOOLS)
    with serve_provider(Provider(script=SCRIPT)) as url, sdk(url) as client:
        chunks = list(client.models.generate_content_stream(model=MODEL, contents="hello", config=TOOLS))
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    whole = plain.candidates[0].content.parts
    for thought in (True, None):
        said = "".join(part.text for part in parts if part.text and part.thought is thought)
        assert said == "".join(part.text for part in whole if part.text and part.thought is thought)
    assert [part for part in parts if part.function_call] == [part for part in whole if part.function_call]
    assert [part.thought_signature for part in parts if part.thought_signature] == [
        part.thought_signature for part in whole if part.thought_signature
    ]
    assert chunks[-1].usage_metadata == plain.usage_metadata
    assert chunks[-1].candidates[0].finish_reason is types.FinishReason.STOP
    assert plain.text == LONG
    assert [call.args for call in plain.function_calls] == [{"path": "a/b.txt", "lines": [1, 2]}, {"path": "c"}]


def test_a_tool_loop(client):
    """A call with its signature, its response, and the answer, the content sent back as the SDK holds it."""
    history = [types.Content(role="user", parts=[types.Part(text=CALL)])]
    asked = client.models.generate_content(model=MODEL, contents=history, config=TOOLS)
    [call] = asked.function_calls
    assert asked.candidates[0].content.parts[-1].thought_signature
    response = types.FunctionResponse(id=call.id, name=call.name, response={"output": "kelp"})
    history += [asked.candidates[0].content, types.Content(role="user", parts=[types.Part(function_response=response)])]
    assert client.models.generate_content(model=MODEL, contents=history, config=TOOLS).text.startswith("ok")


def test_functions_are_called(client):
    """The SDK's own loop calls a Python function and sends what it returned."""
    paths = []

    def read(path: str) -> str:
        """Read a file."""
        paths.append(path)
        return "kelp"

    config = types.GenerateContentConfig(tools=[read])
    assert client.models.generate_content(model=MODEL, contents=CALL, config=config).text.startswith("ok")
    assert paths == ["a.txt"]


def test_a_chat(client):
    """The SDK's chat keeps its own history, plain and in chunks, and every request of it is taken."""
    chat = client.chats.create(model=MODEL)
    assert chat.send_message("hello").text.startswith("ok")
    assert "".join(chunk.text or "" for chunk in chat.send_message_stream("again")).startswith("ok")
    assert chat.send_message("and again").text.startswith("ok")


@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow(client, stream):
    """An overflow is the SDK's own error, with Google's words and true numbers."""
    words = r"The input token count \(\d{4}\) exceeds the maximum number of tokens allowed \(2000\)"
    huge = {"model": MODEL, "contents": "kelp " * 3_000}
    ask = client.models.generate_content_stream if stream else client.models.generate_content
    with pytest.raises(errors.ClientError, match=words) as caught:
        list(ask(**huge))
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")


def test_a_broken_history(client):
    """A history that the API refuses is refused in its words."""
    call = types.Part(function_call=types.FunctionCall(name="read", args={"path": "a"}))
    said = types.Part(text="and?")
    broken = [
        types.Content(role="user", parts=[said]),
        types.Content(role="model", parts=[call]),
        types.Content(role="user", parts=[said]),
    ]
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(model=MODEL, contents=broken, config=TOOLS)
    assert caught.value.status == "INVALID_ARGUMENT"


def test_counting(client):
    """A count is the input that the answer to the same request reports."""
    counted = client.models.count_tokens(model=MODEL, contents="hello, kelp").total_tokens
    usage = client.models.generate_content(model=MODEL, contents="hello, kelp").usage_metadata
    assert counted == usage.prompt_token_count


def test_models(client):
    """The models endpoint tells the window."""
    assert client.models.get(model=MODEL).input_token_limit == 2_000
    assert f"models/{MODEL}" in [model.name for model in client.models.list()]
