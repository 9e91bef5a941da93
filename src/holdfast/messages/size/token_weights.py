"""Estimate tokens from bytes: what each byte of a text weighs, in shares of a token.

Where a token ends and the next one begins is mostly decided by neighbouring bytes: a capital after a small letter, a
digit after a space, an unusual letter. So each byte weighs the frequency with which o200k begins a token there, looked
up by the kind of the byte and the kind of the byte before it. A text has as many tokens as its bytes weigh.

Looping over bytes in Python would be slower than a real tokenizer. All bytes of a block are therefore handled at once
with operations that run in C: ``bytes.translate``, arithmetic on one huge integer, and Adler-32 as a sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import or_
from zlib import adler32

from msgspec import Struct

UNITS_PER_TOKEN = 128
"""Weights are in 128ths of a token, so that one byte can hold a weight of up to two tokens."""
BLOCK_BYTES = 1 << 16
"""Bytes weighed at a time. The integers built from them stay in the processor's cache, and memory stays small."""
_VOWELS = b"aeiou"
_CONSONANTS = b"bcdfghjklmnpqrstvwxyz"
_RARE_LETTERS = b"bcfqwxz"
"""Small letters that begin a token inside a word more often than others (grouped by least loss on the corpus)."""
_BLANKS = b" \t"
_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = b"0123456789"
_JOINING_MARKS = b"._/\\(-'=[,?"
"""Marks that are mostly in one token with the letters behind them; behind other marks a token mostly begins."""
_PLAIN_MARKS = b"\"'`()[]{}<>:;,="
_LEAD_BYTES = b"\xc0\xc4\xd0\xd4\xd8\xe0\xe2\xe3\xea\xf0\xff"
"""First bytes of ranges beyond ASCII that have weights of their own, in order: Latin-1, more Latin and Greek, Cyrillic,
Hebrew, Arabic, Indic and Thai, signs, kana and Han, Hangul, emoji; and the end."""


def _with_rest_of_ascii(*byte_kinds: bytes) -> tuple[bytes, ...]:
    """Return ``byte_kinds`` followed by one more kind: the rest of ASCII."""
    return (*byte_kinds, bytes(range(0x80)).translate(None, b"".join(byte_kinds)))


def _list_lead_ranges() -> tuple[bytes, ...]:
    """Return the bytes of each range that ``_LEAD_BYTES`` delimits."""
    return tuple(bytes(range(start, stop)) for start, stop in pairwise(_LEAD_BYTES))


BYTE_KINDS = (
    *_with_rest_of_ascii(
        b"\n\r",
        _VOWELS,
        _CONSONANTS.translate(None, _RARE_LETTERS),
        _RARE_LETTERS,
        b"\t",
        b" ",
        _CAPITALS,
        _DIGITS,
        _PLAIN_MARKS,
    ),
    bytes(range(0x80, 0xC0)),
    *_list_lead_ranges(),
)
"""The 21 kinds of a byte; columns of the table of weights."""
PRECEDING_KINDS = (
    *_with_rest_of_ascii(
        b"\n\r",
        _VOWELS,
        _CONSONANTS,
        _BLANKS,
        _CAPITALS,
        _DIGITS,
        _JOINING_MARKS,
    ),
    bytes(range(0x80, 0x100)),
)
"""The 9 kinds of the byte before it; rows of the table of weights.

Three more rows are for a vowel or a consonant that ends seven small letters in a row, and a blank that ends two blanks
in a row. Before the first byte of a text there is taken to be a line end.
"""


def _build_kind_table(kinds: tuple[bytes, ...]) -> bytes:
    """Return the table for ``bytes.translate`` that maps each byte to the number of its kind."""
    table = bytearray(256)
    for number, members in enumerate(kinds):
        for byte in members:
            table[byte] = number
    return bytes(table)


def _parse_weights(rows: str) -> bytes:
    """Return the weights in ``rows``, without the labels, as a table for ``bytes.translate``."""
    _, *lines = rows.strip().splitlines()
    weights: list[int] = []
    for line in lines:
        weights += map(int, line.split()[1:])
    return bytes(weights).ljust(256, b"\0")


TOKEN_WEIGHTS = _parse_weights("""
           ln vow con sel tab  sp CAP dig mrk sgn  tl  C0  C4  D0  D4  D8  E0  E2  E3  EA  F0
    ln      8 126 123 115 120 113 106 109 100 138   4  56  49  62  49  39  55  72 113  93 197
    vow   131   0   2   0  93 122 152 126 111 112   4  37 195  16  29  17   0  67  87  97 126
    con   124   8   0  28 178 108 158 127 118 125   4  82  12  16  29  17   0  74  87  91 126
    sp      4   0   0   0  10   0   0 139  10  20   4  48   0  15  14  12   0   0  33   0  94
    CAP    84  14  30 108  35  82  32 162  77 141   4  80  78  16  29  17   0  67  87  97 126
    dig   127 118 189 119 134 122 156  32 124 108   4  66  32  16  29  17  29 156  87  97 126
    join    0  56  34  29  35 121  40 131   8   2   4  68  32  16  29  17  29  66  87  97 126
    sgn     0 130 125 120  28 125 124 110  18  67   4 133  32  16  29  17  29  69  90  97 126
    >7F    62   0  52  70  29  62 112  89 121 145   6 169  48  25  51  34  40  76  84 103 230
    ..vow 115  16  14  34  50 227  96  80 150 125   4  48 123  16  29  17  29  65  87  97 126
    ..con 136  53  19 155  91 110  80  92 119 118   4  77 112  16  29  17  29  68  87  97 126
    ..sp    0 119 109 119   8   1 114 252 125 125   4  43  32  16  29  17  29  80  87  97 126
""")
"""Weight of a byte by its own kind (columns, as in ``BYTE_KINDS``) and the kind before it (rows, as in
``PRECEDING_KINDS``, then the runs), as ``bench/estimator.py`` fitted it to o200k. *tl* is a continuation byte of a
character beyond ASCII, C0 to F0 are first bytes.
"""


# -- one number for each pair of bytes ---------------------------------------------------------------------------------
#
# Rows and columns are numbered so that the sum of a row and a column is one byte and identifies the pair. The numbers
# of all bytes are added at once, as integers as long as the block, in which ``<< 8`` moves to the next byte.

_KIND_TABLE, _PRECEDING_TABLE = _build_kind_table(BYTE_KINDS), _build_kind_table(PRECEDING_KINDS)
_RUN_BIT = 0x80
"""Added to the number of a row if a run ends there. The bit is set in every byte that can be part of a run."""
_RUN_BITS_BY_ROW = {1: _RUN_BIT | 0x20, 2: _RUN_BIT | 0x20, 3: _RUN_BIT | 0x40}
"""Bits of the rows that can form runs: small letters (vowels and consonants), and blanks."""
_RUN_ROW_OFFSET = 8
"""How many rows below its own row the runs of a row are in ``TOKEN_WEIGHTS``."""


class _KindCode(Struct, frozen=True):
    """How the kinds of bytes are numbered."""

    column_table: bytes
    """Maps each byte to the number of its column, plus the bits of runs."""
    row_table: bytes
    """Maps each byte to the number of its row; the same table if one number holds both."""
    column_mask: int
    """Bits of a column's number, repeated for each byte of a block."""
    row_mask: int
    """Bits of a row's number, repeated likewise."""
    weight_indexes: bytes
    """Maps each sum to its index in ``TOKEN_WEIGHTS``."""
    weights: bytes
    """Maps each sum to its weight."""


def _build_code(
    column_table: bytes,
    row_table: bytes,
    column_bits: int,
    row_bits: int,
    row_starts: Sequence[int],
) -> _KindCode:
    """Build the code whose rows are numbered ``row_starts``; all bits fit into one byte."""
    indexes = bytearray(256)
    column_count = len(BYTE_KINDS)
    # Only the columns that fit into these bits: ASCII has fewer kinds than all bytes together.
    width = min(column_bits + 1, column_count)
    sums_by_row = dict(enumerate(row_starts))
    for row in _RUN_BITS_BY_ROW:
        sums_by_row[row + _RUN_ROW_OFFSET] = row_starts[row] + _RUN_BIT
    for row, first_sum in sums_by_row.items():
        indexes[first_sum : first_sum + width] = range(row * column_count, row * column_count + width)
    weight_indexes = bytes(indexes)
    return _KindCode(
        column_table,
        row_table,
        _repeat_byte(column_bits),
        _repeat_byte(row_bits),
        weight_indexes,
        weight_indexes.translate(TOKEN_WEIGHTS),
    )


def _repeat_byte(byte: int) -> int:
    """Return the integer that has ``byte`` in each byte of a block."""
    return int.from_bytes(bytes([byte]) * BLOCK_BYTES, "little")


def _build_row_table(numbers: Iterable[int]) -> bytes:
    """Return the table for ``bytes.translate`` that maps each byte to the one of ``numbers`` for its row."""
    return _PRECEDING_TABLE.translate(bytes(numbers).ljust(256, b"\0"))


def _build_ascii_code() -> _KindCode:
    """Build the code for ASCII, which has so few kinds that one number holds row and column: half the work."""
    row_starts = (0x00, 0x20, 0x30, 0x40, 0x10, 0x50, 0x60, 0x70)
    row_numbers = [start | _RUN_BITS_BY_ROW.get(row, 0) for row, start in enumerate(row_starts)]
    table = bytes(map(or_, _KIND_TABLE, _build_row_table(row_numbers)))
    return _build_code(table, table, 0x0F, 0x70, row_starts)


def _build_full_code() -> _KindCode:
    """Build the code for all bytes."""
    row_starts = (0, 21, 42, 63, 84, 105, _RUN_BIT, _RUN_BIT + 84, _RUN_BIT + 105)
    run_bits = [_RUN_BITS_BY_ROW.get(row, 0) for row in range(len(PRECEDING_KINDS))]
    column_table = bytes(map(or_, _KIND_TABLE, _build_row_table(run_bits)))
    return _build_code(
        column_table,
        _build_row_table(row_starts),
        0x1F,
        0xFF,
        row_starts,
    )


_ASCII_CODE, _FULL_CODE = _build_ascii_code(), _build_full_code()
_RUN_MASK = _repeat_byte(_RUN_BIT)


def get_weight_indexes(data: bytes) -> bytes:
    """Return, for each byte of ``data``, the index of its weight in ``TOKEN_WEIGHTS``; at most a block of bytes."""
    code = _select_code(data)
    return _number_byte_pairs(data, code).translate(code.weight_indexes)


def _select_code(data: bytes) -> _KindCode:
    return _ASCII_CODE if data.isascii() else _FULL_CODE


def _number_byte_pairs(data: bytes, code: _KindCode) -> bytes:
    """Return a number for each byte of a block that identifies its kind and the kind before it."""
    # Little-endian, so that the first byte is the lowest and a shift to the left moves towards the end of the text.
    columns = int.from_bytes(data.translate(code.column_table), "little")
    rows = columns
    if code.row_table is not code.column_table:
        rows = int.from_bytes(data.translate(code.row_table), "little")
    # A bit is set where a run of the same kind ends: two bytes in a row, then four, then seven.
    two_in_a_row = columns & columns << 8
    four_in_a_row = two_in_a_row & two_in_a_row << 16
    seven_in_a_row = four_in_a_row & four_in_a_row << 24
    # Shifts move the bit of blanks (0x40) by one and the bit of letters (0x20) by two, onto the run bit.
    blank_runs = two_in_a_row & two_in_a_row << 1
    letter_runs = seven_in_a_row & seven_in_a_row << 2
    runs = (blank_runs | letter_runs) & _RUN_MASK
    # A row's number is moved to the next byte: it describes what comes before that one.
    sums = (columns & code.column_mask) + ((rows & code.row_mask | runs) << 8)
    return sums.to_bytes(len(data) + 1, "little")[:-1]


# -- sums of weights ---------------------------------------------------------------------------------------------------

_LONG_RUN = 64
"""Length from which a run of one letter is treated apart. No word is so long, and looking for it takes a hundredth of
the time of weighing."""
_RARE_LETTER_WEIGHT = TOKEN_WEIGHTS[10 * len(BYTE_KINDS) + 3 :][:1]
"""Weight of a rare letter behind seven small ones; in a long run that is one letter repeated."""
_RARE_RUN, _RARE_RUN_PATTERN = (
    _RARE_LETTER_WEIGHT * _LONG_RUN,
    re.compile(re.escape(_RARE_LETTER_WEIGHT) + b"{%d,}" % _LONG_RUN),
)
_LONG_RUN_WEIGHT = bytes([24])
"""Its weight in a long run: o200k has tokens of eight x or f, of four b or c, of two q, w or z."""


def count_token_units(pieces: Iterable[bytes]) -> int:
    """Return the weight of ``pieces`` as if they were joined, without joining them."""
    return sum(_sum_weights(_weigh_block(block), 0, len(block)) for block in _iter_blocks(pieces))


def count_token_units_by_text(texts: Sequence[bytes]) -> list[int]:
    """Return the weight of each of ``texts``; joined by line ends they must fit into one block.

    A line end stops everything that reaches from one byte to the next, so all can be weighed at once.
    """
    weights = _weigh_block(b"\n".join(texts))
    # Each text is followed by the line end that joins it to the next one.
    starts = accumulate([len(text) + 1 for text in texts], initial=0)
    return [_sum_weights(weights, start, stop - 1) for start, stop in pairwise(starts)]


def _weigh_block(block: bytes) -> bytes:
    """Return the weight of each byte of a block. A long run of one letter has few tokens, whichever letter it is."""
    code = _select_code(block)
    weights = _number_byte_pairs(block, code).translate(code.weights)
    # A substring search costs next to nothing; the pattern runs only where it will match.
    if _RARE_RUN not in weights:
        return weights
    return _RARE_RUN_PATTERN.sub(lambda run: _LONG_RUN_WEIGHT * len(run[0]), weights)


def _iter_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of ``pieces`` in whole blocks, and the rest."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        block_bytes = len(buffer) - len(buffer) % BLOCK_BYTES
        for at in range(0, block_bytes, BLOCK_BYTES):
            yield buffer[at : at + BLOCK_BYTES]
        buffer = buffer[block_bytes:]
    yield buffer


def _sum_weights(weights: bytes, start: int, stop: int) -> int:
    """Return the sum of the weights from ``start`` to ``stop``."""
    # The low half of an Adler-32 begun at 0 is the sum of the bytes; 256 bytes cannot reach its modulus, 65,521.
    units = 0
    while stop - start > 256:
        units += adler32(weights[start : start + 256], 0) & 0xFFFF
        start += 256
    return units + (adler32(weights[start:stop], 0) & 0xFFFF)
