"""Which model sealed what: noted on an answer when it is recorded, since its bytes do not say it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.messages.message import Message, replace_all_parts
from holdfast.messages.parts import Media, Part, ProviderSignature, Thinking, ToolResult
from holdfast.messages.sized_message import SizedMessage

_PART_SIGNING_API = "gemini"
"""The API whose signatures stand on parts of every kind; elsewhere only thinking is sealed by a model."""


def set_signing_model(message: Message, model: str) -> Message:
    """Return ``message`` with its seals known to be those of ``model``; the bytes of its parts stay.

    Ids that tie parts together (a call to the block it came from) are seals of no model. Without a model the same
    object comes back.
    """
    return replace_all_parts(message, [_set_part_model(part, model) for part in message.parts])


def set_sized_signing_model(sized_message: SizedMessage, model: str) -> SizedMessage:
    """Return ``sized_message`` with the seals in its message known to be those of ``model``; itself where it has
    none.
    """
    message = set_signing_model(sized_message.message, model)
    return sized_message if message is sized_message.message else replace(sized_message, message=message)


def copy_signing_models(message: Message, signed_message: Message) -> Message:
    """Return ``message`` with the models of the same seals in ``signed_message``, which says the same in other
    bytes.
    """
    signatures = [
        signature
        for part in signed_message.parts
        if (signature := _get_signature(part)) is not None and signature.model
    ]
    models = {canonicalize_base64(signature.data): signature.model for signature in signatures}
    if not models:
        return message
    return replace_all_parts(
        message,
        [
            _set_part_model(part, models.get(canonicalize_base64(_get_signature_data(part)), ""))
            for part in message.parts
        ],
    )


def has_known_signer(message: Message) -> bool:
    """Whether ``message`` has a seal of which it is known whose it is."""
    return any((signature := _get_signature(part)) is not None and bool(signature.model) for part in message.parts)


def list_non_thinking_signatures(message: Message) -> list[str]:
    """Return the seals in ``message`` of what is no reasoning."""
    return [
        canonicalize_base64(_get_signature_data(part))
        for part in message.parts
        if _get_signature(part) is not None and not isinstance(part, Thinking)
    ]


def canonicalize_base64(data: str) -> str:
    """Return what is sealed in the plain alphabet of base64: SDKs send the same bytes in the other one."""
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
    is_bound = isinstance(part, Thinking) or signature.api == _PART_SIGNING_API
    return replace(part, signature=replace(signature, model=model)) if is_bound else part
