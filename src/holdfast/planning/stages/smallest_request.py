"""The smallest request there is: a short extract, the newest words and the open calls, whatever else there was.

It needs no model and no store: where a text cannot be stored away it is cut, and read back from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from msgspec.structs import replace

from holdfast.messages.cut_points import group_ends
from holdfast.messages.message import part_text, placeholder
from holdfast.messages.parts import Media, Part, Text, ToolResult
from holdfast.messages.size.tokens import count, media_tokens
from holdfast.messages.size.weighted_chars import CHARS_A_TOKEN
from holdfast.messages.text.cutting import fingerprint
from holdfast.planning.budget import in_force, measure_room
from holdfast.planning.builder import Draft
from holdfast.planning.extract.summary_builder import stand_in
from holdfast.planning.presets.measures import shown_parts
from holdfast.planning.settings import HANDLE, LEAST_SUMMARY, Settings
from holdfast.planning.stages.escape_tags import harmless
from holdfast.planning.stages.multi_text import MANY, left_out, middle, words
from holdfast.planning.stages.tail_selection import cuts, first_unseen, open_turn, tail_size
from holdfast.planning.stages.truncate import truncate_text
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.turns import newest_answer, newest_words
from holdfast.state.branch.view import shown, shown_slots
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.entries import FALLBACK
from holdfast.state.target import Target, World

LEVELS = ((500, 500), (500, 100), (200, 40))
"""[H] Estimator tokens that a text of the user keeps, and a result; the next ones where those are too many."""
TAIL_SHARE = 0.5
"""[H] Of the room, for what is kept, before texts get shorter still."""
NOTICE = 40
"""Estimator tokens of the line that says what is left out, about."""
RULE = "fallback"
"""Rule of the edits of the smallest request."""
UNREAD = "unread"
"""Rule of the notice that results gave way before the model read them, and of the edits that cut them before that."""
_UNREAD = "results give way to the summary before the model read them: cut short they are still too much"


def smallest(draft: Draft) -> Draft:
    """Return the draft as the smallest request that shows the user's newest words and the calls that are open.

    Every medium is words, long texts are cut or spilled, all before the newest group is a short extract. It is as it
    was where that would not be smaller.
    """
    best = draft
    for keep, level in product(_places(draft), LEVELS):
        made = _made(draft, keep, level)
        if made.at_most <= draft.room.usable and _is_modest(made):
            return told_unread(draft, made) if made.estimate < draft.estimate else draft
        best = min(best, made, key=lambda one: one.estimate)
    return told_unread(draft, best)


def told_unread(before: Draft, after: Draft) -> Draft:
    """Return ``after`` with a notice where results gave way in it that the model waits for in ``before``."""
    return after.note(UNREAD, _UNREAD) if after.branch.keep > open_turn(before.branch) else after


def floor(branch: Branch, target: Target, settings: Settings) -> int:
    """Return the tokens of what can never be reduced: frame, the newest words cut short, the open calls cut short."""
    target = in_force(target, branch, settings)
    room = measure_room(target, settings)
    draft = Draft(branch, target, settings, World(), room)
    kept = {*shown_slots(branch, open_group(branch)), newest_words(branch, branch.keep)} - {-1}
    size = sum(slot.size for slot in branch.slots.slice(0, branch.pinned))
    size += sum(_size(branch, index) - _saved(draft, index, LEVELS[-1]) for index in kept)
    return room.frame + round(draft.scale * size)


def open_group(branch: Branch) -> int:
    """Return the slot of the message whose calls are not all answered; the end where there is none."""
    newest, messages = newest_answer(branch, branch.keep), branch.messages.slice(branch.keep)
    is_open = newest >= 0 and group_ends(messages)[newest - branch.keep] > len(messages)
    return newest if is_open else len(branch.slots)


def _places(draft: Draft) -> list[int]:
    """Return where the kept tail may begin: at words no request has shown, at the newest group, nowhere."""
    legal = cuts(draft.branch)
    if not legal:
        return [draft.branch.keep]
    unseen = first_unseen(draft)
    wanted = [
        *[cut for cut in legal if cut <= unseen][-1:],
        *[cut for cut in legal if cut < len(draft.branch.slots)][-1:],
    ]
    return sorted({*wanted, legal[-1]})


def _made(draft: Draft, keep: int, level: tuple[int, int]) -> Draft:
    """Return the draft with all before ``keep`` in a short extract, and every text behind it short.

    Where nothing was said before ``keep`` that an extract could tell, that stays, and is short as well.
    """
    short = _cut_from(draft, keep, level)
    if keep <= draft.branch.pinned:
        return short
    alone = replace(short, settings=replace(draft.settings, restore_files=0), world=replace(draft.world, restored=()))
    made = stand_in(alone, keep, draft.room.share(LEAST_SUMMARY))
    if made is None:
        return _cut_from(draft, draft.branch.keep, level)
    made = replace(made, trigger=FALLBACK)
    return short.compact(replace(made, after=short.compact(made).estimate))


def _cut_from(draft: Draft, start: int, level: tuple[int, int]) -> Draft:
    """Return the draft with every text from slot ``start`` on short, and the user's newest words wherever they are."""
    branch = draft.branch
    cut = {*shown_slots(branch, start), newest_words(branch, branch.pinned)} - {-1}
    return draft.give_way(pair for index in sorted(cut) for pair in _shorter(draft, index, level))


def _is_modest(draft: Draft) -> bool:
    """Return whether what is kept leaves as much room for what comes."""
    return draft.scale * tail_size(draft.branch, draft.branch.keep) <= draft.room.share(TAIL_SHARE)


def _size(branch: Branch, index: int) -> int:
    return sum(slot.size for slot in shown(branch, index))


def _saved(draft: Draft, index: int, level: tuple[int, int]) -> int:
    return sum(edit.saves for edit, _ in _shorter(draft, index, level))


def _shorter(draft: Draft, index: int, level: tuple[int, int]) -> Iterator[tuple[Edit, Blob | None]]:
    """Yield the edits that make what a slot shows short, with the texts to be stored; of an answer only the media."""
    message, shown = draft.branch.messages[index], shown_parts(draft.branch, index)
    if message.role == "assistant":
        shown = {place: part for place, part in shown.items() if isinstance(part, Media)}
    gone = _middle(draft, shown, level[0])
    yield from left_out(draft, index, gone, RULE)
    for place in sorted(shown.keys() - gone):
        part = shown[place]
        put, blob = _short(draft, part, message.parts[place], level[isinstance(part, ToolResult)])
        saves = _tokens(part) - _tokens(put)
        if put is not part and saves > 0:
            why = "nothing else made the request small enough"
            yield Edit(Span(index, index + 1, place), (put,), RULE, why, saves, blob.hash if blob else ""), blob


def _middle(draft: Draft, shown: Mapping[int, Part], most: int) -> Sequence[int]:
    """Return which of the texts and media of a message go together: more than ``MANY`` are as large as so many."""
    places = [place for place, part in shown.items() if isinstance(part, Text | Media)]

    def size(at: int) -> int:
        return min(count(words(shown[places[at]])), most + NOTICE)

    gone = middle(len(places), size, MANY * most, draft.settings.preview_tail) if len(places) > MANY else range(0)
    return places[gone.start : gone.stop]


def _short(draft: Draft, part: Part, old: Part, most: int) -> tuple[Part, Blob | None]:
    """Return what stands for ``part``, said as ``old``, in about ``most`` tokens, and the text to be stored for it."""
    if isinstance(part, Media):
        return Text(placeholder(part)), None
    if not isinstance(part, Text | ToolResult):
        return part, None
    text = part_text(part)
    short, blob = cut_text(draft, text, part_text(old) if type(old) is type(part) else text, most)
    if isinstance(part, Text):
        return (Text(short), blob) if short != text else (part, None)
    media = [Text(placeholder(one)) for one in part.content if isinstance(one, Media)]
    if short == text and not media:
        return part, None
    return ToolResult(part.call_id, part.name, (Text(short), *media), part.is_error), blob


def cut_text(draft: Draft, text: str, whole: str, most: int) -> tuple[str, Blob | None]:
    """Return ``text``, which shows ``whole``, in about ``most`` tokens, and the blob it points to where it is cut."""
    if count(text) <= most:
        return text, None
    blob = Blob(fingerprint(whole), whole) if draft.world.spill else None
    chars = most * CHARS_A_TOKEN
    short = ""
    while chars >= most // 4:
        short = harmless(truncate_text(whole, chars, blob.hash[:HANDLE] if blob else ""))
        if count(short) <= most + NOTICE:
            break
        chars //= 2
    return short, blob


def _tokens(part: Part) -> int:
    """Return the tokens of a part, as the estimator counts them."""
    if isinstance(part, Media):
        return media_tokens(part)
    if isinstance(part, ToolResult):
        return sum(map(_tokens, part.content))
    return count(part.text) if isinstance(part, Text) else 0
