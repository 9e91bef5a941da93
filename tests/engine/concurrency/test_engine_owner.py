"""An engine belongs to one event loop of one process, and says so in any other."""

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


def opened(replies, store=None):
    """Return an engine about to be opened, whose model says ``replies``."""
    return Engine.open(store or MemoryStore(), upstream=ScriptedUpstream(replies), target=OPUS)


async def run_to_its_end(session):
    async with session.run("And now?") as run:
        async for _ in run:
            pass


async def close(session):
    session.close()


VERBS = {
    "session": lambda engine, session, entry, answer: engine.session(SAMPLE_KEY),
    "another session": lambda engine, session, entry, answer: engine.session("new"),
    "append": lambda engine, session, entry, answer: session.append("And now?"),
    "ask": lambda engine, session, entry, answer: session.ask("And now?"),
    "run": lambda engine, session, entry, answer: run_to_its_end(session),
    "prepare": lambda engine, session, entry, answer: session.prepare("And now?"),
    "record": lambda engine, session, entry, answer: session.record(answer),
    "compact": lambda engine, session, entry, answer: session.compact(),
    "undo": lambda engine, session, entry, answer: session.undo(),
    "branch": lambda engine, session, entry, answer: session.branch(entry),
    "recall": lambda engine, session, entry, answer: session.recall(entry),
    "wait": lambda engine, session, entry, answer: session.wait_for_compaction(),
    "close": lambda engine, session, entry, answer: close(session),
}


def run_in_another_loop(verb, *given):
    """Return the error of ``verb`` in an event loop of another thread."""

    async def refused():
        with anyio.fail_after(20), pytest.raises(OperationAborted) as caught:
            await verb(*given)
        return caught.value

    return to_thread.run_sync(Context().run, asyncio.run, refused())


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_refused_in_another_event_loop(name):
    """Also where nothing runs: the error says what to do, nothing is written, and the engine's own loop goes on."""

    async def main():
        async with opened(["7 m", "8 m"]) as engine:
            session = await engine.session(SAMPLE_KEY)
            [entry] = await session.append("How high is it?")
            answer = await session.ask()
            error = await run_in_another_loop(VERBS[name], engine, session, entry, answer)
            again = await session.ask("And now?")
            return error, again.message.text, session.report().message_count

    error, said, message_count = asyncio.run(main())
    assert type(error) is OperationAborted
    assert "bound to another event loop; open one engine in each loop" in str(error)
    assert (said, message_count) == ("8 m", 4)


def test_within_a_run_another_loop_is_refused_too():
    """A tool that runs a loop of its own in a thread has the run's context, but not its loop."""

    async def main():
        async with opened(["7 m", "8 m"]) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run("How high is it?") as run:
                await anext(run)
                with pytest.raises(OperationAborted, match="another event loop"):
                    await to_thread.run_sync(asyncio.run, session.ask("And now?"))
                said = await to_thread.run_sync(anyio.from_thread.run, session.ask, "And now?")
                async for _ in run:
                    pass
            return run.answer.message.text, said.message.text

    assert asyncio.run(main()) == ("7 m", "8 m")


def test_what_only_reads_works_anywhere():
    """``report`` waits for nobody: a program may show it from any thread, with a loop or without."""

    async def main():
        async with opened(["7 m"]) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("How high is it?")
            return session, await to_thread.run_sync(session.report)

    session, there = asyncio.run(main())
    assert there == session.report()


def test_without_a_loop_a_session_is_not_closed():
    """Who waits in the loop could not be woken from here."""

    async def main():
        async with opened([]) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(OperationAborted, match="needs an event loop, and none is running here"):
                await to_thread.run_sync(session.close)

    asyncio.run(main())


def test_an_engine_whose_loop_was_closed_is_refused_in_the_next_one(tmp_path):
    """Nothing goes on in a closed loop: the engine says so, also where it is closed, and closes its store."""
    opening = opened(["7 m"], tmp_path / "agent.db")

    async def begin():
        engine = await opening.__aenter__()
        session = await engine.session(SAMPLE_KEY)
        await session.append("How high is it?")
        return session

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(begin())
    loop.close()  # as it is: asyncio.run would have closed the engine too
    with pytest.raises(OperationAborted, match="another event loop"):
        asyncio.run(session.ask())
    with pytest.raises(OperationAborted, match="another event loop"):
        asyncio.run(opening.__aexit__(None, None, None))
    with pytest.raises(StoreError, match="was closed"):
        session.resources.store.list_sessions()
    with open_store(tmp_path / "agent.db") as store:
        assert [message.text for message in store.open_state(SAMPLE_KEY).history.messages] == ["How high is it?"]


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_refused_in_a_forked_child(name, tmp_path):
    """The child has no thread that would answer: it is told to open its own, may do so, and may leave the block."""

    async def refused(*given):
        with pytest.raises(OperationAborted, match=r"belongs to another process.*open it here too"):
            await VERBS[name](*given)

    async def ask_anew():
        async with opened(["9 m"], tmp_path / "agent.db") as engine:
            return (await (await engine.session("ours")).ask("How high is it?")).message.text

    async def main():
        opening = opened(["7 m", "8 m"], tmp_path / "agent.db")
        engine = await opening.__aenter__()
        session = await engine.session(SAMPLE_KEY)
        [entry] = await session.append("How high is it?")
        answer = await session.ask()

        def work():
            asyncio.run(refused(engine, session, entry, answer))
            assert asyncio.run(ask_anew()) == "9 m"
            asyncio.run(opening.__aexit__(None, None, None))

        status = wait_for_child(work)
        again = await session.ask("And now?")
        await opening.__aexit__(None, None, None)
        return status, again.message.text

    assert asyncio.run(main()) == (0, "8 m")
