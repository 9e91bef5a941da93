"""Whether a request may pass: the rules of its API, then what only the provider itself can know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider.answers.compaction import check_compaction_blocks, drop_compacted_blocks
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.checks.refusals import make_rule_refusal
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.anthropic_thinking import THINKING_FIELDS, HistoryCheck, check_signed_thinking
from holdfast.testing.provider.signatures.gemini_thoughts import check_thought_signatures
from holdfast.testing.provider.signatures.response_history import ResponseStore


def check_request_rules(request: ProviderRequest) -> RefusalReply | None:
    """Return the refusal of a request that breaks a rule which its bytes alone can break."""
    findings = validate_request(request.received, request.api, betas=request.betas, model=request.model)
    return make_rule_refusal(request.api, findings, request.body)


def check_returned_parts(
    request: ProviderRequest, pieces: Sequence[PromptBlock], settings: ProviderSettings, response_store: ResponseStore
) -> HistoryCheck | RefusalReply:
    """Return which of the provider's own words came back in another history, or the refusal of changed ones."""
    if request.api == "anthropic":
        return check_compaction_blocks(pieces, settings) or check_signed_thinking(request, pieces, settings)
    if request.api == "openai-responses":
        return response_store.check_items(request, pieces, settings)
    return (check_thought_signatures(request, settings) if request.api == "gemini" else None) or HistoryCheck(
        tuple(pieces)
    )


def filter_visible_blocks(request: ProviderRequest, pieces: Sequence[PromptBlock]) -> list[PromptBlock]:
    """Return the pieces that the model reads: none before a compaction, no thinking that it has forgotten."""
    start = (
        _find_newest_user_words(pieces) if request.api == "anthropic" and is_old_thinking_dropped(request.model) else 0
    )
    kept_pieces = [
        piece
        for at, piece in enumerate(pieces)
        if not (at < start and piece.section == "messages" and piece.kind in THINKING_FIELDS)
    ]
    return drop_compacted_blocks(request.api, kept_pieces)


_FORGETFUL_MODELS = re.compile(
    r"claude-(?:v?[12](?!\d)|instant|3(?!\d))|opus-4(?![-.][5-9])|sonnet-4(?![-.][6-9])|haiku-4"
)
"""Claude up to Opus 4.1, Sonnet 4.5 and Haiku 4.5 (prompt caching page)."""


def is_old_thinking_dropped(model: str) -> bool:
    """Return whether ``model`` forgets its thinking when the user speaks again, and so misses its cache there."""
    return _FORGETFUL_MODELS.search(model.lower()) is not None


def _find_newest_user_words(pieces: Sequence[PromptBlock]) -> int:
    """Return where the user's newest own words stand."""
    starts = (at for at, piece in enumerate(pieces) if piece.role == "user" and piece.kind != "tool_result")
    return max(starts, default=0)
