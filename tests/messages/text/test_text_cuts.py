"""Cutting text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.text.text_cuts import (
    ENCODE_PIECE_CHARS,
    encode_in_pieces,
    flatten_to_line,
    take_both_text_ends,
    take_text_end,
    take_text_start,
)

texts = st.text(st.sampled_from("ab \n\r\u2028\U0001f980\u0301配"), max_size=60)


@given(texts, st.integers(0, 70))
def test_take_text_start_returns_a_prefix_within_the_limit(text, limit):
    """``take_text_start`` returns a prefix no longer than the limit, and gives up at most a fifth of it to end at a
    line.
    """
    cut = take_text_start(text, limit)
    assert text.startswith(cut)
    assert len(cut) <= limit
    assert cut == text or len(cut) >= int(limit * 0.8)


@given(texts, st.integers(0, 70))
def test_take_text_end_returns_a_suffix_within_the_limit(text, limit):
    """``take_text_end`` returns a suffix within the limit, short of it by at most a fifth and a character."""
    cut = take_text_end(text, limit)
    assert text.endswith(cut)
    assert len(cut) <= limit
    assert cut == text or len(cut) >= limit - max(1, limit // 5)


@given(texts, st.integers(0, 70), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_take_both_text_ends_never_overlap(text, limit, share):
    """Head and tail are together within the limit, are the two ends of the text, and do not overlap."""
    head, tail = take_both_text_ends(text, limit, share)
    assert len(head) + len(tail) <= max(limit, 0)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) <= len(text)
    assert len(tail) <= max(int(limit * share), 0) or len(text) <= limit * share


@given(texts, st.integers(1, 70))
def test_flatten_to_line_returns_one_line_within_the_limit(text, limit):
    """``flatten_to_line`` leaves no line end and never exceeds its limit; a short text keeps its words."""
    line = flatten_to_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert line.split() == text.split() or line.endswith("…")


@pytest.mark.parametrize(
    ("text", "limit", "cut"),
    [
        ("one\ntwo\nthree", 8, "one\ntwo"),
        ("one\ntwo\nthree", 9, "one\ntwo"),
        ("one\ntwo\nthree", 6, "one\ntw"),
        ("abcdef", 3, "abc"),
        ("abc", 3, "abc"),
        ("\nabcdef", 4, "\nabc"),
        ("", 0, ""),
    ],
)
def test_take_text_start_cuts_at_a_line_end_in_the_last_fifth(text, limit, cut):
    """A line end in the last fifth is used as the cut; an earlier one is not."""
    assert take_text_start(text, limit) == cut


def test_take_text_end_starts_at_a_line_in_the_first_fifth():
    """If a line begins in the first fifth, the suffix starts there."""
    assert take_text_end("first line\nsecond line\nthird", 18) == "second line\nthird"
    assert take_text_end("x" * 30, 7) == "x" * 7


@given(texts, st.sampled_from([1, 7, 3_000]))
def test_encode_in_pieces_equals_encoding_the_whole(text, times):
    """The pieces join to the bytes of the text, each of a bounded number of characters."""
    pieces = list(encode_in_pieces(text * times))
    assert b"".join(pieces) == (text * times).encode("utf-8", "surrogatepass")
    assert all(len(piece) <= 4 * ENCODE_PIECE_CHARS for piece in pieces)
