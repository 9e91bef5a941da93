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
"""Marks that are mostly in one token with the letters after them; after other marks a token mostly begins."""
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
# Each byte is given the number *row start + column*: the column is the kind of the byte, the row the kind of the byte
# before it. All these sums are below 256 and different, so ``bytes.translate`` can turn them into weights. The sums of
# a whole block are computed at once, with integers as long as the block, in which ``<< 8`` moves to the next byte.
#
# Example: the digit in ``a1``, in the numbering for ASCII. The vowel ``a`` is row 1, which starts at 0x20; a digit is
# column 7. The sum 0x20 + 7 = 0x27 stands for index 1 * 21 + 7 = 28 of ``TOKEN_WEIGHTS`` (21 columns a row), which is
# 126. If the vowel ends seven small letters in a row (``aaaaaaa1``), ``_RUN_BIT`` is added: 0xA7 stands for the same
# column of row 1 + 8 = 9 (``..vow``), which is 80.

_KIND_TABLE, _PRECEDING_TABLE = _build_kind_table(BYTE_KINDS), _build_kind_table(PRECEDING_KINDS)
_RUN_BIT = 0x80
"""Added to the start of a row if a run ends there. In the tables below the bit is set for every byte that can be part
of a run."""
_RUN_BITS_BY_ROW = {1: _RUN_BIT | 0x20, 2: _RUN_BIT | 0x20, 3: _RUN_BIT | 0x40}
"""Bits of the rows that can form runs: 0x20 for small letters (vowels and consonants), 0x40 for blanks."""
_RUN_ROW_OFFSET = 8
"""How many rows below its own row the runs of a row are in ``TOKEN_WEIGHTS``."""


class _PairNumbering(Struct, frozen=True):
    """How a byte and the byte before it are turned into one number below 256."""

    column_table: bytes
    """Maps each byte to its column, plus its bits of ``_RUN_BITS_BY_ROW``."""
    row_table: bytes
    """Maps each byte to the start of the row that it makes for the next byte; the same object as ``column_table`` if
    that one holds both."""
    column_mask: int
    """The bits of an item of ``column_table`` that are the column, repeated for each byte of a block."""
    row_mask: int
    """The bits of an item of ``row_table`` that are the start of the row, repeated likewise."""
    weight_indexes: bytes
    """Maps each sum to its index in ``TOKEN_WEIGHTS``."""
    weights: bytes
    """Maps each sum to its weight."""


def _build_pair_numbering(
    column_table: bytes,
    row_table: bytes,
    column_mask: int,
    row_mask: int,
    row_starts: Sequence[int],
) -> _PairNumbering:
    """Build the numbering whose row n starts at the sum ``row_starts[n]``; the masks are those of one byte."""
    weight_indexes = bytearray(256)
    column_count = len(BYTE_KINDS)
    # How many columns the mask can tell apart. For ASCII 16 are enough: the kinds beyond do not occur there.
    used_column_count = min(column_mask + 1, column_count)
    start_by_row = dict(enumerate(row_starts))
    for row in _RUN_BITS_BY_ROW:
        start_by_row[row + _RUN_ROW_OFFSET] = row_starts[row] + _RUN_BIT
    for row, start in start_by_row.items():
        first_index = row * column_count
        weight_indexes[start : start + used_column_count] = range(first_index, first_index + used_column_count)
    return _PairNumbering(
        column_table,
        row_table,
        _repeat_byte(column_mask),
        _repeat_byte(row_mask),
        bytes(weight_indexes),
        bytes(weight_indexes).translate(TOKEN_WEIGHTS),
    )


def _repeat_byte(byte: int) -> int:
    """Return the integer that has ``byte`` in each byte of a block."""
    return int.from_bytes(bytes([byte]) * BLOCK_BYTES, "little")


def _build_row_table(items: Iterable[int]) -> bytes:
    """Return the table for ``bytes.translate`` that maps each byte to the item of the row that it makes."""
    return _PRECEDING_TABLE.translate(bytes(items).ljust(256, b"\0"))


def _build_ascii_numbering() -> _PairNumbering:
    """Build the numbering for ASCII.

    ASCII has so few kinds that one byte holds both: the column in the low four bits, the start of the row in the next
    three. So one table and one big integer are enough, which is half the work.
    """
    # Rows that can form runs start where their run bits are set already: 0x20 and 0x30 for letters, 0x40 for blanks.
    row_starts = (0x00, 0x20, 0x30, 0x40, 0x10, 0x50, 0x60, 0x70)
    row_items = [start | _RUN_BITS_BY_ROW.get(row, 0) for row, start in enumerate(row_starts)]
    table = bytes(map(or_, _KIND_TABLE, _build_row_table(row_items)))
    return _build_pair_numbering(table, table, 0x0F, 0x70, row_starts)


def _build_full_numbering() -> _PairNumbering:
    """Build the numbering for all bytes: 9 rows and 3 rows of runs of 21 columns, which are 252 of the 256 sums.

    A row that can form runs and its row of runs are 128 (``_RUN_BIT``) apart, and the other rows fill the gaps.
    """
    row_starts = (0, 21, 42, 63, 84, 105, _RUN_BIT, _RUN_BIT + 84, _RUN_BIT + 105)
    run_bits = [_RUN_BITS_BY_ROW.get(row, 0) for row in range(len(PRECEDING_KINDS))]
    column_table = bytes(map(or_, _KIND_TABLE, _build_row_table(run_bits)))
    return _build_pair_numbering(
        column_table,
        _build_row_table(row_starts),
        0x1F,
        0xFF,
        row_starts,
    )


_ASCII_NUMBERING, _FULL_NUMBERING = _build_ascii_numbering(), _build_full_numbering()
_RUN_MASK = _repeat_byte(_RUN_BIT)


def get_weight_indexes(data: bytes) -> bytes:
    """Return, for each byte of ``data``, the index of its weight in ``TOKEN_WEIGHTS``; at most a block of bytes."""
    numbering = _select_numbering(data)
    return _number_byte_pairs(data, numbering).translate(numbering.weight_indexes)


def _select_numbering(data: bytes) -> _PairNumbering:
    return _ASCII_NUMBERING if data.isascii() else _FULL_NUMBERING


def _number_byte_pairs(data: bytes, numbering: _PairNumbering) -> bytes:
    """Return the sum *row start + column* for each byte of a block; the first one counts as following a line end."""
    # Little-endian, so that the first byte is the lowest and a shift to the left moves towards the end of the text.
    columns = int.from_bytes(data.translate(numbering.column_table), "little")
    rows = columns
    if numbering.row_table is not numbering.column_table:
        rows = int.from_bytes(data.translate(numbering.row_table), "little")
    # A bit is set where a run of the same kind ends: two bytes in a row, then four, then seven.
    two_in_a_row = columns & columns << 8
    four_in_a_row = two_in_a_row & two_in_a_row << 16
    seven_in_a_row = four_in_a_row & four_in_a_row << 24
    # Shifts move the bit of blanks (0x40) by one and the bit of letters (0x20) by two, onto the run bit.
    blank_runs = two_in_a_row & two_in_a_row << 1
    letter_runs = seven_in_a_row & seven_in_a_row << 2
    runs = (blank_runs | letter_runs) & _RUN_MASK
    # The start of a row is moved to the next byte, for which this byte is the one before.
    sums = (columns & numbering.column_mask) + ((rows & numbering.row_mask | runs) << 8)
    return sums.to_bytes(len(data) + 1, "little")[:-1]


# -- sums of weights ---------------------------------------------------------------------------------------------------

_LONG_RUN = 64
"""Length from which a run of one letter is treated apart. No word is so long, and looking for it takes a hundredth of
the time of weighing."""
_RARE_LETTER_WEIGHT = TOKEN_WEIGHTS[10 * len(BYTE_KINDS) + 3 :][:1]
"""Weight of a rare letter after seven small ones (row 10, column 3); in a long run that is one letter repeated.

No other cell of the table has this weight (``test_token_weights`` checks it), so a run of it is a run of such letters.
"""
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
    numbering = _select_numbering(block)
    weights = _number_byte_pairs(block, numbering).translate(numbering.weights)
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
