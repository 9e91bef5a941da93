"""A page of a text is what a slice of the whole is, and costs what it holds."""

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


def reading(held: bytes, size: int, told: list[int] | None = None) -> PieceReader:
    """Return a way to read ``held`` in pieces of ``size`` bytes, which tells how many it gave."""

    def read(start: int) -> Iterator[bytes]:
        for at in range(start, len(held), size):
            if told is not None:
                told.append(at)
            yield held[at : at + size]

    return read


def decoded(held: bytes) -> str:
    """Return ``held`` as one text."""
    try:
        return held.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return held.decode("utf-8", "replace")


@given(contents, st.integers(1, 7), st.integers(-3, 45), st.none() | st.integers(-3, 45))
def test_read_blob_characters_equals_a_slice(held: bytes, size: int, start: int, stop: int | None) -> None:
    """A page equals the slice of the whole text wherever pieces split a character and whatever the bytes are."""
    read, whole = reading(held, size), decoded(held)
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
    held = (letter * 600_000).encode()
    told: list[int] = []
    read = reading(held, BLOB_PIECE_BYTES, told)
    known = index_blob_text(read)
    assert len(told) == -(-len(held) // BLOB_PIECE_BYTES)
    told.clear()
    for at in range(0, 600_000, 5_000):
        read_blob_characters(read, known, at, at + 5_000)
    assert len(told) <= 600_000 // 5_000 + 2 * (len(held) // BLOB_PIECE_BYTES + 1)
