"""Find the addresses that the user's clients are pointed at, and check what answers there."""

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
"""Seconds to wait for a server on this machine. Chosen by judgement: our proxy answers in milliseconds, and startup
should not hang on a port that accepts connections and says nothing."""
TOKEN_REQUIRED = 401
"""The status of a server that requires a token."""
REMOTE_TIMEOUT = 10.0
"""Seconds to wait for a server elsewhere. Chosen by judgement: enough for a slow connection."""


class UrlCheck(Struct, frozen=True):
    """The result of checking an address."""

    state: CheckState
    text: str
    proxy: str = ""
    """The address of the Holdfast proxy found there, or an empty string."""
    needs_other_token: bool = False
    """Whether that proxy requires a token other than the one known here."""
    was_sent_token: bool = False
    """Whether the known token was sent to it."""
    since: str = ""
    """When that proxy was started, or an empty string."""


class ClientUrl(Struct, frozen=True):
    """An address that clients use, with the variable, or the client and file, that sets it."""

    source: str
    url: str
    file: str = ""

    def check_url(self, token: str = "", *, online: bool) -> UrlCheck:
        """Check the address. A server in a client's list may be off, which is a note; one in a variable must answer."""
        answer = probe_url(self.url, token, online=online)
        state: CheckState = answer.state
        if self.file and state == "wrong":
            state = "note"
        where = f" in {self.file}" if self.file else ""
        return UrlCheck(state, f"{self.url}{where}: {answer.text}", answer.proxy)


def iter_client_urls(clients: Iterable[str] = SETTINGS_READERS) -> Iterator[ClientUrl]:
    """Yield the addresses set by variables and by the settings of ``clients``, each with its source."""
    for name in ADDRESS_VARIABLES:
        if os.environ.get(name):
            yield ClientUrl(name, os.environ[name])
    for client in clients:
        for configured_url in find_configured_urls(client, load_client_environment(client)):
            yield ClientUrl(f"{client}: {configured_url.key}", configured_url.url, configured_url.path)


def find_existing_proxy(client: str, upstreams: Mapping[str, str], token: str = "") -> tuple[str, UrlCheck] | None:
    """Find a running Holdfast proxy that ``client``, or one of ``upstreams``, is already pointed at.

    Return its source and its check, or None. ``token`` is sent only to a proxy that requires one.
    """
    client_urls = list(iter_client_urls(clients=[client]))
    client_urls += [ClientUrl(f"upstream {name}", url) for name, url in upstreams.items()]
    for client_url in client_urls:
        # Only local addresses are probed: starting a client must send nothing to the network.
        if not (is_base_url(client_url.url) and is_local_url(client_url.url)):
            continue
        answer = probe_url(client_url.url, token, online=False)
        if answer.proxy:
            return client_url.source, answer
    return None


def find_chained_proxies(upstreams: Mapping[str, str], token: str = "") -> dict[str, UrlCheck]:
    """Return those of ``upstreams`` that are Holdfast proxies running on this machine, with their checks.

    A request sent on to one of them would be recorded and reduced twice.
    """
    answers_by_url: dict[str, UrlCheck] = {}
    chained_proxies = {}
    for name, url in upstreams.items():
        if not (is_base_url(url) and is_local_url(url)):
            continue
        # Several providers may share one address, which is asked once.
        if url not in answers_by_url:
            answers_by_url[url] = probe_url(url, token, online=False)
        if answers_by_url[url].proxy:
            chained_proxies[name] = answers_by_url[url]
    return chained_proxies


def probe_url(url: str, token: str = "", *, online: bool) -> UrlCheck:
    """Check which server answers at ``url``; addresses beyond this machine are contacted only if ``online``.

    A Holdfast proxy that requires a token is asked again with ``token``.
    """
    if not is_base_url(url):
        return UrlCheck("wrong", "is not an address; give one like http://127.0.0.1:8642")
    if not is_local_url(url):
        if online:
            return _probe_remote(url)
        return UrlCheck("ok", "not on this machine, so not checked; --online checks it")
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    answer = fetch_url(f"{root}/livez", LOCAL_TIMEOUT)
    # The token goes only to a server that has already identified itself as a Holdfast proxy.
    wants_token = bool(token) and not isinstance(answer, str) and answer.is_closed
    if wants_token:
        answer = fetch_url(f"{root}/livez", LOCAL_TIMEOUT, {TOKEN_HEADER.decode(): token})
    if isinstance(answer, str):
        serve = f"holdfast serve --port {parts.port or 80}"
        return UrlCheck("wrong", f"no server answers ({answer}); start it, or {serve}, or remove this address")
    return replace(_judge_local_server(answer, root, was_told=wants_token), was_sent_token=wants_token)


def check_upstreams(addresses: Mapping[str, str]) -> Iterator[tuple[str, UrlCheck]]:
    """Check whether each server in ``addresses`` can be reached, and yield its name with the result."""
    for name, url in addresses.items():
        yield f"upstream {name}", probe_url(url, online=True)


def find_embedded_upstreams(client_urls: Iterable[ClientUrl]) -> dict[str, str]:
    """Return the servers named in the paths of proxy addresses (``…/u/https://HOST``), each once, by their sources."""
    sources_by_base = {}
    # In reverse, so that an upstream with several sources is named by its first one.
    for client_url in reversed([*client_urls]):
        if is_base_url(client_url.url):
            route = parse_route("GET", urlsplit(client_url.url).path)
            sources_by_base[route.base] = client_url.source
    return {source: base for base, source in sources_by_base.items() if base}


class HttpAnswer(Struct, frozen=True):
    """What a server answered."""

    status: int
    body: bytes
    is_closed: bool = False
    """Whether it is a Holdfast proxy that refused the request for lack of the right token."""


class _LivezBody(Struct, frozen=True):
    """The status that a Holdfast proxy reports about itself."""

    status: str
    mode: str
    since: str
    troubles: list[dict[str, object]] = []
    notes: list[str] = []


def _judge_local_server(answer: HttpAnswer, root: str, *, was_told: bool) -> UrlCheck:
    """Interpret the answer of a server on this machine; ``was_told`` says whether a token was sent."""
    if answer.is_closed and was_told:
        text = "a Holdfast proxy that requires its token, and got a different one; set HOLDFAST_TOKEN to it"
        return UrlCheck("wrong", text, root, needs_other_token=True)
    if answer.is_closed:
        text = "a Holdfast proxy that requires its token; set HOLDFAST_TOKEN to it"
        return UrlCheck("note", text, root, needs_other_token=True)
    try:
        livez = get_decoder(_LivezBody).decode(answer.body)
    except (msgspec.MsgspecError, UnicodeError):
        return UrlCheck("ok", "a server answers; it is not a Holdfast proxy")
    text = f"a Holdfast proxy, mode {livez.mode}, since {livez.since}"
    if livez.status != "ok":
        # The first trouble is enough for one line; the proxy's own page lists all of them.
        why = "; ".join(f"{trouble.get('what')}: {trouble.get('why')}" for trouble in livez.troubles[:1])
        return UrlCheck(
            "wrong", f"{text}, {livez.status}: {why}; requests pass through unmanaged", root, since=livez.since
        )
    if livez.notes:
        return UrlCheck("note", f"{text}: {livez.notes[0]}", root, since=livez.since)
    return UrlCheck("ok", text, root, since=livez.since)


def _probe_remote(url: str) -> UrlCheck:
    answer = fetch_url(url, REMOTE_TIMEOUT)
    if isinstance(answer, str):
        return UrlCheck("wrong", f"cannot be reached ({answer}); check the address and the connection")
    return UrlCheck("ok", f"answers, with {answer.status} to a request without a key")


def fetch_url(url: str, seconds: float, headers: Mapping[str, str] = {}) -> HttpAnswer | str:
    """Fetch ``url`` and return the answer, or the error in words."""
    import httpx2

    try:
        # A network proxy from the environment cannot reach this machine's loopback address.
        response = httpx2.get(url, headers=headers, timeout=seconds, trust_env=not is_local_url(url))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return str(error) or type(error).__name__
    # Any server may answer 401; only a Holdfast proxy sends its state header with it.
    is_closed = response.status_code == TOKEN_REQUIRED and STATE_HEADER.decode() in response.headers
    return HttpAnswer(response.status_code, response.content, is_closed)
