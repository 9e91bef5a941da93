"""A request's body as it comes in: read to its end, unpacked, and bounded."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial

from starlette.types import Receive

from holdfast.errors import FormatError

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Bytes of a body that are kept, packed or not: the largest that any of the APIs takes (Anthropic's batches). What the
endpoint itself takes is the provider's own judgement."""
_GZIP_WINDOW_BITS = zlib.MAX_WBITS | 16
"""How zlib is told that there is a gzip header."""
SECRET_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "proxy-authorization"})
"""Headers whose values are not kept."""


class IncomingBodyTooLarge(FormatError):
    """A body has more bytes than are kept."""


async def receive_request_body(receive: Receive, max_bytes: int = MAX_BODY_BYTES) -> bytes | None:
    """Return the whole body, or nothing when the client left before its end; raises ``IncomingBodyTooLarge`` at its
    end.
    """
    body, size, has_more = bytearray(), 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= max_bytes:
            body += chunk
    _check_received_size(size, max_bytes)
    return bytes(body)


def _check_received_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise IncomingBodyTooLarge(f"the body has more than {max_bytes:,} bytes; send a smaller one")


def decompress_body(body: bytes, encoding: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return the body without its ``content-encoding``; raises ``FormatError``, ``IncomingBodyTooLarge`` for one
    that swells.
    """
    for name in reversed([item.strip().lower() for item in encoding.split(",") if item.strip()]):
        if name not in _DECODERS:
            raise FormatError(f"the content-encoding {name!r} is not known; send {', '.join(_DECODERS)} or none")
        body = _DECODERS[name](body, max_bytes + 1)
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
        whole: bytes = zstandard.ZstdDecompressor().stream_reader(body).read(max_bytes)
    except zstandard.ZstdError as error:
        raise FormatError(f"the body is not what its content-encoding says: {error}; send it as it is") from None
    return whole


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": partial(_inflate, bits=_GZIP_WINDOW_BITS),
    "deflate": _inflate,
    "zstd": _decompress_zstd,
    "identity": lambda body, _: body,
}
"""Content encodings and how they are undone, to so many bytes at most."""


def redact_secret_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with their names in lower case and without the values of keys."""
    return {name.lower(): "(kept out)" if name.lower() in SECRET_HEADERS else value for name, value in headers.items()}
