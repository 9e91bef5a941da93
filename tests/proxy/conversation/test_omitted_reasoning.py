"""What a client leaves out of the answers that it sends back is not restored, unless the provider requires it."""

from __future__ import annotations

import json

import anyio
import httpx2
import pytest

from holdfast.messages.parts import Text
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry
from holdfast.store.memory import MemoryStore
from holdfast.store.tree.tree import make_entry_id
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.calls import ScriptedAnswer

ANSWERS = [ScriptedAnswer(f"High water at {hour}.", thinking=f"hm {hour}") for hour in range(6)]
FIELDS = {
    "anthropic": {"thinking": {"type": "adaptive"}},
    "openai-responses": {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {}},
    "gemini": {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
}
"""The request fields that ask for visible reasoning, by API."""


class ReasoningStream(httpx2.AsyncByteStream):
    """An answer of a compatible server with its reasoning in a ``field`` that it refuses in requests."""

    def __init__(self, field: str) -> None:
        message = {"role": "assistant", "content": "High water.", field: "hm 0"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._data = json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()

    async def __aiter__(self):
        yield self._data


def make_reasoning_server(field):
    """Return a transport that answers so, and the list of the request bodies."""
    bodies = []

    async def handle(request):
        bodies.append(await request.aread())
        return httpx2.Response(200, headers={"content-type": "application/json"}, stream=ReasoningStream(field))

    return httpx2.MockTransport(handle), bodies


def remove_reasoning(api, messages):
    """Return the messages as clients that only display reasoning send them back."""
    if api == "openai-responses":
        bare = [{key: item[key] for key in item.keys() - {"id", "status"}} for item in messages]
        return [item for item in bare if item.get("type") != "reasoning"]
    if api == "openai-chat":
        return [{key: message[key] for key in ("role", "content")} for message in messages]
    field = "parts" if api == "gemini" else "content"
    return [message | {field: _drop_reasoning_parts(message[field])} for message in messages]


def _drop_reasoning_parts(content):
    """Return the parts that are not reasoning."""
    if isinstance(content, str):
        return content
    return [part for part in content if not part.get("thought") and part.get("type") != "thinking"]


async def run_client(open_client, upstream, chat, *, restarts):
    """Run four turns of a client that sends no reasoning back, with one proxy or a new one for each; return its
    requests.
    """
    sent, store = [], MemoryStore()

    async def ask(client):
        chat.add_user_text(f"When, on day {len(sent)}?")
        sent.append(json.dumps(chat.body()).encode())
        reply = await client.post(chat.path, sent[-1])
        assert reply.status_code == 200, reply.text
        assert b"hm " in reply.content, "the answer has no reasoning"
        chat.add_answer(reply.content)
        chat.messages[:] = remove_reasoning(chat.api, chat.messages)

    for _ in range(4 if restarts else 1):
        async with open_client(upstream, store) as client:
            for _ in range(1 if restarts else 4):
                await ask(client)
    assert len(list(store.list_sessions())) == 1
    return sent


@pytest.mark.parametrize("restarts", [False, True], ids=["one proxy", "restarts"])
@pytest.mark.parametrize("api", FIELDS)
def test_proxy_does_not_restore_omitted_reasoning(api, restarts, open_client, make_upstream, make_chat):
    """Every request is forwarded byte for byte, because a server may refuse the id of an item it did not keep."""
    upstream, chat = make_upstream(Provider(Strict(window=200_000), ANSWERS)), make_chat(api)
    extra = FIELDS[api]
    body = chat.body
    chat.body = lambda: body() | extra
    assert anyio.run(lambda: run_client(open_client, upstream, chat, restarts=restarts)) == upstream.bodies


CHANGES = {
    "setup": ({"system": "You are at home."}, {"system": "You are at sea."}),
    "model": ({}, {"model": "claude-opus-5-0"}),
}


@pytest.mark.parametrize("restarts", [False, True], ids=["one proxy", "restarts"])
@pytest.mark.parametrize("change", CHANGES)
def test_proxy_changes_nothing_when_setup_or_model_changes_without_reasoning(
    change, restarts, open_client, make_upstream, make_chat
):
    """Reasoning bound to another setup or model is refused; where none is sent back, no byte changes."""
    upstream, chat = make_upstream(Provider(Strict(window=200_000), ANSWERS)), make_chat("anthropic")
    body, extra = chat.body, {**FIELDS["anthropic"], "model": "claude-opus-5-5"}
    chat.body = lambda: body() | extra | CHANGES[change][len(chat.messages) > 4]
    assert anyio.run(lambda: run_client(open_client, upstream, chat, restarts=restarts)) == upstream.bodies


@pytest.mark.parametrize("restarts", [False, True], ids=["one proxy", "restarts"])
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_proxy_does_not_send_back_reasoning_fields(field, restarts, open_client, make_chat):
    """Compatible servers return reasoning in a field that they refuse in a request."""
    server, bodies = make_reasoning_server(field)
    assert anyio.run(lambda: run_client(open_client, server, make_chat("openai-chat"), restarts=restarts)) == bodies


TOOL = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = {
    "openai-responses": [{"type": "function", "name": "read", "parameters": TOOL}],
    "gemini": [{"functionDeclarations": [{"name": "read", "parametersJsonSchema": TOOL}]}],
}


def add_tool_result(api, messages):
    """Return the messages with the call as clients without signatures send it back, and its result."""
    if api == "openai-responses":
        kept = [item for item in messages if item.get("type") != "reasoning"]
        return [*kept, {"type": "function_call_output", "call_id": kept[-1]["call_id"], "output": "ok"}]
    *before, last = messages
    (call,) = parts = [{"functionCall": part["functionCall"]} for part in last["parts"] if "functionCall" in part]
    reply = {"name": "read", "response": {"result": "ok"}} | {
        key: call["functionCall"][key] for key in call["functionCall"].keys() & {"id"}
    }
    return [*before, {"role": "model", "parts": parts}, {"role": "user", "parts": [{"functionResponse": reply}]}]


@pytest.mark.parametrize("api", TOOLS)
def test_proxy_restores_reasoning_the_provider_requires(api, open_client, make_upstream, make_chat):
    """A Responses item with an id needs its reasoning and a Gemini call its signature, so the session adds them."""
    call = ScriptedAnswer("", calls=(("read", {"path": "x"}),), thinking="hm")
    upstream, chat = make_upstream(Provider(Strict(window=200_000), [call, ScriptedAnswer("ok")])), make_chat(api)

    async def scenario():
        async with open_client(upstream) as client:
            chat.add_user_text("Read it.")
            first = await client.post(chat.path, json.dumps(body()).encode())
            chat.add_answer(first.content)
            chat.messages[:] = add_tool_result(api, chat.messages)
            return [first, await client.post(chat.path, json.dumps(body()).encode())]

    def body():
        return chat.body() | FIELDS[api] | {"tools": TOOLS[api]}

    assert [reply.status_code for reply in anyio.run(scenario)] == [200, 200]
    assert upstream.bodies[-1] != json.dumps(body()).encode()


# -- edits -------------------------------------------------------------------------------------------------------------

SHORT = "(shortened)"
SPLITS = {
    "anthropic": lambda message: [message | {"content": [block]} for block in message["content"]],
    "openai-chat": lambda message: [
        message | {"content": text} for text in (message["content"][:4], message["content"][4:])
    ],
    "gemini": lambda message: [message | {"parts": [part]} for part in message["parts"]],
    "openai-responses": lambda item: [item],
}
"""Split an answer into several messages, by API; in Responses it always is."""


def record_short_edit(store):
    """Record an edit that replaces the text of the answer in ``store``."""
    (info,) = store.list_sessions()
    messages = [
        entry.body.sized_message.message
        for entry in store.read_path(info.key, info.leaf_id)
        if isinstance(entry.body, MessageEntry)
    ]
    at = next(place for place, part in enumerate(messages[1].parts) if isinstance(part, Text))
    store.append_entries(
        info.key, [Entry(make_entry_id(), info.leaf_id, DecisionEntry((Edit(Span(1, 2, at), (Text(SHORT),), "test"),)))]
    )


async def send_with_edit(open_client, upstream, chat, extra, *, pieces):
    """Return the first answer and the client's next request, for which an edit shortens that answer."""
    store, bodies = MemoryStore(), []

    async def ask():
        async with open_client(upstream, store) as client:
            bodies.append(chat.body() | extra)
            reply = await client.post(chat.path, bodies[-1])
            assert reply.status_code == 200, reply.text
            return reply.content

    chat.add_user_text("When?")
    first = await ask()
    chat.add_answer(first)
    chat.messages[:] = remove_reasoning(chat.api, chat.messages)
    chat.messages[1:] = [
        part for message in chat.messages[1:] for part in (SPLITS[chat.api](message) if pieces else [message])
    ]
    chat.add_user_text("And then?")
    record_short_edit(store)
    await ask()
    return first, bodies[-1]


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize("api", FIELDS)
def test_edit_of_a_message_restores_no_reasoning(api, pieces, open_client, make_upstream, make_chat):
    """What a client left out of a message stays out when an edit of ours changes another part of it."""
    upstream, chat = make_upstream(Provider(Strict(window=200_000, accepted_seals="any"), ANSWERS)), make_chat(api)
    first, _ = anyio.run(lambda: send_with_edit(open_client, upstream, chat, FIELDS[api], pieces=pieces))
    sent = upstream.bodies[-1]
    assert (b"hm 0" in first, b"hm 0" in sent) == (True, False)
    assert (SHORT.encode() in sent, b"at 0" in sent) == (True, False)
    assert b'"type":"reasoning"' not in sent
    assert not {b"msg_", b"rs_"} & {sent[at : at + 4] for at in range(len(sent))}, "an id of an omitted item was sent"


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_edit_of_a_message_restores_no_reasoning_field(field, pieces, open_client, make_chat):
    """An edit does not send back the reasoning field of a compatible server."""
    server, bodies = make_reasoning_server(field)
    _, request = anyio.run(lambda: send_with_edit(open_client, server, make_chat("openai-chat"), {}, pieces=pieces))
    before, after = request["messages"][0], request["messages"][-1]
    assert json.loads(bodies[-1])["messages"] == [before, {"role": "assistant", "content": SHORT}, after]
