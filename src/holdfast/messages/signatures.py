"""Note which model signed a part. It is recorded with the answer, since the signature's bytes do not say it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.messages.message import Message, replace_all_parts
from holdfast.messages.parts import Media, Part, ProviderSignature, Thinking, ToolResult
from holdfast.messages.sized_message import SizedMessage

_PART_SIGNING_API = "gemini"
"""The API that puts signatures on parts of every kind; with others only those of thinking are bound to a model."""


def set_signing_model(message: Message, model: str) -> Message:
    """Return ``message`` with its signatures marked as made by ``model``; wire bytes are unchanged.

    Ids that only tie parts together (a call to the block it came from) are no signature of a model and stay unmarked.
    Return the same object if ``model`` is empty or nothing changes.
    """
    return replace_all_parts(message, [_set_part_model(part, model) for part in message.parts])


def set_sized_signing_model(sized_message: SizedMessage, model: str) -> SizedMessage:
    """Return ``sized_message`` with its signatures marked as made by ``model``; itself if it has none."""
    message = set_signing_model(sized_message.message, model)
    if message is sized_message.message:
        return sized_message
    return replace(sized_message, message=message)


def copy_signing_models(message: Message, signed_message: Message) -> Message:
    """Return ``message`` with the signing models of ``signed_message``, which says the same in other bytes.

    Signatures are matched by their data.
    """
    models: dict[str, str] = {}
    for part in signed_message.parts:
        signature = _get_signature(part)
        if signature is not None and signature.model:
            models[canonicalize_base64(signature.data)] = signature.model
    if not models:
        return message
    marked_parts: list[Part] = []
    for part in message.parts:
        # The client may have sent the same signature in the other alphabet of base64.
        data = canonicalize_base64(_get_signature_data(part))
        marked_parts.append(_set_part_model(part, models.get(data, "")))
    return replace_all_parts(message, marked_parts)


def has_known_signer(message: Message) -> bool:
    """Return whether ``message`` has a signature of a known model."""
    for part in message.parts:
        signature = _get_signature(part)
        if signature is not None and signature.model:
            return True
    return False


def list_non_thinking_signatures(message: Message) -> list[str]:
    """Return the data of the signatures in ``message``, except those of thinking, in canonical base64."""
    signed_parts = []
    for part in message.parts:
        if _get_signature(part) is not None and not isinstance(part, Thinking):
            signed_parts.append(part)
    return [canonicalize_base64(_get_signature_data(part)) for part in signed_parts]


def canonicalize_base64(data: str) -> str:
    """Return base64 in the standard alphabet without padding: SDKs send the same bytes in the URL-safe one."""
    return data.replace("-", "+").replace("_", "/").rstrip("=")


def _get_signature(part: Part) -> ProviderSignature | None:
    return None if isinstance(part, Media | ToolResult) else part.signature


def _get_signature_data(part: Part) -> str:
    signature = _get_signature(part)
    return "" if signature is None else signature.data


def _set_part_model(part: Part, model: str) -> Part:
    signature = _get_signature(part)
    if signature is None or isinstance(part, Media | ToolResult) or signature.model or not model:
        return part
    is_bound_to_model = isinstance(part, Thinking) or signature.api == _PART_SIGNING_API
    if not is_bound_to_model:
        return part
    return replace(part, signature=replace(signature, model=model))
