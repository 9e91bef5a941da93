"""Branches in memory: the last used are held, as many and as large as there is room for."""

from __future__ import annotations

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import Policy
from holdfast.proxy.conversation.index import SessionIndexes
from holdfast.proxy.conversation.open_branches import BranchPool
from holdfast.proxy.server import MissingUpstream
from holdfast.state.entries import CompactionEntry
from holdfast.store.memory import MemoryStore


def said(*texts):
    """Return a conversation whose messages have a thousand bytes each, and take three thousand."""
    return [
        replace(build_sized_message(Message.from_text(role, text)), api="anthropic", raw=Raw(f"{text:<1000}".encode()))
        for role, text in zip(["user", "assistant"] * len(texts), texts, strict=False)
    ]


def held(branches):
    """Return the sessions that are held, the last used last, and how large each is."""
    return branches._branches.get_sizes()


def opened(most, most_bytes):
    """Return branches over a store in memory."""
    means = EngineResources(MemoryStore(), MissingUpstream())
    return BranchPool(means, Policy(), lambda _: Policy(), most, most_bytes)


async def turn(branches, key, *texts):
    """Let a session go on."""
    async with branches.continue_branch(key, said(*texts)) as session:
        session.journal.follow_conversation(said(*texts))


def test_branch_pool_limits_number_and_bytes():
    """The pool evicts the least recently used branches by number and bytes; an oversized one is held alone, and the log
    has them all.
    """

    async def go():
        branches = opened(3, 13_500)
        for key in "abc":
            await turn(branches, key, "one")
        assert held(branches) == dict.fromkeys("abc", 3_000)
        await turn(branches, "d", "one")
        assert held(branches) == dict.fromkeys("bcd", 3_000)
        await turn(branches, "b", "one", "two", "three")
        assert held(branches) == {"d": 3_000, "b": 9_000}
        await turn(branches, "a", "one", "two", "three", "four", "five")
        assert held(branches) == {"b": 9_000, "a": 15_000}
        await turn(branches, "a", "one", "two", "three", "four", "five", "six")
        store = branches._resources.store
        assert [len(store.read_tips(info.key)) for info in store.list_sessions()] == [1] * 4

    anyio.run(go)


def test_branch_pool_keeps_branches_in_use():
    """A branch in use stays in the pool however many others arrive, and counts with its size afterwards."""

    async def go():
        branches = opened(1, 4_500)
        async with branches.continue_branch("a", said("one")) as session:
            session.journal.follow_conversation(said("one"))
            await turn(branches, "b", "one")
            await turn(branches, "c", "one")
            assert "a" in held(branches)
        assert held(branches) == {"a": 3_000}

    anyio.run(go)


@pytest.mark.parametrize("at", ["count_foreign_writes", "find_leaf", "open_state"])
def test_branch_pool_sees_a_decision_made_while_opening(at, monkeypatch):
    """A compaction by another replica at any step of opening applies from the next request on and is not undone."""
    branches, words = opened(3, 100_000), [f"{number}" for number in range(5)]
    means, reached = branches._resources, []

    def decide():
        reached.append(at)
        replica = Journal.open(means.store, "a", Policy())
        replica.record_compaction(CompactionEntry(2, Message.from_text("user", "what was said")))

    owner = MemoryStore if at == "open_state" else SessionIndexes
    step = getattr(owner, at)

    def meanwhile(*given, **more):
        told = step(*given, **more)
        if not reached:
            decide()
        return told

    async def go():
        await turn(branches, "a", *words)
        branches._branches.drop_where(lambda _: True)
        monkeypatch.setattr(owner, at, meanwhile)
        await turn(branches, "a", *words, "5", "6")
        monkeypatch.undo()
        async with branches.continue_branch("a", said(*words, "5", "6", "7", "8")) as session:
            session.journal.follow_conversation(said(*words, "5", "6", "7", "8"))
            return session.journal.state.view.compaction

    assert anyio.run(go) is not None
    assert reached == [at]
    assert len(means.store.read_tips("a")) == 1


@pytest.mark.parametrize("at", ["count_foreign_writes", "find_leaf", "open_state"])
def test_branch_pool_opens_the_found_leaf_when_the_session_leaf_moves(at, monkeypatch):
    """Another proxy that moves the session's leaf does not move the branch that is being opened."""
    branches, there = opened(3, 1_000_000), ["0", "1", "2", "3", "4"]
    store, reached = branches._resources.store, []
    owner = MemoryStore if at == "open_state" else SessionIndexes
    step = getattr(owner, at)

    def meanwhile(*given, **more):
        told = step(*given, **more)
        if not reached:
            reached.append(store.set_leaf("a", beside))
        return told

    async def go():
        await turn(branches, "a", *there)
        branches._branches.drop_where(lambda _: True)
        await turn(branches, "a", "0", "1", "aside")
        replica = Journal.open(store, "a", Policy(), leaf=behind("4"))
        replica.take_session_leaf()
        replica.record_compaction(CompactionEntry(2, Message.from_text("user", "what was said")))
        branches._branches.drop_where(lambda _: True)
        before = store.get_session("a").entry_count
        monkeypatch.setattr(owner, at, meanwhile)
        async with branches.continue_branch("a", said(*there, "5", "6")) as session:
            monkeypatch.undo()
            session.journal.follow_conversation(said(*there, "5", "6"))
            return session.journal.state.view.compaction, store.get_session("a").entry_count - before

    def behind(text):
        return next(leaf for leaf in leaves() if store.open_state("a", leaf).history.messages[-1].text.strip() == text)

    def leaves():
        return [info.id for info in store.read_tips("a")]

    async def whole():
        nonlocal beside
        await turn(branches, "a", "0", "1", "aside")
        beside = behind("aside")
        return await go()

    beside = ""
    compaction, written = anyio.run(whole)
    assert compaction is not None
    assert written <= 3
    assert len(reached) == 1
