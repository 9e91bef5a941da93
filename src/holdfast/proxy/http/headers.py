"""Which headers go on, to the provider and back to the client, and those of our own.

Headers are pairs of bytes in their order, as ASGI and the HTTP client have them. What goes on is not changed by a byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

HeaderPair: TypeAlias = tuple[bytes, bytes]
RequestState: TypeAlias = Literal["managed", "observed", "relayed", "bypassed", "unrecorded", "refused"]
"""What was done with a request: reduced or ready to; only looked at; none of ours; bypassed on request; the same
because it could not be recorded; refused by Holdfast itself, and sent to nobody."""

SESSION_HEADER = b"x-holdfast-session"
"""The session that a request belongs to: a client may name it, and the answer tells it."""
REQUEST_HEADER = b"x-holdfast-request"
"""The id of the report on a request."""
STATE_HEADER = b"x-holdfast-state"
"""What was done with a request."""
TOKEN_HEADER = b"x-holdfast-token"
"""What a client must know where the proxy can be reached from other machines."""
_OWN_PREFIX = b"x-holdfast-"

_HOP_BY_HOP_HEADERS = frozenset(
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
_CONNECTION_OWN_HEADERS = frozenset({b"host", b"expect"})
"""What the next connection has its own of."""
_ENCODING_HEADERS = frozenset({b"content-encoding", b"content-length"})
"""What says how a body was packed, which is wrong of one that was unpacked."""
_CLIENT_CODINGS = frozenset({b"gzip", b"deflate", b"identity", b""})
"""Codings that the HTTP client unpacks without any other library."""
_ACCEPT_ENCODING = b"accept-encoding"
_IDENTITY = b"identity"
_UNSAFE_CHARS = re.compile(r"[^!-~]")
"""What no header of ours holds."""


def filter_request_headers(headers: Iterable[HeaderPair], *, keeps_encoding: bool = False) -> list[HeaderPair]:
    """Return the headers that go to the provider.

    ``keeps_encoding``: the bodies are not looked at, so they may stay packed; otherwise none is, and none is wanted.
    """
    pairs = list(headers)
    forwarded_pairs = _remove_headers(
        pairs,
        _CONNECTION_OWN_HEADERS | _find_void_headers(pairs)
        if keeps_encoding
        else _CONNECTION_OWN_HEADERS | _ENCODING_HEADERS | {_ACCEPT_ENCODING},
    )
    has_accept_encoding = keeps_encoding and any(name.lower() == _ACCEPT_ENCODING for name, _ in forwarded_pairs)
    return forwarded_pairs if has_accept_encoding else [*forwarded_pairs, (_ACCEPT_ENCODING, _IDENTITY)]


def filter_response_headers(headers: Iterable[HeaderPair], *, keeps_encoding: bool = False) -> list[HeaderPair]:
    """Return the headers that go to the client; ``keeps_encoding``: so does the body, byte for byte, packed or not."""
    pairs = list(headers)
    return _remove_headers(
        pairs, _find_void_headers(pairs) if keeps_encoding or not has_readable_encoding(pairs) else _ENCODING_HEADERS
    )


def has_readable_encoding(headers: Iterable[HeaderPair]) -> bool:
    """Return whether a body under ``headers`` is packed, if at all, in a way that is read wherever Holdfast runs.

    A provider is asked to pack none; what it packs all the same in another way goes on as it came, and says so.
    """
    return _CLIENT_CODINGS.issuperset(_list_header_values(headers, b"content-encoding"))


def is_subscription_login(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes with the login of a subscription, and no key: Claude's, or ChatGPT's."""
    if "x-api-key" in headers:
        return False
    login = headers.get("authorization", "").rpartition(" ")[2]
    is_claude = login.startswith("sk-ant-oat") or "oauth" in headers.get("anthropic-beta", "")
    return is_claude or "chatgpt-account-id" in headers


def make_holdfast_headers(state: RequestState, session: str = "", request: str = "") -> list[HeaderPair]:
    """Return what an answer tells of what was done; what is not known is left out, what no header can hold is ``?``."""
    items = ((STATE_HEADER, state), (SESSION_HEADER, session), (REQUEST_HEADER, request))
    return [(name, _UNSAFE_CHARS.sub("?", value).encode()) for name, value in items if value]


def headers_to_dict(headers: Iterable[HeaderPair]) -> dict[str, str]:
    """Return headers by their names in lower case, as text; values of one name are joined by a comma."""
    values: dict[str, str] = {}
    for name, value in headers:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        values[key] = f"{values[key]}, {text}" if key in values else text
    return values


def _remove_headers(headers: list[HeaderPair], excluded_names: frozenset[bytes]) -> list[HeaderPair]:
    """Return the headers that are about what passes, without those ``excluded_names`` and those of our own."""
    away = _HOP_BY_HOP_HEADERS.union(
        excluded_names, _list_header_values(headers, b"connection")
    )  # which names those that are about it alone
    return [pair for pair in headers if (name := pair[0].lower()) not in away and not name.startswith(_OWN_PREFIX)]


def _find_void_headers(headers: list[HeaderPair]) -> frozenset[bytes]:
    """Return the names of what says nothing of a body that passes: a length beside its chunks (RFC 9112, 6.3)."""
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    return frozenset({b"content-length"}) if is_chunked else frozenset()


def _list_header_values(headers: Iterable[HeaderPair], header_name: bytes) -> list[bytes]:
    """Return what the headers called ``header_name`` list, in lower case."""
    return [
        token.strip(b" \t").lower()
        for name, value in headers
        if name.lower() == header_name
        for token in value.split(b",")
    ]
