"""Several replicas on one store: whichever is asked goes by what any of them wrote, whatever it holds in memory."""

from __future__ import annotations

import anyio
import pytest

from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.proxy.conversation.index import SessionIndexes
from holdfast.state.entries import CompactionEntry
from holdfast.store.memory import MemoryStore

WORDS = "kelp on the rock, and the tide comes in. " * 60
KEY = "x-holdfast-session"


async def grown(chat, client, turns):
    """Talk for so many turns, and return the session's key."""
    for turn in range(turns):
        reply = await chat.send_turn(client, f"Note {turn}: {WORDS}")
        assert reply.headers["x-holdfast-state"] == "managed"
    return reply.headers[KEY]


async def retried(chat, one, other, text):
    """Say ``text`` at ``one`` and the same at ``other``, whose answer is heard; return what both sent up."""
    chat.add_user_text(text)
    first, second = await one.post(chat.path, chat.body()), await other.post(chat.path, chat.body())
    assert {reply.headers["x-holdfast-state"] for reply in (first, second)} == {"managed"}
    chat.add_answer(second.content)
    return one.upstream.bodies[-1], other.upstream.bodies[-1]


def compacted(store, key):
    """Compact as somebody does by hand, in another process."""
    journal = Journal.open(store, key)
    slots = journal.state.history.sized_messages
    made = CompactionEntry(len(slots) - 2, Message.from_text("user", "A summary of the kelp."), 500, trigger="manual")
    return journal.record_compaction(made)


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses", "gemini"])
@pytest.mark.parametrize("is_undone", [False, True])
def test_retry_at_another_replica_applies_new_decisions(open_client, make_chat, strict, api, is_undone):
    """A compaction or an undo by another process applies at each replica, even one that holds the older conversation in
    memory.
    """
    store = MemoryStore()

    async def go():
        async with open_client(strict(), store) as one, open_client(strict(), store) as other:
            chat = make_chat(api)
            key = await grown(chat, one, 4)
            made = compacted(store, key)
            if is_undone:
                await chat.send_turn(one, "go on")
                Journal.open(store, key).undo(made)
            first, second = await retried(chat, other, one, "go on")
            assert first == second
            assert (b"A summary of the kelp." in second) is not is_undone
            first, second = await retried(chat, one, other, "and on")
            assert first == second
            assert (b"A summary of the kelp." in second) is not is_undone

    anyio.run(go)


@pytest.mark.parametrize("held", [50_000, 10])
def test_retries_across_replicas_compact_as_often_as_at_one(held, open_client, make_chat, strict, monkeypatch):
    """Each turn sent to two replicas gives the same bytes and as many compactions as sent twice to one, however few
    trees are held.
    """
    monkeypatch.setattr(SessionIndexes.__init__, "__defaults__", (held,))

    async def compacted_times(store, many):
        async with (
            open_client(strict(), store, window=8_000) as one,
            open_client(strict(), store, window=8_000) as other,
        ):
            chat, replicas = make_chat("anthropic"), [one, one if many == 1 else other]
            for turn in range(16):
                for each in replicas:
                    await make_chat("anthropic").send_turn(each, f"Beside {turn} of {id(each)}: {WORDS}")
                first, second = await retried(chat, *replicas[:: -1 if turn % 3 else 1], f"Note {turn}: {WORDS}")
                assert first == second
            told = [(await each.web.get("/stats")).json()["compactions"]["compacted"] for each in (one, other)]
        return sum(told)

    alone = anyio.run(compacted_times, MemoryStore(), 1)
    assert alone == anyio.run(compacted_times, MemoryStore(), 2) > 0


@pytest.mark.parametrize("held", [50_000, 10])
def test_replica_reads_each_conversation_once(held, open_client, make_chat, strict, monkeypatch):
    """Conversations at a single replica are read in full at most once each, however often they are used or few are
    held.
    """
    monkeypatch.setattr(SessionIndexes.__init__, "__defaults__", (held,))
    store, reads = MemoryStore(), []
    every = store.read_entries

    def entries(key, kind=None, **more):
        reads.append(kind)
        return every(key, kind, **more)

    store.read_entries = entries

    async def go():
        async with open_client(strict(), store) as one:
            chat = make_chat("anthropic")
            for turn in range(12):
                await chat.send_turn(one, f"Note {turn}: {WORDS}")
                await make_chat("anthropic").send_turn(one, f"Beside {turn}: {WORDS}")

    anyio.run(go)
    assert reads.count(None) <= 1 + 12


@pytest.mark.parametrize("between", ["nothing", "a fork", "a count"])
@pytest.mark.parametrize("is_undone", [False, True])
def test_decisions_elsewhere_apply_after_a_request_of_another_branch(
    open_client, make_chat, strict, between, is_undone
):
    """A request of another branch that reads the session's new entries does not hide them from this one."""
    store = MemoryStore()

    async def go():
        async with open_client(strict(), store) as one:
            chat, fork = make_chat("anthropic"), make_chat("anthropic")
            await grown(chat, one, 1)
            fork.messages = [*chat.messages]
            await fork.send_turn(one, "the other way")
            key = await grown(chat, one, 3)
            made = compacted(store, key)
            if is_undone:
                await chat.send_turn(one, "go")
                Journal.open(store, key).undo(made)
            if between == "a fork":
                await fork.send_turn(one, "look there")
            elif between == "a count":
                fork.messages = [chat.messages[0], {"role": "assistant", "content": "quite another"}]
                fork.add_user_text("how many?")
                body = {name: value for name, value in fork.body().items() if name != "max_tokens"}
                await one.post("/v1/messages/count_tokens", body)
            await chat.send_turn(one, "go on")
            assert (b"A summary of the kelp." in one.upstream.bodies[-1]) is not is_undone

    anyio.run(go)


def test_retry_of_another_replicas_answer_is_stored_once(open_client, make_chat, strict):
    """A message answered at one replica and retried at another is stored once, whatever came between."""
    store = MemoryStore()

    async def go():
        async with open_client(strict(), store) as one, open_client(strict(), store) as other:
            chat, fork = make_chat("anthropic"), make_chat("anthropic")
            key = await grown(chat, one, 3)
            chat.add_user_text("again")
            await other.post(chat.path, chat.body())
            await grown(fork, one, 2)
            await one.post(chat.path, chat.body())
            said = [
                entry
                for entry in store.read_entries(key, "message")
                if entry.body.sized_message.message.text == "again"
            ]
            assert len(said) == 1

    anyio.run(go)
