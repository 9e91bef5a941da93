"""Thinking of the Messages API, signed over everything before it, and what becomes of it when that was changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.providers.anthropic.models import get_claude_traits
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.opaque_texts import (
    SealContent,
    digest_pieces,
    make_provider_signature,
    open_provider_signature,
)

THINKING_FIELDS = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data", "data")}
"""Blocks of thinking: where their words and their signature are."""
_MODEL_DATE = re.compile(r"[-@]\d{8}\b.*|-latest$")


class HistoryCheck(Struct, frozen=True):
    """What is left of a history once the reasoning that belongs to another one is out."""

    pieces: tuple[PromptBlock, ...]
    dropped_parts: tuple[tuple[str, str], ...] = ()
    """Paths or ids of what was dropped, and why."""


def is_thinking_bound(model: str, settings: ProviderSettings) -> bool:
    """Return whether ``model`` binds its thinking to what came before it; an unknown Claude does."""
    if settings.binds_thinking != "auto":
        return settings.binds_thinking == "always"
    model_traits = get_claude_traits(model)
    return model_traits.binds_thinking if model_traits is not None else True


def is_same_model_name(first_model: str, second_model: str) -> bool:
    """Return whether two names are one model, dates aside."""
    return _MODEL_DATE.sub("", first_model) == _MODEL_DATE.sub("", second_model)


# -- the chain ---------------------------------------------------------------------------------------------------------


class HistoryDigest:
    """The digest of everything said so far. A compaction of ours stands for what it summarised."""

    def __init__(self, blocks: Iterable[PromptBlock] = ()) -> None:
        """Start with nothing, or with these pieces."""
        self.state = self.frame = ""
        for block in blocks:
            self.add_block(block)

    def add_block(self, block: PromptBlock) -> None:
        """Go on over one piece; tools that are loaded later are no part of what is signed."""
        if block.section == "tools" and isinstance(block.value, dict) and block.value.get("defer_loading"):
            return
        about = open_compaction_signature(block)
        if about is not None and about.get("frame") == self.frame:
            self.state = about.get("end", "")
            return
        self.state = digest_pieces(self.state.encode(), block.key)
        if block.section != "messages":
            self.frame = self.state


def open_compaction_signature(block: PromptBlock) -> SealContent | None:
    """Return what a compaction block of ours says it stands for, nothing for other blocks."""
    if block.kind != "compaction":
        return None
    signature = block.value.get("signature") or block.value.get("encrypted_content")
    return open_provider_signature(signature, "compaction")


def sign_thinking(prefix: str, model: str, words: str) -> str:
    """Return the signature of thinking ``words`` behind ``prefix``, a state of the chain."""
    return make_provider_signature(
        "thinking", prefix=prefix, model=model, words=digest_pieces(words.encode("utf-8", "replace"))
    )


# -- the check ---------------------------------------------------------------------------------------------------------


def check_signed_thinking(
    request: ProviderRequest, blocks: Sequence[PromptBlock], settings: ProviderSettings
) -> HistoryCheck | RefusalReply:
    """Return the thinking to drop, or the refusal of thinking that was changed or belongs to another history."""
    is_bound, latest = is_thinking_bound(request.model, settings), _find_latest_answer(blocks)
    chain, kept_blocks, dropped_blocks = HistoryDigest(), list[PromptBlock](), list[tuple[str, str]]()
    for at, block in enumerate(blocks):
        is_thinking = block.section == "messages" and block.kind in THINKING_FIELDS
        why = (
            _check_thinking_block(block, chain.state, request.model, at >= latest, is_bound, settings)
            if is_thinking
            else ""
        )
        if isinstance(why, RefusalReply):
            return why
        if why and not _is_dropping_mismatches(request):
            return _make_thinking_refusal(block, _BOUND_TEXT)
        if why:
            dropped_blocks.append((block.path, why))
        else:
            kept_blocks.append(block)
            chain.add_block(block)
    return HistoryCheck(tuple(kept_blocks), tuple(dropped_blocks))


def _is_dropping_mismatches(request: ProviderRequest) -> bool:
    return bool(request.get_option("thinking", "block_binding", "prefix_mismatch_behavior") == "drop_block")


def _find_latest_answer(blocks: Sequence[PromptBlock]) -> int:
    """Return where the latest assistant message begins."""
    at = len(blocks)
    while at and blocks[at - 1].role != "assistant":
        at -= 1
    while at and blocks[at - 1].role == "assistant":
        at -= 1
    return at


def _check_thinking_block(
    block: PromptBlock, prefix: str, model: str, latest: bool, is_bound: bool, settings: ProviderSettings
) -> RefusalReply | str:
    """Return the refusal of a block that is not as it was made, why it belongs elsewhere, or nothing.

    What a model that does not bind has signed may be replayed anywhere.
    """
    words, mark = (block.value.get(key) for key in THINKING_FIELDS[block.kind])
    about = open_provider_signature(mark, "thinking")
    if about is None:
        return "" if settings.accepted_seals == "any" else _make_thinking_refusal(block, _CORRUPT_TEXT)
    if block.kind == "thinking" and about.get("words") != digest_pieces(str(words).encode("utf-8", "replace")):
        return _make_thinking_refusal(block, _MODIFIED_TEXT if latest else _CORRUPT_TEXT)
    if not (is_bound and is_thinking_bound(about.get("model", ""), settings)):
        return ""
    if not is_same_model_name(about.get("model", ""), model):
        return "model_mismatch"
    return "" if about.get("prefix") == prefix else "prefix_mismatch"


_CORRUPT_TEXT = "Invalid `signature` in `thinking` block"
_BOUND_TEXT = (
    "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set"
    ' `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
_MODIFIED_TEXT = (
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must"
    " remain as they were in the original response."
)


def _make_thinking_refusal(block: PromptBlock, text: str) -> RefusalReply:
    return RefusalReply(400, "invalid_request_error", f"{block.path}: {text}")
