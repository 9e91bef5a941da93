"""Spans and metrics of the engine: one span for a request, with everything that it took to get the answer."""

from __future__ import annotations

import anyio
import msgspec
import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")

from long_conversation import build_long_conversation
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.errors import UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.pipeline import Policy
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.store.memory import MemoryStore
from holdfast.telemetry.conventions import DURATION_BUCKETS, TOKEN_BUCKETS, get_provider_name
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

MODEL = "claude-opus-5-5"
SPAN = f"chat {MODEL}"
TARGET = get_target("anthropic", MODEL, window=32_000)
SUMMARY = (
    "\n".join(f"## {heading}\n- kelp on the rock, note 39, keep it all\n" for heading in SUMMARY_HEADINGS)
    + "word " * 200
)
SECRET = "zanzibar-4711"


def run_engine(recording, upstream, work, **options):
    """Do ``work`` with an engine that records into ``recording``, if there is one; return the result."""

    async def run_scenario():
        defaults = {"target": TARGET, "fields": {"max_tokens": 500}}
        async with Engine.open(MemoryStore(), upstream=upstream, **defaults | options) as engine:
            if recording is not None:
                engine.resources.telemetry = recording.telemetry
            return await work(engine)

    return run_on_fake_clock(run_scenario)


def run_session(recording, upstream, work, **options):
    """Do ``work`` with a session of such an engine; return the result."""

    async def open_session(engine):
        return await work(await engine.session("kelp"))

    return run_engine(recording, upstream, open_session, **options)


def make_upstream(*answers, window=32_000, faults=()):
    """Return the strict provider with scripted answers."""
    return ProviderUpstream(Provider(ProviderSettings(window=window), answers), faults)


async def ask_after_long_conversation(session):
    """Ask behind a conversation that is over the trigger of a compaction."""
    await session.append(*build_long_conversation())
    return await session.ask("And now?")


def test_span_of_a_request_has_what_the_conventions_want(recording):
    """A request is one span of kind CLIENT, named by operation and model, with the provider's own usage; a trace goes
    on in the provider by the headers of the request.
    """
    upstream = make_upstream(ScriptedAnswer("fine"))
    answer = run_session(recording, upstream, lambda session: session.ask("How are you?"))
    [span] = recording.spans
    assert (span.name, span.kind, span.parent, span.status.status_code) == (
        SPAN,
        SpanKind.CLIENT,
        None,
        StatusCode.UNSET,
    )
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "kelp",
        "gen_ai.response.model": answer.model,
        "gen_ai.response.id": answer.id,
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": answer.usage.input,
        "gen_ai.usage.output_tokens": answer.usage.output,
        "holdfast.attempts": 1,
        "holdfast.request.messages": 1,
        "holdfast.window.tokens": 32_000,
    }
    assert expected.items() <= dict(span.attributes).items()
    unwanted = {"gen_ai.conversation.compacted", "error.type", "holdfast.prefix.broken", "holdfast.overflow.avoided"}
    assert not unwanted & span.attributes.keys()
    context = span.get_span_context()
    assert upstream.sent[0].headers["traceparent"].split("-")[1:3] == [
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
    ]


def test_metrics_of_a_request_are_those_of_its_span(recording):
    """Duration and tokens are in the instruments of the conventions, with their recommended bounds, and agree with the
    span.
    """
    answer = run_session(recording, make_upstream(), lambda session: session.ask("How are you?"))
    [span] = recording.spans
    points = recording.read_metrics()
    [duration] = points["gen_ai.client.inference.duration"]
    assert duration.sum == pytest.approx((span.end_time - span.start_time) / 1e9)
    assert tuple(duration.explicit_bounds) == DURATION_BUCKETS
    assert dict(duration.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": answer.model,
    }
    for kind, tokens in (("input", answer.usage.input), ("output", answer.usage.output)):
        [counted] = points[f"gen_ai.client.inference.usage.{kind}_tokens"]
        assert counted.value == tokens
        assert counted.attributes["gen_ai.token.modality"] == "unknown"
        [size] = points[f"gen_ai.client.inference.operation.{kind}_tokens"]
        assert (size.sum, tuple(size.explicit_bounds)) == (tokens, TOKEN_BUCKETS)
    assert (TOKEN_BUCKETS[0], TOKEN_BUCKETS[-1]) == (1, 67_108_864)


def test_compaction_is_a_span_with_the_calls_for_its_summary_below(recording):
    """A compaction is below the request that it was made for, and the summary model's call is below the compaction;
    what it saved is on both, and its overflow counts as avoided.
    """
    upstream = make_upstream(ScriptedAnswer(SUMMARY), ScriptedAnswer("yes"))
    run_session(recording, upstream, ask_after_long_conversation, api="anthropic", summary_model="claude-haiku-4-5")
    request, compaction = recording.find_span(SPAN), recording.find_span("holdfast.compact")
    summary = recording.find_span("chat claude-haiku-4-5")
    assert compaction.parent.span_id == request.context.span_id
    assert summary.parent.span_id == compaction.context.span_id
    assert summary.attributes["gen_ai.usage.output_tokens"] > 100
    saved = compaction.attributes["holdfast.tokens_saved"]
    before, after = (compaction.attributes[f"holdfast.compaction.tokens_{name}"] for name in ("before", "after"))
    assert saved == before - after > 20_000
    assert compaction.attributes["holdfast.compaction.outcome"] == "compacted"
    assert compaction.attributes["holdfast.compaction.author"] == "model"
    expected = {
        "gen_ai.conversation.compacted": True,
        "holdfast.compactions": 1,
        "holdfast.overflow.avoided": True,
        "holdfast.prefix.broken": True,
        "holdfast.tokens_saved": saved,
    }
    assert expected.items() <= dict(request.attributes).items()
    assert recording.sum_counter("holdfast.compactions", {"holdfast.compaction.outcome": "compacted"}) == 1
    assert recording.sum_counter("holdfast.tokens_saved") == saved
    assert recording.sum_counter("holdfast.overflows.avoided") == 1
    assert len({span.context.trace_id for span in recording.spans}) == 1
    assert all("traceparent" in sent.headers for sent in upstream.sent)


def test_refused_overflow_is_an_event_of_the_request_that_recovers(recording):
    """A request that is refused as too large and made smaller is still one span without an error; the refusal is an
    event on it, and the counters know both.
    """
    upstream = make_upstream(window=8_000)
    run_session(recording, upstream, ask_after_long_conversation, target=get_target("anthropic", MODEL))
    request = recording.find_span(SPAN)
    assert request.status.status_code is StatusCode.UNSET
    assert request.attributes["holdfast.attempts"] == len(upstream.sent) > 1
    assert request.attributes["holdfast.overflow.refused"]
    assert request.attributes["holdfast.overflow.avoided"]
    names = [event.name for event in request.events]
    assert names.index("holdfast.request_refused") < names.index("holdfast.answer_recorded")
    assert recording.sum_counter("holdfast.overflows.refused") == len(upstream.sent) - 1
    assert recording.sum_counter("holdfast.overflows.avoided") == 1


def test_spilled_result_leaves_the_prefix_whole(recording):
    """A result that is spilled before it was ever shown is counted on its request, and breaks no prefix."""

    async def read_files(session):
        await session.append("Read all files.")
        for number in range(8):
            call = ToolCall(f"call_{number}", "read", "{}")
            text = f"{number}: " + "kelp on the rock " * (3_000 if number == 2 else 400)
            result = ToolResult(call.id, "read", (Text(text),))
            await session.append(Message("assistant", (call,)), Message("user", (result,)))
            await session.ask()

    run_session(recording, make_upstream(*[ScriptedAnswer("go on")] * 20, window=200_000), read_files)
    requests = recording.find_spans(SPAN)
    [spilled] = [span for span in requests if "holdfast.edits.spill" in span.attributes]
    assert spilled.attributes["holdfast.edits.spill"] == 1
    assert spilled.attributes["holdfast.tokens_saved"] > 5_000
    assert "holdfast.prefix.broken" not in spilled.attributes
    assert recording.sum_counter("holdfast.edits", {"holdfast.edit.rule": "spill"}) == 1


def test_failed_request_says_the_kind_of_its_error(recording):
    """A request that fails for good has ``error.type``, also in the duration, and no text of the provider."""
    policy = Policy().with_settings(retry={"max_retries": 0})
    with pytest.raises(UpstreamError):
        run_session(
            recording, make_upstream(faults=[Fault("401")]), lambda session: session.ask("Hello"), policy=policy
        )
    [span] = recording.spans
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    [duration] = recording.read_metrics()["gen_ai.client.inference.duration"]
    assert duration.attributes["error.type"] == span.attributes["error.type"] == "auth"
    assert span.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert "gen_ai.client.inference.time_to_first_chunk" not in recording.read_metrics()
    assert recording.sum_counter("gen_ai.client.inference.usage.input_tokens") == 0


def test_nothing_that_is_said_is_recorded(recording):
    """No word of a user, a model or a tool, and none of an error that quotes one, is on any span or metric."""
    refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": f"messages.0: {SECRET} is wrong"}}
    refused = ScriptedUpstream([ScriptedReply((msgspec.json.encode(refusal),), 400)] * 9)
    with pytest.raises(UpstreamError, match=SECRET):
        run_session(recording, refused, lambda session: session.ask(f"{SECRET}?"))

    async def talk(session):
        call = ToolCall("call_1", "read", msgspec.json.encode({"path": SECRET}).decode())
        await session.append(
            *build_long_conversation(), Message.from_text("user", SECRET), Message("assistant", (call,))
        )
        await session.append(Message("user", (ToolResult(call.id, "read", (Text(f"{SECRET} " * 9_000),)),)))
        await session.ask(SECRET)
        await session.compact(SECRET)

    answers = [ScriptedAnswer(SECRET), ScriptedAnswer(f"{SUMMARY} {SECRET}")] * 9
    run_session(recording, make_upstream(*answers), talk, api="anthropic", summary_model="claude-haiku-4-5")
    assert len(recording.spans) > 3
    assert [text for text in recording.list_texts() if SECRET in text] == []


def test_requested_compaction_is_below_the_span_of_its_caller(recording):
    """``Session.compact`` outside of a request makes a span below the current one, and sets nothing on that."""

    async def compact(session):
        await session.append(*build_long_conversation())
        with recording.telemetry.tracer.start_as_current_span("theirs"):
            await session.compact()

    run_session(recording, make_upstream(), compact)
    compaction, theirs = recording.find_span("holdfast.compact"), recording.find_span("theirs")
    assert compaction.parent.span_id == theirs.context.span_id
    assert compaction.attributes["holdfast.compaction.trigger"] == "manual"
    assert dict(theirs.attributes) == {}


def test_run_leaves_the_context_of_its_caller_alone(recording):
    """While a caller reads a run, the current span stays the caller's; the run is below the one it was begun in."""

    async def read_run(session):
        with recording.telemetry.tracer.start_as_current_span("theirs") as theirs:
            async with session.run("Hello") as run:
                async for _ in run:
                    assert trace.get_current_span() is theirs
        assert not trace.get_current_span().is_recording()

    run_session(recording, make_upstream(ScriptedAnswer("kelp " * 50)), read_run)
    request = recording.find_span(SPAN)
    assert request.parent.span_id == recording.find_span("theirs").context.span_id
    assert 0 < request.attributes["gen_ai.response.time_to_first_chunk"] < 60


def test_caller_that_leaves_early_ends_the_span_as_cancelled(recording):
    """A run that is left before its answer ended is an error of kind ``cancelled``."""

    async def leave_early(session):
        async with session.run("Hello") as run:
            async for _ in run:
                break

    run_session(recording, make_upstream(ScriptedAnswer("kelp " * 500)), leave_early)
    span = recording.find_span(SPAN)
    assert span.attributes["error.type"] == "cancelled"
    assert span.attributes["gen_ai.response.finish_reasons"] == ("error",)
    [first_chunk] = recording.read_metrics()["gen_ai.client.inference.time_to_first_chunk"]
    assert first_chunk.sum == span.attributes["gen_ai.response.time_to_first_chunk"]
    assert tuple(first_chunk.explicit_bounds) == DURATION_BUCKETS


def test_requests_at_the_same_time_keep_their_spans_apart(recording):
    """Events of one session are never on the span of a request of another."""

    async def ask_twice(engine):
        async def ask(key, turns):
            session = await engine.session(key)
            await session.append(*build_long_conversation(turns))
            await session.ask("And now?")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "long", 40)
            tasks.start_soon(ask, "short", 2)

    run_engine(recording, make_upstream(), ask_twice)
    by_session = {span.attributes["gen_ai.conversation.id"]: span for span in recording.find_spans(SPAN)}
    assert by_session["long"].attributes["holdfast.compactions"] == 1
    assert "holdfast.compactions" not in by_session["short"].attributes
    assert recording.find_span("holdfast.compact").parent.span_id == by_session["long"].context.span_id


def test_requests_are_the_same_without_telemetry(recording):
    """What is sent differs by the header of the trace alone."""
    bodies = []
    for wanted in (recording, None):
        upstream = make_upstream()
        run_session(wanted, upstream, ask_after_long_conversation)
        bodies.append([sent.body for sent in upstream.sent])
        headers = {name for sent in upstream.sent for name in sent.headers}
        assert headers == ({"traceparent"} if wanted else set())
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("api", "provider", "name"),
    [
        ("anthropic", "", "anthropic"),
        ("anthropic", "vertex", "gcp.vertex_ai"),
        ("openai-chat", "mistral", "mistral_ai"),
        ("openai-chat", "vllm", "vllm"),
        ("openai-responses", "", "openai"),
        ("gemini", "", "gcp.gemini"),
    ],
)
def test_providers_have_the_names_of_the_conventions(api, provider, name):
    """A provider that the conventions list has their name, an unlisted one ours, an unknown one that of the API's."""
    assert get_provider_name(api, provider) == name
