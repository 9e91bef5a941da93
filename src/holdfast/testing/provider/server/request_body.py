"""Receive the body of a request, decompress it, and limit its size."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial

from starlette.types import Receive

from holdfast.errors import FormatError

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Largest body in bytes that is kept in memory, compressed or not.

It is the largest that any of the APIs accepts (Anthropic's batches); the provider itself checks the limit of the
endpoint.
"""
_GZIP_WINDOW_BITS = zlib.MAX_WBITS | 16
"""Tells zlib to expect a gzip header."""
SECRET_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "proxy-authorization"})
"""Headers with values that are not kept, so that keys do not end up in recordings."""


class IncomingBodyTooLarge(FormatError):
    """The body has more bytes than are kept in memory."""


async def receive_request_body(receive: Receive, max_bytes: int = MAX_BODY_BYTES) -> bytes | None:
    """Return the whole body, or None if the client left before its end.

    Raises ``IncomingBodyTooLarge`` once a body that is too large has been received to its end: a client that is still
    sending does not read the refusal.
    """
    body = bytearray()
    size = 0
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        has_more = message.get("more_body", False)
        size += len(chunk)
        if size <= max_bytes:
            body += chunk
    _check_received_size(size, max_bytes)
    return bytes(body)


def _check_received_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise IncomingBodyTooLarge(f"the body has more than {max_bytes:,} bytes; send a smaller one")


def decompress_body(body: bytes, encoding: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Undo the ``content-encoding`` of a body.

    Raises ``FormatError`` for an unknown encoding or damaged data, and ``IncomingBodyTooLarge`` for a body that
    exceeds ``max_bytes`` once it is decompressed.
    """
    names = [item.strip().lower() for item in encoding.split(",") if item.strip()]
    # The last one was applied last.
    for name in reversed(names):
        if name not in _DECODERS:
            raise FormatError(f"the content-encoding {name!r} is not known; send {', '.join(_DECODERS)} or none")
        body = _DECODERS[name](body, max_bytes + 1)  # one byte more tells a body that is too large
        _check_received_size(len(body), max_bytes)
    return body


def _inflate(body: bytes, max_bytes: int, bits: int = zlib.MAX_WBITS) -> bytes:
    try:
        return zlib.decompressobj(bits).decompress(body, max_bytes)
    except zlib.error as error:
        raise FormatError(f"the body is not what its content-encoding says: {error}; send it as it is") from None


def _decompress_zstd(body: bytes, max_bytes: int) -> bytes:
    import zstandard

    try:
        data: bytes = zstandard.ZstdDecompressor().stream_reader(body).read(max_bytes)
    except zstandard.ZstdError as error:
        raise FormatError(f"the body is not what its content-encoding says: {error}; send it as it is") from None
    return data


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": partial(_inflate, bits=_GZIP_WINDOW_BITS),
    "deflate": _inflate,
    "zstd": _decompress_zstd,
    "identity": lambda body, _: body,
}
"""Decoders by content encoding; the number is the largest output in bytes."""


def redact_secret_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with names in lower case, and with the values of keys replaced."""
    redacted = {}
    for name, value in headers.items():
        is_secret = name.lower() in SECRET_HEADERS
        redacted[name.lower()] = "(kept out)" if is_secret else value
    return redacted
