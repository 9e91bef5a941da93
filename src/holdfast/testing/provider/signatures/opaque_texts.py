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

_SEAL_KEY = b"holdfast strict provider"
"""Public on purpose: the seals prove that bytes came back unchanged, they keep no secret."""
_DIGEST_BYTES = 16
_SEAL_DECODER = msgspec.json.Decoder(dict[str, str])
SealContent: TypeAlias = Mapping[str, str]
"""What a seal is about: its ``kind``, and what that kind needs."""


def digest_pieces(*pieces: bytes) -> str:
    """Return a short digest of ``pieces`` that tells their borders apart."""
    state = blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "big") + piece)
    return state.hexdigest()


def make_provider_signature(kind: str, **about: str) -> str:
    """Return the seal of ``about`` in base64."""
    payload = msgspec.json.encode({"kind": kind, **about})
    return base64.b64encode(_sign_payload(payload) + payload).decode()


def open_provider_signature(text: object, kind: str) -> SealContent | None:
    """Return what a seal of ``kind`` is about, or nothing when it is none or a single byte of it was changed."""
    if not isinstance(text, str):
        return None
    try:
        plain = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
        about = _SEAL_DECODER.decode(plain[_DIGEST_BYTES:])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return (
        about if plain[:_DIGEST_BYTES] == _sign_payload(plain[_DIGEST_BYTES:]) and about.get("kind") == kind else None
    )


def _sign_payload(payload: bytes) -> bytes:
    return blake2b(payload, key=_SEAL_KEY, digest_size=_DIGEST_BYTES).digest()
