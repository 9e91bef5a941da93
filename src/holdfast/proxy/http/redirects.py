"""Where a provider sends a client on to: by way of the proxy, where it is to ask the same provider again.

A client takes a place without a host for one of the proxy that it asked: that would ask somebody else there, with a key
that is not meant for them. And a whole address leads past the proxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from holdfast.proxy.http.headers import Pair

_LOCATION = b"location"
_PORTS = {"http": 80, "https": 443}


def led_through(status: int, headers: Sequence[Pair], url: str) -> Sequence[Pair]:
    """Return the ``headers`` of what ``url`` answers; one that sends on to the same server names it in our own way.

    To another server, or from TLS to none, a client sends no key by itself: such a place stays as it is.
    """
    if not 300 <= status < 400:
        return headers
    return [(name, _led(value, url) if name.lower() == _LOCATION else value) for name, value in headers]


def _led(place: bytes, url: str) -> bytes:
    try:
        whole = urljoin(url, place.decode("ascii")).partition("#")[0]
        here, there = _server(url), _server(whole)
    except ValueError:
        return place
    is_upgrade = (here, there) == (("http", here.host, 80), ("https", here.host, 443))
    return f"/u/{whole}".encode() if here == there or is_upgrade else place


class _Server(NamedTuple):
    scheme: str
    host: str
    port: int


def _server(url: str) -> _Server:
    """Return who is asked by ``url``; ``ValueError`` where that is nobody, or somebody is named as who asks."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError(url)
    return _Server(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme])
