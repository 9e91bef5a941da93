"""Branches in memory: the most recently used are kept, up to a number and a size."""

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


def make_conversation(*texts):
    """Build a conversation whose messages have 1,000 bytes each and take 3,000 in memory."""
    return [
        replace(build_sized_message(Message.from_text(role, text)), api="anthropic", raw=Raw(f"{text:<1000}".encode()))
        for role, text in zip(["user", "assistant"] * len(texts), texts, strict=False)
    ]


def get_pool_sizes(branches):
    """Return the pooled sessions, least recently used first, with their sizes."""
    return branches._branches.get_sizes()


def open_pool(max_branches, max_bytes):
    """Return a pool over a memory store."""
    resources = EngineResources(MemoryStore(), MissingUpstream())
    return BranchPool(resources, Policy(), lambda _: Policy(), max_branches, max_bytes)


async def run_turn(branches, key, *texts):
    """Continue a session with this conversation."""
    async with branches.continue_branch(key, make_conversation(*texts)) as session:
        session.journal.follow_conversation(make_conversation(*texts))


def test_branch_pool_limits_number_and_bytes():
    """The pool evicts the least recently used branches by number and bytes; an oversized one is held alone, and the log
    has them all.
    """

    async def scenario():
        branches = open_pool(3, 13_500)
        for key in "abc":
            await run_turn(branches, key, "one")
        assert get_pool_sizes(branches) == dict.fromkeys("abc", 3_000)
        await run_turn(branches, "d", "one")
        assert get_pool_sizes(branches) == dict.fromkeys("bcd", 3_000)
        await run_turn(branches, "b", "one", "two", "three")
        assert get_pool_sizes(branches) == {"d": 3_000, "b": 9_000}
        await run_turn(branches, "a", "one", "two", "three", "four", "five")
        assert get_pool_sizes(branches) == {"b": 9_000, "a": 15_000}
        await run_turn(branches, "a", "one", "two", "three", "four", "five", "six")
        store = branches._resources.store
        assert [len(store.read_tips(info.key)) for info in store.list_sessions()] == [1] * 4

    anyio.run(scenario)


def test_branch_pool_keeps_branches_in_use():
    """A branch in use stays in the pool however many others arrive, and counts with its size afterwards."""

    async def scenario():
        branches = open_pool(1, 4_500)
        async with branches.continue_branch("a", make_conversation("one")) as session:
            session.journal.follow_conversation(make_conversation("one"))
            await run_turn(branches, "b", "one")
            await run_turn(branches, "c", "one")
            assert "a" in get_pool_sizes(branches)
        assert get_pool_sizes(branches) == {"a": 3_000}

    anyio.run(scenario)


@pytest.mark.parametrize("accepts_answers", [False, True])
def test_branch_continues_with_answers_of_others_only_if_nobody_records_them(accepts_answers):
    """A conversation that brings an answer which the branch in memory lacks is looked up in the log, which may have it;
    where nobody records answers, the branch is continued at once.
    """

    async def scenario():
        branches = open_pool(3, 100_000)
        await run_turn(branches, "a", "one")
        async with branches.continue_branch("a", make_conversation("one")) as first:
            pass
        longer = make_conversation("one", "two", "three")
        async with branches.continue_branch("a", longer, accepts_answers=accepts_answers) as second:
            return first is second

    assert anyio.run(scenario) is accepts_answers


@pytest.mark.parametrize("at", ["count_foreign_writes", "find_leaf", "open_state"])
def test_branch_pool_sees_a_decision_made_while_opening(at, monkeypatch):
    """A compaction by another replica at any step of opening applies from the next request on and is not undone."""
    branches, words = open_pool(3, 100_000), [f"{number}" for number in range(5)]
    resources, reached = branches._resources, []

    def decide():
        reached.append(at)
        replica = Journal.open(resources.store, "a", Policy())
        replica.record_compaction(CompactionEntry(2, Message.from_text("user", "summary")))

    owner = MemoryStore if at == "open_state" else SessionIndexes
    step = getattr(owner, at)

    def step_with_interruption(*args, **kwargs):
        result = step(*args, **kwargs)
        if not reached:
            decide()
        return result

    async def scenario():
        await run_turn(branches, "a", *words)
        branches._branches.drop_where(lambda _: True)
        monkeypatch.setattr(owner, at, step_with_interruption)
        await run_turn(branches, "a", *words, "5", "6")
        monkeypatch.undo()
        async with branches.continue_branch("a", make_conversation(*words, "5", "6", "7", "8")) as session:
            session.journal.follow_conversation(make_conversation(*words, "5", "6", "7", "8"))
            return session.journal.state.view.compaction

    assert anyio.run(scenario) is not None
    assert reached == [at]
    assert len(resources.store.read_tips("a")) == 1


@pytest.mark.parametrize("at", ["count_foreign_writes", "find_leaf", "open_state"])
def test_branch_pool_opens_the_found_leaf_when_the_session_leaf_moves(at, monkeypatch):
    """Another proxy that moves the session's leaf does not move the branch that is being opened."""
    branches, texts = open_pool(3, 1_000_000), ["0", "1", "2", "3", "4"]
    store, reached = branches._resources.store, []
    owner = MemoryStore if at == "open_state" else SessionIndexes
    step = getattr(owner, at)

    def step_with_interruption(*args, **kwargs):
        result = step(*args, **kwargs)
        if not reached:
            reached.append(store.set_leaf("a", beside))
        return result

    async def scenario():
        await run_turn(branches, "a", *texts)
        branches._branches.drop_where(lambda _: True)
        await run_turn(branches, "a", "0", "1", "aside")
        replica = Journal.open(store, "a", Policy(), leaf=find_leaf_with_text("4"))
        replica.take_session_leaf()
        replica.record_compaction(CompactionEntry(2, Message.from_text("user", "summary")))
        branches._branches.drop_where(lambda _: True)
        before = store.get_session("a").entry_count
        monkeypatch.setattr(owner, at, step_with_interruption)
        async with branches.continue_branch("a", make_conversation(*texts, "5", "6")) as session:
            monkeypatch.undo()
            session.journal.follow_conversation(make_conversation(*texts, "5", "6"))
            return session.journal.state.view.compaction, store.get_session("a").entry_count - before

    def find_leaf_with_text(text):
        return next(leaf for leaf in leaves() if store.open_state("a", leaf).history.messages[-1].text.strip() == text)

    def leaves():
        return [info.id for info in store.read_tips("a")]

    async def run_scenario():
        nonlocal beside
        await run_turn(branches, "a", "0", "1", "aside")
        beside = find_leaf_with_text("aside")
        return await scenario()

    beside = ""
    compaction, written = anyio.run(run_scenario)
    assert compaction is not None
    assert written <= 3
    assert len(reached) == 1
