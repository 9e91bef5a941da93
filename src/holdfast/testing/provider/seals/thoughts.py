"""Gemini's thought signatures: whether each is the one its part came with. Which must be there is a rule of lint."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.seals.sealing import digest, seal, unseal
from holdfast.testing.provider.seals.signing import same_model
from holdfast.testing.provider.settings import Settings

DUMMY = "skip_thought_signature_validator"
"""What a call of another provider carries; taken without a check (Gemini's thought signatures page)."""
_DUMMIES = (None, "", DUMMY, base64.b64encode(DUMMY.encode()).decode(), DUMMY.replace("_", "/"))
"""What needs no check: SDKs send bytes in base64, and read the dummy as base64 of some bytes."""


def sign_part(part: Mapping[str, Any], model: str) -> str:
    """Return the signature of a part: good for this model and, on a call, for this name and these arguments."""
    return seal("thought", model=model, part=_about(part))


def _about(part: Mapping[str, Any]) -> str:
    call = part.get("functionCall", part.get("function_call"))
    said = [call.get("name"), call.get("args") or {}] if isinstance(call, dict) else None
    return digest(msgspec.json.encode(said, order="sorted"))


def signature(part: Mapping[str, Any]) -> Any:
    """Return the signature that a part carries."""
    return part.get("thoughtSignature", part.get("thought_signature"))


def check_thoughts(request: Request, settings: Settings) -> Refusal | None:
    """Return the refusal of a signature that was changed, or is another part's or model's."""
    contents = request.body.get("contents")
    for content in contents if isinstance(contents, list) else ():
        for part in _parts(content) if isinstance(content, dict) else ():
            fault = _wrong(part, request.model, settings)
            if fault:
                return Refusal(400, "INVALID_ARGUMENT", fault)
    return None


def _parts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = content.get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _wrong(part: Mapping[str, Any], model: str, settings: Settings) -> str:
    """Return what is wrong with a part's signature, nothing when it has none that needs a check."""
    found = signature(part)
    if found in _DUMMIES:
        return ""
    about = unseal(found, "thought")
    if about is None:
        return "Corrupted thought signature." if settings.seals == "own" else ""
    if not same_model(about.get("model", ""), model):
        return "Invalid thought signature: it was made by another model."
    is_call = "functionCall" in part or "function_call" in part
    return "Invalid thought signature." if is_call and about.get("part") != _about(part) else ""
