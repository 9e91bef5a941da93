"""Compressed bodies are restored to the byte, or refused with the status that says why."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import FormatError
from holdfast.proxy.http.decompress import MAX_ZSTD_WINDOW, BadBody, BodyTooLarge, decompress_request_body

LIMIT = 1 << 20


def compress_raw_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return coder.compress(data) + coder.flush()


def compress_zstd_stream(data: bytes) -> bytes:
    """Return a frame that does not say how much it holds."""
    coder = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return coder.compress(data) + coder.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "X-Gzip": gzip.compress,
    "deflate": zlib.compress,
    " Deflate ": compress_raw_deflate,
    "zstd": zstandard.ZstdCompressor().compress,
    "ZSTD": compress_zstd_stream,
}
contents = st.one_of(
    st.binary(max_size=300), st.tuples(st.binary(max_size=9), st.integers(0, 9_000)).map(lambda t: t[0] * t[1])
)


def get_refusal_status(body: bytes, encoding: str, limit: int = LIMIT) -> int:
    with pytest.raises(BadBody) as error:
        decompress_request_body(body, encoding, limit)
    assert isinstance(error.value, FormatError)
    return error.value.status


@pytest.mark.parametrize("encoding", ENCODERS)
@given(content=contents)
def test_decompress_request_body_restores_the_content(encoding, content):
    """A body is restored whatever its coding; a limit of exactly its size passes, one byte less is a 413."""
    packed = ENCODERS[encoding](content)
    assert decompress_request_body(packed, encoding, len(content)) == content
    assert decompress_request_body(packed, f"identity, {encoding},", LIMIT) == content
    if content:
        assert get_refusal_status(packed, encoding, len(content) - 1) == 413


@given(content=contents, plain=st.sampled_from(["", "identity", " , Identity"]))
def test_decompress_request_body_passes_uncompressed_bodies(content, plain):
    """An uncompressed body is returned unchanged and has the same limit."""
    assert decompress_request_body(content, plain, len(content)) == content
    if content:
        with pytest.raises(BodyTooLarge, match=f"more than {len(content) - 1:,} bytes"):
            decompress_request_body(content, plain, len(content) - 1)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@given(parts=st.lists(contents, max_size=4))
def test_decompress_request_body_joins_concatenated_streams(encoding, parts):
    """Several streams in one body are one content, as both formats define it."""
    assert decompress_request_body(b"".join(map(ENCODERS[encoding], parts)), encoding, LIMIT) == b"".join(parts)


def test_decompress_request_body_removes_codings_in_reverse():
    """Codings are removed in the reverse of the order in which they are listed."""
    body = compress_zstd_stream(gzip.compress(b"hello"))
    assert decompress_request_body(body, "gzip, zstd", LIMIT) == b"hello"
    assert get_refusal_status(body, "zstd, gzip") == 400
    assert get_refusal_status(b"", "gzip, gzip, gzip, gzip") == 415


@pytest.mark.parametrize("encoding", ENCODERS)
@given(content=st.binary(min_size=1, max_size=200), data=st.data())
def test_decompress_request_body_rejects_truncated_bodies(encoding, content, data):
    """Any proper prefix of a compressed body is refused, also where only the checksum is missing."""
    packed = ENCODERS[encoding](content)
    cut = packed[: data.draw(st.integers(1, len(packed) - 1))]
    assert get_refusal_status(cut, encoding) == 400


@pytest.mark.parametrize("encoding", ENCODERS)
@given(garbage=st.binary(max_size=80), content=st.binary(max_size=40), place=st.integers(0, 200))
def test_decompress_request_body_handles_any_bytes(encoding, garbage, content, place):
    """Any bytes give content within the limit or a ``BadBody``; nothing else is raised."""
    packed = ENCODERS[encoding](content)
    for body in (garbage, packed + garbage, packed[:place] + garbage + packed[place:]):
        with suppress(BadBody):
            assert len(decompress_request_body(body, encoding, 100)) <= 100


@pytest.mark.parametrize("encoding", ["br", "compress", "aes128gcm", "x" * 500])
def test_decompress_request_body_rejects_unknown_codings(encoding):
    """An unknown coding is refused with the list of the supported ones."""
    with pytest.raises(BadBody, match="use gzip, deflate, zstd, or none") as error:
        decompress_request_body(b"hello", encoding, LIMIT)
    assert error.value.status == 415
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("encoding", ENCODERS)
def test_decompress_request_body_stops_bombs_at_the_limit(encoding):
    """Of 20 MB in a small body no more is held than the limit, one piece and the decoder's window."""
    bomb = ENCODERS[encoding](bytes(20_000_000))
    tracemalloc.start()
    try:
        assert get_refusal_status(bomb, encoding) == 413
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    finally:
        tracemalloc.stop()


def test_decompress_request_body_rejects_wide_zstd_windows():
    """A frame with a window wider than HTTP allows is refused before memory is allocated for it."""
    wide = zstandard.ZstdCompressionParameters(window_log=24, format=zstandard.FORMAT_ZSTD1)
    coder = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    body = coder.compress(b"hello") + coder.flush()
    assert zstandard.get_frame_parameters(body).window_size > MAX_ZSTD_WINDOW
    assert get_refusal_status(body, "zstd") == 400
