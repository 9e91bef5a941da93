"""Opaque texts that only a strict provider can read: signatures, encrypted reasoning, compactions.

All of them are called *signatures* here, although the APIs name them differently: each contains some fields and a keyed
digest of them. So a provider needs no memory to check one, and a signature of one provider is valid at every other, as
between two machines of a real provider.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import blake2b
from typing import TypeAlias

import msgspec

_SIGNING_KEY = b"holdfast strict provider"
"""Public on purpose: signatures prove that bytes came back unchanged, and protect no secret."""
_DIGEST_BYTES = 16
_FIELDS_DECODER = msgspec.json.Decoder(dict[str, str])
SignedFields: TypeAlias = Mapping[str, str]
"""The fields of a signature: its ``kind``, and those that the kind needs."""


def digest_pieces(*pieces: bytes) -> str:
    """Return a short digest of ``pieces``, which depends on the borders between them too."""
    state = blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        # With its length, or ("ab", "c") and ("a", "bc") would have one digest.
        state.update(len(piece).to_bytes(8, "big") + piece)
    return state.hexdigest()


def make_provider_signature(kind: str, **about: str) -> str:
    """Return a signature with the given fields, as base64."""
    payload = msgspec.json.encode({"kind": kind, **about})
    return base64.b64encode(_sign_payload(payload) + payload).decode()


def open_provider_signature(text: object, kind: str) -> SignedFields | None:
    """Return the fields of a signature of ``kind``, or None if ``text`` is not one or any byte of it was changed."""
    if not isinstance(text, str):
        return None
    # Clients may send the bytes in the other alphabet of base64, and without padding.
    standard_text = text.replace("-", "+").replace("_", "/")
    padding = "=" * (-len(text) % 4)
    try:
        data = base64.b64decode(standard_text + padding, validate=True)
        signed_fields = _FIELDS_DECODER.decode(data[_DIGEST_BYTES:])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    digest = data[:_DIGEST_BYTES]
    payload = data[_DIGEST_BYTES:]
    if digest != _sign_payload(payload) or signed_fields.get("kind") != kind:
        return None
    return signed_fields


def _sign_payload(payload: bytes) -> bytes:
    return blake2b(payload, key=_SIGNING_KEY, digest_size=_DIGEST_BYTES).digest()
