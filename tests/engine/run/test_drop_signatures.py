"""A conversation whose signatures the provider refuses continues without them, after a single refusal."""

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
SCRIPT = [
    ScriptedAnswer("", (("ls", {}),), "hm"),
    ScriptedAnswer("done", (), "ha"),
    ScriptedAnswer("more", (), "ho"),
    ScriptedAnswer("last", (), "he"),
]
TOOLS = {
    "anthropic": [{"name": "ls", "input_schema": {"type": "object"}}],
    "openai-responses": [{"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}],
    "gemini": [{"functionDeclarations": [{"name": "ls"}]}],
}
SIGNATURE_PATTERN = re.compile(rb'"(?:signature|encrypted_content|thoughtSignature)":"([^"]+)"')


@pytest.fixture
def other_key(monkeypatch):
    """Return a function after which the provider refuses its earlier signatures, as for another organisation."""
    return lambda: monkeypatch.setattr("holdfast.testing.provider.signatures.opaque_texts._SIGNING_KEY", b"another key")


def build_fields(api):
    options = {"max_tokens": 1_000} if api == "anthropic" else {}
    options |= {"store": False, "include": ["reasoning.encrypted_content"]} if api == "openai-responses" else {}
    return {"tools": TOOLS[api], **options}


def open_engine(api, upstream, store, seen_events=None, target=None):
    listen = None if seen_events is None else seen_events.append
    return Engine.open(store, upstream=upstream, target=target or TARGETS[api], fields=build_fields(api), listen=listen)


def build_provider(script=SCRIPT):
    return ProviderUpstream(Provider(ProviderSettings(tokenizer="words"), script))


def find_signatures(api, body):
    """Return the signatures and encrypted contents in a body, without dummies."""
    return {*SIGNATURE_PATTERN.findall(body)} - {DUMMY_SIGNATURE.encode()}


def build_user_message(api, text):
    """Return a user message in the form of an API."""
    return {"role": "user", "parts": [{"text": text}]} if api == "gemini" else {"role": "user", "content": text}


async def read_run(run):
    """Read a run to its end and return its answer."""
    async with run:
        async for _ in run:
            pass
    return run.answer


def build_tool_result(answer):
    (call,) = answer.message.calls
    return Message("tool", (ToolResult(call.id, call.name, (Text("a b"),)),))


def list_event_types(seen_events):
    return [type(event).__name__ for event in seen_events]


@pytest.mark.parametrize("api", TARGETS)
@pytest.mark.parametrize("is_inside_turn", [False, True], ids=["between turns", "in a turn"])
def test_refused_signatures_are_dropped_once_and_for_all(api, is_inside_turn, other_key):
    """After one refusal the old signatures are not sent again, also after a restart."""
    upstream, seen_events, store = build_provider(), [], MemoryStore()

    async def run_scenario():
        async with open_engine(api, upstream, store, seen_events) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(build_tool_result(await session.ask("go")))
            if not is_inside_turn:
                await session.ask()
            other_key()
            count_before = len(upstream.sent)
            seen_events.clear()
            await session.ask(*([] if is_inside_turn else ["on"]))
            assert len(upstream.sent) == count_before + 2
            (decided,) = [event for event in seen_events if isinstance(event, events.EditsDecided)]
            assert decided.rule == "unseal"
            assert list_event_types(seen_events) == [
                *("RequestStarted", "RequestRefused", "EditsDecided"),
                *("RequestStarted", "AnswerRecorded"),
            ]
            assert [type(decision) for _, decision in session.journal.state.view.active_decisions] == [DecisionEntry]
        async with open_engine(api, upstream, store, seen_events) as engine:
            seen_events.clear()
            await (await engine.session(SAMPLE_KEY)).ask("and")
            assert list_event_types(seen_events) == ["RequestStarted", "AnswerRecorded"]

    run_on_fake_clock(run_scenario)
    refused, without, later = (find_signatures(api, sent.body) for sent in upstream.sent[-3:])
    assert refused
    assert not without & refused
    assert not later & refused
    assert later or api == "gemini", "what was sealed since is sent"


@pytest.mark.parametrize("api", TARGETS)
def test_refused_signatures_are_dropped_from_every_later_client_body(api, other_key):
    """The client keeps sending the refused signatures, and each request is sent without them."""
    upstream, seen_events, store = build_provider(), [], MemoryStore()
    body = {"model": TARGETS[api].model, **build_fields(api)}
    api_spec = get_api_spec(api)
    body[api_spec.messages_field] = messages = [build_user_message(api, "go")]

    async def ask(session, *more):
        messages.extend(more)
        answer = await read_run(session.run(body, quiet=True, stream=False))
        messages.extend(msgspec.json.decode(raw) for raw in answer.history_elements)

    async def run_scenario():
        async with open_engine(api, upstream, store, seen_events) as engine:
            session = await engine.session(SAMPLE_KEY)
            for text in ("go", "on", "and", "last"):
                if text == "on":
                    other_key()
                await ask(session, *([] if text == "go" else [build_user_message(api, text)]))
            assert session.journal.moves_leaf
            assert [type(decision) for _, decision in session.journal.state.view.active_decisions] == [DecisionEntry]

    run_on_fake_clock(run_scenario)
    assert [kind for kind in list_event_types(seen_events) if kind in {"RequestRefused", "EditsDecided"}] == [
        "RequestRefused",
        "EditsDecided",
    ]
    first, refused, *rest = (find_signatures(api, sent.body) for sent in upstream.sent)
    assert len(rest) == 3
    assert not first
    assert refused
    assert not any(refused & found for found in rest)


def test_refused_native_compaction_is_replaced_by_its_readable_summary(other_key):
    """A native compaction is encrypted too; the log has its summary as text."""
    upstream, store = (
        build_provider([ScriptedAnswer("words " * 4_000), ScriptedAnswer("more"), ScriptedAnswer("last")]),
        MemoryStore(),
    )

    async def run_scenario():
        async with Engine.open(
            store,
            upstream=upstream,
            target=TARGETS["openai-responses"],
            fields=build_fields("openai-responses"),
            native=True,
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("kelp " * 400)
            await session.ask("on")
            assert (await session.compact()).author == "native"
            other_key()
            await session.ask("and")
            assert session.journal.state.view.compaction.native is None
            return [slot.message.text for slot in build_projection(session.journal.state)]

    shown = run_on_fake_clock(run_scenario)
    *_, refused, without = upstream.sent
    assert b'"compaction"' in refused.body
    assert b'"compaction"' not in without.body
    assert "kelp" in shown[0]


WHY = "messages.1.content.0: Invalid `signature` in `thinking` block"
REFUSAL = msgspec.json.encode({"type": "error", "error": {"type": "invalid_request_error", "message": WHY}})


@pytest.mark.parametrize("has_signature", [False, True])
def test_signature_refusal_without_signatures_ends_the_run(has_signature):
    """After the signatures are dropped, the same refusal is raised with its text."""
    thinking = Thinking("hm", ProviderSignature("anthropic", "", "c2VhbA=="))
    upstream = ScriptedUpstream([ScriptedReply((REFUSAL,), 400)] * 3)

    async def run_scenario():
        async with open_engine("anthropic", upstream, MemoryStore()) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append("go", Message("assistant", (*([thinking] if has_signature else []), Text("well"))))
            with pytest.raises(UpstreamError, match="Invalid `signature`"):
                await session.ask("on")

    run_on_fake_clock(run_scenario)
    assert len(upstream.sent) == 1 + has_signature


TARGET_WITHOUT_BINDING = get_target("anthropic", "claude-opus-4-5")
"""A model that accepts thinking in any history."""
THINKING = Thinking("hm", ProviderSignature("anthropic", "", "c2VhbA=="))
SIGNED_HISTORY = ("go", Message("assistant", (THINKING, Text("well"))))
OK_ANSWER = (
    b'{"type":"message","id":"m","role":"assistant","model":"m","content":[{"type":"text","text":"ok"}],'
    b'"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":1}}'
)
OTHER_ERROR = msgspec.json.encode({"type": "error", "error": {"type": "not_found_error", "message": "no such address"}})
REFUSED_AGAIN_CASES = [
    ([400, 400], [True, False]),
    ([400, 404, 400], [True, False, False]),
    ([400, 529, 400], [True, False, False]),
]
"""The provider's statuses before it accepts, and whether each request contains the signature."""


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize(
    ("statuses", "has_signature_by_request"), REFUSED_AGAIN_CASES, ids=["at once", "after an error", "after a wait"]
)
def test_dropped_signatures_are_restored_when_dropping_did_not_help(statuses, has_signature_by_request, is_reopened):
    """When the refusal stays the same, the decision is revoked with a notice; an error in between is no answer."""
    bodies = {400: REFUSAL, 404: OTHER_ERROR, 529: OTHER_ERROR}
    upstream = ScriptedUpstream(
        [*(ScriptedReply((bodies[status],), status) for status in statuses), ScriptedReply((OK_ANSWER,), 200)]
    )
    seen_events, store = [], MemoryStore()

    async def ask(session, *inputs):
        await read_run(session.run(inputs, quiet=True, stream=False))

    async def run_scenario():
        async with open_engine("anthropic", upstream, store, seen_events, TARGET_WITHOUT_BINDING) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SIGNED_HISTORY, "on")
            while len(upstream.sent) < len(statuses):
                with pytest.raises(UpstreamError):
                    await ask(session)
                if is_reopened:
                    session = await engine.session(SAMPLE_KEY)
            assert session.journal.state.view.active_decisions == ()
            await ask(session)
            path = store.read_path(SAMPLE_KEY, session.journal.leaf)
        return [type(entry.body) for entry in path if isinstance(entry.body, DecisionEntry | RevokeEntry)]

    assert run_on_fake_clock(run_scenario) == [DecisionEntry, RevokeEntry]
    assert [b"c2VhbA==" in sent.body for sent in upstream.sent] == [*has_signature_by_request, True]
    assert [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)] == ["unseal"]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_dropping_signatures_is_tried_once_until_the_next_answer(is_reopened):
    """That dropping does not help is in the log; after an answer a refusal may be a real one again."""
    replies = [
        *[ScriptedReply((REFUSAL,), 400)] * 4,
        ScriptedReply((OK_ANSWER,), 200),
        ScriptedReply((REFUSAL,), 400),
        ScriptedReply((OK_ANSWER,), 200),
    ]
    upstream, seen_events, store = ScriptedUpstream(replies), [], MemoryStore()

    async def run_scenario():
        async with open_engine("anthropic", upstream, store, seen_events, TARGET_WITHOUT_BINDING) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SIGNED_HISTORY)
            for tries in (2, 1, 1):
                count_before = len(upstream.sent)
                with pytest.raises(UpstreamError):
                    await read_run(session.run(("on",), quiet=True, stream=False))
                assert len(upstream.sent) == count_before + tries
                if is_reopened:
                    session = await engine.session(SAMPLE_KEY)
            for _ in range(2):
                await read_run(session.run(("on",), quiet=True, stream=False))
            return [type(decision) for _, decision in session.journal.state.view.active_decisions]

    assert run_on_fake_clock(run_scenario) == [DecisionEntry]
    assert [b"c2VhbA==" in sent.body for sent in upstream.sent] == [True, False, True, True, True, True, False]
    assert [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)] == ["unseal"]


def test_dropped_signatures_stay_dropped_after_an_answer():
    """An answer came without them, so a later refusal of this kind restores nothing."""
    replies = [ScriptedReply((REFUSAL,), 400), ScriptedReply((OK_ANSWER,), 200), ScriptedReply((REFUSAL,), 400)]
    upstream = ScriptedUpstream(replies)

    async def run_scenario():
        async with open_engine("anthropic", upstream, MemoryStore(), None, TARGET_WITHOUT_BINDING) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SIGNED_HISTORY, "on")
            await read_run(session.run((), quiet=True, stream=False))
            with pytest.raises(UpstreamError):
                await read_run(session.run(("more",), quiet=True, stream=False))
            return [type(decision) for _, decision in session.journal.state.view.active_decisions]

    assert run_on_fake_clock(run_scenario) == [DecisionEntry]
    assert [b"c2VhbA==" in sent.body for sent in upstream.sent] == [True, False, False]


@pytest.mark.parametrize("is_prepared_again", [True, False])
def test_session_record_restores_signatures_when_dropping_did_not_help(is_prepared_again):
    """Only for a request prepared again: the same bytes, refused twice, still had the signatures."""
    seen_events, error = [], parse_answer("anthropic", REFUSAL)

    async def run_scenario():
        async with open_engine(
            "anthropic", build_provider(), MemoryStore(), seen_events, TARGET_WITHOUT_BINDING
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*SIGNED_HISTORY)
            await session.prepare("on")
            await session.record(error)
            if is_prepared_again:
                await session.prepare()
            await session.record(error)
            return len(session.journal.state.view.active_decisions)

    assert run_on_fake_clock(run_scenario) == (0 if is_prepared_again else 1)
    assert list_event_types(seen_events) == ["EditsDecided", *(["NoticeGiven"] if is_prepared_again else [])]


@pytest.mark.parametrize("reason", ["as it is", "switched off"])
def test_signatures_are_kept_in_requests_that_must_not_change(reason):
    """A request sent as it is, or by a policy without recovery, is refused as it is."""
    answer = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2VhbA=="}]}
    answer["content"].append({"type": "text", "text": "well"})
    messages = [{"role": "user", "content": "go"}, answer, {"role": "user", "content": "on"}]
    body = {"model": TARGETS["anthropic"].model, **build_fields("anthropic"), "messages": messages}
    upstream, store = ScriptedUpstream([ScriptedReply((REFUSAL,), 400)] * 2), MemoryStore()
    policy = Policy().with_settings(recovery={"enabled": reason == "as it is"})

    async def run_scenario():
        async with Engine.open(store, upstream=upstream, target=TARGETS["anthropic"], policy=policy) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(UpstreamError):
                await read_run(session.run(body, as_it_is=reason == "as it is", quiet=True))
            assert session.journal.state.view.active_decisions == ()

    run_on_fake_clock(run_scenario)
    assert len(upstream.sent) == 1


def test_session_record_of_a_signature_refusal_drops_signatures(other_key):
    """A recorded refusal counts for the next prepared request, and is reported."""
    upstream, seen_events, api = build_provider(), [], "openai-responses"

    async def send(session, *messages):
        prepared = await session.prepare(*messages)
        upstream_request = UpstreamRequest(
            api, render_prepared_request(prepared, session.get_default_fields()), TARGETS[api].model
        )
        async with upstream.send(upstream_request) as reply:
            answer = parse_answer(api, await reply.read_body())
        await session.record(answer)
        return answer

    async def run_scenario():
        async with open_engine(api, upstream, MemoryStore(), seen_events) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(build_tool_result(await send(session, "go")))
            other_key()
            assert (await send(session)).error is not None
            assert (await send(session)).message.text == "done"

    run_on_fake_clock(run_scenario)
    assert list_event_types(seen_events) == ["EditsDecided"]
    assert not find_signatures(api, upstream.sent[-1].body)
