"""Check who may use the proxy: programs, but no web pages.

A web page can make its own name resolve to this machine (DNS rebinding) and then reach the proxy from a browser. On
loopback the ``Host`` header gives it away, because the browser still sends the page's name. Beyond loopback the names
of this machine are not known; there a token is required, which no page has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hmac import compare_digest
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.config.addresses import is_loopback_host
from holdfast.proxy.http.headers import TOKEN_HEADER

_HOST_PATTERN = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]?#\\]+)(?::\d{0,5})?")
"""A host and optionally a port. Any port is fine: another one may be forwarded to ours."""
_TOKEN_HEADER = TOKEN_HEADER.decode()


class AccessRefusal(NamedTuple):
    """Why a request is refused: the kind of error, the text, and the HTTP status."""

    kind: str
    reason: str
    status: int = 0
    """0 for the status that the API uses for this kind."""


def check_access(headers: Mapping[str, str], bind_host: str, token: str) -> AccessRefusal | None:
    """Return why a request with ``headers`` (names in lower case) is refused, or None if it is allowed.

    ``bind_host`` is the host that the server listens at, ``token`` the token that its clients must send, if any.
    """
    why = explain_foreign_request(headers.get("host"), headers.get("origin"), bind_host)
    if why:
        return AccessRefusal("invalid_request", why, 403)
    fetch_site = headers.get("sec-fetch-site")
    # Browsers set these headers themselves, and no page can change them.
    is_browser_page = headers.get("sec-fetch-mode") == "navigate" or fetch_site in {"cross-site", "same-site"}
    if is_browser_page:
        return AccessRefusal(
            "invalid_request",
            "web pages may not use this proxy; send the request from a program",
            403,
        )
    if not is_token_valid(headers.get(_TOKEN_HEADER), token):
        return AccessRefusal("auth", f"this proxy requires a token; send it in the header {_TOKEN_HEADER}", 401)
    return None


def explain_foreign_request(host: str | None, origin: str | None, bind_host: str) -> str:
    """Return why a request does not come from a program on this machine, or ``""`` if it may.

    ``host`` and ``origin`` are headers or None: programs send no origin, and HTTP/1.0 requires no host. ``bind_host``
    is the host that the server listens at.
    """
    if origin is not None and not is_loopback_host(_parse_origin_host(origin)):
        return f"the web page {origin[:100]!r} may not use this proxy; send the request from a program"
    if host and is_loopback_host(bind_host) and not is_loopback_host(_parse_host_name(host)):
        return f"host {host[:100]!r} is not this machine; use the address that the proxy printed when it started"
    return ""


def is_token_valid(received_token: str | None, token: str) -> bool:
    """Return whether the token of a request is the required one, in constant time; True if none is required."""
    if not token:
        return True
    return compare_digest((received_token or "").encode("utf-8", "replace"), token.encode())


def _parse_host_name(host: str) -> str:
    match = _HOST_PATTERN.fullmatch(host)
    if match is None:
        return ""
    return match["name"]


def _parse_origin_host(origin: str) -> str:
    """Return the host of an origin; ``""`` for ``null``, which sandboxed pages send."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
