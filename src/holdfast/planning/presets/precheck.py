"""Before a request: whether results can make room, or a compaction must.

[O] 2026.3 has a guard inside the loop: a request may take a share of the window, in characters of which those of tools
count twice, and the oldest results give way first. 2026.9 has a check instead: where cutting results frees enough, with
something to spare, they are cut and nothing is compacted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import count
from holdfast.messages.size.weighted_chars import CHARS_A_TOKEN, weigh
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import request_size, total_shown
from holdfast.planning.stages.spill import replaced
from holdfast.planning.stages.truncate import (
    Held,
    bounds,
    cut_results,
    held_results,
    reducible,
    text_weight,
    truncate_result,
)
from holdfast.state.edits import Edit, Span

Way: TypeAlias = Literal["fits", "compact_only", "truncate_tool_results_only", "compact_then_truncate"]
SPARE = 2_048
"""[O] Characters that cutting results must free beyond what is too much."""
SPARE_SHARE = 1.5
"""[O] Or so many times what is too much."""
TOOL_WEIGHT = 2
"""[O] Words of tools count twice: code and logs have more tokens than prose."""
LEAST = 1_024
"""[O] Characters that a budget of the guard has at least."""
REMOVED = "[Older tool output removed: it no longer fits beside what came later]"
"""What the guard inside the loop shows in place of a result."""


class Route(Struct, frozen=True):
    """What to do before a request, and the tokens by which it is too big."""

    way: Way
    overflow: int = 0


def route(estimated: int, window: int, reserve: int, reducible_chars: int) -> Route:
    """Return the way to make a request of ``estimated`` tokens fit its window less the reserve."""
    overflow = max(0, estimated - max(1, window - reserve))
    chars = overflow * CHARS_A_TOKEN
    if not overflow:
        return Route("fits")
    if reducible_chars <= 0:
        return Route("compact_only", overflow)
    enough = max(chars + SPARE, math.ceil(chars * SPARE_SHARE))
    return Route("truncate_tool_results_only" if reducible_chars >= enough else "compact_then_truncate", overflow)


def precheck(draft: Draft) -> Draft:
    """Return the draft with results cleared or cut as the policy does before it thinks of compacting."""
    if not draft.may_make_room:
        return draft
    if draft.settings.loop_share:
        draft = draft.decide(tuple(_guarded(draft)))
    if not draft.settings.precheck or (size := request_size(draft)) <= draft.room.usable:
        return draft
    found = route(size, draft.room.window, draft.room.reserve, reducible(draft))
    return cut_results(draft) if found.way == "truncate_tool_results_only" else draft


def _guarded(draft: Draft) -> Iterator[Edit]:
    """Yield the edits that bring results within what the guard inside the loop allows."""
    settings, chars = draft.settings, draft.room.window * CHARS_A_TOKEN
    most = max(LEAST, int(chars * settings.loop_share))
    most_of_one = max(LEAST, int(chars * settings.loop_one_share / TOOL_WEIGHT))
    # Half of the window, where words of tools count twice, is less than results may have under pressure. Nothing is
    # under pressure yet, so the guard does not cut deeper than that: a lower limit would leave the other without use.
    most_of_one = max(most_of_one, bounds(draft.room.window, settings).each)
    over = total_shown(draft.branch, _doubled) - most
    if over <= 0 and not total_shown(draft.branch, _Long(most_of_one)):
        return
    held = list(held_results(draft.branch))
    cut = [_shorter(one, most_of_one) for one in held]
    over -= TOOL_WEIGHT * sum(one.weight - new.weight for one, new in zip(held, cut, strict=True))
    for one, new in zip(held, _without_oldest(cut, over), strict=True):
        if new.result is not one.result:
            yield _edit(one, new)


def _doubled(message: Message) -> int:
    return weigh(message, TOOL_WEIGHT)


class _Long(Struct, frozen=True):
    """The measure that counts results over a limit."""

    most: int

    def __call__(self, message: Message) -> int:
        return sum(text_weight(result) > self.most for result in message.results)


def _without_oldest(held: Sequence[Held], over: int) -> Iterator[Held]:
    """Yield ``held``, the oldest of them as a line until ``over`` weighted characters are free."""
    for one in held:
        frees = TOOL_WEIGHT * (one.weight - len(REMOVED))
        if over > 0 and frees > 0:
            over -= frees
            yield Held(one.slot, one.place, replaced(one.result, REMOVED), len(REMOVED))
        else:
            yield one


def _shorter(one: Held, most: int) -> Held:
    result = truncate_result(one.result, most)
    return one if result is one.result else Held(one.slot, one.place, result, most)


def _edit(old: Held, new: Held) -> Edit:
    text, short = result_text(old.result), result_text(new.result)
    why = f"results took too much of the window: of {len(text):,} characters {len(short):,} stay"
    put: tuple[ToolResult, ...] = (new.result,)
    return Edit(Span(old.slot, old.slot + 1, old.place), put, "loop", why, count(text) - count(short))
