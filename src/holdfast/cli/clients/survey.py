"""Where the clients of this user are pointed, and whether anybody answers there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.clients.client_settings import OWN, pointers
from holdfast.cli.clients.temporary_files import place_of
from holdfast.config.addresses import is_base, is_local
from holdfast.config.providers import VARIABLES
from holdfast.proxy.http.headers import STATE, TOKEN
from holdfast.proxy.http.routes import route
from holdfast.state.codec.reading import decoder

State: TypeAlias = Literal["ok", "note", "wrong"]
PATIENCE = 2.0
"""[H] Seconds that a server of this machine may take to say that it is there; ours takes a few milliseconds."""
CLOSED = 401
"""What a server answers that wants a token."""
FARTHER = 10.0
"""[H] Seconds that a server elsewhere may take."""


class Answer(Struct, frozen=True):
    """What is at an address."""

    state: State
    text: str
    proxy: str = ""
    """The address of the proxy of ours that is there."""
    is_closed: bool = False
    """Whether that wants a token, and not the one that is known here."""
    wants_token: bool = False
    """Whether it was told one."""


class Pointed(Struct, frozen=True):
    """An address that clients use, and the variable, or the client and its file, that says so."""

    what: str
    url: str
    file: str = ""

    def check(self, token: str = "", *, online: bool) -> Answer:
        """Return what is at the address; a server of a client's list may be off, one that a variable names may not."""
        found = looked_at(self.url, token, online=online)
        where = f" in {self.file}" if self.file else ""
        state: State = "note" if self.file and found.state == "wrong" else found.state
        return Answer(state, f"{self.url}{where}: {found.text}", found.proxy)


def pointed(clients: Iterable[str] = OWN) -> Iterator[Pointed]:
    """Yield where variables and the settings of ``clients`` lead, each with what says so."""
    for name in VARIABLES:
        if os.environ.get(name):
            yield Pointed(name, os.environ[name])
    for client in clients:
        for one in pointers(client, place_of(client)):
            yield Pointed(f"{client}: {one.key}", one.url, one.where)


def led(client: str, upstreams: Mapping[str, str], token: str = "") -> tuple[str, Answer] | None:
    """Return what leads ``client``, or a proxy with ``upstreams``, to a proxy of ours that runs, and what that says.

    ``token`` is told to one that wants a token, and to nobody else.
    """
    every = [*pointed(clients=[client]), *(Pointed(f"upstream {name}", url) for name, url in upstreams.items())]
    for one in every:
        if is_base(one.url) and is_local(one.url) and (found := looked_at(one.url, token, online=False)).proxy:
            return one.what, found
    return None


def chained(upstreams: Mapping[str, str], token: str = "") -> dict[str, Answer]:
    """Return which of ``upstreams`` are proxies of ours that run on this machine, and what they say.

    What is sent on to one of them is recorded and reduced twice.
    """
    local = dict.fromkeys(url for url in upstreams.values() if is_base(url) and is_local(url))
    answers = {url: looked_at(url, token, online=False) for url in local}
    return {name: answers[url] for name, url in upstreams.items() if url in answers and answers[url].proxy}


def looked_at(url: str, token: str = "", *, online: bool) -> Answer:
    """Return what is at ``url``; an address beyond this machine is asked only if ``online``.

    A proxy of ours that wants a token is asked again with ``token``.
    """
    if not is_base(url):
        return Answer("wrong", "is no address; give one like http://127.0.0.1:8642")
    if not is_local(url):
        return _elsewhere(url) if online else Answer("ok", "not asked, it is beyond this machine; --online does")
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    told = _asked(f"{root}/livez", PATIENCE)
    wants_token = bool(token) and not isinstance(told, str) and told.is_closed
    if wants_token:
        told = _asked(f"{root}/livez", PATIENCE, {TOKEN.decode(): token})
    if isinstance(told, str):
        serve = f"holdfast serve --port {parts.port or 80}"
        return Answer("wrong", f"nobody answers ({told}); start what is to be there, or {serve}, or take it out")
    return replace(_local(told, root, was_told=wants_token), wants_token=wants_token)


def upstreams(addresses: Mapping[str, str]) -> Iterator[tuple[str, Answer]]:
    """Yield whether each of the servers at ``addresses`` can be reached, by what they are called."""
    for name, url in addresses.items():
        yield f"upstream {name}", looked_at(url, online=True)


def behind(every: Iterable[Pointed]) -> dict[str, str]:
    """Return the servers that addresses of a proxy name in their paths (``…/u/https://HOST``), each once."""
    named = {route("GET", urlsplit(one.url).path).base: one.what for one in reversed([*every]) if is_base(one.url)}
    return {what: base for base, what in named.items() if base}


class _Told(Struct, frozen=True):
    """What a server answered."""

    status: int
    body: bytes
    is_closed: bool = False
    """Whether it is a proxy of ours that wants a token, and another one than was told."""


class _Livez(Struct, frozen=True):
    """What a proxy of ours says of itself."""

    status: str
    mode: str
    since: str
    troubles: list[dict[str, object]] = []
    notes: list[str] = []


def _local(told: _Told, root: str, *, was_told: bool) -> Answer:
    """Return what a server of this machine is, which ``was_told`` a token or not."""
    if told.is_closed:
        but = ", and was told another" if was_told else ""
        state: State = "wrong" if was_told else "note"
        wants = f"a proxy of ours that wants its token{but}; set HOLDFAST_TOKEN to it"
        return Answer(state, wants, root, is_closed=True)
    try:
        own = decoder(_Livez).decode(told.body)
    except (msgspec.MsgspecError, UnicodeError):
        return Answer("ok", "a server answers there, and it is no proxy of ours")
    text = f"a proxy of ours, mode {own.mode}, since {own.since}"
    if own.status == "ok":
        return Answer("note", f"{text}: {own.notes[0]}", root) if own.notes else Answer("ok", text, root)
    why = "; ".join(f"{one.get('what')}: {one.get('why')}" for one in own.troubles[:1])
    return Answer("wrong", f"{text}, {own.status}: {why}; requests pass, and are not looked after", root)


def _elsewhere(url: str) -> Answer:
    told = _asked(url, FARTHER)
    if isinstance(told, str):
        return Answer("wrong", f"cannot be reached ({told}); check the address and the connection")
    return Answer("ok", f"answers, with {told.status} to a request without a key")


def _asked(url: str, seconds: float, headers: Mapping[str, str] = {}) -> _Told | str:
    """Return what is answered at ``url``, or why nothing is."""
    import httpx2

    try:
        found = httpx2.get(url, headers=headers, timeout=seconds, trust_env=not is_local(url))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return str(error) or type(error).__name__
    return _Told(found.status_code, found.content, found.status_code == CLOSED and STATE.decode() in found.headers)
