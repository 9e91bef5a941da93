"""Whether a request may pass: the rules of its API, then what only the provider itself can know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.providers.rules import validate
from holdfast.testing.provider.answers.compacting import check_blocks, in_force
from holdfast.testing.provider.blocks import Block
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.judge.refusals import refuse
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.seals.shelf import Shelf
from holdfast.testing.provider.seals.signing import THINKING, Checked, check_thinking
from holdfast.testing.provider.seals.thoughts import check_thoughts
from holdfast.testing.provider.settings import Settings


def obeys(request: Request) -> Refusal | None:
    """Return the refusal of a request that breaks a rule which its bytes alone can break."""
    findings = validate(request.received, request.api, betas=request.betas, model=request.model)
    return refuse(request.api, findings, request.body)


def returns(request: Request, pieces: Sequence[Block], settings: Settings, shelf: Shelf) -> Checked | Refusal:
    """Return which of the provider's own words came back in another history, or the refusal of changed ones."""
    if request.api == "anthropic":
        return check_blocks(pieces, settings) or check_thinking(request, pieces, settings)
    if request.api == "openai-responses":
        return shelf.check(request, pieces, settings)
    return (check_thoughts(request, settings) if request.api == "gemini" else None) or Checked(tuple(pieces))


def visible(request: Request, pieces: Sequence[Block]) -> list[Block]:
    """Return the pieces that the model reads: none before a compaction, no thinking that it has forgotten."""
    start = _words_from(pieces) if request.api == "anthropic" and strips(request.model) else 0
    kept = [
        piece
        for at, piece in enumerate(pieces)
        if not (at < start and piece.section == "messages" and piece.kind in THINKING)
    ]
    return in_force(request.api, kept)


_STRIPS = re.compile(r"claude-(?:v?[12](?!\d)|instant|3(?!\d))|opus-4(?![-.][5-9])|sonnet-4(?![-.][6-9])|haiku-4")
"""Claude up to Opus 4.1, Sonnet 4.5 and Haiku 4.5 (prompt caching page)."""


def strips(model: str) -> bool:
    """Return whether ``model`` forgets its thinking when the user speaks again, and so misses its cache there."""
    return _STRIPS.search(model.lower()) is not None


def _words_from(pieces: Sequence[Block]) -> int:
    """Return where the user's newest own words stand."""
    found = (at for at, piece in enumerate(pieces) if piece.role == "user" and piece.kind != "tool_result")
    return max(found, default=0)
