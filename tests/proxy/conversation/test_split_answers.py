"""One answer that comes back as several messages, as some clients send it, goes up as they sent it."""

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
    said
    for at in range(TURNS)
    for said in (
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


def heard(api, answer):
    """Return an answer as the messages that such a client sends back: one for its words and one for each call."""
    told = json.loads(answer)
    if api == "openai-chat":
        message = told["choices"][0]["message"]
        calls = [{"role": "assistant", "content": None, "tool_calls": [one]} for one in message.get("tool_calls") or []]
        return [{"role": "assistant", "content": message["content"]}, *calls]
    if api == "anthropic":
        return [{"role": "assistant", "content": [one]} for one in told["content"] if one["type"] != "thinking"]
    parts = told["candidates"][0]["content"]["parts"]
    return [{"role": "model", "parts": [one]} for part in parts if not part.get("thought") for one in halves(part)]


def results(api, said):
    """Return the messages with the results of the calls in ``said``."""
    if api == "openai-chat":
        ids = [call["id"] for one in said for call in one.get("tool_calls", ())]
        return [{"role": "tool", "tool_call_id": id_, "content": "kelp"} for id_ in ids]
    if api == "anthropic":
        ids = [block["id"] for one in said for block in one["content"] if block["type"] == "tool_use"]
        found = [{"type": "tool_result", "tool_use_id": id_, "content": "kelp"} for id_ in ids]
        return [{"role": "user", "content": found}] if found else []
    calls = [part["functionCall"] for one in said for part in one["parts"] if "functionCall" in part]
    known = [{key: one[key] for key in ("id", "name") if key in one} for one in calls]
    found = [{"functionResponse": one | {"response": {"output": "kelp"}}} for one in known]
    return [{"role": "user", "parts": found}] if found else []


def halves(part):
    """Return a part of Gemini as two, where it is words."""
    if "text" not in part:
        return [part]
    half = len(part["text"]) // 2
    return [part | {"text": part["text"][:half]}, {"text": part["text"][half:]}]


async def talked(open_client, upstream, chat, turns, *, restarts=False, spaced=False, **given):
    """Return the requests of such a client, to a proxy that begins anew before each or not."""
    sent, store = [], MemoryStore()

    async def ask(client):
        separators = None if spaced else (",", ":")
        sent.append(json.dumps(chat.body() | FIELDS[chat.api], separators=separators).encode())
        reply = await client.post(chat.path, sent[-1])
        assert reply.status_code == 200, reply.text
        said = heard(chat.api, reply.content)
        answers = results(chat.api, said)
        chat.messages += said + answers
        if not answers:
            chat.add_user_text("And the next?")

    chat.add_user_text("What do the files tell?")
    for _ in range(turns if restarts else 1):
        async with open_client(upstream, store, **given) as client:
            for _ in range(1 if restarts else turns):
                await ask(client)
    assert len(list(store.list_sessions())) == 1
    return sent


@pytest.mark.parametrize("spaced", [False, True], ids=["tight", "spaced"])
@pytest.mark.parametrize("restarts", [False, True], ids=["on", "anew"])
@pytest.mark.parametrize("api", FIELDS)
def test_proxy_forwards_split_answers_byte_for_byte(api, restarts, spaced, open_client, make_upstream, make_chat):
    """An answer that comes back as several messages is not merged, omitted parts are not restored, and it stays one
    session.
    """
    answers = [one for one in ANSWERS if api != "gemini" or not one.calls]  # its provider takes none in pieces
    upstream, chat = make_upstream(Provider(Strict(window=200_000), answers)), make_chat(api)
    sent = anyio.run(lambda: talked(open_client, upstream, chat, len(answers), restarts=restarts, spaced=spaced))
    assert upstream.bodies == sent
    assert b"hm " not in b"".join(sent)


def test_proxy_merges_a_split_call_for_gemini(open_client, make_upstream, make_chat):
    """Gemini refuses a call that is split from its answer, so both are sent as one message; omitted thoughts stay
    out.
    """
    bare, mended = (make_upstream(Provider(Strict(window=200_000), ANSWERS)) for _ in range(2))
    anyio.run(lambda: talked(open_client, mended, make_chat("gemini"), len(ANSWERS)))
    assert not any(b'"thought"' in body for body in mended.bodies)
    assert all(f"I look into file {at}." not in mended.bodies[-1].decode() for at in range(TURNS)), "it is in halves"
    with pytest.raises(AssertionError, match="function call turn"):
        anyio.run(
            lambda: talked(lambda *given: open_client(*given, observe=True), bare, make_chat("gemini"), len(ANSWERS))
        )


@pytest.mark.parametrize("api", FIELDS)
def test_reduced_split_answers_are_accepted_without_reasoning(api, open_client, make_upstream, make_chat):
    """Split answers that are edited and compacted in a small window are accepted by the strict provider, and no
    reasoning returns.
    """
    long = [
        replace(one, text=one.text + " And kelp." * 200 * (at % 3), thinking=f"hm {at}" * 50)
        for at, one in enumerate(ANSWERS * 6)
    ]
    upstream, chat = make_upstream(Provider(Strict(window=12_000), long)), make_chat(api)
    chat.fields |= {"max_tokens": 4_000} if api == "anthropic" else {}
    sent = anyio.run(lambda: talked(open_client, upstream, chat, len(long), window=12_000))
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
        told = [one for one in heard(api, reply.content) if one["content"] or "tool_calls" in one]
        chat.messages += [message for one in told for message in (one, *results(api, [one]))]

    async def go():
        async with open_client(upstream, store) as client:
            for text in ("What do both tell?", None, "And the next?"):
                if text is not None:
                    chat.add_user_text(text)
                await ask(client)

    anyio.run(go)
    assert upstream.bodies == sent
    assert len(list(store.list_sessions())) == 1


def in_two_texts(item):
    """Return the message of an answer, with its id, as two pieces of text."""
    (told,) = item["content"]
    return [item | {"content": [told | {"text": told["text"][:3]}, told | {"text": told["text"][3:]}]}]


def as_strings(item):
    """Return the message of an answer as two messages without ids."""
    (told,) = item["content"]
    return [{"role": "assistant", "content": text} for text in (told["text"][:3], told["text"][3:])]


@pytest.mark.parametrize("restarts", [False, True], ids=["on", "anew"])
@pytest.mark.parametrize("shaped", [in_two_texts, as_strings])
def test_proxy_forwards_complete_responses_items_unchanged(shaped, restarts, open_client, make_upstream, make_chat):
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
            chat.messages += shaped(item) if item["type"] == "message" else [item]

    async def go():
        for _ in range(TURNS if restarts else 1):
            async with open_client(upstream, store) as client:
                for _ in range(1 if restarts else TURNS):
                    await ask(client)

    anyio.run(go)
    assert upstream.bodies == sent
    assert len(list(store.list_sessions())) == 1
