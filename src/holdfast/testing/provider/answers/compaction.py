"""Compactions by the provider itself: their text, their signatures, and the checks when they come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

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
"""Input tokens above which ``compact_20260112`` compacts if it has no trigger (Anthropic's compaction page)."""
# Chosen by judgement: enough that tests can tell which messages are in a summary, and short like a real one.
_PIECE_CHARACTERS, _SUMMARY_CHARACTERS = 40, 2_000
"""Characters of each block in a summary, and of the whole summary."""


class CompactionThreshold(Struct, frozen=True):
    """A compaction that the request allows above a number of input tokens."""

    tokens: int
    pauses: bool
    """Whether the answer ends after the compaction (Anthropic's ``pause_after_compaction``)."""


def make_provider_summary(blocks: Sequence[PromptBlock]) -> str:
    """Summarize a conversation by the number of its blocks and the beginning of each; equal input, equal text."""
    message_blocks = [block for block in blocks if block.section == "messages"]
    beginnings = []
    for block in message_blocks:
        text = block.rendering.text
        if text:
            beginnings.append(f"{block.role}: {text[:_PIECE_CHARACTERS]!r}")
    summary = f"Summary of {len(message_blocks)} pieces. {'; '.join(beginnings)}"
    return summary[:_SUMMARY_CHARACTERS]


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def is_compaction_request(request: ProviderRequest) -> bool:
    """Return whether the request asks only for a compaction (Anthropic, on demand)."""
    return request.api == "anthropic" and request.get_option("compaction", "type") == "summarize"


def get_compaction_threshold(request: ProviderRequest) -> CompactionThreshold | None:
    """Return the threshold at which the request lets the provider compact, or None if it does not."""
    if request.api == "openai-responses":
        edit = _find_edit(request.body.get("context_management"), "compaction")
        if edit is None or not isinstance(edit.get("compact_threshold"), int):
            return None
        return CompactionThreshold(edit["compact_threshold"], pauses=False)
    edit = _find_edit(request.get_option("context_management", "edits"), "compact_20260112")
    if edit is None:
        return None
    trigger = edit.get("trigger")
    tokens = DEFAULT_TRIGGER
    if isinstance(trigger, dict) and isinstance(trigger.get("value"), int):
        tokens = trigger["value"]
    return CompactionThreshold(tokens, pauses=edit.get("pause_after_compaction") is True)


def _find_edit(edits: object, edit_type: str) -> dict[str, Any] | None:
    """Return the first context edit of a type, or None."""
    if not isinstance(edits, list):
        return None
    for edit in edits:
        if isinstance(edit, dict) and edit.get("type") == edit_type:
            return edit
    return None


def encode_compaction_block(blocks: Sequence[PromptBlock], *, has_signature: bool) -> bytes:
    """Encode the block that stands for ``blocks``: with a signature on demand, encrypted content at a threshold."""
    summary = make_provider_summary(blocks)
    history = HistoryDigest(blocks)
    signature = make_provider_signature(
        "compaction",
        words=summary,
        frame=history.frame,
        end=history.state,
        content=digest_pieces(summary.encode()),
    )
    signature_field = "signature" if has_signature else "encrypted_content"
    return msgspec.json.encode({"type": "compaction", "content": summary, signature_field: signature})


def check_compaction_blocks(blocks: Sequence[PromptBlock], settings: ProviderSettings) -> RefusalReply | None:
    """Return the refusal of a compaction block that was changed, or None if all came back as they were made."""
    for block in blocks:
        if not _is_compaction_with_content(block):
            continue
        # A signature comes from a compaction on demand, encrypted content from one at a threshold.
        signature = block.value.get("signature", block.value.get("encrypted_content"))
        if signature is None:
            continue
        signed_fields = open_provider_signature(signature, "compaction")
        if signed_fields is None:
            if settings.accepted_seals == "own":
                text = "the signature of the compaction block is invalid"
                return _make_compaction_refusal(block, text, "signature_invalid")
            continue
        content = str(block.value["content"]).encode("utf-8", "replace")
        if signed_fields.get("content") != digest_pieces(content):
            text = "the content of the compaction block was changed"
            return _make_compaction_refusal(block, text, "content_mismatch")
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
    if request.api != "openai-responses" or not isinstance(items, list) or not items:
        return False
    last = items[-1]
    return isinstance(last, dict) and last.get("type") == "compaction_trigger"


def encode_compaction_item(id_: str, blocks: Sequence[PromptBlock]) -> bytes:
    """Encode the item that stands for ``blocks``; only the provider can read it."""
    encrypted_content = make_provider_signature("compaction", words=make_provider_summary(blocks))
    return msgspec.json.encode({"type": "compaction", "id": id_, "encrypted_content": encrypted_content})


# -- blocks that the model reads ---------------------------------------------------------------------------------------


def drop_compacted_blocks(api: str, blocks: Sequence[PromptBlock]) -> list[PromptBlock]:
    """Return the blocks that the model reads: everything before the newest compaction is left out.

    In Responses the user's messages stay, which its compact endpoint puts before the item.
    """
    newest = -1
    for index, block in enumerate(blocks):
        if _is_compaction_block(api, block):
            newest = index
    if newest < 0:
        return list(blocks)
    kept_blocks = [block for block in blocks[:newest] if _is_kept_at_compaction(api, block)]
    return [*kept_blocks, *blocks[newest:]]


def _is_compaction_block(api: str, block: PromptBlock) -> bool:
    if api == "anthropic":
        return _is_compaction_with_content(block)
    is_compaction_item = block.section == "messages" and block.kind in ("compaction", "compaction_summary")
    return api == "openai-responses" and is_compaction_item


def _is_kept_at_compaction(api: str, block: PromptBlock) -> bool:
    if block.section != "messages":
        return True
    return api == "openai-responses" and block.role in ("user", "developer", "system")
