"""Native compaction: the provider's items, byte for byte, in later requests to the same model only."""

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
OTHER_MODELS = {"anthropic": "claude-sonnet-5-5", "openai-responses": "gpt-5.6-sol"}
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
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}],
    },
    "openai-chat": {
        "tools": [
            {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
        ]
    },
    "gemini": {"tools": [{"functionDeclarations": [{"name": "read"}]}]},
}
WORDS = ProviderSettings(tokenizer="words")
FAST = Policy().with_settings(summarizer={"retry_base_seconds": 0.0, "retry_cap_seconds": 0.0}).settings
both_apis = pytest.mark.parametrize("api", MODELS)
STEPS = 14
LONG = " ".join(f"kelp{number} holds" for number in range(400))


def build_target(api, model="", window=60_000):
    return get_target(api, model or MODELS[api], window=window)


def build_fields(api, *, has_thinking=True):
    """Return the request fields beside the messages."""
    return {key: value for key, value in FIELDS[api].items() if has_thinking or key != "thinking"}


class Conversation:
    """A journal and the strict provider that answers its requests."""

    def __init__(self, api="anthropic", *, script=None, fields=None, window=60_000, has_thinking=True):
        read_call = ScriptedAnswer("", (("read", {"path": "f"}),), "Let me see." if has_thinking else "")
        self.provider = Provider(WORDS, script or [read_call] * STEPS)
        self.upstream = ProviderUpstream(self.provider)
        self.journal = Journal.open(MemoryStore(), SAMPLE_KEY)
        self.request = build_template_from_fields(
            build_target(api, window=window),
            build_fields(api, has_thinking=has_thinking) | (fields or {}),
            RequestOptions(stream=False),
        )

    @property
    def target(self):
        return self.request.target

    def build_request(self, prepared, request=None):
        """Return the request to send for a prepared one, with the beta headers that it needs."""
        sent = (request or self.request).build_upstream_request(prepared)
        return replace(sent, headers=add_beta_header({}, find_required_betas(sent.api, sent.body)))

    def prepare(self, request=None):
        return self.journal.prepare_request((request or self.request).target, PlanInputs())

    async def ask(self, *messages, request=None):
        """Append messages and ask; return the request's body and its answer, which is recorded."""
        self.journal.append(*messages)
        upstream_request = self.build_request(self.prepare(request), request)
        answer = await ask_upstream(self.upstream, upstream_request)
        assert answer.error is None, answer.error
        self.journal.record_answer(*convert_answer_for_log(answer, upstream_request.api))
        return upstream_request.body, answer

    async def work(self, steps=STEPS):
        """Run an agent loop that reads a long file in each step; return the request bodies."""
        body, answer = await self.ask(Message.from_text("user", "Read all of it."))
        bodies = [body]
        for _ in range(steps - 1):
            results = tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in answer.message.calls)
            message = Message("tool", results) if results else Message.from_text("user", "Go on.")
            body, answer = await self.ask(message)
            bodies.append(body)
        last_results = tuple(ToolResult(call.id, call.name, (Text("at last"),)) for call in answer.message.calls)
        self.journal.append(Message("tool", last_results) if last_results else Message.from_text("user", "And now?"))
        return bodies

    def plan_summary(self):
        """Return the planner's summary request for a forced compaction."""
        return self.journal.plan_next(
            self.target, PlanInputs(force_compaction=True, can_summarize=True)
        ).summary_request

    async def compact_head(self, stop, **options):
        """Return the provider's compaction of the messages before ``stop``."""
        head_request = build_head_request(self.journal.state, self.request, stop)
        return await compact_by_provider(self.upstream, head_request, CompactionContext(FAST), **options)

    async def compact(self, **options):
        """Compact by the provider and record it; return the provider's compaction."""
        stop = self.plan_summary().stop
        native = await self.compact_head(stop, **options)
        inputs = PlanInputs(force_compaction=True, summary=SummaryResult(stop, "", "native", native))
        plan = self.journal.plan_next(self.target, inputs)
        assert plan.compaction is not None, plan.notices
        assert self.journal.write_decision(plan, self.target, inputs)
        return native


def decode_items(native):
    """Return the items of a native compaction, byte for byte."""
    return [bytes(item) for item in msgspec.json.decode(native, type=NativeSummary).items]


def list_message_bytes(body, api):
    """Return the messages of a request, byte for byte, without cache breakpoints."""
    messages = msgspec.json.decode(body, type=dict[str, Raw])[get_api_spec(api).messages_field]
    return [MARKER.sub(b"", bytes(message)) for message in msgspec.json.decode(messages, type=list[Raw])]


MARKER = re.compile(rb',"cache_control":\{"type":"ephemeral"\}')
"""A cache breakpoint, which may stand on any block, also on a compaction's."""


# -- the compaction request --------------------------------------------------------------------------------------------


@both_apis
def test_build_head_request_repeats_the_bytes_of_the_last_request(api):
    """The compaction request begins with the bytes of the last request, up to the end of the head."""
    conversation = Conversation(api)
    bodies = anyio.run(conversation.work)
    stop = conversation.plan_summary().stop
    head_request = build_head_request(conversation.journal.state, conversation.request, stop)
    shown = list_message_bytes(head_request.body, api)
    assert len(shown) > 8
    assert shown == list_message_bytes(bodies[-1], api)[: len(shown)]
    assert not [problem for problem in validate_request(head_request.body, api) if "prefill" not in problem.rule]
    anyio.run(conversation.compact_head, stop)
    received = conversation.provider.requests[-1]
    assert received.tokens > 5_000
    if api == "anthropic":
        assert received.cached > received.tokens / 2


@both_apis
def test_build_head_request_keeps_a_caller_body_and_its_fields(api):
    """The head of a caller's body is compacted in the caller's own bytes, with its unknown fields."""
    conversation = Conversation(api)
    bodies = anyio.run(conversation.work)
    caller_body = build_request_body(api, MODELS[api], (), setup_fields=FIELDS[api]).replace(
        b'{"model":', b'{ "x-own" : 1,  "model":', 1
    )
    request = build_template_from_body(conversation.target, parse_and_measure_body(caller_body, api))
    head_request = build_head_request(conversation.journal.state, request, conversation.plan_summary().stop)
    assert head_request.body.startswith(b'{ "x-own" : 1,  "model":')
    shown = list_message_bytes(head_request.body, api)
    assert shown == list_message_bytes(bodies[-1], api)[: len(shown)]


@both_apis
def test_native_compaction_splits_the_request_into_head_and_tail(api):
    """Each message is either compacted or kept, and the kept ones are byte-identical."""

    async def run_scenario():
        conversation = Conversation(api, has_thinking=False)
        await conversation.work()
        all_messages = list_message_bytes(conversation.build_request(conversation.prepare()).body, api)
        head = list_message_bytes(
            build_head_request(conversation.journal.state, conversation.request, conversation.plan_summary().stop).body,
            api,
        )
        items = decode_items(await conversation.compact())
        after = list_message_bytes(conversation.build_request(conversation.prepare()).body, api)
        assert head + after[len(items) :] == all_messages

    anyio.run(run_scenario)


@both_apis
def test_compact_by_provider_sends_instructions_and_appends_extra_texts(api):
    """Instructions are cut to the limit and sent; texts from the source follow the provider's items."""
    conversation = Conversation(api)
    anyio.run(conversation.work)

    async def run_scenario():
        return await compact_by_provider(
            conversation.upstream,
            build_head_request(conversation.journal.state, conversation.request, conversation.plan_summary().stop),
            CompactionContext(Policy(settings=FAST).with_settings(summarizer={"focus_chars": 12}).settings),
            instructions="the kelp now and nothing else",
            extra_texts=("Rules are rules.",),
        )

    items = decode_items(anyio.run(run_scenario))
    assert b"Above all: the kelp now" in conversation.upstream.sent[-1].body
    assert b"nothing else" not in conversation.upstream.sent[-1].body
    assert b"Rules are rules." in items[-1]


# -- through the log ---------------------------------------------------------------------------------------------------


@both_apis
def test_native_compaction_is_sent_unchanged_to_the_same_model(api):
    """The provider's items open later requests byte for byte, also after a reload, and are accepted."""

    async def run_scenario():
        conversation = Conversation(api)
        await conversation.work()
        before = conversation.journal.prepare_request(conversation.target, PlanInputs()).plan.after
        items = decode_items(await conversation.compact())
        sizes = []
        for _ in range(3):
            body, answer = await conversation.ask()
            assert list_message_bytes(body, api)[: len(items)] == items
            sizes.append(conversation.provider.requests[-1].tokens)
            results = tuple(ToolResult(call.id, call.name, (Text("more"),)) for call in answer.message.calls)
            conversation.journal.append(Message("tool", results) if results else Message.from_text("user", "Go on."))
        assert max(sizes) < before / 2
        rebuilt = ConversationState.from_entries(
            conversation.journal.store.read_path(SAMPLE_KEY, conversation.journal.leaf)
        )
        assert rebuilt.view.compaction.author == "native"
        reopened = Journal.open(conversation.journal.store, SAMPLE_KEY)
        again = conversation.build_request(reopened.prepare_request(conversation.target, PlanInputs())).body
        assert list_message_bytes(again, api)[: len(items)] == items

    anyio.run(run_scenario)


@both_apis
@pytest.mark.parametrize("target_name", ["another model", "openai-chat", "gemini"])
def test_native_compaction_is_replaced_by_its_readable_summary_elsewhere(api, target_name):
    """Another model or API gets the readable summary and none of the provider's items."""

    async def run_scenario():
        conversation = Conversation(api, has_thinking=False)
        await conversation.work()
        items = decode_items(await conversation.compact())
        other = api if target_name == "another model" else target_name
        model = {"openai-chat": "gpt-5.5", "gemini": "gemini-3-pro"}.get(target_name, OTHER_MODELS[api])
        request = build_template_from_fields(
            build_target(other, model), build_fields(other, has_thinking=False), RequestOptions(stream=False)
        )
        body, _ = await conversation.ask(request=request)
        assert all(item not in body for item in items if b"compaction" in item)
        assert b"was replaced by this extract of it" in body
        body_after_return, _ = await conversation.ask(Message.from_text("user", "Back again."))
        assert list_message_bytes(body_after_return, api)[: len(items)] == items

    anyio.run(run_scenario)


@both_apis
def test_undo_of_a_native_compaction_restores_every_message(api):
    """After the undo the request shows every message again, and the provider accepts it."""

    async def run_scenario():
        conversation = Conversation(api)
        await conversation.work()
        all_messages = list_message_bytes(conversation.build_request(conversation.prepare()).body, api)
        await conversation.compact()
        assert len(list_message_bytes(conversation.build_request(conversation.prepare()).body, api)) < len(all_messages)
        conversation.journal.undo()
        assert len(list_message_bytes(conversation.build_request(conversation.prepare()).body, api)) == len(
            all_messages
        )
        await conversation.ask()

    anyio.run(run_scenario)


@both_apis
def test_native_compaction_replaces_the_previous_one(api):
    """The second compaction is requested with the items of the first in front, and takes their place."""

    async def run_scenario():
        conversation = Conversation(api, script=[ScriptedAnswer("", (("read", {"path": "f"}),), "Hm.")] * 40)
        await conversation.work()
        first = decode_items(await conversation.compact())
        await conversation.work()
        second = decode_items(await conversation.compact())
        shown = list_message_bytes(conversation.upstream.sent[-1].body, api)
        assert shown[: len(first)] == first
        body, _ = await conversation.ask()
        assert list_message_bytes(body, api)[: len(second)] == second
        assert first[-1] not in body

    anyio.run(run_scenario)


def test_native_compaction_is_planned_with_the_counted_size():
    """The planner uses the size that the provider reported for its compaction."""

    async def run_scenario():
        conversation = Conversation()
        await conversation.work()
        native = msgspec.json.decode(await conversation.compact())
        compaction = conversation.journal.state.view.compaction
        assert native["tokens"] > 0
        assert compaction.native is not None
        assert compaction.head_tokens == pytest.approx(native["tokens"], rel=0.6)

    anyio.run(run_scenario)


# -- failures ----------------------------------------------------------------------------------------------------------


class ReplyingUpstream:
    """An upstream that gives its replies, or raises its errors, one after the other."""

    def __init__(self, *replies):
        self.replies, self.sent = list(replies), []

    @asynccontextmanager
    async def send(self, request):
        self.sent.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        status, body = reply

        async def chunks():
            yield msgspec.json.encode(body)

        yield Reply(status, {"content-type": "application/json"}, chunks())


BODY = b'{"model":"claude-opus-5-5","max_tokens":9,"messages":[{"role":"user","content":"go"}]}'
REQUEST = UpstreamRequest("anthropic", BODY, CLAUDE, stream=True, headers={"anthropic-beta": "mine"})
COMPACTED_REPLY = (
    200,
    {"role": "assistant", "content": [{"type": "compaction", "content": "so far", "signature": "s"}]},
)
UNAVAILABLE = {"type": "api_error", "message": "later", "details": {"error_code": "compaction_unavailable"}}
UNAVAILABLE_REPLY = (503, {"type": "error", "error": UNAVAILABLE})
NULL_REPLY = (200, {"role": "assistant", "content": [{"type": "compaction", "content": None}]})
LOST_CONNECTION = UpstreamError("no answer came", "network")


def compact_with_replies(*replies, settings=FAST, **options):
    """Return the upstream and the items of the compaction, or its error."""
    upstream = ReplyingUpstream(*replies)

    async def run_scenario():
        try:
            return decode_items(await compact_by_provider(upstream, REQUEST, CompactionContext(settings, **options)))
        except CompactionFailed as error:
            return error

    return upstream, anyio.run(run_scenario)


def test_compact_by_provider_retries_transient_faults():
    """Three tries send the same bytes, each with the compaction beta beside the caller's betas."""
    seen_events = []
    upstream, items = compact_with_replies(
        UNAVAILABLE_REPLY, LOST_CONNECTION, COMPACTED_REPLY, listener=seen_events.append
    )
    assert items == [b'{"role":"assistant","content":[{"type":"compaction","content":"so far","signature":"s"}]}']
    assert len({sent.body for sent in upstream.sent}) == 1
    assert {sent.headers["anthropic-beta"] for sent in upstream.sent} == {"mine,compact-2026-09-04"}
    assert not upstream.sent[0].stream
    assert [event.attempt for event in seen_events] == [1, 2]


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([UNAVAILABLE_REPLY] * 3, "provider_error"),
        ([LOST_CONNECTION] * 3, "provider_error"),
        ([ConnectionError("the tide is out")] * 3, "provider_error"),
        ([NULL_REPLY], "summary_rejected"),
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
def test_compact_by_provider_raises_compaction_failed_with_an_outcome(replies, outcome):
    """Each failure has its outcome, after as many tries as can help."""
    upstream, error = compact_with_replies(*replies)
    assert (error.outcome, len(upstream.sent)) == (outcome, len(replies))


def test_compact_by_provider_ends_at_the_summary_deadline():
    """A silent provider is given up after ``summarizer.timeout_seconds``."""
    upstream = ProviderUpstream(Provider(WORDS), [Fault("stall", "head")])

    async def run_scenario():
        with pytest.raises(CompactionFailed, match=r"raise summarizer\.timeout_seconds") as caught:
            await compact_by_provider(
                upstream,
                REQUEST,
                CompactionContext(Policy(settings=FAST).with_settings(summarizer={"timeout_seconds": 0.05}).settings),
            )
        return caught.value.outcome

    assert anyio.run(run_scenario) == "timed_out"


def test_compact_by_provider_holds_the_permit_only_during_a_try():
    """The permit is taken for every try, and released before the wait."""
    steps = []

    @asynccontextmanager
    async def permit():
        steps.append("in")
        yield
        steps.append("out")

    upstream, found = compact_with_replies(UNAVAILABLE_REPLY, COMPACTED_REPLY, permit=permit)
    assert steps[:1] + steps[-2:] == ["in", "in", "out"]
    assert len(upstream.sent) == 2
    assert found


# -- through the engine ------------------------------------------------------------------------------------------------


@both_apis
def test_session_compact_is_native_where_the_model_supports_it(api):
    """With ``native`` the provider compacts; for a model that cannot, an extract takes its place."""

    async def run_scenario(model):
        provider = Provider(WORDS, [ScriptedAnswer("", (("read", {"path": "f"}),), "Hm.")] * 30)
        upstream = ProviderUpstream(provider)
        fields = build_fields(api, has_thinking=False)
        async with Engine.open(
            MemoryStore(), upstream=upstream, target=build_target(api, model), fields=fields, native=True
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            answer = await session.ask("Read all of it.")
            for _ in range(STEPS):
                results = tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in answer.message.calls)
                await session.append(Message("tool", results) if results else Message.from_text("user", "Go on."))
                answer = await session.ask()
            result = await session.compact("the kelp")
            assert result.outcome == "compacted", result
            return result.author, session.journal.state.view.compaction

    author, compaction = anyio.run(run_scenario, MODELS[api])
    assert (author, compaction.author) == ("native", "native")
    if api == "anthropic":
        author, compaction = anyio.run(run_scenario, "claude-sonnet-4-5")
        assert (author, compaction.native) == ("extract", None)


def test_session_compact_appends_changed_rules_to_a_native_compaction(tmp_path):
    """Rules that changed follow the provider's compaction as a user message, as they follow a summary."""
    rules = tmp_path / "AGENTS.md"
    rules.write_text("Kelp first.")
    environment = load_environment(tmp_path)
    rules.write_text("Rock first.")

    async def run_scenario():
        upstream = ProviderUpstream(Provider(ProviderSettings(factor=1.3)))
        async with Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=build_target("anthropic"),
            environment=environment,
            fields={"max_tokens": 900},
            native=True,
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for _ in range(6):
                await session.ask(LONG * 3)
            assert (await session.compact()).author == "native"
            await session.ask("next")
            return decode_items(session.journal.state.view.compaction.native), upstream.sent[-1].body

    items, shown = anyio.run(run_scenario)
    assert b"Rock first." in items[1]
    assert list_message_bytes(shown, "anthropic")[0] == items[0]
    assert b"Rock first." in list_message_bytes(shown, "anthropic")[1]


@both_apis
def test_session_compact_natively_keeps_the_newest_user_message(api, tmp_path):
    """A compaction inside a turn keeps the newest request, and so does the next one after a restart."""
    request_text = "Mend the tide table, and never touch kelp_4711.toml."

    async def run_scenario():
        store = tmp_path / "log.db"
        provider = Provider(
            WORDS, [ScriptedAnswer("Well."), *[ScriptedAnswer("", (("read", {"path": "f"}),), "Hm.")] * 30]
        )
        upstream = ProviderUpstream(provider)
        options = {
            "upstream": upstream,
            "target": build_target(api),
            "fields": build_fields(api, has_thinking=False),
            "native": True,
        }
        for turn in range(2):
            async with Engine.open(store, **options) as engine:
                session = await engine.session(SAMPLE_KEY)
                if not turn:
                    await session.ask("Hello.")
                    answer = await session.ask(request_text)
                for _ in range(STEPS):
                    results = tuple(ToolResult(call.id, call.name, (Text(LONG),)) for call in answer.message.calls)
                    await session.append(Message("tool", results))
                    answer = await session.ask()
                result = await session.compact()
                assert (result.outcome, result.author) == ("compacted", "native")
                results = tuple(ToolResult(call.id, call.name, (Text("ok"),)) for call in answer.message.calls)
                await session.append(Message("tool", results))
                answer = await session.ask()
                assert request_text.encode() in upstream.sent[-1].body

    anyio.run(run_scenario)


# -- compaction by the provider during an answer -----------------------------------------------------------------------


@both_apis
def test_extract_server_compaction_adopts_a_compaction_within_an_answer(api):
    """After an answer that compacted by itself, later requests open with its items, omit the head, and are accepted."""
    threshold = {"anthropic": 50_000, "openai-responses": 1_000}[api]
    conversation = Conversation(
        api,
        script=[ScriptedAnswer("Well."), ScriptedAnswer("Well, well.")] * 9,
        fields=build_server_compaction_fields(api, threshold),
        window=900_000,
    )

    async def run_scenario():
        await conversation.ask(Message.from_text("user", "the goal is kelp/holdfast.py"))
        _, answer = await conversation.ask(Message.from_text("user", "lorem ipsum " * 27_000))
        assert [part.kind for part in answer.message.parts if not isinstance(part, Text)][:1] == ["compaction"]
        compaction = extract_server_compaction(conversation.journal.state, conversation.target, Policy(settings=FAST))
        assert (compaction.first_kept, compaction.author) == (3, "native")
        assert compaction.tokens_after < 2_000
        assert "kelp/holdfast.py" in compaction.summary.text
        plan = Plan(conversation.journal.state, compaction=compaction)
        assert conversation.journal.write_decision(plan, conversation.target)
        items = decode_items(compaction.native)
        for _ in range(2):
            body, _ = await conversation.ask(Message.from_text("user", "next"))
            assert list_message_bytes(body, api)[: len(items)] == items
            assert len(body) < 5_000
            assert body.count(b'"type":"compaction"') == len(items) + (b"compact_threshold" in body)

    anyio.run(run_scenario)


def test_extract_server_compaction_returns_none_for_a_plain_answer():
    """Without a compaction by the provider there is nothing to record."""
    conversation = Conversation(script=[ScriptedAnswer("Well.")])
    anyio.run(conversation.ask, Message.from_text("user", "hello"))
    assert extract_server_compaction(conversation.journal.state, conversation.target, Policy(settings=FAST)) is None
    assert extract_server_compaction(ConversationState(), conversation.target, Policy(settings=FAST)) is None


def test_native_compaction_result_is_stored_as_one_json_value():
    """The entry holds API, model, items and tokens."""
    stored = NativeCompactionResult((Raw(b'{"a":1}'),), 7).to_stored_json("anthropic", "m")
    assert CompactionEntry(1, native=stored).native == Raw(
        b'{"api":"anthropic","model":"m","items":[{"a":1}],"tokens":7}'
    )
