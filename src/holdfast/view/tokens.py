"""The estimator: tokens of any text without a vocabulary, calibrated by what the provider reports.

Every byte weighs a share of a token by its kind and the kind of the byte before it; the sum is the text's tokens. The
weights are a least-squares fit against o200k over fifteen classes of content (``bench/estimator.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, cast

from msgspec import Struct

from holdfast.model.branch import Branch
from holdfast.model.gauging import HIGHEST, LOWEST
from holdfast.model.knowing import known_of
from holdfast.model.messages import Message
from holdfast.model.parts import Media, Opaque, Text, Thinking, ToolCall, ToolResult
from holdfast.model.projected import UNBEGUN, held_for, native_for
from holdfast.model.slots import Slot
from holdfast.model.target import Target
from holdfast.view.text import encoded
from holdfast.view.weights import BLOCK, UNIT, weight, weights_of

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


# -- requests ----------------------------------------------------------------------------------------------------------


def frame_tokens(target: Target) -> int:
    """Return the tokens of system prompt and tools: as told, or as estimated times the model's prior."""
    frame = target.frame
    return frame.tokens if frame.exact else round(frame.tokens * target.prior)


def ratio(branch: Branch, target: Target) -> float:
    """Return real tokens for one estimated token: the model's prior, moved by the usage reported so far."""
    gauge = known_of(branch, target.model).gauge
    value = (gauge.true + PRIOR_WEIGHT * target.prior) / (gauge.estimated + PRIOR_WEIGHT)
    return min(HIGHEST, max(LOWEST, value))


def cautious_ratio(branch: Branch, target: Target) -> float:
    """Return the ratio by which plans are made: a tenth more while no usage was reported.

    It leaves the bounds of the calibration where ``measured_ratio`` does.
    """
    is_measured = branch.measured is not None and is_same_model(branch, target)
    told = is_measured or known_of(branch, target.model).gauge.estimated > 0
    scale = ratio(branch, target) * (1.0 if told else UNSEEN_MARGIN)
    measured = measured_ratio(branch, target)
    return measured if measured > HIGHEST else scale


def measured_ratio(branch: Branch, target: Target) -> float:
    """Return real tokens for one estimated token as reported usage has them, unbounded; 0.0 where none was reported.

    Texts that were redacted after they were counted have seven times their tokens and more. A summary planned by less
    would be as large as what it stands for. Two measures must agree, and the smaller one counts: the newest request as
    a whole, which a frame larger than anybody told would raise, and how requests grew, which one odd count would.
    """
    gauge = known_of(branch, target.model).gauge
    request = branch.measured if is_same_model(branch, target) else None
    if request is None or request.held <= 0 or gauge.estimated <= 0:
        return 0.0
    whole = (request.tokens - frame_tokens(target)) / request.held
    growth = gauge.true / gauge.estimated
    return max(0.0, min(whole, growth))


def is_same_model(branch: Branch, target: Target) -> bool:
    """Return whether this model is the one that was asked last: what it counted is a measure of the next request."""
    return branch.model == target.model or not (branch.model and target.model)


def estimate(branch: Branch, target: Target, held: int | None = None) -> int:
    """Return the tokens of the request that ``branch`` makes now: frame, messages and overhead.

    The last reported usage counts for the prefix it was measured on, if that prefix still stands; the rest is our
    own count, calibrated. What a provider compacted has its size there, and its readable twin's elsewhere. ``held``
    puts another size of the projection in place of the branch's own.
    """
    if held is None:
        return _measured(branch, target, held_for(branch, target.model, target.api))
    return frame_tokens(target) + round(cautious_ratio(branch, target) * held)


def _measured(branch: Branch, target: Target, held: int) -> int:
    """Return the tokens of a projection of ``held``: as told of the prefix that was measured, if there is one."""
    scale = cautious_ratio(branch, target)
    anchor = branch.anchor if is_same_model(branch, target) else None
    if anchor is not None and anchor.native == native_for(branch, target.model, target.api):
        return anchor.tokens + round(scale * (held - anchor.held))
    return frame_tokens(target) + round(scale * held)


def refused_size(branch: Branch, target: Target) -> int:
    """Return what ``estimate`` says now of the smallest request that was refused without a number."""
    return _measured(branch, target, known_of(branch, target.model).learned.refused)
