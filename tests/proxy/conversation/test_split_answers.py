"""An answer that a client sends back as several messages is forwarded as the client sent it."""

from __future__ import annotations

import json

import anyio
import pytest
from msgspec.structs import replace

from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.calls import ScriptedAnswer

TURNS = 3
ANSWERS = [
    answer
    for at in range(TURNS)
    for answer in (
        ScriptedAnswer(f"I look into file {at}.", calls=(("read", {"path": f"f{at}"}),), thinking=f"hm {at}"),
        ScriptedAnswer(f"File {at} tells of kelp.", thinking=f"so {at}"),
    )
]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
FIELDS = {
    "anthropic": {"thinking": {"type": "adaptive"}, "tools": [{"name": "read", "input_schema": SCHEMA}]},
    "openai-chat": {"tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]},
    "gemini": {
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        "tools": [{"functionDeclarations": [{"name": "read", "parametersJsonSchema": SCHEMA}]}],
    },
}


def split_answer(api, answer):
    """Return an answer as a splitting client sends it back: one message for the text and one for each call."""
    value = json.loads(answer)
    if api == "openai-chat":
        message = value["choices"][0]["message"]
        calls = [
            {"role": "assistant", "content": None, "tool_calls": [call]} for call in message.get("tool_calls") or []
        ]
        return [{"role": "assistant", "content": message["content"]}, *calls]
    if api == "anthropic":
        return [{"role": "assistant", "content": [block]} for block in value["content"] if block["type"] != "thinking"]
    parts = value["candidates"][0]["content"]["parts"]
    return [
        {"role": "model", "parts": [half]} for part in parts if not part.get("thought") for half in halve_text(part)
    ]


def make_results(api, messages):
    """Return the messages with the results of the calls in ``messages``."""
    if api == "openai-chat":
        ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        return [{"role": "tool", "tool_call_id": id_, "content": "kelp"} for id_ in ids]
    if api == "anthropic":
        ids = [block["id"] for message in messages for block in message["content"] if block["type"] == "tool_use"]
        found = [{"type": "tool_result", "tool_use_id": id_, "content": "kelp"} for id_ in ids]
        return [{"role": "user", "content": found}] if found else []
    calls = [part["functionCall"] for message in messages for part in message["parts"] if "functionCall" in part]
    references = [{key: call[key] for key in ("id", "name") if key in call} for call in calls]
    found = [{"functionResponse": reference | {"response": {"output": "kelp"}}} for reference in references]
    return [{"role": "user", "parts": found}] if found else []


def halve_text(part):
    """Return a text part of Gemini as two, and any other part unchanged."""
    if "text" not in part:
        return [part]
    half = len(part["text"]) // 2
    return [part | {"text": part["text"][:half]}, {"text": part["text"][half:]}]


async def run_client(open_client, upstream, chat, turns, *, restarts=False, spaced=False, **settings):
    """Run a splitting client, with one proxy or a new one for each request, and return its requests."""
    sent, store = [], MemoryStore()

    async def ask(client):
        separators = None if spaced else (",", ":")
        sent.append(json.dumps(chat.body() | FIELDS[chat.api], separators=separators).encode())
        reply = await client.post(chat.path, sent[-1])
        assert reply.status_code == 200, reply.text
        messages = split_answer(chat.api, reply.content)
        results = make_results(chat.api, messages)
        chat.messages += messages + results
        if not results:
            chat.add_user_text("And the next?")

    chat.add_user_text("What do the files tell?")
    for _ in range(turns if restarts else 1):
        async with open_client(upstream, store, **settings) as client:
            for _ in range(1 if restarts else turns):
                await ask(client)
    assert len(list(store.list_sessions())) == 1
    return sent


@pytest.mark.parametrize("spaced", [False, True], ids=["tight", "spaced"])
@pytest.mark.parametrize("restarts", [False, True], ids=["one proxy", "restarts"])
@pytest.mark.parametrize("api", FIELDS)
def test_proxy_forwards_split_answers_byte_for_byte(api, restarts, spaced, open_client, make_upstream, make_chat):
    """An answer that comes back as several messages is not merged, omitted parts are not restored, and it stays one
    session.
    """
    answers = [answer for answer in ANSWERS if api != "gemini" or not answer.calls]  # Gemini refuses split calls
    upstream, chat = make_upstream(Provider(Strict(window=200_000), answers)), make_chat(api)
    sent = anyio.run(lambda: run_client(open_client, upstream, chat, len(answers), restarts=restarts, spaced=spaced))
    assert upstream.bodies == sent
    assert b"hm " not in b"".join(sent)


def test_proxy_merges_a_split_call_for_gemini(open_client, make_upstream, make_chat):
    """Gemini refuses a call that is split from its answer, so both are sent as one message; omitted thoughts stay
    out.
    """
    bare, fixed = (make_upstream(Provider(Strict(window=200_000), ANSWERS)) for _ in range(2))
    anyio.run(lambda: run_client(open_client, fixed, make_chat("gemini"), len(ANSWERS)))
    assert not any(b'"thought"' in body for body in fixed.bodies)
    assert all(f"I look into file {at}." not in fixed.bodies[-1].decode() for at in range(TURNS)), "the text was joined"
    with pytest.raises(AssertionError, match="function call turn"):
        anyio.run(
            lambda: run_client(
                lambda *given: open_client(*given, observe=True), bare, make_chat("gemini"), len(ANSWERS)
            )
        )


@pytest.mark.parametrize("api", FIELDS)
def test_reduced_split_answers_are_accepted_without_reasoning(api, open_client, make_upstream, make_chat):
    """Split answers that are edited and compacted in a small window are accepted by the strict provider, and no
    reasoning returns.
    """
    long = [
        replace(answer, text=answer.text + " And kelp." * 200 * (at % 3), thinking=f"hm {at}" * 50)
        for at, answer in enumerate(ANSWERS * 6)
    ]
    upstream, chat = make_upstream(Provider(Strict(window=12_000), long)), make_chat(api)
    chat.fields |= {"max_tokens": 4_000} if api == "anthropic" else {}
    sent = anyio.run(lambda: run_client(open_client, upstream, chat, len(long), window=12_000))
    assert len(upstream.bodies[-1]) < len(sent[-1]) / 2
    assert not any(b"hm " in body for body in upstream.bodies)


@pytest.mark.parametrize("api", ["anthropic", "openai-chat"])
def test_proxy_forwards_parallel_calls_sent_back_one_by_one(api, open_client, make_upstream, make_chat):
    """Parallel calls that a client sends back one by one, each with its result, are forwarded byte for byte."""
    calls = (("read", {"path": "a"}), ("read", {"path": "b"}))
    upstream = make_upstream(
        Provider(
            Strict(window=200_000),
            [ScriptedAnswer("", calls=calls, thinking="hm"), ScriptedAnswer("ok"), ScriptedAnswer("ok")],
        )
    )
    chat, sent, store = make_chat(api), [], MemoryStore()

    async def ask(client):
        sent.append(json.dumps(chat.body() | FIELDS[api]).encode())
        reply = await client.post(chat.path, sent[-1])
        assert reply.status_code == 200, reply.text
        parts = [part for part in split_answer(api, reply.content) if part["content"] or "tool_calls" in part]
        chat.messages += [message for part in parts for message in (part, *make_results(api, [part]))]

    async def scenario():
        async with open_client(upstream, store) as client:
            for text in ("What do both tell?", None, "And the next?"):
                if text is not None:
                    chat.add_user_text(text)
                await ask(client)

    anyio.run(scenario)
    assert upstream.bodies == sent
    assert len(list(store.list_sessions())) == 1


def split_into_two_texts(item):
    """Return the message of an answer, with its id, as two pieces of text."""
    (part,) = item["content"]
    return [item | {"content": [part | {"text": part["text"][:3]}, part | {"text": part["text"][3:]}]}]


def split_into_two_messages(item):
    """Return the message of an answer as two messages without ids."""
    (part,) = item["content"]
    return [{"role": "assistant", "content": text} for text in (part["text"][:3], part["text"][3:])]


@pytest.mark.parametrize("restarts", [False, True], ids=["one proxy", "restarts"])
@pytest.mark.parametrize("split", [split_into_two_texts, split_into_two_messages])
def test_proxy_forwards_complete_responses_items_unchanged(split, restarts, open_client, make_upstream, make_chat):
    """Responses ids ask for omitted items only; where nothing is missing, however it is split, the request is
    unchanged.
    """
    upstream, chat = make_upstream(Provider(Strict(window=200_000), ANSWERS[1::2])), make_chat("openai-responses")
    store, sent = MemoryStore(), []

    async def ask(client):
        chat.add_user_text("And the next?")
        sent.append(json.dumps(chat.body()).encode())
        reply = await client.post(chat.path, sent[-1])
        for item in reply.json()["output"]:
            chat.messages += split(item) if item["type"] == "message" else [item]

    async def scenario():
        for _ in range(TURNS if restarts else 1):
            async with open_client(upstream, store) as client:
                for _ in range(1 if restarts else TURNS):
                    await ask(client)

    anyio.run(scenario)
    assert upstream.bodies == sent
    assert len(list(store.list_sessions())) == 1
