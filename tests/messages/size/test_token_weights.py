"""Weights of bytes: the vectorized lookup equals the lookup byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.messages.size import token_weights as weights
from holdfast.messages.size.token_weights import (
    BLOCK_BYTES,
    BYTE_KINDS,
    PRECEDING_KINDS,
    TOKEN_WEIGHTS,
    UNITS_PER_TOKEN,
    count_token_units,
    count_token_units_by_text,
    get_weight_indexes,
)

PIECES = st.sampled_from([*'a \t\n7"', "word", "zebra", "getFooBar", "._", "  ", "abcdefg"])
ASCII = st.lists(PIECES).map(lambda pieces: "".join(pieces).encode()) | st.text(st.characters(codec="ascii")).map(
    str.encode
)
ANY = st.lists(PIECES | st.sampled_from(["É", "日本", "🎉", "\ud83d"])).map(
    lambda pieces: "".join(pieces).encode("utf-8", "surrogatepass")
)
DATA = ASCII | ANY | st.binary()


def find_kind(byte: int, kinds: tuple[bytes, ...]) -> int:
    return next((number for number, members in enumerate(kinds) if byte in members), 0)


def list_weight_indexes(data: bytes) -> list[int]:
    """Return the table index of each byte, computed one by one from the description of the table."""
    indexes: list[int] = []
    letters = blanks = 0
    preceding_kind = find_kind(ord("\n"), PRECEDING_KINDS)
    for byte in data:
        row = preceding_kind + (8 if letters >= 7 or blanks >= 2 else 0)
        indexes.append(row * len(BYTE_KINDS) + find_kind(byte, BYTE_KINDS))
        preceding_kind = find_kind(byte, PRECEDING_KINDS)
        letters = letters + 1 if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 0
        blanks = blanks + 1 if chr(byte) in " \t" else 0
    return indexes


@given(DATA)
@example(b"abcdefgh ijklmnop  q   r\t\ts")
@example(b"abcdef gabcdefg\x80abcdefg a  \xf0")
def test_get_weight_indexes_equals_the_lookup_byte_by_byte(data: bytes) -> None:
    """Each byte is classified by its kind and by what precedes it, in ASCII texts as in any other."""
    assert list(get_weight_indexes(data)) == list_weight_indexes(data)


@given(DATA)
@example(b"Units of weight add up, block by block.\n" * 1_000)
@example(bytes(range(256)) * 4)
def test_count_token_units_sums_the_weights_of_the_bytes(data: bytes) -> None:
    """Weights add up exactly, in whatever pieces the text is passed; none of these texts has a long run of one
    letter.
    """
    expected = sum(TOKEN_WEIGHTS[index] for index in list_weight_indexes(data))
    assert count_token_units([data]) == expected
    assert count_token_units([data[:7], b"", data[7:]]) == expected


@given(st.lists(DATA.map(lambda data: data.replace(b"\n", b"\r"))))
def test_count_token_units_by_text_equals_counting_each_text(texts: list[bytes]) -> None:
    """Texts counted together have the same units as each of them alone."""
    assert count_token_units_by_text(texts) == [count_token_units([text]) for text in texts]


@pytest.mark.parametrize("unit", [b"word by word  ", "wörd by wörd 日本 ".encode(), b"\xf0", b"1 1\n"])
def test_count_token_units_counts_a_long_text_block_by_block(unit: bytes) -> None:
    """Each block counts as if a line end preceded it, and whether it is ASCII is decided per block."""
    data = (unit * BLOCK_BYTES)[: BLOCK_BYTES * 2 + 7]
    assert count_token_units([data]) == sum(
        count_token_units([data[start : start + BLOCK_BYTES]]) for start in range(0, len(data), BLOCK_BYTES)
    )


@pytest.mark.parametrize("letter", [b"x", b"f", b"b", b"c", b"q", b"w", b"z"])
@pytest.mark.parametrize("text", [b"%s" * 24_000, (b"%s" * 79 + b"\n") * 300, b"\xf0" + b"%s" * BLOCK_BYTES * 2])
def test_count_token_units_counts_a_run_of_one_letter_low(letter: bytes, text: bytes) -> None:
    """A rare letter begins a token inside words but not in a long run of itself: a run has under a third of a token per
    byte.
    """
    data = text.replace(b"%s", letter)
    assert count_token_units([data]) < len(data) * UNITS_PER_TOKEN / 3
    assert count_token_units_by_text([data[:BLOCK_BYTES]]) == [count_token_units([data[:BLOCK_BYTES]])]


def test_rare_letter_weight_is_unique() -> None:
    """A run is found by its weight, so no other pair of kinds may have that weight."""
    assert TOKEN_WEIGHTS.count(weights._RARE_LETTER_WEIGHT) == 1


def test_weight_table_has_a_place_for_every_pair_of_kinds() -> None:
    """Every pair of kinds has a place in the table, and no byte is of two kinds."""
    assert len(BYTE_KINDS) * (len(PRECEDING_KINDS) + 3) <= len(TOKEN_WEIGHTS) == 256
    for kinds in (BYTE_KINDS, PRECEDING_KINDS):
        members = b"".join(kinds)
        assert len(members) == len(set(members))
        assert set(range(0x80)) <= set(members)


@pytest.mark.parametrize("numbering", [weights._ASCII_NUMBERING, weights._FULL_NUMBERING])
def test_pair_numbering_numbers_every_pair_of_kinds_differently(numbering: weights._PairNumbering) -> None:
    """No two pairs of kinds have the same number: each place is in the table once, except the first, which
    fills gaps.
    """
    indexes = [index for index in numbering.weight_indexes if index]
    assert len(indexes) == len(set(indexes))
