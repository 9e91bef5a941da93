"""The smallest request there is: a short extract, the newest words and the open calls, whatever else there was.

It needs no model and no store: where a text cannot be stored away it is cut, and read back from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from msgspec.structs import replace

from holdfast.messages.cut_points import find_call_group_ends
from holdfast.messages.message import format_part_placeholder, get_part_text
from holdfast.messages.parts import Media, Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_media_tokens, estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.budget import compute_budget, compute_effective_target
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.constants import HANDLE_CHARS, MIN_SUMMARY_SHARE
from holdfast.planning.extract.summary_builder import build_compaction
from holdfast.planning.settings import Settings
from holdfast.planning.shown_messages import map_shown_parts
from holdfast.planning.stages.escape_tags import escape_look_alike_tags
from holdfast.planning.stages.multi_text import (
    MAX_SEPARATE_TEXTS,
    get_part_text_or_placeholder,
    replace_parts_with_line,
    select_middle_texts,
)
from holdfast.planning.stages.tail_selection import (
    find_answer_with_unread_results,
    find_first_unseen_user_message,
    find_tail_cut_points,
    measure_tail,
)
from holdfast.planning.stages.truncate import truncate_text_to_weight
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.entries import TRIGGER_FALLBACK
from holdfast.state.target import PlanInputs, Target
from holdfast.state.turns import find_newest_answer_index, find_newest_user_index
from holdfast.state.view import list_shown_indexes, list_shown_sized_messages_at

CUT_LEVELS = ((500, 500), (500, 100), (200, 40))
"""[H] Estimator tokens that a text of the user keeps, and a result; the next ones where those are too many."""
MODEST_TAIL_SHARE = 0.5
"""[H] Of the room, for what is kept, before texts get shorter still."""
NOTICE_TOKENS = 40
"""Estimator tokens of the line that says what is left out, about."""
SMALLEST_REQUEST_RULE = "fallback"
"""Rule of the edits of the smallest request."""
UNREAD_RULE = "unread"
"""Rule of the notice that results gave way before the model read them, and of the edits that cut them before that."""
_UNREAD_NOTICE_TEXT = "results give way to the summary before the model read them: cut short they are still too much"


def build_smallest_request(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft as the smallest request that shows the user's newest words and the calls that are open.

    Every medium is words, long texts are cut or spilled, all before the newest group is a short extract. It is as it
    was where that would not be smaller.
    """
    best = builder
    for keep, level in product(_list_fallback_cuts(builder), CUT_LEVELS):
        candidate = _build_smallest_at(builder, keep, level)
        if candidate.upper_estimate <= builder.budget.usable and _has_modest_tail(candidate):
            return (
                add_unread_notice(builder, candidate)
                if candidate.estimated_tokens < builder.estimated_tokens
                else builder
            )
        best = min(best, candidate, key=lambda request: request.estimated_tokens)
    return add_unread_notice(builder, best)


def add_unread_notice(before: PlanBuilder, after: PlanBuilder) -> PlanBuilder:
    """Return ``after`` with a notice where results gave way in it that the model waits for in ``before``."""
    return (
        after.add_notice(UNREAD_RULE, _UNREAD_NOTICE_TEXT)
        if after.state.view.first_kept > find_answer_with_unread_results(before.state)
        else after
    )


def estimate_irreducible_tokens(state: ConversationState, target: Target, settings: Settings) -> int:
    """Return the tokens of what can never be reduced: frame, the newest words cut short, the open calls cut short."""
    target = compute_effective_target(target, state, settings)
    budget = compute_budget(target, settings)
    builder = PlanBuilder(state, target, settings, PlanInputs(), budget)
    kept_indexes = {
        *list_shown_indexes(state, find_open_call_group(state)),
        find_newest_user_index(state, state.view.first_kept),
    } - {-1}
    size = sum(sized_message.tokens for sized_message in state.history.sized_messages.slice(0, state.view.pinned_count))
    size += sum(
        _sum_shown_sizes(state, index) - _count_saved_tokens(builder, index, CUT_LEVELS[-1]) for index in kept_indexes
    )
    return budget.setup_tokens + round(builder.token_ratio * size)


def find_open_call_group(state: ConversationState) -> int:
    """Return the slot of the message whose calls are not all answered; the end where there is none."""
    newest, messages = (
        find_newest_answer_index(state, state.view.first_kept),
        state.history.messages.slice(state.view.first_kept),
    )
    is_open = newest >= 0 and find_call_group_ends(messages)[newest - state.view.first_kept] > len(messages)
    return newest if is_open else len(state.history.sized_messages)


def _list_fallback_cuts(builder: PlanBuilder) -> list[int]:
    """Return where the kept tail may begin: at words no request has shown, at the newest group, nowhere."""
    legal = find_tail_cut_points(builder.state)
    if not legal:
        return [builder.state.view.first_kept]
    unseen = find_first_unseen_user_message(builder)
    candidates = [
        *[position for position in legal if position <= unseen][-1:],
        *[position for position in legal if position < len(builder.state.history.sized_messages)][-1:],
    ]
    return sorted({*candidates, legal[-1]})


def _build_smallest_at(builder: PlanBuilder, keep: int, level: tuple[int, int]) -> PlanBuilder:
    """Return the draft with all before ``keep`` in a short extract, and every text behind it short.

    Where nothing was said before ``keep`` that an extract could tell, that stays, and is short as well.
    """
    short = _shorten_texts_from(builder, keep, level)
    if keep <= builder.state.view.pinned_count:
        return short
    alone = replace(short, restores_files=False, inputs=replace(builder.inputs, restored_texts=()))
    compaction = build_compaction(alone, keep, builder.budget.compute_share(MIN_SUMMARY_SHARE))
    if compaction is None:
        return _shorten_texts_from(builder, builder.state.view.first_kept, level)
    compaction = replace(compaction, trigger=TRIGGER_FALLBACK)
    return short.add_compaction(replace(compaction, tokens_after=short.add_compaction(compaction).estimated_tokens))


def _shorten_texts_from(builder: PlanBuilder, start: int, level: tuple[int, int]) -> PlanBuilder:
    """Return the draft with every text from slot ``start`` on short, and the user's newest words wherever they are."""
    state = builder.state
    indexes = {*list_shown_indexes(state, start), find_newest_user_index(state, state.view.pinned_count)} - {-1}
    return builder.replace_texts(
        pair for index in sorted(indexes) for pair in _build_shortening_edits(builder, index, level)
    )


def _has_modest_tail(builder: PlanBuilder) -> bool:
    """Return whether what is kept leaves as much room for what comes."""
    return builder.token_ratio * measure_tail(
        builder.state, builder.state.view.first_kept
    ) <= builder.budget.compute_share(MODEST_TAIL_SHARE)


def _sum_shown_sizes(state: ConversationState, index: int) -> int:
    return sum(sized_message.tokens for sized_message in list_shown_sized_messages_at(state, index))


def _count_saved_tokens(builder: PlanBuilder, index: int, level: tuple[int, int]) -> int:
    return sum(edit.saves for edit, _ in _build_shortening_edits(builder, index, level))


def _build_shortening_edits(
    builder: PlanBuilder, index: int, level: tuple[int, int]
) -> Iterator[tuple[Edit, Blob | None]]:
    """Yield the edits that make what a slot shows short, with the texts to be stored; of an answer only the media."""
    message, visible_parts = builder.state.history.messages[index], map_shown_parts(builder.state, index)
    if message.role == "assistant":
        visible_parts = {place: part for place, part in visible_parts.items() if isinstance(part, Media)}
    middle_places = _select_middle_parts(builder, visible_parts, level[0])
    yield from replace_parts_with_line(builder, index, middle_places, SMALLEST_REQUEST_RULE)
    for place in sorted(visible_parts.keys() - middle_places):
        part = visible_parts[place]
        replacement, blob = _shorten_part(builder, part, message.parts[place], level[isinstance(part, ToolResult)])
        saves = _estimate_part_tokens(part) - _estimate_part_tokens(replacement)
        if replacement is not part and saves > 0:
            why = "nothing else made the request small enough"
            yield (
                Edit(
                    Span(index, index + 1, place),
                    (replacement,),
                    SMALLEST_REQUEST_RULE,
                    why,
                    saves,
                    blob.hash if blob else "",
                ),
                blob,
            )


def _select_middle_parts(builder: PlanBuilder, visible_parts: Mapping[int, Part], max_tokens: int) -> Sequence[int]:
    """Return which of the texts and media of a message go together: more than ``MAX_SEPARATE_TEXTS`` are as large as
    so many.
    """
    places = [place for place, part in visible_parts.items() if isinstance(part, Text | Media)]

    def size(at: int) -> int:
        return min(
            estimate_text_tokens(get_part_text_or_placeholder(visible_parts[places[at]])), max_tokens + NOTICE_TOKENS
        )

    middle_range = (
        select_middle_texts(
            len(places), size, MAX_SEPARATE_TEXTS * max_tokens, builder.settings.results.preview_end_share
        )
        if len(places) > MAX_SEPARATE_TEXTS
        else range(0)
    )
    return places[middle_range.start : middle_range.stop]


def _shorten_part(builder: PlanBuilder, part: Part, old: Part, max_tokens: int) -> tuple[Part, Blob | None]:
    """Return what stands for ``part``, said as ``old``, in about ``max_tokens`` tokens, and the text to be stored
    for it.
    """
    if isinstance(part, Media):
        return Text(format_part_placeholder(part)), None
    if not isinstance(part, Text | ToolResult):
        return part, None
    text = get_part_text(part)
    short, blob = clip_text_with_blob(
        builder, text, get_part_text(old) if type(old) is type(part) else text, max_tokens
    )
    if isinstance(part, Text):
        return (Text(short), blob) if short != text else (part, None)
    media = [Text(format_part_placeholder(inner)) for inner in part.content if isinstance(inner, Media)]
    if short == text and not media:
        return part, None
    return ToolResult(part.call_id, part.name, (Text(short), *media), part.is_error), blob


def clip_text_with_blob(builder: PlanBuilder, text: str, whole: str, max_tokens: int) -> tuple[str, Blob | None]:
    """Return ``text``, which shows ``whole``, in about ``max_tokens`` tokens, and the blob it points to where it is
    cut.
    """
    if estimate_text_tokens(text) <= max_tokens:
        return text, None
    blob = Blob(hash_text(whole), whole) if builder.inputs.can_spill else None
    chars = max_tokens * CHARS_PER_TOKEN
    short = ""
    while chars >= max_tokens // 4:
        short = escape_look_alike_tags(truncate_text_to_weight(whole, chars, blob.hash[:HANDLE_CHARS] if blob else ""))
        if estimate_text_tokens(short) <= max_tokens + NOTICE_TOKENS:
            break
        chars //= 2
    return short, blob


def _estimate_part_tokens(part: Part) -> int:
    """Return the tokens of a part, as the estimator counts them."""
    if isinstance(part, Media):
        return estimate_media_tokens(part)
    if isinstance(part, ToolResult):
        return sum(map(_estimate_part_tokens, part.content))
    return estimate_text_tokens(part.text) if isinstance(part, Text) else 0
