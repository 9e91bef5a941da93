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
READ_DECLARATION = types.FunctionDeclaration(
    name="read",
    description="Read.",
    parameters_json_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
CONFIG_WITH_TOOL = types.GenerateContentConfig(
    tools=[types.Tool(function_declarations=[READ_DECLARATION])],
    thinking_config=types.ThinkingConfig(include_thoughts=True),
)
LONG = "Kelp grows where rock and light meet, 海藻 too; " * 40
SCRIPT = [
    ScriptedAnswer(
        LONG, (("read", {"path": "a/b.txt", "lines": [1, 2]}), ("read", {"path": "c"})), "Where is the file?"
    )
]
CALL_TEXT = 'call read {"path": "a.txt"}'


def make_sdk_client(url: str) -> genai.Client:
    return genai.Client(api_key="any", http_options=types.HttpOptions(base_url=url))


@pytest.fixture(scope="module")
def client():
    """Return the SDK client of a strict provider with a small window."""
    with serve_provider(Provider(ProviderSettings(window=2_000))) as url, make_sdk_client(url) as sdk_client:
        yield sdk_client


def test_gemini_sdk_parses_a_response(client):
    """The response validates as the SDK's own type, which accepts no unknown field."""
    response = client.models.generate_content(model=MODEL, contents="hello")
    assert response.text.startswith("ok")
    assert response.candidates[0].finish_reason is types.FinishReason.STOP
    assert (response.model_version, response.usage_metadata.prompt_token_count > 0) == (MODEL, True)


def test_gemini_sdk_stream_equals_the_whole_response():
    """The chunks put together have the same thoughts, text, calls and usage."""
    with serve_provider(Provider(script=SCRIPT)) as url, make_sdk_client(url) as client:
        plain = client.models.generate_content(model=MODEL, contents="hello", config=CONFIG_WITH_TOOL)
    with serve_provider(Provider(script=SCRIPT)) as url, make_sdk_client(url) as client:
        chunks = list(client.models.generate_content_stream(model=MODEL, contents="hello", config=CONFIG_WITH_TOOL))
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    plain_parts = plain.candidates[0].content.parts
    for thought in (True, None):
        text = "".join(part.text for part in parts if part.text and part.thought is thought)
        assert text == "".join(part.text for part in plain_parts if part.text and part.thought is thought)
    assert [part for part in parts if part.function_call] == [part for part in plain_parts if part.function_call]
    assert [part.thought_signature for part in parts if part.thought_signature] == [
        part.thought_signature for part in plain_parts if part.thought_signature
    ]
    assert chunks[-1].usage_metadata == plain.usage_metadata
    assert chunks[-1].candidates[0].finish_reason is types.FinishReason.STOP
    assert plain.text == LONG
    assert [call.args for call in plain.function_calls] == [{"path": "a/b.txt", "lines": [1, 2]}, {"path": "c"}]


def test_gemini_sdk_runs_a_tool_turn(client):
    """A call with its signature, its response and the answer work with the SDK's own content sent back."""
    history = [types.Content(role="user", parts=[types.Part(text=CALL_TEXT)])]
    call_response = client.models.generate_content(model=MODEL, contents=history, config=CONFIG_WITH_TOOL)
    [call] = call_response.function_calls
    assert call_response.candidates[0].content.parts[-1].thought_signature
    function_response = types.FunctionResponse(id=call.id, name=call.name, response={"output": "kelp"})
    history += [
        call_response.candidates[0].content,
        types.Content(role="user", parts=[types.Part(function_response=function_response)]),
    ]
    assert client.models.generate_content(model=MODEL, contents=history, config=CONFIG_WITH_TOOL).text.startswith("ok")


def test_gemini_sdk_calls_python_functions_automatically(client):
    """The SDK's own loop calls a function and sends its result."""
    paths = []

    def read(path: str) -> str:
        """Read a file."""
        paths.append(path)
        return "kelp"

    config = types.GenerateContentConfig(tools=[read])
    assert client.models.generate_content(model=MODEL, contents=CALL_TEXT, config=config).text.startswith("ok")
    assert paths == ["a.txt"]


def test_gemini_sdk_chat_is_accepted_turn_after_turn(client):
    """The SDK keeps the history itself, from plain answers and from chunks."""
    chat = client.chats.create(model=MODEL)
    assert chat.send_message("hello").text.startswith("ok")
    assert "".join(chunk.text or "" for chunk in chat.send_message_stream("again")).startswith("ok")
    assert chat.send_message("and again").text.startswith("ok")


@pytest.mark.parametrize("stream", [False, True])
def test_gemini_sdk_raises_its_error_for_an_overflow(client, stream):
    """The error has Google's words and the true numbers."""
    words = r"The input token count \(\d{4}\) exceeds the maximum number of tokens allowed \(2000\)"
    huge = {"model": MODEL, "contents": "kelp " * 3_000}
    ask = client.models.generate_content_stream if stream else client.models.generate_content
    with pytest.raises(errors.ClientError, match=words) as caught:
        list(ask(**huge))
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")


def test_gemini_sdk_raises_its_error_for_an_invalid_history(client):
    """A call without its response is refused as an invalid argument."""
    call = types.Part(function_call=types.FunctionCall(name="read", args={"path": "a"}))
    text_part = types.Part(text="and?")
    broken = [
        types.Content(role="user", parts=[text_part]),
        types.Content(role="model", parts=[call]),
        types.Content(role="user", parts=[text_part]),
    ]
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(model=MODEL, contents=broken, config=CONFIG_WITH_TOOL)
    assert caught.value.status == "INVALID_ARGUMENT"


def test_gemini_sdk_count_equals_the_reported_input(client):
    """A count is the input that the answer to the same request reports."""
    counted = client.models.count_tokens(model=MODEL, contents="hello, kelp").total_tokens
    usage = client.models.generate_content(model=MODEL, contents="hello, kelp").usage_metadata
    assert counted == usage.prompt_token_count


def test_gemini_sdk_reads_the_window_of_a_model(client):
    """The models endpoint reports the window."""
    assert client.models.get(model=MODEL).input_token_limit == 2_000
    assert f"models/{MODEL}" in [model.name for model in client.models.list()]
