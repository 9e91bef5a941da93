"""Gemini's thought signatures: whether each is the one its part came with. Which must be there is a rule of lint."""

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
"""What a call of another provider carries; taken without a check (Gemini's thought signatures page)."""
_UNCHECKED_SIGNATURES = (
    None,
    "",
    DUMMY_SIGNATURE,
    base64.b64encode(DUMMY_SIGNATURE.encode()).decode(),
    DUMMY_SIGNATURE.replace("_", "/"),
)
"""What needs no check: SDKs send bytes in base64, and read the dummy as base64 of some bytes."""


def sign_gemini_part(part: Mapping[str, Any], model: str) -> str:
    """Return the signature of a part: good for this model and, on a call, for this name and these arguments."""
    return make_provider_signature("thought", model=model, part=_digest_call(part))


def _digest_call(part: Mapping[str, Any]) -> str:
    call = part.get("functionCall", part.get("function_call"))
    content = [call.get("name"), call.get("args") or {}] if isinstance(call, dict) else None
    return digest_pieces(msgspec.json.encode(content, order="sorted"))


def get_thought_signature(part: Mapping[str, Any]) -> Any:
    """Return the signature that a part carries."""
    return part.get("thoughtSignature", part.get("thought_signature"))


def check_thought_signatures(request: ProviderRequest, settings: ProviderSettings) -> RefusalReply | None:
    """Return the refusal of a signature that was changed, or is another part's or model's."""
    contents = request.body.get("contents")
    for content in contents if isinstance(contents, list) else ():
        for part in _list_content_parts(content) if isinstance(content, dict) else ():
            fault = _explain_wrong_signature(part, request.model, settings)
            if fault:
                return RefusalReply(400, "INVALID_ARGUMENT", fault)
    return None


def _list_content_parts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = content.get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _explain_wrong_signature(part: Mapping[str, Any], model: str, settings: ProviderSettings) -> str:
    """Return what is wrong with a part's signature, nothing when it has none that needs a check."""
    signature_text = get_thought_signature(part)
    if signature_text in _UNCHECKED_SIGNATURES:
        return ""
    about = open_provider_signature(signature_text, "thought")
    if about is None:
        return "Corrupted thought signature." if settings.accepted_seals == "own" else ""
    if not is_same_model_name(about.get("model", ""), model):
        return "Invalid thought signature: it was made by another model."
    is_call = "functionCall" in part or "function_call" in part
    return "Invalid thought signature." if is_call and about.get("part") != _digest_call(part) else ""
