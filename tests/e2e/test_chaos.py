"""Chaos: everything that can go wrong between an engine and a provider, at every stage, in every API.

The engine is whole (store, lanes, recovery), the provider is the strict one, and time is virtual. Whatever happens, a
run ends in an answer or in a typed error, within its bound of requests; nothing is left behind, and the session goes
on as if nothing had been.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, suppress
from functools import partial
from random import Random

import anyio
import pytest
from msgspec.structs import replace

from holdfast.config import target
from holdfast.errors import DeadlineExceeded, HoldfastError, UpstreamError
from holdfast.model.branch import TRUNCATE
from holdfast.model.entries import FALLBACK, Compaction, Decision, Said
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall, ToolResult
from holdfast.model.projected import project
from holdfast.policy.accepting import HEADINGS
from holdfast.policy.recovery import bound
from holdfast.policy.settings import Settings as Numbers
from holdfast.policy.summary.keeping import newest_identifiers
from holdfast.runtime.engine import Engine
from holdfast.runtime.hooks import Before, Hooks
from holdfast.runtime.journal import Journal
from holdfast.runtime.summarise import Writer
from holdfast.store.memory import MemoryStore
from holdfast.telemetry import events
from holdfast.telemetry.events import OUTCOMES
from holdfast.testing.clock import run as on_fake_clock
from holdfast.testing.provider import Fault, Provider, Settings
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.calls import Said as Says
from holdfast.testing.provider.client import MODELS
from holdfast.testing.samples import KEY
from holdfast.testing.upstream import ProviderUpstream
from holdfast.testing.workday import fields
from holdfast.wire.answers import Answer, Fold
from holdfast.wire.overflow import KINDS, ErrorReport, classify

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"
WINDOW = 32_000
BOUND = bound(Numbers())
HOW = [(always, stream) for always in (False, True) for stream in (False, True) if THOROUGH or always != stream]
"""Whether a fault strikes always or once, and whether the answer is read as a stream; every other of them in CI."""

# -- what can happen, and where ----------------------------------------------------------------------------------------

STAGES = (
    "connect",
    "body",
    "head",
    "first",
    "middle",
    "end",
    "summary request",
    "summary stream",
    "between compaction and retry",
)
"""Connecting · the body being sent · before the first byte · the first event · mid stream · after the last token,
before the end event · the same two of a summary · between the commit of a compaction and the request after it."""
ANSWERING = STAGES[:6]
INSIDE = ("first", "middle", "end")


def _at(kind: str, *stages: str) -> dict[str, str]:
    return dict.fromkeys(stages, kind)


def _status(kind: str) -> dict[str, str]:
    return _at(kind, "body", "head")


FAULTS: dict[str, dict[str, str]] = {
    "connection refused": _at("refused", "connect"),
    "connection reset": _at("reset", *ANSWERING),
    "TLS or protocol error": _at("tls", "connect") | _at("protocol", "head"),
    "timeout before any byte": _at("stall", "connect", "body", "head"),
    "stall in mid stream": _at("stall", *INSIDE),
    "stream cut": _at("cut", "body", "head") | _at("unfinished", *INSIDE),
    "400 of shape": _status("400"),
    "400 overflow": _status("400-overflow"),
    "400 overflow in foreign words": _status("400-foreign"),
    "401": _status("401"),
    "403": _status("403"),
    "404": _status("404"),
    "408": _status("408"),
    "409": _status("409"),
    "413 in HTML": _status("413-html"),
    "413 without a body": _status("413-empty"),
    "422": _status("422"),
    "429 with retry-after": _status("429"),
    "429 of tokens": _status("429-tokens"),
    "429 overflow": _status("429-overflow"),
    "500": _status("500"),
    "502 in HTML": _status("502-html"),
    "529": _status("529"),
    "error event": _at("error", *INSIDE),
    "empty answer": _at("empty", "head"),
    "unknown stop reason and block": _at("unknown", "head"),
    "garbage in the stream": _at("garbage", "first", "middle") | _at("utf8", "end"),
}
"""27 faults by the stages of an answer at which each can strike, with the provider's name for it."""
LASTING = {"400 of shape", "401", "403", "404", "422"}
"""Faults that the same request would meet again, so that it is not sent; the others may pass, or need a smaller one."""
TRUE_NUMBERS = {"400-overflow": "native", "400-foreign": "llama.cpp", "429-overflow": "openai-tpm"}
"""Overflows that are told with the true size of the request: the provider's window is smaller than it was."""


def struck_at(fault: str, stage: str) -> str:
    """Return the stage of the struck request at which ``fault`` strikes at ``stage``; nothing where it cannot."""
    known = FAULTS[fault]
    if stage in ANSWERING:
        return stage if stage in known else ""
    early = [one for one in ("head", "connect", "body") if one in known]
    late = [one for one in ("middle", "first", "end") if one in known]
    picked = {STAGES[6]: early, STAGES[7]: late, STAGES[8]: early + late}[stage]
    return picked[0] if picked else ""


def why_not(fault: str, stage: str) -> str:
    """Return why ``fault`` cannot strike at ``stage``."""
    kinds = {*FAULTS[fault].values()}
    if kinds == {"refused"}:
        return "a connection that stands is not refused any more"
    if kinds == {"tls", "protocol"}:
        return "TLS is spoken while connecting and HTTP at the head of the answer, not before or after"
    if any(kind[0].isdigit() for kind in kinds):
        return "nobody is there to tell it" if stage == "connect" else "a status is told before the answer begins"
    if kinds & {"empty", "unknown"}:
        return "it is a whole answer, not a moment of one"
    if kinds == {"stall"}:
        other = "before the first byte it is the timeout" if "middle" in FAULTS[fault] else "behind it, it is the stall"
        return f"the other silence has its own name: {other}"
    return "there is no answer yet that it could strike" if stage not in INSIDE else "the answer has begun"


PAIRS = [(fault, stage) for fault in FAULTS for stage in STAGES]
POSSIBLE = [pair for pair in PAIRS if struck_at(*pair)]


def test_every_pair_is_run_or_said_to_be_impossible():
    """27 faults at 9 stages; what cannot occur has a reason, and every stage is struck by most that can."""
    assert (len(FAULTS), len(STAGES)) == (27, 9)
    reasons = {pair: why_not(*pair) for pair in PAIRS if pair not in POSSIBLE}
    assert len(POSSIBLE) + len(reasons) == 243
    assert len(POSSIBLE) > 110
    assert all(reasons.values())


# -- an engine in trouble ----------------------------------------------------------------------------------------------


def _text(seed: int, lines: int) -> str:
    return "\n".join(f"{seed * 31 + at:>6}  value_{seed}_{at} = compute({at * 7 % 97})" for at in range(lines))


def _talk() -> list[Message]:
    """Return a conversation that has enough in it to be compacted: some 12,000 tokens."""
    said = [Message.of("user", "Find why the build fails, and mend it.")]
    for number in range(8):
        call = ToolCall(f"call_{number}", "read", f'{{"path":"src/part_{number}.py"}}')
        result = ToolResult(call.id, "read", (Text(_text(number, 110)),))
        said += [Message("assistant", (Text(f"Step {number}."), call)), Message("tool", (result,))]
    return [*said, Message.of("assistant", "Part 7 looks wrong.")]


TALK = _talk()


SIZE = 9_000
"""Tokens that a provider takes which says it is too much: less than the conversation has."""


class Trouble:
    """A provider that is struck by a fault from its request ``first`` on, once or always, behind one upstream.

    Overflows are told with true numbers: what is struck meets a smaller window. ``before``: so does the request before.
    """

    def __init__(self, fault, *, first=1, always=False, before=False, provider=None):
        self.provider = provider or Provider(Settings(window=WINDOW))
        self.upstream = ProviderUpstream(self.provider, self.strike)
        self.fault, self.first, self.always, self.before = fault, first, always, before
        self.was_small = False

    def strike(self, _sent, number):
        """Return the fault that strikes the request of this number, and set the window that it meets."""
        fault = self.fault if number == self.first or (self.always and number > self.first) else None
        wording = TRUE_NUMBERS.get(fault.kind, "") if fault is not None else ""
        if self.before and number == self.first - 1:
            wording = "native"
        self.was_small |= bool(wording)
        self.provider.settings = Settings(window=SIZE if wording else WINDOW, overflow=wording or "native")
        return None if wording else fault

    def ends(self):
        """From here on all is well."""
        self.fault, self.before = None, False
        self.provider.settings = Settings(window=WINDOW)


def shown(session):
    """Return the messages that the next request would show."""
    return [slot.message for slot in project(session.journal.branch)]


def said(store):
    """Return all that was ever said, from the log."""
    return [entry.body.slot.message for entry in store.path(KEY) if isinstance(entry.body, Said)]


async def asked(session, *words, stream=False):
    """Return the answer to ``words``, or the error that it ended in. What is streamed is one answer, from its start."""
    try:
        if not stream:
            return await session.ask(*words)
        fold = Fold(session.api)
        async with session.run(words) as run:
            async for event in run:
                fold.feed(event)
    except HoldfastError as error:
        return error
    assert fold.answer().message == run.answer.message
    return run.answer


def judge_error(error):
    """Errors are of the kinds there are, and tell somebody what to do."""
    assert isinstance(error, UpstreamError), error
    assert error.kind in KINDS
    assert "; " in str(error)


def judge_peace(engine, session, store):
    """Nobody waits, nothing is held, and who opens the session again sees what this one does."""
    assert engine.means.lanes.is_idle
    assert engine.means.permits.is_idle
    assert not session.inflight.flight.is_busy
    assert [slot.message for slot in project(Journal.open(store, KEY).branch)] == shown(session)


def judge_requests(provider):
    """W1: what the provider refused by its own judgement, it refused for its size alone."""
    for one in provider.requests:
        if isinstance(one.reply, Refusal):
            report = ErrorReport("", one.reply.status, one.reply.code, one.reply.message, one.reply.body)
            assert classify(report).is_overflow, one.reply


class Scene:
    """An engine on a store in memory, with a conversation that it did not begin."""

    def __init__(self, api, upstream, *, window=WINDOW, store=None, **means):
        self.store, self.heard = store or MemoryStore(), []
        self.goal = replace(target(api, MODELS[api], window=window), prior=1.0)
        self.opened = Engine.open(
            self.store,
            upstream=upstream,
            target=self.goal,
            fields=fields(api),
            listen=self.heard.append,
            **means,
        )

    def decided(self):
        """Return how much was decided so far."""
        return sum(isinstance(entry.body, Decision | Compaction) for entry in self.store.entries(KEY))

    def count(self, kind):
        """Return how many events of a kind were told."""
        return sum(isinstance(event, kind) for event in self.heard)


async def in_trouble(api, trouble, *, stream):
    """Ask while ``trouble`` lasts, and again when it is over; return what came of it."""
    scene = Scene(api, trouble.upstream)
    async with scene.opened as engine:
        session = await engine.session(KEY)
        await session.append(*TALK)
        before = shown(session)
        outcome = await asked(session, "Go on.", stream=stream)
        assert len(trouble.upstream.sent) <= BOUND
        if isinstance(outcome, Exception):
            judge_error(outcome)
            if not scene.decided():
                judge_untouched(session, [*before, Message.of("user", "Go on.")], stream=stream)
        else:
            assert outcome.message.role == "assistant"
        judge_peace(engine, session, scene.store)
        judge_counts(scene.store)
        trouble.ends()
        await judge_goes_on(engine, session, scene.store)
    judge_requests(trouble.provider)
    if trouble.was_small:
        assert any(isinstance(one.reply, Refusal) for one in trouble.provider.requests)
    return outcome


def judge_counts(store):
    """P2: two compactions and one truncation at most, and the fallback, in all the tries for one answer."""
    bodies = [entry.body for entry in store.entries(KEY)]
    assert sum(isinstance(body, Compaction) and body.trigger != FALLBACK for body in bodies) <= 2
    cut = [body for body in bodies if isinstance(body, Decision) and any(one.rule == TRUNCATE for one in body.edits)]
    assert len(cut) <= 1


def judge_untouched(session, before, *, stream):
    """P6: a failed attempt changes nothing; what a client has read of a broken answer is in the log, and no more."""
    now = shown(session)
    assert now[: len(before)] == before
    assert [one.role for one in now[len(before) :]] in ([], ["assistant"] * stream)


async def judge_goes_on(engine, session, store):
    """S1: once all is well the next question is answered, and what was asked in trouble was said once."""
    later = await session.ask("And now?")
    assert later.message.text
    assert [one.text for one in said(store)].count("Go on.") == 1
    judge_peace(engine, session, store)


@pytest.mark.parametrize("api", MODELS)
@pytest.mark.parametrize(
    ("fault", "stage"), [pair for pair in POSSIBLE if not pair[1].startswith("summary")], ids=lambda one: one
)
def test_a_run_in_trouble_ends_and_the_session_goes_on(fault, stage, api):
    """P4, P6, P8: once or for ever, streamed or not: an answer or a typed error, and no trace of it."""
    place = struck_at(fault, stage)
    struck, late = Fault(FAULTS[fault][place], place), stage == STAGES[8]
    for always, stream in HOW:
        trouble = Trouble(struck, first=1 + late, always=always, before=late)
        outcome = on_fake_clock(partial(in_trouble, api, trouble, stream=stream))
        passes = fault not in LASTING and (fault, api) != ("429 of tokens", "gemini")
        if not always and not (stream and place in ("middle", "end")):
            assert isinstance(outcome, Answer) is passes, outcome


# -- a summary in trouble ----------------------------------------------------------------------------------------------

FULL = 14_000
"""A window that the conversation is too long for: a summary is due before the first request."""
NOTES = "\n".join(
    [f"## {heading}\n- {TALK[0].text} Go on. {heading}: what is wrong with the parts." for heading in HEADINGS]
    + [f"- {word}: seen, read and understood, and it is what it was." for word in newest_identifiers(TALK, 10, 12)]
)
MOST_SUMMARIES = 12
"""Requests for one summary: three tries of two requests, and some where the head goes in parts."""


async def summary_in_trouble(api, fault, *, always):
    """Ask while a summary is due, and its writer in trouble."""
    provider = Provider(Settings(window=WINDOW), [Says(NOTES)] * 40)
    trouble = Trouble(fault, always=always, provider=provider)
    streams = {} if api == "gemini" else {"stream": True}
    writer = Writer(trouble.upstream, target(api, MODELS[api], window=WINDOW), streams)
    answering = Trouble(None)
    scene = Scene(api, answering.upstream, window=FULL, writers=[writer])
    async with scene.opened as engine:
        session = await engine.session(KEY)
        await session.append(*TALK)
        outcome = await session.ask("Go on.")
        assert outcome.message.role == "assistant"
        assert len(answering.upstream.sent) <= BOUND
        assert 1 <= len(trouble.upstream.sent) <= MOST_SUMMARIES
        assert sum(isinstance(entry.body, Compaction) for entry in scene.store.entries(KEY)) == 1
        judge_peace(engine, session, scene.store)
        trouble.ends()
        await judge_goes_on(engine, session, scene.store)
    judge_requests(provider)
    judge_requests(answering.provider)
    return [event.by for event in scene.heard if isinstance(event, events.Compacted) and event.outcome == "compacted"]


@pytest.mark.parametrize("api", MODELS)
def test_a_summary_that_nothing_troubles_is_taken(api):
    """The stage is as it should be: without a fault the model's summary is the one in the log."""
    assert on_fake_clock(partial(summary_in_trouble, api, None, always=False)) == ["model"]


@pytest.mark.parametrize("api", MODELS)
@pytest.mark.parametrize(
    ("fault", "stage"), [pair for pair in POSSIBLE if pair[1].startswith("summary")], ids=lambda one: one
)
def test_a_summary_in_trouble_never_costs_the_turn(fault, stage, api):
    """P5: whatever becomes of the summary there is one compaction, the model's or an extract, and the answer comes."""
    place = struck_at(fault, stage)
    for always in (False, True):
        struck = Fault(FAULTS[fault][place], place)
        assert len(on_fake_clock(partial(summary_in_trouble, api, struck, always=always))) == 1


async def compacted_twice(api):
    """Ask where the first two requests are too large, the second although a compaction made it smaller."""
    asked_for = []

    def strike(_sent, number):
        provider.settings = Settings(window=(9_000, 2_000, WINDOW)[min(number, 3) - 1], overflow="llama.cpp-old")

    def supply(*_):
        asked_for.append(len(asked_for))
        return Before(summary=_text(99, 20 if asked_for[1:] else 70))

    provider = Provider(Settings(window=WINDOW))
    scene = Scene(api, ProviderUpstream(provider, strike), hooks=Hooks(before_compaction=supply))
    async with scene.opened as engine:
        session = await engine.session(KEY)
        await session.append(*TALK)
        assert (await session.ask("Go on.")).message.text
        judge_peace(engine, session, scene.store)
        judge_counts(scene.store)
    return [event.by for event in scene.heard if isinstance(event, events.Compacted)]


@pytest.mark.parametrize("api", MODELS)
def test_two_overflows_for_one_answer_leave_nothing_in_flight(api):
    """BEHAVIOUR 16: whatever was pressed for, a run that has ended is waited for by nobody."""
    assert on_fake_clock(partial(compacted_twice, api)) == ["hook", "hook"]


# -- whole sessions in trouble -----------------------------------------------------------------------------------------

WALKS, STEPS = (2_000, 100) if THOROUGH else (12, 50)
"""Random sessions, and what is done in each. 50 of 100 are over a minute, too long for every run; all are an hour."""
PLACES = [(kind, stage) for known in FAULTS.values() for stage, kind in known.items() if kind not in TRUE_NUMBERS]
WORDINGS = ("native", "llama.cpp", "openai-tpm", "nginx", "stream", "responses-short", "anthropic-sum")
PATIENT = 30.0
"""Seconds that the upstream of these sessions waits for a byte."""


class Walk:
    """A session to which anything may happen at any time, by one seed."""

    def __init__(self, seed):
        self.dice = Random(seed)
        self.api = self.dice.choice(list(MODELS))
        self.provider = Provider(Settings(window=WINDOW))
        self.upstream = ProviderUpstream(self.provider, self.strike, patience=PATIENT, latency=0.5)
        self.means = {"hooks": Hooks(before_compaction=self.hook, on_overflow=self.hook, on_append=self.hook)}
        if self.dice.random() < 0.5:
            self.means["writers"] = [Writer(self.upstream, target(self.api, MODELS[self.api], window=WINDOW))]
        self.means["native"] = self.dice.random() < 0.5
        self.scene = Scene(self.api, self.upstream)
        self.calm, self.number, self.words = False, 0, []

    def strike(self, _sent, _number):
        """Return a fault for one request in eight; one in twelve meets a window that may be smaller than it is."""
        small = not self.calm and self.dice.random() < 0.08
        last = next((one.tokens for one in reversed(self.provider.requests) if one.tokens), 0)
        window = max(SIZE, int(last * self.dice.uniform(0.5, 1.0))) if small else WINDOW
        self.provider.settings = Settings(window=window, overflow=self.dice.choice(WORDINGS))
        if self.calm or small or self.dice.random() > 0.125:
            return None
        kind, stage = self.dice.choice(PLACES)
        return Fault(kind, stage, 0, self.dice.choice([None, 0.5, 10.0]) if kind == "stall" else None)

    def hook(self, *_):
        """Do nothing, or fail at it."""
        if not self.calm and self.dice.random() < 0.2:
            raise RuntimeError("the hook has a bug")

    async def run(self):
        """Do what the dice say, and look after each step that nothing was left behind."""
        async with AsyncExitStack() as stack:
            self.engine, self.session = await self.opened(stack)
            await self.session.append(*TALK)
            for step in range(STEPS):
                sent = len(self.upstream.sent)
                act = self.dice.choices(list(ACTS), [weight for weight, _ in ACTS.values()])[0]
                if act == "reopen":
                    await stack.aclose()
                    self.engine, self.session = await self.opened(stack)
                else:
                    await ACTS[act][1](self)
                assert len(self.upstream.sent) - sent <= 2 * (BOUND + 4 * MOST_SUMMARIES), (act, step)
                judge_peace(self.engine, self.session, self.scene.store)
            self.calm = True
            await self.settle()
        self.judge()

    async def opened(self, stack):
        self.scene.opened = Scene(self.api, self.upstream, store=self.scene.store, **self.means).opened
        engine = await stack.enter_async_context(self.scene.opened)
        return engine, await engine.session(KEY)

    def next_words(self):
        """Return words of the user that were never said before; most ask for a tool."""
        self.number += 1
        asked = f'call read {{"path": "src/part_{self.number}.py"}}\\n' if self.dice.random() < 0.7 else ""
        return f"Task {self.number}: {_text(self.number, self.dice.choice([1, 10, 100]))}\\n{asked}"

    async def ask(self):
        """Answer the open calls if there are any, else say something new, and ask."""
        await asked(self.session, *(await self.next_said()), stream=self.dice.random() < 0.3)

    async def next_said(self):
        calls = self.session.journal.branch.open
        if calls:
            lines = self.dice.choice([0, 20, 80, 200, 3_000])
            parts = [ToolResult(id_, "read", (Text(_text(self.number, lines) or "x"),)) for id_ in calls]
            await self.session.append(Message("tool", tuple(parts)))
            return ()
        words = self.next_words()
        self.words.append(words)
        return (words,)

    async def cancelled(self):
        """Ask and give up in the middle of it; the words may be in the log or not."""
        with anyio.move_on_after(self.dice.choice([0.1, 0.6, 5.0])):
            await asked(self.session, self.next_words(), stream=self.dice.random() < 0.5)

    async def left(self):
        """Read a few events of a run and leave."""
        most = self.dice.randrange(4)
        try:
            async with self.session.run(await self.next_said()) as run:
                async for _ in run:
                    most -= 1
                    if most < 0:
                        break
        except HoldfastError as error:
            judge_error(error)

    async def both(self):
        """Ask twice at once, and say something meanwhile."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.ask)
            tasks.start_soon(self.ask)
            await anyio.sleep(self.dice.random())
            words = self.next_words()
            self.words.append(words)
            await self.session.append(Message.of("user", words))

    async def hurried(self):
        """Ask with little time."""
        words = self.next_words()
        self.words.append(words)
        try:
            await self.session.ask(words, deadline=self.dice.choice([0.2, 2.0, 200.0]))
        except DeadlineExceeded:
            self.words.pop()  # it may have waited for its lane
        except HoldfastError as error:
            judge_error(error)

    async def aside(self):
        """Ask on a branch from before the end of this one, which leaves this one as it is."""
        before, ids = shown(self.session), [entry.id for entry in self.scene.store.path(KEY)]
        branch = await self.session.branch(self.dice.choice(ids[len(ids) // 2 : -1]))
        await asked(branch, "What if it were otherwise?")
        assert shown(self.session) == before

    async def compact(self):
        told = await self.session.compact()
        assert told.outcome in OUTCOMES

    async def undo(self):
        with suppress(HoldfastError):
            await self.session.undo()

    async def settle(self):
        """All is well again: whatever is open is answered."""
        for _ in range(3):
            said = await self.next_said()
            answer = await self.session.ask(*said)
            assert answer.message.parts

    def judge(self):
        """S1, P10: what was said is in the log, once; W1: the provider only ever said that it was too much."""
        log = [one.text for one in said(self.scene.store) if one.role == "user"]
        assert {*self.words} <= {*log}
        assert len({*log}) == len(log)
        judge_requests(self.provider)


ACTS = {
    "ask": (60, Walk.ask),
    "cancelled": (8, Walk.cancelled),
    "left": (8, Walk.left),
    "both": (6, Walk.both),
    "hurried": (5, Walk.hurried),
    "aside": (4, Walk.aside),
    "compact": (5, Walk.compact),
    "undo": (4, Walk.undo),
    "reopen": (5, None),
}
"""What may happen next, and how often."""


@pytest.mark.parametrize("seed", range(WALKS))
def test_a_session_survives_whatever_happens_to_it(seed):
    """Answers, refusals, silence, giving up, two at once and starting again, in any order: nothing said is lost."""
    on_fake_clock(Walk(seed).run)
