"""The last stage: if the request is still too large, the largest texts are spilled one by one, seen or not.

It breaks the cached prefix, which the stages before it avoid, but it needs no model and leaves a handle for every text.
"""

from __future__ import annotations

from holdfast.planning.builder import PlanBuilder, sum_saved_tokens
from holdfast.planning.stages.spill import build_text_replacement, find_spillable_texts
from holdfast.state.edits import Blob, Edit
from holdfast.state.view import list_shown_indexes

SPILL_LARGEST_RULE = "largest"
"""Rule of the edits of this stage."""


def spill_largest_texts(builder: PlanBuilder) -> PlanBuilder:
    """Spill the largest texts until the request fits the usable window, or no more can be spilled.

    Nothing is spilled if texts cannot be stored, if nothing may be reduced unasked, or if compactions have no goal: the
    policies of other tools, which have none, know no such stage.
    """
    has_goal = builder.settings.compaction.goal_share > 0
    if not (has_goal and builder.inputs.can_spill and builder.can_reduce):
        return builder
    if builder.upper_estimate <= builder.budget.usable:
        return builder
    excess = builder.to_estimator_tokens(builder.upper_estimate - builder.budget.usable) + 1
    shown_indexes = list_shown_indexes(builder.state, builder.state.view.first_kept)
    texts = find_spillable_texts(builder.state, shown_indexes)
    pairs: list[tuple[Edit, Blob | None]] = []
    for text in sorted(texts, key=lambda text: (-text.tokens, text.message_index, text.part_index)):
        if excess <= 0:
            break
        text_pairs = build_text_replacement(builder, text, SPILL_LARGEST_RULE)
        pairs += text_pairs
        excess -= sum_saved_tokens(text_pairs)
    return builder.replace_texts(pairs)
