"""Compaction by the provider: through the journal into later requests, byte for byte, for the same model alone."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine.compaction.native import build_head_request, compact_by_provider, extract_server_compaction
from holdfast.engine.compaction.summary_writer import CompactionContext
from holdfast.engine.engine import Engine
from holdfast.engine.environment.environment import load_environment
from holdfast.engine.log.journal import Journal
from holdfast.engine.request_template import (
    RequestOptions,
    build_template_from_body,
    build_template_from_fields,
    parse_and_measure_body,
)
from holdfast.engine.upstream.replies import ask_upstream, convert_answer_for_log
from holdfast.engine.upstream.upstream import Reply, UpstreamRequest
from holdfast.errors import CompactionFailed, DeadlineExceeded, OperationAborted, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.providers.common.compaction import add_beta_header
from holdfast.providers.native_compaction import (
    NativeCompactionResult,
    build_server_compaction_fields,
    find_required_betas,
)
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, SummaryResult
from holdfast.state.view import NativeSummary
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

CLAUDE, GPT = "claude-opus-5-5", "gpt-5.5"
MODELS = {"anthropic": CLAUDE, "openai-responses": GPT}
OTHERS = {"anthropic": "claude-sonnet-5-5", "openai-responses": "gpt-5.6-sol"}
FIELDS = {
    "anthropic": {
        "max_tokens": 900,
        "system": "Be brief.",
        "thinking": {"type": "adaptive"},
        "tools": [{"name": "read", "input_schema": {"type": "object", "properties": {}}}],
    },
    "openai-responses": {
        "instructions": "Be brief.",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    },
    "openai-chat": {"tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]},
    "gemini": {"tools": [{"functionDeclarations": [{"name": "read"}]}]},
}
WORDS = ProviderSettings(tokenizer="words")
FAST = Policy().with_settings(summarizer={"retry_base_seconds": 0.0, "retry_cap_seconds": 0.0}).settings
both = pytest.mark.parametrize("api", MODELS)
STEPS = 14
LONG = " ".join(f"kelp{number} holds" for number in range(400))


def goal(api, model="", window=60_000):
    return get_target(api, model or MODELS[api], window=window)


def frame(api, *, thinks=True):
    """Return the fields beside the messages."""
    return {key: value for key, value in FIELDS[api].items() if thinks or key != "thinking"}


class Talk:
    """A journal, and the strict provider that answers it."""

    def __init__(self, api="anthropic", *, script=None, fields=None, window=60_000, thinks=True):
        read = ScriptedAnswer("", (("read", {"path": "f"}),), "Let me see." if thinks else "")
        self.provider = Provider(WORDS, script or [read] * STEPS)
        self.upstream = ProviderUpstream(self.provider)
        self.journal = Journal.open(MemoryStore(), SAMPLE_KEY)
        self.request = build_template_from_fields(
            goal(api, window=window), frame(api, thinks=thinks) | (fields or {}), RequestOptions(stream=False)
        )

    @property
    def target(self):
        return self.request.target

    def sent(self, prepared, request=None):
        """Return what goes out for a prepared request, with the betas that it needs."""
        sent = (request or self.request).build_upstream_request(prepared)
        return replace(sent, headers=add_beta_header({}, find_required_betas(sent.api, sent.body)))

    def prepared(self, request=None):
        return self.journal.prepare_request((request or self.request).target, PlanInputs())

    async def ask(self, *said, request=None):
        """Say something; return the request's body and its answer, which is in the log."""
        self.journal.append(*said)
        sent = self.sent(self.prepared(request), request)
        told = await ask_upstream(self.upstream, sent)
        assert told.error is None, told.error
        self.journal.record_answer(*convert_answer_for_log(told, sent.api))
        return sent.body, told

    async def work(self, steps=STEPS):
        """Run an agent that reads a long file again and again; return its requests."""
        body, told = await self.ask(Message.from_text("user", "Read all of it."))
        bodies = [body]
        for _ in range(steps - 1):
            results = tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in told.message.calls)
            said = Message("tool", results) if results else Message.from_text("user", "Go on.")
            body, told = await self.ask(said)
            bodies.append(body)
        open_ = tuple(ToolResult(call.id, call.name, (Text("at last"),)) for call in told.message.calls)
        self.journal.append(Message("tool", open_) if open_ else Message.from_text("user", "And now?"))
        return bodies

    def asked(self):
        """Return what the planner asks for where somebody compacts."""
        return self.journal.plan_next(
            self.target, PlanInputs(force_compaction=True, can_summarize=True)
        ).summary_request

    async def native(self, stop, **options):
        """Return what the provider makes of the slots before ``stop``."""
        sent = build_head_request(self.journal.state, self.request, stop)
        return await compact_by_provider(self.upstream, sent, CompactionContext(FAST), **options)

    async def compact(self, **options):
        """Compact by the provider, and write that down; return what the provider made."""
        stop = self.asked().stop
        native = await self.native(stop, **options)
        world = PlanInputs(force_compaction=True, summary=SummaryResult(stop, "", "native", native))
        plan = self.journal.plan_next(self.target, world)
        assert plan.compaction is not None, plan.notices
        assert self.journal.write_decision(plan, self.target, world)
        return native


def items_of(native):
    """Return the items that a provider made, byte for byte."""
    return [bytes(item) for item in msgspec.json.decode(native, type=NativeSummary).items]


def contents(body, api):
    """Return the messages of a request, byte for byte, cache breakpoints aside."""
    listed = msgspec.json.decode(body, type=dict[str, Raw])[get_api_spec(api).messages_field]
    return [MARKER.sub(b"", bytes(one)) for one in msgspec.json.decode(listed, type=list[Raw])]


MARKER = re.compile(rb',"cache_control":\{"type":"ephemeral"\}')
"""A cache breakpoint, which may stand on any block, a compaction's too."""


# -- what is asked for -------------------------------------------------------------------------------------------------


@both
def test_the_head_goes_out_as_it_was_shown(api):
    """The request to compact begins with the very bytes of the last request, as far as the head goes."""
    talk = Talk(api)
    bodies = anyio.run(talk.work)
    stop = talk.asked().stop
    sent = build_head_request(talk.journal.state, talk.request, stop)
    shown = contents(sent.body, api)
    assert len(shown) > 8
    assert shown == contents(bodies[-1], api)[: len(shown)]
    assert not [one for one in validate_request(sent.body, api) if "prefill" not in one.rule]
    anyio.run(talk.native, stop)
    told = talk.provider.requests[-1]
    assert told.tokens > 5_000
    if api == "anthropic":
        assert told.cached > told.tokens / 2


@both
def test_a_body_that_was_handed_in_is_asked_as_it_is(api):
    """Where the caller handed in a body, its head is compacted in the caller's own bytes, with the fields it has."""
    talk = Talk(api)
    bodies = anyio.run(talk.work)
    own = build_request_body(api, MODELS[api], (), setup_fields=FIELDS[api]).replace(
        b'{"model":', b'{ "x-own" : 1,  "model":', 1
    )
    request = build_template_from_body(talk.target, parse_and_measure_body(own, api))
    sent = build_head_request(talk.journal.state, request, talk.asked().stop)
    assert sent.body.startswith(b'{ "x-own" : 1,  "model":')
    shown = contents(sent.body, api)
    assert shown == contents(bodies[-1], api)[: len(shown)]


@both
def test_nothing_is_lost_between_head_and_tail(api):
    """What was compacted and what is kept are the whole request: each message on one side, the tail byte for byte."""

    async def go():
        talk = Talk(api, thinks=False)
        await talk.work()
        whole = contents(talk.sent(talk.prepared()).body, api)
        head = contents(build_head_request(talk.journal.state, talk.request, talk.asked().stop).body, api)
        items = items_of(await talk.compact())
        after = contents(talk.sent(talk.prepared()).body, api)
        assert head + after[len(items) :] == whole

    anyio.run(go)


@both
def test_instructions_and_sources_go_along(api):
    """Instructions reach the provider, cut to their most; texts from their source stand behind what it made."""
    talk = Talk(api)
    anyio.run(talk.work)

    async def go():
        return await compact_by_provider(
            talk.upstream,
            build_head_request(talk.journal.state, talk.request, talk.asked().stop),
            CompactionContext(Policy(settings=FAST).with_settings(summarizer={"focus_chars": 12}).settings),
            instructions="the kelp now and nothing else",
            extra_texts=("Rules are rules.",),
        )

    items = items_of(anyio.run(go))
    assert b"Above all: the kelp now" in talk.upstream.sent[-1].body
    assert b"nothing else" not in talk.upstream.sent[-1].body
    assert b"Rules are rules." in items[-1]


# -- through the log ---------------------------------------------------------------------------------------------------


@both
def test_it_goes_out_byte_identical_to_the_same_model(api):
    """Committed, the provider's items open the next requests as they came, and the strict provider takes them."""

    async def go():
        talk = Talk(api)
        await talk.work()
        before = talk.journal.prepare_request(talk.target, PlanInputs()).plan.after
        items = items_of(await talk.compact())
        sizes = []
        for _ in range(3):
            body, told = await talk.ask()
            assert contents(body, api)[: len(items)] == items
            sizes.append(talk.provider.requests[-1].tokens)
            results = tuple(ToolResult(call.id, call.name, (Text("more"),)) for call in told.message.calls)
            talk.journal.append(Message("tool", results) if results else Message.from_text("user", "Go on."))
        assert max(sizes) < before / 2
        rebuilt = ConversationState.from_entries(talk.journal.store.read_path(SAMPLE_KEY, talk.journal.leaf))
        assert rebuilt.view.compaction.author == "native"
        reopened = Journal.open(talk.journal.store, SAMPLE_KEY)
        again = talk.sent(reopened.prepare_request(talk.target, PlanInputs())).body
        assert contents(again, api)[: len(items)] == items

    anyio.run(go)


@both
@pytest.mark.parametrize("elsewhere", ["another model", "openai-chat", "gemini"])
def test_others_read_the_twin(api, elsewhere):
    """Another model or API gets the readable twin and nothing of the provider's items; its provider takes that."""

    async def go():
        talk = Talk(api, thinks=False)
        await talk.work()
        items = items_of(await talk.compact())
        other = api if elsewhere == "another model" else elsewhere
        model = {"openai-chat": "gpt-5.5", "gemini": "gemini-3-pro"}.get(elsewhere, OTHERS[api])
        request = build_template_from_fields(
            goal(other, model), frame(other, thinks=False), RequestOptions(stream=False)
        )
        body, _ = await talk.ask(request=request)
        assert all(item not in body for item in items if b"compaction" in item)
        assert b"was replaced by this extract of it" in body
        back, _ = await talk.ask(Message.from_text("user", "Back again."))
        assert contents(back, api)[: len(items)] == items

    anyio.run(go)


@both
def test_undo_brings_the_messages_back(api):
    """Taken back, the compaction is out of the request, which shows every message again."""

    async def go():
        talk = Talk(api)
        await talk.work()
        whole = contents(talk.sent(talk.prepared()).body, api)
        await talk.compact()
        assert len(contents(talk.sent(talk.prepared()).body, api)) < len(whole)
        talk.journal.undo()
        assert len(contents(talk.sent(talk.prepared()).body, api)) == len(whole)
        await talk.ask()

    anyio.run(go)


@both
def test_a_compaction_of_a_compaction(api):
    """The next one is asked for with the last one in front, and takes its place; the provider takes that too."""

    async def go():
        talk = Talk(api, script=[ScriptedAnswer("", (("read", {"path": "f"}),), "Hm.")] * 40)
        await talk.work()
        first = items_of(await talk.compact())
        await talk.work()
        second = items_of(await talk.compact())
        shown = contents(talk.upstream.sent[-1].body, api)
        assert shown[: len(first)] == first
        body, _ = await talk.ask()
        assert contents(body, api)[: len(second)] == second
        assert first[-1] not in body

    anyio.run(go)


def test_the_planner_knows_its_size():
    """What the provider counted of its compaction is the size the planner goes by."""

    async def go():
        talk = Talk()
        await talk.work()
        native = msgspec.json.decode(await talk.compact())
        made = talk.journal.state.view.compaction
        assert native["tokens"] > 0
        assert made.native is not None
        assert made.head_tokens == pytest.approx(native["tokens"], rel=0.6)

    anyio.run(go)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


class Scripted:
    """An upstream that gives these replies, or raises these errors, one after the other."""

    def __init__(self, *replies):
        self.replies, self.sent = list(replies), []

    @asynccontextmanager
    async def send(self, sent):
        self.sent.append(sent)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        status, body = reply

        async def chunks():
            yield msgspec.json.encode(body)

        yield Reply(status, {"content-type": "application/json"}, chunks())


BODY = b'{"model":"claude-opus-5-5","max_tokens":9,"messages":[{"role":"user","content":"go"}]}'
SENT = UpstreamRequest("anthropic", BODY, CLAUDE, stream=True, headers={"anthropic-beta": "mine"})
FINE = (200, {"role": "assistant", "content": [{"type": "compaction", "content": "so far", "signature": "s"}]})
UNAVAILABLE = {"type": "api_error", "message": "later", "details": {"error_code": "compaction_unavailable"}}
LATER = (503, {"type": "error", "error": UNAVAILABLE})
NULL = (200, {"role": "assistant", "content": [{"type": "compaction", "content": None}]})
LOST = UpstreamError("no answer came", "network")


def tried(*replies, settings=FAST, **terms):
    """Return the upstream and what came of it: the items, or the error."""
    upstream = Scripted(*replies)

    async def go():
        try:
            return items_of(await compact_by_provider(upstream, SENT, CompactionContext(settings, **terms)))
        except CompactionFailed as error:
            return error

    return upstream, anyio.run(go)


def test_what_passes_is_tried_again():
    """Unavailable, lost, unavailable no more: three tries of the same bytes, each with our beta beside the caller's."""
    told = []
    upstream, found = tried(LATER, LOST, FINE, listener=told.append)
    assert found == [b'{"role":"assistant","content":[{"type":"compaction","content":"so far","signature":"s"}]}']
    assert len({sent.body for sent in upstream.sent}) == 1
    assert {sent.headers["anthropic-beta"] for sent in upstream.sent} == {"mine,compact-2026-09-04"}
    assert not upstream.sent[0].stream
    assert [event.attempt for event in told] == [1, 2]


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([LATER] * 3, "provider_error"),
        ([LOST] * 3, "provider_error"),
        ([ConnectionError("the tide is out")] * 3, "provider_error"),
        ([NULL], "summary_rejected"),
        ([(400, {"error": {"type": "invalid_request_error", "message": "prompt is too long"}})], "provider_error"),
        ([(401, {"error": {"type": "authentication_error", "message": "invalid x-api-key"}})], "provider_error"),
        ([UpstreamError("no key", "config")], "provider_error"),
        (
            [(400, {"error": {"message": "n", "details": {"error_code": "compaction_nothing_to_summarize"}}})],
            "nothing_to_compact",
        ),
        ([OperationAborted("the lane was cleared")], "cancelled"),
        ([DeadlineExceeded("too long")], "timed_out"),
    ],
)
def test_failures_have_their_word(replies, outcome):
    """What does not come about is a CompactionFailed with its outcome, after as many tries as may help."""
    upstream, found = tried(*replies)
    assert (found.outcome, len(upstream.sent)) == (outcome, len(replies))


def test_it_ends_in_its_time():
    """A provider that says nothing, for ever, is given up after the deadline of a summary."""
    upstream = ProviderUpstream(Provider(WORDS), [Fault("stall", "head")])

    async def go():
        with pytest.raises(CompactionFailed, match=r"raise summarizer\.timeout_seconds") as caught:
            await compact_by_provider(
                upstream,
                SENT,
                CompactionContext(Policy(settings=FAST).with_settings(summarizer={"timeout_seconds": 0.05}).settings),
            )
        return caught.value.outcome

    assert anyio.run(go) == "timed_out"


def test_the_permit_is_held_around_each_call():
    """The permit is taken for every try, and given back before the wait."""
    held = []

    @asynccontextmanager
    async def permit():
        held.append("in")
        yield
        held.append("out")

    upstream, found = tried(LATER, FINE, permit=permit)
    assert held[:1] + held[-2:] == ["in", "in", "out"]
    assert len(upstream.sent) == 2
    assert found


# -- through the engine ------------------------------------------------------------------------------------------------


@both
def test_a_session_compacts_by_its_provider(api):
    """With ``native`` a session's ``compact`` is the provider's; where the model cannot, an extract takes its place."""

    async def go(model):
        provider = Provider(WORDS, [ScriptedAnswer("", (("read", {"path": "f"}),), "Hm.")] * 30)
        upstream = ProviderUpstream(provider)
        fields = frame(api, thinks=False)
        async with Engine.open(
            MemoryStore(), upstream=upstream, target=goal(api, model), fields=fields, native=True
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            told = await session.ask("Read all of it.")
            for _ in range(STEPS):
                results = tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in told.message.calls)
                await session.append(Message("tool", results) if results else Message.from_text("user", "Go on."))
                told = await session.ask()
            done = await session.compact("the kelp")
            assert done.outcome == "compacted", done
            return done.author, session.journal.state.view.compaction

    by, made = anyio.run(go, MODELS[api])
    assert (by, made.author) == ("native", "native")
    if api == "anthropic":
        by, made = anyio.run(go, "claude-sonnet-4-5")
        assert (by, made.native) == ("extract", None)


def test_rules_that_changed_stand_behind_it(tmp_path):
    """What stands behind a summary from its source stands behind the provider's compaction too, as the user's."""
    rules = tmp_path / "AGENTS.md"
    rules.write_text("Kelp first.")
    own = load_environment(tmp_path)
    rules.write_text("Rock first.")

    async def go():
        upstream = ProviderUpstream(Provider(ProviderSettings(factor=1.3)))
        async with Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=goal("anthropic"),
            environment=own,
            fields={"max_tokens": 900},
            native=True,
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for _ in range(6):
                await session.ask(LONG * 3)
            assert (await session.compact()).author == "native"
            await session.ask("next")
            return items_of(session.journal.state.view.compaction.native), upstream.sent[-1].body

    items, shown = anyio.run(go)
    assert b"Rock first." in items[1]
    assert contents(shown, "anthropic")[0] == items[0]
    assert b"Rock first." in contents(shown, "anthropic")[1]


@both
def test_the_words_of_the_request_under_way_stand_behind_it(api, tmp_path):
    """A compaction in mid-turn takes no word of the newest request away, nor does the next after a restart."""
    asked = "Mend the tide table, and never touch kelp_4711.toml."

    async def go():
        store = tmp_path / "log.db"
        provider = Provider(
            WORDS, [ScriptedAnswer("Well."), *[ScriptedAnswer("", (("read", {"path": "f"}),), "Hm.")] * 30]
        )
        upstream = ProviderUpstream(provider)
        known = {"upstream": upstream, "target": goal(api), "fields": frame(api, thinks=False), "native": True}
        for turn in range(2):
            async with Engine.open(store, **known) as engine:
                session = await engine.session(SAMPLE_KEY)
                if not turn:
                    await session.ask("Hello.")
                    told = await session.ask(asked)
                for _ in range(STEPS):
                    results = tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in told.message.calls)
                    await session.append(Message("tool", results))
                    told = await session.ask()
                done = await session.compact()
                assert (done.outcome, done.author) == ("compacted", "native")
                results = tuple(ToolResult(call.id, call.name, (Text("ok"),)) for call in told.message.calls)
                await session.append(Message("tool", results))
                told = await session.ask()
                assert asked.encode() in upstream.sent[-1].body

    anyio.run(go)


# -- what a provider compacted while it answered -----------------------------------------------------------------------


@both
def test_a_threshold_is_taken_over(api):
    """An answer that compacted by itself: later requests open with its items, show no head, and are accepted."""
    least = {"anthropic": 50_000, "openai-responses": 1_000}[api]
    talk = Talk(
        api,
        script=[ScriptedAnswer("Well."), ScriptedAnswer("Well, well.")] * 9,
        fields=build_server_compaction_fields(api, least),
        window=900_000,
    )

    async def go():
        await talk.ask(Message.from_text("user", "the goal is kelp/holdfast.py"))
        _, told = await talk.ask(Message.from_text("user", "lorem ipsum " * 27_000))
        assert [part.kind for part in told.message.parts if not isinstance(part, Text)][:1] == ["compaction"]
        made = extract_server_compaction(talk.journal.state, talk.target, Policy(settings=FAST))
        assert (made.first_kept, made.author) == (3, "native")
        assert made.tokens_after < 2_000
        assert "kelp/holdfast.py" in made.summary.text
        plan = Plan(talk.journal.state, compaction=made)
        assert talk.journal.write_decision(plan, talk.target)
        items = items_of(made.native)
        for _ in range(2):
            body, _ = await talk.ask(Message.from_text("user", "next"))
            assert contents(body, api)[: len(items)] == items
            assert len(body) < 5_000
            assert body.count(b'"type":"compaction"') == len(items) + (b"compact_threshold" in body)

    anyio.run(go)


def test_a_plain_answer_is_not_taken_over():
    """Where the provider compacted nothing there is nothing to write."""
    talk = Talk(script=[ScriptedAnswer("Well.")])
    anyio.run(talk.ask, Message.from_text("user", "hello"))
    assert extract_server_compaction(talk.journal.state, talk.target, Policy(settings=FAST)) is None
    assert extract_server_compaction(ConversationState(), talk.target, Policy(settings=FAST)) is None


def test_what_was_made_is_compaction_native():
    """The log holds api, model, items and tokens, as one JSON value."""
    made = NativeCompactionResult((Raw(b'{"a":1}'),), 7).to_stored_json("anthropic", "m")
    assert CompactionEntry(1, native=made).native == Raw(
        b'{"api":"anthropic","model":"m","items":[{"a":1}],"tokens":7}'
    )
