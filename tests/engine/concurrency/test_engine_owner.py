"""An engine belongs to one event loop of one process, and raises in any other."""

from __future__ import annotations

import asyncio
from contextvars import Context

import anyio
import pytest
from anyio import to_thread
from forked_child import wait_for_child
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.errors import OperationAborted, StoreError
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store
from holdfast.testing.upstream import ScriptedUpstream

OPUS = get_target("anthropic", "claude-opus-5-5", window=32_000)


def open_engine(replies, store=None):
    """Return an engine to be opened, whose upstream gives ``replies``."""
    return Engine.open(store or MemoryStore(), upstream=ScriptedUpstream(replies), target=OPUS)


async def read_run(session):
    async with session.run("And now?") as run:
        async for _ in run:
            pass


async def close_session(session):
    session.close()


CALLS = {
    "session": lambda engine, session, entry, answer: engine.session(SAMPLE_KEY),
    "another session": lambda engine, session, entry, answer: engine.session("new"),
    "append": lambda engine, session, entry, answer: session.append("And now?"),
    "ask": lambda engine, session, entry, answer: session.ask("And now?"),
    "run": lambda engine, session, entry, answer: read_run(session),
    "prepare": lambda engine, session, entry, answer: session.prepare("And now?"),
    "record": lambda engine, session, entry, answer: session.record(answer),
    "compact": lambda engine, session, entry, answer: session.compact(),
    "undo": lambda engine, session, entry, answer: session.undo(),
    "branch": lambda engine, session, entry, answer: session.branch(entry),
    "recall": lambda engine, session, entry, answer: session.recall(entry),
    "wait": lambda engine, session, entry, answer: session.wait_for_compaction(),
    "close": lambda engine, session, entry, answer: close_session(session),
}


def run_in_another_loop(method, *args):
    """Return the error of ``method`` in an event loop of another thread."""

    async def call_and_expect_error():
        with anyio.fail_after(20), pytest.raises(OperationAborted) as caught:
            await method(*args)
        return caught.value

    return to_thread.run_sync(Context().run, asyncio.run, call_and_expect_error())


@pytest.mark.parametrize("name", CALLS)
def test_engine_and_session_methods_raise_in_another_event_loop(name):
    """The error says what to do, nothing is written, and the engine works on in its own loop."""

    async def main():
        async with open_engine(["7 m", "8 m"]) as engine:
            session = await engine.session(SAMPLE_KEY)
            [entry] = await session.append("How high is it?")
            answer = await session.ask()
            error = await run_in_another_loop(CALLS[name], engine, session, entry, answer)
            again = await session.ask("And now?")
            return error, again.message.text, session.report().message_count

    error, text, message_count = asyncio.run(main())
    assert type(error) is OperationAborted
    assert "bound to another event loop; open one engine in each loop" in str(error)
    assert (text, message_count) == ("8 m", 4)


def test_session_raises_in_another_loop_within_its_run():
    """A tool that starts a loop in a thread has the context of the run, but not its loop."""

    async def main():
        async with open_engine(["7 m", "8 m"]) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run("How high is it?") as run:
                await anext(run)
                with pytest.raises(OperationAborted, match="another event loop"):
                    await to_thread.run_sync(asyncio.run, session.ask("And now?"))
                answer = await to_thread.run_sync(anyio.from_thread.run, session.ask, "And now?")
                async for _ in run:
                    pass
            return run.answer.message.text, answer.message.text

    assert asyncio.run(main()) == ("7 m", "8 m")


def test_session_report_works_in_any_thread():
    """``report`` waits for nothing, so any thread can call it, with a loop or without."""

    async def main():
        async with open_engine(["7 m"]) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("How high is it?")
            return session, await to_thread.run_sync(session.report)

    session, report = asyncio.run(main())
    assert report == session.report()


def test_session_close_raises_without_an_event_loop():
    """Waiters in the engine's loop could not be woken from another thread."""

    async def main():
        async with open_engine([]) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(OperationAborted, match="needs an event loop, and none is running here"):
                await to_thread.run_sync(session.close)

    asyncio.run(main())


def test_engine_of_a_closed_loop_raises_in_the_next_loop(tmp_path):
    """Calls and the end of the block raise, and the store is closed all the same."""
    opening = open_engine(["7 m"], tmp_path / "agent.db")

    async def open_and_append():
        engine = await opening.__aenter__()
        session = await engine.session(SAMPLE_KEY)
        await session.append("How high is it?")
        return session

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(open_and_append())
    loop.close()  # as it is: asyncio.run would have closed the engine too
    with pytest.raises(OperationAborted, match="another event loop"):
        asyncio.run(session.ask())
    with pytest.raises(OperationAborted, match="another event loop"):
        asyncio.run(opening.__aexit__(None, None, None))
    with pytest.raises(StoreError, match="was closed"):
        session.resources.store.list_sessions()
    with open_store(tmp_path / "agent.db") as store:
        assert [message.text for message in store.open_state(SAMPLE_KEY).history.messages] == ["How high is it?"]


@pytest.mark.parametrize("name", CALLS)
def test_engine_and_session_methods_raise_in_a_forked_child(name, tmp_path):
    """The child has no worker thread; it can open its own engine and leave the block, and the parent works on."""

    async def call_and_expect_error(*args):
        with pytest.raises(OperationAborted, match=r"belongs to another process.*open it here too"):
            await CALLS[name](*args)

    async def ask_with_own_engine():
        async with open_engine(["9 m"], tmp_path / "agent.db") as engine:
            return (await (await engine.session("ours")).ask("How high is it?")).message.text

    async def main():
        opening = open_engine(["7 m", "8 m"], tmp_path / "agent.db")
        engine = await opening.__aenter__()
        session = await engine.session(SAMPLE_KEY)
        [entry] = await session.append("How high is it?")
        answer = await session.ask()

        def run_in_child():
            asyncio.run(call_and_expect_error(engine, session, entry, answer))
            assert asyncio.run(ask_with_own_engine()) == "9 m"
            asyncio.run(opening.__aexit__(None, None, None))

        status = wait_for_child(run_in_child)
        again = await session.ask("And now?")
        await opening.__aexit__(None, None, None)
        return status, again.message.text

    assert asyncio.run(main()) == (0, "8 m")
