"""Which headers go on, to the provider and back to the client, and those of our own.

Headers are pairs of bytes in their order, as ASGI and the HTTP client have them. What goes on is not changed by a byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

Pair: TypeAlias = tuple[bytes, bytes]
State: TypeAlias = Literal["managed", "observed", "relayed", "bypassed", "unrecorded", "refused"]
"""What was done with a request: reduced or ready to; only looked at; none of ours; bypassed on request; the same
because it could not be recorded; refused by Holdfast itself, and sent to nobody."""

SESSION = b"x-holdfast-session"
"""The session that a request belongs to: a client may name it, and the answer tells it."""
REQUEST = b"x-holdfast-request"
"""The id of the report on a request."""
STATE = b"x-holdfast-state"
"""What was done with a request."""
TOKEN = b"x-holdfast-token"
"""What a client must know where the proxy can be reached from other machines."""
_OURS = b"x-holdfast-"

_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers about one connection, not about what passes over it (RFC 9110, section 7.6.1)."""
_UP = frozenset({b"host", b"expect"})
"""What the next connection has its own of."""
_PACKED = frozenset({b"content-encoding", b"content-length"})
"""What says how a body was packed, which is wrong of one that was unpacked."""
_READ = frozenset({b"gzip", b"deflate", b"identity", b""})
"""Codings that the HTTP client unpacks without any other library."""
_ACCEPTED = b"accept-encoding"
_PLAIN = b"identity"
_UNFIT = re.compile(r"[^!-~]")
"""What no header of ours holds."""


def upward(headers: Iterable[Pair], *, as_it_came: bool = False) -> list[Pair]:
    """Return the headers that go to the provider.

    ``as_it_came``: the bodies are not looked at, so they may stay packed; otherwise none is, and none is wanted.
    """
    given = list(headers)
    kept = _without(given, _UP | _void(given) if as_it_came else _UP | _PACKED | {_ACCEPTED})
    asked = as_it_came and any(name.lower() == _ACCEPTED for name, _ in kept)
    return kept if asked else [*kept, (_ACCEPTED, _PLAIN)]


def downward(headers: Iterable[Pair], *, as_it_came: bool = False) -> list[Pair]:
    """Return the headers that go to the client; ``as_it_came``: so does the body, byte for byte, packed or not."""
    given = list(headers)
    return _without(given, _void(given) if as_it_came or not is_unpacked(given) else _PACKED)


def is_unpacked(headers: Iterable[Pair]) -> bool:
    """Return whether a body under ``headers`` is packed, if at all, in a way that is read wherever Holdfast runs.

    A provider is asked to pack none; what it packs all the same in another way goes on as it came, and says so.
    """
    return _READ.issuperset(_listed(headers, b"content-encoding"))


def is_subscription(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes with the login of a subscription, and no key: Claude's, or ChatGPT's."""
    if "x-api-key" in headers:
        return False
    login = headers.get("authorization", "").rpartition(" ")[2]
    is_claude = login.startswith("sk-ant-oat") or "oauth" in headers.get("anthropic-beta", "")
    return is_claude or "chatgpt-account-id" in headers


def ours(state: State, session: str = "", request: str = "") -> list[Pair]:
    """Return what an answer tells of what was done; what is not known is left out, what no header can hold is ``?``."""
    told = ((STATE, state), (SESSION, session), (REQUEST, request))
    return [(name, _UNFIT.sub("?", value).encode()) for name, value in told if value]


def named(headers: Iterable[Pair]) -> dict[str, str]:
    """Return headers by their names in lower case, as text; values of one name are joined by a comma."""
    found: dict[str, str] = {}
    for name, value in headers:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _without(headers: list[Pair], left: frozenset[bytes]) -> list[Pair]:
    """Return the headers that are about what passes, without those ``left`` and those of our own."""
    away = _HOP.union(left, _listed(headers, b"connection"))  # which names those that are about it alone
    return [pair for pair in headers if (name := pair[0].lower()) not in away and not name.startswith(_OURS)]


def _void(headers: list[Pair]) -> frozenset[bytes]:
    """Return the names of what says nothing of a body that passes: a length beside its chunks (RFC 9112, 6.3)."""
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    return frozenset({b"content-length"}) if is_chunked else frozenset()


def _listed(headers: Iterable[Pair], wanted: bytes) -> list[bytes]:
    """Return what the headers called ``wanted`` list, in lower case."""
    return [one.strip(b" \t").lower() for name, value in headers if name.lower() == wanted for one in value.split(b",")]
