"""Opaque texts that only a strict provider can read: signatures, encrypted reasoning, compactions.

A seal carries what it is about and a keyed digest of that, so a provider needs no memory to check one, and a seal made
by one provider is good with every other, as it is between two machines of a real one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import blake2b
from typing import TypeAlias

import msgspec

_KEY = b"holdfast strict provider"
"""Public on purpose: the seals prove that bytes came back unchanged, they keep no secret."""
_SIZE = 16
_DECODER = msgspec.json.Decoder(dict[str, str])
Sealed: TypeAlias = Mapping[str, str]
"""What a seal is about: its ``kind``, and what that kind needs."""


def digest(*pieces: bytes) -> str:
    """Return a short digest of ``pieces`` that tells their borders apart."""
    state = blake2b(digest_size=_SIZE)
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "big") + piece)
    return state.hexdigest()


def seal(kind: str, **about: str) -> str:
    """Return the seal of ``about`` in base64."""
    payload = msgspec.json.encode({"kind": kind, **about})
    return base64.b64encode(_mac(payload) + payload).decode()


def unseal(text: object, kind: str) -> Sealed | None:
    """Return what a seal of ``kind`` is about, or nothing when it is none or a single byte of it was changed."""
    if not isinstance(text, str):
        return None
    try:
        plain = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
        about = _DECODER.decode(plain[_SIZE:])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return about if plain[:_SIZE] == _mac(plain[_SIZE:]) and about.get("kind") == kind else None


def _mac(payload: bytes) -> bytes:
    return blake2b(payload, key=_KEY, digest_size=_SIZE).digest()
