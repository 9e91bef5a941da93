"""``POST /v1/compress`` and ``GET /v1/retrieve/HASH``, asked by a client that checks each answer as gateways do."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import lint
from holdfast.errors import StoreReadOnly
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.calls import RefusalReply

MODEL = "gpt-4.1"
HASH = re.compile(r"[a-f0-9]{12,24}")
"""The hashes that LiteLLM accepts."""
NUMBERS = ("tokens_before", "tokens_after", "tokens_saved")
AFFINITY = {"x-headroom-affinity": "caller-1"}


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


def make_log(step, lines=2_000):
    """Return a tool result."""
    return "\n".join(f"step {step}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


def make_call(step):
    """Return an answer that calls a tool."""
    function = {"name": "read", "arguments": json.dumps({"path": f"log-{step}"})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{step}", "type": "function", "function": function}],
    }


def make_result(step, text):
    """Return the result of the call of a step."""
    return {"role": "tool", "tool_call_id": f"call_{step}", "content": text}


def make_conversation(steps, lines=2_000):
    """Return a whole conversation with a large result in each step."""
    messages = [{"role": "system", "content": "You repair programs."}, {"role": "user", "content": "Why is it slow?"}]
    for step in range(steps):
        messages += [make_call(step), make_result(step, make_log(step, lines))]
    return messages


class GatewayClient:
    """A gateway that withholds nothing and checks every answer strictly."""

    def __init__(self, web):
        self.web = web

    async def post(self, body, headers=AFFINITY):
        """Post a body, bytes or JSON values, and return the reply."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.web.post("/v1/compress", content=data, headers=headers)

    async def compress(self, messages, headers=AFFINITY, **config):
        """Return the answer to ``messages`` after checking its shape."""
        body = {"messages": messages, "model": MODEL, "config": {"mode": "ccr", **config}}
        reply = await self.post(body, headers)
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        assert all(type(answer[name]) is int and answer[name] >= 0 for name in NUMBERS)
        assert answer["tokens_saved"] == answer["tokens_before"] - answer["tokens_after"]
        assert all(HASH.fullmatch(hash_) for hash_ in answer["ccr_hashes"])
        assert len(json.dumps(answer["messages"])) <= len(json.dumps(messages))
        if not config.get("extract"):
            assert [row["role"] for row in answer["messages"]] == [row["role"] for row in messages]
        return answer

    async def retrieve(self, hash_, headers=AFFINITY, **query):
        """Return the status and the answer for a hash."""
        reply = await self.web.get(f"/v1/retrieve/{hash_}", params=query, headers=headers)
        return reply.status_code, reply.json()


class NoProvider(httpx2.AsyncBaseTransport):
    """The way to providers, which nobody is to go."""

    async def handle_async_request(self, request):
        """Fail the test."""
        raise AssertionError(f"a provider was asked: {request.url}")


@asynccontextmanager
async def open_gateway(store=None, **settings):
    """Yield a client of a proxy that asks no provider."""
    store = MemoryStore() if store is None else store
    async with (
        open_proxy(Settings(**settings), store, transport=NoProvider()) as proxy,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(proxy), base_url="http://127.0.0.1:8642") as web,
    ):
        yield GatewayClient(web)


def test_large_results_are_shortened_and_read_back():
    """Each large result becomes a preview with a call of the gateway's tool; its hash returns the text byte for byte.
    All other messages come back as they were.
    """
    messages = make_conversation(3)

    async def scenario():
        async with open_gateway() as gateway:
            answer = await gateway.compress(messages)
            texts = [await gateway.retrieve(hash_) for hash_ in answer["ccr_hashes"]]
            return answer, texts

    answer, texts = run(scenario)
    assert [status for status, _ in texts] == [200] * 3
    assert [value["original_content"] for _, value in texts] == [make_log(step) for step in range(3)]
    for sent, returned in zip(messages, answer["messages"], strict=True):
        if sent["role"] == "tool":
            assert returned | {"content": ""} == sent | {"content": ""}
            assert re.search(r'headroom_retrieve\(hash="[0-9a-f]{12}"\)', returned["content"])
            assert "recall(" not in returned["content"]
        else:
            assert returned == sent
    assert answer["tokens_after"] < answer["tokens_before"] / 5


def test_without_the_retrieval_mode_previews_name_our_own_tool():
    """A gateway without a retrieve tool leaves the model with ``recall``, which Holdfast's MCP server offers."""

    async def scenario():
        async with open_gateway() as gateway:
            reply = await gateway.post({"messages": make_conversation(1), "model": MODEL})
            return reply.json()["messages"][3]["content"]

    content = run(scenario)
    assert 'recall(id="' in content
    assert "headroom_retrieve" not in content


ROW_TEXTS = st.one_of(
    st.text(max_size=40),
    st.builds(lambda text, count: text * count, st.text(min_size=1, max_size=12), st.integers(30, 300)),
    st.builds(make_log, st.integers(0, 5), st.integers(1, 400)),
)
ROWS = st.lists(st.tuples(st.sampled_from(["user", "tool", "assistant", "system"]), ROW_TEXTS), min_size=1, max_size=14)


@given(rows=ROWS, window=st.sampled_from([3_000, 9_000, 200_000]))
def test_rows_keep_their_number_and_order_and_are_never_larger(rows, window):
    """Whatever part of a conversation a gateway sends: as many messages come back, in the same roles and order, none of
    them larger, and only texts of users and tools are changed. A shortened one can be read back whole.
    """
    messages = []
    for index, (role, text) in enumerate(rows):
        message = {"role": role, "content": text, "note": index}
        messages.append(message | ({"tool_call_id": f"call_{index}"} if role == "tool" else {}))

    async def scenario():
        async with open_gateway() as gateway:
            answer = await gateway.compress(messages, window=window)
            stored = {}
            for hash_ in answer["ccr_hashes"]:
                status, value = await gateway.retrieve(hash_)
                assert status == 200
                stored[hash_] = value["original_content"]
            return answer, stored

    answer, stored = run(scenario)
    shown_hashes = set()
    for sent, returned in zip(messages, answer["messages"], strict=True):
        if sent == returned:
            continue
        assert sent["role"] in {"user", "tool"}
        assert returned | {"content": ""} == sent | {"content": ""}
        (hash_,) = set(re.findall(r'headroom_retrieve\(hash="([0-9a-f]{12})"', returned["content"])) & stored.keys()
        assert stored[hash_] == sent["content"]
        shown_hashes.add(hash_)
    assert shown_hashes == stored.keys()


@given(
    lengths=st.lists(st.sampled_from([5, 300, 900, 2_500]), min_size=3, max_size=9),
    inserted=st.sets(st.integers(0, 7), max_size=3),
    restarts=st.booleans(),
)
def test_rows_stay_the_same_bytes_over_the_calls_of_a_conversation(lengths, inserted, restarts):
    """A message that was returned once is returned in the same bytes by every later call that has room for it: also
    after messages were inserted before it, as LiteLLM does with the user's words, and after a restart on the same
    store.
    """
    results = [make_result(step, make_log(step, length)) for step, length in enumerate(lengths)]
    store = MemoryStore()
    shown = {}

    async def call_once(gateway, count):
        messages = []
        for index, result in enumerate(results[:count]):
            # The user's words before a result are withheld until the next result has come.
            if index in inserted and index < count - 1:
                messages.append({"role": "user", "content": f"Words before {index}."})
            messages.append(result)
        answer = await gateway.compress(messages)
        for sent, returned in zip(messages, answer["messages"], strict=True):
            row = json.dumps(sent)
            assert shown.setdefault(row, returned) == returned

    async def scenario():
        if restarts:
            for count in range(1, len(results) + 1):
                async with open_gateway(store) as gateway:
                    await call_once(gateway, count)
        else:
            async with open_gateway(store) as gateway:
                for count in range(1, len(results) + 1):
                    await call_once(gateway, count)

    run(scenario)


def test_messages_that_do_not_fit_are_shortened_further():
    """Where even the previews together exceed the window, the oldest become lines; the answer fits by another counter,
    and the next call changes nothing of what this one returned.
    """
    messages = make_conversation(60, lines=700)

    async def scenario():
        async with open_gateway() as gateway:
            first = await gateway.compress(messages, window=40_000)
            longer = [*messages, make_call("new"), make_result("new", "The disk is full.")]
            return first, await gateway.compress(longer, window=40_000)

    first, second = run(scenario)
    body = {"model": MODEL, "messages": [*first["messages"], {"role": "user", "content": "So?"}]}
    provider = Provider(Strict(window=40_000))
    reply = provider.answer_body("openai-chat", body)
    assert not isinstance(reply, RefusalReply), reply
    assert second["messages"][: len(messages)] == first["messages"]
    assert first["messages"][1] == messages[1]
    assert re.match(r"\[Old result of [0-9,]+ characters cleared; headroom", first["messages"][3]["content"])
    assert "<persisted_tool_result" in first["messages"][-1]["content"]


def test_newest_result_is_never_only_a_line():
    """However small the window, the newest result is whole or a preview."""
    messages = make_conversation(9, lines=700)

    async def scenario():
        async with open_gateway() as gateway:
            return await gateway.compress(messages, window=6_000)

    answer = run(scenario)
    assert "cleared; headroom_retrieve" in answer["messages"][-3]["content"]
    assert answer["messages"][-1]["content"].startswith("<persisted_tool_result")


def test_rows_shortened_for_space_stay_so_when_messages_come_before_them():
    """What was shortened only because the messages did not fit stays as it was, and nothing more is shortened while
    there is room: also if the next call has a message before them all, which begins a new branch of the log.
    """
    rows = [make_result(step, make_log(step, 250)) for step in range(60)]

    async def scenario():
        async with open_gateway() as gateway:
            first = await gateway.compress(rows[:30], window=60_000)
            second = await gateway.compress([{"role": "user", "content": "Begin."}, *rows[:33]], window=60_000)
            return first["messages"], second["messages"]

    first, second = run(scenario)
    assert first != rows[:30]
    assert first[-1] == rows[29]
    assert second[1:31] == first
    assert second[31:] == rows[30:33]


def test_extract_stands_for_old_messages_if_the_caller_allows_it():
    """With ``config.extract`` old messages become an extract: fewer messages come back, the provider's rules find
    nothing wrong with them, and the newest words of the user are among them.
    """
    messages = make_conversation(3)
    for turn in range(30):
        words = f"Rule {turn}: never touch table_{turn}. " + "The tide comes in. " * 300
        messages += [{"role": "user", "content": words}, {"role": "assistant", "content": f"Noted {turn}."}]
    messages.append({"role": "user", "content": "Go on with the newest."})

    async def scenario():
        async with open_gateway() as gateway:
            return await gateway.compress(messages, window=30_000, extract=True)

    answer = run(scenario)
    assert len(answer["messages"]) < len(messages)
    assert answer["tokens_after"] < 30_000 < answer["tokens_before"]
    assert not lint(json.dumps({"model": MODEL, "messages": answer["messages"]}).encode())
    assert answer["messages"][0] == messages[0]
    assert answer["messages"][-1] == messages[-1]
    assert "never touch table_" in json.dumps(answer["messages"])


def test_messages_of_the_messages_api_are_understood():
    """Blocks of the Messages API are recognized, and stay in its form."""
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": make_log(1)}
    messages = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "Why is it slow?"}]},
    ]

    async def scenario():
        async with open_gateway() as gateway:
            answer = await gateway.compress(messages)
            return answer, await gateway.retrieve(answer["ccr_hashes"][0])

    answer, (status, value) = run(scenario)
    assert answer["messages"][:2] == messages[:2]
    assert answer["messages"][2]["content"][1] == messages[2]["content"][1]
    assert answer["messages"][2]["content"][0]["tool_use_id"] == "t1"
    assert "headroom_retrieve" in json.dumps(answer["messages"][2]["content"][0])
    assert (status, value["original_content"]) == (200, make_log(1))


# -- reading back ------------------------------------------------------------------------------------------------------


def test_texts_are_found_in_their_own_conversation_only():
    """A hash is unknown, with the same answer as one that never existed, under another name and without a name; what
    was sent without a name is found without one.
    """
    other = {"x-headroom-affinity": "caller-2"}

    async def scenario():
        async with open_gateway() as gateway:
            named = (await gateway.compress([make_result(1, make_log(1))]))["ccr_hashes"][0]
            unnamed = (await gateway.compress([make_result(2, make_log(2))], {}))["ccr_hashes"][0]
            return [
                await gateway.retrieve(named, other),
                await gateway.retrieve(named, {}),
                await gateway.retrieve(unnamed, other),
                await gateway.retrieve("0123456789ab", other),
                await gateway.retrieve(named.upper()),
                await gateway.retrieve(unnamed, {}),
            ]

    *refused, named, unnamed = run(scenario)
    assert [status for status, _ in refused] == [404] * 4
    messages = {re.sub("'[0-9a-f]{12}'", "HASH", value["error"]["message"]) for _, value in refused}
    assert len(messages) == 1
    assert (named[0], named[1]["original_content"]) == (200, make_log(1))
    assert (unnamed[0], unnamed[1]["original_content"]) == (200, make_log(2))


def test_query_returns_the_lines_that_match():
    """The whole query is looked for first, then any of its words; without a match the whole text comes back."""
    text = make_log(1) + "\nFATAL: disk sda1 is full"

    async def scenario():
        async with open_gateway() as gateway:
            hash_ = (await gateway.compress([make_result(1, text)]))["ccr_hashes"][0]
            return [
                (await gateway.retrieve(hash_, query=query))[1]
                for query in ("disk sda1", "which sda1 was it?", "submarine", "")
            ] + [(await gateway.retrieve(hash_, lines="2-3"))[1]]

    phrase, words, missing, empty, lines = run(scenario)
    for found in (phrase, words):
        assert "FATAL: disk sda1 is full" in found["original_content"]
        assert len(found["original_content"]) < 1_000
        assert found["truncated"]
    for whole in (missing, empty):
        assert whole["original_content"] == text
        assert not whole["truncated"]
    assert lines["original_content"].splitlines() == text.splitlines()[1:3]


def test_huge_text_is_returned_up_to_a_limit_that_it_names():
    """A text that no window holds comes back in part, and says so."""
    text = make_log(1, 20_000)

    async def scenario():
        async with open_gateway() as gateway:
            hash_ = (await gateway.compress([make_result(1, text)]))["ccr_hashes"][0]
            return (await gateway.retrieve(hash_))[1]

    value = run(scenario)
    assert value["total_chars"] == len(text)
    assert value["truncated"]
    assert value["original_content"].startswith(text[:200_000])
    assert len(value["original_content"]) < 200_200
    assert "query" in value["original_content"][-150:]


# -- access, modes, failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/compress", "/v1/retrieve/0123456789ab"])
def test_token_may_come_as_the_login(path):
    """With a token set, gateways may send it as ``Authorization`` or in the header of the service that they know; a
    wrong one is refused. Other endpoints do not take it there, since the login is meant for the provider.
    """
    method = "POST" if "compress" in path else "GET"
    headers = [
        {},
        {"authorization": "Bearer wrong"},
        {"x-headroom-proxy-token": "wrong"},
        {"authorization": "Bearer secret"},
        {"x-headroom-proxy-token": "secret"},
        {"x-holdfast-token": "secret"},
    ]

    async def scenario():
        async with open_gateway(token="secret") as gateway:
            statuses = []
            for sent in headers:
                reply = await gateway.web.request(method, path, content=b'{"messages":[]}', headers=sent)
                statuses.append(reply.status_code)
            other = await gateway.web.post("/v1/chat/completions", content=b"{}", headers=headers[3])
            return statuses, other.status_code

    statuses, other_status = run(scenario)
    assert statuses[:3] == [401] * 3
    assert not {401} & {*statuses[3:]}
    assert other_status == 401


@pytest.mark.parametrize("settings", [{"observe": True}, {"bypass": True}], ids=["observe", "bypass"])
def test_modes_that_change_nothing_return_the_messages_unchanged(settings):
    """The sizes are told all the same."""
    messages = make_conversation(1)

    async def scenario():
        async with open_gateway(**settings) as gateway:
            return await gateway.compress(messages)

    answer = run(scenario)
    assert answer["messages"] == messages
    assert answer["tokens_saved"] == 0 < answer["tokens_before"]


def test_client_of_the_gateway_can_ask_to_be_left_alone():
    """``x-headroom-bypass: true`` returns the messages as they came."""
    messages = make_conversation(1)

    async def scenario():
        async with open_gateway() as gateway:
            return await gateway.compress(messages, {**AFFINITY, "x-headroom-bypass": "true"})

    assert run(scenario)["messages"] == messages


def test_store_that_cannot_be_written_leaves_messages_unchanged(tmp_path):
    """A gateway whose messages cannot be stored gets them back: shortened texts could not be read back."""
    messages = make_conversation(1)

    async def scenario():
        with open_store(tmp_path / "store.db") as store:

            def refuse(*_, **__):
                raise StoreReadOnly("the disk is full")

            store.append_entries = refuse
            async with open_gateway(store) as gateway:
                reply = await gateway.post({"messages": messages, "model": MODEL})
                health = (await gateway.web.get("/livez")).json()
                return reply, health

    reply, health = run(scenario)
    assert reply.status_code == 200
    assert reply.headers["x-holdfast-state"] == "unrecorded"
    assert reply.json()["messages"] == messages
    assert health["troubles"][0]["why"] == "the disk is full"


# -- wrong input -------------------------------------------------------------------------------------------------------

WRONG_BODIES = {
    "empty": (b"", "it is empty"),
    "text": (b"nope", "JSON is malformed"),
    "list": (b"[]", "Expected `object`"),
    "no messages": (b'{"model":"x"}', "$.messages is missing; send"),
    "messages": (b'{"messages":{}}', "$.messages cannot be read"),
    "message": (b'{"messages":[{"role":"user","content":"x"},5]}', "$.messages[1]"),
    "content": (b'{"messages":[{"role":"user","content":5}]}', "$.messages[0]: the message cannot be read"),
    "role": (b'{"messages":[{"content":"x"}]}', "$.messages[0]"),
    "model": (b'{"messages":[],"model":5}', "$.model"),
    "config": (b'{"messages":[],"config":"ccr"}', "$.config"),
    "mode": (b'{"messages":[],"config":{"mode":5}}', "$.config.mode"),
    "window": (b'{"messages":[],"config":{"window":"5k"}}', "$.config.window"),
    "window 0": (b'{"messages":[],"config":{"window":0}}', "$.config.window"),
    "tiny window": (
        b'{"messages":[{"role":"user","content":"x"}],"config":{"window":9}}',
        "$.config.window is too small",
    ),
    "extract": (
        b'{"messages":[{"role":"tool","tool_call_id":"a","content":"x"}],"config":{"extract":true}}',
        "$.messages[0] answers a call that is not among the messages; send",
    ),
    "twice": (b'{"messages":[],"messages":[]}', "has a field twice, at byte 14; send"),
    "not UTF-8": (b'{"messages":[{"role":"user","content":"\xff"}]}', "UTF-8"),
}


@pytest.mark.parametrize(("body", "words"), WRONG_BODIES.values(), ids=WRONG_BODIES)
def test_wrong_body_is_refused_with_its_place_and_one_thing_to_do(body, words):
    """The refusal has the form of the API's own errors, says where the mistake is, and what to send."""

    async def scenario():
        async with open_gateway() as gateway:
            return await gateway.post(body)

    reply = run(scenario)
    assert reply.status_code == 400
    assert reply.headers["x-holdfast-state"] == "refused"
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/compress", 405),
        ("POST", "/v1/retrieve/0123456789ab", 405),
        ("GET", "/v1/retrieve/nothing", 400),
        ("GET", "/v1/retrieve/012345", 400),
        ("GET", "/v1/retrieve/0123456789ab", 404),
        ("GET", "/v1/retrieve", 404),
    ],
)
def test_wrong_request_is_refused(method, path, status):
    """Nothing is passed on to a provider."""

    async def scenario():
        async with open_gateway() as gateway:
            return await gateway.web.request(method, path)

    reply = run(scenario)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


def test_path_below_another_server_is_that_servers(open_client, make_strict_upstream):
    """``/u/https://…/v1/compress`` is passed through."""
    upstream = make_strict_upstream()

    async def scenario():
        async with open_client(upstream) as client:
            await client.post("/u/https://gateway.example/v1/compress", {"messages": []})

    run(scenario)
    assert str(upstream.sent[0].url) == "https://gateway.example/v1/compress"


def test_calls_are_counted_by_endpoint():
    """``/stats`` and ``/metrics`` count them apart from the requests to providers, and the tokens that they save."""

    async def scenario():
        async with open_gateway() as gateway:
            hash_ = (await gateway.compress([make_result(1, make_log(1))]))["ccr_hashes"][0]
            await gateway.compress([make_result(1, make_log(1))])
            await gateway.retrieve(hash_)
            await gateway.retrieve("0123456789ab")
            return (await gateway.web.get("/stats")).json(), (await gateway.web.get("/metrics")).text

    stats, metrics = run(scenario)
    assert stats["requests"]["compress"]["managed"] == 2
    assert stats["requests"]["retrieve"]["managed"] == 1
    assert 10_000 < stats["tokens_saved"] < 40_000
    assert 'api="compress"' in metrics
