"""Prune: old results and answered images give way to a line. Each rule says when, and which; it is decided once."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.planning.builder import Draft
from holdfast.planning.presets.prune_idle import idle
from holdfast.planning.presets.prune_images import seen_images
from holdfast.planning.presets.prune_opencode import opencode
from holdfast.planning.presets.prune_ttl import ttl
from holdfast.planning.stages.prune.epoch import epoch
from holdfast.planning.stages.prune.shown import CLEARED

__all__ = ["CLEARED", "prune"]

_RULES: dict[str, Callable[[Draft], Draft]] = {"epoch": epoch, "opencode": opencode, "idle": idle, "ttl": ttl}
"""Ours stores what it clears; those of others keep no text to read back."""


def prune(draft: Draft) -> Draft:
    """Return the draft with answered images left out and old results cleared, as the policy says of each."""
    draft = draft.decide(tuple(seen_images(draft)))
    rule = _RULES.get(draft.settings.prune)
    return draft if rule is None else rule(draft)
