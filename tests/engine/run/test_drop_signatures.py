"""A conversation whose signatures its provider takes no more goes on without them, at the cost of one refusal."""

from __future__ import annotations

import re

import msgspec
import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.request_template import render_prepared_request
from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.errors import UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolResult
from holdfast.normalize.signatures import DUMMY_SIGNATURE
from holdfast.planning.pipeline import Policy
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.providers.registry import get_api_spec
from holdfast.state.entries import DecisionEntry, RevokeEntry
from holdfast.state.view import build_projection
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

TARGETS = {
    "anthropic": get_target("anthropic", "claude-opus-5-5"),
    "openai-responses": get_target("openai-responses", "gpt-5.5"),
    "gemini": get_target("gemini", "gemini-3-pro"),
}
SAID = [
    ScriptedAnswer("", (("ls", {}),), "hm"),
    ScriptedAnswer("done", (), "ha"),
    ScriptedAnswer("more", (), "ho"),
    ScriptedAnswer("last", (), "he"),
]
TOOLS = {
    "anthropic": [{"name": "ls", "input_schema": {"type": "object"}}],
    "openai-responses": [{"type": "function", "name": "ls", "parameters": {"type": "object"}}],
    "gemini": [{"functionDeclarations": [{"name": "ls"}]}],
}
SEALS = re.compile(rb'"(?:signature|encrypted_content|thoughtSignature)":"([^"]+)"')


@pytest.fixture
def other_key(monkeypatch):
    """Return what lets the provider know no seal that it made so far: another organisation asks."""
    return lambda: monkeypatch.setattr("holdfast.testing.provider.signatures.opaque_texts._SEAL_KEY", b"another key")


def fields(api):
    more = {"max_tokens": 1_000} if api == "anthropic" else {}
    more |= {"store": False, "include": ["reasoning.encrypted_content"]} if api == "openai-responses" else {}
    return {"tools": TOOLS[api], **more}


def opened(api, upstream, store, heard=None, goal=None):
    listen = None if heard is None else heard.append
    return Engine.open(store, upstream=upstream, target=goal or TARGETS[api], fields=fields(api), listen=listen)


def provider(said=SAID):
    return ProviderUpstream(Provider(ProviderSettings(tokenizer="words"), said))


def seals(api, body):
    """Return what is sealed in a body, stand-ins for it aside."""
    return {*SEALS.findall(body)} - {DUMMY_SIGNATURE.encode()}


def spoken(api, text):
    """Return words of the user's in the form of an API."""
    return {"role": "user", "parts": [{"text": text}]} if api == "gemini" else {"role": "user", "content": text}


async def read(going):
    """Return the answer of a run that is read to its end."""
    async with going:
        async for _ in going:
            pass
    return going.answer


def result(told):
    (call,) = told.message.calls
    return Message("tool", (ToolResult(call.id, call.name, (Text("a b"),)),))


def kinds(heard):
    return [type(event).__name__ for event in heard]


@pytest.mark.parametrize("api", TARGETS)
@pytest.mark.parametrize("early", [False, True], ids=["between turns", "in a turn"])
def test_what_is_sealed_goes_once_and_for_all(api, early, other_key):
    """One refusal, one request without what was sealed before; later ones are taken at once, after a restart too."""
    upstream, heard, store = provider(), [], MemoryStore()

    async def go():
        async with opened(api, upstream, store, heard) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(result(await session.ask("go")))
            if not early:
                await session.ask()
            other_key()
            before = len(upstream.sent)
            heard.clear()
            await session.ask(*([] if early else ["on"]))
            assert len(upstream.sent) == before + 2
            (decided,) = [event for event in heard if isinstance(event, events.EditsDecided)]
            assert decided.rule == "unseal"
            assert kinds(heard) == [
                *("RequestStarted", "RequestRefused", "EditsDecided"),
                *("RequestStarted", "AnswerRecorded"),
            ]
            assert [type(what) for _, what in session.journal.state.view.active_decisions] == [DecisionEntry]
        async with opened(api, upstream, store, heard) as engine:
            heard.clear()
            await (await engine.session(SAMPLE_KEY)).ask("and")
            assert kinds(heard) == ["RequestStarted", "AnswerRecorded"]

    run_on_fake_clock(go)
    refused, without, later = (seals(api, sent.body) for sent in upstream.sent[-3:])
    assert refused
    assert not without & refused
    assert not later & refused
    assert later or api == "gemini", "what was sealed since is sent"


@pytest.mark.parametrize("api", TARGETS)
def test_a_whole_conversation_that_keeps_its_seals_is_sent_without(api, other_key):
    """A client sends them again with each request, and knows nothing: they are left out of every one."""
    upstream, heard, store = provider(), [], MemoryStore()
    body = {"model": TARGETS[api].model, **fields(api)}
    form = get_api_spec(api)
    body[form.messages_field] = said = [spoken(api, "go")]

    async def ask(session, *more):
        said.extend(more)
        told = await read(session.run(body, quiet=True, stream=False))
        said.extend(msgspec.json.decode(raw) for raw in told.history_elements)

    async def go():
        async with opened(api, upstream, store, heard) as engine:
            session = await engine.session(SAMPLE_KEY)
            for words in ("go", "on", "and", "last"):
                if words == "on":
                    other_key()
                await ask(session, *([] if words == "go" else [spoken(api, words)]))
            assert session.journal.moves_leaf
            assert [type(what) for _, what in session.journal.state.view.active_decisions] == [DecisionEntry]

    run_on_fake_clock(go)
    assert [kind for kind in kinds(heard) if kind in {"RequestRefused", "EditsDecided"}] == [
        "RequestRefused",
        "EditsDecided",
    ]
    first, refused, *rest = (seals(api, sent.body) for sent in upstream.sent)
    assert len(rest) == 3
    assert not first
    assert refused
    assert not any(refused & one for one in rest)


def test_what_the_provider_compacted_is_shown_by_its_readable_twin(other_key):
    """A compaction that only the provider can read is sealed too: the log has the same in words."""
    upstream, store = (
        provider([ScriptedAnswer("words " * 4_000), ScriptedAnswer("more"), ScriptedAnswer("last")]),
        MemoryStore(),
    )

    async def go():
        async with Engine.open(
            store, upstream=upstream, target=TARGETS["openai-responses"], fields=fields("openai-responses"), native=True
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("kelp " * 400)
            await session.ask("on")
            assert (await session.compact()).author == "native"
            other_key()
            await session.ask("and")
            assert session.journal.state.view.compaction.native is None
            return [slot.message.text for slot in build_projection(session.journal.state)]

    shown = run_on_fake_clock(go)
    *_, refused, without = upstream.sent
    assert b'"compaction"' in refused.body
    assert b'"compaction"' not in without.body
    assert "kelp" in shown[0]


WHY = "messages.1.content.0: Invalid `signature` in `thinking` block"
REFUSED = msgspec.json.encode({"type": "error", "error": {"type": "invalid_request_error", "message": WHY}})


@pytest.mark.parametrize("sealed", [False, True])
def test_a_provider_that_is_never_content_is_asked_once_more_at_most(sealed):
    """With nothing sealed any more the same refusal is the end of the run, and the error says what it was."""
    thinking = Thinking("hm", ProviderSignature("anthropic", "", "c2VhbA=="))
    upstream = ScriptedUpstream([ScriptedReply((REFUSED,), 400)] * 3)

    async def go():
        async with opened("anthropic", upstream, MemoryStore()) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append("go", Message("assistant", (*([thinking] if sealed else []), Text("well"))))
            with pytest.raises(UpstreamError, match="Invalid `signature`"):
                await session.ask("on")

    run_on_fake_clock(go)
    assert len(upstream.sent) == 1 + sealed


UNBOUND = get_target("anthropic", "claude-opus-4-5")
"""It takes thinking that it did not see before."""
THINKING = Thinking("hm", ProviderSignature("anthropic", "", "c2VhbA=="))
SAID_BEFORE = ("go", Message("assistant", (THINKING, Text("well"))))
WELL = (
    b'{"type":"message","id":"m","role":"assistant","model":"m","content":[{"type":"text","text":"ok"}],'
    b'"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":1}}'
)
OTHERWISE = msgspec.json.encode({"type": "error", "error": {"type": "not_found_error", "message": "no such address"}})
UNDONE = [
    ([400, 400], [True, False]),
    ([400, 404, 400], [True, False, False]),
    ([400, 529, 400], [True, False, False]),
]
"""What the provider answers until it says well, and whether each request shows what was sealed."""


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize(("statuses", "shown"), UNDONE, ids=["at once", "after an error", "after a wait"])
def test_what_was_left_out_in_vain_is_shown_again(statuses, shown, reopened):
    """Refused the same way without it, the decision is revoked and that is told; what was meanwhile is no answer."""
    words = {400: REFUSED, 404: OTHERWISE, 529: OTHERWISE}
    upstream = ScriptedUpstream([*(ScriptedReply((words[one],), one) for one in statuses), ScriptedReply((WELL,), 200)])
    heard, store = [], MemoryStore()

    async def ask(session, *said):
        await read(session.run(said, quiet=True, stream=False))

    async def go():
        async with opened("anthropic", upstream, store, heard, UNBOUND) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SAID_BEFORE, "on")
            while len(upstream.sent) < len(statuses):
                with pytest.raises(UpstreamError):
                    await ask(session)
                if reopened:
                    session = await engine.session(SAMPLE_KEY)
            assert session.journal.state.view.active_decisions == ()
            await ask(session)
            path = store.read_path(SAMPLE_KEY, session.journal.leaf)
        return [type(entry.body) for entry in path if isinstance(entry.body, DecisionEntry | RevokeEntry)]

    assert run_on_fake_clock(go) == [DecisionEntry, RevokeEntry]
    assert [b"c2VhbA==" in sent.body for sent in upstream.sent] == [*shown, True]
    assert [event.rule for event in heard if isinstance(event, events.NoticeGiven)] == ["unseal"]


@pytest.mark.parametrize("reopened", [False, True])
def test_a_provider_that_refuses_whatever_is_sent_is_asked_once_a_request(reopened):
    """That leaving out is no help is learned once, in the log; behind an answer a refusal may be a real one again."""
    given = [
        *[ScriptedReply((REFUSED,), 400)] * 4,
        ScriptedReply((WELL,), 200),
        ScriptedReply((REFUSED,), 400),
        ScriptedReply((WELL,), 200),
    ]
    upstream, heard, store = ScriptedUpstream(given), [], MemoryStore()

    async def go():
        async with opened("anthropic", upstream, store, heard, UNBOUND) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SAID_BEFORE)
            for times in (2, 1, 1):
                before = len(upstream.sent)
                with pytest.raises(UpstreamError):
                    await read(session.run(("on",), quiet=True, stream=False))
                assert len(upstream.sent) == before + times
                if reopened:
                    session = await engine.session(SAMPLE_KEY)
            for _ in range(2):
                await read(session.run(("on",), quiet=True, stream=False))
            return [type(what) for _, what in session.journal.state.view.active_decisions]

    assert run_on_fake_clock(go) == [DecisionEntry]
    assert [b"c2VhbA==" in sent.body for sent in upstream.sent] == [True, False, True, True, True, True, False]
    assert [event.rule for event in heard if isinstance(event, events.NoticeGiven)] == ["unseal"]


def test_what_was_left_out_with_success_stays_out():
    """An answer came without it: a later refusal of the kind takes nothing back of that."""
    given = [ScriptedReply((REFUSED,), 400), ScriptedReply((WELL,), 200), ScriptedReply((REFUSED,), 400)]
    upstream = ScriptedUpstream(given)

    async def go():
        async with opened("anthropic", upstream, MemoryStore(), None, UNBOUND) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SAID_BEFORE, "on")
            await read(session.run((), quiet=True, stream=False))
            with pytest.raises(UpstreamError):
                await read(session.run(("more",), quiet=True, stream=False))
            return [type(what) for _, what in session.journal.state.view.active_decisions]

    assert run_on_fake_clock(go) == [DecisionEntry]
    assert [b"c2VhbA==" in sent.body for sent in upstream.sent] == [True, False, False]


@pytest.mark.parametrize("anew", [True, False])
def test_who_sends_by_hand_has_it_again_where_it_was_no_help(anew):
    """Only of a request that was prepared anew: the same bytes, refused once more, still had it in them."""
    heard, error = [], parse_answer("anthropic", REFUSED)

    async def go():
        async with opened("anthropic", provider(), MemoryStore(), heard, UNBOUND) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SAID_BEFORE)
            await session.prepare("on")
            await session.record(error)
            if anew:
                await session.prepare()
            await session.record(error)
            return len(session.journal.state.view.active_decisions)

    assert run_on_fake_clock(go) == (0 if anew else 1)
    assert kinds(heard) == ["EditsDecided", *(["NoticeGiven"] if anew else [])]


@pytest.mark.parametrize("how", ["as it is", "switched off"])
def test_nothing_is_left_out_where_nothing_may_be_changed(how):
    """What is only looked at, and what a policy without recovery sends, is refused as it is."""
    said = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2VhbA=="}]}
    said["content"].append({"type": "text", "text": "well"})
    words = [{"role": "user", "content": "go"}, said, {"role": "user", "content": "on"}]
    body = {"model": TARGETS["anthropic"].model, **fields("anthropic"), "messages": words}
    upstream, store = ScriptedUpstream([ScriptedReply((REFUSED,), 400)] * 2), MemoryStore()
    policy = Policy().with_settings(recovery={"enabled": how == "as it is"})

    async def go():
        async with Engine.open(store, upstream=upstream, target=TARGETS["anthropic"], policy=policy) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(UpstreamError):
                await read(session.run(body, as_it_is=how == "as it is", quiet=True))
            assert session.journal.state.view.active_decisions == ()

    run_on_fake_clock(go)
    assert len(upstream.sent) == 1


def test_who_sends_by_hand_leaves_it_out_too(other_key):
    """A refusal that is recorded counts for the next request that is prepared, and is told."""
    upstream, heard, api = provider(), [], "openai-responses"

    async def sent(session, *said):
        prepared = await session.prepare(*said)
        sending = UpstreamRequest(
            api, render_prepared_request(prepared, session.get_default_fields()), TARGETS[api].model
        )
        async with upstream.send(sending) as reply:
            told = parse_answer(api, await reply.read_body())
        await session.record(told)
        return told

    async def go():
        async with opened(api, upstream, MemoryStore(), heard) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(result(await sent(session, "go")))
            other_key()
            assert (await sent(session)).error is not None
            assert (await sent(session)).message.text == "done"

    run_on_fake_clock(go)
    assert kinds(heard) == ["EditsDecided"]
    assert not seals(api, upstream.sent[-1].body)
