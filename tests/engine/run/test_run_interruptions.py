"""Runs that are left, cancelled or misused: no reply stays open, and no message is lost."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from long_conversation import build_long_conversation
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import BeforeCompactionResult, Hooks
from holdfast.engine.upstream.upstream import Reply
from holdfast.errors import ContextOverflow, FormatError, OperationAborted
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.state.entries import AnswerEntry, MessageEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.faults.faults import parse_fault
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

WINDOW = 32_000
LONG_ANSWER = ScriptedAnswer("one two three four five six seven eight nine ten " * 20)


@asynccontextmanager
async def open_session(upstream, store=None, **options):
    """Open a session whose requests ``upstream`` answers."""
    target = get_target("anthropic", "claude-opus-5-5", window=WINDOW)
    async with Engine.open(
        store or MemoryStore(), upstream=upstream, target=target, fields={"max_tokens": 500}, **options
    ) as engine:
        yield await engine.session(SAMPLE_KEY)


def list_texts(store):
    """Return the texts of the messages on the active branch."""
    return [
        entry.body.sized_message.message.text
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]


async def read_run(run):
    """Read a run to its end."""
    async with run as events_of_run:
        async for _ in events_of_run:
            pass


class WatchedUpstream:
    """An upstream that counts its open replies and records whether the same task closed each one."""

    def __init__(self, upstream):
        self.upstream = upstream
        self.open = self.max_open = 0
        self.closed_by_same_task = []

    @asynccontextmanager
    async def send(self, request):
        """Return the reply of the wrapped upstream."""
        task = anyio.get_current_task().id
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            async with self.upstream.send(request) as reply:
                yield reply
        finally:
            self.open -= 1
            self.closed_by_same_task.append(anyio.get_current_task().id == task)


@pytest.mark.parametrize("error", [None, KeyError("mine")], ids=["leaves", "raises"])
def test_session_run_left_early_closes_its_reply_in_the_same_task(error):
    """The provider's reply is closed before the permit is given to another call."""
    upstream = WatchedUpstream(ProviderUpstream(Provider(script=[LONG_ANSWER])))

    async def run_scenario():
        async with open_session(upstream) as session:
            with suppress(KeyError):
                async with session.run("Go.") as run:
                    async for _ in run:
                        if error:
                            raise error
                        break
            assert (upstream.open, upstream.closed_by_same_task) == (0, [True])
            assert session.resources.permits.is_idle
            assert session.resources.lanes.is_idle

    run_on_fake_clock(run_scenario)


@pytest.mark.parametrize("quiet", [False, True], ids=["given out", "quiet"])
def test_session_run_cancelled_records_the_partial_answer(quiet):
    """The received part is recorded as aborted, even if none of it was passed on."""
    store = MemoryStore()

    async def run_scenario():
        async with open_session(
            ProviderUpstream(Provider(script=[LONG_ANSWER]), [parse_fault("stall:middle:1:60")]), store
        ) as session:
            with anyio.move_on_after(5):
                async with session.run("Go.", quiet=quiet) as run:
                    async for _ in run:
                        pass

    run_on_fake_clock(run_scenario)
    question, partial_text = list_texts(store)
    assert question == "Go."
    assert LONG_ANSWER.text.startswith(partial_text)
    assert partial_text
    assert [entry.body.stop_reason for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)] == [
        "aborted"
    ]


def test_session_run_cannot_be_started_twice():
    """A second start would append its messages twice."""
    store = MemoryStore()

    async def run_scenario():
        async with open_session(ProviderUpstream(Provider()), store) as session:
            run = session.run("Go.")
            await read_run(run)
            with pytest.raises(OperationAborted, match=r"session\.run"):
                await read_run(run)
            assert run.answer.message.text == "ok 1"
            assert session.resources.lanes.is_idle

    run_on_fake_clock(run_scenario)
    assert list_texts(store) == ["Go.", "ok 1"]


def test_session_run_with_an_edited_history_keeps_its_lane():
    """A request that arrives while the conversation branches waits for it as before."""
    upstream = WatchedUpstream(ProviderUpstream(Provider(), latency=5.0))
    edited = {"model": "claude-opus-5-5", "max_tokens": 50, "messages": [{"role": "user", "content": "otherwise"}]}

    async def run_scenario():
        async with open_session(upstream) as session:
            await session.ask("one")
            async with anyio.create_task_group() as group:
                group.start_soon(read_run, session.run(edited))
                await anyio.sleep(1)
                group.start_soon(session.ask, "three")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["otherwise", "ok 2", "three", "ok 3"]
    assert upstream.max_open == 1


STREAM_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":10,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"The kelp"}}\n\n'
)
STREAM_OVERFLOW = (
    b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error",'
    b'"message":"prompt is too long: 33000 tokens > 16000 maximum"}}\n\n'
)


def test_session_run_records_the_text_before_an_overflow_in_the_stream():
    """queued-input-once: the text that the caller has is recorded as aborted, and the overflow teaches the window."""
    store = MemoryStore()
    upstream = ScriptedUpstream(
        [ScriptedReply((STREAM_START, STREAM_OVERFLOW), headers={"content-type": "text/event-stream"})]
    )

    async def run_scenario():
        async with open_session(upstream, store) as session:
            with pytest.raises(ContextOverflow):
                await read_run(session.run("Go."))
            return session.report()

    assert run_on_fake_clock(run_scenario).window == 16_000
    assert [entry.body.stop_reason for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)] == [
        "aborted"
    ]
    assert list_texts(store)[-1] == "The kelp"


# -- hooks that append -------------------------------------------------------------------------------------------------


def run_with_appending_hooks(**hooks):
    """Compact in a session to which each hook appends a message; return its store and the compaction events."""
    store, seen_events, sessions = MemoryStore(), [], {}

    async def run_scenario():
        async with open_session(
            ProviderUpstream(Provider(ProviderSettings(window=WINDOW))),
            store,
            listen=seen_events.append,
            hooks=Hooks(**{name: make_hook(name, returned) for name, returned in hooks.items()}),
        ) as session:
            sessions["session"] = session
            await session.append(*build_long_conversation())
            with anyio.fail_after(60):
                await session.ask("And now?")
            assert session.resources.lanes.is_idle

    def make_hook(name, returned):
        async def hook(*_):
            await sessions["session"].append(f"said by {name}")
            return returned

        return hook

    run_on_fake_clock(run_scenario)
    return store, [event for event in seen_events if isinstance(event, events.CompactionEnded)]


def test_after_compaction_hook_that_appends_is_called_once():
    """The hook runs after the compaction is in the log, so its message does not start another one."""
    store, ended = run_with_appending_hooks(after_compaction=None)
    assert [event.outcome for event in ended] == ["compacted"]
    assert list_texts(store).count("said by after_compaction") == 1


def test_after_compaction_hook_that_appends_after_a_failure_is_called_once():
    """The appended message is in the request that follows, and the summary is not requested again."""
    store, ended = run_with_appending_hooks(
        before_compaction=BeforeCompactionResult(cancel=True), after_compaction=None
    )
    assert [event.outcome for event in ended].count("cancelled") == 1
    assert list_texts(store).count("said by before_compaction") == 1


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
def test_on_append_hook_is_not_called_for_its_own_messages(is_plain):
    """A hook that appends on append runs once for each message of others, async or plain."""
    store, sessions = MemoryStore(), {}

    async def append_again(_):
        await sessions["session"].append("again")

    def append_again_from_plain(message):
        return append_again(message)

    async def run_scenario():
        hooks = Hooks(on_append=append_again_from_plain if is_plain else append_again)
        async with open_session(ScriptedUpstream([]), store, hooks=hooks) as session:
            sessions["session"] = session
            await session.append("one", "two")

    run_on_fake_clock(run_scenario)
    assert list_texts(store) == ["again", "again", "one", "two"]


def test_session_prepare_reports_the_compaction_of_a_request_once():
    """A request that is prepared again reports no second compaction."""
    seen_events = []

    async def run_scenario():
        async with open_session(ScriptedUpstream([]), listen=seen_events.append) as session:
            await session.append(*build_long_conversation(), "And now?")
            first, again = await session.prepare(), await session.prepare()
            assert first.request_id == again.request_id

    run_on_fake_clock(run_scenario)
    kinds = [type(event).__name__ for event in seen_events]
    assert kinds.count("CompactionEnded") == kinds.count("CompactionStarted") == 1


# -- answers that the caller fetched -----------------------------------------------------------------------------------

REFUSAL = (
    b'{"type":"error","error":{"type":"invalid_request_error",'
    b'"message":"prompt is too long: 33000 tokens > 16000 maximum"}}'
)


def test_session_record_records_refusals_and_empty_answers():
    """Neither adds a message, an overflow teaches the window, and any other value is refused."""
    store = MemoryStore()

    async def run_scenario():
        async with open_session(ScriptedUpstream([]), store) as session:
            await session.prepare("Go.")
            with pytest.raises(FormatError, match="not an answer"):
                await session.record("yes")
            await session.record(parse_answer("anthropic", REFUSAL))
            window = session.report().window
            await session.prepare()
            await session.record(ParsedAnswer(stop_reason="refusal", is_complete=True))
            return window

    assert run_on_fake_clock(run_scenario) == 16_000
    assert list_texts(store) == ["Go."]
    kinds = [type(entry.body).__name__ for entry in store.read_path(SAMPLE_KEY)]
    assert kinds[-4:] == ["RequestEntry", "FailureEntry", "RequestEntry", "AnswerEntry"]


def test_session_learns_the_window_from_silent_truncation():
    """A provider that cuts every prompt reveals its window by prompts that stop growing."""
    provider = Provider(ProviderSettings(window=8_000, overflow="silent"))

    async def run_scenario():
        async with open_session(ProviderUpstream(provider)) as session:
            for step in range(12):
                await session.append(*build_long_conversation(3))
                await session.ask(f"And now, {step}?")
            return session.report()

    report = run_on_fake_clock(run_scenario)
    assert (report.window, report.window_source) == (8_000, "learned")
    assert [request.tokens for request in provider.requests].count(8_000) < 8


class SilentUpstream:
    """An upstream that never answers."""

    @asynccontextmanager
    async def send(self, _sent):
        """Wait."""
        await anyio.sleep_forever()
        yield


def test_engine_close_cancels_the_compactions_of_every_branch():
    """A summary that a fork waits for does not keep the engine from closing."""
    outcomes = []

    async def compact(session):
        outcomes.append((await session.compact()).outcome)

    async def run_scenario():
        target = get_target("openai-chat", "gpt-5.5")
        async with anyio.create_task_group() as group:
            async with open_session(ScriptedUpstream([]), writers=[SummaryWriter(SilentUpstream(), target)]) as session:
                await session.append(*build_long_conversation())
                branch = await session.branch(session.journal.leaf)
                group.start_soon(compact, branch)
                await anyio.sleep(1)
            return anyio.current_time()

    assert run_on_fake_clock(run_scenario) < 2
    assert len(outcomes) == 1


def test_failure_entry_names_the_error_of_a_custom_upstream():
    """An unexpected exception of the upstream passes through and is the reason in the log."""
    store = MemoryStore()

    async def run_scenario():
        async with open_session(ScriptedUpstream([KeyError("a bug of yours")]), store) as session:
            with pytest.raises(KeyError):
                await session.ask("Go.")
            assert session.resources.permits.is_idle

    run_on_fake_clock(run_scenario)
    assert "a bug of yours" in store.read_path(SAMPLE_KEY)[-1].body.reason


class LingeringUpstream:
    """An upstream whose connections stay open after the answer."""

    def __init__(self, upstream):
        self.upstream = upstream

    @asynccontextmanager
    async def send(self, request):
        """Return the reply of the wrapped upstream, without an end."""
        async with self.upstream.send(request) as reply:
            yield Reply(reply.status, reply.headers, self._chunks(reply))

    async def _chunks(self, reply):
        async for chunk in reply.chunks:
            yield chunk
        await anyio.sleep_forever()


@pytest.mark.parametrize("leaves", ["by itself", "cancelled"])
def test_session_run_left_after_the_last_event_records_a_complete_answer(leaves):
    """A caller that does not wait for the connection's end has had its whole answer."""

    async def run_scenario():
        store = MemoryStore()
        async with open_session(
            LingeringUpstream(ProviderUpstream(Provider(ProviderSettings(), [LONG_ANSWER]))), store
        ) as session:
            with anyio.CancelScope() as scope:
                async with session.run("Go on.", stream=True) as run:
                    async for event in run:
                        if event.event == "message_stop" and leaves == "cancelled":
                            scope.cancel()
                        elif event.event == "message_stop":
                            break
            answers = [entry.body for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)]
            assert [(answer.stop_reason, answer.usage.output > 0) for answer in answers] == [("end", True)]
            assert list_texts(store) == ["Go on.", LONG_ANSWER.text]

    run_on_fake_clock(run_scenario)
