"""Runs that are not used as they should be, or that are told to stop: nothing is left open, nothing said is lost."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from long_conversation import talk
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import BeforeCompactionResult, Hooks
from holdfast.engine.upstream.upstream import Reply
from holdfast.errors import ContextOverflow, FormatError, OperationAborted
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer as Told
from holdfast.state.entries import AnswerEntry, MessageEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider import ScriptedAnswer as Says
from holdfast.testing.provider.faults.faults import parse_fault
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

WINDOW = 32_000
LONG = Says("one two three four five six seven eight nine ten " * 20)


@asynccontextmanager
async def talking(upstream, store=None, **more):
    """Yield a session that ``upstream`` answers."""
    goal = get_target("anthropic", "claude-opus-5-5", window=WINDOW)
    async with Engine.open(
        store or MemoryStore(), upstream=upstream, target=goal, fields={"max_tokens": 500}, **more
    ) as engine:
        yield await engine.session(SAMPLE_KEY)


def texts(store):
    """Return what was said."""
    return [
        entry.body.sized_message.message.text
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]


async def drained(going):
    """Read a run to its end."""
    async with going as run_:
        async for _ in run_:
            pass


class Watched:
    """An upstream that knows how many replies are open, how many were at once, and in which task each was closed."""

    def __init__(self, upstream):
        self.upstream = upstream
        self.open = self.most = 0
        self.at_home = []

    @asynccontextmanager
    async def send(self, sent):
        """Return the reply of the other one."""
        task = anyio.get_current_task().id
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            async with self.upstream.send(sent) as reply:
                yield reply
        finally:
            self.open -= 1
            self.at_home.append(anyio.get_current_task().id == task)


@pytest.mark.parametrize("error", [None, KeyError("mine")], ids=["leaves", "raises"])
def test_who_leaves_a_run_leaves_no_reply_open(error):
    """The provider's answer is closed by the same task, before the permit is given to somebody else."""
    upstream = Watched(ProviderUpstream(Provider(script=[LONG])))

    async def go():
        async with talking(upstream) as session:
            with suppress(KeyError):
                async with session.run("Go.") as going:
                    async for _ in going:
                        if error:
                            raise error
                        break
            assert (upstream.open, upstream.at_home) == (0, [True])
            assert session.resources.permits.is_idle
            assert session.resources.lanes.is_idle

    run_on_fake_clock(go)


@pytest.mark.parametrize("quiet", [False, True], ids=["given out", "quiet"])
def test_what_came_of_an_answer_is_kept_where_the_caller_leaves(quiet):
    """As one that was interrupted, also where nothing of it was given out."""
    store = MemoryStore()

    async def go():
        async with talking(
            ProviderUpstream(Provider(script=[LONG]), [parse_fault("stall:middle:1:60")]), store
        ) as session:
            with anyio.move_on_after(5):
                async with session.run("Go.", quiet=quiet) as going:
                    async for _ in going:
                        pass

    run_on_fake_clock(go)
    asked, kept = texts(store)
    assert asked == "Go."
    assert LONG.text.startswith(kept)
    assert kept
    assert [entry.body.stop_reason for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)] == [
        "aborted"
    ]


def test_a_run_is_one_request():
    """To begin one a second time is an error: its words would be said twice."""
    store = MemoryStore()

    async def go():
        async with talking(ProviderUpstream(Provider()), store) as session:
            going = session.run("Go.")
            await drained(going)
            with pytest.raises(OperationAborted, match=r"session\.run"):
                await drained(going)
            assert going.answer.message.text == "ok 1"
            assert session.resources.lanes.is_idle

    run_on_fake_clock(go)
    assert texts(store) == ["Go.", "ok 1"]


def test_a_branch_keeps_its_lane_where_its_past_is_edited():
    """What comes while a conversation parts from the log waits for it, as it would have before."""
    upstream = Watched(ProviderUpstream(Provider(), latency=5.0))
    edited = {"model": "claude-opus-5-5", "max_tokens": 50, "messages": [{"role": "user", "content": "otherwise"}]}

    async def go():
        async with talking(upstream) as session:
            await session.ask("one")
            async with anyio.create_task_group() as group:
                group.start_soon(drained, session.run(edited))
                await anyio.sleep(1)
                group.start_soon(session.ask, "three")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(go) == ["otherwise", "ok 2", "three", "ok 3"]
    assert upstream.most == 1


BEGUN = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":10,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"The kelp"}}\n\n'
)
OVERFLOWED = (
    b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error",'
    b'"message":"prompt is too long: 33000 tokens > 16000 maximum"}}\n\n'
)


def test_what_was_given_out_before_an_overflow_is_in_the_log():
    """queued-input-once: the model's words that the caller has are an interrupted answer, and the overflow teaches all
    the same.
    """
    store = MemoryStore()
    upstream = ScriptedUpstream([ScriptedReply((BEGUN, OVERFLOWED), headers={"content-type": "text/event-stream"})])

    async def go():
        async with talking(upstream, store) as session:
            with pytest.raises(ContextOverflow):
                await drained(session.run("Go."))
            return session.report()

    assert run_on_fake_clock(go).window == 16_000
    assert [entry.body.stop_reason for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)] == [
        "aborted"
    ]
    assert texts(store)[-1] == "The kelp"


# -- hooks that speak --------------------------------------------------------------------------------------------------


def spoken(**hooks):
    """Return a store, and the events of a compaction in a session to which each of those hooks says something."""
    store, heard, told = MemoryStore(), [], {}

    async def go():
        async with talking(
            ProviderUpstream(Provider(ProviderSettings(window=WINDOW))),
            store,
            listen=heard.append,
            hooks=Hooks(**{name: speaking(name, returned) for name, returned in hooks.items()}),
        ) as session:
            told["session"] = session
            await session.append(*talk())
            with anyio.fail_after(60):
                await session.ask("And now?")
            assert session.resources.lanes.is_idle

    def speaking(name, returned):
        async def hook(*_):
            await told["session"].append(f"said by {name}")
            return returned

        return hook

    run_on_fake_clock(go)
    return store, [event for event in heard if isinstance(event, events.CompactionEnded)]


def test_a_hook_that_speaks_after_a_compaction_is_called_once():
    """A compaction is told when it is in the log, so that what is said then does not make it all begin again."""
    store, made = spoken(after_compaction=None)
    assert [event.outcome for event in made] == ["compacted"]
    assert texts(store).count("said by after_compaction") == 1


def test_a_hook_that_speaks_after_a_compaction_that_failed_is_called_once_for_it():
    """What it says is in the request that goes out; the summary is not asked for again."""
    store, made = spoken(before_compaction=BeforeCompactionResult(cancel=True), after_compaction=None)
    assert [event.outcome for event in made].count("cancelled") == 1
    assert texts(store).count("said by before_compaction") == 1


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
def test_a_hook_is_not_called_for_what_it_does_itself(is_plain):
    """One that appends when something is appended is called once for each message of others, whatever kind it is."""
    store, told = MemoryStore(), {}

    async def again(_):
        await told["session"].append("again")

    def plain(message):
        return again(message)

    async def go():
        hooks = Hooks(on_append=plain if is_plain else again)
        async with talking(ScriptedUpstream([]), store, hooks=hooks) as session:
            told["session"] = session
            await session.append("one", "two")

    run_on_fake_clock(go)
    assert texts(store) == ["again", "again", "one", "two"]


def test_the_same_request_again_tells_of_no_other_compaction():
    """What was decided for a request is told once, however often it goes out."""
    heard = []

    async def go():
        async with talking(ScriptedUpstream([]), listen=heard.append) as session:
            await session.append(*talk(), "And now?")
            first, again = await session.prepare(), await session.prepare()
            assert first.request_id == again.request_id

    run_on_fake_clock(go)
    kinds = [type(event).__name__ for event in heard]
    assert kinds.count("CompactionEnded") == kinds.count("CompactionStarted") == 1


# -- answers that somebody else fetched --------------------------------------------------------------------------------

REFUSED = (
    b'{"type":"error","error":{"type":"invalid_request_error",'
    b'"message":"prompt is too long: 33000 tokens > 16000 maximum"}}'
)


def test_what_a_caller_was_told_is_recorded_as_what_it_is():
    """A refusal and an answer without a word are no messages; an overflow teaches; what is no answer is refused."""
    store = MemoryStore()

    async def go():
        async with talking(ScriptedUpstream([]), store) as session:
            await session.prepare("Go.")
            with pytest.raises(FormatError, match="not an answer"):
                await session.record("yes")
            await session.record(parse_answer("anthropic", REFUSED))
            window = session.report().window
            await session.prepare()
            await session.record(Told(stop_reason="refusal", is_complete=True))
            return window

    assert run_on_fake_clock(go) == 16_000
    assert texts(store) == ["Go."]
    kinds = [type(entry.body).__name__ for entry in store.read_path(SAMPLE_KEY)]
    assert kinds[-4:] == ["RequestEntry", "FailureEntry", "RequestEntry", "AnswerEntry"]


def test_a_front_that_is_dropped_a_little_more_each_time_is_noticed():
    """A provider that answers whatever the size tells its window by prompts that stop growing, and it is learned."""
    provider = Provider(ProviderSettings(window=8_000, overflow="silent"))

    async def go():
        async with talking(ProviderUpstream(provider)) as session:
            for step in range(12):
                await session.append(*talk(3))
                await session.ask(f"And now, {step}?")
            return session.report()

    report = run_on_fake_clock(go)
    assert (report.window, report.window_source) == (8_000, "learned")
    assert [one.tokens for one in provider.requests].count(8_000) < 8


class Silent:
    """An upstream that never answers."""

    @asynccontextmanager
    async def send(self, _sent):
        """Wait."""
        await anyio.sleep_forever()
        yield


def test_closing_stops_the_compactions_of_every_branch():
    """A summary that a fork waits for keeps no engine from closing."""
    told = []

    async def compacted(session):
        told.append((await session.compact()).outcome)

    async def go():
        goal = get_target("openai-chat", "gpt-5.5")
        async with anyio.create_task_group() as group:
            async with talking(ScriptedUpstream([]), writers=[SummaryWriter(Silent(), goal)]) as session:
                await session.append(*talk())
                branch = await session.branch(session.journal.leaf)
                group.start_soon(compacted, branch)
                await anyio.sleep(1)
            return anyio.current_time()

    assert run_on_fake_clock(go) < 2
    assert len(told) == 1


def test_the_log_tells_an_upstream_that_raised_from_a_caller_that_left():
    """What an upstream may not raise passes through, and is what the log says of the request."""
    store = MemoryStore()

    async def go():
        async with talking(ScriptedUpstream([KeyError("a bug of yours")]), store) as session:
            with pytest.raises(KeyError):
                await session.ask("Go.")
            assert session.resources.permits.is_idle

    run_on_fake_clock(go)
    assert "a bug of yours" in store.read_path(SAMPLE_KEY)[-1].body.reason


class Lingering:
    """An upstream whose connections stay open when all was said."""

    def __init__(self, upstream):
        self.upstream = upstream

    @asynccontextmanager
    async def send(self, sent):
        """Return the reply of the other one, which does not end."""
        async with self.upstream.send(sent) as reply:
            yield Reply(reply.status, reply.headers, self._chunks(reply))

    async def _chunks(self, reply):
        async for chunk in reply.chunks:
            yield chunk
        await anyio.sleep_forever()


@pytest.mark.parametrize("leaves", ["by itself", "cancelled"])
def test_an_answer_that_was_read_to_its_last_event_is_whole(leaves):
    """A caller that leaves when all was said, and does not wait for the connection's end, has had its answer."""

    async def go():
        store = MemoryStore()
        async with talking(Lingering(ProviderUpstream(Provider(ProviderSettings(), [LONG]))), store) as session:
            with anyio.CancelScope() as scope:
                async with session.run("Go on.", stream=True) as coming:
                    async for event in coming:
                        if event.event == "message_stop" and leaves == "cancelled":
                            scope.cancel()
                        elif event.event == "message_stop":
                            break
            answers = [entry.body for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)]
            assert [(one.stop_reason, one.usage.output > 0) for one in answers] == [("end", True)]
            assert texts(store) == ["Go on.", LONG.text]

    run_on_fake_clock(go)
