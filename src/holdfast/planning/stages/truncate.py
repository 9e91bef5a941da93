"""Truncation: under pressure, results over their limit keep a head, an end that looks important, and a notice.

All sizes are weighted characters. The limit of one result is a share of the window; all together have one too. What
is decided is recorded; the messages in the log stay whole, and what was cut out is read back from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message, part_text, result_text, with_parts
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import count
from holdfast.messages.size.weighted_chars import CHARS_A_TOKEN, head_within, tail_within, weight
from holdfast.messages.sized_message import Slot
from holdfast.messages.text.cutting import clip, clip_start, fingerprint
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import request_size, shown_parts
from holdfast.planning.settings import HANDLE, Settings
from holdfast.state.branch.branch import TRUNCATE, Branch
from holdfast.state.branch.turns import newest_answer
from holdfast.state.branch.view import origins, project, shown_slots
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.entries import BranchSummary, Entry, Said

KEEP = 2_000
"""[O] Characters that a result keeps at least, unless its budget is smaller."""
LINE = 160
"""[H] Where even that is too much for all results together, old ones keep this: a few words and the notice."""
TAIL_SHARE, TAIL_MOST = 0.3, 4_000
"""[O] An important end gets this share of the budget, and at most so many characters."""
LOOKED_AT = 2_000
"""[O] Characters of the end that tell whether it is important."""
MIDDLE = "\n\n[... the middle is left out ...]\n\n"
"""What stands between a head and an end."""
_IMPORTANT = re.compile(
    r"(errors?|exceptions?|\b(failed|fatal|traceback|panic|stack.?trace|errno|exit.?code"
    r"|total|summary|results?|complete|finished|done))\b",
    re.IGNORECASE,
)
"""[O] Words of an end that tells how it went."""


class Bounds(Struct, frozen=True):
    """Weighted characters that one result may have, and all results together (0 = as many as there are)."""

    each: int
    together: int = 0


def bounds(window: int, settings: Settings) -> Bounds:
    """Return the limits of results in a ``window`` of tokens: a share of it, never over the most there may be."""
    most = [size for start, size in sorted(settings.truncate_steps) if window >= start][-1:]
    most = [size for size in (settings.truncate_most, *most) if size]
    each = min([int(window * settings.truncate_share) * CHARS_A_TOKEN, *most])
    together = max(each * settings.truncate_together, int(window * settings.truncate_together_share * CHARS_A_TOKEN))
    return Bounds(each, together)


def is_oversized(messages: Iterable[Message], limits: Bounds) -> bool:
    """Return whether a result of ``messages``, or all of them together, are over their limit: a look at a snapshot."""
    weights = [text_weight(result) for message in messages for result in message.results]
    return any(size > limits.each for size in weights) or bool(limits.together and sum(weights) > limits.together)


def text_weight(result: ToolResult) -> int:
    """Return the weighted characters of a result's words; images have limits of their own."""
    return sum(weight(part.text) for part in result.content if isinstance(part, Text))


# -- texts -------------------------------------------------------------------------------------------------------------


def truncate_text(text: str, most: int, handle: str = "") -> str:
    """Return ``text`` in at most ``most`` weighted characters: its head, an important end, and a notice of the rest.

    ``handle`` names the whole text to whoever may read it back. A budget too small for a notice gets the head alone.
    """
    if weight(text) <= most:
        return text
    room = most - len(notice(len(text), handle))
    if room <= 0:
        return text[: head_within(text, most)]
    head, tail = _ends(text, room)
    return f"{head}{MIDDLE if tail else ''}{tail}{notice(len(text) - len(head) - len(tail), handle)}"


def notice(gone: int, handle: str = "") -> str:
    """Return the words behind a cut text: how much is gone, and how to get it."""
    how = f'recall(id="{handle}") returns them' if handle else "ask for a part to see them"
    return f"\n[... {gone:,} characters left out; {how}]"


def is_important(text: str) -> bool:
    """Return whether the end of ``text`` looks like an error, a result, or the end of JSON."""
    end = text[-LOOKED_AT:]
    return end.rstrip().endswith("}") or _IMPORTANT.search(end) is not None


def _ends(text: str, room: int) -> tuple[str, str]:
    """Return what stays of ``text`` at its start and at its end, cut at lines where they end close by."""
    end = min(int(room * TAIL_SHARE), TAIL_MOST)
    start = room - end - len(MIDDLE)
    if room <= 2 * KEEP or start <= KEEP or not is_important(text):
        return clip(text, head_within(text, room)), ""
    tail = clip_start(text, tail_within(text, end))
    return clip(text[: len(text) - len(tail)], head_within(text, start)), tail


# -- results -----------------------------------------------------------------------------------------------------------


def truncate_result(result: ToolResult, most: int, handle: str = "") -> ToolResult:
    """Return ``result`` with its texts in ``most`` weighted characters, split among them by their share.

    Images and what we do not know stay as they are; the same result comes back where nothing is over.
    """
    sizes = [weight(part.text) if isinstance(part, Text) else 0 for part in result.content]
    total = sum(sizes)
    if total <= most:
        return result
    content = tuple(
        Text(truncate_text(part.text, most * size // total, handle)) if isinstance(part, Text) else part
        for part, size in zip(result.content, sizes, strict=True)
    )
    return replace(result, content=content, raw=None)


def budgets(sizes: Sequence[int], limits: Bounds, fresh: int = 0) -> dict[int, int]:
    """Return for each result that must get shorter what it may keep; ``sizes`` are in order, the oldest first.

    Those over the limit of one keep that. While all are too much together the oldest give more, first what is over
    ``KEEP``, then over ``LINE``; the newest ``fresh`` ones answer calls that nobody has read and give nothing more.
    """
    kept = [min(size, limits.each) for size in sizes]
    over = sum(kept) - limits.together if limits.together else 0
    for least in (KEEP, LINE):
        for index in range(len(kept) - fresh):
            gives = max(0, min(over, kept[index] - least))
            kept[index] -= gives
            over -= gives
    return {index: most for index, (most, size) in enumerate(zip(kept, sizes, strict=True)) if most < size}


# -- in memory: a decision on the branch -------------------------------------------------------------------------------


class Held(Struct, frozen=True):
    """A result as the projection shows it, and where it stands."""

    slot: int
    place: int
    result: ToolResult
    weight: int


def held_results(branch: Branch) -> Iterator[Held]:
    """Yield the results that the projection shows, whole or cut, oldest first."""
    for index in shown_slots(branch, branch.keep):
        for place, part in shown_parts(branch, index).items():
            if isinstance(part, ToolResult):
                yield Held(index, place, part, text_weight(part))


def truncate(draft: Draft) -> Draft:
    """Return the draft with its results within their limits, if the request is too big and room may be made.

    Once between two answers: what came of it is in the log, and a second run would find nothing new.
    """
    return cut_results(draft) if draft.may_make_room and request_size(draft) > draft.room.usable else draft


def cut_results(draft: Draft) -> Draft:
    """Return the draft with its results within their limits, unless that was done since the last answer."""
    return _cut_to(draft, bounds(draft.room.window, draft.settings)) if draft.settings.truncate_share else draft


def press_results(draft: Draft) -> Draft:
    """Return the draft with every result within what it may have under pressure, unless that was done lately.

    Where the policy has no limit of its own that is a share of the room.
    """
    settings = draft.settings
    if settings.truncate_share:
        return cut_results(draft)
    share = draft.own(draft.room.share(settings.pressure_share)) * CHARS_A_TOKEN
    return _cut_to(draft, Bounds(max(settings.pressure_least, share)))


def _cut_to(draft: Draft, limits: Bounds) -> Draft:
    """Return the draft with its results within ``limits``, unless results were cut since the last answer."""
    if draft.branch.truncations:
        return draft
    held = list(held_results(draft.branch))
    wanted = _wanted(draft, held, limits)
    pairs = (_cut(draft, held[index], most) for index, most in wanted.items())
    return draft.give_way(pair for pair in pairs if pair is not None)


def reducible(draft: Draft) -> int:
    """Return the weighted characters that ``cut_results`` would free."""
    held, limits = list(held_results(draft.branch)), bounds(draft.room.window, draft.settings)
    return sum(held[index].weight - most for index, most in _wanted(draft, held, limits).items())


def _wanted(draft: Draft, held: Sequence[Held], limits: Bounds) -> dict[int, int]:
    """Return what results that must get shorter may keep; those behind the newest answer are fresh."""
    newest = newest_answer(draft.branch, draft.branch.keep)
    return budgets([one.weight for one in held], limits, sum(one.slot > newest for one in held))


def _cut(draft: Draft, one: Held, most: int) -> tuple[Edit, Blob | None] | None:
    """Return the edit that cuts one result, and its whole text where it can be stored away."""
    whole = part_text(draft.branch.messages[one.slot].parts[one.place])
    blob = Blob(fingerprint(whole), whole) if draft.world.spill else None
    put = truncate_result(one.result, most, blob.hash[:HANDLE] if blob else "")
    text, short = result_text(one.result), result_text(put)
    saves = count(text) - count(short)
    if put is one.result or saves <= 0 or len(short) >= len(text):
        return None
    why = f"{len(text):,} characters in a window of {draft.room.window:,} tokens; {len(short):,} stay"
    span = Span(one.slot, one.slot + 1, one.place)
    return Edit(span, (put,), TRUNCATE, why, saves, blob.hash if blob else ""), blob


# -- in session: what a copied branch says instead ---------------------------------------------------------------------


def messages_shown(branch: Branch) -> dict[int, Message]:
    """Return by slot the messages of which a request shows one, as it shows it; system messages are left out."""
    every = zip(origins(branch), project(branch), strict=True)
    parted = {index for index, edits in branch.edits.items() if any(edit.span.part is None for edit in edits)}
    return {index: slot.message for index, slot in every if index >= branch.keep and index not in parted}


def entries_shown(path: Iterable[Entry], branch: Branch) -> Iterator[Entry]:
    """Yield the entries of ``messages_shown``, each saying what is shown of it; ``path`` leads to ``branch``."""
    messages = messages_shown(branch)
    for index, entry in enumerate(entry for entry in path if isinstance(entry.body, Said | BranchSummary)):
        if index in messages:
            yield replace(entry, body=Said(Slot(messages[index])))


def truncated_entries(entries: Iterable[Entry], limits: Bounds) -> dict[str, Message]:
    """Return by entry what each message with a result over its limit says instead, for ``branch_with`` of a store."""
    said = [(entry.id, entry.body.slot.message) for entry in entries if isinstance(entry.body, Said)]
    places = [
        (id_, place, text_weight(part))
        for id_, message in said
        for place, part in enumerate(message.parts)
        if isinstance(part, ToolResult)
    ]
    wanted = budgets([size for _, _, size in places], limits)
    cuts = {places[index][:2]: most for index, most in wanted.items()}
    short = {id_: _with_cuts(id_, message, cuts) for id_, message in said}
    return {id_: short[id_] for id_, message in said if short[id_] is not message}


def _with_cuts(id_: str, message: Message, cuts: dict[tuple[str, int], int]) -> Message:
    parts = [
        truncate_result(part, cuts[id_, place]) if isinstance(part, ToolResult) and (id_, place) in cuts else part
        for place, part in enumerate(message.parts)
    ]
    return with_parts(message, parts)
