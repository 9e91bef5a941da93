"""The estimator: tokens of any text without a vocabulary, calibrated by what the provider reports.

Every byte weighs a share of a token by its kind and the kind of the byte before it; the sum is the text's tokens. The
weights are a least-squares fit against o200k over fifteen classes of content (``bench/estimator.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, cast

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.token_weights import BLOCK, UNIT, weight, weights_of
from holdfast.messages.sized_message import UNBEGUN, Slot
from holdfast.messages.text.cutting import encoded

MESSAGE_OVERHEAD = 8
"""Tokens around a message: role and delimiters (measured on recorded sessions, see docs/estimator.md)."""
IMAGE_TOKENS = 1_500
"""Tokens of an image whose dimensions are unknown (opencode v2; Anthropic's largest is about 1,600)."""
DOCUMENT_TOKENS = 2_000
"""Tokens of a document whose pages are unknown (opencode v2)."""
# -- texts -------------------------------------------------------------------------------------------------------------


def count_bytes(data: bytes) -> int:
    """Return the estimated o200k tokens of UTF-8 ``data``; 0 only for nothing."""
    return _tokens(weight([data])) if data else 0


def _tokens(units: int) -> int:
    """Return the tokens of a text that weighs so much, one at least."""
    return round(units / UNIT) or 1


def count(text: str) -> int:
    """Return the estimated o200k tokens of ``text``; monotone enough to add up, never 0 for words."""
    held = _held(text)
    return count_bytes(held) if isinstance(held, bytes) else _tokens(weight(held.pieces()))


_LONG = 1 << 20
"""Characters above which a text is encoded piece by piece, wherever it is looked at, and never held twice."""


class _Long:
    """A long text: as long as its bytes, which come in pieces."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._length = len(text) if text.isascii() else sum(map(len, encoded(text)))

    def __len__(self) -> int:
        return self._length

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes."""
        return encoded(self._text)


def _held(text: str) -> bytes | _Long:
    """Return the bytes of ``text``, or what gives them."""
    return text.encode("utf-8", "surrogatepass") if len(text) <= _LONG else _Long(text)


def _joined(every: Iterable[bytes | _Long], between: bytes) -> Iterator[bytes]:
    """Yield the bytes of ``between.join(every)``, in pieces."""
    for number, held in enumerate(every):
        if number:
            yield between
        yield from (held,) if isinstance(held, bytes) else held.pieces()


def media_tokens(media: Media) -> int:
    """Return the tokens of an image or a document, whatever is in it; words that it holds beside others count."""
    if media.kind != "document":
        return IMAGE_TOKENS
    return max(DOCUMENT_TOKENS, count(media.source)) if media.form == "text" else DOCUMENT_TOKENS


# -- messages ----------------------------------------------------------------------------------------------------------

_Held: TypeAlias = list[bytes | _Long]


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
        weights = weights_of([one.words for one in group])
        for one, units in zip(group, weights, strict=True):
            yield one.size + (_tokens(units) if one.words else 0), one.digest


def _together(every: Iterable[_Taken]) -> Iterator[list[_Taken]]:
    """Yield ``every`` in groups whose words, with line ends between them, are a block at most."""
    group: list[_Taken] = []
    length = 0
    for one in every:
        length += len(one.words) + 1
        if length > BLOCK:
            yield group
            group, length = [], len(one.words) + 1
        group.append(one)
    yield group


def _taken(message: Message) -> _Taken:
    """Return ``message`` taken apart; the words of a long one are counted."""
    words: _Held = []
    marks: _Held = [message.role.encode()]
    size = MESSAGE_OVERHEAD
    for part in message.parts:
        size += _TAKE[type(part)](part, words, marks)
    digest = UNBEGUN.copy()
    if sum(map(len, words)) + len(words) > BLOCK:
        for piece in _joined(marks, b"\x00"):
            digest.update(piece)
        return _Taken(b"", size + _tokens(weight(_joined(words, b"\n"))), digest.digest())
    digest.update(b"\x00".join(cast("list[bytes]", marks)))
    return _Taken(b"\n".join(cast("list[bytes]", words)), size, digest.digest())


# -- parts -------------------------------------------------------------------------------------------------------------
#
# Each adds what it says to ``words``, what tells it apart to ``marks``, and returns the tokens that no text shows.


def _take_text(part: Text | Thinking, words: _Held, marks: _Held) -> int:
    data, seal = _held(part.text), part.seal
    head = f"{type(part).__name__} {len(data)} {'' if seal is None else seal.data}"
    words.append(data)
    marks += (head.encode("utf-8", "surrogatepass"), data)
    return 0


def _take_call(part: ToolCall, words: _Held, marks: _Held) -> int:
    data = _held(f"{part.name} {part.arguments}")
    words.append(data)
    marks += (f"call {len(data)} {part.id}".encode("utf-8", "surrogatepass"), data)
    return 0


def _take_result(part: ToolResult, words: _Held, marks: _Held) -> int:
    head = f"result {len(part.content)} {part.is_error} {part.call_id}"
    marks.append(head.encode("utf-8", "surrogatepass"))
    size = 0
    for inner in part.content:
        size += _TAKE[type(inner)](inner, words, marks)
    return size


def _take_media(part: Media, _words: _Held, marks: _Held) -> int:
    source = blake2b(part.source.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    marks += (f"{part.kind} {part.mime} {part.name}".encode("utf-8", "surrogatepass"), source)
    return media_tokens(part)


def _take_opaque(part: Opaque, words: _Held, marks: _Held) -> int:
    raw = bytes(part.raw) if part.raw is not None else b""
    words.append(raw)
    marks += (f"opaque {len(raw)} {part.kind}".encode("utf-8", "surrogatepass"), raw)
    return 0


_TAKE: Mapping[type, Callable[[Any, _Held, _Held], int]] = {
    Text: _take_text,
    Thinking: _take_text,
    ToolCall: _take_call,
    ToolResult: _take_result,
    Media: _take_media,
    Opaque: _take_opaque,
}
