"""Sign thinking of the Messages API over everything before it, and check it when it comes back."""

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
    SignedFields,
    digest_pieces,
    make_provider_signature,
    open_provider_signature,
)

THINKING_FIELDS = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data", "data")}
"""The fields of text and signature in thinking blocks, by the type of the block."""
_MODEL_DATE = re.compile(r"[-@]\d{8}\b.*|-latest$")


class HistoryCheck(Struct, frozen=True):
    """A history that passed the check, without reasoning that was made for another history."""

    pieces: tuple[PromptBlock, ...]
    dropped_parts: tuple[tuple[str, str], ...] = ()
    """Pairs of the path or id of dropped reasoning and the reason."""


def is_thinking_bound(model: str, settings: ProviderSettings) -> bool:
    """Return whether ``model`` binds its thinking to everything before it; unknown models do."""
    if settings.binds_thinking != "auto":
        return settings.binds_thinking == "always"
    model_traits = get_claude_traits(model)
    return model_traits.binds_thinking if model_traits is not None else True


def is_same_model_name(first_model: str, second_model: str) -> bool:
    """Return whether two names are of one model, apart from a date or ``-latest`` at the end."""
    return _MODEL_DATE.sub("", first_model) == _MODEL_DATE.sub("", second_model)


# -- signing -----------------------------------------------------------------------------------------------------------


class HistoryDigest:
    """The digest of a history, block by block.

    A compaction block of the provider counts as the history that it stands for, so that thinking after it stays valid.
    """

    def __init__(self, blocks: Iterable[PromptBlock] = ()) -> None:
        self.state = ""
        """Digest of all blocks so far."""
        self.frame = ""
        """Digest of tools and system prompt alone."""
        for block in blocks:
            self.add_block(block)

    def add_block(self, block: PromptBlock) -> None:
        """Extend the digest by one block; tools with ``defer_loading`` are not part of it."""
        if block.section == "tools" and isinstance(block.value, dict) and block.value.get("defer_loading"):
            return
        signed_fields = open_compaction_signature(block)
        if signed_fields is not None and signed_fields.get("frame") == self.frame:
            self.state = signed_fields.get("end", "")
            return
        self.state = digest_pieces(self.state.encode(), block.key)
        if block.section != "messages":
            self.frame = self.state


def open_compaction_signature(block: PromptBlock) -> SignedFields | None:
    """Return the signed fields of a compaction block that a strict provider made, or None for any other block."""
    if block.kind != "compaction":
        return None
    signature = block.value.get("signature") or block.value.get("encrypted_content")
    return open_provider_signature(signature, "compaction")


def sign_thinking(prefix: str, model: str, words: str) -> str:
    """Return the signature of the thinking ``words`` of ``model``, after the history with the digest ``prefix``."""
    words_digest = digest_pieces(words.encode("utf-8", "replace"))
    return make_provider_signature("thinking", prefix=prefix, model=model, words=words_digest)


# -- checking ----------------------------------------------------------------------------------------------------------


def check_signed_thinking(
    request: ProviderRequest,
    blocks: Sequence[PromptBlock],
    settings: ProviderSettings,
) -> HistoryCheck | RefusalReply:
    """Check the thinking in a history.

    Returns the history without thinking that does not belong to it, if the request asks for that
    (``prefix_mismatch_behavior``). Otherwise such thinking is refused, as is thinking that was changed.
    """
    is_bound = is_thinking_bound(request.model, settings)
    latest_answer_start = _find_latest_answer(blocks)
    history = HistoryDigest()
    kept_blocks: list[PromptBlock] = []
    dropped_blocks: list[tuple[str, str]] = []
    for index, block in enumerate(blocks):
        mismatch: RefusalReply | str = ""
        if block.section == "messages" and block.kind in THINKING_FIELDS:
            is_latest = index >= latest_answer_start
            mismatch = _check_thinking_block(
                block,
                history.state,
                request.model,
                is_latest,
                is_bound,
                settings,
            )
        if isinstance(mismatch, RefusalReply):
            return mismatch
        if mismatch and not _is_dropping_mismatches(request):
            return _make_thinking_refusal(block, _BOUND_TEXT)
        if mismatch:
            # Dropped thinking is not part of the digest, so all thinking after it mismatches too, as with Anthropic.
            dropped_blocks.append((block.path, mismatch))
        else:
            kept_blocks.append(block)
            history.add_block(block)
    return HistoryCheck(tuple(kept_blocks), tuple(dropped_blocks))


def _is_dropping_mismatches(request: ProviderRequest) -> bool:
    return bool(request.get_option("thinking", "block_binding", "prefix_mismatch_behavior") == "drop_block")


def _find_latest_answer(blocks: Sequence[PromptBlock]) -> int:
    """Return the index of the first block of the latest assistant message."""
    index = len(blocks)
    while index and blocks[index - 1].role != "assistant":
        index -= 1
    while index and blocks[index - 1].role == "assistant":
        index -= 1
    return index


def _check_thinking_block(
    block: PromptBlock,
    prefix: str,
    model: str,
    is_latest: bool,
    is_bound: bool,
    settings: ProviderSettings,
) -> RefusalReply | str:
    """Check one thinking block against the history before it.

    Returns the refusal of a block that was changed, the reason why a block belongs to another history, or an empty
    string if it is accepted. Thinking of a model that does not bind it may be replayed anywhere.
    """
    text_field, signature_field = THINKING_FIELDS[block.kind]
    signed_fields = open_provider_signature(block.value.get(signature_field), "thinking")
    if signed_fields is None:
        if settings.accepted_seals == "any":
            return ""
        return _make_thinking_refusal(block, _CORRUPT_TEXT)
    if block.kind == "thinking":
        text_digest = digest_pieces(str(block.value.get(text_field)).encode("utf-8", "replace"))
        if signed_fields.get("words") != text_digest:
            return _make_thinking_refusal(block, _MODIFIED_TEXT if is_latest else _CORRUPT_TEXT)
    signing_model = signed_fields.get("model", "")
    if not is_bound or not is_thinking_bound(signing_model, settings):
        return ""
    if not is_same_model_name(signing_model, model):
        return "model_mismatch"
    return "" if signed_fields.get("prefix") == prefix else "prefix_mismatch"


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
