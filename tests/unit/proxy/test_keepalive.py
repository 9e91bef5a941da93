"""Signs of life: when they come, that nothing is lost or given up for them, and that clients read over them."""

from __future__ import annotations

from asyncio import CancelledError
from contextlib import aclosing

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UpstreamError
from holdfast.proxy.keepalive import Alive, kept_alive, sign_of
from holdfast.runtime.engine import Engine
from holdfast.runtime.upstream import Sent
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import now, run
from holdfast.testing.provider.client import MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.upstream import ProviderUpstream
from holdfast.wire.apis import APIS

SIGN = b": keep-alive\n\n"
ALIVE = Alive(SIGN)


class Source:
    """Items, each after so many seconds; an error is raised in its place. It tells what became of it."""

    def __init__(self, *told, sign=SIGN, patience=10.0):
        self.told = told
        self.asked = self.given_up = 0
        self.closed_at = None
        self.kept = kept_alive(self.items(), sign, patience)

    async def items(self):
        try:
            for seconds, item in self.told:
                self.asked += 1
                await self.waited(seconds)
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.closed_at = now()

    async def waited(self, seconds):
        try:
            await anyio.sleep(seconds)
        except BaseException:
            self.given_up += 1
            raise


async def read(source):
    """Return what comes out, and when."""
    async with aclosing(source.kept) as kept:
        return [(now(), item) async for item in kept]


def outcome(*told, **terms):
    return run(lambda: read(Source(*told, **terms)))


# -- when they come ----------------------------------------------------------------------------------------------------


def test_signs_come_until_the_first_item_and_never_again():
    """Every ``patience`` seconds a sign, at last the item; later waits are the provider's own, however long."""
    assert outcome((35, "a"), (100, "b")) == [(10, ALIVE), (20, ALIVE), (30, ALIVE), (35, "a"), (135, "b")]


def test_a_quick_answer_has_no_sign():
    """What comes within the patience comes as it is."""
    assert outcome((9.9, "a"), (0, "b")) == [(9.9, "a"), (9.9, "b")]


def test_the_end_may_come_before_any_item():
    """A source without items ends what is read, after the signs of its silence."""
    assert outcome() == []

    async def silent():
        await anyio.sleep(15)
        for item in ():
            yield item

    async def all_of_it():
        async with aclosing(kept_alive(silent(), SIGN, 10)) as kept:
            return [item async for item in kept]

    assert run(all_of_it) == [ALIVE]


@pytest.mark.parametrize("terms", [{"sign": b""}, {"patience": 0}, {"patience": -1}])
def test_without_a_sign_or_patience_there_is_none(terms):
    """An answer that is no stream has no sign, and a patience of 0 switches them off: it is no endless row of them."""
    assert outcome((35, "a"), (1, "b"), **terms) == [(35, "a"), (36, "b")]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 15))
def test_items_come_when_they_would_without(waits, patience):
    """Whatever the pace: the items, their order and their times are the source's own, and the signs fill the first
    wait alone."""
    found = outcome(*((seconds, number) for number, seconds in enumerate(waits)), patience=patience)
    items = [(at, item) for at, item in found if item != ALIVE]
    signs = [at for at, item in found if item == ALIVE]
    silence = waits[0] if waits else 0
    assert items == [(sum(waits[: number + 1]), number) for number in range(len(waits))]
    assert signs in (list(range(patience, silence, patience)), list(range(patience, silence + 1, patience)))
    assert found[: len(signs)] == [(at, ALIVE) for at in signs]


def test_nothing_is_read_ahead():
    """The next item is asked for when the reader comes back for it: a slow client slows the provider."""

    async def slowly():
        source = Source((15, "a"), (0, "b"), (0, "c"))
        seen = []
        async with aclosing(source.kept) as kept:
            async for _ in kept:
                await anyio.sleep(60)
                seen.append(source.asked)
        return seen

    assert run(slowly) == [1, 1, 2, 3]


def test_a_slow_reader_gets_one_sign_at_a_time():
    """Signs do not pile up while the reader is busy with one; the item that came meanwhile is next."""

    async def slowly():
        seen = []
        async with aclosing(Source((35, "a")).kept) as kept:
            async for item in kept:
                seen.append((now(), item))
                await anyio.sleep(60)
        return seen

    assert run(slowly) == [(10, ALIVE), (70, "a")]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [0, 25])
@pytest.mark.parametrize("before", [(), ((1, "a"),)])
def test_errors_come_out_as_they_are(wait, before):
    """Whatever the source raises, first or later, is raised where it is read: the same error, in no group."""
    error = UpstreamError("no answer came", "network")

    async def broken():
        source = Source(*before, (wait, error))
        with pytest.raises(UpstreamError) as raised:
            await read(source)
        return raised.value, source

    found, source = run(broken)
    assert found is error
    assert source.closed_at == wait + len(before)


@pytest.mark.parametrize("kind", [SystemExit, CancelledError])
def test_what_is_no_exception_comes_out_too(kind):
    """A source that is stopped from outside stops the reader in the same way, not with nothing at all."""

    async def broken():
        error = kind()
        with pytest.raises(kind) as raised:
            await read(Source((15, error)))
        return raised.value is error

    assert run(broken)


def test_no_waiting_item_is_given_up_for_a_sign():
    """However many signs are sent meanwhile, the item is awaited once, and its wait is never broken off."""

    async def patient():
        source = Source((1_000, "a"))
        await read(source)
        return source.asked, source.given_up

    assert run(patient) == (1, 0)


@pytest.mark.parametrize("seen", [1, 3, 4, 5])
def test_who_leaves_early_closes_the_source(seen):
    """Between signs, at the first item and behind it: the source is closed there and then, and nothing waits on."""

    async def leaving():
        source = Source((35, "a"), (0, "b"), (1_000, "c"))
        async with aclosing(source.kept) as kept:
            for _ in range(seen):
                await anext(kept)
            left = now()
        return left == source.closed_at == now()

    assert run(leaving)


@pytest.mark.parametrize("seconds", [5, 15, 40])
def test_a_cancelled_reader_cancels_the_source(seconds):
    """Before the first sign, between signs and behind the first item: the source's wait ends with its reader's."""

    async def cancelled():
        source = Source((35, "a"), (1_000, "b"))
        with anyio.move_on_after(seconds) as scope:
            await read(source)
        return scope.cancelled_caught, source.given_up, source.closed_at == now(), now()

    assert run(cancelled) == (True, 1, True, seconds)


def test_an_error_thrown_in_comes_out():
    """What the reader throws into it at a sign is raised as it is, and closes the source."""

    async def thrown():
        source = Source((35, "a"))
        await anext(source.kept)
        with pytest.raises(ZeroDivisionError):
            await source.kept.athrow(ZeroDivisionError())
        return source.closed_at

    assert run(thrown) == 10


def test_a_source_that_cannot_be_closed_is_read():
    """Any iterator will do."""

    class Counted:
        left = 2

        def __aiter__(self):
            return self

        async def __anext__(self):
            await anyio.sleep(15)
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return self.left

    async def all_of_it():
        async with aclosing(kept_alive(Counted(), SIGN, 10)) as kept:
            return [item async for item in kept]

    assert run(all_of_it) == [ALIVE, 1, 0]


def test_readers_scopes_may_stand_between_items():
    """A deadline of the reader's own around each write, as a server has one, does not get in the way."""

    async def written():
        seen = []
        async with aclosing(Source((25, "a"), (5, "b")).kept) as kept:
            async for item in kept:
                with anyio.fail_after(1):
                    await anyio.lowlevel.checkpoint()
                    seen.append(item)
        return seen

    assert run(written) == [ALIVE, ALIVE, "a", "b"]


# -- a session behind it -----------------------------------------------------------------------------------------------


def body(api):
    return {"model": MODELS[api], "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "hello"}]}


def test_a_run_is_kept_alive_and_left():
    """A session's run behind it: signs while the provider is silent, the run's own events, and where the client
    leaves before the first the session goes on with the next request."""

    async def asked(session, most):
        seen = []
        async with session.run(body("anthropic")) as going, aclosing(kept_alive(aiter(going), SIGN, 10)) as kept:
            async for item in kept:
                seen.append(item)
                if len(seen) == most:
                    break
        return seen

    async def both():
        upstream = ProviderUpstream(Provider(), latency=35)
        async with Engine.open(MemoryStore(), upstream=upstream) as engine:
            session = await engine.session("kelp")
            return await asked(session, 1), await asked(session, 0), len(upstream.sent)

    left, whole, sent = run(both)
    assert left == [ALIVE]
    assert whole[:3] == [ALIVE] * 3
    assert ALIVE not in whole[3:]
    assert b"message_stop" in whole[-1].raw
    assert sent == 2


# -- who reads over them -----------------------------------------------------------------------------------------------


def test_every_api_has_a_sign_for_streams_alone():
    """An answer in one piece has none: nothing may stand in it."""
    assert all(sign_of(api, stream=True) for api in APIS)
    assert not any(sign_of(api, stream=False) for api in (*APIS, ""))
    assert sign_of("", stream=True) == b""


def signed(api, sign):
    """Return connections on which every answer of a strict provider has signs of life before it."""
    upstream = ProviderUpstream(Provider())

    async def answer(sent):
        async with upstream.send(sent) as reply:
            return await reply.read()

    def respond(request):
        body = anyio.run(answer, Sent(api, request.content, MODELS[api], stream=True))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=sign * 2 + body)

    return httpx2.Client(transport=httpx2.MockTransport(respond))


def by_anthropic(http):
    from anthropic import Anthropic

    with Anthropic(api_key="any", http_client=http) as client:
        asked = {"model": MODELS["anthropic"], "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
        with client.messages.stream(**asked) as stream:
            return stream.get_final_text()


def by_chat(http):
    from openai import OpenAI

    with OpenAI(api_key="any", http_client=http) as client:
        asked = {"model": MODELS["openai-chat"], "messages": [{"role": "user", "content": "hello"}], "stream": True}
        chunks = list(client.chat.completions.create(**asked))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def by_responses(http):
    from openai import OpenAI

    with (
        OpenAI(api_key="any", http_client=http) as client,
        client.responses.stream(model=MODELS["openai-responses"], input="hello") as stream,
    ):
        return stream.get_final_response().output_text


def by_gemini(http):
    from google import genai

    with genai.Client(api_key="any", http_options=genai.types.HttpOptions(httpx_client=http)) as client:
        chunks = client.models.generate_content_stream(model=MODELS["gemini"], contents="hello")
        return "".join(chunk.text or "" for chunk in chunks)


BY = {"anthropic": by_anthropic, "openai-chat": by_chat, "openai-responses": by_responses, "gemini": by_gemini}


@pytest.mark.parametrize("api", APIS)
def test_the_official_clients_read_over_them(api):
    """Each vendor's own SDK says the same of an answer with signs of life before it as of one without."""
    plain, kept = BY[api](signed(api, b"")), BY[api](signed(api, sign_of(api, stream=True)))
    assert plain == kept
    assert kept.startswith("ok")


def test_a_comment_is_nothing_for_googles_client():
    """Why Gemini's sign is a blank line: its SDK takes a comment for broken JSON. If this fails, it can be one."""
    with pytest.raises(Exception, match="keep-alive"):
        by_gemini(signed("gemini", SIGN))
