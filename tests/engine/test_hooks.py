"""Hooks: what each may return, and that no failing hook stops a session."""

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

MESSAGE = Message.from_text("user", "Mind the gap.")
OTHER_MESSAGE = Message.from_text("user", "Mind the step.")
ARGUMENTS = {
    "before_compaction": ([MESSAGE], "auto"),
    "transform_messages": ([MESSAGE],),
    "after_compaction": (CompactionEnded("s"),),
    "on_overflow": (None,),
    "on_append": (MESSAGE,),
    "auto_continue": (),
}
VALID_RESULTS = {
    "before_compaction": BeforeCompactionResult(extra_context=("The branch is called tide.",)),
    "transform_messages": [OTHER_MESSAGE, MESSAGE],
    "on_append": OTHER_MESSAGE,
    "auto_continue": False,
}
NAMES = sorted(ARGUMENTS)


def call_hook(name, hook, **options):
    """Return the hook's result and the events that report its failure."""
    events = []
    result = run_on_fake_clock(
        partial(run_hook, Hooks(**{name: hook}), name, *ARGUMENTS[name], listener=events.append, session="s", **options)
    )
    return result, events


def test_hooks_fields_are_all_covered_here():
    """Every field of ``Hooks`` but the timeout is a hook that this file tests."""
    assert sorted(field.name for field in fields(Hooks)[:-1]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_run_hook_returns_none_without_a_hook(name):
    """Without a hook nothing is called and no failure is reported."""
    events = []
    assert run_on_fake_clock(partial(run_hook, Hooks(), name, *ARGUMENTS[name], listener=events.append)) is None
    assert events == []


@pytest.mark.parametrize("kind", ["plain", "async", "partial", "returns a coroutine", "object"])
@pytest.mark.parametrize("name", NAMES)
def test_run_hook_returns_the_result_of_every_kind_of_callable(name, kind):
    """Plain and async functions, partials and callable objects all work; observing hooks return None."""
    calls = []

    def record_call(*args):
        calls.append(args)
        return VALID_RESULTS.get(name, "not looked at")

    async def wait_then_call(*args):
        await anyio.sleep(5)
        return record_call(*args)

    class Callable:
        async def __call__(self, *args):
            return await wait_then_call(*args)

    hooks = {
        "plain": record_call,
        "async": wait_then_call,
        "partial": partial(wait_then_call),
        "returns a coroutine": lambda *args: partial(wait_then_call, *args)(),
        "object": Callable(),
    }
    assert call_hook(name, hooks[kind]) == (VALID_RESULTS.get(name), [])
    assert calls == [ARGUMENTS[name]]


@pytest.mark.parametrize("name", NAMES)
def test_run_hook_accepts_none(name):
    """A hook that returns None leaves everything as it is."""
    assert call_hook(name, lambda *_: None) == (None, [])


class ErrorWithoutText(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ZeroDivisionError("by zero"), "it raised ZeroDivisionError: by zero"),
        (TimeoutError("mine"), "it raised TimeoutError: mine"),
        (SystemExit(3), "it raised SystemExit: 3"),
        (ErrorWithoutText(), "it raised ErrorWithoutText"),
        (BaseExceptionGroup("two", [ValueError("x")]), "it raised ExceptionGroup: two (1 sub-exception)"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_run_hook_reports_a_hook_that_raises(error, why, is_async):
    """Each call that raises is reported once with its error and has no result."""

    def raise_error(_):
        raise error

    async def raise_error_async(_):
        raise error

    result, events = call_hook("on_append", raise_error_async if is_async else raise_error)
    assert result is None
    assert events == [HookFailed("s", "on_append", f"{why}; the session continued without it")]


@pytest.mark.parametrize("error", [StopIteration("x"), KeyboardInterrupt("mine")])
def test_run_hook_contains_interrupts_and_stop_iteration_of_a_thread(error):
    """Even errors that end programs or that coroutines cannot raise do not leave the hook's thread."""

    def raise_error(_):
        raise error

    _, [failed] = call_hook("on_append", raise_error)
    assert failed.why.startswith(f"it raised {type(error).__name__}: {error}")


def test_run_hook_cancels_an_async_hook_after_its_timeout():
    """A hanging async hook is cancelled after 10 s, and its cleanup runs."""
    cleaned = []

    async def hang(_):
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(anyio.current_time())

    result, [failed] = call_hook("on_append", hang)
    assert result is None
    assert failed.why.startswith("it took longer than 10 s")
    assert cleaned == [10]


def test_run_hook_abandons_a_plain_hook_after_its_timeout():
    """A hanging hook's thread is left behind, and the session goes on after the timeout."""
    never = threading.Event()
    result, [failed] = call_hook("on_append", lambda _: never.wait(), timeout=0.05)
    assert result is None
    assert failed.why.startswith("it took longer than 0.05 s")
    never.set()


def test_run_hook_thread_does_not_keep_the_program_running():
    """The thread of a hanging hook does not delay the exit of the program."""
    program = """
import anyio, threading
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import Hooks, run_hook
hooks = Hooks(auto_continue=threading.Event().wait, timeout=0.05)
anyio.run(lambda: run_hook(hooks, "auto_continue", listener=print))
"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "took longer than 0.05 s" in completed.stdout


def test_run_hook_reports_a_hook_that_cancels_itself():
    """A hook that cancels its own task fails alone; the caller is not cancelled."""

    async def cancel_itself(_):
        asyncio.current_task().cancel()
        await anyio.sleep(1)

    _, [failed] = call_hook("on_append", cancel_itself)
    assert failed.why.startswith("it cancelled itself")


def test_run_hook_ends_at_once_when_its_caller_is_cancelled():
    """A cancellation from outside ends the call at once and is not reported as the hook's failure."""
    events = []

    async def main():
        with anyio.move_on_after(1) as scope:
            await run_hook(
                Hooks(on_append=lambda _: anyio.sleep_forever()), "on_append", MESSAGE, listener=events.append
            )
        return scope.cancelled_caught, anyio.current_time()

    assert run_on_fake_clock(main) == (True, 1)
    assert events == []


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
        ("transform_messages", [], "it returned an empty list of messages"),
        ("transform_messages", [MESSAGE, "x"], "it returned str instead of Message"),
        ("transform_messages", [Message("nobody")], "it returned an invalid Message: Invalid enum value"),
    ],
)
def test_run_hook_reports_a_result_of_the_wrong_type(name, returned, why):
    """A wrong type at any depth is reported as a failure and not used."""
    result, [failed] = call_hook(name, lambda *_: returned)
    assert result is None
    assert failed.why.startswith(why)


def test_run_hook_passes_immutable_messages():
    """A message is a value: an attempt to change it is the hook's own failure."""

    def change_role(message):
        message.role = "assistant"

    _, [failed] = call_hook("on_append", change_role)
    assert "it raised AttributeError" in failed.why
    assert MESSAGE.role == "user"


def test_run_hook_runs_an_async_hook_in_the_lane_of_its_caller():
    """An async hook may use the session that calls it without waiting for itself."""

    async def main():
        lanes = Lanes()

        async def hold_lane(message):
            async with lanes.hold("a"):
                return OTHER_MESSAGE

        async with lanes.hold("a"):
            return await run_hook(Hooks(on_append=hold_lane), "on_append", MESSAGE, listener=pytest.fail)

    assert run_on_fake_clock(main) == OTHER_MESSAGE


def test_run_hook_passes_context_variables_to_the_thread():
    """Context variables such as a trace or a request id reach the hook's thread."""
    trace = ContextVar("trace", default="none")

    async def main():
        trace.set("t-1")
        return await run_hook(
            Hooks(on_append=lambda _: Message.from_text("user", trace.get())), "on_append", MESSAGE, listener=print
        )

    assert run_on_fake_clock(main).text == "t-1"


def test_hooks_rejects_a_hook_that_is_not_callable():
    """The error is raised where ``Hooks`` is made and names the hook."""
    with pytest.raises(ConfigError, match="the hook on_append is str"):
        Hooks(on_append="print")


def raise_zero_division(*_):
    raise ZeroDivisionError("by zero")


async def hang_for_ever(*_):
    await anyio.sleep_forever()


def run_session_with_hooks(hooks):
    """Run a session with these hooks through a compaction; return its requests, its report and its events."""
    upstream, seen_events = ScriptedUpstream([f"Noted: {number}." for number in range(30)]), []

    async def main():
        target = get_target("anthropic", "claude-opus-5-5", window=12_000)
        async with Engine.open(
            store, upstream=upstream, target=target, hooks=hooks, listen=seen_events.append
        ) as engine:
            session = await engine.session("tide")
            for number in range(30):
                await session.ask(f"Reading {number}: " + "the tide is rather high today, " * 60)
            return session.report()

    with MemoryStore() as store:
        report = run_on_fake_clock(main)
    return [sent.body for sent in upstream.sent], report, seen_events


@pytest.mark.parametrize(
    "hook", [raise_zero_division, hang_for_ever, lambda *_: object()], ids=["raises", "hangs", "returns nonsense"]
)
def test_session_with_failing_hooks_sends_and_stores_the_same(hook):
    """Whatever all hooks do, the same requests are sent and stored, and each failure is reported."""
    sent_without_hooks, report_without_hooks, _ = run_session_with_hooks(Hooks())
    sent, report, seen_events = run_session_with_hooks(Hooks(**dict.fromkeys(NAMES, hook)))
    failed = {event.hook for event in seen_events if isinstance(event, HookFailed)}
    assert report_without_hooks.compaction_count > 0
    assert sent == sent_without_hooks
    assert report == report_without_hooks
    assert failed >= {"on_append", "transform_messages", "before_compaction"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_append": 5}, "the hook on_append is int, which cannot be called"),
        ({"timeout": "x"}, "timeout is of type str; give a value of type float or int"),
        ({"timeout": float("nan")}, "timeout is nan; give the seconds"),
        ({"timeout": -1}, "timeout is -1; give the seconds"),
    ],
)
def test_hooks_rejects_invalid_hooks_and_timeouts(options, message):
    """Invalid values are refused where ``Hooks`` is made, not when a hook is called."""
    with pytest.raises(ConfigError, match=message):
        Hooks(**options)
