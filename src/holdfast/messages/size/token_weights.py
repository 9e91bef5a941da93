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

UNIT = 128
"""Weights are in 128ths of a token: a byte can hold up to two."""
BLOCK = 1 << 16
"""Bytes weighed at a time: the numbers made of them stay in the processor's cache, and memory stays small."""
_VOWELS = b"aeiou"
_CONSONANTS = b"bcdfghjklmnpqrstvwxyz"
_SELDOM = b"bcfqwxz"
"""Small letters that begin a token inside a word more often than the others (merged by least loss on the corpus)."""
_BLANKS = b" \t"
_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = b"0123456789"
_JOINING = b"._/\\(-'=[,?"
"""Marks that mostly go into one token with the letters behind them; behind other marks a token mostly begins."""
_MARKS = b"\"'`()[]{}<>:;,="
_LEADS = b"\xc0\xc4\xd0\xd4\xd8\xe0\xe2\xe3\xea\xf0\xff"
"""First bytes of the ranges told apart beyond ASCII: Latin-1, more Latin and Greek, Cyrillic, Hebrew, Arabic, Indic and
Thai, signs, kana and Han, Hangul, emoji; and the end."""


def _kinds(*named: bytes) -> tuple[bytes, ...]:
    """Return ``named`` kinds of bytes and, as one more, the rest of ASCII."""
    return (*named, bytes(range(0x80)).translate(None, b"".join(named)))


def _leads() -> tuple[bytes, ...]:
    """Return the bytes of each range of ``_LEADS``."""
    return tuple(bytes(range(start, stop)) for start, stop in pairwise(_LEADS))


HERE = (
    *_kinds(
        b"\n\r", _VOWELS, _CONSONANTS.translate(None, _SELDOM), _SELDOM, b"\t", b" ", _CAPITALS, _DIGITS, _MARKS,
    ),
    bytes(range(0x80, 0xC0)),
    *_leads(),
)  # fmt: skip
"""21 kinds a byte can be of."""
BEFORE = (
    *_kinds(b"\n\r", _VOWELS, _CONSONANTS, _BLANKS, _CAPITALS, _DIGITS, _JOINING),
    bytes(range(0x80, 0x100)),
)
"""9 kinds the byte before it can be of. Three more are a vowel or consonant that ends seven small letters in a row, and
a blank that ends two in a row; before the first byte stands a line end."""


def _marked(kinds: tuple[bytes, ...]) -> bytes:
    """Return the table for ``bytes.translate`` that gives every byte the number of its kind."""
    table = bytearray(256)
    for number, members in enumerate(kinds):
        for byte in members:
            table[byte] = number
    return bytes(table)


def _table(rows: str) -> bytes:
    """Return the weights as a table for ``bytes.translate``: the numbers of ``rows`` under the line of names."""
    _, *lines = rows.strip().splitlines()
    return bytes(int(number) for line in lines for number in line.split()[1:]).ljust(256, b"\0")


WEIGHTS = _table("""
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
"""What a byte weighs, by its own kind (a column for each of ``HERE``) and what stands before it (a row for each of
``BEFORE``, then the runs), as ``bench/estimator.py`` fitted it to o200k; *tl* is the tail of a character beyond ASCII,
C0 to F0 begin one."""


# -- a number for each pair --------------------------------------------------------------------------------------------
#
# Rows and columns have numbers whose sum is one byte. They are added up for all bytes at once, on whole numbers as long
# as the text, in which ``<< 8`` moves to the next byte.

_COLUMNS, _ROWS = _marked(HERE), _marked(BEFORE)
_RUN = 0x80
"""By so much the number of a row is higher where a run ends; the bit stands in whatever runs are made of."""
_OF_RUNS = {1: _RUN | 0x20, 2: _RUN | 0x20, 3: _RUN | 0x40}
"""Bits for the rows that have runs: of small letters, and of blanks."""
_BELOW = 8
"""In the table of weights the runs of a row stand so many rows below it."""


class _Code(Struct, frozen=True):
    """How kinds are numbered."""

    here: bytes
    """For each byte its column, and the bits of runs."""
    before: bytes
    """For each byte the number of its row; the same table where one number holds both."""
    column: int
    row: int
    """The bits that hold them, throughout a block."""
    places: bytes
    """For each sum its place in ``WEIGHTS``."""
    weights: bytes
    """For each sum the weight."""


def _code(here: bytes, before: bytes, column: int, row: int, starts: Sequence[int]) -> _Code:
    """Return the code whose rows have the numbers ``starts``; ``column`` and ``row`` are the bits of a byte."""
    places = bytearray(256)
    width = min(column + 1, len(HERE))
    runs = ((number + _BELOW, starts[number] + _RUN) for number in _OF_RUNS)
    for number, start in (*enumerate(starts), *runs):
        places[start : start + width] = range(number * len(HERE), number * len(HERE) + width)
    table = bytes(places)
    return _Code(here, before, _throughout(column), _throughout(row), table, table.translate(WEIGHTS))


def _throughout(byte: int) -> int:
    """Return the number that has ``byte`` in each byte of a block."""
    return int.from_bytes(bytes([byte]) * BLOCK, "little")


def _by_row(numbers: Iterable[int]) -> bytes:
    """Return the table for ``bytes.translate`` that gives every byte one of ``numbers``, that of its row."""
    return _ROWS.translate(bytes(numbers).ljust(256, b"\0"))


def _of_ascii() -> _Code:
    """Return the code of ASCII alone, of so few kinds that one number holds both: reading it takes half the work."""
    starts = (0x00, 0x20, 0x30, 0x40, 0x10, 0x50, 0x60, 0x70)
    both = bytes(map(or_, _COLUMNS, _by_row(start | _OF_RUNS.get(row, 0) for row, start in enumerate(starts))))
    return _code(both, both, 0x0F, 0x70, starts)


def _of_any() -> _Code:
    """Return the code of all bytes."""
    starts = (0, 21, 42, 63, 84, 105, _RUN, _RUN + 84, _RUN + 105)
    marks = bytes(map(or_, _COLUMNS, _by_row(_OF_RUNS.get(row, 0) for row in range(len(BEFORE)))))
    return _code(marks, _by_row(starts), 0x1F, 0xFF, starts)


_ASCII, _ANY = _of_ascii(), _of_any()
_RUNS = _throughout(_RUN)


def pairs(data: bytes) -> bytes:
    """Return the place in ``WEIGHTS`` of each byte of ``data``, which is a block at most."""
    code = _code_of(data)
    return _sums(data, code).translate(code.places)


def _code_of(data: bytes) -> _Code:
    return _ASCII if data.isascii() else _ANY


def _sums(data: bytes, code: _Code) -> bytes:
    """Return the number of each byte of a block with the one before it; a line end stands before the first."""
    here = int.from_bytes(data.translate(code.here), "little")
    before = here if code.before is code.here else int.from_bytes(data.translate(code.before), "little")
    two = here & here << 8  # of a kind in a row end here
    seven = two & two << 16  # four
    seven &= seven << 24
    runs = (two & two << 1 | seven & seven << 2) & _RUNS
    return ((here & code.column) + ((before & code.row | runs) << 8)).to_bytes(len(data) + 1, "little")[:-1]


# -- sums of weights ---------------------------------------------------------------------------------------------------

_LONG = 64
"""Letters of a run that is looked for: no word has so many, and looking takes a hundredth of the time. [M]"""
_SELDOM_UNITS = WEIGHTS[10 * len(HERE) + 3 :][:1]
"""What a seldom letter weighs behind seven small ones; in a long run it is one letter over and over."""
_SELDOM_RUN, _SELDOM_RUNS = _SELDOM_UNITS * _LONG, re.compile(re.escape(_SELDOM_UNITS) + b"{%d,}" % _LONG)
_IN_RUN = bytes([24])
"""What it weighs there: o200k has tokens of eight x or f, of four b or c, of two q, w or z. [M]"""


def weight(pieces: Iterable[bytes]) -> int:
    """Return the units that ``pieces`` weigh joined, without joining them: the same blocks are weighed."""
    return sum(_sum(_weighed(block), 0, len(block)) for block in _blocks(pieces))


def weights_of(texts: Sequence[bytes]) -> list[int]:
    """Return the units that each of ``texts`` weighs for itself; with line ends between them they are a block.

    Nothing reaches over a line end, so that all are weighed at once.
    """
    weights = _weighed(b"\n".join(texts))
    starts = accumulate([len(text) + 1 for text in texts], initial=0)
    return [_sum(weights, start, stop - 1) for start, stop in pairwise(starts)]


def _weighed(block: bytes) -> bytes:
    """Return the units that each byte of a block weighs; a long run of one letter has few tokens, whichever it is."""
    code = _code_of(block)
    weights = _sums(block, code).translate(code.weights)
    return _SELDOM_RUNS.sub(lambda run: _IN_RUN * len(run[0]), weights) if _SELDOM_RUN in weights else weights


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of ``pieces`` in blocks."""
    held = b""
    for piece in pieces:
        held += piece
        whole = len(held) - len(held) % BLOCK
        yield from (held[at : at + BLOCK] for at in range(0, whole, BLOCK))
        held = held[whole:]
    yield held


def _sum(weights: bytes, start: int, stop: int) -> int:
    """Return the sum of the bytes from ``start`` to ``stop``, which are weights."""
    # The low half of an Adler-32 begun at 0 is the sum of the bytes; 256 bytes cannot reach its modulus, 65,521.
    units = 0
    while stop - start > 256:
        units += adler32(weights[start : start + 256], 0) & 0xFFFF
        start += 256
    return units + (adler32(weights[start:stop], 0) & 0xFFFF)
