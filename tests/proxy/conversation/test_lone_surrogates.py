"""Lone surrogates, which clients leave where they cut a text and send again with every request."""

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


def encode_escaped(body):
    """Encode a body with escapes, as most clients do."""
    return json.dumps(body).encode()


def encode_unescaped(body):
    """Encode a body without escapes."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


REPLACEMENTS = {encode_escaped: (b'\\ud83d"', b'\\ufffd"'), encode_unescaped: (b"\xed\xa0\xbd", b"\xef\xbf\xbd")}
"""The bytes replaced and their replacement, by encoder."""


@pytest.mark.parametrize("encode", REPLACEMENTS)
@pytest.mark.parametrize("api", APIS)
def test_proxy_replaces_lone_surrogates(api, encode, open_client, make_upstream, make_chat):
    """The provider would refuse every later request, so a lone surrogate is sent as U+FFFD and nothing else is
    changed.
    """
    upstream, chat, store = make_upstream(Provider(Strict(window=200_000))), make_chat(api), MemoryStore()
    sent = []

    async def scenario():
        async with open_client(upstream, store) as client:
            for text in ("It begins well \N{OCTOPUS}.", CUT, "And on \N{OCTOPUS}."):
                chat.add_user_text(text)
                sent.append(encode(chat.body()))
                reply = await client.post(chat.path, sent[-1])
                assert (reply.status_code, reply.headers[STATE]) == (200, "managed"), reply.text
                chat.add_answer(reply.content)

    anyio.run(scenario)
    assert upstream.bodies == [body.replace(*REPLACEMENTS[encode]) for body in sent]
    assert len(list(store.list_sessions())) == 1


class LenientUpstream(httpx2.AsyncBaseTransport):
    """A gateway that accepts lone surrogates, as most JSON parsers do; keeps the bodies."""

    def __init__(self, inner):
        self.inner, self.bodies = inner, []

    async def handle_async_request(self, request):
        """Return the provider's answer to the body without lone surrogates."""
        self.bodies.append(await request.aread())
        content = replace_surrogates_in_bytes(self.bodies[-1])
        return await self.inner.handle_async_request(httpx2.Request(request.method, request.url, content=content))


@pytest.mark.parametrize("encode", REPLACEMENTS)
@pytest.mark.parametrize("api", APIS)
def test_observe_mode_forwards_lone_surrogates_and_records_them(api, encode, open_client, make_upstream, make_chat):
    """In observe mode requests and answers pass unchanged, and the conversation is recorded with U+FFFD."""
    upstream, chat, store = (
        LenientUpstream(make_upstream(Provider(Strict(window=200_000)))),
        make_chat(api),
        MemoryStore(),
    )
    sent = []

    async def scenario():
        async with open_client(upstream, store, observe=True) as client:
            for text in ("It begins well \N{OCTOPUS}.", CUT, "And on \N{OCTOPUS}."):
                chat.add_user_text(text)
                sent.append(encode(chat.body()))
                reply = await client.post(chat.path, sent[-1])
                assert (reply.status_code, reply.headers[STATE]) == (200, "observed"), reply.text
                assert reply.content == upstream.inner.answers[-1]
                chat.add_answer(reply.content)

    anyio.run(scenario)
    assert upstream.bodies == sent
    (session,) = store.list_sessions()
    assert [sized.message.text for sized in store.open_state(session.key).history.sized_messages][2] == CUT.replace(
        "\ud83d", "\ufffd"
    )


@pytest.mark.parametrize("api", APIS)
def test_observe_mode_returns_the_refusal_of_a_lone_surrogate(api, open_client, make_upstream, make_chat):
    """In observe mode the request is sent once, and its refusal is returned unchanged."""
    upstream, chat = make_upstream(Provider(Strict(window=200_000))), make_chat(api)
    chat.add_user_text(CUT)

    async def scenario():
        async with open_client(upstream, observe=True) as client:
            return await client.post(chat.path, encode_escaped(chat.body()))

    reply = anyio.run(scenario)
    assert (upstream.bodies, reply.content) == ([encode_escaped(chat.body())], upstream.answers[-1])
    assert reply.headers[STATE] == "observed"


@given(st.text(st.characters(exclude_categories=[]) | st.sampled_from('\\u d8\ud83d\ude00"')))
def test_replace_surrogates_in_bytes_replaces_only_lone_ones(text):
    """Lone surrogates are replaced, pairs and escaped backslashes stay, and the length does not change."""
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    for body, expected in ((encode_escaped(text), joined), (encode_unescaped(text), text)):
        replaced = replace_surrogates_in_bytes(body)
        assert json.loads(replaced) == "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in expected)
        assert len(replaced) == len(body)
        assert replace_surrogates_in_bytes(replaced) is replaced
