"""Hooks: what each may say, and that none of them can stop a session."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar
from functools import partial

import anyio
import pytest
from msgspec.structs import fields

from holdfast.config import get_target
from holdfast.engine.concurrency.lanes_and_permits import Lanes
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import BeforeCompactionResult, Hooks, run_hook
from holdfast.errors import ConfigError
from holdfast.events import CompactionEnded, HookFailed
from holdfast.messages.message import Message
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedUpstream

SAID = Message.from_text("user", "Mind the gap.")
OTHER = Message.from_text("user", "Mind the step.")
ASKED = {
    "before_compaction": ([SAID], "auto"),
    "transform_messages": ([SAID],),
    "after_compaction": (CompactionEnded("s"),),
    "on_overflow": (None,),
    "on_append": (SAID,),
    "auto_continue": (),
}
FINE = {
    "before_compaction": BeforeCompactionResult(extra_context=("The branch is called tide.",)),
    "transform_messages": [OTHER, SAID],
    "on_append": OTHER,
    "auto_continue": False,
}
NAMES = sorted(ASKED)


def play(name, hook, **more):
    """Return what the hook says, and what was told of its failure."""
    told = []
    result = run_on_fake_clock(
        partial(run_hook, Hooks(**{name: hook}), name, *ASKED[name], listener=told.append, session="s", **more)
    )
    return result, told


def test_there_is_a_hook_for_each_name():
    """Every field but the last is a hook, and is tested here."""
    assert sorted(field.name for field in fields(Hooks)[:-1]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_no_hook_says_nothing(name):
    """Nothing is called and nothing is told."""
    told = []
    assert run_on_fake_clock(partial(run_hook, Hooks(), name, *ASKED[name], listener=told.append)) is None
    assert told == []


@pytest.mark.parametrize("kind", ["plain", "async", "partial", "returns a coroutine", "object"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_hook_says_is_returned(name, kind):
    """However the hook is written; of hooks that only look on, nothing."""
    seen = []

    def plain(*given):
        seen.append(given)
        return FINE.get(name, "not looked at")

    async def waits(*given):
        await anyio.sleep(5)
        return plain(*given)

    class Callable:
        async def __call__(self, *given):
            return await waits(*given)

    hooks = {
        "plain": plain,
        "async": waits,
        "partial": partial(waits),
        "returns a coroutine": lambda *given: partial(waits, *given)(),
        "object": Callable(),
    }
    assert play(name, hooks[kind]) == (FINE.get(name), [])
    assert seen == [ASKED[name]]


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_may_say_nothing(name):
    """``None`` leaves everything as it is."""
    assert play(name, lambda *_: None) == (None, [])


class Untold(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ZeroDivisionError("by zero"), "it raised ZeroDivisionError: by zero"),
        (TimeoutError("mine"), "it raised TimeoutError: mine"),
        (SystemExit(3), "it raised SystemExit: 3"),
        (Untold(), "it raised Untold"),
        (BaseExceptionGroup("two", [ValueError("x")]), "it raised ExceptionGroup: two (1 sub-exception)"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_raises_is_told_and_left_out(error, why, is_async):
    """Once for each call, with what it raised; there is no result."""

    def plain(_):
        raise error

    async def waits(_):
        raise error

    result, told = play("on_append", waits if is_async else plain)
    assert result is None
    assert told == [HookFailed("s", "on_append", f"{why}; the session continued without it")]


@pytest.mark.parametrize("error", [StopIteration("x"), KeyboardInterrupt("mine")])
def test_what_a_thread_raises_stays_in_it(error):
    """Not even what ends programs, or what coroutines cannot raise, gets out."""

    def plain(_):
        raise error

    _, [failed] = play("on_append", plain)
    assert failed.why.startswith(f"it raised {type(error).__name__}: {error}")


def test_an_async_hook_that_hangs():
    """It has its time and no more; what it began is cleaned up."""
    cleaned = []

    async def waits(_):
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(anyio.current_time())

    result, [failed] = play("on_append", waits)
    assert result is None
    assert failed.why.startswith("it took longer than 10 s")
    assert cleaned == [10]


def test_a_plain_hook_that_hangs():
    """Its thread is left behind; the session goes on when its time is over."""
    never = threading.Event()
    result, [failed] = play("on_append", lambda _: never.wait(), timeout=0.05)
    assert result is None
    assert failed.why.startswith("it took longer than 0.05 s")
    never.set()


def test_a_hook_that_hangs_keeps_no_program_from_ending():
    """The thread it hangs in does not count when the program is done."""
    program = """
import anyio, threading
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import Hooks, run_hook
hooks = Hooks(auto_continue=threading.Event().wait, timeout=0.05)
anyio.run(lambda: run_hook(hooks, "auto_continue", listener=print))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "took longer than 0.05 s" in done.stdout


def test_a_hook_that_cancels_itself():
    """Its cancel is a failure of its own, not one of the caller."""

    async def waits(_):
        asyncio.current_task().cancel()
        await anyio.sleep(1)

    _, [failed] = play("on_append", waits)
    assert failed.why.startswith("it cancelled itself")


def test_a_caller_that_is_cancelled_does_not_wait():
    """A cancel from outside ends the call at once, and tells of no failure."""
    told = []

    async def main():
        with anyio.move_on_after(1) as scope:
            await run_hook(Hooks(on_append=lambda _: anyio.sleep_forever()), "on_append", SAID, listener=told.append)
        return scope.cancelled_caught, anyio.current_time()

    assert run_on_fake_clock(main) == (True, 1)
    assert told == []


@pytest.mark.parametrize(
    ("name", "returned", "why"),
    [
        ("on_append", "Mind the step.", "it returned str instead of Message"),
        ("on_append", Message("user", "Mind the step."), "it returned an invalid Message: Expected `array`"),
        ("before_compaction", {"cancel": True}, "it returned dict instead of BeforeCompactionResult"),
        (
            "before_compaction",
            BeforeCompactionResult(extra_context=(1,)),
            "it returned an invalid BeforeCompactionResult: Expected `str`, got `int`",
        ),
        ("auto_continue", 1, "it returned int instead of bool"),
        ("transform_messages", "all", "it returned str instead of a list of messages"),
        ("transform_messages", [], "it returned no message at all"),
        ("transform_messages", [SAID, "x"], "it returned str instead of Message"),
        ("transform_messages", [Message("nobody")], "it returned an invalid Message: Invalid enum value"),
    ],
)
def test_a_hook_that_returns_something_else(name, returned, why):
    """A wrong type, at any depth, is told as a failure and used for nothing."""
    result, [failed] = play(name, lambda *_: returned)
    assert result is None
    assert failed.why.startswith(why)


def test_a_hook_cannot_change_what_it_is_given():
    """A message is a value: trying to change it is the hook's own failure."""

    def changes(message):
        message.role = "assistant"

    _, [failed] = play("on_append", changes)
    assert "it raised AttributeError" in failed.why
    assert SAID.role == "user"


def test_a_hook_is_within_the_lane_of_its_caller():
    """An async hook may use the session that calls it: it is inside already, and does not wait for itself."""

    async def main():
        lanes = Lanes()

        async def appends(message):
            async with lanes.hold("a"):
                return OTHER

        async with lanes.hold("a"):
            return await run_hook(Hooks(on_append=appends), "on_append", SAID, listener=pytest.fail)

    assert run_on_fake_clock(main) == OTHER


def test_a_plain_hook_sees_the_context_of_its_caller():
    """Context variables (a trace, a request id) reach the thread."""
    trace = ContextVar("trace", default="none")

    async def main():
        trace.set("t-1")
        return await run_hook(
            Hooks(on_append=lambda _: Message.from_text("user", trace.get())), "on_append", SAID, listener=print
        )

    assert run_on_fake_clock(main).text == "t-1"


def test_what_is_no_hook_is_refused():
    """Said where the hooks are made, with the name."""
    with pytest.raises(ConfigError, match="the hook on_append is str"):
        Hooks(on_append="print")


def _raises(*_):
    raise ZeroDivisionError("by zero")


async def _hangs(*_):
    await anyio.sleep_forever()


def _session(hooks):
    """Return what a session with these hooks sends, stores and tells while much is said and it is compacted."""
    upstream, told = ScriptedUpstream([f"Noted: {number}." for number in range(30)]), []

    async def main():
        where = get_target("anthropic", "claude-opus-5-5", window=12_000)
        async with Engine.open(store, upstream=upstream, target=where, hooks=hooks, listen=told.append) as engine:
            session = await engine.session("tide")
            for number in range(30):
                await session.ask(f"Reading {number}: " + "the tide is rather high today, " * 60)
            return session.report()

    with MemoryStore() as store:
        report = run_on_fake_clock(main)
    return [sent.body for sent in upstream.sent], report, told


@pytest.mark.parametrize("hook", [_raises, _hangs, lambda *_: object()], ids=["raises", "hangs", "returns nonsense"])
def test_a_session_goes_on_as_without_its_hooks(hook):
    """Whatever all of them do, the same is sent and stored; each failure is told."""
    plain, without, _ = _session(Hooks())
    sent, report, told = _session(Hooks(**dict.fromkeys(NAMES, hook)))
    failed = {event.hook for event in told if isinstance(event, HookFailed)}
    assert without.compaction_count > 0
    assert sent == plain
    assert report == without
    assert failed >= {"on_append", "transform_messages", "before_compaction"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"on_append": 5}, "the hook on_append is int, which cannot be called"),
        ({"timeout": "x"}, "timeout is of type str; give a value of type float or int"),
        ({"timeout": float("nan")}, "timeout is nan; give the seconds"),
        ({"timeout": -1}, "timeout is -1; give the seconds"),
    ],
)
def test_hooks_are_functions_and_a_time(given, told):
    """What is none is refused where the hooks are made, not where one is called."""
    with pytest.raises(ConfigError, match=told):
        Hooks(**given)
