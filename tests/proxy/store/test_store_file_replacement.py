"""The file of the store is taken away, or another one put there, while the proxy runs."""

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
SAID = ("Where does kelp grow?", ANSWER, "And where does it not?")
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
    with socket_proxy.proxied() as proxy:
        yield proxy


def take_away(proxy, endings):
    """Take the files away that the store has under these endings; without any, the whole folder."""
    if endings is None:
        shutil.rmtree(proxy.store.parent)
        proxy.store.parent.mkdir()  # the test takes it away at its end
        return
    for ending in endings:
        with suppress(FileNotFoundError):
            proxy.store.with_name(proxy.store.name + ending).unlink()


def asked(said, name="one", api="anthropic", *, stream=False):
    """Return the bytes of a request of a session."""
    path = (socket_proxy.STREAMED if stream else socket_proxy.PATHS)[api]
    return socket_proxy.request(path, socket_proxy.body(api, *said, stream=stream), **{SESSION.replace("-", "_"): name})


def logged(proxy):
    """Return what was said in each session of the store that there is."""
    return {
        key: [entry.body.sized_message.message.text for entry in entries if isinstance(entry.body, MessageEntry)]
        for key, entries in proxy.sessions().items()
    }


class Full(MemoryStore):
    """A store on a full disk."""

    def append_entries(self, *_: object, **__: object):
        """Refuse to."""
        raise StoreReadOnly("the disk is full")


def test_proxy_reopens_a_failed_store_after_an_interval(proxied, strict, monkeypatch, capfd):
    """A failed store is tried again after an interval, not with every request; until then nothing is recorded."""
    through, _, talking = proxied
    upstream, talk, opened = strict(), talking("anthropic"), [MemoryStore(), Full()]

    async def go():
        states = []
        async with through(upstream, Full(), reopen=opened.pop) as client:
            for number in range(6):
                monkeypatch.setattr(app, "REOPEN_INTERVAL", 0.0 if number == 4 else 60.0)
                states.append((await talk.turn(client, f"Note {number}.")).headers[STATE])
        return states

    store = opened[0]
    assert anyio.run(go) == ["unrecorded"] * 4 + ["managed"] * 2
    [info] = store.list_sessions()
    assert [text for text in map(str, store.read_entries(info.key)) if "Note 0." in text]
    assert capfd.readouterr().err == "holdfast: requests go on, but are not recorded: StoreReadOnly: the disk is full\n"


def test_proxy_keeps_the_old_store_until_a_reopen_succeeds(proxied, strict, monkeypatch):
    """While reopening fails requests continue unrecorded, and the next interval tries again."""
    through, _, talking = proxied
    monkeypatch.setattr(app, "REOPEN_INTERVAL", 0.0)
    talk, later = talking("anthropic"), [MemoryStore(), OSError(5, "disk"), StoreReadOnly("no room")]

    def reopened():
        if isinstance(later[-1], Exception):
            raise later.pop()
        return later[-1]

    async def go():
        async with through(strict(), Full(), reopen=reopened) as client:
            return [(await talk.turn(client, f"Note {number}.")).headers[STATE] for number in range(4)]

    assert anyio.run(go) == ["unrecorded"] * 2 + ["managed"] * 2


class Gone(MemoryStore):
    """A store that is taken away whenever it is written to."""

    def append_entries(self, *_: object, **__: object):
        """Refuse to."""
        raise StoreReplaced("it was taken away")


def test_proxy_reopens_a_vanishing_store_a_bounded_number_of_times(proxied, strict):
    """A request reopens a vanishing store a few times and then continues unrecorded."""
    through, _, talking = proxied
    opened = []

    def reopened():
        opened.append(Gone())
        return opened[-1]

    async def go():
        async with through(strict(), Gone(), reopen=reopened) as client:
            return (await talking("anthropic").turn(client, "Is the tide high?")).headers[STATE]

    assert anyio.run(go) == "unrecorded"
    assert len(opened) <= 1 + app.MAX_REQUEST_RETRIES


def test_client_leaving_during_a_reopen_keeps_the_session_recorded(proxied, strict):
    """The store is replaced in one step, so the next request of the session is recorded."""
    through, _, talking = proxied
    upstream, talk = strict(), talking("anthropic")

    def reopened():
        time.sleep(0.2)
        return MemoryStore()

    async def go():
        async with through(upstream, Full(), reopen=reopened) as client:
            with anyio.move_on_after(0.1):
                await talk.turn(client, "Is the tide high?")
            await anyio.sleep(0.3)
            return (await client.post(talk.path, talk.body())).headers[STATE]

    assert anyio.run(go) == "managed"


@pytest.mark.parametrize("what", ENDINGS)
def test_proxy_records_into_a_new_store_after_the_file_is_removed(what, proxy, capfd):
    """The next request is served and recorded whole in a new store, which is reported once, and the proxy is
    healthy.
    """
    asking = [(SAID[:1], "one"), (SAID, "one"), (SAID[:1], "another")]
    first = proxy.send(asked(*asking[0]))
    take_away(proxy, ENDINGS[what])
    replies = [proxy.send(asked(*one)) for one in asking[1:]]
    assert [reply.headers[STATE] for reply in (first, *replies)] == ["managed"] * 3
    assert [heard.body for heard in proxy.upstream.heard] == [
        socket_proxy.body("anthropic", *said) for said, _ in asking
    ]
    assert [logged(proxy)[reply.headers[SESSION]] for reply in replies] == [[*SAID, ANSWER], [SAID[0], ANSWER]]
    livez = proxy.send(socket_proxy.request("/livez", method="GET")).json
    assert (livez["status"], [one["times"] for one in livez["troubles"]]) == ("ok", [1])
    assert capfd.readouterr().err.count("opened anew") == 1


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", socket_proxy.PATHS)
def test_answer_during_a_removal_is_recorded_with_the_next_request(api, stream, is_first, proxy):
    """The client brings the unrecorded answer along, so it is in the new log with the next message."""
    if not is_first:
        proxy.send(asked(SAID[:1], api=api))

    async def play(line, told):
        take_away(proxy, ("", "-wal", "-shm"))
        await socket_proxy.well(line, told)

    proxy.upstream.play, usual = play, proxy.upstream.play
    reply = proxy.send(asked(SAID, api=api, stream=stream))
    assert (reply.status, reply.complete) == (200, True)
    assert proxy.stats()["requests"]["all"]["unrecorded"] == 1
    proxy.upstream.play, said = usual, (*SAID, ANSWER, "Why?")
    reply = proxy.send(asked(said, api=api, stream=stream))
    assert logged(proxy) == {reply.headers[SESSION]: [*said, ANSWER]}


def test_concurrent_sessions_survive_a_removed_store(proxy):
    """The store is reopened once, no session loses a message, and no request is sent twice."""
    names = [f"s{number}" for number in range(8)]
    for name in names:
        proxy.send(asked(SAID[:1], name))
    proxy.upstream.heard.clear()
    take_away(proxy, ("", "-wal", "-shm"))

    async def go():
        replies = {}

        async def ask(name):
            replies[name] = await proxy.sent(asked(SAID, name))

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
        return replies

    replies = proxy.call(go)
    assert {reply.headers[STATE] for reply in replies.values()} == {"managed"}
    assert sorted(logged(proxy).values()) == [[*SAID, ANSWER]] * len(names)
    assert len(proxy.upstream.heard) == len(names)


def test_proxy_continues_sessions_of_a_replaced_file(proxy):
    """A session that the new file already has continues there, as after a restart."""
    first = proxy.send(asked(SAID[:1]))
    copy = proxy.store.with_name("copy.db")
    with open_store(proxy.store) as store, open_store(copy) as other:
        other.import_entries(first.headers[SESSION], store.read_entries(first.headers[SESSION]))
    take_away(proxy, ("", "-wal", "-shm"))
    copy.rename(proxy.store)
    proxy.send(asked(SAID))
    assert logged(proxy) == {first.headers[SESSION]: [SAID[0], ANSWER, SAID[2], ANSWER]}


class Taking(httpx2.AsyncBaseTransport):
    """A provider; while it answers for the first time the store's file goes away, and the settings are read again."""

    def __init__(self, upstream, place, app) -> None:
        self._upstream, self._inner, self._place, self._app = upstream, upstream.inner, place, app

    async def handle_async_request(self, request):
        """Answer."""
        self._place.unlink()
        configure_proxy(self._app, Settings(anthropic="http://up"), load_configuration())
        self._upstream.inner = self._inner
        return await self._inner.handle_async_request(request)


def test_settings_reload_during_a_removal_loses_nothing(proxied, strict, tmp_path):
    """Requests begun under the old and the new settings are both whole in the new store."""
    through, _, talking = proxied
    upstream, talk, place = strict(), talking("anthropic"), tmp_path / "store.db"

    async def go():
        with ExitStack() as stores:

            def opened():
                return stores.enter_context(open_store(place))

            async with through(upstream, opened(), reopen=opened) as client:
                first = await talk.turn(client, SAID[0])
                upstream.inner = Taking(upstream, place, client.web._transport.app)
                return [first, *[await talk.turn(client, text) for text in SAID[1:]]]

    replies = anyio.run(go)
    assert [reply.headers[STATE] for reply in replies] == ["managed"] * len(SAID)
    with open_store(place) as store:
        (info,) = store.list_sessions()
        said = [entry for entry in store.read_path(info.key, info.leaf_id) if isinstance(entry.body, MessageEntry)]
    assert len(said) == 2 * len(SAID)
