"""The estimator: tokens of any text without a vocabulary, calibrated by what the provider reports.

Every byte weighs a share of a token by its kind and the kind of the byte before it; the sum is the text's tokens. The
weights are a least-squares fit against o200k over fifteen classes of content (``bench/estimator.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from operator import add
from typing import cast
from zlib import adler32

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.branch import Branch
from holdfast.model.gauging import HIGHEST, LOWEST, Gauge
from holdfast.model.messages import Message
from holdfast.model.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.model.slots import Slot
from holdfast.model.target import Target
from holdfast.view.text import encoded

MESSAGE_OVERHEAD = 8
"""Tokens around a message: role and delimiters (measured on recorded sessions, see docs/estimator.md)."""
IMAGE_TOKENS = 1_500
"""Tokens of an image whose dimensions are unknown (opencode v2; Anthropic's largest is about 1,600)."""
DOCUMENT_TOKENS = 2_000
"""Tokens of a document whose pages are unknown (opencode v2)."""
PRIOR_WEIGHT = 2_000
"""Estimated tokens of evidence that the prior of a model counts for."""
UNSEEN_MARGIN = 1.10
"""Before any usage was reported the estimate is rounded up by a tenth."""


# -- bytes to tokens ---------------------------------------------------------------------------------------------------
#
# Where a token ends and the next begins is decided close by: a capital after a small letter, a digit after a space, an
# unlikely letter. So each byte weighs the share of such places where o200k begins a token, told by the kind of the byte
# and the kind of the byte before it, and a text is as many tokens as its bytes weigh.

UNIT = 128
"""Weights are in 128ths of a token: a byte can hold up to two."""
_BLOCK = 1 << 16
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
_RUN = 8
"""In the table of weights these three stand 8 rows below the vowel, the consonant and the blank: one bit more."""


def _marked(kinds: tuple[bytes, ...], step: int = 1) -> bytes:
    """Return the table for ``bytes.translate`` that gives every byte ``step`` times the number of its kind."""
    table = bytearray(256)
    for number, members in enumerate(kinds):
        for byte in members:
            table[byte] = number * step
    return bytes(table)


def _table(rows: str) -> bytes:
    """Return the weights as a table for ``bytes.translate``: the numbers of ``rows`` under the line of names."""
    _, *lines = rows.strip().splitlines()
    return bytes(int(number) for line in lines for number in line.split()[1:]).ljust(256, b"\0")


def _throughout(byte: int) -> int:
    """Return the number that has ``byte`` in each byte of a block."""
    return int.from_bytes(bytes([byte]) * _BLOCK, "little")


_HERE_TABLE = _marked(HERE)
_BEFORE_TABLE = bytes(map(add, _marked(BEFORE), _marked((b"", _VOWELS + _CONSONANTS, _BLANKS), 2 * _RUN)))
"""The row in the low bits, and above it a bit for small letters and one for blanks, which runs are made of."""
_ROW, _SMALL, _BLANK = _throughout(2 * _RUN - 1), _throughout(2 * _RUN), _throughout(4 * _RUN)

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


def pairs(data: bytes) -> bytes:
    """Return a byte for each byte of ``data``: its row of ``WEIGHTS`` times ``len(HERE)``, plus its column.

    ``data`` is a block at most. It is done for all bytes at once, on whole numbers as long as the text, in which
    ``<< 8`` moves to the next byte.
    """
    here, before = [int.from_bytes(data.translate(table), "little") for table in (_HERE_TABLE, _BEFORE_TABLE)]
    two = before & before << 8  # of a kind in a row end here
    seven = two & two << 16  # four
    seven &= seven << 24
    rows = before & _ROW | (seven & _SMALL) >> 1 | (two & _BLANK) >> 2
    return (here + (rows * len(HERE) << 8)).to_bytes(len(data) + 1, "little")[:-1]


def count_bytes(data: bytes) -> int:
    """Return the estimated o200k tokens of UTF-8 ``data``; 0 only for nothing."""
    weight = sum([_weight(data[at : at + _BLOCK]) for at in range(0, len(data), _BLOCK)])
    return _tokens(weight) if data else 0


def _count_pieces(pieces: Iterable[bytes]) -> int:
    """Return what ``count_bytes`` says of ``pieces`` joined, without joining them: the same blocks are weighed."""
    return _tokens(sum(_weight(block) for block in _blocks(pieces)))


def _tokens(weight: int) -> int:
    """Return the tokens of a text that weighs so much."""
    return max(1, round(weight / UNIT))


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of ``pieces`` in blocks."""
    held = b""
    for piece in pieces:
        held += piece
        whole = len(held) - len(held) % _BLOCK
        yield from (held[at : at + _BLOCK] for at in range(0, whole, _BLOCK))
        held = held[whole:]
    yield held


def _weight(block: bytes) -> int:
    """Return the units that ``block`` weighs when a line end stands before it."""
    return _sum(memoryview(pairs(block).translate(WEIGHTS)))


def _weights(texts: Sequence[bytes]) -> list[int]:
    """Return the units that each of ``texts`` weighs as ``_weight`` does; with line ends between them they are a block.

    Nothing reaches over a line end, so that all are weighed at once.
    """
    weights = memoryview(pairs(b"\n".join(texts)).translate(WEIGHTS))
    stops = list(accumulate([len(text) + 1 for text in texts], initial=0))
    return [_sum(weights[start : stop - 1]) for start, stop in pairwise(stops)]


def _sum(weights: memoryview) -> int:
    """Return the sum of bytes that are weights."""
    # The low half of an Adler-32 begun at 0 is the sum of the bytes; 256 bytes cannot reach its modulus, 65,521.
    return sum([adler32(weights[at : at + 256], 0) & 0xFFFF for at in range(0, len(weights), 256)])


def count(text: str) -> int:
    """Return the estimated o200k tokens of ``text``; monotone enough to add up, never 0 for words."""
    held = _held(text)
    return count_bytes(held) if isinstance(held, bytes) else _count_pieces(encoded(held))


_LONG = 1 << 20
"""Characters above which a text is encoded piece by piece, wherever it is looked at, and never held twice."""


def _held(text: str) -> bytes | str:
    """Return the bytes of ``text``; a long text itself."""
    return text if len(text) > _LONG else text.encode("utf-8", "surrogatepass")


def _length(held: bytes | str) -> int:
    """Return how many bytes there are."""
    return len(held) if isinstance(held, bytes) or held.isascii() else sum(map(len, encoded(held)))


def _joined(every: Sequence[bytes | str], between: bytes) -> Iterator[bytes]:
    """Yield the bytes of ``between.join(every)``, in pieces."""
    for number, held in enumerate(every):
        if number:
            yield between
        yield from (held,) if isinstance(held, bytes) else encoded(held)


class _Taken(Struct, frozen=True, gc=False):
    """A message taken apart: ``words`` are still to be counted, ``size`` is that of all else in it."""

    words: bytes
    size: int
    digest: bytes


def measure(message: Message) -> Slot:
    """Return ``message`` as a slot with its size and its digest."""
    [measures] = measures_of([message])
    return Slot(message, *measures)


def measures_of(messages: Iterable[Message]) -> Iterator[tuple[int, bytes]]:
    """Yield the size and the digest of each of ``messages``; short ones are weighed together."""
    for group in _together(map(_taken, messages)):
        weights = _weights([one.words for one in group])
        for one, weight in zip(group, weights, strict=True):
            yield one.size + (_tokens(weight) if one.words else 0), one.digest


def _together(every: Iterable[_Taken]) -> Iterator[list[_Taken]]:
    """Yield ``every`` in groups whose words, with line ends between them, are a block at most."""
    group: list[_Taken] = []
    length = 0
    for one in every:
        length += len(one.words) + 1
        if length > _BLOCK:
            yield group
            group, length = [], len(one.words) + 1
        group.append(one)
    yield group


def _taken(message: Message) -> _Taken:
    """Return ``message`` taken apart; the words of a long one are counted."""
    words: list[bytes | str] = []
    marks: list[bytes | str] = [message.role.encode()]
    size = MESSAGE_OVERHEAD
    for part in message.parts:
        size += _take(part, words, marks)
    if sum(map(len, words)) + len(words) > _BLOCK:
        return _Taken(b"", size + _count_pieces(_joined(words, b"\n")), _digest(_joined(marks, b"\x00")))
    held, told = cast("list[bytes]", words), cast("list[bytes]", marks)
    return _Taken(b"\n".join(held), size, blake2b(b"\x00".join(told), digest_size=16).digest())


def _digest(pieces: Iterable[bytes]) -> bytes:
    """Return the digest of ``pieces`` joined."""
    made = blake2b(digest_size=16)
    for piece in pieces:
        made.update(piece)
    return made.digest()


def _take(part: Part, words: list[bytes | str], marks: list[bytes | str]) -> int:
    """Add what ``part`` says to ``words``, what tells it apart to ``marks``; return the tokens that no text shows."""
    if isinstance(part, ToolResult):
        head = f"result {len(part.content)} {part.is_error} {part.call_id}"
        marks.append(head.encode("utf-8", "surrogatepass"))
        return sum([_take(inner, words, marks) for inner in part.content])
    if isinstance(part, ToolCall):
        data = _held(f"{part.name} {part.arguments}")
        head = f"call {_length(data)} {part.id}"
    elif isinstance(part, (Text, Thinking)):
        data = _held(part.text)
        head = f"{type(part).__name__} {_length(data)} {part.seal.data if part.seal is not None else ''}"
    else:
        return _take_silent(part, words, marks)
    words.append(data)
    marks += (head.encode("utf-8", "surrogatepass"), data)
    return 0


def _take_silent(part: Media | Opaque, words: list[bytes | str], marks: list[bytes | str]) -> int:
    """Media are sized by a rule, opaque parts by their bytes."""
    if isinstance(part, Media):
        source = blake2b(part.source.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        marks += (f"{part.kind} {part.mime} {part.name}".encode("utf-8", "surrogatepass"), source)
        return DOCUMENT_TOKENS if part.kind == "document" else IMAGE_TOKENS
    raw = bytes(part.raw) if part.raw is not None else b""
    words.append(raw)
    marks += (f"opaque {len(raw)} {part.kind}".encode("utf-8", "surrogatepass"), raw)
    return 0


def frame_tokens(target: Target) -> int:
    """Return the tokens of system prompt and tools: as told, or as estimated times the model's prior."""
    frame = target.frame
    return frame.tokens if frame.exact else round(frame.tokens * target.prior)


def ratio(branch: Branch, target: Target) -> float:
    """Return real tokens for one estimated token: the model's prior, moved by the usage reported so far."""
    gauge = branch.gauge if is_same_model(branch, target) else Gauge()
    value = (gauge.true + PRIOR_WEIGHT * target.prior) / (gauge.estimated + PRIOR_WEIGHT)
    return min(HIGHEST, max(LOWEST, value))


def cautious_ratio(branch: Branch, target: Target) -> float:
    """Return the ratio, a tenth more while no usage was reported."""
    told = (branch.gauge.estimated > 0 or branch.anchor is not None) and is_same_model(branch, target)
    return ratio(branch, target) * (1.0 if told else UNSEEN_MARGIN)


def is_same_model(branch: Branch, target: Target) -> bool:
    """Return whether what was reported so far was reported by this model."""
    return branch.model == target.model or not (branch.model and target.model)


def estimate(branch: Branch, target: Target, held: int | None = None) -> int:
    """Return the tokens of the request that ``branch`` makes now: frame, messages and overhead.

    The last reported usage counts for the prefix it was measured on, if that prefix still stands; the rest is our
    own count, calibrated. ``held`` puts another size of the projection in place of the branch's own.
    """
    size = branch.held if held is None else held
    scale = cautious_ratio(branch, target)
    anchor = branch.anchor if is_same_model(branch, target) else None
    if anchor is not None and held is None:
        return anchor.tokens + round(scale * (size - anchor.held))
    return frame_tokens(target) + round(scale * size)


def refused_size(branch: Branch, target: Target) -> int:
    """Return what ``estimate`` says now of the smallest request that was refused without a number."""
    return estimate(replace(branch, held=branch.learned.refused), target)
