"""The session: the requests it sends, the answers it reads, what its log records of both, and its locking."""

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
from holdfast.engine.log.queued_messages import NOTE_QUEUED, decode_queued_messages
from holdfast.engine.request_template import build_template_from_fields, render_prepared_request
from holdfast.engine.upstream.replies import ask_upstream
from holdfast.engine.upstream.upstream import HttpUpstream, UpstreamRequest
from holdfast.errors import (
    DeadlineExceeded,
    FormatError,
    LogConflict,
    OperationAborted,
    StoreCorrupt,
    StoreLocked,
    UpstreamError,
    WindowTooSmall,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.providers.answers.parsed_answer import ParsedAnswer as WireAnswer
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.costs import SummaryCall
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
    "openai-chat": {
        "tools": [
            {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
        ]
    },
    "openai-responses": {
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}]
    },
    "gemini": {"tools": [{"functionDeclarations": [{"name": "read"}]}]},
}
ASK = 'call read {"path": "a"}'
OPUS = get_target("anthropic", "claude-opus-5-5")


TOO_LARGE = b"<h1>413 Request Entity Too Large</h1>"
PICTURE = Message("user", (Media("image", "image/png", 3, source="AAAA"), Text("A?")))
TOO_LONG = b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}'


def build_tool_results(answer, text="kelp"):
    """Return a message with a result for each call of an answer."""
    parts = tuple(ToolResult(call.id, call.name, (Text(text),)) for call in answer.message.calls)
    return Message("tool", parts)


@asynccontextmanager
async def open_session(upstream, target=OPUS, store=None, fields=None, **options):
    """Open a session whose requests ``upstream`` answers."""
    request_fields = {"max_tokens": 100} if fields is None and target.api == "anthropic" else fields or {}
    async with Engine.open(
        store or MemoryStore(), upstream=upstream, target=target, fields=request_fields, **options
    ) as engine:
        yield await engine.session(SAMPLE_KEY)


def list_entry_bodies(store, kind=object):
    """Return the bodies of the active branch's entries, or those of one kind."""
    return [entry.body for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, kind)]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_session_ask_runs_a_tool_turn_over_http(api):
    """Over HTTP the strict provider answers with a tool call and then a text, and the log records both answers and
    their usage.
    """

    async def run_scenario(url):
        headers = {"x-api-key": "k", "authorization": "Bearer k"}
        target = get_target(api, STRICTEST_MODELS[api])
        async with (
            HttpUpstream(url, api, headers) as upstream,
            open_session(upstream, target, store, FIELDS[api]) as session,
        ):
            first = await session.ask(ASK)
            assert [call.name for call in first.message.calls] == ["read"]
            assert first.stop_reason == "tool"
            await session.append(build_tool_results(first))
            return await session.ask()

    with serve_provider(provider := Provider()) as url, MemoryStore() as store:
        second = anyio.run(run_scenario, url)
        answers, requests = list_entry_bodies(store, AnswerEntry), list_entry_bodies(store, RequestEntry)
    assert second.message.text == "ok 2"
    assert answers[-1].usage == second.usage
    assert [body.usage.input for body in answers] == [request.tokens for request in provider.requests]
    assert [body.prefix_digest for body in answers] == [body.prefix_digest for body in requests]


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_session_run_forwards_body_and_events_unchanged(api):
    """A client body that needs no edit gets nothing but cache breakpoints, and the caller reads the provider's own
    stream.
    """
    provider = Provider()
    upstream = ProviderUpstream(provider)
    part = {"text": "Go."} if api == "gemini" else {"type": "text", "text": "Go."}
    message = {"role": "user", "parts": [part]} if api == "gemini" else {"role": "user", "content": "Go."}
    message = {"role": "user", "content": [part]} if api == "anthropic" else message
    field = {"gemini": "contents", "openai-responses": "input"}.get(api, "messages")
    body = {field: [message], **({} if api == "gemini" else {"model": STRICTEST_MODELS[api], "stream": True})}
    body |= {"max_tokens": 50} if api == "anthropic" else {}

    async def run_scenario():
        store = MemoryStore()
        async with (
            Engine.open(store, upstream=upstream, api=api, model=STRICTEST_MODELS[api]) as engine,
            (await engine.session(SAMPLE_KEY)).run(body, stream=True) as run,
        ):
            raw = b"".join([event.raw async for event in run])
        return raw, run.answer, list_entry_bodies(store, AnswerEntry)

    raw, answer, recorded = run_on_fake_clock(run_scenario)
    assert raw.startswith((b"event:", b"data:"))
    assert answer.message.text == "ok 1"
    sent = msgspec.json.decode(upstream.sent[0].body.replace(b',"cache_control":{"type":"ephemeral"}', b""))
    assert sent == body
    assert recorded[0].usage == (answer.usage or Usage())


def test_session_run_branches_when_a_body_edits_its_history():
    """A body with an edited history continues on a new branch, and the log keeps both versions."""
    store, upstream = MemoryStore(), ScriptedUpstream(["one", "two", "three"])
    first_messages = [{"role": "user", "content": "A?"}]

    def body(*messages):
        return {"model": OPUS.model, "max_tokens": 50, "messages": [*first_messages, *messages]}

    async def run_scenario():
        async with open_session(upstream, store=store) as session:
            await read_run(session.run(body()))
            answer = {"role": "assistant", "content": [{"type": "text", "text": "one"}]}
            await read_run(session.run(body(answer, {"role": "user", "content": "B?"})))
            await read_run(session.run(body(answer, {"role": "user", "content": "C?"})))
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["A?", "one", "C?", "three"]
    texts = {entry.body.sized_message.message.text for entry in store.read_entries(SAMPLE_KEY, "message")}
    assert texts == {"A?", "one", "B?", "two", "C?", "three"}


async def read_run(run, seen=None):
    """Read a run to its end and append its events to ``seen``."""
    async with run as events_of_run:
        async for event in events_of_run:
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
def test_session_ask_raises_permanent_refusals_without_a_retry(case):
    """The error has the classifier's kind and says what to do, one request is sent, the log has the failure."""
    store, upstream = MemoryStore(), ScriptedUpstream([ScriptedReply((case.body,), case.status)])

    async def run_scenario():
        async with open_session(upstream, store=store) as session:
            with pytest.raises(UpstreamError) as caught:
                await session.ask("Go.")
            return caught.value

    error = run_on_fake_clock(run_scenario)
    assert error.kind == case.kind
    assert " or " in str(error)
    assert len(upstream.sent) == 1
    *_, request, failure = list_entry_bodies(store)
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
def test_session_ask_retries_transient_faults_with_the_same_bytes(case):
    """retries-shrink: a transient fault is retried with the same bytes after the delay that the provider asks for."""
    headers = {} if case.retry_after is None else {"retry-after": str(case.retry_after)}
    upstream = ScriptedUpstream([ScriptedReply((case.body,), case.status, headers), "yes"])
    seen_events = []

    async def run_scenario():
        started_at = anyio.current_time()
        async with open_session(upstream, listen=seen_events.append) as session:
            return (await session.ask("Go.")).message.text, anyio.current_time() - started_at

    text, elapsed = run_on_fake_clock(run_scenario)
    assert text == "yes"
    assert upstream.sent[0].body == upstream.sent[1].body
    waits = [event.seconds for event in seen_events if isinstance(event, events.RetryScheduled)]
    assert len(waits) == 1
    assert elapsed >= waits[0] >= (case.retry_after or 0.1)


def test_session_ask_retries_os_errors_of_a_custom_upstream():
    """An OSError of a custom upstream counts as transient; any other exception of it reaches the caller."""
    lost, broken = ScriptedUpstream([ConnectionResetError("gone"), "yes"]), ScriptedUpstream([KeyError("mine")])

    async def run_scenario(upstream):
        async with open_session(upstream) as session:
            return (await session.ask("Go.")).message.text

    assert run_on_fake_clock(run_scenario, lost) == "yes"
    with pytest.raises(KeyError, match="mine"):
        run_on_fake_clock(run_scenario, broken)


def test_session_ask_learns_the_window_from_an_overflow():
    """After an overflow the next request is smaller, and the learned window holds for later requests and after a
    restart.
    """
    provider = Provider(ProviderSettings(window=12_000))
    store, seen_events = MemoryStore(), []

    async def run_scenario():
        async with open_session(ProviderUpstream(provider), store=store, listen=seen_events.append) as session:
            for number in range(6):
                await session.append(
                    f"Note {number}: " + "kelp and rock " * 900, Message.from_text("assistant", "Noted.")
                )
            first = await session.ask("What did I say first?")
        async with open_session(ProviderUpstream(provider), store=store) as session:
            return first, session.report()

    first, report = run_on_fake_clock(run_scenario)
    assert first.message.text
    refused = [request for request in provider.requests if request.tokens > 12_000]
    assert len(refused) == 1
    assert [event.kind for event in seen_events if isinstance(event, events.RequestRefused)] == ["context_window"]
    assert (report.window, report.window_source) == (12_000, "learned")


def test_session_forgets_the_learned_window_when_another_is_configured():
    """A newly configured window replaces the learned limit, which does not come back."""
    store = MemoryStore()

    async def run_scenario(window, configured_window):
        upstream = ProviderUpstream(Provider(ProviderSettings(window=window)))
        async with open_session(
            upstream, get_target("anthropic", OPUS.model, window=configured_window), store
        ) as session:
            for number in range(6):
                await session.append(
                    f"Note {number}: " + "kelp and rock " * 900, Message.from_text("assistant", "Noted.")
                )
            await session.ask("What did I say first?")
            return session.report(), len(upstream.sent)

    first, _ = run_on_fake_clock(run_scenario, 12_000, 200_000)
    same, _ = run_on_fake_clock(run_scenario, 12_000, 200_000)
    other, sent = run_on_fake_clock(run_scenario, 100_000, 100_000)
    again, _ = run_on_fake_clock(run_scenario, 100_000, 100_000)
    assert [(report.window, report.window_source) for report in (first, same)] == [(12_000, "learned")] * 2
    assert [(report.window, report.window_source) for report in (other, again)] == [(100_000, "asked for")] * 2
    assert sent == 1


@pytest.mark.parametrize(
    ("body", "message", "learned_overflows"), [(TOO_LARGE, PICTURE, 0), (TOO_LARGE, "B?", 1), (TOO_LONG, PICTURE, 1)]
)
def test_session_learns_a_token_limit_only_from_refusals_about_tokens(body, message, learned_overflows):
    """A byte limit counts as a window only where the request is all text, whoever sent the request."""
    refusal = ScriptedReply((body,), 413 if body.startswith(b"<") else 400)
    session_store, caller_store = MemoryStore(), MemoryStore()

    async def run_scenario():
        async with open_session(ScriptedUpstream([refusal, *["yes"] * 3]), store=session_store) as session:
            await session.append(
                message, Message.from_text("assistant", "kelp " * 900), Message.from_text("user", "B? " * 900)
            )
            with suppress(UpstreamError):
                await session.ask("C?")
        async with open_session(ScriptedUpstream([]), store=caller_store) as session:
            await session.prepare(message)
            report = ErrorReport("anthropic", refusal.status, body=body)
            await session.record(WireAnswer(stop_reason="error", error=report, is_complete=False))

    run_on_fake_clock(run_scenario)
    for store in (session_store, caller_store):
        assert (
            sum(failure.kind == FAILURE_OVERFLOW for failure in list_entry_bodies(store, FailureEntry))
            == learned_overflows
        )


def test_session_ask_raises_window_too_small_with_the_numbers():
    """When nothing more can be left out, the error gives the measured size, the limit and what to do."""
    provider = Provider(ProviderSettings(window=1_500))

    async def run_scenario():
        async with open_session(ProviderUpstream(provider)) as session:
            with pytest.raises(WindowTooSmall) as caught:
                await session.ask("Stay within " + "kelp " * 30_000)
            return caught.value, session.journal.state

    error, branch = run_on_fake_clock(run_scenario)
    assert "1500 (learned)" in str(error).replace(",", "")
    assert "or" in str(error)
    assert [slot.message.role for slot in branch.history.sized_messages] == ["user"]


@pytest.mark.parametrize("stage", ["first", "middle"])
def test_session_ask_retries_an_answer_cut_before_the_caller_saw_it(stage):
    """A partial answer that nobody has seen is not recorded, and the caller gets the complete one of the retry."""
    store = MemoryStore()

    async def run_scenario():
        async with open_session(ProviderUpstream(Provider(), [Fault("cut", stage)]), store=store) as session:
            return await session.ask("Go.")

    assert run_on_fake_clock(run_scenario).message.text == "ok 2"
    assert len(list_entry_bodies(store, AnswerEntry)) == 1


def test_session_run_does_not_retry_after_the_caller_received_bytes():
    """Once the caller has bytes of an answer, a broken connection raises, and the partial answer is recorded as
    aborted.
    """
    store, seen = MemoryStore(), []

    async def run_scenario():
        provider = Provider(script=[ScriptedAnswer("one two three four five six seven eight nine ten " * 20)])
        async with open_session(ProviderUpstream(provider, [Fault("cut", "middle")]), store=store) as session:
            with pytest.raises(UpstreamError):
                await read_run(session.run("Go."), seen)

    run_on_fake_clock(run_scenario)
    assert seen
    assert [body.stop_reason for body in list_entry_bodies(store, AnswerEntry)] == ["aborted"]
    assert list_entry_bodies(store)[-2].sized_message.message.text.startswith("one two")


def test_session_run_records_the_partial_answer_when_it_is_left_early():
    """Leaving a run frees lane and permit, records the partial answer as aborted, and the session goes on."""
    store = MemoryStore()

    async def run_scenario():
        provider = Provider(script=[ScriptedAnswer("one two three four five six seven eight nine ten " * 20)])
        async with open_session(ProviderUpstream(provider), store=store) as session:
            async with session.run("Go.") as run:
                async for _ in run:
                    break
            with pytest.raises(OperationAborted):
                _ = run.answer
            assert session.resources.lanes.is_idle
            assert session.resources.permits.is_idle
            return await session.ask("Again?")

    assert run_on_fake_clock(run_scenario).message.text == "ok 2"
    assert [body.stop_reason for body in list_entry_bodies(store, AnswerEntry)] == ["aborted", "end"]


def test_costs_of_summaries_are_recorded_later_if_the_store_refused_them():
    """A store that fails once loses no usage: it is written with the next attempt, and once."""

    class StoreFailingOnce(MemoryStore):
        is_failing = False

        def append_entries(self, key, entries, **more):
            if self.is_failing:
                self.is_failing = False
                raise StoreLocked("held")
            return super().append_entries(key, entries, **more)

    store = StoreFailingOnce()

    async def run_scenario():
        async with open_session(ScriptedUpstream([]), store=store) as session:
            runtime = session._runtime
            runtime.unlogged_costs.append(SummaryCall("anthropic", "m", Usage(500, 5)))
            store.is_failing = True
            for _ in range(3):
                runtime.record_summary_costs()

    run_on_fake_clock(run_scenario)
    assert len([note for note in list_entry_bodies(store, NoteEntry) if note.reason != "policy"]) == 1


def test_session_ask_runs_concurrent_requests_one_at_a_time():
    """The requests of a branch are sent one at a time, and each contains the answers to those before it."""
    upstream = ScriptedUpstream([f"answer {number}" for number in range(5)])

    async def run_scenario():
        async with open_session(upstream) as session:
            await session.append("Go.")
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(session.ask)

    run_on_fake_clock(run_scenario)
    answers_in_request = [[f"answer {n}".encode() in sent.body for n in range(5)] for sent in upstream.sent]
    assert answers_in_request == [[n < number for n in range(5)] for number in range(5)]


def test_session_append_queues_messages_while_an_answer_is_pending():
    """queued-input-once: messages appended during a request are stored at once and stand once behind its answer, also
    in a reopened session.
    """
    store = MemoryStore()
    upstream = ProviderUpstream(Provider(), latency=5.0)

    async def run_scenario():
        async with open_session(upstream, store=store) as session, anyio.create_task_group() as group:
            group.start_soon(session.ask, "first")
            await anyio.sleep(1)
            await session.append("second", "third")
            waiting = decode_queued_messages(store.open_state(SAMPLE_KEY, session.journal.leaf), SAMPLE_KEY)
            assert [message.text for _, message in waiting] == ["second", "third"]
        return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["first", "ok 1", "second", "third"]
    assert run_on_fake_clock(lambda: read_texts_of_reopened_session(store)) == ["first", "ok 1", "second", "third"]


@pytest.mark.parametrize("when", ["committed", "recorded", "appended"])
def test_session_append_never_separates_a_request_from_its_answer(when, monkeypatch):
    """queued-input-once: whenever a message arrives, the answer stands directly behind the request, and the message is
    delivered by the end of the run.
    """
    store, upstream = MemoryStore(), ProviderUpstream(Provider())

    async def run_scenario():
        async with open_session(upstream, store=store) as session, anyio.create_task_group() as group:
            method = {"committed": "commit_plan", "recorded": "record_answer", "appended": "append"}[when]
            original, is_called, loop = getattr(session.journal, method), anyio.Event(), asyncio.get_running_loop()

            def call_and_signal(*args, **kwargs):
                result = original(*args, **kwargs)
                loop.call_soon_threadsafe(is_called.set)
                return result

            async def interrupt():
                await is_called.wait()
                await session.append("second")

            monkeypatch.setattr(session.journal, method, call_and_signal)
            group.start_soon(interrupt)
            await session.ask("first")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["first", "ok 1", "second"]
    assert b"second" not in upstream.sent[0].body


@pytest.mark.parametrize("wrong", [Message("user", "a text"), Message("user", (Text(7),)), Message("user", (None,))])
def test_session_append_rejects_invalid_messages_while_an_answer_is_pending(wrong):
    """An invalid message is refused when it is appended, because a log that holds it could not be opened again."""
    store, upstream = MemoryStore(), ScriptedUpstream(["yes", "yes"])

    async def run_scenario():
        async with open_session(upstream, store=store) as session:
            async with session.run("first") as run:
                await anext(run)
                with pytest.raises(LogConflict, match="not a message"):
                    await session.append(wrong)
                async for _ in run:
                    pass
            await session.ask("second")

    run_on_fake_clock(run_scenario)
    assert run_on_fake_clock(lambda: read_texts_of_reopened_session(store)) == ["first", "yes", "second", "yes"]


def test_session_append_queues_messages_between_prepare_and_record():
    """queued-input-once: messages also wait when the caller sends the request itself, and the next request passes the
    strict provider.
    """
    script = [ScriptedAnswer("ok 1", (), "Thinking."), ScriptedAnswer("ok 2", (), "More.")]
    upstream, thinking = (
        ProviderUpstream(Provider(None, script)),
        {"max_tokens": 5_000, "thinking": {"type": "adaptive"}},
    )

    async def run_scenario():
        async with open_session(upstream, fields=thinking) as session:
            prepared = await session.prepare("first")
            answer = await ask_upstream(
                upstream, build_template_from_fields(prepared.target, thinking).build_upstream_request(prepared)
            )
            await session.append("second")
            await session.record(answer)
            await session.append("third")
            assert (await session.ask()).message.text == "ok 2"
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["first", "ok 1", "second", "third", "ok 2"]


def test_session_record_takes_one_answer_to_a_prepared_request():
    """The provider accepts the body of ``prepare`` as it is, and a second answer to it is refused."""
    upstream = ProviderUpstream(Provider())

    async def run_scenario():
        async with open_session(upstream, fields={}) as session:
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

    assert run_on_fake_clock(run_scenario) == ["first", "ok 1"]


def test_journal_open_raises_store_corrupt_for_an_unreadable_queued_message():
    """The error suggests an earlier entry, and the session opens from that one."""
    store = MemoryStore()

    async def run_scenario():
        async with open_session(ScriptedUpstream(["yes"]), store=store) as session:
            (id_,) = await session.append("first")
            session.journal._append_bodies([NoteEntry(NOTE_QUEUED, b"kelp")])
            return id_

    id_ = run_on_fake_clock(run_scenario)
    with pytest.raises(StoreCorrupt, match="continue from an entry before it"):
        Journal.open(store, SAMPLE_KEY)
    assert Journal.open(store, SAMPLE_KEY, leaf=id_).state.history.messages[0].text == "first"


def test_session_append_keeps_queued_messages_in_order_after_a_failed_request():
    """A message queued behind a failed request stands before every message appended later."""
    upstream = ProviderUpstream(Provider(), [Fault("401", "head", 0)], latency=5.0)

    async def ask_and_expect_error(session):
        with pytest.raises(UpstreamError):
            await session.ask("first")

    async def run_scenario():
        async with open_session(upstream) as session:
            async with anyio.create_task_group() as group:
                group.start_soon(ask_and_expect_error, session)
                await anyio.sleep(1)
                await session.append("second")
            await session.append("third")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["first", "second", "third"]


async def read_texts_of_reopened_session(store):
    """Return the texts of the session's messages as a new engine reads them."""
    async with open_session(ScriptedUpstream([]), store=store) as session:
        await session.resources.run_in_worker(session.journal.deliver_queued)
        return [slot.message.text for slot in session.journal.state.history.sized_messages]


def test_session_ask_sends_the_same_bytes_after_a_cancelled_request():
    """failed-attempt-changes-nothing: a cancelled request stays in the log as sent, and the next request has the same
    bytes.
    """
    store, upstream = MemoryStore(), ProviderUpstream(Provider(), [Fault("stall", "head")])

    async def run_scenario():
        async with open_session(upstream, store=store) as session:
            with anyio.move_on_after(5):
                await session.ask("Go.")
            return await session.ask()

    assert run_on_fake_clock(run_scenario).message.text == "ok 2"
    assert upstream.sent[0].body == upstream.sent[1].body


def test_session_ask_raises_deadline_exceeded_and_frees_its_lane():
    """The error names the seconds, lane and permit are free, and the next request has the same bytes."""
    upstream = ProviderUpstream(Provider(), [Fault("stall", "head")])

    async def run_scenario():
        async with open_session(upstream) as session:
            with pytest.raises(DeadlineExceeded, match="5 s"):
                await session.ask("Go.", deadline=5)
            assert session.resources.lanes.is_idle
            assert session.resources.permits.is_idle
            return await session.ask()

    assert run_on_fake_clock(run_scenario).message.text == "ok 2"
    assert upstream.sent[0].body == upstream.sent[1].body


def test_session_compact_reports_its_outcome_and_can_be_undone():
    """``compact`` returns its outcome and makes the request smaller; ``undo`` restores the size from before."""

    async def run_scenario():
        async with open_session(ScriptedUpstream([])) as session:
            assert (await session.compact()).outcome == "nothing_to_compact"
            for number in range(30):
                await session.append(f"Look at file {number}.", Message.from_text("assistant", "Reading. " * 300))
            before = session.report()
            compacted = await session.compact()
            after = session.report()
            assert compacted.outcome == "compacted"
            assert compacted.tokens_after < compacted.tokens_before
            assert after.tokens < before.tokens
            assert after.compaction_count == 1
            await session.undo()
            return before, session.report()

    before, again = run_on_fake_clock(run_scenario)
    assert (again.tokens, again.compaction_count) == (before.tokens, 0)


def test_session_report_counts_only_what_is_in_force(tmp_path):
    """Superseded compactions and edits on messages they removed are not counted, also after the session is opened
    again.
    """
    long = Message("tool", (ToolResult("c", "Read", (Text("a line\n" * 30_000),)),))

    async def scenario():
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

    reports = run_on_fake_clock(scenario)
    assert reports[1::2][:-1] == reports[2::2]
    assert [report.compaction_count for report in reports] == [0, 1, 1, 1, 1, 1]
    assert min(report.decision_count for report in reports[1:]) > 0


@pytest.mark.parametrize("wrong_input", [7, [None], {1: 2}, b"no body", {"messages": 3}])
def test_session_run_rejects_invalid_input_before_writing(wrong_input):
    """Input that is neither message, text nor body raises FormatError before any message is written."""
    store = MemoryStore()

    async def run_scenario():
        async with open_session(ScriptedUpstream([]), store=store) as session:
            with pytest.raises(FormatError):
                await read_run(session.run(wrong_input))

    run_on_fake_clock(run_scenario)
    assert [type(body).__name__ for body in list_entry_bodies(store)] == ["NoteEntry"]


def test_session_record_parses_an_answer_or_a_refusal_from_bytes():
    """``render_body`` returns a complete request, and ``record`` parses the answer or the refusal from the response
    bytes.
    """
    content = [{"type": "text", "text": "Kelp."}]
    answer = msgspec.json.encode({"role": "assistant", "content": content, "stop_reason": "end_turn"})

    async def scenario():
        async with open_session(ScriptedUpstream([])) as session:
            prepared = await session.prepare("What holds?")
            body = msgspec.json.decode(session.render_body(prepared))
            assert (body["model"], body["max_tokens"]) == (OPUS.model, 100)
            await session.record(TOO_LONG)
            assert session.journal.state.usage.learned_limits.overflows_since_answer == 1
            await session.record(answer)
            assert session.journal.state.history.messages[-1].text == "Kelp."
            with pytest.raises(OperationAborted, match="call prepare"):
                await session.record(answer)

    anyio.run(scenario)


def test_session_answer_recall_reads_back_a_spilled_text():
    """The model finds a spilled text with the recall tool, and a wrong call gets an error result."""
    long = "\n".join(f"line {number}" for number in range(9_000))

    async def scenario():
        async with open_session(ScriptedUpstream([])) as session:
            assert session.recall_tool["name"] == "recall"
            call = Message("assistant", (ToolCall("call_1", "read", "{}"),))
            await session.append("read it", call, Message("tool", (ToolResult("call_1", "read", (Text(long),)),)))
            await session.prepare()
            found = await session.answer_recall({"search": "line 4711"})
            assert "1 found in this conversation" in found.text
            wrong = await session.answer_recall('{"id": "ffffffff"}')
            assert (found.is_error, wrong.is_error) == (False, True)

    anyio.run(scenario)


def test_session_shorten_results_moves_to_a_new_branch():
    """A policy with a limit for a single result shortens on a new branch; a policy without one changes nothing and says
    so.
    """
    smaller_window = replace(OPUS, limits=replace(OPUS.limits, window=200_000))
    result = Message("tool", (ToolResult("call_1", "read", (Text("a line of the log\n" * 20_000),)),))
    call = Message("assistant", (ToolCall("call_1", "read", "{}"),))

    async def scenario(policy):
        async with open_session(ScriptedUpstream([]), smaller_window, policy=policy) as session:
            await session.append("read it", call, result)
            leaf, tokens = session.journal.leaf, session.report().tokens
            outcome = await session.shorten_results()
            return outcome, session.journal.leaf != leaf, session.report().tokens < tokens

    shortened, has_moved, is_smaller = anyio.run(scenario, "openclaw")
    assert (shortened.messages, has_moved, is_smaller) == (1, True, True)
    unchanged, has_moved, _ = anyio.run(scenario, "holdfast")
    assert (unchanged.messages, has_moved) == (0, False)
    assert "holdfast" in unchanged.why
