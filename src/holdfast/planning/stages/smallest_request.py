"""The smallest request there is: a short extract, the newest user message and the open calls, all cut short.

It is the last step of recovery, so it must always be possible (invariant reduction-without-model, docs/invariants.md):
it needs no model, and no store either. A text that cannot be stored is cut all the same and read back from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.messages.cut_points import find_call_group_ends
from holdfast.messages.message import format_part_placeholder, get_part_text
from holdfast.messages.parts import Media, Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_media_tokens, estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN
from holdfast.planning.budget import compute_budget, compute_effective_target
from holdfast.planning.builder import PlanBuilder, build_part_edit, sum_saved_tokens
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
    find_last_cut_point,
    find_tail_cut_points,
    measure_shown_message,
    measure_tail,
)
from holdfast.planning.stages.truncate import truncate_text_to_weight
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit
from holdfast.state.entries import TRIGGER_FALLBACK
from holdfast.state.target import PlanInputs, Target
from holdfast.state.turns import find_newest_answer_index, find_newest_user_index
from holdfast.state.view import list_shown_indexes


class CutLevel(NamedTuple):
    """The estimator tokens that texts keep in a smallest request."""

    user_tokens: int
    """Of each user text."""
    result_tokens: int
    """Of each tool result."""


CUT_LEVELS = ((500, 500), (500, 100), (200, 40))
"""The ``CutLevel`` values that are tried in turn: estimator tokens of a user text and of a result. Results are cut
first, since a user text is the task; 40 tokens are still a line of words and the handle. Chosen by judgement."""
MODEST_TAIL_SHARE = 0.5
"""Share of the message budget that the kept messages may take before a lower level is tried. With more the next answer
and its results would not fit, and the request would overflow again at once. Chosen by judgement."""
NOTICE_TOKENS = 40
"""Estimator tokens of the line that says how much was left out and how to read it back, about."""
SMALLEST_REQUEST_RULE = "fallback"
"""Rule of the edits of the smallest request."""
UNREAD_RULE = "unread"
"""Rule of the notice that results were summarized before the model read them, and of edits that shorten them first."""
_UNREAD_NOTICE_TEXT = "results that the model has not read are summarized: even cut short they are too large"


def build_smallest_request(builder: PlanBuilder) -> PlanBuilder:
    """Reduce the request to the newest user message and the open calls: the overflow step ``fallback``.

    All older messages become a short extract, media become a line each, and long texts are cut or spilled. The builder
    is returned unchanged if the result would not be smaller.
    """
    best = builder
    for keep in _list_fallback_cuts(builder):
        for level in CUT_LEVELS:
            candidate = _build_smallest_at(builder, keep, CutLevel(*level))
            if candidate.upper_estimate <= builder.budget.usable and _has_modest_tail(candidate):
                if candidate.estimated_tokens >= builder.estimated_tokens:
                    return builder
                return add_unread_notice(builder, candidate)
            if candidate.estimated_tokens < best.estimated_tokens:
                best = candidate
    return add_unread_notice(builder, best)


def add_unread_notice(before: PlanBuilder, after: PlanBuilder) -> PlanBuilder:
    """Return ``after`` with a notice if it summarizes results that the model has not read in ``before``."""
    if after.state.view.first_kept <= find_answer_with_unread_results(before.state):
        return after
    return after.add_notice(UNREAD_RULE, _UNREAD_NOTICE_TEXT)


def estimate_irreducible_tokens(state: ConversationState, target: Target, settings: Settings) -> int:
    """Return the tokens that no plan can remove: the setup, the newest user message and the open calls, cut short.

    Pinned system messages count too. If this does not fit the window, no request can be sent.
    """
    target = compute_effective_target(target, state, settings)
    budget = compute_budget(target, settings)
    builder = PlanBuilder(state, target, settings, PlanInputs(), budget)
    kept_indexes = set(list_shown_indexes(state, find_open_call_group(state)))
    newest_user = find_newest_user_index(state, state.view.first_kept)
    if newest_user >= 0:
        kept_indexes.add(newest_user)
    pinned_messages = state.history.sized_messages.slice(0, state.view.pinned_count)
    tokens = sum(sized_message.tokens for sized_message in pinned_messages)
    lowest_level = CutLevel(*CUT_LEVELS[-1])
    for index in kept_indexes:
        saved_tokens = sum_saved_tokens(_build_shortening_edits(builder, index, lowest_level))
        tokens += measure_shown_message(state, index) - saved_tokens
    return budget.setup_tokens + round(builder.token_ratio * tokens)


def find_open_call_group(state: ConversationState) -> int:
    """Return the index of the newest answer if one of its calls has no result yet, else the number of messages."""
    first_kept = state.view.first_kept
    newest_answer = find_newest_answer_index(state, first_kept)
    if newest_answer >= 0:
        messages = state.history.messages.slice(first_kept)
        group_end = find_call_group_ends(messages)[newest_answer - first_kept]
        if group_end > len(messages):
            return newest_answer
    return len(state.history.sized_messages)


def _list_fallback_cuts(builder: PlanBuilder) -> list[int]:
    """Return the message indexes at which the kept tail may begin, the largest tail first.

    These are the first unseen user message, the newest call group, and the end if no call is open.
    """
    cut_points = find_tail_cut_points(builder.state)
    if not cut_points:
        return [builder.state.view.first_kept]
    first_unseen = find_first_unseen_user_message(builder)
    end = len(builder.state.history.sized_messages)
    cuts = {cut_points[-1]}
    for limit in (first_unseen, end - 1):
        cut = find_last_cut_point(cut_points, limit)
        if cut is not None:
            cuts.add(cut)
    return sorted(cuts)


def _build_smallest_at(builder: PlanBuilder, keep: int, level: CutLevel) -> PlanBuilder:
    """Return the builder with everything before ``keep`` in a short extract and every text from there on cut.

    If nothing before ``keep`` gives an extract anything to say (pictures without a word), those messages stay and are
    cut too.
    """
    shortened = _shorten_texts_from(builder, keep, level)
    if keep <= builder.state.view.pinned_count:
        return shortened
    # Files, skills and rules are not repeated after the extract here: nothing that can be left out stays.
    bare = replace(shortened, restores_files=False, inputs=replace(builder.inputs, restored_texts=()))
    compaction = build_compaction(bare, keep, builder.budget.compute_share(MIN_SUMMARY_SHARE))
    if compaction is None:
        return _shorten_texts_from(builder, builder.state.view.first_kept, level)
    compaction = replace(compaction, trigger=TRIGGER_FALLBACK)
    tokens_after = shortened.add_compaction(compaction).estimated_tokens
    return shortened.add_compaction(replace(compaction, tokens_after=tokens_after))


def _shorten_texts_from(builder: PlanBuilder, start: int, level: CutLevel) -> PlanBuilder:
    """Cut every text in the messages from index ``start`` on, and the user's newest message wherever it is.

    The newest user message may stand before ``start``. The extract then quotes it as it is shown, so it must be short
    there too.
    """
    state = builder.state
    indexes = set(list_shown_indexes(state, start))
    newest_user = find_newest_user_index(state, state.view.pinned_count)
    if newest_user >= 0:
        indexes.add(newest_user)
    pairs: list[tuple[Edit, Blob | None]] = []
    for index in sorted(indexes):
        pairs += _build_shortening_edits(builder, index, level)
    return builder.replace_texts(pairs)


def _has_modest_tail(builder: PlanBuilder) -> bool:
    """Return whether the kept messages leave enough of the budget to the next answer and its results."""
    tail_tokens = builder.token_ratio * measure_tail(builder.state, builder.state.view.first_kept)
    return tail_tokens <= builder.budget.compute_share(MODEST_TAIL_SHARE)


def _build_shortening_edits(builder: PlanBuilder, index: int, level: CutLevel) -> Iterator[tuple[Edit, Blob | None]]:
    """Yield the edits that cut the texts of a message and replace its media, with the blobs to store.

    Of an answer only the media are replaced: its text and calls go back to the model as it gave them.
    """
    message = builder.state.history.messages[index]
    shown_parts = map_shown_parts(builder.state, index)
    if message.role == "assistant":
        shown_media: dict[int, Part] = {}
        for part_index, part in shown_parts.items():
            if isinstance(part, Media):
                shown_media[part_index] = part
        shown_parts = shown_media
    middle_parts = _select_middle_parts(builder, shown_parts, level.user_tokens)
    yield from replace_parts_with_line(builder, index, middle_parts, SMALLEST_REQUEST_RULE)
    for part_index in sorted(shown_parts.keys() - middle_parts):
        part = shown_parts[part_index]
        if isinstance(part, ToolResult):
            max_tokens = level.result_tokens
        else:
            max_tokens = level.user_tokens
        replacement, blob = _shorten_part(builder, part, message.parts[part_index], max_tokens)
        saves = _estimate_part_tokens(part) - _estimate_part_tokens(replacement)
        if replacement is part or saves <= 0:
            continue
        why = "nothing else made the request small enough"
        blob_hash = "" if blob is None else blob.hash
        yield (
            build_part_edit(
                index,
                part_index,
                replacement,
                SMALLEST_REQUEST_RULE,
                why,
                saves,
                blob_hash,
            ),
            blob,
        )


def _select_middle_parts(builder: PlanBuilder, shown_parts: Mapping[int, Part], max_tokens: int) -> Sequence[int]:
    """Return the indexes of the texts and media in the middle of a message that are replaced together by one line.

    A message of more than ``MAX_SEPARATE_TEXTS`` texts keeps as much as so many of ``max_tokens`` tokens each; one of
    fewer has no middle.
    """
    part_indexes = []
    for part_index, part in shown_parts.items():
        if isinstance(part, Text | Media):
            part_indexes.append(part_index)
    if len(part_indexes) <= MAX_SEPARATE_TEXTS:
        return []

    def measure_text(position: int) -> int:
        # A longer text will be cut, so it counts for what stays of it.
        text = get_part_text_or_placeholder(shown_parts[part_indexes[position]])
        return min(estimate_text_tokens(text), max_tokens + NOTICE_TOKENS)

    end_share = builder.settings.results.preview_end_share
    middle = select_middle_texts(
        len(part_indexes),
        measure_text,
        MAX_SEPARATE_TEXTS * max_tokens,
        end_share,
    )
    return part_indexes[middle.start : middle.stop]


def _shorten_part(
    builder: PlanBuilder,
    part: Part,
    original: Part,
    max_tokens: int,
) -> tuple[Part, Blob | None]:
    """Return ``part`` in about ``max_tokens`` tokens, and the blob of the whole text if it was cut.

    ``part`` is ``original``, the part in the log, as the request shows it now. Media become a line. Parts that are
    neither text, result nor media are returned as they are.
    """
    if isinstance(part, Media):
        return Text(format_part_placeholder(part)), None
    if not isinstance(part, Text | ToolResult):
        return part, None
    text = get_part_text(part)
    # The blob holds the original, also where the shown text was cut before: a handle always leads to the whole.
    whole_text = get_part_text(original) if type(original) is type(part) else text
    short_text, blob = clip_text_with_blob(builder, text, whole_text, max_tokens)
    is_cut = short_text != text
    if isinstance(part, Text):
        return (Text(short_text), blob) if is_cut else (part, None)
    media_lines = []
    for inner in part.content:
        if isinstance(inner, Media):
            media_lines.append(Text(format_part_placeholder(inner)))
    if not is_cut and not media_lines:
        return part, None
    return ToolResult(part.call_id, part.name, (Text(short_text), *media_lines), part.is_error), blob


def clip_text_with_blob(
    builder: PlanBuilder,
    text: str,
    whole_text: str,
    max_tokens: int,
) -> tuple[str, Blob | None]:
    """Return ``text`` in about ``max_tokens`` tokens, and the blob of ``whole_text`` if it is cut and can be stored.

    ``text`` is ``whole_text`` as the request shows it now; the cut is made from the whole.
    """
    if estimate_text_tokens(text) <= max_tokens:
        return text, None
    blob = builder.make_blob(whole_text)
    handle = "" if blob is None else blob.hash[:HANDLE_CHARS]
    # Dense text (base64, rare scripts) has far more tokens than its characters suggest, so the cut is halved until it
    # fits. It stops at a sixteenth of the usual length: less says nothing, and the loop must end.
    weight = max_tokens * CHARS_PER_TOKEN
    min_weight = max_tokens // 4
    short_text = ""
    while weight >= min_weight:
        # Escaped before it is measured: a cut text is an edit of ours, which the tag stage does not look at again.
        short_text = escape_look_alike_tags(truncate_text_to_weight(whole_text, weight, handle))
        if estimate_text_tokens(short_text) <= max_tokens + NOTICE_TOKENS:
            break
        weight //= 2
    return short_text, blob


def _estimate_part_tokens(part: Part) -> int:
    """Return the estimator tokens of a text, a result or media; 0 for other parts, which are never replaced here."""
    if isinstance(part, Media):
        return estimate_media_tokens(part)
    if isinstance(part, ToolResult):
        return sum(map(_estimate_part_tokens, part.content))
    return estimate_text_tokens(part.text) if isinstance(part, Text) else 0
