"""Anthropic's own SDK as a client of the strict provider."""

from __future__ import annotations

import asyncio

import anthropic
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from pydantic import TypeAdapter

from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings

MODEL = "claude-opus-5-5"
TOOL = {
    "name": "read",
    "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
HELLO = [{"role": "user", "content": "hello"}]
LONG = "Kelp grows where rock and light meet, 海藻 too; " * 40
SCRIPT = [
    ScriptedAnswer(
        LONG, (("read", {"path": "a/b.txt", "lines": [1, 2]}), ("read", {"path": "c"})), "Where is the file?"
    )
]
PLAIN = {"model": MODEL, "max_tokens": 4_000, "messages": HELLO, "tools": [TOOL], "thinking": {"type": "adaptive"}}


@pytest.fixture(scope="module")
def url():
    """Serve a strict provider with a small window and return its URL."""
    with serve_provider(Provider(ProviderSettings(window=2_000))) as base:
        yield base


@pytest.fixture(scope="module")
def client(url):
    """Return the SDK client of that provider."""
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as sdk_client:
        yield sdk_client


def validate_strictly(message):
    """Return the message as its SDK type validates its JSON strictly."""
    return type(message).model_validate_json(message.to_json())


def test_anthropic_sdk_parses_a_message(client):
    """The message validates as the SDK's own type."""
    message = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO)
    assert validate_strictly(message).content[0].text.startswith("ok")
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", MODEL)
    assert message.usage.input_tokens > 0
    assert message._request_id.startswith("req_")


@pytest.fixture
def ask_scripted_provider():
    """Return a function that asks a fresh provider with the script."""

    def ask(question):
        with serve_provider(Provider(script=SCRIPT)) as url, anthropic.Anthropic(base_url=url, api_key="k") as client:
            return question(client)

    return ask


def test_anthropic_sdk_stream_equals_the_whole_message(ask_scripted_provider):
    """The message put together from events has the same text, thinking, calls and usage."""

    def read_stream(client):
        with client.messages.stream(**PLAIN) as stream:
            kinds = {event.type for event in stream}
            return stream.get_final_message(), kinds

    plain = validate_strictly(ask_scripted_provider(lambda client: client.messages.create(**PLAIN)))
    streamed, kinds = ask_scripted_provider(read_stream)
    assert Message.model_validate_json(streamed.to_json()).to_dict(exclude_none=True) == plain.to_dict(
        exclude_none=True
    )
    assert [block.type for block in plain.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (plain.stop_reason, plain.content[2].input) == ("tool_use", {"path": "a/b.txt", "lines": [1, 2]})
    assert {"text", "thinking", "signature", "input_json", "message_stop"} <= kinds


def test_anthropic_sdk_parses_every_event(client):
    """Each event of a raw stream validates as one of the SDK's types."""
    check = TypeAdapter(RawMessageStreamEvent)
    events = list(client.messages.create(model=MODEL, max_tokens=50, messages=HELLO, stream=True))
    for event in events:
        check.validate_json(event.to_json())
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")


def test_anthropic_sdk_runs_a_tool_turn(client):
    """A call, its result and the answer work with the SDK's own content sent back."""
    history = [{"role": "user", "content": 'call read {"path": "a.txt"}'}]
    call_message = client.messages.create(model=MODEL, max_tokens=100, messages=history, tools=[TOOL])
    [call] = [block for block in call_message.content if block.type == "tool_use"]
    assert (call_message.stop_reason, call.input) == ("tool_use", {"path": "a.txt"})
    history += [
        {"role": "assistant", "content": call_message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "kelp"}]},
    ]
    answer = client.messages.create(model=MODEL, max_tokens=100, messages=history, tools=[TOOL])
    assert (answer.stop_reason, answer.content[0].text[:2]) == ("end_turn", "ok")


def test_anthropic_sdk_thinking_is_accepted_until_its_prefix_is_edited(client):
    """Streamed thinking is accepted unchanged, and refused once the history before it was edited."""
    settings = {"model": MODEL, "max_tokens": 200, "thinking": {"type": "adaptive"}}
    with client.messages.stream(messages=HELLO, **settings) as stream:
        answer = stream.get_final_message()
    assert answer.content[0].type == "thinking"
    later_messages = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "go on"}]
    assert client.messages.create(messages=[*HELLO, *later_messages], **settings).stop_reason == "end_turn"
    edited = [{"role": "user", "content": "goodbye"}]
    with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
        client.messages.create(messages=[*edited, *later_messages], **settings)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_sdk_raises_its_error_for_an_overflow(client, stream):
    """The error has Anthropic's words and the true numbers."""
    huge = [{"role": "user", "content": "kelp " * 3_000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d{4} tokens > 2000 maximum") as caught:
        client.messages.create(model=MODEL, max_tokens=50, messages=huge, stream=stream)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id.startswith("req_")


def test_anthropic_sdk_raises_its_error_for_an_invalid_history(client):
    """A call without its result is refused in the API's words."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    broken = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": "and?"}]
    with pytest.raises(anthropic.BadRequestError, match="`tool_use` ids were found without `tool_result` blocks"):
        client.messages.create(model=MODEL, max_tokens=50, messages=broken, tools=[TOOL])


def test_anthropic_sdk_count_equals_the_reported_input(client):
    """A count is the input that the answer to the same request reports."""
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.").input_tokens
    usage = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO, system="Be brief.").usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_anthropic_sdk_reads_the_window_of_a_model(client):
    """The models endpoint reports the window."""
    model = client.models.retrieve(MODEL)
    assert ModelInfo.model_validate_json(model.to_json()).max_input_tokens == 2_000
    assert MODEL in [listed.id for listed in client.models.list()]


def test_anthropic_sdk_reads_cached_tokens():
    """Cached tokens are reported in the SDK's fields."""
    system = [{"type": "text", "text": "Rocks and kelp. " * 600, "cache_control": {"type": "ephemeral"}}]
    with serve_provider(Provider()) as url, anthropic.Anthropic(base_url=url, api_key="k") as client:
        first, second = (
            client.messages.create(model=MODEL, max_tokens=50, system=system, messages=HELLO).usage for _ in range(2)
        )
    assert first.cache_creation_input_tokens == second.cache_read_input_tokens > 1_024
    assert second.cache_creation_input_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_sdk_compacts_on_demand(client, stream):
    """The compaction is one block, which opens the next request."""
    history = [
        *HELLO,
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "The key is under the kelp."},
    ]
    options = {"model": MODEL, "max_tokens": 500, "betas": ["compact-2026-09-04"]}
    if stream:
        with client.beta.messages.stream(messages=history, compaction={"type": "summarize"}, **options) as events:
            compacted = events.get_final_message()
    else:
        compacted = client.beta.messages.create(messages=history, compaction={"type": "summarize"}, **options)
    assert ([block.type for block in compacted.content], compacted.stop_reason) == (["compaction"], "compaction")
    assert (compacted.usage.iterations[0].type, compacted.usage.input_tokens) == ("compaction", 0)
    after = [{"role": "assistant", "content": compacted.content}, {"role": "user", "content": "go on"}]
    assert client.beta.messages.create(messages=after, **options).stop_reason == "end_turn"


def test_anthropic_async_sdk_gets_the_same_answers(url):
    """The asynchronous SDK gets the same."""

    async def run_scenario():
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            options = {"model": MODEL, "max_tokens": 50, "messages": HELLO}
            plain, counted = await asyncio.gather(
                client.messages.create(**options), client.messages.count_tokens(model=MODEL, messages=HELLO)
            )
            async with client.messages.stream(**options) as stream:
                return plain, counted, await stream.get_final_message()

    plain, counted, streamed = asyncio.run(run_scenario())
    assert plain.content[0].text.startswith("ok")
    assert streamed.content[0].text.startswith("ok")
    assert counted.input_tokens > 0


def test_anthropic_sdk_retries_529_but_not_401():
    """The SDK retries as with the real provider, and raises what it cannot retry."""
    faults = [Fault("529", at=1), Fault("401", at=3)]
    with (
        serve_provider(Provider(), faults) as url,
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=1) as client,
    ):
        assert client.messages.create(model=MODEL, max_tokens=50, messages=HELLO).stop_reason == "end_turn"
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            client.messages.create(model=MODEL, max_tokens=50, messages=HELLO)
