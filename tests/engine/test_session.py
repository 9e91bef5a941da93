"""The session: what goes over the wire, what comes back, what the log says of both, and who waits for whom."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.log.journal import Journal
from holdfast.engine.log.queued_messages import NOTE_QUEUED, read_queued_messages
from holdfast.engine.request_template import build_template_from_fields, render_prepared_request
from holdfast.engine.upstream.replies import ask_upstream
from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.errors import (
    DeadlineExceeded,
    FormatError,
    LogConflict,
    OperationAborted,
    StoreCorrupt,
    UpstreamError,
    WindowTooSmall,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.providers.answers.parsed_answer import ParsedAnswer as WireAnswer
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.entries import FAILURE_OVERFLOW, AnswerEntry, FailureEntry, NoteEntry, RequestEntry, Usage
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Fault, Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

TOOL = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
FIELDS = {
    "anthropic": {"max_tokens": 900, "tools": [TOOL]},
    "openai-chat": {"tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]},
    "openai-responses": {"tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]},
    "gemini": {"tools": [{"functionDeclarations": [{"name": "read"}]}]},
}
ASK = 'call read {"path": "a"}'
OPUS = get_target("anthropic", "claude-opus-5-5")


TOO_LARGE = b"<h1>413 Request Entity Too Large</h1>"
PICTURE = Message("user", (Media("image", "image/png", 3, source="AAAA"), Text("A?")))
TOO_LONG = b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}'


def result(answer, text="kelp"):
    """Return the results of all calls of an answer."""
    parts = tuple(ToolResult(call.id, call.name, (Text(text),)) for call in answer.message.calls)
    return Message("tool", parts)


@asynccontextmanager
async def talking(upstream, goal=OPUS, store=None, fields=None, **more):
    """Return a session of one store, answered by ``upstream``."""
    told = {"max_tokens": 100} if fields is None and goal.api == "anthropic" else fields or {}
    async with Engine.open(store or MemoryStore(), upstream=upstream, target=goal, fields=told, **more) as engine:
        yield await engine.session(SAMPLE_KEY)


def bodies(store, kind=object):
    """Return what the log's entries say, those of one kind."""
    return [entry.body for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, kind)]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_a_turn_with_a_tool_over_http(api):
    """Asked over HTTP, the strict provider answers a call and its result; the log holds both answers and their cost."""

    async def talk(url):
        headers = {"x-api-key": "k", "authorization": "Bearer k"}
        goal = get_target(api, STRICTEST_MODELS[api])
        async with HttpUpstream(url, api, headers) as upstream, talking(upstream, goal, store, FIELDS[api]) as session:
            first = await session.ask(ASK)
            assert [call.name for call in first.message.calls] == ["read"]
            assert first.stop_reason == "tool"
            await session.append(result(first))
            return await session.ask()

    with serve_provider(provider := Provider()) as url, MemoryStore() as store:
        second = anyio.run(talk, url)
        answers, requests = bodies(store, AnswerEntry), bodies(store, RequestEntry)
    assert second.message.text == "ok 2"
    assert answers[-1].usage == second.usage
    assert [body.usage.input for body in answers] == [one.tokens for one in provider.requests]
    assert [body.prefix_digest for body in answers] == [body.prefix_digest for body in requests]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_a_body_leaves_as_it_came_and_its_events_too(api):
    """A client's body that needs nothing is sent byte for byte; what comes back is the provider's own stream."""
    provider = Provider()
    upstream = ProviderUpstream(provider)
    part = {"text": "Go."} if api == "gemini" else {"type": "text", "text": "Go."}
    said = {"role": "user", "parts": [part]} if api == "gemini" else {"role": "user", "content": "Go."}
    said = {"role": "user", "content": [part]} if api == "anthropic" else said
    field = {"gemini": "contents", "openai-responses": "input"}.get(api, "messages")
    body = {field: [said], **({} if api == "gemini" else {"model": STRICTEST_MODELS[api], "stream": True})}
    body |= {"max_tokens": 50} if api == "anthropic" else {}

    async def talk():
        store = MemoryStore()
        async with (
            Engine.open(store, upstream=upstream, api=api, model=STRICTEST_MODELS[api]) as engine,
            (await engine.session(SAMPLE_KEY)).run(body, stream=True) as going,
        ):
            raw = b"".join([event.raw async for event in going])
        return raw, going.answer, bodies(store, AnswerEntry)

    raw, answer, recorded = run_on_fake_clock(talk)
    assert raw.startswith((b"event:", b"data:"))
    assert answer.message.text == "ok 1"
    sent = msgspec.json.decode(upstream.sent[0].body.replace(b',"cache_control":{"type":"ephemeral"}', b""))
    assert sent == body
    assert recorded[0].usage == (answer.usage or Usage())


def test_a_body_with_an_edited_past_goes_on_beside_it():
    """What the client said otherwise is a branch; the log keeps both."""
    store, upstream = MemoryStore(), ScriptedUpstream(["one", "two", "three"])
    told = [{"role": "user", "content": "A?"}]

    def body(*messages):
        return {"model": OPUS.model, "max_tokens": 50, "messages": [*told, *messages]}

    async def talk():
        async with talking(upstream, store=store) as session:
            await drained(session.run(body()))
            said = {"role": "assistant", "content": [{"type": "text", "text": "one"}]}
            await drained(session.run(body(said, {"role": "user", "content": "B?"})))
            await drained(session.run(body(said, {"role": "user", "content": "C?"})))
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(talk) == ["A?", "one", "C?", "three"]
    texts = {entry.body.sized_message.message.text for entry in store.read_entries(SAMPLE_KEY, "message")}
    assert texts == {"A?", "one", "B?", "two", "C?", "three"}


async def drained(going, seen=None):
    """Read a run to its end, its events into ``seen``."""
    async with going as one:
        async for event in one:
            _ = seen is None or seen.append(event)


class Case(Struct):
    """A reply, and the kind of error that it is."""

    kind: str
    status: int
    body: bytes
    retry_after: float | None = None


REFUSALS = [
    Case("auth", 401, b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}'),
    Case("invalid_request", 422, b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'),
    Case("model", 404, b'{"type":"error","error":{"type":"not_found_error","message":"model: m"}}'),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.kind)
def test_a_refusal_that_lasts_is_a_typed_error_at_once(case):
    """Its kind is the classifier's; it says what to do; the log tells the failure; one request was sent."""
    store, upstream = MemoryStore(), ScriptedUpstream([ScriptedReply((case.body,), case.status)])

    async def talk():
        async with talking(upstream, store=store) as session:
            with pytest.raises(UpstreamError) as caught:
                await session.ask("Go.")
            return caught.value

    error = run_on_fake_clock(talk)
    assert error.kind == case.kind
    assert " or " in str(error)
    assert len(upstream.sent) == 1
    *_, request, failure = bodies(store)
    assert isinstance(request, RequestEntry)
    assert isinstance(failure, FailureEntry)
    assert failure.reason.startswith(case.kind)


TRANSIENT = [
    Case("overloaded", 529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
    Case("rate_limit", 429, b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}', 7.0),
    Case("server", 502, b"<html><body>Bad gateway</body></html>"),
    Case("server", 200, b"<html>kept alive</html>"),
    Case("server", 200, b""),
]


@pytest.mark.parametrize("case", TRANSIENT, ids=lambda case: f"{case.kind}-{case.status}")
def test_bad_luck_is_tried_again_with_the_same_bytes(case):
    """retries-shrink: a transient fault is waited out, as long as the provider asks for; the answer that comes then
    counts.
    """
    headers = {} if case.retry_after is None else {"retry-after": str(case.retry_after)}
    upstream = ScriptedUpstream([ScriptedReply((case.body,), case.status, headers), "yes"])
    heard = []

    async def talk():
        began = anyio.current_time()
        async with talking(upstream, listen=heard.append) as session:
            return (await session.ask("Go.")).message.text, anyio.current_time() - began

    text, took = run_on_fake_clock(talk)
    assert text == "yes"
    assert upstream.sent[0].body == upstream.sent[1].body
    waits = [event.seconds for event in heard if isinstance(event, events.RetryScheduled)]
    assert len(waits) == 1
    assert took >= waits[0] >= (case.retry_after or 0.1)


def test_an_upstream_of_ones_own_may_lose_its_connection():
    """An error of the operating system is bad luck like any other; an error of the author's is the author's."""
    lost, broken = ScriptedUpstream([ConnectionResetError("gone"), "yes"]), ScriptedUpstream([KeyError("mine")])

    async def talk(upstream):
        async with talking(upstream) as session:
            return (await session.ask("Go.")).message.text

    assert run_on_fake_clock(talk, lost) == "yes"
    with pytest.raises(KeyError, match="mine"):
        run_on_fake_clock(talk, broken)


def test_an_overflow_is_answered_by_sending_less():
    """The provider's numbers teach; the next request is smaller, and every later one knows, also after a restart."""
    provider = Provider(ProviderSettings(window=12_000))
    store, heard = MemoryStore(), []

    async def talk():
        async with talking(ProviderUpstream(provider), store=store, listen=heard.append) as session:
            for number in range(6):
                await session.append(
                    f"Note {number}: " + "kelp and rock " * 900, Message.from_text("assistant", "Noted.")
                )
            first = await session.ask("What did I say first?")
        async with talking(ProviderUpstream(provider), store=store) as session:
            return first, session.report()

    first, report = run_on_fake_clock(talk)
    assert first.message.text
    refused = [one for one in provider.requests if one.tokens > 12_000]
    assert len(refused) == 1
    assert [event.kind for event in heard if isinstance(event, events.RequestRefused)] == ["context_window"]
    assert (report.window, report.window_source) == (12_000, "learned")


def test_another_window_that_is_configured_ends_what_was_learned():
    """A server that was started again with more room is asked for it; the old limit does not come back."""
    store = MemoryStore()

    async def talk(window, believed):
        upstream = ProviderUpstream(Provider(ProviderSettings(window=window)))
        async with talking(upstream, get_target("anthropic", OPUS.model, window=believed), store) as session:
            for number in range(6):
                await session.append(
                    f"Note {number}: " + "kelp and rock " * 900, Message.from_text("assistant", "Noted.")
                )
            await session.ask("What did I say first?")
            return session.report(), len(upstream.sent)

    first, _ = run_on_fake_clock(talk, 12_000, 200_000)
    same, _ = run_on_fake_clock(talk, 12_000, 200_000)
    other, sent = run_on_fake_clock(talk, 100_000, 100_000)
    again, _ = run_on_fake_clock(talk, 100_000, 100_000)
    assert [(one.window, one.window_source) for one in (first, same)] == [(12_000, "learned")] * 2
    assert [(one.window, one.window_source) for one in (other, again)] == [(100_000, "asked for")] * 2
    assert sent == 1


@pytest.mark.parametrize(
    ("body", "seen", "taught"), [(TOO_LARGE, PICTURE, 0), (TOO_LARGE, "B?", 1), (TOO_LONG, PICTURE, 1)]
)
def test_a_refusal_teaches_of_tokens_only_where_it_speaks_of_them(body, seen, taught):
    """A limit of bytes is a window where all is words, whether the session sent the request or its author did."""
    refused = ScriptedReply((body,), 413 if body.startswith(b"<") else 400)
    sent_here, sent_there = MemoryStore(), MemoryStore()

    async def talk():
        async with talking(ScriptedUpstream([refused, *["yes"] * 3]), store=sent_here) as session:
            await session.append(
                seen, Message.from_text("assistant", "kelp " * 900), Message.from_text("user", "B? " * 900)
            )
            with suppress(UpstreamError):
                await session.ask("C?")
        async with talking(ScriptedUpstream([]), store=sent_there) as session:
            await session.prepare(seen)
            report = ErrorReport("anthropic", refused.status, body=body)
            await session.record(WireAnswer(stop_reason="error", error=report, is_complete=False))

    run_on_fake_clock(talk)
    for store in (sent_here, sent_there):
        assert sum(one.kind == FAILURE_OVERFLOW for one in bodies(store, FailureEntry)) == taught


def test_what_can_never_fit_is_an_error_with_the_numbers():
    """Where nothing is left that could be left out, the error says what was measured, the limit, and what to do."""
    provider = Provider(ProviderSettings(window=1_500))

    async def talk():
        async with talking(ProviderUpstream(provider)) as session:
            with pytest.raises(WindowTooSmall) as caught:
                await session.ask("Stay within " + "kelp " * 30_000)
            return caught.value, session.journal.state

    error, branch = run_on_fake_clock(talk)
    assert "1500 (learned)" in str(error).replace(",", "")
    assert "or" in str(error)
    assert [slot.message.role for slot in branch.history.sized_messages] == ["user"]


@pytest.mark.parametrize("stage", ["first", "middle"])
def test_an_answer_that_breaks_off_is_tried_again_where_nobody_saw_it(stage):
    """No half answer is recorded, and the caller gets the whole one."""
    store = MemoryStore()

    async def talk():
        async with talking(ProviderUpstream(Provider(), [Fault("cut", stage)]), store=store) as session:
            return await session.ask("Go.")

    assert run_on_fake_clock(talk).message.text == "ok 2"
    assert len(bodies(store, AnswerEntry)) == 1


def test_nothing_is_said_twice_to_who_saw_a_part():
    """Once bytes of an answer are given out a broken connection is an error; what was said is in the log."""
    store, seen = MemoryStore(), []

    async def talk():
        provider = Provider(script=[ScriptedAnswer("one two three four five six seven eight nine ten " * 20)])
        async with talking(ProviderUpstream(provider, [Fault("cut", "middle")]), store=store) as session:
            with pytest.raises(UpstreamError):
                await drained(session.run("Go."), seen)

    run_on_fake_clock(talk)
    assert seen
    assert [body.stop_reason for body in bodies(store, AnswerEntry)] == ["aborted"]
    assert bodies(store)[-2].sized_message.message.text.startswith("one two")


def test_who_leaves_early_has_what_was_said_in_the_log():
    """The lane is free again, the part that was given out is an interrupted answer, and the session goes on."""
    store = MemoryStore()

    async def talk():
        provider = Provider(script=[ScriptedAnswer("one two three four five six seven eight nine ten " * 20)])
        async with talking(ProviderUpstream(provider), store=store) as session:
            async with session.run("Go.") as going:
                async for _ in going:
                    break
            with pytest.raises(OperationAborted):
                _ = going.answer
            assert session.resources.lanes.is_idle
            assert session.resources.permits.is_idle
            return await session.ask("Again?")

    assert run_on_fake_clock(talk).message.text == "ok 2"
    assert [body.stop_reason for body in bodies(store, AnswerEntry)] == ["aborted", "end"]


def test_who_asks_at_once_is_answered_in_turn():
    """A branch's work runs one at a time: each request holds the answers to those before it."""
    upstream = ScriptedUpstream([f"answer {number}" for number in range(5)])

    async def talk():
        async with talking(upstream) as session:
            await session.append("Go.")
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(session.ask)

    run_on_fake_clock(talk)
    held = [[f"answer {n}".encode() in sent.body for n in range(5)] for sent in upstream.sent]
    assert held == [[n < number for n in range(5)] for number in range(5)]


def test_words_that_arrive_meanwhile_are_stored_at_once_and_said_once():
    """queued-input-once: they survive a crash before the answer comes, and stand behind it, also in a session opened
    anew.
    """
    store = MemoryStore()
    upstream = ProviderUpstream(Provider(), latency=5.0)

    async def talk():
        async with talking(upstream, store=store) as session, anyio.create_task_group() as group:
            group.start_soon(session.ask, "first")
            await anyio.sleep(1)
            await session.append("second", "third")
            waiting = read_queued_messages(store, SAMPLE_KEY, session.journal.leaf)
            assert [message.text for _, message in waiting] == ["second", "third"]
        return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(talk) == ["first", "ok 1", "second", "third"]
    assert run_on_fake_clock(lambda: reopened(store)) == ["first", "ok 1", "second", "third"]


@pytest.mark.parametrize("when", ["committed", "recorded", "said"])
def test_words_never_slip_between_a_request_and_its_answer(when, monkeypatch):
    """queued-input-once: whenever they come, the answer stands behind just what was sent, and they are said by the end
    of the run.
    """
    store, upstream = MemoryStore(), ProviderUpstream(Provider())

    async def talk():
        async with talking(upstream, store=store) as session, anyio.create_task_group() as group:
            verb = {"committed": "commit_plan", "recorded": "record_answer", "said": "append"}[when]
            whole, began, loop = getattr(session.journal, verb), anyio.Event(), asyncio.get_running_loop()

            def slow(*given, **named):
                done = whole(*given, **named)
                loop.call_soon_threadsafe(began.set)
                return done

            async def interrupt():
                await began.wait()
                await session.append("second")

            monkeypatch.setattr(session.journal, verb, slow)
            group.start_soon(interrupt)
            await session.ask("first")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(talk) == ["first", "ok 1", "second"]
    assert b"second" not in upstream.sent[0].body


@pytest.mark.parametrize("wrong", [Message("user", "a text"), Message("user", (Text(7),)), Message("user", (None,))])
def test_what_is_no_message_does_not_wait_for_an_answer(wrong):
    """It is refused when it is said, as at any other time: once it were in the log nobody could open that again."""
    store, upstream = MemoryStore(), ScriptedUpstream(["yes", "yes"])

    async def talk():
        async with talking(upstream, store=store) as session:
            async with session.run("first") as going:
                await anext(going)
                with pytest.raises(LogConflict, match="not a message"):
                    await session.append(wrong)
                async for _ in going:
                    pass
            await session.ask("second")

    run_on_fake_clock(talk)
    assert run_on_fake_clock(lambda: reopened(store)) == ["first", "yes", "second", "yes"]


def test_words_wait_for_an_answer_that_the_caller_fetches():
    """queued-input-once: between ``prepare`` and ``record`` too; the next request is one that a
    strict provider takes.
    """
    says = [ScriptedAnswer("ok 1", (), "Thinking."), ScriptedAnswer("ok 2", (), "More.")]
    upstream, thinking = ProviderUpstream(Provider(None, says)), {"max_tokens": 5_000, "thinking": {"type": "adaptive"}}

    async def talk():
        async with talking(upstream, fields=thinking) as session:
            prepared = await session.prepare("first")
            answer = await ask_upstream(
                upstream, build_template_from_fields(prepared.target, thinking).build_upstream_request(prepared)
            )
            await session.append("second")
            await session.record(answer)
            await session.append("third")
            assert (await session.ask()).message.text == "ok 2"
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(talk) == ["first", "ok 1", "second", "third", "ok 2"]


def test_a_request_that_the_caller_sends_is_whole_and_answered_once():
    """The body of ``prepare`` is one that the provider takes as it is; a second answer to it is refused."""
    upstream = ProviderUpstream(Provider())

    async def talk():
        async with talking(upstream, fields={}) as session:
            with pytest.raises(OperationAborted, match="call prepare"):
                await session.record(WireAnswer(is_complete=True))
            prepared = await session.prepare("first")
            answer = await ask_upstream(
                upstream,
                UpstreamRequest(
                    session.api,
                    render_prepared_request(prepared, session.get_default_fields()),
                    session.get_default_target().model,
                ),
            )
            await session.record(answer)
            with pytest.raises(OperationAborted, match="answered once"):
                await session.record(answer)
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(talk) == ["first", "ok 1"]


def test_a_message_that_waits_and_cannot_be_read_is_told_as_damage():
    """A typed error with the note's id, and the session goes on from before it."""
    store = MemoryStore()

    async def talk():
        async with talking(ScriptedUpstream(["yes"]), store=store) as session:
            (id_,) = await session.append("first")
            session.journal._append_bodies([NoteEntry(NOTE_QUEUED, b"kelp")])
            return id_

    id_ = run_on_fake_clock(talk)
    with pytest.raises(StoreCorrupt, match="continue from an entry before it"):
        Journal.open(store, SAMPLE_KEY)
    assert Journal.open(store, SAMPLE_KEY, leaf=id_).state.history.messages[0].text == "first"


def test_what_waited_behind_a_failed_request_is_said_before_what_comes_later():
    """The user's words keep their order."""
    upstream = ProviderUpstream(Provider(), [Fault("401", "head", 0)], latency=5.0)

    async def refused(session):
        with pytest.raises(UpstreamError):
            await session.ask("first")

    async def talk():
        async with talking(upstream) as session:
            async with anyio.create_task_group() as group:
                group.start_soon(refused, session)
                await anyio.sleep(1)
                await session.append("second")
            await session.append("third")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(talk) == ["first", "second", "third"]


async def reopened(store):
    """Return the texts of the session in a new engine."""
    async with talking(ScriptedUpstream([]), store=store) as session:
        await session.resources.run_in_worker(session.journal.deliver_queued)
        return [slot.message.text for slot in session.journal.state.history.sized_messages]


def test_giving_up_leaves_a_log_that_goes_on():
    """failed-attempt-changes-nothing: a request that was cancelled is in the log as sent; the next
    one shows the same.
    """
    store, upstream = MemoryStore(), ProviderUpstream(Provider(), [Fault("stall", "head")])

    async def talk():
        async with talking(upstream, store=store) as session:
            with anyio.move_on_after(5):
                await session.ask("Go.")
            return await session.ask()

    assert run_on_fake_clock(talk).message.text == "ok 2"
    assert upstream.sent[0].body == upstream.sent[1].body


def test_a_deadline_ends_a_run_and_leaves_the_session_whole():
    """The error names the seconds; lane and permit are free; the next request is the same."""
    upstream = ProviderUpstream(Provider(), [Fault("stall", "head")])

    async def talk():
        async with talking(upstream) as session:
            with pytest.raises(DeadlineExceeded, match="5 s"):
                await session.ask("Go.", deadline=5)
            assert session.resources.lanes.is_idle
            assert session.resources.permits.is_idle
            return await session.ask()

    assert run_on_fake_clock(talk).message.text == "ok 2"
    assert upstream.sent[0].body == upstream.sent[1].body


def test_a_compaction_can_be_asked_for_and_taken_back():
    """``compact`` says what became of it; the model reads less; ``undo`` brings it all back."""

    async def talk():
        async with talking(ScriptedUpstream([])) as session:
            assert (await session.compact()).outcome == "nothing_to_compact"
            for number in range(30):
                await session.append(f"Look at file {number}.", Message.from_text("assistant", "Reading. " * 300))
            before = session.report()
            made = await session.compact()
            after = session.report()
            assert made.outcome == "compacted"
            assert made.tokens_after < made.tokens_before
            assert after.tokens < before.tokens
            assert after.compaction_count == 1
            await session.undo()
            return before, session.report()

    before, again = run_on_fake_clock(talk)
    assert (again.tokens, again.compaction_count) == (before.tokens, 0)


def test_a_report_counts_what_shapes_the_next_request_opened_anew_too(tmp_path):
    """A compaction before the last one, and edits on what gave way to it, are in force no more, whoever counts."""
    long = Message("tool", (ToolResult("c", "Read", (Text("a line\n" * 30_000),)),))

    async def go():
        reports = []
        for _ in range(3):
            async with Engine.open(str(tmp_path / "s.db"), upstream=ScriptedUpstream([]), target=OPUS) as engine:
                session = await engine.session(SAMPLE_KEY)
                reports.append(session.report())
                for _ in range(2):
                    await session.append(*["Look.", Message.from_text("assistant", "Reading. " * 300)] * 30)
                    await session.append("Read it.", Message("assistant", (ToolCall("c", "Read"),)), long)
                    await session.compact()
                reports.append(session.report())
        return reports

    reports = run_on_fake_clock(go)
    assert reports[1::2][:-1] == reports[2::2]
    assert [report.compaction_count for report in reports] == [0, 1, 1, 1, 1, 1]
    assert min(report.decision_count for report in reports[1:]) > 0


@pytest.mark.parametrize("said", [7, [None], {1: 2}, b"no body", {"messages": 3}])
def test_what_is_nothing_to_say_is_refused(said):
    """A typed error, before anything is written."""
    store = MemoryStore()

    async def talk():
        async with talking(ScriptedUpstream([]), store=store) as session:
            with pytest.raises(FormatError):
                await drained(session.run(said))

    run_on_fake_clock(talk)
    assert [type(body).__name__ for body in bodies(store)] == ["NoteEntry"]


def test_a_caller_sends_the_body_and_records_the_bytes_that_come_back():
    """What ``render_body`` returns is a whole request; ``record`` reads the answer, or the refusal, from its bytes."""
    content = [{"type": "text", "text": "Kelp."}]
    answer = msgspec.json.encode({"role": "assistant", "content": content, "stop_reason": "end_turn"})

    async def work():
        async with talking(ScriptedUpstream([])) as session:
            prepared = await session.prepare("What holds?")
            body = msgspec.json.decode(session.render_body(prepared))
            assert (body["model"], body["max_tokens"]) == (OPUS.model, 100)
            await session.record(TOO_LONG)
            assert session.journal.state.usage.learned_limits.overflows_since_answer == 1
            await session.record(answer)
            assert session.journal.state.history.messages[-1].text == "Kelp."
            with pytest.raises(OperationAborted, match="call prepare"):
                await session.record(answer)

    anyio.run(work)


def test_a_session_answers_calls_of_its_recall_tool():
    """A model reads a spilled text back by the tool; a wrong call is answered with what is wrong."""
    long = "\n".join(f"line {number}" for number in range(9_000))

    async def work():
        async with talking(ScriptedUpstream([])) as session:
            assert session.recall_tool["name"] == "recall"
            call = Message("assistant", (ToolCall("call_1", "read", "{}"),))
            await session.append("read it", call, Message("tool", (ToolResult("call_1", "read", (Text(long),)),)))
            await session.prepare()
            found = await session.answer_recall({"search": "line 4711"})
            assert "1 found in this conversation" in found.text
            wrong = await session.answer_recall('{"id": "ffffffff"}')
            assert (found.is_error, wrong.is_error) == (False, True)

    anyio.run(work)


def test_results_are_shortened_on_a_new_branch():
    """Under a policy with a limit for one result; another says that it has none."""
    smaller_window = replace(OPUS, limits=replace(OPUS.limits, window=200_000))
    result = Message("tool", (ToolResult("call_1", "read", (Text("a line of the log\n" * 20_000),)),))
    call = Message("assistant", (ToolCall("call_1", "read", "{}"),))

    async def work(policy):
        async with talking(ScriptedUpstream([]), smaller_window, policy=policy) as session:
            await session.append("read it", call, result)
            leaf, tokens = session.journal.leaf, session.report().tokens
            outcome = await session.shorten_results()
            return outcome, session.journal.leaf != leaf, session.report().tokens < tokens

    shortened, has_moved, is_smaller = anyio.run(work, "openclaw")
    assert (shortened.messages, has_moved, is_smaller) == (1, True, True)
    unchanged, has_moved, _ = anyio.run(work, "holdfast")
    assert (unchanged.messages, has_moved) == (0, False)
    assert "holdfast" in unchanged.why
