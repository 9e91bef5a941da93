"""The engine: summaries by a model or by the provider, hooks that fail, stores that fail, and what happens told."""

from __future__ import annotations

import gc
from functools import partial
from weakref import ref

import anyio
import pytest
from long_conversation import talk
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


def asked(upstream, *said, store=None, goal=OPUS, **more):
    """Return the answer to ``said`` behind a long conversation, the session, and what happened."""
    heard = []

    async def go():
        async with Engine.open(
            store or MemoryStore(),
            upstream=upstream,
            target=goal,
            fields=OUTPUT if goal.api == "anthropic" else {},
            listen=heard.append,
            **more,
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk())
            return await session.ask(*said or ("And now?",)), session

    answer, session = run_on_fake_clock(go)
    return answer, session, heard


def of(heard, kind):
    """Return the events of one kind."""
    return [event for event in heard if isinstance(event, kind)]


def compaction(session):
    """Return the compaction in force."""
    return session.journal.state.view.compaction


def test_without_a_model_an_extract_is_made():
    """reduction-without-model: nobody is asked; the extract is in force, and that is told."""
    answer, session, heard = asked(ProviderUpstream(Provider(ProviderSettings(window=32_000))))
    assert answer.message.text
    assert [(event.outcome, event.author) for event in of(heard, events.CompactionEnded)] == [("compacted", "extract")]
    assert "without a model" in compaction(session).summary.text


def test_a_model_writes_the_summary_and_ours_stands_behind_it():
    """The model's text comes first, then what it leaves uncovered; the request for it is text alone, without tools."""
    provider = Provider(ProviderSettings(window=32_000), [ScriptedAnswer(SUMMARY), ScriptedAnswer("yes")])
    upstream = ProviderUpstream(provider)
    answer, session, heard = asked(upstream, summary_model="claude-haiku-4-5", api="anthropic")
    assert answer.message.text == "yes"
    assert [(event.outcome, event.author) for event in of(heard, events.CompactionEnded)] == [("compacted", "model")]
    text = compaction(session).summary.text
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
def test_a_summary_that_is_none_gives_way_to_an_extract(bad):
    """summary-form: what is refused twice is told and written down; the turn goes on with an extract."""
    store = MemoryStore()
    writer = SummaryWriter(ScriptedUpstream([bad] * 12), get_target("openai-chat", "gpt-5.5", window=64_000))
    answer, session, heard = asked(
        ProviderUpstream(Provider(ProviderSettings(window=32_000))), store=store, writers=[writer]
    )
    assert answer.message.text
    outcomes = [(event.outcome, event.author) for event in of(heard, events.CompactionEnded)]
    assert outcomes[-1] == ("compacted", "extract")
    assert outcomes[0][0] in {"summary_rejected", "provider_error"}
    assert not {"write the notes", "no tool is to be called"} & {*of(heard, events.CompactionEnded)[0].why.split("; ")}
    failures = [entry.body.kind for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, FailureEntry)]
    assert failures == [outcomes[0][0]]
    assert "without a model" in compaction(session).summary.text


class Timeout(Exception):
    """What an HTTP library raises, and is no error of ours."""


class Raising:
    """An upstream that raises it."""

    def send(self, _):
        """Raise."""
        raise Timeout("read timed out")


def test_whatever_a_writer_raises_an_extract_takes_its_place():
    """A turn never fails for a summary, of whatever kind its writer's error is; it is told, and the next is asked."""
    goal = get_target("openai-chat", "gpt-5.5", window=64_000)
    writers = [SummaryWriter(Raising(), goal), SummaryWriter(ScriptedUpstream([ScriptedAnswer("no")] * 12), goal)]
    answer, session, heard = asked(ProviderUpstream(Provider(ProviderSettings(window=32_000))), writers=writers)
    assert answer.message.text
    assert "without a model" in compaction(session).summary.text
    why = of(heard, events.CompactionEnded)[0].why
    assert "Timeout: read timed out" in why
    assert "wrote no acceptable summary" in why


def test_a_writer_that_is_no_client_is_refused_at_once():
    """Nothing is sent, and nothing fails at the first compaction that is due."""

    async def go(client):
        writer = SummaryWriter(client, get_target("openai-chat", "gpt-5.5"))
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS, writers=[writer]):
            pass

    with pytest.raises(ConfigError, match="no client known here"):
        run_on_fake_clock(go, object())


@pytest.mark.parametrize("writers", [5, [5], ["claude-haiku-4-5"]])
def test_what_is_no_writer_of_one_run_is_named(writers):
    """It is so at the run as at the engine, before anything is said."""

    async def go():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS) as engine:
            (await engine.session(SAMPLE_KEY)).run("hello", writers=writers)

    with pytest.raises(ConfigError, match="writers"):
        run_on_fake_clock(go)


def test_a_writer_that_is_refused_again_and_again_is_left_alone():
    """Three times in a row and nobody pays for more, until somebody asks for a compaction, or a while has passed."""
    writer = ScriptedUpstream([ScriptedAnswer("no headings here")] * 40)
    clock = [1_000_000]

    async def go():
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
                await session.append(*talk())
                await session.ask("And now?")
                calls.append(len(writer.sent))
            clock[0] += 1_000_000
            await session.append(*talk())
            await session.ask("And now?")
            later = len(writer.sent)
            await session.append(*talk())
            await session.compact()
            return calls, later, len(writer.sent)

    calls, later, asked_for = run_on_fake_clock(go)
    assert calls[2] == calls[-1] == 6
    assert later == 8
    assert asked_for == 10


def test_a_writer_that_came_to_nothing_is_left_alone_after_a_restart_too():
    """How often is folded from the log: who opens the store again asks no sooner than this process would."""
    writer = ScriptedUpstream([ScriptedAnswer("no headings here")] * 40)
    store, clock = MemoryStore(), [1_000_000]

    async def talked():
        async with Engine.open(
            store,
            upstream=ProviderUpstream(Provider(ProviderSettings(window=32_000))),
            target=OPUS,
            fields=OUTPUT,
            writers=[SummaryWriter(writer, get_target("openai-chat", "gpt-5.5", window=64_000))],
        ) as engine:
            engine.resources.clock = lambda: clock[0]
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk())
            await session.ask("And now?")
        return len(writer.sent)

    assert [run_on_fake_clock(talked) for _ in range(5)] == [2, 4, 6, 6, 6]
    clock[0] += 1_000 * Policy().settings.compaction.breaker_cooldown_seconds
    assert [run_on_fake_clock(talked) for _ in range(2)] == [8, 8]


def test_a_session_that_was_closed_is_opened_anew():
    """Closing one stops its compactions; who asks the engine again gets one that works."""

    async def go():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream(["yes"]), target=OPUS, fields=OUTPUT) as engine:
            first = await engine.session(SAMPLE_KEY)
            first.close()
            again = await engine.session(SAMPLE_KEY)
            assert again is not first
            assert await engine.session(SAMPLE_KEY) is again
            return (await again.ask("Go.")).message.text

    assert run_on_fake_clock(go) == "yes"


@pytest.mark.parametrize("open_ones", [0, 1, 7])
def test_sessions_that_were_closed_are_let_go(open_ones):
    """As many may come and go as like: no more of them stay than are open, and those that are open stay the same."""

    async def go():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS) as engine:
            kept = [await engine.session(f"kept {number}") for number in range(open_ones)]
            left = []
            for number in range(50):
                session = await engine.session(f"left {number}")
                session.close()
                left.append(ref(session))
                del session
            gc.collect()
            assert sum(one() is not None for one in left) <= open_ones + 1
            assert [await engine.session(one.key) for one in kept] == kept

    run_on_fake_clock(go)


def test_a_closed_session_is_opened_while_others_are():
    """Each of those that open at once gets the session that it asked for, whatever of theirs was closed before."""

    async def go():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS) as engine:
            found, names = {}, [str(number) for number in range(6)]
            for name in names:
                (await engine.session(name)).close()

            async def opened(name):
                found[name] = await engine.session(name)

            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(opened, name)
            assert [found[name].key for name in names] == names
            assert not any(one.compaction_tracker.status.is_closed for one in found.values())

    run_on_fake_clock(go)


def test_the_provider_compacts_and_undo_brings_all_back():
    """What the provider made goes out as it is; its readable twin stands beside it; an undo shows all again."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=32_000)))
    answer, session, heard = asked(upstream, native=True, goal=get_target("openai-responses", "gpt-5.5", window=32_000))
    assert answer.message.text
    assert [event.author for event in of(heard, events.CompactionEnded)] == ["native"]
    assert compaction(session).native is not None
    assert compaction(session).summary.text
    assert b'"encrypted_content"' in upstream.sent[-1].body
    session.journal.undo()
    assert compaction(session) is None


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_a_hook_may_supply_the_summary():
    """Nobody else is asked then."""

    def supply(head, reason):
        return BeforeCompactionResult(summary=f"{len(head)} messages about kelp, asked for by {reason}")

    _, session, heard = asked(
        ProviderUpstream(Provider(ProviderSettings(window=32_000))), hooks=Hooks(before_compaction=supply)
    )
    assert [event.author for event in of(heard, events.CompactionEnded)] == ["hook"]
    assert "messages about kelp, asked for by auto" in compaction(session).summary.text


def test_a_hook_may_cancel_a_compaction():
    """It is told as cancelled, and it is no failure; what does not fit without is still made to fit."""
    store = MemoryStore()
    _, session, heard = asked(
        ProviderUpstream(Provider(ProviderSettings(window=32_000))),
        store=store,
        hooks=Hooks(before_compaction=lambda *_: BeforeCompactionResult(cancel=True)),
    )
    assert "cancelled" in [event.outcome for event in of(heard, events.CompactionEnded)]
    assert session.journal.state.counters.failed_compactions == 0


class Hanging:
    """A listener that is waited for as it is called."""

    async def __call__(self, _):
        await anyio.sleep_forever()


async def hangs(*_):
    """Return never."""
    await anyio.sleep_forever()


def raises(*_):
    """Raise what nobody expects."""
    raise ZeroDivisionError("a hook of yours")


SEEN = {"before_compaction", "transform_messages", "after_compaction", "on_append"}


@pytest.mark.parametrize(
    ("bad", "told"),
    [(hangs, SEEN), (raises, SEEN), (lambda *_: 7, SEEN - {"after_compaction"})],
    ids=["hangs", "raises", "wrong type"],
)
def test_a_hook_that_fails_is_told_and_changes_nothing(bad, told):
    """The session goes on as without it: the same requests go out, byte for byte."""
    plain, struck = (ProviderUpstream(Provider(ProviderSettings(window=32_000))) for _ in range(2))
    asked(plain)
    _, _, heard = asked(struck, hooks=Hooks(**dict.fromkeys(SEEN, bad)))
    assert [sent.body for sent in struck.sent] == [sent.body for sent in plain.sent]
    assert {event.hook for event in of(heard, events.HookFailed)} == told


def test_hooks_see_and_change_what_they_may():
    """``on_append`` changes the log, ``transform_messages`` one request alone."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=200_000)))

    def louder(message):
        return Message.from_text(message.role, message.text.upper()) if message.role == "user" else None

    def short(messages):
        return list(messages)[-1:]

    async def go():
        async with Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=OPUS,
            fields=OUTPUT,
            hooks=Hooks(on_append=louder, transform_messages=short),
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("one")
            await session.ask("two")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(go) == ["ONE", "ok 1", "TWO", "ok 2"]
    assert b"TWO" in upstream.sent[1].body
    assert b"ONE" not in upstream.sent[1].body


@pytest.mark.parametrize(
    "shown", [lambda said: said[-3:], lambda said: [*said, Message.from_text("user", "word " * 40_000)]]
)
def test_the_size_of_what_a_hook_changed_teaches_nothing(shown):
    """It is not the size of what was planned: window and estimate stay what they are, however often it is told."""
    upstream = ProviderUpstream(Provider(ProviderSettings(window=200_000)))
    hooks = Hooks(transform_messages=lambda said: shown(list(said)))

    async def go():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api="anthropic", model="claude-sonnet-4-5", fields=OUTPUT, hooks=hooks
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk(40))
            before = session.report()
            for number in range(4):
                await session.ask(f"And {number}?")
            return before, session.report()

    before, after = run_on_fake_clock(go)
    assert (after.window, after.window_source) == (before.window, before.window_source)
    assert before.tokens < after.tokens < before.tokens + 200
    assert after.compaction_count == 0


def test_what_a_hook_breaks_is_its_own_to_mend():
    """Nobody knows what it meant: it is told, with the hook's name and the place, and nothing is sent."""
    upstream, said = ScriptedUpstream(["yes"]), ToolCall("toolu_1", "read", "{}")
    history = [
        Message.from_text("user", "Go."),
        Message("assistant", (said,)),
        Message("tool", (ToolResult("toolu_1"),)),
    ]
    hooks = Hooks(transform_messages=lambda shown: [one for one in shown if one.role != "tool"])

    async def go():
        async with Engine.open(MemoryStore(), upstream=upstream, target=OPUS, fields=OUTPUT, hooks=hooks) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*history)
            with pytest.raises(InvalidRequest, match=r"the hook transform_messages .*\$\.messages\[1\].*toolu_1"):
                await session.ask("And?")

    run_on_fake_clock(go)
    assert upstream.sent == []


def test_a_session_that_somebody_removed_begins_anew():
    """A session that is gone from the store, whoever took it, is created by the next who asks for it."""
    store = MemoryStore()

    async def go():
        async with Engine.open(store, upstream=ScriptedUpstream(["Well."] * 3), target=OPUS, fields=OUTPUT) as engine:
            before = await engine.session(SAMPLE_KEY)
            await before.ask("Hello.")
            store.remove_session(SAMPLE_KEY)
            after = await engine.session(SAMPLE_KEY)
            assert after is not before
            assert after is await engine.session(SAMPLE_KEY)
            return (await after.ask("Again.")).message.text, [one.text for one in after.journal.state.history.messages]

    assert run_on_fake_clock(go) == ("Well.", ["Again.", "Well."])


def test_a_session_that_two_tasks_open_is_one():
    """Else each would go on beside the other, and half of the conversation be in neither."""

    async def go():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream(["yes"] * 3), target=OPUS) as engine:
            found = []

            async def opened():
                found.append(await engine.session(SAMPLE_KEY))

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(opened)
            return found

    first, *others = run_on_fake_clock(go)
    assert all(one is first for one in others)


def test_a_listener_that_raises_is_told_of_nothing_more(caplog):
    """It changes nothing, and the log of the program says once why it is silent."""
    heard = []

    def listen(event):
        heard.append(event)
        raise RuntimeError("no kelp")

    async def go():
        async with Engine.open(
            MemoryStore(), upstream=ScriptedUpstream(["yes"]), target=OPUS, fields=OUTPUT, listen=listen
        ) as engine:
            return (await (await engine.session(SAMPLE_KEY)).ask("Go.")).message.text

    assert run_on_fake_clock(go) == "yes"
    assert len(heard) == 1
    (told,) = caplog.records
    assert (told.levelname, "RuntimeError: no kelp" in told.getMessage()) == ("WARNING", True)


# -- wrong input -------------------------------------------------------------------------------------------------------


def opening(**given):
    """Return what asking an engine opened with ``given`` raises."""

    async def go():
        async with Engine.open(MemoryStore(), **({"upstream": ScriptedUpstream(["yes"])} | given)) as engine:
            session = await engine.session(SAMPLE_KEY)
            return await session.ask("Go."), session.report()

    return run_on_fake_clock(go)


def test_an_unknown_model_gets_an_assumed_window():
    """The report says so."""
    _, report = opening(api="openai-chat", model="nobody-knows-this")
    assert report.window == 200_000
    assert "default" in report.window_source or "assumed" in report.origin


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"api": "smoke", "model": "m"}, holdfast.HoldfastError, "smoke"),
        ({}, ConfigError, "knows no model"),
        ({"upstream": object(), "api": "anthropic", "model": "m"}, ConfigError, "no client known"),
        ({"policy": "hope", "target": OPUS}, UnknownPolicy, "hope"),
        ({"target": get_target("anthropic", "m", window=3_000)}, WindowTooSmall, "3000"),
        ({"target": OPUS, "fields": {"max_tokens": object()}}, holdfast.HoldfastError, "plain values"),
        ({"target": OPUS, "permits": 0}, ValueError, "permits"),
        ({"summary_model": "m"}, ConfigError, "says no API"),
        ({"target": OPUS, "policy": 7}, ConfigError, "policy is of type int"),
        ({"target": OPUS, "hooks": {}}, ConfigError, "hooks is of type dict"),
        ({"target": OPUS, "fields": None}, ConfigError, "Mapping"),
        ({"target": OPUS, "writers": [5]}, ConfigError, r"writers\[0\] is of type int"),
        ({"target": OPUS, "permits": "4"}, ConfigError, "permits is of type str"),
        ({"target": OPUS, "listen": 5}, ConfigError, "listen is of type int"),
        ({"target": OPUS, "listen": hangs}, ConfigError, "listen is an async def"),
        ({"target": OPUS, "listen": partial(hangs, 1)}, ConfigError, "listen is an async def"),
        ({"target": OPUS, "listen": Hanging()}, ConfigError, "listen is an async def"),
        ({"api": "anthropic", "model": 5}, ConfigError, "model is of type int"),
        ({"api": [1], "model": "m"}, ConfigError, "api is of type list"),
        ({"target": OPUS, "fields": {"max_tokens": 5, "tools": [{"name": "a b"}]}}, InvalidRequest, "tools"),
    ],
    ids=[*"abcdefghijklmnopqrst"],
)
def test_what_an_engine_cannot_do_is_said(given, error, text):
    """A typed error that names what is wrong, before any call."""
    upstream = ScriptedUpstream(["yes"])
    with pytest.raises(error, match=text):
        opening(**({"upstream": upstream} | given))
    assert upstream.sent == []


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (5, "place is of type int; give the path of a store"),
        ([], "place is of type list; give the path of a store"),
        ("a\0b", "the store's path is empty, or has a null character; give a file's path"),
    ],
    ids=["a number", "a list", "a null"],
)
def test_a_place_that_is_no_store_is_said(place, told):
    """Whoever gives neither a path nor a store is told so, and what to give."""

    async def go():
        async with Engine.open(place, upstream=ScriptedUpstream(["yes"]), target=OPUS):
            pytest.fail("it was opened")

    with pytest.raises(ConfigError, match=told):
        anyio.run(go)


@pytest.mark.parametrize(
    ("verb", "error", "told"),
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
def test_a_verb_is_told_of_an_argument_of_another_type(verb, error, told):
    """By its name, and what to give; nothing is sent."""
    upstream = ScriptedUpstream(["yes"])

    async def go():
        async with Engine.open(MemoryStore(), upstream=upstream, target=OPUS) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(error, match=told):
                await verb(engine, session)

    anyio.run(go)
    assert upstream.sent == []


def test_a_store_that_takes_no_more_stops_the_session_and_loses_nothing():
    """refusal-ends-writing: what was acknowledged is there; the error is the store's own."""
    store, upstream = MemoryStore(), ScriptedUpstream(["one", "two"])
    whole = store.append_entries

    async def go():
        async with Engine.open(store, upstream=upstream, target=OPUS, fields=OUTPUT) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("first")

            def full(*_, **__):
                raise StoreReadOnly("the disk is full; free some space and open the store again")

            store.append_entries = full
            with pytest.raises(StoreReadOnly):
                await session.ask("second")
            assert session.resources.lanes.is_idle
            store.append_entries = whole
            await session.ask("third")
            return [slot.message.text for slot in session.journal.state.history.sized_messages]

    assert run_on_fake_clock(go) == ["first", "one", "third", "two"]


def test_auto_off_leaves_the_request_alone_and_recovery_still_works():
    """Two switches: nothing is compacted by itself, an overflow is still answered by sending less."""
    policy = Policy().with_settings(compaction={"auto": False})
    _, _, heard = asked(ProviderUpstream(Provider(ProviderSettings(window=12_000))), policy=policy)
    refused, compacted = of(heard, events.RequestRefused), of(heard, events.CompactionEnded)
    assert refused
    assert compacted
    assert heard.index(refused[0]) < heard.index(compacted[0])
    off = Policy().with_settings(compaction={"auto": False}, recovery={"enabled": False})
    with pytest.raises(holdfast.HoldfastError, match=r"recovery\.enabled"):
        asked(ProviderUpstream(Provider(ProviderSettings(window=12_000))), policy=off)


def test_a_session_is_one_object_and_a_compaction_one_record():
    """compaction-is-one-record: the same key is the same session; what a compaction decided is in one entry."""
    store = MemoryStore()

    async def go():
        async with Engine.open(store, upstream=ScriptedUpstream([]), target=OPUS, fields=OUTPUT) as engine:
            session = await engine.session(SAMPLE_KEY)
            assert await engine.session(SAMPLE_KEY) is session
            await session.append(*talk())
            await session.compact()

    run_on_fake_clock(go)
    assert len([entry for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, CompactionEntry)]) == 1


def test_a_body_goes_to_a_model_as_holdfast_toml_knows_it(tmp_path, monkeypatch):
    """What the project says of a model counts also where a whole body names it."""
    (tmp_path / "holdfast.toml").write_text('[[model]]\nmatch = "kelp-9"\nwindow = 43_210\n')
    monkeypatch.chdir(tmp_path)
    body = {"model": "kelp-9", "max_tokens": 500, "messages": [{"role": "user", "content": "How high is the tide?"}]}
    heard = []

    async def go():
        opened = Engine.open(MemoryStore(), upstream=ScriptedUpstream(["Low."]), listen=heard.append)
        async with opened as engine, (await engine.session(SAMPLE_KEY)).run(body) as answered:
            async for _ in answered:
                pass

    run_on_fake_clock(go)
    assert [event.window for event in of(heard, events.RequestStarted)] == [43_210]


def test_a_body_that_names_no_model_goes_to_the_one_that_the_run_names():
    """Gemini says it in the address: the log and the request know it all the same."""
    body = {"contents": [{"role": "user", "parts": [{"text": "How high is the tide?"}]}]}
    upstream = ScriptedUpstream(["Low."])

    async def go():
        async with Engine.open(MemoryStore(), upstream=upstream) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run(body, model="gemini-3-pro") as run:
                async for _ in run:
                    pass
            return session.journal.state.last_request.model

    assert run_on_fake_clock(go) == "gemini-3-pro"
    assert [sent.model for sent in upstream.sent] == ["gemini-3-pro"]


def test_what_is_no_name_names_nothing():
    """A typed error, whatever is handed in as an id."""

    async def go():
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream(["Low."]), target=OPUS) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append("first")
            for verb in (session.recall, session.branch):
                for name in (None, 7, b"e1"):
                    with pytest.raises(UnknownId, match="names nothing"):
                        await verb(name)

    run_on_fake_clock(go)


@pytest.mark.parametrize("how", ["read no further", "an error of its own"])
def test_who_leaves_a_run_is_told_that_nothing_could_be_written(how):
    """What was said so far is in no log: that is raised, or told where the caller raises something else."""

    class Full(MemoryStore):
        is_full = False

        def append_entries(self, *given, **more):
            if self.is_full:
                raise StoreReadOnly("the disk is full")
            return super().append_entries(*given, **more)

    store, told = Full(), []

    async def go():
        upstream = ScriptedUpstream(["one two three four five"])
        async with Engine.open(store, upstream=upstream, target=OPUS, fields=OUTPUT, listen=told.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run("Go.") as running:
                for _ in range(3):
                    await anext(running)
                store.is_full = True
                if how == "an error of its own":
                    raise KeyError("its own")

    with pytest.raises(KeyError if how == "an error of its own" else StoreReadOnly):
        anyio.run(go)
    rules = [event.rule for event in told if isinstance(event, events.NoticeGiven)]
    assert rules == (["unwritten"] if how == "an error of its own" else [])


def test_an_engine_says_whose_event_loop_it_needs():
    """Where no loop of asyncio runs, as under trio, it is not opened, and the error says what to do instead."""
    opening = Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=OPUS).__aenter__()
    with pytest.raises(ConfigError, match=r"in asyncio's event loop, and none is running here; .*\.sync"):
        opening.send(None)
