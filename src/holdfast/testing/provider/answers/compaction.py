"""Compactions that the provider itself makes: what they say, how they are sealed, what is checked when they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.anthropic_thinking import HistoryDigest
from holdfast.testing.provider.signatures.opaque_texts import (
    digest_pieces,
    make_provider_signature,
    open_provider_signature,
)

DEFAULT_TRIGGER = 150_000
"""Input tokens above which ``compact_20260112`` compacts when it says no trigger (Anthropic's compaction page)."""
_PIECE_CHARACTERS, _SUMMARY_CHARACTERS = 40, 2_000
"""Characters taken of each piece, and of the whole summary."""


def make_provider_summary(blocks: Sequence[PromptBlock]) -> str:
    """Return a summary of the conversation: how much it was, and how its pieces began. Equal input, equal words."""
    message_blocks = [block for block in blocks if block.section == "messages"]
    beginnings = "; ".join(
        f"{block.role}: {block.rendering.text[:_PIECE_CHARACTERS]!r}"
        for block in message_blocks
        if block.rendering.text
    )
    return f"Summary of {len(message_blocks)} pieces. {beginnings}"[:_SUMMARY_CHARACTERS]


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def is_compaction_request(request: ProviderRequest) -> bool:
    """Return whether the request asks for nothing but a compaction."""
    return request.api == "anthropic" and request.get_option("compaction", "type") == "summarize"


def get_compaction_threshold(request: ProviderRequest) -> tuple[int, bool] | None:
    """Return above how many input tokens the provider compacts by itself, and whether it then pauses."""
    if request.api == "openai-responses":
        edits = request.body.get("context_management")
        values = [edit.get("compact_threshold") for edit in _filter_edits_by_type(edits, "compaction")]
        return (values[0], False) if values and isinstance(values[0], int) else None
    for edit in _filter_edits_by_type(request.get_option("context_management", "edits"), "compact_20260112"):
        trigger = edit.get("trigger")
        value = trigger.get("value") if isinstance(trigger, dict) else None
        trigger_tokens = value if isinstance(value, int) else DEFAULT_TRIGGER
        return trigger_tokens, edit.get("pause_after_compaction") is True
    return None


def _filter_edits_by_type(edits: object, kind: str) -> list[dict[str, Any]]:
    items = edits if isinstance(edits, list) else []
    return [edit for edit in items if isinstance(edit, dict) and edit.get("type") == kind]


def encode_compaction_block(blocks: Sequence[PromptBlock], *, has_signature: bool) -> bytes:
    """Return the JSON of the block that stands for all ``blocks``: signed on demand, encrypted at a threshold."""
    words, chain = make_provider_summary(blocks), HistoryDigest(blocks)
    about = make_provider_signature(
        "compaction", words=words, frame=chain.frame, end=chain.state, content=digest_pieces(words.encode())
    )
    return msgspec.json.encode(
        {"type": "compaction", "content": words, ("signature" if has_signature else "encrypted_content"): about}
    )


def check_compaction_blocks(blocks: Sequence[PromptBlock], settings: ProviderSettings) -> RefusalReply | None:
    """Return the refusal of a compaction block that did not come back as it was made."""
    for block in blocks:
        signature = (
            block.value.get("signature", block.value.get("encrypted_content"))
            if _is_compaction_with_content(block)
            else None
        )
        if signature is None:
            continue
        about = open_provider_signature(signature, "compaction")
        if about is None and settings.accepted_seals == "own":
            return _make_compaction_refusal(
                block, "the signature of the compaction block is invalid", "signature_invalid"
            )
        if about is not None and about.get("content") != digest_pieces(
            str(block.value["content"]).encode("utf-8", "replace")
        ):
            return _make_compaction_refusal(
                block, "the content of the compaction block was changed", "content_mismatch"
            )
    return None


def _is_compaction_with_content(block: PromptBlock) -> bool:
    return block.section == "messages" and block.kind == "compaction" and block.value.get("content") is not None


def _make_compaction_refusal(block: PromptBlock, text: str, code: str) -> RefusalReply:
    details = {"error_code": f"compaction_{code}"}
    return RefusalReply(400, "invalid_request_error", f"{block.path}: {text}", details=details)


# -- Responses ---------------------------------------------------------------------------------------------------------


def has_compaction_trigger(request: ProviderRequest) -> bool:
    """Return whether the last input item asks for a compaction."""
    items = request.body.get("input")
    last = items[-1] if isinstance(items, list) and items else None
    return request.api == "openai-responses" and isinstance(last, dict) and last.get("type") == "compaction_trigger"


def encode_compaction_item(id_: str, blocks: Sequence[PromptBlock]) -> bytes:
    """Return the JSON of the item that stands for all ``blocks``; only the provider can read it."""
    encrypted_content = make_provider_signature("compaction", words=make_provider_summary(blocks))
    return msgspec.json.encode({"type": "compaction", "id": id_, "encrypted_content": encrypted_content})


# -- what is still read ------------------------------------------------------------------------------------------------


def drop_compacted_blocks(api: str, blocks: Sequence[PromptBlock]) -> list[PromptBlock]:
    """Return the pieces that the model reads: what lies before the newest compaction is left out.

    Responses keeps the user's messages, which its compact endpoint puts before the item.
    """
    newest = max((at for at, block in enumerate(blocks) if _is_compaction_block(api, block)), default=-1)
    if newest < 0:
        return list(blocks)
    kept_blocks = [block for block in blocks[:newest] if _is_kept_at_compaction(api, block)]
    return [*kept_blocks, *blocks[newest:]]


def _is_compaction_block(api: str, block: PromptBlock) -> bool:
    if api == "anthropic":
        return _is_compaction_with_content(block)
    return (
        api == "openai-responses" and block.section == "messages" and block.kind in ("compaction", "compaction_summary")
    )


def _is_kept_at_compaction(api: str, block: PromptBlock) -> bool:
    if block.section != "messages":
        return True
    return api == "openai-responses" and block.role in ("user", "developer", "system")
