"""A message of many texts gives way as a whole: those in its middle go together, and one line stands in their place.

The first and the last stay, and of the others as many as there is room for: whole ones, each as it was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.messages.message import Message, part_text, placeholder
from holdfast.messages.parts import Media, Part, Text
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, count, measure
from holdfast.messages.text.cutting import fingerprint
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import shown_parts
from holdfast.planning.settings import HANDLE, SMALL_TEXT
from holdfast.state.edits import Blob, Edit, Span

MANY = 8
"""[H] Texts up to which each of a message gives way alone: a line about each of more would fill the room."""


def many_texts(message: Message) -> dict[int, str]:
    """Return by their places the texts of a message that give way together: the small ones, where they are many."""
    texts = {place: part.text for place, part in enumerate(message.parts) if isinstance(part, Text)}
    small = {place: text for place, text in texts.items() if len(text) <= SMALL_TEXT}
    return small if len(small) > MANY else {}


def middle(number: int, size: Callable[[int], int], most: int, tail: float) -> range:
    """Return which of ``number`` texts go so that about ``most`` tokens stay, the share ``tail`` of them at the end.

    ``size`` tells the tokens of one; those that go are not asked for.
    """
    head = _reached(range(number - 1), size, most * (1 - tail))
    return range(head, number - _reached(range(number - 1, head - 1, -1), size, most * tail))


def _reached(places: Iterable[int], size: Callable[[int], int], most: float) -> int:
    """Return how many of ``places`` have at most so many tokens together; one at least, if there is one."""
    reached, left = 0, most
    for place in places:
        left -= size(place)
        if reached and left < 0:
            break
        reached += 1
    return reached


def left_out(draft: Draft, slot: int, places: Sequence[int], rule: str) -> list[tuple[Edit, Blob | None]]:
    """Return the edits that show one line in place of the parts of ``slot`` at ``places``, and the text behind it.

    That holds what went before from between them, too. They save nothing, or less, where the line is not shorter.
    """
    if not places:
        return []
    shown, said = shown_parts(draft.branch, slot), draft.branch.messages[slot].parts
    gone = Message("user", tuple([shown[place] for place in places]))
    behind = [place for place in range(places[0], places[-1] + 1) if place not in shown]  # they went before
    whole = "\n".join([words(said[place]) for place in sorted([*places, *behind])])
    blob = Blob(fingerprint(whole), whole) if draft.world.spill else None
    how = f'recall(id="{blob.hash[:HANDLE]}") returns them' if blob else "ask for a part to see them"
    told = f"{len(places) + len(behind):,} texts of this message, {len(whole):,} characters,"
    line, why = f"[{told} are left out here; {how}]", f"{told} gave way to a line"
    saves, hash_ = measure(gone).size - MESSAGE_OVERHEAD - count(line), blob.hash if blob else ""
    first = Edit(Span(slot, slot + 1, places[0]), (Text(line),), rule, why, saves, hash_)
    others = [Edit(Span(slot, slot + 1, place), (), rule, why, 0, hash_) for place in places[1:]]
    return [(first, blob), *[(edit, None) for edit in others]]


def words(part: Part) -> str:
    """Return what a part says, of media the words that stand for it."""
    return placeholder(part) if isinstance(part, Media) else part_text(part)
