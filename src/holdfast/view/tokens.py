"""The estimator: tokens of any text without a vocabulary, calibrated by what the provider reports.

A text is reduced to classes of bytes; counts of classes and of neighbouring classes, times fitted weights, are its
tokens. The weights are a least-squares fit against o200k over fifteen classes of content (``bench/estimator.py``).
"""

from __future__ import annotations

from hashlib import blake2b

from holdfast.model.branch import Branch
from holdfast.model.messages import Message
from holdfast.model.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.model.slots import Slot
from holdfast.model.target import Target

MESSAGE_OVERHEAD = 8
"""Tokens around a message: role and delimiters (measured on recorded sessions, see docs/estimator.md)."""
IMAGE_TOKENS = 1_500
"""Tokens of an image whose dimensions are unknown (opencode v2; Anthropic's largest is about 1,600)."""
DOCUMENT_TOKENS = 2_000
"""Tokens of a document whose pages are unknown (opencode v2)."""
PRIOR_WEIGHT = 2_000
"""Estimated tokens of evidence that the prior of a model counts for."""
LOWEST, HIGHEST = 0.5, 2.5
"""The calibration never leaves these bounds, whatever is reported."""
UNSEEN_MARGIN = 1.10
"""Before any usage was reported the estimate is rounded up by a tenth."""


def _classes() -> bytes:
    table = bytearray(256)
    for byte in range(256):
        char = chr(byte)
        if byte >= 0x80:
            table[byte] = ord("c" if byte < 0xC0 else "2" if byte < 0xE0 else "3" if byte < 0xF0 else "4")
        elif char.islower():
            table[byte] = ord("l")
        elif char.isupper():
            table[byte] = ord("U")
        elif char.isdigit():
            table[byte] = ord("d")
        elif char in " \t":
            table[byte] = ord(" ")
        elif char in "\n\r":
            table[byte] = ord("n")
        else:
            table[byte] = ord("p")
    return bytes(table)


_TABLE = _classes()
_WEIGHTS: tuple[tuple[bytes, float], ...] = (
    (b"l", 0.114), (b"U", 0.400), (b"d", 0.460), (b"n", 0.367), (b"p", 0.200),
    (b"2", 1.9), (b"3", 0.787), (b"4", 3.0),
    (b" l", 0.662), (b"pl", 0.921), (b"Ul", 0.075), (b"ld", 0.088), (b"dl", 1.074),
    (b"  ", 0.063), (b" p", 0.954), (b" d", 2.515), (b"Ud", 2.389), (b"dU", 2.389),
)  # fmt: skip


def count_bytes(data: bytes) -> int:
    """Return the estimated o200k tokens of UTF-8 ``data``."""
    if not data:
        return 0
    classes = data.translate(_TABLE)
    count = classes.count
    total = 0.0
    for pattern, weight in _WEIGHTS:
        total += weight * count(pattern)
    return max(1, round(total))


def count(text: str) -> int:
    """Return the estimated o200k tokens of ``text``; monotone enough to add up, never 0 for words."""
    return count_bytes(text.encode("utf-8", "surrogatepass"))


def measure(message: Message) -> Slot:
    """Return ``message`` as a slot with its size and digest, each byte looked at once."""
    pieces: list[bytes] = [message.role.encode()]
    fixed = MESSAGE_OVERHEAD
    for part in message.parts:
        fixed += _piece(part, pieces)
    data = b"\x00".join(pieces)
    return Slot(message, fixed + count_bytes(data), blake2b(data, digest_size=16).digest())


def _piece(part: Part, pieces: list[bytes]) -> int:
    """Add the canonical bytes of ``part`` to ``pieces``; return the tokens that no text shows."""
    if isinstance(part, Text | Thinking):
        pieces.append(part.text.encode("utf-8", "surrogatepass"))
        return 0
    if isinstance(part, ToolCall):
        pieces.append(f"{part.id}\x01{part.name}\x01{part.arguments}".encode("utf-8", "surrogatepass"))
        return 0
    if isinstance(part, ToolResult):
        pieces.append(part.call_id.encode("utf-8", "surrogatepass"))
        return sum(_piece(inner, pieces) for inner in part.content)
    return _silent(part, pieces)


def _silent(part: Part, pieces: list[bytes]) -> int:
    """Media and opaque parts: digested by what they point to, sized by a rule."""
    if isinstance(part, Media):
        pieces.append(blake2b(part.source.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        return DOCUMENT_TOKENS if part.kind == "document" else IMAGE_TOKENS
    raw = bytes(part.raw) if isinstance(part, Opaque) and part.raw is not None else b""
    pieces.append(raw)
    return 0


def ratio(branch: Branch, target: Target) -> float:
    """Return real tokens for one estimated token: the model's prior, moved by the usage reported so far."""
    gauge = branch.gauge
    value = (gauge.true + PRIOR_WEIGHT * target.prior) / (gauge.estimated + PRIOR_WEIGHT)
    return min(HIGHEST, max(LOWEST, value))


def estimate(branch: Branch, target: Target, held: int | None = None) -> int:
    """Return the tokens of the request that ``branch`` makes now: frame, messages and overhead.

    The last reported usage counts for the prefix it was measured on, if that prefix still stands; the rest is our
    own count, calibrated. ``held`` puts another size of the projection in place of the branch's own.
    """
    size = branch.held if held is None else held
    scale = ratio(branch, target)
    anchor = branch.anchor
    if anchor is not None and held is None:
        return anchor.tokens + round(scale * (size - anchor.held))
    if branch.gauge.estimated == 0:
        scale *= UNSEEN_MARGIN
    return target.frame.tokens + round(scale * size)
