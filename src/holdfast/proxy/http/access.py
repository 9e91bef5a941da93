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

from holdfast.config.addresses import is_loopback
from holdfast.proxy.http.headers import TOKEN

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]?#\\]+)(?::\d{0,5})?")
"""A host and perhaps a port; which port says nothing, for another one may have been passed on to ours."""
_TOKEN = TOKEN.decode()


class Refusal(NamedTuple):
    """Why somebody is not answered, the kind of error that it is, and its status."""

    kind: str
    why: str
    status: int = 0
    """Nothing: the one that the API has for this kind."""


def refusal(headers: Mapping[str, str], bound: str, token: str) -> Refusal | None:
    """Return why who sends ``headers``, by their names in lower case, is not answered; nothing where they are.

    ``bound`` is the host that the server listens at, ``token`` what its clients must know.
    """
    why = foreign(headers.get("host"), headers.get("origin"), bound)
    if why:
        return Refusal("invalid_request", why, 403)
    if headers.get("sec-fetch-mode") == "navigate" or headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
        return Refusal("invalid_request", "pages of a browser are not answered here; ask from a program", 403)
    if not knows_token(headers.get(_TOKEN), token):
        return Refusal("auth", f"this proxy wants its token in the header {_TOKEN}", 401)
    return None


def foreign(host: str | None, origin: str | None, bound: str) -> str:
    """Return why a request is none of this machine's programs, or nothing.

    ``host`` and ``origin`` are the headers, or nothing where there are none: programs send no origin, and HTTP/1.0
    needs no host. ``bound`` is the host that the server listens at.
    """
    if origin is not None and not is_loopback(_site(origin)):
        return f"a page of {origin[:100]!r} may not use this proxy; ask it from a program"
    if host and is_loopback(bound) and not is_loopback(_name(host)):
        return f"host {host[:100]!r} is not this machine; use the address that the proxy told when it began"
    return ""


def knows_token(given: str | None, token: str) -> bool:
    """Return whether a client ``given`` this token may ask; any may where none is set. Takes as long for any guess."""
    return not token or compare_digest((given or "").encode("utf-8", "replace"), token.encode())


def _name(host: str) -> str:
    found = _HOST.fullmatch(host)
    return found["name"] if found else ""


def _site(origin: str) -> str:
    """Return the host of an origin, or nothing: so it is of ``null``, which hidden pages send."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
