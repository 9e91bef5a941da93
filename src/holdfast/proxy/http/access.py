"""Who may ask: a web page must not reach the proxy by a name that it made to mean this machine, nor from a browser.

On loopback the name in ``Host`` tells: a page whose own name was made to lead here still sends that name. Beyond
loopback names are not known, and a token tells, which no page has.
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
"""A host and perhaps a port; which port says nothing, for another one may have been passed on to ours."""
_TOKEN_HEADER = TOKEN_HEADER.decode()


class AccessRefusal(NamedTuple):
    """Why somebody is not answered, the kind of error that it is, and its status."""

    kind: str
    reason: str
    status: int = 0
    """Nothing: the one that the API has for this kind."""


def check_access(headers: Mapping[str, str], bind_host: str, token: str) -> AccessRefusal | None:
    """Return why who sends ``headers``, by their names in lower case, is not answered; nothing where they are.

    ``bind_host`` is the host that the server listens at, ``token`` what its clients must know.
    """
    why = explain_foreign_request(headers.get("host"), headers.get("origin"), bind_host)
    if why:
        return AccessRefusal("invalid_request", why, 403)
    if headers.get("sec-fetch-mode") == "navigate" or headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        return AccessRefusal("invalid_request", "pages of a browser are not answered here; ask from a program", 403)
    if not is_token_valid(headers.get(_TOKEN_HEADER), token):
        return AccessRefusal("auth", f"this proxy wants its token in the header {_TOKEN_HEADER}", 401)
    return None


def explain_foreign_request(host: str | None, origin: str | None, bind_host: str) -> str:
    """Return why a request is none of this machine's programs, or nothing.

    ``host`` and ``origin`` are the headers, or nothing where there are none: programs send no origin, and HTTP/1.0
    needs no host. ``bind_host`` is the host that the server listens at.
    """
    if origin is not None and not is_loopback_host(_parse_origin_host(origin)):
        return f"a page of {origin[:100]!r} may not use this proxy; ask it from a program"
    if host and is_loopback_host(bind_host) and not is_loopback_host(_parse_host_name(host)):
        return f"host {host[:100]!r} is not this machine; use the address that the proxy told when it began"
    return ""


def is_token_valid(received_token: str | None, token: str) -> bool:
    """Return whether a client ``received_token`` this token may ask; any may where none is set. Takes as long for
    any guess.
    """
    return not token or compare_digest((received_token or "").encode("utf-8", "replace"), token.encode())


def _parse_host_name(host: str) -> str:
    match = _HOST_PATTERN.fullmatch(host)
    return match["name"] if match else ""


def _parse_origin_host(origin: str) -> str:
    """Return the host of an origin, or nothing: so it is of ``null``, which hidden pages send."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
