"""Halves of characters, which clients leave where they cut a text and send again with every request."""

from __future__ import annotations

import json

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.client import STRICTEST_MODELS

APIS = list(STRICTEST_MODELS)
CUT = "an emoji cut in half: \ud83d"
STATE = "x-holdfast-state"


def escaped(body):
    """Return a body as most clients write it."""
    return json.dumps(body).encode()


def in_bytes(body):
    """Return a body as those write it that escape nothing."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


PUT = {escaped: (b'\\ud83d"', b'\\ufffd"'), in_bytes: (b"\xed\xa0\xbd", b"\xef\xbf\xbd")}
"""What stands for what, by who writes."""


@pytest.mark.parametrize("write", PUT)
@pytest.mark.parametrize("api", APIS)
def test_proxy_replaces_lone_surrogates(api, write, open_client, make_upstream, make_chat):
    """The provider would refuse every later request, so a lone surrogate is sent as U+FFFD and nothing else is
    changed.
    """
    upstream, chat, store = make_upstream(Provider(Strict(window=200_000))), make_chat(api), MemoryStore()
    sent = []

    async def go():
        async with open_client(upstream, store) as client:
            for text in ("It begins well \N{OCTOPUS}.", CUT, "And on \N{OCTOPUS}."):
                chat.add_user_text(text)
                sent.append(write(chat.body()))
                reply = await client.post(chat.path, sent[-1])
                assert (reply.status_code, reply.headers[STATE]) == (200, "managed"), reply.text
                chat.add_answer(reply.content)

    anyio.run(go)
    assert upstream.bodies == [one.replace(*PUT[write]) for one in sent]
    assert len(list(store.list_sessions())) == 1


class Lenient(httpx2.AsyncBaseTransport):
    """In front of a provider, one who reads halves of characters as most readers of JSON do; what came is kept."""

    def __init__(self, inner):
        self.inner, self.bodies = inner, []

    async def handle_async_request(self, request):
        """Answer what the provider does to the same without halves."""
        self.bodies.append(await request.aread())
        content = replace_surrogates_in_bytes(self.bodies[-1])
        return await self.inner.handle_async_request(httpx2.Request(request.method, request.url, content=content))


@pytest.mark.parametrize("write", PUT)
@pytest.mark.parametrize("api", APIS)
def test_observe_mode_forwards_lone_surrogates_and_records_them(api, write, open_client, make_upstream, make_chat):
    """In observe mode requests and answers pass unchanged, and the conversation is recorded with U+FFFD."""
    upstream, chat, store = Lenient(make_upstream(Provider(Strict(window=200_000)))), make_chat(api), MemoryStore()
    sent = []

    async def go():
        async with open_client(upstream, store, observe=True) as client:
            for text in ("It begins well \N{OCTOPUS}.", CUT, "And on \N{OCTOPUS}."):
                chat.add_user_text(text)
                sent.append(write(chat.body()))
                reply = await client.post(chat.path, sent[-1])
                assert (reply.status_code, reply.headers[STATE]) == (200, "observed"), reply.text
                assert reply.content == upstream.inner.answers[-1]
                chat.add_answer(reply.content)

    anyio.run(go)
    assert upstream.bodies == sent
    (one,) = store.list_sessions()
    assert [slot.message.text for slot in store.open_state(one.key).history.sized_messages][2] == CUT.replace(
        "\ud83d", "\ufffd"
    )


@pytest.mark.parametrize("api", APIS)
def test_observe_mode_returns_the_refusal_of_a_lone_surrogate(api, open_client, make_upstream, make_chat):
    """In observe mode the request is sent once, and its refusal is returned unchanged."""
    upstream, chat = make_upstream(Provider(Strict(window=200_000))), make_chat(api)
    chat.add_user_text(CUT)

    async def go():
        async with open_client(upstream, observe=True) as client:
            return await client.post(chat.path, escaped(chat.body()))

    reply = anyio.run(go)
    assert (upstream.bodies, reply.content) == ([escaped(chat.body())], upstream.answers[-1])
    assert reply.headers[STATE] == "observed"


@given(st.text(st.characters(exclude_categories=[]) | st.sampled_from('\\u d8\ud83d\ude00"')))
def test_replace_surrogates_in_bytes_replaces_only_lone_ones(text):
    """Lone surrogates are replaced, pairs and escaped backslashes stay, and the length does not change."""
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    for body, said in ((escaped(text), joined), (in_bytes(text), text)):
        told = replace_surrogates_in_bytes(body)
        assert json.loads(told) == "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in said)
        assert len(told) == len(body)
        assert replace_surrogates_in_bytes(told) is told
