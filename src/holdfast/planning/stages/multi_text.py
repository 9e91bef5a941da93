"""Messages of many small texts: the middle ones are replaced together, by one line.

Clients split a long prompt into dozens of text parts. A placeholder for each would be as long as the parts themselves,
so the first and last texts stay whole, as many as fit, and one line with one handle stands for all between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.messages.message import Message, format_part_placeholder, get_part_text
from holdfast.messages.parts import Media, Part, Text
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, build_sized_message, estimate_text_tokens
from holdfast.planning.builder import PlanBuilder, build_part_edit
from holdfast.planning.extract.constants import HANDLE_CHARS, MAX_SMALL_TEXT_CHARS
from holdfast.planning.shown_messages import map_shown_parts
from holdfast.state.edits import Blob, Edit

MAX_SEPARATE_TEXTS = 8
"""Number of texts in a message up to which each is replaced alone. Each leaves a placeholder of some 40 tokens, so
those of more texts would take as much room as a preview. Chosen by judgement."""


def collect_small_texts(message: Message) -> dict[int, str]:
    """Return the small texts of a message by part index if there are enough to be replaced together, else nothing."""
    small_texts: dict[int, str] = {}
    for part_index, part in enumerate(message.parts):
        if isinstance(part, Text) and len(part.text) <= MAX_SMALL_TEXT_CHARS:
            small_texts[part_index] = part.text
    return small_texts if len(small_texts) > MAX_SEPARATE_TEXTS else {}


def select_middle_texts(
    number: int,
    measure_text: Callable[[int], int],
    max_tokens: int,
    end_share: float,
) -> range:
    """Return the positions of the texts to leave out, so that about ``max_tokens`` tokens of the others stay.

    There are ``number`` texts, and ``measure_text`` returns the tokens of one by its position. The texts at the end get
    the share ``end_share`` of the tokens, those at the start the rest. The first and the last always stay. Texts in the
    middle are not measured.
    """
    start_tokens = max_tokens * (1 - end_share)
    start_count = _count_fitting(range(number - 1), measure_text, start_tokens)
    end_count = _count_fitting(
        range(number - 1, start_count - 1, -1),
        measure_text,
        max_tokens * end_share,
    )
    return range(start_count, number - end_count)


def _count_fitting(positions: Iterable[int], measure_text: Callable[[int], int], max_tokens: float) -> int:
    """Return how many of the first ``positions`` have at most ``max_tokens`` together; at least 1 if there are any."""
    count = 0
    remaining = max_tokens
    for position in positions:
        remaining -= measure_text(position)
        if count and remaining < 0:
            break
        count += 1
    return count


def replace_parts_with_line(
    builder: PlanBuilder,
    message_index: int,
    part_indexes: Sequence[int],
    rule: str,
) -> list[tuple[Edit, Blob | None]]:
    """Return the edits that show one line in place of the parts at ``part_indexes``, and the blob of their texts.

    The blob also holds the parts between them that were removed before, so that one handle reads back everything. The
    edits may save nothing, or less, if the line is not shorter: callers check that.
    """
    if not part_indexes:
        return []
    first, last = part_indexes[0], part_indexes[-1]
    shown_parts = map_shown_parts(builder.state, message_index)
    original_parts = builder.state.history.messages[message_index].parts
    removed_before = [part_index for part_index in range(first, last + 1) if part_index not in shown_parts]
    covered_indexes = sorted([*part_indexes, *removed_before])
    covered_texts = [get_part_text_or_placeholder(original_parts[index]) for index in covered_indexes]
    whole_text = "\n".join(covered_texts)
    blob = builder.make_blob(whole_text)
    blob_hash = ""
    hint = "ask for a part to see them"
    if blob is not None:
        blob_hash = blob.hash
        hint = f'recall(id="{blob_hash[:HANDLE_CHARS]}") returns them'
    subject = f"{len(covered_indexes):,} texts of this message, {len(whole_text):,} characters,"
    line = f"[{subject} are left out here; {hint}]"
    why = f"{subject} are replaced by one line"
    # Only what is shown now is saved. Measured as one message, since the texts of a message are counted together.
    removed_parts = [shown_parts[part_index] for part_index in part_indexes]
    removed_message = build_sized_message(Message("user", tuple(removed_parts)))
    saves = removed_message.tokens - MESSAGE_OVERHEAD - estimate_text_tokens(line)

    # The first part becomes the line and has all the savings; the others disappear.
    line_edit = build_part_edit(
        message_index,
        first,
        Text(line),
        rule,
        why,
        saves,
        blob_hash,
    )
    pairs: list[tuple[Edit, Blob | None]] = [(line_edit, blob)]
    for part_index in part_indexes[1:]:
        removal = build_part_edit(
            message_index,
            part_index,
            None,
            rule,
            why,
            0,
            blob_hash,
        )
        pairs.append((removal, None))
    return pairs


def get_part_text_or_placeholder(part: Part) -> str:
    """Return the text of a part, or for media the line that stands for it."""
    if isinstance(part, Media):
        return format_part_placeholder(part)
    return get_part_text(part)
