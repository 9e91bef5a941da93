"""Bytes to tokens: what each byte of a text weighs, in shares of a token.

Where a token ends and the next begins is decided close by: a capital after a small letter, a digit after a space, an
unlikely letter. So each byte weighs the share of such places where o200k begins a token, told by the kind of the byte
and the kind of the byte before it, and a text is as many tokens as its bytes weigh.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import or_
from zlib import adler32

from msgspec import Struct

UNITS_PER_TOKEN = 128
"""Weights are in 128ths of a token: a byte can hold up to two."""
BLOCK_BYTES = 1 << 16
"""Bytes weighed at a time: the numbers made of them stay in the processor's cache, and memory stays small."""
_VOWELS = b"aeiou"
_CONSONANTS = b"bcdfghjklmnpqrstvwxyz"
_RARE_LETTERS = b"bcfqwxz"
"""Small letters that begin a token inside a word more often than the others (merged by least loss on the corpus)."""
_BLANKS = b" \t"
_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = b"0123456789"
_JOINING_MARKS = b"._/\\(-'=[,?"
"""Marks that mostly go into one token with the letters behind them; behind other marks a token mostly begins."""
_PLAIN_MARKS = b"\"'`()[]{}<>:;,="
_LEAD_BYTES = b"\xc0\xc4\xd0\xd4\xd8\xe0\xe2\xe3\xea\xf0\xff"
"""First bytes of the ranges told apart beyond ASCII: Latin-1, more Latin and Greek, Cyrillic, Hebrew, Arabic, Indic and
Thai, signs, kana and Han, Hangul, emoji; and the end."""


def _with_rest_of_ascii(*byte_kinds: bytes) -> tuple[bytes, ...]:
    """Return ``byte_kinds`` kinds of bytes and, as one more, the rest of ASCII."""
    return (*byte_kinds, bytes(range(0x80)).translate(None, b"".join(byte_kinds)))


def _list_lead_ranges() -> tuple[bytes, ...]:
    """Return the bytes of each range of ``_LEAD_BYTES``."""
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
"""21 kinds a byte can be of."""
PRECEDING_KINDS = (
    *_with_rest_of_ascii(b"\n\r", _VOWELS, _CONSONANTS, _BLANKS, _CAPITALS, _DIGITS, _JOINING_MARKS),
    bytes(range(0x80, 0x100)),
)
"""9 kinds the byte before it can be of. Three more are a vowel or consonant that ends seven small letters in a row, and
a blank that ends two in a row; before the first byte stands a line end."""


def _build_kind_table(kinds: tuple[bytes, ...]) -> bytes:
    """Return the table for ``bytes.translate`` that gives every byte the number of its kind."""
    table = bytearray(256)
    for number, members in enumerate(kinds):
        for byte in members:
            table[byte] = number
    return bytes(table)


def _parse_weights(rows: str) -> bytes:
    """Return the weights as a table for ``bytes.translate``: the numbers of ``rows`` under the line of names."""
    _, *lines = rows.strip().splitlines()
    return bytes(int(number) for line in lines for number in line.split()[1:]).ljust(256, b"\0")


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
"""What a byte weighs, by its own kind (a column for each of ``BYTE_KINDS``) and what stands before it (a row for
each of ``PRECEDING_KINDS``, then the runs), as ``bench/estimator.py`` fitted it to o200k; *tl* is the tail of a
character beyond ASCII, C0 to F0 begin one.
"""


# -- a number for each pair --------------------------------------------------------------------------------------------
#
# Rows and columns have numbers whose sum is one byte. They are added up for all bytes at once, on whole numbers as long
# as the text, in which ``<< 8`` moves to the next byte.

_KIND_TABLE, _PRECEDING_TABLE = _build_kind_table(BYTE_KINDS), _build_kind_table(PRECEDING_KINDS)
_RUN_BIT = 0x80
"""By so much the number of a row is higher where a run ends; the bit stands in whatever runs are made of."""
_RUN_BITS_BY_ROW = {1: _RUN_BIT | 0x20, 2: _RUN_BIT | 0x20, 3: _RUN_BIT | 0x40}
"""Bits for the rows that have runs: of small letters, and of blanks."""
_RUN_ROW_OFFSET = 8
"""In the table of weights the runs of a row stand so many rows below it."""


class _KindCode(Struct, frozen=True):
    """How kinds are numbered."""

    column_table: bytes
    """For each byte its column, and the bits of runs."""
    row_table: bytes
    """For each byte the number of its row; the same table where one number holds both."""
    column_mask: int
    row_mask: int
    """The bits that hold them, throughout a block."""
    weight_indexes: bytes
    """For each sum its place in ``TOKEN_WEIGHTS``."""
    weights: bytes
    """For each sum the weight."""


def _build_code(here: bytes, before: bytes, column: int, row: int, starts: Sequence[int]) -> _KindCode:
    """Return the code whose rows have the numbers ``starts``; ``column`` and ``row`` are the bits of a byte."""
    places = bytearray(256)
    width = min(column + 1, len(BYTE_KINDS))
    runs = ((number + _RUN_ROW_OFFSET, starts[number] + _RUN_BIT) for number in _RUN_BITS_BY_ROW)
    for number, start in (*enumerate(starts), *runs):
        places[start : start + width] = range(number * len(BYTE_KINDS), number * len(BYTE_KINDS) + width)
    table = bytes(places)
    return _KindCode(here, before, _repeat_byte(column), _repeat_byte(row), table, table.translate(TOKEN_WEIGHTS))


def _repeat_byte(byte: int) -> int:
    """Return the number that has ``byte`` in each byte of a block."""
    return int.from_bytes(bytes([byte]) * BLOCK_BYTES, "little")


def _build_row_table(numbers: Iterable[int]) -> bytes:
    """Return the table for ``bytes.translate`` that gives every byte one of ``numbers``, that of its row."""
    return _PRECEDING_TABLE.translate(bytes(numbers).ljust(256, b"\0"))


def _build_ascii_code() -> _KindCode:
    """Return the code of ASCII alone, of so few kinds that one number holds both: reading it takes half the work."""
    starts = (0x00, 0x20, 0x30, 0x40, 0x10, 0x50, 0x60, 0x70)
    columns = bytes(
        map(
            or_, _KIND_TABLE, _build_row_table(start | _RUN_BITS_BY_ROW.get(row, 0) for row, start in enumerate(starts))
        )
    )
    return _build_code(columns, columns, 0x0F, 0x70, starts)


def _build_full_code() -> _KindCode:
    """Return the code of all bytes."""
    starts = (0, 21, 42, 63, 84, 105, _RUN_BIT, _RUN_BIT + 84, _RUN_BIT + 105)
    marks = bytes(
        map(or_, _KIND_TABLE, _build_row_table(_RUN_BITS_BY_ROW.get(row, 0) for row in range(len(PRECEDING_KINDS))))
    )
    return _build_code(marks, _build_row_table(starts), 0x1F, 0xFF, starts)


_ASCII_CODE, _FULL_CODE = _build_ascii_code(), _build_full_code()
_RUN_MASK = _repeat_byte(_RUN_BIT)


def get_weight_indexes(data: bytes) -> bytes:
    """Return the place in ``TOKEN_WEIGHTS`` of each byte of ``data``, which is a block at most."""
    code = _select_code(data)
    return _number_byte_pairs(data, code).translate(code.weight_indexes)


def _select_code(data: bytes) -> _KindCode:
    return _ASCII_CODE if data.isascii() else _FULL_CODE


def _number_byte_pairs(data: bytes, code: _KindCode) -> bytes:
    """Return the number of each byte of a block with the one before it; a line end stands before the first."""
    here = int.from_bytes(data.translate(code.column_table), "little")
    before = here if code.row_table is code.column_table else int.from_bytes(data.translate(code.row_table), "little")
    two = here & here << 8  # of a kind in a row end here
    seven = two & two << 16  # four
    seven &= seven << 24
    runs = (two & two << 1 | seven & seven << 2) & _RUN_MASK
    return ((here & code.column_mask) + ((before & code.row_mask | runs) << 8)).to_bytes(len(data) + 1, "little")[:-1]


# -- sums of weights ---------------------------------------------------------------------------------------------------

_LONG_RUN = 64
"""Letters of a run that is looked for: no word has so many, and looking takes a hundredth of the time. [M]"""
_RARE_LETTER_WEIGHT = TOKEN_WEIGHTS[10 * len(BYTE_KINDS) + 3 :][:1]
"""What a seldom letter weighs behind seven small ones; in a long run it is one letter over and over."""
_RARE_RUN, _RARE_RUN_PATTERN = (
    _RARE_LETTER_WEIGHT * _LONG_RUN,
    re.compile(re.escape(_RARE_LETTER_WEIGHT) + b"{%d,}" % _LONG_RUN),
)
_LONG_RUN_WEIGHT = bytes([24])
"""What it weighs there: o200k has tokens of eight x or f, of four b or c, of two q, w or z. [M]"""


def count_token_units(pieces: Iterable[bytes]) -> int:
    """Return the units that ``pieces`` weigh joined, without joining them: the same blocks are weighed."""
    return sum(_sum_weights(_weigh_block(block), 0, len(block)) for block in _iter_blocks(pieces))


def count_token_units_by_text(texts: Sequence[bytes]) -> list[int]:
    """Return the units that each of ``texts`` weighs for itself; with line ends between them they are a block.

    Nothing reaches over a line end, so that all are weighed at once.
    """
    weights = _weigh_block(b"\n".join(texts))
    starts = accumulate([len(text) + 1 for text in texts], initial=0)
    return [_sum_weights(weights, start, stop - 1) for start, stop in pairwise(starts)]


def _weigh_block(block: bytes) -> bytes:
    """Return the units that each byte of a block weighs; a long run of one letter has few tokens, whichever it is."""
    code = _select_code(block)
    weights = _number_byte_pairs(block, code).translate(code.weights)
    return (
        _RARE_RUN_PATTERN.sub(lambda run: _LONG_RUN_WEIGHT * len(run[0]), weights) if _RARE_RUN in weights else weights
    )


def _iter_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of ``pieces`` in blocks."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        whole = len(buffer) - len(buffer) % BLOCK_BYTES
        yield from (buffer[at : at + BLOCK_BYTES] for at in range(0, whole, BLOCK_BYTES))
        buffer = buffer[whole:]
    yield buffer


def _sum_weights(weights: bytes, start: int, stop: int) -> int:
    """Return the sum of the bytes from ``start`` to ``stop``, which are weights."""
    # The low half of an Adler-32 begun at 0 is the sum of the bytes; 256 bytes cannot reach its modulus, 65,521.
    units = 0
    while stop - start > 256:
        units += adler32(weights[start : start + 256], 0) & 0xFFFF
        start += 256
    return units + (adler32(weights[start:stop], 0) & 0xFFFF)
