"""A thread of Codex is one session, whatever its own compaction makes of it; any other name is a namespace alone."""

from __future__ import annotations

import json
from functools import partial

import anyio
import pytest
import socket_proxy

from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.client import STRICTEST_MODELS

SESSION = "x-holdfast-session"
TOOLS = [{"type": "function", "name": "run", "parameters": {"type": "object"}}]


def said(role, text):
    """Return an item."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


SYSTEM = [said("developer", "You write code."), said("developer", "You may read any file.")]
PLACE = said("user", "The folder is kelp.")
SUMMARISE = said("user", "You are performing a CONTEXT CHECKPOINT: sum up.")


def codex(thread="t1", kind="turn", **more):
    """Return the headers of a request in a thread."""
    told = {"session_id": "s", "thread_id": thread, "request_kind": kind}
    return {"user-agent": "codex_exec/0.169.0", "thread-id": thread, "x-codex-turn-metadata": json.dumps(told), **more}


async def ask(client, items, headers):
    """Return the session that a request went on in, and what was answered."""
    body = {"model": STRICTEST_MODELS["openai-responses"], "input": items, "tools": TOOLS, "prompt_cache_key": "shared"}
    reply = await client.post("/v1/responses", body, headers.items())
    assert reply.status_code == 200, reply.text
    return reply.headers[SESSION], reply.json()["output"]


async def talk(client, items, headers, *words):
    """Say ``words``, one after the other, and return the session and all that is said then."""
    for text in words:
        items = [*items, said("user", text)]
        key, answer = await ask(client, items, headers)
        items = [*items, *answer]
    return key, items


def begun_anew(summary, *users):
    """Return what Codex goes on with behind its own compaction in the middle of a turn: words first, then the place."""
    return [*SYSTEM, *(said("user", text) for text in users), PLACE, said("user", f"It was summed up: {summary}")]


def leaves(store, key):
    """Return what the branches of a session say to their ends."""
    return [
        [slot.message.text for slot in store.open_state(key, leaf.id).history.sized_messages]
        for leaf in store.read_tips(key)
    ]


def test_codex_thread_stays_one_session_through_its_compactions(proxied, strict):
    """Before, during and after Codex's own compaction a thread is one session with a branch for each start, also after
    a restart.
    """
    store, upstream = MemoryStore(), strict(200_000)

    async def go():
        async with proxied[0](upstream, store) as client:
            first, items = await talk(client, [*SYSTEM, PLACE], codex(), "one", "two")
            aside, _ = await ask(client, [*items, SUMMARISE], codex(kind="compaction"))
            second, items = await talk(client, begun_anew("kelp", "one", "two"), codex(), "three")
        async with proxied[0](upstream, store) as client:
            again, items = await talk(client, items, codex(), "four")
            third, items = await talk(client, begun_anew("rock", "two", "three", "four"), codex(), "five")
        return {first, aside, second, again, third}

    (key,) = anyio.run(go)
    assert [info.key for info in store.list_sessions()] == [key]
    assert [json.loads(body)["input"][len(SYSTEM)] for body in upstream.bodies].count(PLACE) == 3
    ends = leaves(store, key)
    assert [[text for text in end if text in {"one", "two", "three", "four", "five"}] for end in ends] == [
        ["one", "two"],
        ["one", "two", "three", "four"],
        ["two", "three", "four", "five"],
    ]
    path = store.open_state(key, store.get_session(key).leaf_id).history.sized_messages
    assert path[len(path) - 2].message.text == "five"


def test_codex_threads_are_separate_sessions(proxied, strict):
    """Threads with the same cache key and the same beginning are sessions of their own."""
    store = MemoryStore()

    async def go():
        async with proxied[0](strict(200_000), store) as client:
            ways = [codex(), codex("t2"), codex("t1", **{"x-holdfast-session": "mine"})]
            return [(await talk(client, [*SYSTEM, PLACE], way, "the same"))[0] for way in ways]

    keys = anyio.run(go)
    assert len(set(keys)) == 3
    assert [len(leaves(store, key)) for key in keys] == [1, 1, 1]


@pytest.mark.parametrize(
    "headers",
    [
        {"user-agent": "codex_exec/0.40.0", "session_id": "t1"},
        {"user-agent": "codex_exec/0.169.0"},
        {"user-agent": "kelp/1.0", "thread-id": "t1"},
        {"user-agent": "opencode/1.18.33", "x-session-id": "t1"},
        codex(**{"x-holdfast-session": "mine"}),
    ],
    ids=["a session", "a key for the cache", "somebody else", "another client", "ours"],
)
def test_other_session_names_only_scope_the_session_key(headers, proxied, strict):
    """A name that may cover more than one conversation does not join conversations that begin differently."""

    async def go():
        async with proxied[0](strict(200_000), MemoryStore()) as client:
            one, _ = await talk(client, [*SYSTEM, PLACE], headers, "one")
            other, _ = await talk(client, begun_anew("kelp", "one"), headers, "two")
            return one, other

    one, other = anyio.run(go)
    assert one != other


def test_codex_compaction_does_not_wait_for_the_thread():
    """A client's compaction is not recorded, so it is answered while another answer of the thread is in progress."""
    told = {"user_agent": "codex_exec/0.169.0", "thread_id": "t1"}
    data = [
        socket_proxy.request("/v1/responses", socket_proxy.body("openai-responses", "one", stream=True), **told),
        socket_proxy.request(
            "/v1/responses/compact", socket_proxy.body("openai-responses", "another", "b", "c"), **told
        ),
    ]

    async def until_both_are_heard(line, answer):
        await socket_proxy.until(lambda: len(proxy.upstream.heard) == 2)
        await socket_proxy.well(line, answer)

    with socket_proxy.proxied() as proxy:
        proxy.upstream.play = until_both_are_heard
        first = proxy.start(partial(proxy.sent, data[0]))
        proxy.call(lambda: socket_proxy.until(lambda: bool(proxy.upstream.heard)))
        assert proxy.send(data[1]).status == first.result(socket_proxy.SOON).status == 200
        assert len(proxy.sessions()) == 1
