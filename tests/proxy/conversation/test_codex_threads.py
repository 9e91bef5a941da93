"""A Codex thread is one session through its own compactions; any other name only scopes the session key."""

from __future__ import annotations

import json
from functools import partial

import anyio
import pytest
import socket_proxy

from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.client import STRICTEST_MODELS

SESSION = "x-holdfast-session"
TOOLS = [{"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}}]


def make_item(role, text):
    """Return a message item of Responses."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


SYSTEM = [make_item("developer", "You write code."), make_item("developer", "You may read any file.")]
PLACE = make_item("user", "The folder is kelp.")
SUMMARISE = make_item("user", "You are performing a CONTEXT CHECKPOINT: sum up.")


def codex_headers(thread="t1", kind="turn", **more):
    """Return the headers of a request in a thread."""
    metadata = {"session_id": "s", "thread_id": thread, "request_kind": kind}
    return {
        "user-agent": "codex_exec/0.169.0",
        "thread-id": thread,
        "x-codex-turn-metadata": json.dumps(metadata),
        **more,
    }


async def send_items(client, items, headers):
    """Send a request and return its session key and the output items."""
    body = {"model": STRICTEST_MODELS["openai-responses"], "input": items, "tools": TOOLS, "prompt_cache_key": "shared"}
    reply = await client.post("/v1/responses", body, headers.items())
    assert reply.status_code == 200, reply.text
    return reply.headers[SESSION], reply.json()["output"]


async def send_turns(client, items, headers, *texts):
    """Send ``texts`` one after the other; return the session key and all items."""
    for text in texts:
        items = [*items, make_item("user", text)]
        key, answer = await send_items(client, items, headers)
        items = [*items, *answer]
    return key, items


def build_compacted_items(summary, *users):
    """Return the items Codex sends after its own compaction: system, user texts, the folder, the summary."""
    return [
        *SYSTEM,
        *(make_item("user", text) for text in users),
        PLACE,
        make_item("user", f"It was summed up: {summary}"),
    ]


def list_branch_texts(store, key):
    """Return the texts of each branch of a session."""
    return [
        [slot.message.text for slot in store.open_state(key, leaf.id).history.sized_messages]
        for leaf in store.read_tips(key)
    ]


def test_codex_thread_stays_one_session_through_its_compactions(open_client, make_strict_upstream):
    """Before, during and after Codex's own compaction a thread is one session with a branch for each start, also after
    a restart.
    """
    store, upstream = MemoryStore(), make_strict_upstream(200_000)

    async def scenario():
        async with open_client(upstream, store) as client:
            first, items = await send_turns(client, [*SYSTEM, PLACE], codex_headers(), "one", "two")
            aside, _ = await send_items(client, [*items, SUMMARISE], codex_headers(kind="compaction"))
            second, items = await send_turns(
                client, build_compacted_items("kelp", "one", "two"), codex_headers(), "three"
            )
        async with open_client(upstream, store) as client:
            again, items = await send_turns(client, items, codex_headers(), "four")
            third, items = await send_turns(
                client, build_compacted_items("rock", "two", "three", "four"), codex_headers(), "five"
            )
        return {first, aside, second, again, third}

    (key,) = anyio.run(scenario)
    assert [info.key for info in store.list_sessions()] == [key]
    assert [json.loads(body)["input"][len(SYSTEM)] for body in upstream.bodies].count(PLACE) == 3
    ends = list_branch_texts(store, key)
    assert [[text for text in end if text in {"one", "two", "three", "four", "five"}] for end in ends] == [
        ["one", "two"],
        ["one", "two", "three", "four"],
        ["two", "three", "four", "five"],
    ]
    path = store.open_state(key, store.get_session(key).leaf_id).history.sized_messages
    assert path[len(path) - 2].message.text == "five"


def test_codex_threads_are_separate_sessions(open_client, make_strict_upstream):
    """Threads with the same cache key and the same beginning are sessions of their own."""
    store = MemoryStore()

    async def scenario():
        async with open_client(make_strict_upstream(200_000), store) as client:
            ways = [codex_headers(), codex_headers("t2"), codex_headers("t1", **{"x-holdfast-session": "mine"})]
            return [(await send_turns(client, [*SYSTEM, PLACE], way, "the same"))[0] for way in ways]

    keys = anyio.run(scenario)
    assert len(set(keys)) == 3
    assert [len(list_branch_texts(store, key)) for key in keys] == [1, 1, 1]


@pytest.mark.parametrize(
    "headers",
    [
        {"user-agent": "codex_exec/0.40.0", "session_id": "t1"},
        {"user-agent": "codex_exec/0.169.0"},
        {"user-agent": "kelp/1.0", "thread-id": "t1"},
        {"user-agent": "opencode/1.18.33", "x-session-id": "t1"},
        codex_headers(**{"x-holdfast-session": "mine"}),
    ],
    ids=["a session", "a key for the cache", "somebody else", "another client", "ours"],
)
def test_other_session_names_only_scope_the_session_key(headers, open_client, make_strict_upstream):
    """A name that may cover more than one conversation does not join conversations that begin differently."""

    async def scenario():
        async with open_client(make_strict_upstream(200_000), MemoryStore()) as client:
            first, _ = await send_turns(client, [*SYSTEM, PLACE], headers, "one")
            second, _ = await send_turns(client, build_compacted_items("kelp", "one"), headers, "two")
            return first, second

    first, second = anyio.run(scenario)
    assert first != second


def test_codex_compaction_does_not_wait_for_the_thread():
    """A client's compaction is not recorded, so it is answered while another answer of the thread is in progress."""
    headers = {"user_agent": "codex_exec/0.169.0", "thread_id": "t1"}
    data = [
        socket_proxy.build_request(
            "/v1/responses", socket_proxy.build_body("openai-responses", "one", stream=True), **headers
        ),
        socket_proxy.build_request(
            "/v1/responses/compact", socket_proxy.build_body("openai-responses", "another", "b", "c"), **headers
        ),
    ]

    async def respond_after_both(connection, answer):
        await socket_proxy.wait_until(lambda: len(proxy.upstream.requests) == 2)
        await socket_proxy.send_response(connection, answer)

    with socket_proxy.run_proxy() as proxy:
        proxy.upstream.respond = respond_after_both
        first = proxy.start(partial(proxy.send_pieces, data[0]))
        proxy.call(lambda: socket_proxy.wait_until(lambda: bool(proxy.upstream.requests)))
        assert proxy.send(data[1]).status == first.result(socket_proxy.TIMEOUT).status == 200
        assert len(proxy.sessions()) == 1
