"""The engine: summaries by a model or the provider, failing hooks, writers and stores, invalid options, events."""

from __future__ import annotations

import gc
from functools import partial
from weakref import ref

import anyio
import pytest
from long_conversation import build_long_conversation
from sample_entries import SAMPLE_KEY

import holdfast
from holdfast import events
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import BeforeCompactionResult, Hooks
from holdfast.errors import (
    ConfigError,
    FormatError,
    InvalidRequest,
    StoreReadOnly,
    UnknownId,
    UnknownPolicy,
    WindowTooSmall,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.planning.pipeline import Policy
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.state.entries import CompactionEntry, FailureEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.upstream import ProviderUpstream, ScriptedUpstream

OPUS = get_target("anthropic", "claude-opus-5-5", window=32_000)
OUTPUT = {"max_tokens": 500}
SUMMARY = (
    "\n".join(f"## {heading}\n- kelp on the rock, note 39, keep it all\n" for heading in SUMMARY_HEADINGS)
    + "word " * 200
)


def ask_after_long_conversation(upstream, *messages, store=None, target=OPUS, **options):
    """Ask ``messages`` behind a long conversation; return the answer, the session and the events."""
    seen_events = []

    async def run_scenario():
        async with Engine.open(
            store or MemoryStore(),
            upstream=upstream,
            target=target,
            fields=OUTPUT if target.api == "anthropic" else {},
            listen=seen_events.append,
            **options,
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation())
            return await session.ask(*messages or ("And now?",)), session

    answer, session = run_on_fake_clock(run_scenario)
    return answer, session, seen_events


def select_events(seen_events, kind):
    """Return the events of one kind."""
    return [event for event in seen_events if isinstance(event, kind)]


def get_compaction(session):
    """Return the compaction in force."""
    return session.journal.state.view.compaction


def test_engine_compacts_with_an_extract_without_a_summary_model():
    """reduction-without-model: no model is asked for a summary, an extract takes effect, and the event names its
    author.
    """
    answer, session, seen_events = ask_after_long_conversation(
        ProviderUpstream(Provider(ProviderSettings(window=32_000)))
    )
    assert answer.message.text
    assert [(event.outcome, event.author) for event in select_events(seen_events, events.CompactionEnded)] == [
        ("compacted", "extract")
    ]
    assert "without a model" in get_compaction(session).summary.text


def test_engine_appends_its_own_extract_to_a_model_summary():
    """The model's text comes first, then what it leaves uncovered; the summary request is plain text without tools."""
    provider = Provider(ProviderSettings(window=32_000), [ScriptedAnswer(SUMMARY), ScriptedAnswer("yes")])
    upstream = ProviderUpstream(provider)
    answer, session, seen_events = ask_after_long_conversation(
        upstream, summary_model="claude-haiku-4-5", api="anthropic"
    )
    assert answer.message.text == "yes"
    assert [(event.outcome, event.author) for event in select_events(seen_events, events.CompactionEnded)] == [
        ("compacted", "model")
    ]
    text = get_compaction(session).summary.text
    assert "keep it all" in text
    assert text.index("keep it all") < text.index("User")
    assert b'"tools"' not in upstream.sent[0].body


@pytest.mark.parametrize(
    "bad",
    [
        ScriptedAnswer("I'm sorry, but I can't help with that."),
        ScriptedAnswer("", (("read", {"path": "a"}),)),
        ScriptedAnswer("x" * 1_000_000),
        ScriptedAnswer(""),
    ],
    ids=["refuses", "calls a tool", "1 MB", "nothing"],
)
def test_engine_uses_an_extract_when_a_summary_is_refused_twice(bad):
    """summary-form: a summary that was refused twice is reported and recorded as a failure, and the turn goes on with
    an extract.
    """
    store = MemoryStore()
    writer = SummaryWriter(ScriptedUpstream([bad] * 12), get_target("openai-chat", "gpt-5.5", window=64_000))
    answer, session, seen_events = ask_after_long_conversation(
        ProviderUpstream(Provider(ProviderSettings(window=32_000))), store=store, writers=[writer]
    )
    assert answer.message.text
    outcomes = [(event.outcome, event.author) for event in select_events(seen_events, events.CompactionEnded)]
    assert outcomes[-1] == ("compacted", "extract")
    assert outcomes[0][0] in {"summary_rejected", "provider_error"}
    assert not {"write the notes", "no tool is to be called"} & {
        *select_events(seen_events, events.CompactionEnded)[0].why.split("; ")
    }
    failures = [entry.body.kind for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, FailureEntry)]
    assert failures == [outcomes[0][0]]
    assert "without a model" in get_compaction(session).summary.text


class Timeout(Exception):
    """What an HTTP library raises, and is no error of ours."""


class RaisingUpstream:
    """An upstream that raises Timeout."""

    def send(self, _):
        """Raise."""
        raise Timeout("read timed out")


def test_engine_uses_an_extract_when_a_writer_raises_any_error():
    """No error of a summary writer fails the turn; the error is reported and the next writer is asked."""
    target = get_target("openai-chat", "gpt-5.5", window=64_000)
    writers = [
        SummaryWriter(RaisingUpstream(), target),
        SummaryWriter(ScriptedUpstream([ScriptedAnswer("no")] * 12), target),
    ]
    answer, session, seen_events = ask_after_long_conversation(
        ProviderUpstream(Provider(ProviderSettings(window=32_000))), writers=writers
    )
    assert answer.message.text
    assert "without a model" in get_compaction(session).summary.text
    why = select_events(seen_events, events.CompactionEnded)[0].why
    assert "Timeout: read timed out" in why
    assert "wrote no acceptable summary" in why


def test_engine_open_rejects_a_writer_without_a_client():
    """A writer with an unknown client is refused when the engine opens, not at the first compaction."""

    async def run_scenario(client):
        writer = SummaryWriter(client, get_target("openai-chat", "gpt-5.5"))
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS, writers=[writer]):
            pass

    with pytest.raises(ConfigError, match="not a supported client"):
        run_on_fake_clock(run_scenario, object())


@pytest.mark.parametrize("writers", [5, [5], ["claude-haiku-4-5"]])
def test_session_run_rejects_writers_of_another_type(writers):
    """A run checks its ``writers`` as the engine does, before anything is sent."""

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS) as engine:
            (await engine.session(SAMPLE_KEY)).run("hello", writers=writers)

    with pytest.raises(ConfigError, match="writers"):
        run_on_fake_clock(run_scenario)


def test_engine_stops_asking_a_writer_after_three_failed_summaries():
    """After three failures in a row the writer is asked again only for a manual compaction or after the cooldown."""
    writer = ScriptedUpstream([ScriptedAnswer("no headings here")] * 40)
    clock = [1_000_000]

    async def run_scenario():
        async with Engine.open(
            MemoryStore(),
            upstream=ProviderUpstream(Provider(ProviderSettings(window=32_000))),
            target=OPUS,
            fields=OUTPUT,
            writers=[SummaryWriter(writer, get_target("openai-chat", "gpt-5.5", window=64_000))],
        ) as engine:
            engine.resources.clock = lambda: clock[0]
            session = await engine.session(SAMPLE_KEY)
            calls = []
            for _ in range(6):
                await session.append(*build_long_conversation())
                await session.ask("And now?")
                calls.append(len(writer.sent))
            clock[0] += 1_000_000
            await session.append(*build_long_conversation())
            await session.ask("And now?")
            later = len(writer.sent)
            await session.append(*build_long_conversation())
            await session.compact()
            return calls, later, len(writer.sent)

    calls, later, asked_for = run_on_fake_clock(run_scenario)
    assert calls[2] == calls[-1] == 6
    assert later == 8
    assert asked_for == 10


def test_engine_counts_failed_summaries_across_restarts():
    """The failure count is folded from the log, so a restart does not make the writer be asked sooner."""
    writer = ScriptedUpstream([ScriptedAnswer("no headings here")] * 40)
    store, clock = MemoryStore(), [1_000_000]

    async def run_session():
        async with Engine.open(
            store,
            upstream=ProviderUpstream(Provider(ProviderSettings(window=32_000))),
            target=OPUS,
            fields=OUTPUT,
            writers=[SummaryWriter(writer, get_target("openai-chat", "gpt-5.5", window=64_000))],
        ) as engine:
            engine.resources.clock = lambda: clock[0]
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation())
            await session.ask("And now?")
        return len(writer.sent)

    assert [run_on_fake_clock(run_session) for _ in range(5)] == [2, 4, 6, 6, 6]
    clock[0] += 1_000 * Policy().settings.compaction.breaker_cooldown_seconds
    assert [run_on_fake_clock(run_session) for _ in range(2)] == [8, 8]


def test_engine_session_opens_a_closed_session_again():
    """After ``close`` the engine returns a new session object that works."""

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream(["yes"]), target=OPUS, fields=OUTPUT) as engine:
            first = await engine.session(SAMPLE_KEY)
            first.close()
            again = await engine.session(SAMPLE_KEY)
            assert again is not first
            assert await engine.session(SAMPLE_KEY) is again
            return (await again.ask("Go.")).message.text

    assert run_on_fake_clock(run_scenario) == "yes"


@pytest.mark.parametrize("open_count", [0, 1, 7])
def test_engine_releases_closed_sessions(open_count):
    """The engine keeps at most one more closed session than open ones, and open ones stay the same objects."""

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS) as engine:
            open_sessions = [await engine.session(f"kept {number}") for number in range(open_count)]
            closed_sessions = []
            for number in range(50):
                session = await engine.session(f"left {number}")
                session.close()
                closed_sessions.append(ref(session))
                del session
            gc.collect()
            assert sum(reference() is not None for reference in closed_sessions) <= open_count + 1
            assert [await engine.session(session.key) for session in open_sessions] == open_sessions

    run_on_fake_clock(run_scenario)


def test_engine_session_opens_closed_sessions_concurrently():
    """Tasks that reopen closed sessions at once each get the open session of their own key."""

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS) as engine:
            sessions, names = {}, [str(number) for number in range(6)]
            for name in names:
                (await engine.session(name)).close()

            async def open_session(name):
                sessions[name] = await engine.session(name)

            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(open_session, name)
            assert [sessions[name].key for name in names] == names
            assert not any(session.compaction_tracker.status.is_closed for session in sessions.values())

    run_on_fake_clock(run_scenario)


def test_engine_native_compaction_can_be_undone():
    """The provider's encrypted compaction is sent unchanged, beside a readable summary; undo removes both."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=32_000)))
    answer, session, seen_events = ask_after_long_conversation(
        upstream, native=True, target=get_target("openai-responses", "gpt-5.5", window=32_000)
    )
    assert answer.message.text
    assert [event.author for event in select_events(seen_events, events.CompactionEnded)] == ["native"]
    assert get_compaction(session).native is not None
    assert get_compaction(session).summary.text
    assert b'"encrypted_content"' in upstream.sent[-1].body
    session.journal.undo()
    assert get_compaction(session) is None


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_before_compaction_hook_can_supply_the_summary():
    """No writer is asked when the hook returns a summary."""

    def supply(head, reason):
        return BeforeCompactionResult(summary=f"{len(head)} messages about kelp, asked for by {reason}")

    _, session, seen_events = ask_after_long_conversation(
        ProviderUpstream(Provider(ProviderSettings(window=32_000))), hooks=Hooks(before_compaction=supply)
    )
    assert [event.author for event in select_events(seen_events, events.CompactionEnded)] == ["hook"]
    assert "messages about kelp, asked for by auto" in get_compaction(session).summary.text


def test_before_compaction_hook_can_cancel_a_compaction():
    """The outcome is cancelled, which does not count as a failure."""
    store = MemoryStore()
    _, session, seen_events = ask_after_long_conversation(
        ProviderUpstream(Provider(ProviderSettings(window=32_000))),
        store=store,
        hooks=Hooks(before_compaction=lambda *_: BeforeCompactionResult(cancel=True)),
    )
    assert "cancelled" in [event.outcome for event in select_events(seen_events, events.CompactionEnded)]
    assert session.journal.state.counters.failed_compactions == 0


class HangingListener:
    """A listener with an asynchronous ``__call__`` that never returns."""

    async def __call__(self, _):
        await anyio.sleep_forever()


async def hang(*_):
    """Wait for ever."""
    await anyio.sleep_forever()


def raise_unexpected_error(*_):
    """Raise an error that no caller handles."""
    raise ZeroDivisionError("a hook of yours")


HOOKS_CALLED = {"before_compaction", "transform_messages", "after_compaction", "on_append"}


@pytest.mark.parametrize(
    ("bad", "failed_hooks"),
    [(hang, HOOKS_CALLED), (raise_unexpected_error, HOOKS_CALLED), (lambda *_: 7, HOOKS_CALLED - {"after_compaction"})],
    ids=["hangs", "raises", "wrong type"],
)
def test_failing_hooks_are_reported_and_change_no_request(bad, failed_hooks):
    """With failing hooks the session sends the same requests, byte for byte, as without hooks."""
    without_hooks, with_hooks = (ProviderUpstream(Provider(ProviderSettings(window=32_000))) for _ in range(2))
    ask_after_long_conversation(without_hooks)
    _, _, seen_events = ask_after_long_conversation(with_hooks, hooks=Hooks(**dict.fromkeys(HOOKS_CALLED, bad)))
    assert [sent.body for sent in with_hooks.sent] == [sent.body for sent in without_hooks.sent]
    assert {event.hook for event in select_events(seen_events, events.HookFailed)} == failed_hooks


def test_on_append_changes_the_log_and_transform_messages_one_request():
    """``on_append`` changes what the log holds; ``transform_messages`` changes a single request."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=200_000)))

    def uppercase_user_message(message):
        return Message.from_text(message.role, message.text.upper()) if message.role == "user" else None

    def keep_last_message(messages):
        return list(messages)[-1:]

    async def run_scenario():
        async with Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=OPUS,
            fields=OUTPUT,
            hooks=Hooks(on_append=uppercase_user_message, transform_messages=keep_last_message),
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("one")
            await session.ask("two")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["ONE", "ok 1", "TWO", "ok 2"]
    assert b"TWO" in upstream.sent[1].body
    assert b"ONE" not in upstream.sent[1].body


@pytest.mark.parametrize(
    "transform",
    [lambda messages: messages[-3:], lambda messages: [*messages, Message.from_text("user", "word " * 40_000)]],
)
def test_transform_messages_does_not_calibrate_the_estimate(transform):
    """Usage of a request that a hook changed teaches nothing: window and estimate stay as they were."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=200_000)))
    hooks = Hooks(transform_messages=lambda messages: transform(list(messages)))

    async def run_scenario():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api="anthropic", model="claude-sonnet-4-5", fields=OUTPUT, hooks=hooks
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation(40))
            before = session.report()
            for number in range(4):
                await session.ask(f"And {number}?")
            return before, session.report()

    before, after = run_on_fake_clock(run_scenario)
    assert (after.window, after.window_source) == (before.window, before.window_source)
    assert before.tokens < after.tokens < before.tokens + 200
    assert after.compaction_count == 0


def test_transform_messages_that_breaks_the_request_raises_invalid_request():
    """A hook's broken request is not repaired: the error names the hook and the place, and nothing is sent."""
    upstream, call = ScriptedUpstream(["yes"]), ToolCall("toolu_1", "read", "{}")
    history = [
        Message.from_text("user", "Go."),
        Message("assistant", (call,)),
        Message("tool", (ToolResult("toolu_1"),)),
    ]
    hooks = Hooks(transform_messages=lambda messages: [message for message in messages if message.role != "tool"])

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=upstream, target=OPUS, fields=OUTPUT, hooks=hooks) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*history)
            with pytest.raises(InvalidRequest, match=r"the hook transform_messages .*\$\.messages\[1\].*toolu_1"):
                await session.ask("And?")

    run_on_fake_clock(run_scenario)
    assert upstream.sent == []


def test_engine_session_creates_a_removed_session_again():
    """A session that was removed from the store is created empty when it is opened next."""
    store = MemoryStore()

    async def run_scenario():
        async with Engine.open(store, upstream=ScriptedUpstream(["Well."] * 3), target=OPUS, fields=OUTPUT) as engine:
            before = await engine.session(SAMPLE_KEY)
            await before.ask("Hello.")
            store.remove_session(SAMPLE_KEY)
            after = await engine.session(SAMPLE_KEY)
            assert after is not before
            assert after is await engine.session(SAMPLE_KEY)
            return (await after.ask("Again.")).message.text, [
                message.text for message in after.journal.state.history.messages
            ]

    assert run_on_fake_clock(run_scenario) == ("Well.", ["Again.", "Well."])


def test_engine_session_returns_one_object_to_concurrent_tasks():
    """Two objects for one session would each hold half of the conversation."""

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream(["yes"] * 3), target=OPUS) as engine:
            sessions = []

            async def open_session():
                sessions.append(await engine.session(SAMPLE_KEY))

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(open_session)
            return sessions

    first, *others = run_on_fake_clock(run_scenario)
    assert all(other is first for other in others)


def test_engine_stops_calling_a_listener_that_raised(caplog):
    """The run goes on, the listener gets no more events, and one warning with its error is logged."""
    seen_events = []

    def listen(event):
        seen_events.append(event)
        raise RuntimeError("no kelp")

    async def run_scenario():
        async with Engine.open(
            MemoryStore(), upstream=ScriptedUpstream(["yes"]), target=OPUS, fields=OUTPUT, listen=listen
        ) as engine:
            return (await (await engine.session(SAMPLE_KEY)).ask("Go.")).message.text

    assert run_on_fake_clock(run_scenario) == "yes"
    assert len(seen_events) == 1
    (record,) = caplog.records
    assert (record.levelname, "RuntimeError: no kelp" in record.getMessage()) == ("WARNING", True)


# -- wrong input -------------------------------------------------------------------------------------------------------


def open_and_ask(**options):
    """Open an engine with ``options``, ask once, and return the answer and the session's report."""

    async def run_scenario():
        async with Engine.open(MemoryStore(), **({"upstream": ScriptedUpstream(["yes"])} | options)) as engine:
            session = await engine.session(SAMPLE_KEY)
            return await session.ask("Go."), session.report()

    return run_on_fake_clock(run_scenario)


def test_engine_assumes_a_window_for_an_unknown_model():
    """The report names the assumed window as a default."""
    _, report = open_and_ask(api="openai-chat", model="nobody-knows-this")
    assert report.window == 200_000
    assert "default" in report.window_source or "assumed" in report.origin


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"api": "smoke", "model": "m"}, holdfast.HoldfastError, "smoke"),
        ({}, ConfigError, "knows no model"),
        ({"upstream": object(), "api": "anthropic", "model": "m"}, ConfigError, "not a supported client"),
        ({"policy": "hope", "target": OPUS}, UnknownPolicy, "hope"),
        ({"target": get_target("anthropic", "m", window=3_000)}, WindowTooSmall, "3000"),
        ({"target": OPUS, "fields": {"max_tokens": object()}}, holdfast.HoldfastError, "plain values"),
        ({"target": OPUS, "permits": 0}, ValueError, "permits"),
        ({"summary_model": "m"}, ConfigError, "names no API"),
        ({"target": OPUS, "policy": 7}, ConfigError, "policy is of type int"),
        ({"target": OPUS, "hooks": {}}, ConfigError, "hooks is of type dict"),
        ({"target": OPUS, "fields": None}, ConfigError, "Mapping"),
        ({"target": OPUS, "writers": [5]}, ConfigError, r"writers\[0\] is of type int"),
        ({"target": OPUS, "permits": "4"}, ConfigError, "permits is of type str"),
        ({"target": OPUS, "listen": 5}, ConfigError, "listen is of type int"),
        ({"target": OPUS, "listen": hang}, ConfigError, "listen is an async function"),
        ({"target": OPUS, "listen": partial(hang, 1)}, ConfigError, "listen is an async function"),
        ({"target": OPUS, "listen": HangingListener()}, ConfigError, "listen is an async function"),
        ({"api": "anthropic", "model": 5}, ConfigError, "model is of type int"),
        ({"api": [1], "model": "m"}, ConfigError, "api is of type list"),
        ({"target": OPUS, "fields": {"max_tokens": 5, "tools": [{"name": "a b"}]}}, InvalidRequest, "tools"),
    ],
    ids=[*"abcdefghijklmnopqrst"],
)
def test_engine_open_rejects_invalid_options_before_any_request(options, error, text):
    """Each invalid option raises a typed error that names it, and nothing is sent."""
    upstream = ScriptedUpstream(["yes"])
    with pytest.raises(error, match=text):
        open_and_ask(**({"upstream": upstream} | options))
    assert upstream.sent == []


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (5, "place is of type int; give the path of a store"),
        ([], "place is of type list; give the path of a store"),
        ("a\0b", "the store's path is empty, or has a null character; give a file's path"),
    ],
    ids=["a number", "a list", "a null"],
)
def test_engine_open_rejects_a_store_argument_that_is_no_path(place, message):
    """An argument that is neither a path nor a store raises ConfigError, which says what to give."""

    async def run_scenario():
        async with Engine.open(place, upstream=ScriptedUpstream(["yes"]), target=OPUS):
            pytest.fail("it was opened")

    with pytest.raises(ConfigError, match=message):
        anyio.run(run_scenario)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda _, session: session.ask("y", deadline="3"), ConfigError, "deadline is of type str"),
        (lambda _, session: session.ask("y", deadline=float("nan")), ConfigError, "deadline is nan"),
        (lambda engine, _: engine.session(SAMPLE_KEY, leaf=5), ConfigError, "leaf is of type int"),
        (lambda _, session: session.recall("x", lines=5), FormatError, "lines is of type int"),
        (lambda _, session: session.recall("x", chars=5), FormatError, "chars is of type int"),
        (lambda _, session: session.recall("x", search=5), FormatError, "search is of type int"),
        (lambda _, session: session.recall("x", page=None), FormatError, "page is of type NoneType"),
        (lambda _, session: session.recall("x", max_chars="9"), FormatError, "max_chars is of type str"),
    ],
    ids=["deadline", "nan", "leaf", "lines", "chars", "search", "page", "max_chars"],
)
def test_session_methods_reject_arguments_of_another_type(call, error, message):
    """The error names the argument and what to give, and nothing is sent."""
    upstream = ScriptedUpstream(["yes"])

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=upstream, target=OPUS) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(error, match=message):
                await call(engine, session)

    anyio.run(run_scenario)
    assert upstream.sent == []


def test_session_ask_raises_store_read_only_and_keeps_the_acknowledged_log():
    """refusal-ends-writing: the store's own error is raised, and every acknowledged entry is still there."""
    store, upstream = MemoryStore(), ScriptedUpstream(["one", "two"])
    original_append = store.append_entries

    async def run_scenario():
        async with Engine.open(store, upstream=upstream, target=OPUS, fields=OUTPUT) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("first")

            def refuse_entries(*_, **__):
                raise StoreReadOnly("the disk is full; free some space and open the store again")

            store.append_entries = refuse_entries
            with pytest.raises(StoreReadOnly):
                await session.ask("second")
            assert session.resources.lanes.is_idle
            store.append_entries = original_append
            await session.ask("third")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(run_scenario) == ["first", "one", "third", "two"]


def test_engine_without_auto_compaction_still_recovers_from_overflows():
    """With ``auto`` off, compaction only follows an overflow; with recovery off too, the overflow is raised."""
    policy = Policy().with_settings(compaction={"auto": False})
    _, _, seen_events = ask_after_long_conversation(
        ProviderUpstream(Provider(ProviderSettings(window=12_000))), policy=policy
    )
    refused, compacted = (
        select_events(seen_events, events.RequestRefused),
        select_events(seen_events, events.CompactionEnded),
    )
    assert refused
    assert compacted
    assert seen_events.index(refused[0]) < seen_events.index(compacted[0])
    auto_and_recovery_off = Policy().with_settings(compaction={"auto": False}, recovery={"enabled": False})
    with pytest.raises(holdfast.HoldfastError, match=r"recovery\.enabled"):
        ask_after_long_conversation(
            ProviderUpstream(Provider(ProviderSettings(window=12_000))), policy=auto_and_recovery_off
        )


def test_engine_session_is_one_object_and_a_compaction_one_entry():
    """compaction-is-one-record: a key always gives the same session, and a compaction's decisions are one entry."""
    store = MemoryStore()

    async def run_scenario():
        async with Engine.open(store, upstream=ScriptedUpstream([]), target=OPUS, fields=OUTPUT) as engine:
            session = await engine.session(SAMPLE_KEY)
            assert await engine.session(SAMPLE_KEY) is session
            await session.append(*build_long_conversation())
            await session.compact()

    run_on_fake_clock(run_scenario)
    assert len([entry for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, CompactionEntry)]) == 1


def test_session_run_applies_holdfast_toml_to_the_model_of_a_body(tmp_path, monkeypatch):
    """The window that holdfast.toml gives a model counts for a body that names this model."""
    (tmp_path / "holdfast.toml").write_text('[[model]]\nmatch = "kelp-9"\nwindow = 43_210\n')
    monkeypatch.chdir(tmp_path)
    body = {"model": "kelp-9", "max_tokens": 500, "messages": [{"role": "user", "content": "How high is the tide?"}]}
    seen_events = []

    async def run_scenario():
        opening = Engine.open(MemoryStore(), upstream=ScriptedUpstream(["Low."]), listen=seen_events.append)
        async with opening as engine, (await engine.session(SAMPLE_KEY)).run(body) as run:
            async for _ in run:
                pass

    run_on_fake_clock(run_scenario)
    assert [event.window for event in select_events(seen_events, events.RequestStarted)] == [43_210]


def test_session_run_uses_its_model_argument_for_a_body_without_one():
    """Gemini names the model in the URL, so request and log take it from the ``model`` argument."""
    body = {"contents": [{"role": "user", "parts": [{"text": "How high is the tide?"}]}]}
    upstream = ScriptedUpstream(["Low."])

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=upstream) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run(body, model="gemini-3-pro") as run:
                async for _ in run:
                    pass
            return session.journal.state.last_request.model

    assert run_on_fake_clock(run_scenario) == "gemini-3-pro"
    assert [sent.model for sent in upstream.sent] == ["gemini-3-pro"]


def test_session_recall_and_branch_reject_ids_of_another_type():
    """Any value that is not text raises UnknownId."""

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream(["Low."]), target=OPUS) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append("first")
            for method in (session.recall, session.branch):
                for wrong_id in (None, 7, b"e1"):
                    with pytest.raises(UnknownId, match="an id cannot be a"):
                        await method(wrong_id)

    run_on_fake_clock(run_scenario)


@pytest.mark.parametrize("how", ["read no further", "an error of its own"])
def test_session_run_left_early_reports_a_store_that_refuses_the_answer(how):
    """The store's error is raised, or reported as a notice where the caller raises an error of its own."""

    class FullStore(MemoryStore):
        is_full = False

        def append_entries(self, *args, **kwargs):
            if self.is_full:
                raise StoreReadOnly("the disk is full")
            return super().append_entries(*args, **kwargs)

    store, seen_events = FullStore(), []

    async def run_scenario():
        upstream = ScriptedUpstream(["one two three four five"])
        async with Engine.open(
            store, upstream=upstream, target=OPUS, fields=OUTPUT, listen=seen_events.append
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run("Go.") as run:
                for _ in range(3):
                    await anext(run)
                store.is_full = True
                if how == "an error of its own":
                    raise KeyError("its own")

    with pytest.raises(KeyError if how == "an error of its own" else StoreReadOnly):
        anyio.run(run_scenario)
    rules = [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)]
    assert rules == (["unwritten"] if how == "an error of its own" else [])


def test_engine_open_requires_an_asyncio_event_loop():
    """Without a running asyncio loop, as under trio, opening raises ConfigError and points to the sync engine."""
    opening = Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS).__aenter__()
    with pytest.raises(ConfigError, match=r"in asyncio's event loop, and none is running here; .*\.sync"):
        opening.send(None)
