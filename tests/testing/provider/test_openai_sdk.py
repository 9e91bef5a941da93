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
CHAT = {"model": MODEL, "messages": HELLO, "tools": [CHAT_TOOL]}
RESPONSES = {"model": MODEL, "input": "hello", "tools": [TOOL], "reasoning": {"effort": "low", "summary": "auto"}}
STATELESS = {"model": MODEL, "store": False, "include": ["reasoning.encrypted_content"], "tools": [TOOL]}


@pytest.fixture(scope="module")
def client():
    """The SDK, pointed at a strict provider with a small window."""
    with (
        serve_provider(Provider(ProviderSettings(window=2_000))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as one,
    ):
        yield one


@pytest.fixture
def scripted():
    """Return what a fresh provider that says the script answers to one question."""

    def ask(question):
        with serve_provider(Provider(script=SCRIPT)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
            return question(client)

    return ask


def without_nothing(value):
    """Return JSON without the fields that are null or the SDK's own."""
    if isinstance(value, dict):
        own = ("parsed", "parsed_arguments")
        return {key: without_nothing(held) for key, held in value.items() if held is not None and key not in own}
    return [without_nothing(one) for one in value] if isinstance(value, list) else value


# -- Chat Completions --------------------------------------------------------------------------------------------------


def test_chat_plain(client):
    """A completion comes as the SDK's own type."""
    found = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert ChatCompletion.model_validate_json(found.to_json()).choices[0].message.content.startswith("ok")
    assert (found.choices[0].finish_reason, found.usage.prompt_tokens > 0) == ("stop", True)
    assert found._request_id.startswith("req_")


def test_a_chat_stream_makes_the_same_completion(scripted):
    """What the SDK puts together from chunks is what it gets in one piece, calls and usage too."""
    plain = scripted(lambda client: client.chat.completions.create(**CHAT))

    def streamed(client):
        with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream:
            return stream.get_final_completion()

    whole = without_nothing(scripted(streamed).to_dict(mode="json"))
    for call in whole["choices"][0]["message"]["tool_calls"]:
        del call["index"]
    expected = without_nothing(plain.to_dict(mode="json"))
    del expected["choices"][0]["message"]["annotations"]
    assert whole == expected
    assert plain.choices[0].finish_reason == "tool_calls"
    assert plain.choices[0].message.content == LONG


def test_every_chunk_is_one_of_the_sdk(client):
    """Each chunk is of the SDK's type, and only the last one has usage."""
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(chunk.to_json())
    assert [chunk.usage is not None for chunk in chunks] == [*[False] * (len(chunks) - 1), True]


def test_a_chat_tool_loop(client):
    """A call, its result, and the answer to it, with the message sent back as the SDK holds it."""
    history = [{"role": "user", "content": 'call read {"path": "a.txt"}'}]
    asked = client.chat.completions.create(model=MODEL, messages=history, tools=[CHAT_TOOL]).choices[0]
    [call] = asked.message.tool_calls
    assert (asked.finish_reason, call.function.arguments.replace(" ", "")) == ("tool_calls", '{"path":"a.txt"}')
    history += [asked.message, {"role": "tool", "tool_call_id": call.id, "content": "kelp"}]
    answer = client.chat.completions.create(model=MODEL, messages=history, tools=[CHAT_TOOL]).choices[0]
    assert (answer.finish_reason, answer.message.content[:2]) == ("stop", "ok")


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_overflow(client, stream):
    """An overflow is the SDK's own error, with OpenAI's code and words and true numbers."""
    words = r"maximum context length is 2000 tokens. However, your messages resulted in \d{4} tokens"
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": HUGE}], stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_a_broken_chat_history(client):
    """A history that the API refuses is refused in its words."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    broken = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "and?"}]
    with pytest.raises(openai.BadRequestError, match="must be followed by tool messages"):
        client.chat.completions.create(model=MODEL, messages=broken)


# -- Responses ---------------------------------------------------------------------------------------------------------


def test_responses_plain(client):
    """A response comes as the SDK's own type."""
    found = client.responses.create(model=MODEL, input="hello", instructions="Be brief.")
    assert Response.model_validate_json(found.to_json()).output_text.startswith("ok")
    assert (found.status, found.instructions, found.usage.input_tokens > 0) == ("completed", "Be brief.", True)


def test_a_response_stream_makes_the_same_response(scripted):
    """What the SDK puts together from events is what it gets in one piece: reasoning, text, calls and usage."""
    plain = scripted(lambda client: client.responses.create(**RESPONSES))

    def streamed(client):
        with client.responses.stream(**RESPONSES) as stream:
            kinds = {event.type for event in stream}
            return stream.get_final_response(), kinds

    whole, kinds = scripted(streamed)
    assert without_nothing(whole.to_dict(mode="json")) == without_nothing(plain.to_dict(mode="json"))
    assert [item.type for item in plain.output] == ["reasoning", "message", "function_call", "function_call"]
    assert plain.output_text == LONG
    assert {"response.output_text.delta", "response.function_call_arguments.done"} <= kinds
    assert "response.reasoning_summary_text.delta" in kinds


def test_every_event_is_one_of_the_sdk(scripted):
    """Each event of a raw stream is one of the SDK's types."""
    check = TypeAdapter(ResponseStreamEvent)
    events = scripted(lambda client: list(client.responses.create(**RESPONSES, stream=True)))
    for event in events:
        check.validate_json(event.to_json())
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")


def test_a_response_tool_loop(client):
    """A call, its output, and the answer to it, the items sent back as the SDK holds them."""
    history = [{"role": "user", "content": 'call read {"path": "a.txt"}'}]
    asked = client.responses.create(input=history, reasoning={"effort": "low"}, **STATELESS)
    [call] = [item for item in asked.output if item.type == "function_call"]
    history += [*asked.output, {"type": "function_call_output", "call_id": call.call_id, "output": "kelp"}]
    answer = client.responses.create(input=history, reasoning={"effort": "low"}, **STATELESS)
    assert answer.output_text.startswith("ok")
    assert asked.output[0].type == "reasoning"


def test_a_response_that_goes_on(client):
    """With ``previous_response_id`` the provider knows what was said, and only what is new is sent."""
    asked = client.responses.create(model=MODEL, input='call read {"path": "a.txt"}', tools=[TOOL])
    [call] = [item for item in asked.output if item.type == "function_call"]
    output = [{"type": "function_call_output", "call_id": call.call_id, "output": "kelp"}]
    answer = client.responses.create(model=MODEL, input=output, previous_response_id=asked.id, tools=[TOOL])
    assert answer.output_text.startswith("ok")
    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        client.responses.create(model=MODEL, input=output, tools=[TOOL])


def test_a_response_overflow(client):
    """An overflow is the SDK's own error, with OpenAI's code."""
    with pytest.raises(openai.BadRequestError, match=r"exceeds the context window|context length") as caught:
        client.responses.create(model=MODEL, input=HUGE)
    assert caught.value.code == "context_length_exceeded"


def test_a_response_that_fails_in_its_stream():
    """An overflow that is told after HTTP 200 ends the stream with a response that failed."""
    settings = ProviderSettings(window=2_000, overflow="stream")
    with serve_provider(Provider(settings)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        *_, last = client.responses.create(model=MODEL, input=HUGE, stream=True)
    assert (last.type, last.response.error.code) == ("response.failed", "context_length_exceeded")


def test_compaction(client):
    """A compaction gives the user's messages and one item for the rest, which are the next input as they are."""
    done = client.responses.compact(model=MODEL, input=[*HELLO, {"role": "user", "content": "It is under the kelp."}])
    assert [item.type for item in done.output] == ["message", "message", "compaction"]
    assert done.usage.total_tokens > done.usage.output_tokens > 0
    # The SDK has no type for a user's message among output items, and says so when one is written.
    items = [item.to_dict(warnings=False) for item in done.output]
    answer = client.responses.create(model=MODEL, input=[*items, {"role": "user", "content": "go on"}])
    assert answer.output_text.startswith("ok")


def test_counting(client):
    """A count is the input that the answer to the same request reports."""
    counted = client.responses.input_tokens.count(model=MODEL, input="hello", instructions="Be brief.").input_tokens
    assert counted == client.responses.create(model=MODEL, input="hello", instructions="Be brief.").usage.input_tokens


def test_models(client):
    """Models are listed, and one can be had."""
    assert client.models.retrieve(MODEL).id == MODEL
    assert MODEL in [model.id for model in client.models.list()]
