"""What bytes weigh: in one sweep of whole numbers as one by one."""

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


def kind_of(byte: int, kinds: tuple[bytes, ...]) -> int:
    return next((number for number, members in enumerate(kinds) if byte in members), 0)


def places(data: bytes) -> list[int]:
    """Return the place of each byte in the table, one by one, as the table is described."""
    found: list[int] = []
    letters = blanks = 0
    before = kind_of(ord("\n"), PRECEDING_KINDS)
    for byte in data:
        row = before + (8 if letters >= 7 or blanks >= 2 else 0)
        found.append(row * len(BYTE_KINDS) + kind_of(byte, BYTE_KINDS))
        before = kind_of(byte, PRECEDING_KINDS)
        letters = letters + 1 if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 0
        blanks = blanks + 1 if chr(byte) in " \t" else 0
    return found


@given(DATA)
@example(b"abcdefgh ijklmnop  q   r\t\ts")
@example(b"abcdef gabcdefg\x80abcdefg a  \xf0")
def test_a_pair_of_bytes_has_its_place_in_the_table(data: bytes) -> None:
    """Every byte is told by its kind and by what stands before it, ASCII alone as any other."""
    assert list(get_weight_indexes(data)) == places(data)


@given(DATA)
@example(b"Units of weight add up, block by block.\n" * 1_000)
@example(bytes(range(256)) * 4)
def test_a_text_weighs_what_its_bytes_weigh(data: bytes) -> None:
    """Weights are added up exactly, in whatever pieces the text comes; no long run of one letter is among these."""
    expected = sum(TOKEN_WEIGHTS[place] for place in places(data))
    assert count_token_units([data]) == expected
    assert count_token_units([data[:7], b"", data[7:]]) == expected


@given(st.lists(DATA.map(lambda data: data.replace(b"\n", b"\r"))))
def test_texts_weigh_as_each_alone(texts: list[bytes]) -> None:
    """Texts that are weighed together weigh what each of them weighs."""
    assert count_token_units_by_text(texts) == [count_token_units([text]) for text in texts]


@pytest.mark.parametrize("unit", [b"word by word  ", "wörd by wörd 日本 ".encode(), b"\xf0", b"1 1\n"])
def test_a_long_text_is_weighed_block_by_block(unit: bytes) -> None:
    """A block begins as if a line end stood before it, and is none of ASCII for what stands in another."""
    data = (unit * BLOCK_BYTES)[: BLOCK_BYTES * 2 + 7]
    assert count_token_units([data]) == sum(
        count_token_units([data[at : at + BLOCK_BYTES]]) for at in range(0, len(data), BLOCK_BYTES)
    )


@pytest.mark.parametrize("letter", [b"x", b"f", b"b", b"c", b"q", b"w", b"z"])
@pytest.mark.parametrize("text", [b"%s" * 24_000, (b"%s" * 79 + b"\n") * 300, b"\xf0" + b"%s" * BLOCK_BYTES * 2])
def test_one_letter_over_and_over_is_few_tokens(letter: bytes, text: bytes) -> None:
    """A seldom letter begins a token inside of words, and none in a long run of it: under a third of a token each."""
    data = text.replace(b"%s", letter)
    assert count_token_units([data]) < len(data) * UNITS_PER_TOKEN / 3
    assert count_token_units_by_text([data[:BLOCK_BYTES]]) == [count_token_units([data[:BLOCK_BYTES]])]


def test_no_other_pair_weighs_what_a_long_run_does() -> None:
    """A run is found by its weight, so that nothing else may have it."""
    assert TOKEN_WEIGHTS.count(weights._RARE_LETTER_WEIGHT) == 1


def test_every_byte_has_its_weight() -> None:
    """Every pair of kinds has a place in the table, and no byte is of two kinds."""
    assert len(BYTE_KINDS) * (len(PRECEDING_KINDS) + 3) <= len(TOKEN_WEIGHTS) == 256
    for kinds in (BYTE_KINDS, PRECEDING_KINDS):
        members = b"".join(kinds)
        assert len(members) == len(set(members))
        assert set(range(0x80)) <= set(members)


@pytest.mark.parametrize("code", [weights._ASCII_CODE, weights._FULL_CODE])
def test_a_code_tells_all_its_pairs_apart(code: weights._KindCode) -> None:
    """No two pairs of kinds have one number: each place stands in its table once, but the first, which fills it up."""
    told = [place for place in code.weight_indexes if place]
    assert len(told) == len(set(told))
