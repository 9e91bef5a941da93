"""Several replicas on one store: each applies what any of them wrote, whatever it has in memory."""

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


async def send_turns(chat, client, turns):
    """Send ``turns`` turns and return the session's key."""
    for turn in range(turns):
        reply = await chat.send_turn(client, f"Note {turn}: {WORDS}")
        assert reply.headers["x-holdfast-state"] == "managed"
    return reply.headers[KEY]


async def send_to_both(chat, first, second, text):
    """Send ``text`` to both replicas, append the second's answer, and return the bodies sent upstream."""
    chat.add_user_text(text)
    replies = [await replica.post(chat.path, chat.body()) for replica in (first, second)]
    assert {reply.headers["x-holdfast-state"] for reply in replies} == {"managed"}
    chat.add_answer(replies[1].content)
    return first.upstream.bodies[-1], second.upstream.bodies[-1]


def compact_session(store, key):
    """Compact the session manually, as another process does."""
    journal = Journal.open(store, key)
    messages = journal.state.history.sized_messages
    entry = CompactionEntry(
        len(messages) - 2, Message.from_text("user", "A summary of the kelp."), 500, trigger="manual"
    )
    return journal.record_compaction(entry)


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses", "gemini"])
@pytest.mark.parametrize("is_undone", [False, True])
def test_retry_at_another_replica_applies_new_decisions(open_client, make_chat, make_strict_upstream, api, is_undone):
    """A compaction or an undo by another process applies at each replica, even one that holds the older conversation in
    memory.
    """
    store = MemoryStore()

    async def scenario():
        async with (
            open_client(make_strict_upstream(), store) as first_replica,
            open_client(make_strict_upstream(), store) as second_replica,
        ):
            chat = make_chat(api)
            key = await send_turns(chat, first_replica, 4)
            compaction_id = compact_session(store, key)
            if is_undone:
                await chat.send_turn(first_replica, "go on")
                Journal.open(store, key).undo(compaction_id)
            first, second = await send_to_both(chat, second_replica, first_replica, "go on")
            assert first == second
            assert (b"A summary of the kelp." in second) is not is_undone
            first, second = await send_to_both(chat, first_replica, second_replica, "and on")
            assert first == second
            assert (b"A summary of the kelp." in second) is not is_undone

    anyio.run(scenario)


@pytest.mark.parametrize("max_entries", [50_000, 10])
def test_retries_across_replicas_compact_as_often_as_at_one(
    max_entries, open_client, make_chat, make_strict_upstream, monkeypatch
):
    """Each turn sent to two replicas gives the same bytes and as many compactions as sent twice to one, however few
    trees are held.
    """
    monkeypatch.setattr(SessionIndexes.__init__, "__defaults__", (max_entries,))

    async def compacted_times(store, many):
        async with (
            open_client(make_strict_upstream(), store, window=8_000) as first_replica,
            open_client(make_strict_upstream(), store, window=8_000) as second_replica,
        ):
            chat, replicas = make_chat("anthropic"), [first_replica, first_replica if many == 1 else second_replica]
            for turn in range(16):
                for each in replicas:
                    await make_chat("anthropic").send_turn(each, f"Beside {turn} of {id(each)}: {WORDS}")
                first, second = await send_to_both(chat, *replicas[:: -1 if turn % 3 else 1], f"Note {turn}: {WORDS}")
                assert first == second
            counts = [
                (await each.web.get("/stats")).json()["compactions"]["compacted"]
                for each in (first_replica, second_replica)
            ]
        return sum(counts)

    alone = anyio.run(compacted_times, MemoryStore(), 1)
    assert alone == anyio.run(compacted_times, MemoryStore(), 2) > 0


@pytest.mark.parametrize("max_entries", [50_000, 10])
def test_replica_reads_each_conversation_once(max_entries, open_client, make_chat, make_strict_upstream, monkeypatch):
    """Conversations at a single replica are read in full at most once each, however often they are used or few are
    held.
    """
    monkeypatch.setattr(SessionIndexes.__init__, "__defaults__", (max_entries,))
    store, reads = MemoryStore(), []
    every = store.read_entries

    def entries(key, kind=None, **more):
        reads.append(kind)
        return every(key, kind, **more)

    store.read_entries = entries

    async def scenario():
        async with open_client(make_strict_upstream(), store) as first_replica:
            chat = make_chat("anthropic")
            for turn in range(12):
                await chat.send_turn(first_replica, f"Note {turn}: {WORDS}")
                await make_chat("anthropic").send_turn(first_replica, f"Beside {turn}: {WORDS}")

    anyio.run(scenario)
    assert reads.count(None) <= 1 + 12


@pytest.mark.parametrize("between", ["nothing", "a fork", "a count"])
@pytest.mark.parametrize("is_undone", [False, True])
def test_decisions_elsewhere_apply_after_a_request_of_another_branch(
    open_client, make_chat, make_strict_upstream, between, is_undone
):
    """A request of another branch that reads the session's new entries does not hide them from this one."""
    store = MemoryStore()

    async def scenario():
        async with open_client(make_strict_upstream(), store) as first_replica:
            chat, fork = make_chat("anthropic"), make_chat("anthropic")
            await send_turns(chat, first_replica, 1)
            fork.messages = [*chat.messages]
            await fork.send_turn(first_replica, "the second_replica way")
            key = await send_turns(chat, first_replica, 3)
            compaction_id = compact_session(store, key)
            if is_undone:
                await chat.send_turn(first_replica, "go")
                Journal.open(store, key).undo(compaction_id)
            if between == "a fork":
                await fork.send_turn(first_replica, "look there")
            elif between == "a count":
                fork.messages = [chat.messages[0], {"role": "assistant", "content": "quite another"}]
                fork.add_user_text("how many?")
                body = {name: value for name, value in fork.body().items() if name != "max_tokens"}
                await first_replica.post("/v1/messages/count_tokens", body)
            await chat.send_turn(first_replica, "go on")
            assert (b"A summary of the kelp." in first_replica.upstream.bodies[-1]) is not is_undone

    anyio.run(scenario)


def test_retry_of_another_replicas_answer_is_stored_once(open_client, make_chat, make_strict_upstream):
    """A message answered at one replica and retried at another is stored once, whatever came between."""
    store = MemoryStore()

    async def scenario():
        async with (
            open_client(make_strict_upstream(), store) as first_replica,
            open_client(make_strict_upstream(), store) as second_replica,
        ):
            chat, fork = make_chat("anthropic"), make_chat("anthropic")
            key = await send_turns(chat, first_replica, 3)
            chat.add_user_text("again")
            await second_replica.post(chat.path, chat.body())
            await send_turns(fork, first_replica, 2)
            await first_replica.post(chat.path, chat.body())
            copies = [
                entry
                for entry in store.read_entries(key, "message")
                if entry.body.sized_message.message.text == "again"
            ]
            assert len(copies) == 1

    anyio.run(scenario)
