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
def test_a_clipped_text_is_a_beginning_within_its_limit(text, limit):
    """What ``take_text_start`` returns begins the text, is no longer than the limit, and loses at most a fifth of it
    to a line.
    """
    cut = take_text_start(text, limit)
    assert text.startswith(cut)
    assert len(cut) <= limit
    assert cut == text or len(cut) >= int(limit * 0.8)


@given(texts, st.integers(0, 70))
def test_a_clipped_start_leaves_an_end_within_its_limit(text, limit):
    """What ``take_text_end`` returns ends the text, within the limit, short by at most a fifth and a character."""
    cut = take_text_end(text, limit)
    assert text.endswith(cut)
    assert len(cut) <= limit
    assert cut == text or len(cut) >= limit - max(1, limit // 5)


@given(texts, st.integers(0, 70), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_head_and_tail_never_overlap(text, limit, share):
    """Head and tail are within the limit together, at the two ends of the text, and what is left out lies between."""
    head, tail = take_both_text_ends(text, limit, share)
    assert len(head) + len(tail) <= max(limit, 0)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) <= len(text)
    assert len(tail) <= max(int(limit * share), 0) or len(text) <= limit * share


@given(texts, st.integers(1, 70))
def test_one_line_is_one_line(text, limit):
    """``flatten_to_line`` leaves no line end and is never longer than its limit; a short text keeps its words."""
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
def test_clip_prefers_a_line_in_the_last_fifth(text, limit, cut):
    """A newline in the last fifth is where it is cut; one before is not looked for."""
    assert take_text_start(text, limit) == cut


def test_clip_start_begins_at_a_line():
    """A line that begins in the first fifth is where the end begins."""
    assert take_text_end("first line\nsecond line\nthird", 18) == "second line\nthird"
    assert take_text_end("x" * 30, 7) == "x" * 7


@given(texts, st.sampled_from([1, 7, 3_000]))
def test_encoded_pieces_are_the_whole(text, times):
    """The pieces of a text are its bytes, each of a bounded number of characters."""
    pieces = list(encode_in_pieces(text * times))
    assert b"".join(pieces) == (text * times).encode("utf-8", "surrogatepass")
    assert all(len(piece) <= 4 * ENCODE_PIECE_CHARS for piece in pieces)
