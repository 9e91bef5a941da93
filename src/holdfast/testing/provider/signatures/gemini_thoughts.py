"""Sign parts as Gemini does, and check that each part has its own signature; rules check that none is missing."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.anthropic_thinking import is_same_model_name
from holdfast.testing.provider.signatures.opaque_texts import (
    digest_pieces,
    make_provider_signature,
    open_provider_signature,
)

DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""The signature to give to calls of another provider; accepted without a check (Gemini's thought signatures page)."""
_UNCHECKED_SIGNATURES = (
    None,
    "",
    DUMMY_SIGNATURE,
    base64.b64encode(DUMMY_SIGNATURE.encode()).decode(),
    DUMMY_SIGNATURE.replace("_", "/"),
)
"""Signatures that need no check.

SDKs hold signatures as bytes and send them as base64: they encode the dummy, or take it for base64 and change its
alphabet.
"""


def sign_gemini_part(part: Mapping[str, Any], model: str) -> str:
    """Return the signature of a part, which is valid for this model and, on a call, for its name and arguments."""
    return make_provider_signature("thought", model=model, part=_digest_call(part))


def _digest_call(part: Mapping[str, Any]) -> str:
    call = part.get("functionCall", part.get("function_call"))
    content = None
    if isinstance(call, dict):
        content = [call.get("name"), call.get("args") or {}]
    # Sorted, because clients may send the fields of the arguments in another order.
    return digest_pieces(msgspec.json.encode(content, order="sorted"))


def get_thought_signature(part: Mapping[str, Any]) -> Any:
    """Return the signature of a part in either spelling, or None."""
    return part.get("thoughtSignature", part.get("thought_signature"))


def check_thought_signatures(request: ProviderRequest, settings: ProviderSettings) -> RefusalReply | None:
    """Return the refusal of a signature that was changed, or that belongs to another part or model, or None."""
    for content in _filter_objects(request.body.get("contents")):
        for part in _filter_objects(content.get("parts")):
            problem = _explain_wrong_signature(part, request.model, settings)
            if problem:
                return RefusalReply(400, "INVALID_ARGUMENT", problem)
    return None


def _filter_objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def _explain_wrong_signature(part: Mapping[str, Any], model: str, settings: ProviderSettings) -> str:
    """Return the error about a part's signature, or an empty string if it is valid or needs no check."""
    signature = get_thought_signature(part)
    if signature in _UNCHECKED_SIGNATURES:
        return ""
    signed_fields = open_provider_signature(signature, "thought")
    if signed_fields is None:
        return "Corrupted thought signature." if settings.accepted_seals == "own" else ""
    if not is_same_model_name(signed_fields.get("model", ""), model):
        return "Invalid thought signature: it was made by another model."
    is_call = "functionCall" in part or "function_call" in part
    if is_call and signed_fields.get("part") != _digest_call(part):
        return "Invalid thought signature."
    return ""
