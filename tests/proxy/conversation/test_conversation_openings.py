"""Conversations that begin alike, or with a system message that changes each turn: each is one short branch."""

from __future__ import annotations

import json

import anyio
import example_counts
import pytest

from holdfast.engine.log.journal import Journal
from holdfast.store.memory import MemoryStore

WORDS = "kelp on the rock, and the tide comes in. " * 110


def run(function):
    """Return what the coroutine function returns."""
    return anyio.run(function)


def make_clock_message(api, number, more=""):
    """Return a system message with a clock, so that it differs each time."""
    role = "developer" if api == "openai-responses" else "system"
    return {"role": role, "content": f"You read the tide. It is 12:00:{number:02}.{more}"}


async def run_turns_with_clock(client, chat, turns, more=lambda _: ""):
    """Run turns of a conversation whose leading system message shows the time."""
    chat.messages = chat.messages or [make_clock_message(chat.api, 0)]
    for number in turns:
        chat.messages[0] = make_clock_message(chat.api, number, more(number))
        reply = await chat.send_turn(client, f"Note {number}: {WORDS}")
        assert reply.status_code == 200, reply.text


@pytest.mark.uncounted
@pytest.mark.parametrize("more", ["", " Notes so far." + " kelp" * 400], ids=["clock", "grows and shrinks"])
@pytest.mark.parametrize("api", example_counts.mark_rest_long(["openai-chat", "openai-responses"], keep=1))
def test_changing_system_message_keeps_one_branch(api, more, open_client, make_chat, make_strict_upstream):
    """A leading system message belongs to the setup: a changing one keeps one branch, few extra compactions and the
    same bytes after restarts.
    """
    plain, changing, restarted = (
        make_strict_upstream(16_000),
        make_strict_upstream(16_000),
        make_strict_upstream(16_000),
    )
    store, again = MemoryStore(), MemoryStore()
    field = "input" if api == "openai-responses" else "messages"

    def get_suffix(number):
        return more * (number % 7 > 3)

    async def scenario():
        async with open_client(plain, window=16_000) as client:
            await run_turns_with_clock(client, make_chat(api), [0] * 30)
            usual = (await client.web.get("/stats")).json()["compactions"]["compacted"]
        async with open_client(changing, store, window=16_000) as client:
            await run_turns_with_clock(client, make_chat(api), range(30), get_suffix)
            with_clock = (await client.web.get("/stats")).json()["compactions"]["compacted"]
        chat = make_chat(api)
        for number in range(30):
            async with open_client(restarted, again, window=16_000) as client:
                await run_turns_with_clock(client, chat, [number], get_suffix)
        return usual, with_clock

    usual, with_clock = run(scenario)
    (session,) = store.list_sessions()
    assert len(store.read_tips(session.key)) == 1
    assert len(store.read_entries(session.key, "message")) == 61
    # One more, because a clock's message is a little larger than none; what grows and shrinks may cost another one.
    assert with_clock <= usual + (2 if more else 1)
    openings = [json.loads(body)[field][0] for body in changing.bodies]
    assert [dict(opening) for opening in openings] == [
        make_clock_message(api, number, get_suffix(number)) for number in range(30)
    ]
    assert restarted.bodies == changing.bodies


@pytest.mark.parametrize("place", [-1, None], ids=["before the newest", "after it"])
@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_system_message_near_the_end_costs_only_the_new_part(api, place, open_client, make_chat, make_strict_upstream):
    """A system message that moves with the newest message forks the conversation only at its end, and earlier decisions
    stay.
    """
    upstream, chat, store = make_strict_upstream(16_000), make_chat(api), MemoryStore()

    async def scenario():
        async with open_client(upstream, store, window=16_000) as client:
            for number in range(30):
                chat.add_user_text(f"Note {number}: {WORDS}")
                whole = list(chat.messages)
                chat.messages.insert(len(whole) if place is None else place, make_clock_message(api, number))
                reply = await client.post(chat.path, chat.body())
                assert reply.status_code == 200, reply.text
                chat.messages = whole
                chat.add_answer(reply.content)
            return (await client.web.get("/stats")).json()["compactions"]["compacted"]

    assert run(scenario) <= 6
    (session,) = store.list_sessions()
    assert len(store.read_entries(session.key, "message")) <= 5 * 30


def test_sibling_branches_do_not_accumulate_entries(open_client, make_chat, make_strict_upstream):
    """A branch at a common fork carries what was learned there once, not once for each sibling."""
    upstream, store = make_strict_upstream(), MemoryStore()

    async def scenario():
        async with open_client(upstream, store) as client:
            for number in range(12):
                chat = make_chat("openai-chat")
                chat.add_user_text("Is this kind?")
                chat.messages.append({"role": "assistant", "content": "Yes."})
                assert (await chat.send_turn(client, f"And this, number {number}?")).status_code == 200

    run(scenario)
    (session,) = store.list_sessions()
    lengths = [len(store.read_path(session.key, leaf.id)) for leaf in store.read_tips(session.key)]
    assert len(lengths) == 12
    assert lengths[-1] == lengths[1] <= lengths[0] + 1


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses"])
def test_each_branch_keeps_its_own_system_message(api, open_client, make_chat, make_strict_upstream):
    """Two conversations that begin alike keep their own system message, whatever another writer appends."""
    upstream, store, field = (
        make_strict_upstream(60_000),
        MemoryStore(),
        "input" if api == "openai-responses" else "messages",
    )
    chats = [make_chat(api), make_chat(api)]
    for chat, whose in zip(chats, "ab", strict=True):
        chat.messages = [{"role": "system", "content": f"You work for {whose}."}]

    async def scenario():
        async with open_client(upstream, store, window=60_000) as client:
            for chat in (*chats, *chats):
                assert (await chat.send_turn(client, WORDS)).status_code == 200
        async with open_client(upstream, store, window=60_000) as client:
            for _ in range(3):
                assert (await chats[1].send_turn(client, WORDS)).status_code == 200
                assert json.loads(upstream.bodies[-1])[field][0]["content"] == "You work for b."
                (session,) = store.list_sessions()
                Journal.open(store, session.key).record_failure("somebody else's")

    run(scenario)
