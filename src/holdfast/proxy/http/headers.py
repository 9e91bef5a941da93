"""Choose the headers that are forwarded to the provider and back, and add Holdfast's own.

Headers are pairs of bytes in their order, as ASGI and the HTTP client have them. Forwarded ones are not changed by a
byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

HeaderPair: TypeAlias = tuple[bytes, bytes]
RequestState: TypeAlias = Literal["managed", "observed", "relayed", "bypassed", "unrecorded", "refused"]
"""What was done with a request.

*managed*: planned, and reduced if necessary; *observed*: only recorded; *relayed*: forwarded, since it is no
conversation; *bypassed*: forwarded, since the proxy is switched off; *unrecorded*: as managed, but it could not be
stored; *refused*: answered by Holdfast itself and sent to nobody.
"""

SESSION_HEADER = b"x-holdfast-session"
"""The session of a request: a client may name one, and the answer states it."""
REQUEST_HEADER = b"x-holdfast-request"
"""The id under which a request was stored."""
STATE_HEADER = b"x-holdfast-state"
"""The ``RequestState``."""
TOKEN_HEADER = b"x-holdfast-token"
"""The token that clients send if the proxy can be reached from other machines."""
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
"""Headers that the next connection sets itself."""
_ENCODING_HEADERS = frozenset({b"content-encoding", b"content-length"})
"""Headers about the compressed body, which are wrong once it was decompressed."""
_CLIENT_CODINGS = frozenset({b"gzip", b"deflate", b"identity", b""})
"""Codings that the HTTP client decompresses without further libraries."""
_ACCEPT_ENCODING = b"accept-encoding"
_IDENTITY = b"identity"
_UNSAFE_CHARS = re.compile(r"[^!-~]")
"""Characters that are replaced in the values of our own headers."""


def filter_request_headers(headers: Iterable[HeaderPair], *, keeps_encoding: bool = False) -> list[HeaderPair]:
    """Return the headers to send to the provider.

    With ``keeps_encoding`` nobody looks at the bodies, so both may be compressed. Otherwise the body is sent as we read
    it, and the provider is asked not to compress its answer.
    """
    pairs = list(headers)
    if keeps_encoding:
        excluded_names = _CONNECTION_OWN_HEADERS | _find_void_headers(pairs)
    else:
        excluded_names = _CONNECTION_OWN_HEADERS | _ENCODING_HEADERS | {_ACCEPT_ENCODING}
    forwarded_pairs = _remove_headers(pairs, excluded_names)
    # Without this header a provider may choose any coding, and the HTTP client would add its own.
    has_accept_encoding = any(name.lower() == _ACCEPT_ENCODING for name, _ in forwarded_pairs)
    if has_accept_encoding:
        return forwarded_pairs
    return [*forwarded_pairs, (_ACCEPT_ENCODING, _IDENTITY)]


def filter_response_headers(headers: Iterable[HeaderPair], *, keeps_encoding: bool = False) -> list[HeaderPair]:
    """Return the headers to send to the client; with ``keeps_encoding`` the body is sent compressed, as received."""
    pairs = list(headers)
    is_decompressed = not keeps_encoding and has_readable_encoding(pairs)
    if is_decompressed:
        excluded_names = _ENCODING_HEADERS
    else:
        excluded_names = _find_void_headers(pairs)
    return _remove_headers(pairs, excluded_names)


def has_readable_encoding(headers: Iterable[HeaderPair]) -> bool:
    """Return whether the body under ``headers`` is uncompressed, or compressed in a way that we can always read.

    Providers are asked not to compress. An answer that is compressed all the same in another way is passed on unread.
    """
    return _CLIENT_CODINGS.issuperset(_list_header_values(headers, b"content-encoding"))


def is_subscription_login(headers: Mapping[str, str]) -> bool:
    """Return whether a request uses the login of a Claude or ChatGPT subscription instead of an API key."""
    if "x-api-key" in headers:
        return False
    login = headers.get("authorization", "").rpartition(" ")[2]
    is_claude = login.startswith("sk-ant-oat") or "oauth" in headers.get("anthropic-beta", "")
    return is_claude or "chatgpt-account-id" in headers


def make_holdfast_headers(state: RequestState, session: str = "", request: str = "") -> list[HeaderPair]:
    """Return Holdfast's headers for an answer; empty values are left out, unsafe characters become ``?``."""
    own_headers: list[HeaderPair] = []
    for name, value in ((STATE_HEADER, state), (SESSION_HEADER, session), (REQUEST_HEADER, request)):
        if value:
            own_headers.append((name, _UNSAFE_CHARS.sub("?", value).encode()))
    return own_headers


def headers_to_dict(headers: Iterable[HeaderPair]) -> dict[str, str]:
    """Return headers as text by name in lower case; several values of one name are joined by a comma."""
    values: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key in values:
            text = f"{values[key]}, {text}"
        values[key] = text
    return values


def _remove_headers(headers: list[HeaderPair], excluded_names: frozenset[bytes]) -> list[HeaderPair]:
    """Return ``headers`` without hop-by-hop headers, ``excluded_names`` and Holdfast's own."""
    # The connection header names further headers that are about this connection only.
    removed_names = _HOP_BY_HOP_HEADERS.union(excluded_names, _list_header_values(headers, b"connection"))
    kept_headers: list[HeaderPair] = []
    for name, value in headers:
        lower_name = name.lower()
        if lower_name not in removed_names and not lower_name.startswith(_OWN_PREFIX):
            kept_headers.append((name, value))
    return kept_headers


def _find_void_headers(headers: list[HeaderPair]) -> frozenset[bytes]:
    """Return names of headers that say nothing about the body: a content-length beside chunks (RFC 9112, 6.3)."""
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    if not is_chunked:
        return frozenset()
    return frozenset({b"content-length"})


def _list_header_values(headers: Iterable[HeaderPair], header_name: bytes) -> list[bytes]:
    """Return the comma-separated values of all headers called ``header_name``, in lower case."""
    values: list[bytes] = []
    for name, value in headers:
        if name.lower() == header_name:
            values += [token.strip(b" \t").lower() for token in value.split(b",")]
    return values
