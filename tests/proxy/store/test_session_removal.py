"""A session is removed from the store (``holdfast rm``) while its client continues it."""

from __future__ import annotations

import anyio
import pytest

from holdfast.state.entries import MessageEntry
from holdfast.store.open_store import open_store
from holdfast.testing.provider.client import STRICTEST_MODELS

APIS = list(STRICTEST_MODELS)
STATE, SESSION = "x-holdfast-state", "x-holdfast-session"
WORDS = "kelp on the rock, and the tide comes in. " * 110
WINDOW = 16_000


def remove_session(path, key):
    """Remove a session as another process does."""
    with open_store(path) as store:
        store.remove_session(key)


def read_messages(path, key):
    """Return the messages of a session's active branch."""
    with open_store(path, readonly=True) as store:
        info = store.get_session(key)
        return [
            entry.body.sized_message.message
            for entry in store.read_path(key, info.leaf_id)
            if isinstance(entry.body, MessageEntry)
        ]


@pytest.mark.parametrize("api", APIS)
def test_removed_session_starts_anew_with_the_next_request(
    api, open_client, make_chat, make_strict_upstream, tmp_path, capfd
):
    """The next request is made to fit and recorded whole as if it were the first, and its client notices nothing."""
    upstream, chat, path = make_strict_upstream(WINDOW), make_chat(api), tmp_path / "store.db"

    async def scenario():
        with open_store(path) as store:
            async with open_client(upstream, store, window=WINDOW) as client:
                for number in range(16):
                    reply = await chat.send_turn(client, f"Note {number}: {WORDS}")
                remove_session(path, reply.headers[SESSION])
                return await chat.send_turn(client, "And now?"), (await client.web.get("/livez")).json()

    reply, livez = anyio.run(scenario)
    assert (reply.status_code, reply.headers[STATE]) == (200, "managed"), reply.text
    assert (livez["status"], livez["troubles"]) == ("ok", [])
    assert capfd.readouterr().err == ""
    users = [message.text for message in read_messages(path, reply.headers[SESSION]) if message.role == "user"]
    assert users == [*(f"Note {number}: {WORDS}" for number in range(16)), "And now?"]


def test_branches_of_a_removed_session_join_the_new_one(open_client, make_chat, make_strict_upstream, tmp_path):
    """Two conversations with the same first message share a session, so what one starts anew the other joins."""
    upstream, path = make_strict_upstream(WINDOW), tmp_path / "store.db"
    chats = [make_chat("anthropic"), make_chat("anthropic")]

    async def scenario():
        with open_store(path) as store:
            async with open_client(upstream, store, window=WINDOW) as client:
                for number in range(14):
                    for name, chat in zip(("A", "B"), chats, strict=True):
                        reply = await chat.send_turn(client, f"Note {number} of {name if number else 'both'}: {WORDS}")
                remove_session(path, reply.headers[SESSION])
                return [await chat.send_turn(client, "And now?") for _ in range(2) for chat in chats]

    replies = anyio.run(scenario)
    assert [(reply.status_code, reply.headers[STATE]) for reply in replies] == [(200, "managed")] * 4
    assert len({reply.headers[SESSION] for reply in replies}) == 1


def test_session_removed_during_an_answer_is_restored_by_the_client(
    open_client, make_chat, make_strict_upstream, tmp_path
):
    """The client brings the answer along with its next request, so nothing is lost."""
    upstream, chat, path = make_strict_upstream(WINDOW), make_chat("anthropic"), tmp_path / "store.db"
    inner, keys = upstream.inner, []

    class Removing:
        """A provider that answers when the session is gone."""

        async def handle_async_request(self, request):
            remove_session(path, keys[-1])
            return await inner.handle_async_request(request)

    async def scenario():
        with open_store(path) as store:
            async with open_client(upstream, store) as client:
                first = await chat.send_turn(client, "One.")
                keys.append(first.headers[SESSION])
                upstream.inner = Removing()
                midway = await chat.send_turn(client, "Two.")
                upstream.inner = inner
                return first, midway, await chat.send_turn(client, "Three.")

    replies = anyio.run(scenario)
    assert [reply.status_code for reply in replies] == [200] * 3
    assert replies[-1].headers[STATE] == "managed"
    assert [
        message.text for message in read_messages(path, replies[-1].headers[SESSION]) if message.role == "user"
    ] == [
        "One.",
        "Two.",
        "Three.",
    ]
