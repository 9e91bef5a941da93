"""A page of a text equals a slice of the whole, and costs only its own pieces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.blobs import text_pages as pages
from holdfast.store.blobs.text_pages import (
    BLOB_PIECE_BYTES,
    PieceReader,
    index_blob_text,
    iter_content_bytes,
    read_blob_characters,
)

texts = st.text(st.sampled_from("a\n\x00\u00e9\u89e3\U0001f980\ud83d\udc00"), max_size=40)
contents = texts.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40)


def make_reader(data: bytes, size: int, offsets: list[int] | None = None) -> PieceReader:
    """Return a reader of ``data`` in pieces of ``size`` bytes that records the offsets it reads."""

    def read(start: int) -> Iterator[bytes]:
        for at in range(start, len(data), size):
            if offsets is not None:
                offsets.append(at)
            yield data[at : at + size]

    return read


def decode_text(data: bytes) -> str:
    """Return ``data`` decoded as one text."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


@given(contents, st.integers(1, 7), st.integers(-3, 45), st.none() | st.integers(-3, 45))
def test_read_blob_characters_equals_a_slice(data: bytes, size: int, start: int, stop: int | None) -> None:
    """A page equals the slice of the whole text wherever pieces split a character and whatever the bytes are."""
    read, whole = make_reader(data, size), decode_text(data)
    known = index_blob_text(read)
    assert known.characters == len(whole)
    assert (
        read_blob_characters(read, known, start, stop) == whole[max(0, start) : None if stop is None else max(0, stop)]
    )


@given(texts, st.integers(1, 9))
def test_iter_content_bytes_equals_encoding_at_once(text: str, size: int) -> None:
    """Adjacent lone surrogates stay two, wherever a piece ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "BLOB_PIECE_BYTES", size)
        assert b"".join(iter_content_bytes(text)) == text.encode("utf-8", "surrogatepass")
        assert b"".join(iter_content_bytes(text.encode("utf-8", "surrogatepass"))) == text.encode(
            "utf-8", "surrogatepass"
        )


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\U0001f980"])
def test_reading_all_pages_reads_each_piece_about_once(letter: str) -> None:
    """Each page reads only the pieces it lies in, however far into the text it is."""
    data = (letter * 600_000).encode()
    offsets: list[int] = []
    read = make_reader(data, BLOB_PIECE_BYTES, offsets)
    known = index_blob_text(read)
    assert len(offsets) == -(-len(data) // BLOB_PIECE_BYTES)
    offsets.clear()
    for at in range(0, 600_000, 5_000):
        read_blob_characters(read, known, at, at + 5_000)
    assert len(offsets) <= 600_000 // 5_000 + 2 * (len(data) // BLOB_PIECE_BYTES + 1)
