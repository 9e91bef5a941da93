"""The store's file is removed or replaced while the proxy runs."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack, suppress

import anyio
import httpx2
import pytest
import socket_proxy

from holdfast.config import load_configuration
from holdfast.errors import StoreReadOnly, StoreReplaced
from holdfast.proxy import app
from holdfast.proxy.server import configure_proxy
from holdfast.proxy.settings import Settings
from holdfast.state.entries import MessageEntry
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store

STATE, SESSION = "x-holdfast-state", "x-holdfast-session"
ANSWER = socket_proxy.ANSWER
TEXTS = ("Where does kelp grow?", ANSWER, "And where does it not?")
ENDINGS = {
    "the file alone": ("",),
    "all its files": ("", "-wal", "-shm"),
    "the folder": None,
    "what is not folded in": ("-wal",),
    "that and its index": ("-wal", "-shm"),
}


@pytest.fixture
def proxy():
    """A proxy on a store of its own."""
    with socket_proxy.run_proxy() as proxy:
        yield proxy


def remove_store_files(proxy, endings):
    """Remove the store's files with these endings, or its whole folder if ``endings`` is None."""
    if endings is None:
        shutil.rmtree(proxy.store.parent)
        proxy.store.parent.mkdir()  # the fixture removes it at the end
        return
    for ending in endings:
        with suppress(FileNotFoundError):
            proxy.store.with_name(proxy.store.name + ending).unlink()


def encode_request(texts, name="one", api="anthropic", *, stream=False):
    """Build the bytes of a request of a session."""
    path = (socket_proxy.STREAM_PATHS if stream else socket_proxy.PATHS)[api]
    return socket_proxy.build_request(
        path, socket_proxy.build_body(api, *texts, stream=stream), **{SESSION.replace("-", "_"): name}
    )


def read_logged_texts(proxy):
    """Return the texts of each session in the store."""
    return {
        key: [entry.body.sized_message.message.text for entry in entries if isinstance(entry.body, MessageEntry)]
        for key, entries in proxy.sessions().items()
    }


class FullStore(MemoryStore):
    """A store on a full disk."""

    def append_entries(self, *_: object, **__: object):
        """Raise."""
        raise StoreReadOnly("the disk is full")


def test_proxy_reopens_a_failed_store_after_an_interval(
    open_client, make_chat, make_strict_upstream, monkeypatch, capfd
):
    """A failed store is tried again after an interval, not with every request; until then nothing is recorded."""
    upstream, chat, opened = make_strict_upstream(), make_chat("anthropic"), [MemoryStore(), FullStore()]

    async def scenario():
        states = []
        async with open_client(upstream, FullStore(), reopen=opened.pop) as client:
            for number in range(6):
                monkeypatch.setattr(app, "REOPEN_INTERVAL", 0.0 if number == 4 else 60.0)
                states.append((await chat.send_turn(client, f"Note {number}.")).headers[STATE])
        return states

    store = opened[0]
    assert anyio.run(scenario) == ["unrecorded"] * 4 + ["managed"] * 2
    [info] = store.list_sessions()
    assert [text for text in map(str, store.read_entries(info.key)) if "Note 0." in text]
    assert (
        capfd.readouterr().err == "holdfast: requests are answered, but not recorded: StoreReadOnly: the disk is full\n"
    )


def test_proxy_keeps_the_old_store_until_a_reopen_succeeds(open_client, make_chat, make_strict_upstream, monkeypatch):
    """While reopening fails requests continue unrecorded, and the next interval tries again."""
    monkeypatch.setattr(app, "REOPEN_INTERVAL", 0.0)
    chat, later = make_chat("anthropic"), [MemoryStore(), OSError(5, "disk"), StoreReadOnly("no room")]

    def reopen():
        if isinstance(later[-1], Exception):
            raise later.pop()
        return later[-1]

    async def scenario():
        async with open_client(make_strict_upstream(), FullStore(), reopen=reopen) as client:
            return [(await chat.send_turn(client, f"Note {number}.")).headers[STATE] for number in range(4)]

    assert anyio.run(scenario) == ["unrecorded"] * 2 + ["managed"] * 2


class VanishingStore(MemoryStore):
    """A store whose file is gone at every write."""

    def append_entries(self, *_: object, **__: object):
        """Raise."""
        raise StoreReplaced("it was taken away")


def test_proxy_reopens_a_vanishing_store_a_bounded_number_of_times(open_client, make_chat, make_strict_upstream):
    """A request reopens a vanishing store a few times and then continues unrecorded."""
    opened = []

    def reopen():
        opened.append(VanishingStore())
        return opened[-1]

    async def scenario():
        async with open_client(make_strict_upstream(), VanishingStore(), reopen=reopen) as client:
            return (await make_chat("anthropic").send_turn(client, "Is the tide high?")).headers[STATE]

    assert anyio.run(scenario) == "unrecorded"
    assert len(opened) <= 1 + app.MAX_REQUEST_RETRIES


def test_client_leaving_during_a_reopen_keeps_the_session_recorded(open_client, make_chat, make_strict_upstream):
    """The store is replaced in one step, so the next request of the session is recorded."""
    upstream, chat = make_strict_upstream(), make_chat("anthropic")

    def reopen():
        time.sleep(0.2)
        return MemoryStore()

    async def scenario():
        async with open_client(upstream, FullStore(), reopen=reopen) as client:
            with anyio.move_on_after(0.1):
                await chat.send_turn(client, "Is the tide high?")
            await anyio.sleep(0.3)
            return (await client.post(chat.path, chat.body())).headers[STATE]

    assert anyio.run(scenario) == "managed"


@pytest.mark.parametrize("what", ENDINGS)
def test_proxy_records_into_a_new_store_after_the_file_is_removed(what, proxy, capfd):
    """The next request is served and recorded whole in a new store, which is reported once, and the proxy is
    healthy.
    """
    requests = [(TEXTS[:1], "one"), (TEXTS, "one"), (TEXTS[:1], "another")]
    first = proxy.send(encode_request(*requests[0]))
    remove_store_files(proxy, ENDINGS[what])
    replies = [proxy.send(encode_request(*request)) for request in requests[1:]]
    assert [reply.headers[STATE] for reply in (first, *replies)] == ["managed"] * 3
    assert [request.body for request in proxy.upstream.requests] == [
        socket_proxy.build_body("anthropic", *texts) for texts, _ in requests
    ]
    assert [read_logged_texts(proxy)[reply.headers[SESSION]] for reply in replies] == [
        [*TEXTS, ANSWER],
        [TEXTS[0], ANSWER],
    ]
    livez = proxy.send(socket_proxy.build_request("/livez", method="GET")).json
    assert (livez["status"], [trouble["times"] for trouble in livez["troubles"]]) == ("ok", [1])
    assert capfd.readouterr().err.count("the file of the store was replaced") == 1


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", socket_proxy.PATHS)
def test_answer_during_a_removal_is_recorded_with_the_next_request(api, stream, is_first, proxy):
    """The client brings the unrecorded answer along, so it is in the new log with the next message."""
    if not is_first:
        proxy.send(encode_request(TEXTS[:1], api=api))

    async def respond(connection, response):
        remove_store_files(proxy, ("", "-wal", "-shm"))
        await socket_proxy.send_response(connection, response)

    proxy.upstream.respond, usual = respond, proxy.upstream.respond
    reply = proxy.send(encode_request(TEXTS, api=api, stream=stream))
    assert (reply.status, reply.complete) == (200, True)
    assert proxy.stats()["requests"]["all"]["unrecorded"] == 1
    proxy.upstream.respond, texts = usual, (*TEXTS, ANSWER, "Why?")
    reply = proxy.send(encode_request(texts, api=api, stream=stream))
    assert read_logged_texts(proxy) == {reply.headers[SESSION]: [*texts, ANSWER]}


def test_concurrent_sessions_survive_a_removed_store(proxy):
    """The store is reopened once, no session loses a message, and no request is sent twice."""
    names = [f"s{number}" for number in range(8)]
    for name in names:
        proxy.send(encode_request(TEXTS[:1], name))
    proxy.upstream.requests.clear()
    remove_store_files(proxy, ("", "-wal", "-shm"))

    async def scenario():
        replies = {}

        async def ask(name):
            replies[name] = await proxy.send_pieces(encode_request(TEXTS, name))

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
        return replies

    replies = proxy.call(scenario)
    assert {reply.headers[STATE] for reply in replies.values()} == {"managed"}
    assert sorted(read_logged_texts(proxy).values()) == [[*TEXTS, ANSWER]] * len(names)
    assert len(proxy.upstream.requests) == len(names)


def test_proxy_continues_sessions_of_a_replaced_file(proxy):
    """A session that the new file already has continues there, as after a restart."""
    first = proxy.send(encode_request(TEXTS[:1]))
    copy = proxy.store.with_name("copy.db")
    with open_store(proxy.store) as store, open_store(copy) as other:
        other.import_entries(first.headers[SESSION], store.read_entries(first.headers[SESSION]))
    remove_store_files(proxy, ("", "-wal", "-shm"))
    copy.rename(proxy.store)
    proxy.send(encode_request(TEXTS))
    assert read_logged_texts(proxy) == {first.headers[SESSION]: [TEXTS[0], ANSWER, TEXTS[2], ANSWER]}


class FileRemovingUpstream(httpx2.AsyncBaseTransport):
    """A provider during whose first answer the store's file is removed and the settings are reloaded."""

    def __init__(self, upstream, place, app) -> None:
        self._upstream, self._inner, self._place, self._app = upstream, upstream.inner, place, app

    async def handle_async_request(self, request):
        """Answer."""
        self._place.unlink()
        configure_proxy(self._app, Settings(anthropic="http://up"), load_configuration())
        self._upstream.inner = self._inner
        return await self._inner.handle_async_request(request)


def test_settings_reload_during_a_removal_loses_nothing(open_client, make_chat, make_strict_upstream, tmp_path):
    """Requests begun under the old and the new settings are both whole in the new store."""
    upstream, chat, place = make_strict_upstream(), make_chat("anthropic"), tmp_path / "store.db"

    async def scenario():
        with ExitStack() as stores:

            def opened():
                return stores.enter_context(open_store(place))

            async with open_client(upstream, opened(), reopen=opened) as client:
                first = await chat.send_turn(client, TEXTS[0])
                upstream.inner = FileRemovingUpstream(upstream, place, client.web._transport.app)
                return [first, *[await chat.send_turn(client, text) for text in TEXTS[1:]]]

    replies = anyio.run(scenario)
    assert [reply.headers[STATE] for reply in replies] == ["managed"] * len(TEXTS)
    with open_store(place) as store:
        (info,) = store.list_sessions()
        messages = [entry for entry in store.read_path(info.key, info.leaf_id) if isinstance(entry.body, MessageEntry)]
    assert len(messages) == 2 * len(TEXTS)
