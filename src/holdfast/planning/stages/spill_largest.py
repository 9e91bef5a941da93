"""If a request is still too big, the largest texts are spilled, one after the other, whether seen or not.

This is the last stage of planning: it needs no model, breaks the cached prefix, and leaves a handle for every text.
"""

from __future__ import annotations

from holdfast.planning.builder import PlanBuilder
from holdfast.planning.stages.spill import build_text_replacement, find_spillable_texts
from holdfast.state.edits import Blob, Edit
from holdfast.state.view import list_shown_indexes

SPILL_LARGEST_RULE = "largest"
"""Rule of the edits that spill what must fit."""


def spill_largest_texts(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with the largest texts spilled until the request is usable, or nothing is left to spill.

    Where texts cannot be stored away every text stays whole, and so it does where nothing is to be done unasked.
    """
    if not (builder.settings.compaction.goal_share and builder.inputs.can_spill and builder.can_reduce):
        return builder
    if builder.upper_estimate <= builder.budget.usable:
        return builder
    excess = builder.to_estimator_tokens(builder.upper_estimate - builder.budget.usable) + 1
    pairs: list[tuple[Edit, Blob | None]] = []
    visible_texts = find_spillable_texts(
        builder.state, list_shown_indexes(builder.state, builder.state.view.first_kept)
    )
    for text in sorted(visible_texts, key=lambda text: (-text.tokens, text.message_index, text.part_index)):
        if excess <= 0:
            break
        text_pairs = build_text_replacement(builder, text, SPILL_LARGEST_RULE)
        pairs += text_pairs
        excess -= sum(edit.saves for edit, _ in text_pairs)
    return builder.replace_texts(pairs)
