"""As opencode prunes: behind the second user message from the end, and only what is worth it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import text_tokens
from holdfast.planning.stages.prune.shown import CLEARED, Result, cleared, may_go, results_as_shown
from holdfast.planning.stages.tool_results import tool_names
from holdfast.state.edits import Edit


def opencode(draft: Draft) -> Draft:
    """Return the draft with results cleared behind the newest tokens of them and the second user message, if enough go.

    Results of failed calls stay and do not count, nor do those of exempt tools; the first one that was cleared before
    ends the search. Tokens are characters over four.
    """
    settings = draft.settings
    keep = settings.prune_keep or draft.room.share(settings.prune_keep_share)
    held = freed = 0
    edits: list[Edit] = []
    for one in _finished(draft):
        size = text_tokens(one.text)
        held += size
        if held > keep and (edit := cleared(one)) is not None:
            freed += size
            edits.append(edit)
    return draft.decide(tuple(edits)) if freed > settings.prune_minimum else draft


def _finished(draft: Draft) -> Iterator[Result]:
    """Yield the results that may be counted, newest first, back to one that was cleared."""
    start, names, goes = _second_user(draft), tool_names(draft.branch), may_go(draft.settings)
    for one in results_as_shown(draft.branch):
        if one.text == CLEARED:
            return
        if one.slot < start and not one.result.is_error and goes(names(one.slot, one.result)):
            yield one


def _second_user(draft: Draft) -> int:
    """Return the slot of the second user message from the end; 0 where there is none."""
    branch, users = draft.branch, 0
    for index in range(len(branch.slots) - 1, branch.keep - 1, -1):
        users += branch.messages[index].starts_turn
        if users == 2:
            return index
    return 0
