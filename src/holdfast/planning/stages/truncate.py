"""Truncation: under pressure, results over their limit keep their start, an end that looks important, and a notice.

All sizes are weighted characters, in which a limit means the same share of the window for every script. One result has
a limit, and all of them together may have one. The decision is recorded; the log keeps every result whole.

There are two scopes: in memory, a decision on the branch (``apply_result_limits``); and in a stored session, where a
copied branch holds shorter messages (``truncate_entry_messages``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message, get_part_text, get_result_text, replace_all_parts
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN, count_end_chars, count_start_chars, weigh_text
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.text_cuts import take_text_end, take_text_start
from holdfast.planning.builder import PlanBuilder, build_part_edit
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.open_work.notes import add_notes_to_messages
from holdfast.planning.policy_rules import ResultLimits
from holdfast.planning.shown_messages import has_whole_message_edit, map_shown_parts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit
from holdfast.state.entries import BranchSummaryEntry, Entry, MessageEntry
from holdfast.state.fold.fold_entries import TRUNCATE_RULE
from holdfast.state.turns import find_newest_answer_index
from holdfast.state.view import build_projection, list_projection_origins, list_shown_indexes

MIN_RESULT_CHARS = 2_000
"""Weighted characters that a result keeps at least, unless its limit is smaller (OpenClaw). Below that a result rarely
answers the call, and the model makes it again."""
MIN_OVERFLOW_RESULT_CHARS = 500
"""Smallest limit of a result after an overflow, however small the message budget is: less says nothing beside the
notice. Chosen by judgement."""
MIN_OLD_RESULT_CHARS = 160
"""Where even ``MIN_RESULT_CHARS`` of each result is too much for all together, old ones keep this: a few words and the
notice. Chosen by judgement."""
END_SHARE, MAX_END_CHARS = 0.3, 4_000
"""An end that looks important gets this share of the limit, and at most so many characters (OpenClaw): the rest is for
the start, which says what the output is."""
INSPECTED_END_CHARS = 2_000
"""Characters at the end of a text in which words of an outcome are looked for (OpenClaw)."""
OMITTED_MIDDLE_TEXT = "\n\n[... the middle is left out ...]\n\n"
"""Stands between the start and the end of a cut text."""
_OUTCOME_WORDS = re.compile(
    r"(errors?|exceptions?|\b(failed|fatal|traceback|panic|stack.?trace|errno|exit.?code"
    r"|total|summary|results?|complete|finished|done))\b",
    re.IGNORECASE,
)
"""Words by which an end tells how a command went (OpenClaw)."""


def has_oversized_results(messages: Iterable[Message], limits: ResultLimits) -> bool:
    """Return whether one result of ``messages``, or all of them together, are over their limit.

    A cheap test on a snapshot of the messages, without a plan.
    """
    total_weight = 0
    for message in messages:
        for result in message.results:
            weight = weigh_result_text(result)
            if weight > limits.per_result:
                return True
            total_weight += weight
    return 0 < limits.total < total_weight


def weigh_result_text(result: ToolResult) -> int:
    """Return the weighted characters of the texts in a result. Media have limits of their own."""
    return sum(weigh_text(part.text) for part in result.content if isinstance(part, Text))


# -- texts -------------------------------------------------------------------------------------------------------------


def truncate_text_to_weight(text: str, max_weight: int, handle: str = "") -> str:
    """Return ``text`` in at most ``max_weight`` weighted characters: its start, an important end, and a notice.

    The notice names ``handle``, by which the whole text can be read back. If ``max_weight`` is too small for a notice,
    only the start of the text is returned.
    """
    if weigh_text(text) <= max_weight:
        return text
    remaining = max_weight - len(format_truncation_notice(len(text), handle))
    if remaining <= 0:
        return text[: count_start_chars(text, max_weight)]
    head, tail = _split_head_and_end(text, remaining)
    middle = OMITTED_MIDDLE_TEXT if tail else ""
    notice = format_truncation_notice(len(text) - len(head) - len(tail), handle)
    return f"{head}{middle}{tail}{notice}"


def format_truncation_notice(omitted_chars: int, handle: str = "") -> str:
    """Return the line behind a cut text: how many characters are missing, and how to read them."""
    if handle:
        hint = f'recall(id="{handle}") returns them'
    else:
        hint = "ask for a part to see them"
    return f"\n[... {omitted_chars:,} characters left out; {hint}]"


def has_important_end(text: str) -> bool:
    """Return whether the end of ``text`` looks like an error, a result, or the end of JSON."""
    end = text[-INSPECTED_END_CHARS:]
    return end.rstrip().endswith("}") or _OUTCOME_WORDS.search(end) is not None


def _split_head_and_end(text: str, max_weight: int) -> tuple[str, str]:
    """Return the start of ``text`` and its end (empty if it is not kept), together at most ``max_weight``.

    Both are cut at a line boundary if one is near.
    """
    end_weight = min(int(max_weight * END_SHARE), MAX_END_CHARS)
    start_weight = max_weight - end_weight - len(OMITTED_MIDDLE_TEXT)
    # Two ends need room for both: with less, each would be too short to be understood.
    has_room_for_end = max_weight > 2 * MIN_RESULT_CHARS and start_weight > MIN_RESULT_CHARS
    if not has_room_for_end or not has_important_end(text):
        return take_text_start(text, count_start_chars(text, max_weight)), ""
    tail = take_text_end(text, count_end_chars(text, end_weight))
    before_tail = text[: len(text) - len(tail)]
    return take_text_start(before_tail, count_start_chars(text, start_weight)), tail


# -- results -----------------------------------------------------------------------------------------------------------


def truncate_result_to_weight(result: ToolResult, max_weight: int, handle: str = "") -> ToolResult:
    """Return ``result`` with its texts in ``max_weight`` weighted characters, divided by their sizes.

    Media and parts of unknown kinds stay. The same object is returned if the result is within ``max_weight``.
    """
    total_weight = weigh_result_text(result)
    if total_weight <= max_weight:
        return result
    content = list(result.content)
    for index, part in enumerate(result.content):
        if isinstance(part, Text):
            text_weight = max_weight * weigh_text(part.text) // total_weight
            content[index] = Text(truncate_text_to_weight(part.text, text_weight, handle))
    # The wire bytes of the result are those of the whole texts.
    return replace(result, content=tuple(content), raw=None)


def allocate_result_weights(sizes: Sequence[int], limits: ResultLimits, unread_count: int = 0) -> dict[int, int]:
    """Return the new size of each result that must be cut, by its position in ``sizes``, which begin with the oldest.

    Each is cut to the limit of one result. While the total is over its limit, the oldest are cut further: first down
    to ``MIN_RESULT_CHARS``, then to ``MIN_OLD_RESULT_CHARS``. The last ``unread_count`` results are spared that, since
    the model has not read them; the total may stay over its limit.
    """
    new_sizes = [min(size, limits.per_result) for size in sizes]
    excess = sum(new_sizes) - limits.total if limits.total else 0
    for min_size in (MIN_RESULT_CHARS, MIN_OLD_RESULT_CHARS):
        for index in range(len(new_sizes) - unread_count):
            removed = max(0, min(excess, new_sizes[index] - min_size))
            new_sizes[index] -= removed
            excess -= removed
    weights: dict[int, int] = {}
    for index, new_size in enumerate(new_sizes):
        if new_size < sizes[index]:
            weights[index] = new_size
    return weights


# -- scope 1: cut results on the current branch, by edits that the log records -----------------------------------------


class WeighedResult(Struct, frozen=True):
    """A result as the request shows it, whole or cut, with its place and its weighted characters."""

    message_index: int
    part_index: int
    result: ToolResult
    weight: int


def weigh_shown_results(state: ConversationState) -> Iterator[WeighedResult]:
    """Yield the results that the next request shows, whole or cut, oldest first."""
    for index in list_shown_indexes(state, state.view.first_kept):
        for part_index, part in map_shown_parts(state, index).items():
            if isinstance(part, ToolResult):
                yield WeighedResult(index, part_index, part, weigh_result_text(part))


def truncate_results_after_overflow(builder: PlanBuilder) -> PlanBuilder:
    """Cut every result to its limit after the provider refused the request: the overflow step ``truncate``.

    If the policy has no limit of its own, it is the share ``recovery.result_share`` of the message budget.
    """
    limits = builder.rules.get_result_limits(builder.budget.window)
    if limits is None:
        max_tokens = builder.to_estimator_tokens(builder.budget.compute_share(builder.settings.recovery.result_share))
        limits = ResultLimits(max(MIN_OVERFLOW_RESULT_CHARS, max_tokens * CHARS_PER_TOKEN))
    return apply_result_limits(builder, limits)


def apply_result_limits(builder: PlanBuilder, limits: ResultLimits) -> PlanBuilder:
    """Cut the shown results to ``limits``, unless results were cut since the last answer."""
    # Invariant bounded-attempts (docs/invariants.md): one truncation between two answers. A second one would cut the
    # same results again.
    if builder.state.counters.truncations_since_answer:
        return builder
    results = list(weigh_shown_results(builder.state))
    pairs: list[tuple[Edit, Blob | None]] = []
    for position, max_weight in _plan_result_cuts(builder, results, limits).items():
        pair = _build_cut_edit(builder, results[position], max_weight)
        if pair is not None:
            pairs.append(pair)
    return builder.replace_texts(pairs)


def count_reducible_chars(builder: PlanBuilder, limits: ResultLimits) -> int:
    """Return the weighted characters that ``apply_result_limits`` would free."""
    results = list(weigh_shown_results(builder.state))
    freed_weight = 0
    for position, max_weight in _plan_result_cuts(builder, results, limits).items():
        freed_weight += results[position].weight - max_weight
    return freed_weight


def _plan_result_cuts(builder: PlanBuilder, results: Sequence[WeighedResult], limits: ResultLimits) -> dict[int, int]:
    """Return the new weight of each result that must be cut, by its position in ``results``."""
    newest_answer = find_newest_answer_index(builder.state, builder.state.view.first_kept)
    weights: list[int] = []
    unread_count = 0
    for result in results:
        weights.append(result.weight)
        unread_count += result.message_index > newest_answer
    return allocate_result_weights(weights, limits, unread_count)


def _build_cut_edit(builder: PlanBuilder, weighed: WeighedResult, max_weight: int) -> tuple[Edit, Blob | None] | None:
    """Return the edit that cuts one result, and the blob of its whole text; None if the cut would not be shorter."""
    message_index, part_index = weighed.message_index, weighed.part_index
    message = builder.state.history.messages[message_index]
    whole_text = get_part_text(message.parts[part_index])
    blob = builder.make_blob(whole_text)
    blob_hash = "" if blob is None else blob.hash
    short_result = truncate_result_to_weight(weighed.result, max_weight, blob_hash[:HANDLE_CHARS])
    text = get_result_text(weighed.result)
    short_text = get_result_text(short_result)
    saves = estimate_text_tokens(text) - estimate_text_tokens(short_text)
    # A text cut to fewer weighted characters may still have more tokens or characters, because of the notice.
    is_shorter = saves > 0 and len(short_text) < len(text)
    if not is_shorter:
        return None
    why = f"cut from {len(text):,} to {len(short_text):,} characters for a window of {builder.budget.window:,} tokens"
    edit = build_part_edit(
        message_index,
        part_index,
        short_result,
        TRUNCATE_RULE,
        why,
        saves,
        blob_hash,
    )
    return edit, blob


# -- scope 2: shorter messages in a copy of the branch -----------------------------------------------------------------


def map_shown_messages(state: ConversationState) -> dict[int, Message]:
    """Return by index the messages that a request shows one for one, as it shows them.

    Pinned system messages, the summary, and messages that a custom stage replaced as a whole are left out.
    """
    replaced_indexes = {index for index, edits in state.view.edits.items() if has_whole_message_edit(edits)}
    messages: dict[int, Message] = {}
    for index, sized_message in zip(
        list_projection_origins(state),
        build_projection(state),
        strict=True,
    ):
        if index >= state.view.first_kept and index not in replaced_indexes:
            messages[index] = sized_message.message
    return messages


def build_shown_entries(path: Iterable[Entry], state: ConversationState) -> Iterator[Entry]:
    """Yield the message entries of ``path`` that a request shows, each with the message as it is shown.

    ``path`` is the entries that lead to ``state``.
    """
    messages = map_shown_messages(state)
    message_entries = (entry for entry in path if isinstance(entry.body, MessageEntry | BranchSummaryEntry))
    for index, entry in enumerate(message_entries):
        if index in messages:
            yield replace(entry, body=MessageEntry(SizedMessage(messages[index])))


def truncate_entry_messages(entries: Iterable[Entry], limits: ResultLimits) -> dict[str, Message]:
    """Return by entry id the shortened messages of those entries that have results over ``limits``.

    ``copy_branch`` of a store writes them to a new branch; the old one stays as it is.
    """
    messages_by_id: dict[str, Message] = {}
    places: list[tuple[str, int]] = []
    weights: list[int] = []
    for entry in entries:
        if not isinstance(entry.body, MessageEntry):
            continue
        message = entry.body.sized_message.message
        messages_by_id[entry.id] = message
        for part_index, part in enumerate(message.parts):
            if isinstance(part, ToolResult):
                places.append((entry.id, part_index))
                weights.append(weigh_result_text(part))
    cuts: dict[tuple[str, int], int] = {}
    for position, max_weight in allocate_result_weights(weights, limits).items():
        cuts[places[position]] = max_weight
    shortened: dict[int, Message] = {}
    entry_ids = list(messages_by_id)
    for index, entry_id in enumerate(entry_ids):
        message = messages_by_id[entry_id]
        short_message = _apply_cuts_to_message(entry_id, message, cuts)
        if short_message is not message:
            shortened[index] = short_message
    noted_messages = add_notes_to_messages(list(messages_by_id.values()), shortened)
    return {entry_ids[index]: message for index, message in noted_messages.items()}


def _apply_cuts_to_message(entry_id: str, message: Message, cuts: dict[tuple[str, int], int]) -> Message:
    """Return ``message`` with the results cut that ``cuts`` names by entry id and part; the same object if none."""
    parts: list[Part] = []
    for part_index, part in enumerate(message.parts):
        max_weight = cuts.get((entry_id, part_index))
        if isinstance(part, ToolResult) and max_weight is not None:
            parts.append(truncate_result_to_weight(part, max_weight))
        else:
            parts.append(part)
    return replace_all_parts(message, parts)
