"""A request's body as it comes in: read to its end, unpacked, and bounded."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial

from starlette.types import Receive

from holdfast.errors import FormatError

MOST_BYTES = 256 * 1024 * 1024
"""Bytes of a body that are kept, packed or not: the largest that any of the APIs takes (Anthropic's batches). What the
endpoint itself takes is the provider's own judgement."""
_GZIP = zlib.MAX_WBITS | 16
"""How zlib is told that there is a gzip header."""
SECRETS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "proxy-authorization"})
"""Headers whose values are not kept."""


class TooLarge(FormatError):
    """A body has more bytes than are kept."""


async def received(receive: Receive, most: int = MOST_BYTES) -> bytes | None:
    """Return the whole body, or nothing when the client left before its end; raises ``TooLarge`` at its end."""
    body, size, more = bytearray(), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= most:
            body += chunk
    _check(size, most)
    return bytes(body)


def _check(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(f"the body has more than {most:,} bytes; send a smaller one")


def unpacked(body: bytes, encoding: str, most: int = MOST_BYTES) -> bytes:
    """Return the body without its ``content-encoding``; raises ``FormatError``, ``TooLarge`` for one that swells."""
    for name in reversed([one.strip().lower() for one in encoding.split(",") if one.strip()]):
        if name not in _UNPACK:
            raise FormatError(f"the content-encoding {name!r} is not known; send {', '.join(_UNPACK)} or none")
        body = _UNPACK[name](body, most + 1)
        _check(len(body), most)
    return body


def _inflated(body: bytes, most: int, bits: int = zlib.MAX_WBITS) -> bytes:
    try:
        return zlib.decompressobj(bits).decompress(body, most)
    except zlib.error as error:
        raise FormatError(f"the body is not what its content-encoding says: {error}; send it as it is") from None


def _zstd(body: bytes, most: int) -> bytes:
    import zstandard

    try:
        whole: bytes = zstandard.ZstdDecompressor().stream_reader(body).read(most)
    except zstandard.ZstdError as error:
        raise FormatError(f"the body is not what its content-encoding says: {error}; send it as it is") from None
    return whole


_UNPACK: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": partial(_inflated, bits=_GZIP),
    "deflate": _inflated,
    "zstd": _zstd,
    "identity": lambda body, _: body,
}
"""Content encodings and how they are undone, to so many bytes at most."""


def discreet(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with their names in lower case and without the values of keys."""
    return {name.lower(): "(kept out)" if name.lower() in SECRETS else value for name, value in headers.items()}
