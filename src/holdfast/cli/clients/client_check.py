"""Where the clients of this user are pointed, and whether anybody answers there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.clients.client_settings import SETTINGS_READERS, find_configured_urls
from holdfast.cli.clients.temporary_files import load_client_environment
from holdfast.config.addresses import is_base_url, is_local_url
from holdfast.config.providers import ADDRESS_VARIABLES
from holdfast.proxy.http.headers import STATE_HEADER, TOKEN_HEADER
from holdfast.proxy.http.routes import parse_route
from holdfast.state.codec.reading import get_decoder

CheckState: TypeAlias = Literal["ok", "note", "wrong"]
LOCAL_TIMEOUT = 2.0
"""[H] Seconds that a server of this machine may take to say that it is there; ours takes a few milliseconds."""
TOKEN_REQUIRED = 401
"""What a server answers that wants a token."""
REMOTE_TIMEOUT = 10.0
"""[H] Seconds that a server elsewhere may take."""


class UrlCheck(Struct, frozen=True):
    """What is at an address."""

    state: CheckState
    text: str
    proxy: str = ""
    """The address of the proxy of ours that is there."""
    needs_other_token: bool = False
    """Whether that wants a token, and not the one that is known here."""
    was_sent_token: bool = False
    """Whether it was told one."""


class ClientUrl(Struct, frozen=True):
    """An address that clients use, and the variable, or the client and its file, that says so."""

    source: str
    url: str
    file: str = ""

    def check_url(self, token: str = "", *, online: bool) -> UrlCheck:
        """Return what is at the address; a server of a client's list may be off, one that a variable names may not."""
        answer = probe_url(self.url, token, online=online)
        where = f" in {self.file}" if self.file else ""
        state: CheckState = "note" if self.file and answer.state == "wrong" else answer.state
        return UrlCheck(state, f"{self.url}{where}: {answer.text}", answer.proxy)


def iter_client_urls(clients: Iterable[str] = SETTINGS_READERS) -> Iterator[ClientUrl]:
    """Yield where variables and the settings of ``clients`` lead, each with what says so."""
    for name in ADDRESS_VARIABLES:
        if os.environ.get(name):
            yield ClientUrl(name, os.environ[name])
    for client in clients:
        for configured_url in find_configured_urls(client, load_client_environment(client)):
            yield ClientUrl(f"{client}: {configured_url.key}", configured_url.url, configured_url.path)


def find_existing_proxy(client: str, upstreams: Mapping[str, str], token: str = "") -> tuple[str, UrlCheck] | None:
    """Return what leads ``client``, or a proxy with ``upstreams``, to a proxy of ours that runs, and what that says.

    ``token`` is told to one that wants a token, and to nobody else.
    """
    every = [
        *iter_client_urls(clients=[client]),
        *(ClientUrl(f"upstream {name}", url) for name, url in upstreams.items()),
    ]
    for client_url in every:
        if (
            is_base_url(client_url.url)
            and is_local_url(client_url.url)
            and (answer := probe_url(client_url.url, token, online=False)).proxy
        ):
            return client_url.source, answer
    return None


def find_chained_proxies(upstreams: Mapping[str, str], token: str = "") -> dict[str, UrlCheck]:
    """Return which of ``upstreams`` are proxies of ours that run on this machine, and what they say.

    What is sent on to one of them is recorded and reduced twice.
    """
    local = dict.fromkeys(url for url in upstreams.values() if is_base_url(url) and is_local_url(url))
    answers = {url: probe_url(url, token, online=False) for url in local}
    return {name: answers[url] for name, url in upstreams.items() if url in answers and answers[url].proxy}


def probe_url(url: str, token: str = "", *, online: bool) -> UrlCheck:
    """Return what is at ``url``; an address beyond this machine is asked only if ``online``.

    A proxy of ours that wants a token is asked again with ``token``.
    """
    if not is_base_url(url):
        return UrlCheck("wrong", "is no address; give one like http://127.0.0.1:8642")
    if not is_local_url(url):
        return _probe_remote(url) if online else UrlCheck("ok", "not asked, it is beyond this machine; --online does")
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    answer = _fetch_url(f"{root}/livez", LOCAL_TIMEOUT)
    wants_token = bool(token) and not isinstance(answer, str) and answer.is_closed
    if wants_token:
        answer = _fetch_url(f"{root}/livez", LOCAL_TIMEOUT, {TOKEN_HEADER.decode(): token})
    if isinstance(answer, str):
        serve = f"holdfast serve --port {parts.port or 80}"
        return UrlCheck("wrong", f"nobody answers ({answer}); start what is to be there, or {serve}, or take it out")
    return replace(_judge_local_server(answer, root, was_told=wants_token), was_sent_token=wants_token)


def check_upstreams(addresses: Mapping[str, str]) -> Iterator[tuple[str, UrlCheck]]:
    """Yield whether each of the servers at ``addresses`` can be reached, by what they are called."""
    for name, url in addresses.items():
        yield f"upstream {name}", probe_url(url, online=True)


def find_embedded_upstreams(client_urls: Iterable[ClientUrl]) -> dict[str, str]:
    """Return the servers that addresses of a proxy name in their paths (``…/u/https://HOST``), each once."""
    sources_by_base = {
        parse_route("GET", urlsplit(client_url.url).path).base: client_url.source
        for client_url in reversed([*client_urls])
        if is_base_url(client_url.url)
    }
    return {source: base for base, source in sources_by_base.items() if base}


class _HttpAnswer(Struct, frozen=True):
    """What a server answered."""

    status: int
    body: bytes
    is_closed: bool = False
    """Whether it is a proxy of ours that wants a token, and another one than was told."""


class _LivezBody(Struct, frozen=True):
    """What a proxy of ours says of itself."""

    status: str
    mode: str
    since: str
    troubles: list[dict[str, object]] = []
    notes: list[str] = []


def _judge_local_server(answer: _HttpAnswer, root: str, *, was_told: bool) -> UrlCheck:
    """Return what a server of this machine is, which ``was_told`` a token or not."""
    if answer.is_closed:
        but = ", and was told another" if was_told else ""
        state: CheckState = "wrong" if was_told else "note"
        wants = f"a proxy of ours that wants its token{but}; set HOLDFAST_TOKEN to it"
        return UrlCheck(state, wants, root, needs_other_token=True)
    try:
        own = get_decoder(_LivezBody).decode(answer.body)
    except (msgspec.MsgspecError, UnicodeError):
        return UrlCheck("ok", "a server answers there, and it is no proxy of ours")
    text = f"a proxy of ours, mode {own.mode}, since {own.since}"
    if own.status == "ok":
        return UrlCheck("note", f"{text}: {own.notes[0]}", root) if own.notes else UrlCheck("ok", text, root)
    why = "; ".join(f"{trouble.get('what')}: {trouble.get('why')}" for trouble in own.troubles[:1])
    return UrlCheck("wrong", f"{text}, {own.status}: {why}; requests pass, and are not looked after", root)


def _probe_remote(url: str) -> UrlCheck:
    answer = _fetch_url(url, REMOTE_TIMEOUT)
    if isinstance(answer, str):
        return UrlCheck("wrong", f"cannot be reached ({answer}); check the address and the connection")
    return UrlCheck("ok", f"answers, with {answer.status} to a request without a key")


def _fetch_url(url: str, seconds: float, headers: Mapping[str, str] = {}) -> _HttpAnswer | str:
    """Return what is answered at ``url``, or why nothing is."""
    import httpx2

    try:
        response = httpx2.get(url, headers=headers, timeout=seconds, trust_env=not is_local_url(url))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return str(error) or type(error).__name__
    return _HttpAnswer(
        response.status_code,
        response.content,
        response.status_code == TOKEN_REQUIRED and STATE_HEADER.decode() in response.headers,
    )
