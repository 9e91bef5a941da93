"""A message of many texts gives way as a whole: those in its middle go together, and one line stands in their place.

The first and the last stay, and of the others as many as there is room for: whole ones, each as it was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.messages.message import Message, format_part_placeholder, get_part_text
from holdfast.messages.parts import Media, Part, Text
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, build_sized_message, estimate_text_tokens
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.constants import HANDLE_CHARS, MAX_SMALL_TEXT_CHARS
from holdfast.planning.shown_messages import map_shown_parts
from holdfast.state.edits import Blob, Edit, Span

MAX_SEPARATE_TEXTS = 8
"""[H] Texts up to which each of a message gives way alone: a line about each of more would fill the room."""


def collect_small_texts(message: Message) -> dict[int, str]:
    """Return by their places the texts of a message that give way together: the small ones, where they are many."""
    texts = {place: part.text for place, part in enumerate(message.parts) if isinstance(part, Text)}
    small = {place: text for place, text in texts.items() if len(text) <= MAX_SMALL_TEXT_CHARS}
    return small if len(small) > MAX_SEPARATE_TEXTS else {}


def select_middle_texts(number: int, size: Callable[[int], int], max_tokens: int, tail_share: float) -> range:
    """Return which of ``number`` texts go so that about ``max_tokens`` tokens stay, the share ``tail_share`` of them at
    the end.

    ``size`` tells the tokens of one; those that go are not asked for.
    """
    head = _count_fitting(range(number - 1), size, max_tokens * (1 - tail_share))
    return range(head, number - _count_fitting(range(number - 1, head - 1, -1), size, max_tokens * tail_share))


def _count_fitting(places: Iterable[int], size: Callable[[int], int], max_tokens: float) -> int:
    """Return how many of ``places`` have at most so many tokens together; one at least, if there is one."""
    reached_count, remaining = 0, max_tokens
    for place in places:
        remaining -= size(place)
        if reached_count and remaining < 0:
            break
        reached_count += 1
    return reached_count


def replace_parts_with_line(
    builder: PlanBuilder, message_index: int, part_indexes: Sequence[int], rule: str
) -> list[tuple[Edit, Blob | None]]:
    """Return the edits that show one line in place of the parts of ``message_index`` at ``part_indexes``, and the text
    behind it.

    That holds what went before from between them, too. They save nothing, or less, where the line is not shorter.
    """
    if not part_indexes:
        return []
    visible_parts, original_parts = (
        map_shown_parts(builder.state, message_index),
        builder.state.history.messages[message_index].parts,
    )
    removed_message = Message("user", tuple([visible_parts[place] for place in part_indexes]))
    behind = [
        place for place in range(part_indexes[0], part_indexes[-1] + 1) if place not in visible_parts
    ]  # they went before
    whole = "\n".join(
        [get_part_text_or_placeholder(original_parts[place]) for place in sorted([*part_indexes, *behind])]
    )
    blob = Blob(hash_text(whole), whole) if builder.inputs.can_spill else None
    how = f'recall(id="{blob.hash[:HANDLE_CHARS]}") returns them' if blob else "ask for a part to see them"
    subject = f"{len(part_indexes) + len(behind):,} texts of this message, {len(whole):,} characters,"
    line, why = f"[{subject} are left out here; {how}]", f"{subject} gave way to a line"
    saves, hash_ = (
        build_sized_message(removed_message).tokens - MESSAGE_OVERHEAD - estimate_text_tokens(line),
        blob.hash if blob else "",
    )
    first = Edit(Span(message_index, message_index + 1, part_indexes[0]), (Text(line),), rule, why, saves, hash_)
    empty_edits = [
        Edit(Span(message_index, message_index + 1, place), (), rule, why, 0, hash_) for place in part_indexes[1:]
    ]
    return [(first, blob), *[(edit, None) for edit in empty_edits]]


def get_part_text_or_placeholder(part: Part) -> str:
    """Return what a part says, of media the words that stand for it."""
    return format_part_placeholder(part) if isinstance(part, Media) else get_part_text(part)
