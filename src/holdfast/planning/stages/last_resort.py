"""Relief: when a request is still too big, whatever is shown whole gives way, the largest first, seen or not.

The last resort before giving up: it needs no model, breaks the cached prefix, and leaves a handle for every text.
"""

from __future__ import annotations

from holdfast.planning.builder import Draft
from holdfast.planning.stages.spill import given_way, wholes
from holdfast.state.branch.view import shown_slots
from holdfast.state.edits import Blob, Edit

RELIEF = "relief"
"""Rule of the edits that spill what must fit."""


def relieve(draft: Draft) -> Draft:
    """Return the draft with the largest texts spilled until the request is usable, or nothing is left to spill.

    Where texts cannot be stored away every text stays whole, and so it does where nothing is to be done unasked.
    """
    if not (draft.settings.goal_share and draft.world.spill and draft.may_make_room):
        return draft
    if draft.at_most <= draft.room.usable:
        return draft
    excess = draft.own(draft.at_most - draft.room.usable) + 1
    pairs: list[tuple[Edit, Blob | None]] = []
    shown = wholes(draft.branch, shown_slots(draft.branch, draft.branch.keep))
    for one in sorted(shown, key=lambda one: (-one.tokens, one.slot, one.place)):
        if excess <= 0:
            break
        gone = given_way(draft, one, RELIEF)
        pairs += gone
        excess -= sum(edit.saves for edit, _ in gone)
    return draft.give_way(pairs)
