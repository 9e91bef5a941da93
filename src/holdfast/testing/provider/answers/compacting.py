"""Compactions that the provider itself makes: what they say, how they are sealed, what is checked when they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.testing.provider.blocks import Block
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.seals.sealing import digest, seal, unseal
from holdfast.testing.provider.seals.signing import Chain
from holdfast.testing.provider.settings import Settings

DEFAULT_TRIGGER = 150_000
"""Input tokens above which ``compact_20260112`` compacts when it says no trigger (Anthropic's compaction page)."""
_SHOWN, _WORDS = 40, 2_000
"""Characters taken of each piece, and of the whole summary."""


def summary(blocks: Sequence[Block]) -> str:
    """Return a summary of the conversation: how much it was, and how its pieces began. Equal input, equal words."""
    said = [block for block in blocks if block.section == "messages"]
    begun = "; ".join(f"{block.role}: {block.rendering.text[:_SHOWN]!r}" for block in said if block.rendering.text)
    return f"Summary of {len(said)} pieces. {begun}"[:_WORDS]


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def on_demand(request: Request) -> bool:
    """Return whether the request asks for nothing but a compaction."""
    return request.api == "anthropic" and request.option("compaction", "type") == "summarize"


def threshold(request: Request) -> tuple[int, bool] | None:
    """Return above how many input tokens the provider compacts by itself, and whether it then pauses."""
    if request.api == "openai-responses":
        edits = request.body.get("context_management")
        values = [edit.get("compact_threshold") for edit in _edits(edits, "compaction")]
        return (values[0], False) if values and isinstance(values[0], int) else None
    for edit in _edits(request.option("context_management", "edits"), "compact_20260112"):
        trigger = edit.get("trigger")
        value = trigger.get("value") if isinstance(trigger, dict) else None
        most = value if isinstance(value, int) else DEFAULT_TRIGGER
        return most, edit.get("pause_after_compaction") is True
    return None


def _edits(edits: object, kind: str) -> list[dict[str, Any]]:
    listed = edits if isinstance(edits, list) else []
    return [edit for edit in listed if isinstance(edit, dict) and edit.get("type") == kind]


def compaction_block(blocks: Sequence[Block], *, signed: bool) -> bytes:
    """Return the JSON of the block that stands for all ``blocks``: signed on demand, encrypted at a threshold."""
    words, chain = summary(blocks), Chain(blocks)
    about = seal("compaction", words=words, frame=chain.frame, end=chain.state, content=digest(words.encode()))
    return msgspec.json.encode(
        {"type": "compaction", "content": words, ("signature" if signed else "encrypted_content"): about}
    )


def check_blocks(blocks: Sequence[Block], settings: Settings) -> Refusal | None:
    """Return the refusal of a compaction block that did not come back as it was made."""
    for block in blocks:
        sealed = block.value.get("signature", block.value.get("encrypted_content")) if _has_content(block) else None
        if sealed is None:
            continue
        about = unseal(sealed, "compaction")
        if about is None and settings.seals == "own":
            return _refused(block, "the signature of the compaction block is invalid", "signature_invalid")
        if about is not None and about.get("content") != digest(str(block.value["content"]).encode("utf-8", "replace")):
            return _refused(block, "the content of the compaction block was changed", "content_mismatch")
    return None


def _has_content(block: Block) -> bool:
    return block.section == "messages" and block.kind == "compaction" and block.value.get("content") is not None


def _refused(block: Block, text: str, code: str) -> Refusal:
    details = {"error_code": f"compaction_{code}"}
    return Refusal(400, "invalid_request_error", f"{block.path}: {text}", details=details)


# -- Responses ---------------------------------------------------------------------------------------------------------


def triggered(request: Request) -> bool:
    """Return whether the last input item asks for a compaction."""
    given = request.body.get("input")
    last = given[-1] if isinstance(given, list) and given else None
    return request.api == "openai-responses" and isinstance(last, dict) and last.get("type") == "compaction_trigger"


def compaction_item(id_: str, blocks: Sequence[Block]) -> bytes:
    """Return the JSON of the item that stands for all ``blocks``; only the provider can read it."""
    sealed = seal("compaction", words=summary(blocks))
    return msgspec.json.encode({"type": "compaction", "id": id_, "encrypted_content": sealed})


# -- what is still read ------------------------------------------------------------------------------------------------


def in_force(api: str, blocks: Sequence[Block]) -> list[Block]:
    """Return the pieces that the model reads: what lies before the newest compaction is left out.

    Responses keeps the user's messages, which its compact endpoint puts before the item.
    """
    newest = max((at for at, block in enumerate(blocks) if _compacts(api, block)), default=-1)
    if newest < 0:
        return list(blocks)
    kept = [block for block in blocks[:newest] if _stays(api, block)]
    return [*kept, *blocks[newest:]]


def _compacts(api: str, block: Block) -> bool:
    if api == "anthropic":
        return _has_content(block)
    return (
        api == "openai-responses" and block.section == "messages" and block.kind in ("compaction", "compaction_summary")
    )


def _stays(api: str, block: Block) -> bool:
    if block.section != "messages":
        return True
    return api == "openai-responses" and block.role in ("user", "developer", "system")
