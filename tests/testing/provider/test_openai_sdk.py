"""OpenAI's own SDK as a client of the strict provider: Chat Completions and Responses."""

from __future__ import annotations

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings

MODEL = "gpt-5.6-sol"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CHAT_TOOL = {"type": "function", "function": {"name": "read", "description": "Read.", "parameters": PARAMETERS}}
TOOL = {"type": "function", "name": "read", "description": "Read.", "parameters": PARAMETERS, "strict": False}
HELLO = [{"role": "user", "content": "hello"}]
LONG = "Kelp grows where rock and light meet, 海藻 too; " * 40
SCRIPT = [
    ScriptedAnswer(
        LONG, (("read", {"path": "a/b.txt", "lines": [1, 2]}), ("read", {"path": "c"})), "Where is the file?"
    )
]
HUGE = "kelp " * 3_000
CHAT = {"model": MODEL, "messages": HELLO, "tools": [CHAT_TOOL], "reasoning_effort": "none"}
RESPONSES = {"model": MODEL, "input": "hello", "tools": [TOOL], "reasoning": {"effort": "low", "summary": "auto"}}
STATELESS = {"model": MODEL, "store": False, "include": ["reasoning.encrypted_content"], "tools": [TOOL]}


@pytest.fixture(scope="module")
def client():
    """Return the SDK client of a strict provider with a small window."""
    with (
        serve_provider(Provider(ProviderSettings(window=2_000))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as sdk_client,
    ):
        yield sdk_client


@pytest.fixture
def ask_scripted_provider():
    """Return a function that asks a fresh provider with the script."""

    def ask(question):
        with serve_provider(Provider(script=SCRIPT)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
            return question(client)

    return ask


def drop_null_fields(value):
    """Return a JSON value without fields that are null or added by the SDK."""
    if isinstance(value, dict):
        sdk_fields = ("parsed", "parsed_arguments")
        return {
            key: drop_null_fields(item) for key, item in value.items() if item is not None and key not in sdk_fields
        }
    return [drop_null_fields(element) for element in value] if isinstance(value, list) else value


# -- Chat Completions --------------------------------------------------------------------------------------------------


def test_openai_sdk_parses_a_chat_completion(client):
    """The completion validates as the SDK's own type."""
    completion = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert ChatCompletion.model_validate_json(completion.to_json()).choices[0].message.content.startswith("ok")
    assert (completion.choices[0].finish_reason, completion.usage.prompt_tokens > 0) == ("stop", True)
    assert completion._request_id.startswith("req_")


def test_openai_sdk_chat_stream_equals_the_whole_completion(ask_scripted_provider):
    """The completion put together from chunks has the same text, calls and usage."""
    plain = ask_scripted_provider(lambda client: client.chat.completions.create(**CHAT))

    def read_stream(client):
        with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream:
            return stream.get_final_completion()

    streamed = drop_null_fields(ask_scripted_provider(read_stream).to_dict(mode="json"))
    for call in streamed["choices"][0]["message"]["tool_calls"]:
        del call["index"]
    expected = drop_null_fields(plain.to_dict(mode="json"))
    del expected["choices"][0]["message"]["annotations"]
    assert streamed == expected
    assert plain.choices[0].finish_reason == "tool_calls"
    assert plain.choices[0].message.content == LONG


def test_openai_sdk_parses_every_chat_chunk(client):
    """Each chunk validates as the SDK's type, and only the last one has usage."""
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(chunk.to_json())
    assert [chunk.usage is not None for chunk in chunks] == [*[False] * (len(chunks) - 1), True]


def test_openai_sdk_runs_a_chat_tool_turn(client):
    """A call, its result and the answer work with the SDK's own message sent back."""
    history = [{"role": "user", "content": 'call read {"path": "a.txt"}'}]
    call_choice = client.chat.completions.create(**{**CHAT, "messages": history}).choices[0]
    [call] = call_choice.message.tool_calls
    assert (call_choice.finish_reason, call.function.arguments.replace(" ", "")) == ("tool_calls", '{"path":"a.txt"}')
    history += [call_choice.message, {"role": "tool", "tool_call_id": call.id, "content": "kelp"}]
    answer = client.chat.completions.create(**{**CHAT, "messages": history}).choices[0]
    assert (answer.finish_reason, answer.message.content[:2]) == ("stop", "ok")


@pytest.mark.parametrize("stream", [False, True])
def test_openai_sdk_raises_its_error_for_a_chat_overflow(client, stream):
    """The error has OpenAI's code, words and the true numbers."""
    words = r"maximum context length is 2000 tokens. However, your messages resulted in \d{4} tokens"
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": HUGE}], stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_openai_sdk_raises_its_error_for_an_invalid_chat_history(client):
    """A call without its tool message is refused in the API's words."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    broken = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "and?"}]
    with pytest.raises(openai.BadRequestError, match="must be followed by tool messages"):
        client.chat.completions.create(model=MODEL, messages=broken)


# -- Responses ---------------------------------------------------------------------------------------------------------


def test_openai_sdk_parses_a_response(client):
    """The response validates as the SDK's own type."""
    response = client.responses.create(model=MODEL, input="hello", instructions="Be brief.")
    assert Response.model_validate_json(response.to_json()).output_text.startswith("ok")
    assert (response.status, response.instructions, response.usage.input_tokens > 0) == ("completed", "Be brief.", True)


def test_openai_sdk_response_stream_equals_the_whole_response(ask_scripted_provider):
    """The response put together from events has the same reasoning, text, calls and usage."""
    plain = ask_scripted_provider(lambda client: client.responses.create(**RESPONSES))

    def read_stream(client):
        with client.responses.stream(**RESPONSES) as stream:
            kinds = {event.type for event in stream}
            return stream.get_final_response(), kinds

    streamed, kinds = ask_scripted_provider(read_stream)
    assert drop_null_fields(streamed.to_dict(mode="json")) == drop_null_fields(plain.to_dict(mode="json"))
    assert [item.type for item in plain.output] == ["reasoning", "message", "function_call", "function_call"]
    assert plain.output_text == LONG
    assert {"response.output_text.delta", "response.function_call_arguments.done"} <= kinds
    assert "response.reasoning_summary_text.delta" in kinds


def test_openai_sdk_parses_every_response_event(ask_scripted_provider):
    """Each event of a raw stream validates as one of the SDK's types."""
    check = TypeAdapter(ResponseStreamEvent)
    events = ask_scripted_provider(lambda client: list(client.responses.create(**RESPONSES, stream=True)))
    for event in events:
        check.validate_json(event.to_json())
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")


def test_openai_sdk_runs_a_responses_tool_turn(client):
    """A call, its output and the answer work with the SDK's own items sent back."""
    history = [{"role": "user", "content": 'call read {"path": "a.txt"}'}]
    call_response = client.responses.create(input=history, reasoning={"effort": "low"}, **STATELESS)
    [call] = [item for item in call_response.output if item.type == "function_call"]
    history += [*call_response.output, {"type": "function_call_output", "call_id": call.call_id, "output": "kelp"}]
    answer = client.responses.create(input=history, reasoning={"effort": "low"}, **STATELESS)
    assert answer.output_text.startswith("ok")
    assert call_response.output[0].type == "reasoning"


def test_openai_sdk_continues_with_previous_response_id(client):
    """The provider knows the earlier items, so only new ones are sent."""
    call_response = client.responses.create(model=MODEL, input='call read {"path": "a.txt"}', tools=[TOOL])
    [call] = [item for item in call_response.output if item.type == "function_call"]
    output = [{"type": "function_call_output", "call_id": call.call_id, "output": "kelp"}]
    answer = client.responses.create(model=MODEL, input=output, previous_response_id=call_response.id, tools=[TOOL])
    assert answer.output_text.startswith("ok")
    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        client.responses.create(model=MODEL, input=output, tools=[TOOL])


def test_openai_sdk_raises_its_error_for_a_response_overflow(client):
    """The error has OpenAI's code."""
    with pytest.raises(openai.BadRequestError, match=r"exceeds the context window|context length") as caught:
        client.responses.create(model=MODEL, input=HUGE)
    assert caught.value.code == "context_length_exceeded"


def test_openai_sdk_reads_an_overflow_inside_a_stream():
    """An overflow after status 200 ends the stream with a failed response."""
    settings = ProviderSettings(window=2_000, overflow="stream")
    with serve_provider(Provider(settings)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        *_, last = client.responses.create(model=MODEL, input=HUGE, stream=True)
    assert (last.type, last.response.error.code) == ("response.failed", "context_length_exceeded")


def test_openai_sdk_compacts_a_response(client):
    """A compaction is the user messages and one item for the rest, and is valid as the next input."""
    compacted = client.responses.compact(
        model=MODEL, input=[*HELLO, {"role": "user", "content": "It is under the kelp."}]
    )
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert compacted.usage.total_tokens > compacted.usage.output_tokens > 0
    # The SDK has no type for a user's message among output items, and says so when one is written.
    items = [item.to_dict(warnings=False) for item in compacted.output]
    answer = client.responses.create(model=MODEL, input=[*items, {"role": "user", "content": "go on"}])
    assert answer.output_text.startswith("ok")


def test_openai_sdk_count_equals_the_reported_input(client):
    """A count is the input that the answer to the same request reports."""
    counted = client.responses.input_tokens.count(model=MODEL, input="hello", instructions="Be brief.").input_tokens
    assert counted == client.responses.create(model=MODEL, input="hello", instructions="Be brief.").usage.input_tokens


def test_openai_sdk_lists_and_retrieves_models(client):
    """A listed model can be retrieved by its id."""
    assert client.models.retrieve(MODEL).id == MODEL
    assert MODEL in [model.id for model in client.models.list()]
