"""Truncation: under pressure, results over their limit keep a head, an end that looks important, and a notice.

All sizes are weighted characters. The limit of one result is a share of the window; all together have one too. What
is decided is recorded; the messages in the log stay whole, and what was cut out is read back from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message, get_part_text, get_result_text, replace_all_parts
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN, count_end_chars, count_start_chars, weigh_text
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.text_cuts import hash_text, take_text_end, take_text_start
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.policy_rules import ResultLimits
from holdfast.planning.shown_messages import map_shown_parts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.entries import BranchSummaryEntry, Entry, MessageEntry
from holdfast.state.fold.fold_entries import TRUNCATE_RULE
from holdfast.state.turns import find_newest_answer_index
from holdfast.state.view import build_projection, list_projection_origins, list_shown_indexes

MIN_RESULT_CHARS = 2_000
"""[O] Characters that a result keeps at least, unless its budget is smaller."""
MIN_OVERFLOW_RESULT_CHARS = 500
"""[H] Characters that a result keeps after an overflow, however small the budget is: less than that says nothing."""
MIN_OLD_RESULT_CHARS = 160
"""[H] Where even that is too much for all results together, old ones keep this: a few words and the notice."""
END_SHARE, MAX_END_CHARS = 0.3, 4_000
"""[O] An important end gets this share of the budget, and at most so many characters."""
INSPECTED_END_CHARS = 2_000
"""[O] Characters of the end that tell whether it is important."""
OMITTED_MIDDLE_TEXT = "\n\n[... the middle is left out ...]\n\n"
"""What stands between a head and an end."""
_OUTCOME_WORDS = re.compile(
    r"(errors?|exceptions?|\b(failed|fatal|traceback|panic|stack.?trace|errno|exit.?code"
    r"|total|summary|results?|complete|finished|done))\b",
    re.IGNORECASE,
)
"""[O] Words of an end that tells how it went."""


def has_oversized_results(messages: Iterable[Message], limits: ResultLimits) -> bool:
    """Return whether a result of ``messages``, or all of them together, are over their limit: a look at a snapshot."""
    weights = [weigh_result_text(result) for message in messages for result in message.results]
    return any(size > limits.per_result for size in weights) or bool(limits.total and sum(weights) > limits.total)


def weigh_result_text(result: ToolResult) -> int:
    """Return the weighted characters of a result's words; images have limits of their own."""
    return sum(weigh_text(part.text) for part in result.content if isinstance(part, Text))


# -- texts -------------------------------------------------------------------------------------------------------------


def truncate_text_to_weight(text: str, max_weight: int, handle: str = "") -> str:
    """Return ``text`` in at most ``max_weight`` weighted characters: its head, an important end, and a notice of the
    rest.

    ``handle`` names the whole text to whoever may read it back. A budget too small for a notice gets the head alone.
    """
    if weigh_text(text) <= max_weight:
        return text
    room = max_weight - len(format_truncation_notice(len(text), handle))
    if room <= 0:
        return text[: count_start_chars(text, max_weight)]
    head, tail = _split_head_and_end(text, room)
    return (
        f"{head}"
        f"{OMITTED_MIDDLE_TEXT if tail else ''}"
        f"{tail}{format_truncation_notice(len(text) - len(head) - len(tail), handle)}"
    )


def format_truncation_notice(omitted_chars: int, handle: str = "") -> str:
    """Return the words behind a cut text: how much is gone, and how to get it."""
    how = f'recall(id="{handle}") returns them' if handle else "ask for a part to see them"
    return f"\n[... {omitted_chars:,} characters left out; {how}]"


def has_important_end(text: str) -> bool:
    """Return whether the end of ``text`` looks like an error, a result, or the end of JSON."""
    end = text[-INSPECTED_END_CHARS:]
    return end.rstrip().endswith("}") or _OUTCOME_WORDS.search(end) is not None


def _split_head_and_end(text: str, max_weight: int) -> tuple[str, str]:
    """Return what stays of ``text`` at its start and at its end, cut at lines where they end close by."""
    end = min(int(max_weight * END_SHARE), MAX_END_CHARS)
    start = max_weight - end - len(OMITTED_MIDDLE_TEXT)
    if max_weight <= 2 * MIN_RESULT_CHARS or start <= MIN_RESULT_CHARS or not has_important_end(text):
        return take_text_start(text, count_start_chars(text, max_weight)), ""
    tail = take_text_end(text, count_end_chars(text, end))
    return take_text_start(text[: len(text) - len(tail)], count_start_chars(text, start)), tail


# -- results -----------------------------------------------------------------------------------------------------------


def truncate_result_to_weight(result: ToolResult, max_weight: int, handle: str = "") -> ToolResult:
    """Return ``result`` with its texts in ``max_weight`` weighted characters, split among them by their share.

    Images and what we do not know stay as they are; the same result comes back where nothing is over.
    """
    sizes = [weigh_text(part.text) if isinstance(part, Text) else 0 for part in result.content]
    total = sum(sizes)
    if total <= max_weight:
        return result
    content = tuple(
        Text(truncate_text_to_weight(part.text, max_weight * size // total, handle)) if isinstance(part, Text) else part
        for part, size in zip(result.content, sizes, strict=True)
    )
    return replace(result, content=content, raw=None)


def allocate_result_weights(sizes: Sequence[int], limits: ResultLimits, unread_count: int = 0) -> dict[int, int]:
    """Return for each result that must get shorter what it may keep; ``sizes`` are in order, the oldest first.

    Those over the limit of one keep that. While all are too much together the oldest give more, first what is over
    ``MIN_RESULT_CHARS``, then over ``MIN_OLD_RESULT_CHARS``; the newest ``unread_count`` ones answer calls that nobody
    has read and give nothing more.
    """
    new_sizes = [min(size, limits.per_result) for size in sizes]
    over = sum(new_sizes) - limits.total if limits.total else 0
    for min_size in (MIN_RESULT_CHARS, MIN_OLD_RESULT_CHARS):
        for index in range(len(new_sizes) - unread_count):
            gives = max(0, min(over, new_sizes[index] - min_size))
            new_sizes[index] -= gives
            over -= gives
    return {
        index: new_size for index, (new_size, size) in enumerate(zip(new_sizes, sizes, strict=True)) if new_size < size
    }


# -- in memory: a decision on the branch -------------------------------------------------------------------------------


class WeighedResult(Struct, frozen=True):
    """A result as the projection shows it, and where it stands."""

    message_index: int
    part_index: int
    result: ToolResult
    weight: int


def weigh_shown_results(state: ConversationState) -> Iterator[WeighedResult]:
    """Yield the results that the projection shows, whole or cut, oldest first."""
    for index in list_shown_indexes(state, state.view.first_kept):
        for place, part in map_shown_parts(state, index).items():
            if isinstance(part, ToolResult):
                yield WeighedResult(index, place, part, weigh_result_text(part))


def truncate_results_after_overflow(builder: PlanBuilder) -> PlanBuilder:
    """Return the plan with every result within what it may have under pressure, unless that was done lately.

    Where the policy has no limit of its own that is a share of the message budget.
    """
    limits = builder.rules.get_result_limits(builder.budget.window)
    if limits is None:
        max_tokens = builder.to_estimator_tokens(builder.budget.compute_share(builder.settings.recovery.result_share))
        limits = ResultLimits(max(MIN_OVERFLOW_RESULT_CHARS, max_tokens * CHARS_PER_TOKEN))
    return apply_result_limits(builder, limits)


def apply_result_limits(builder: PlanBuilder, limits: ResultLimits) -> PlanBuilder:
    """Return the draft with its results within ``limits``, unless results were cut since the last answer."""
    if builder.state.counters.truncations_since_answer:
        return builder
    results = list(weigh_shown_results(builder.state))
    result_budgets = _plan_result_cuts(builder, results, limits)
    pairs = (_build_cut_edit(builder, results[index], max_weight) for index, max_weight in result_budgets.items())
    return builder.replace_texts(pair for pair in pairs if pair is not None)


def count_reducible_chars(builder: PlanBuilder, limits: ResultLimits) -> int:
    """Return the weighted characters that ``apply_result_limits`` would free."""
    results = list(weigh_shown_results(builder.state))
    return sum(
        results[index].weight - max_weight for index, max_weight in _plan_result_cuts(builder, results, limits).items()
    )


def _plan_result_cuts(builder: PlanBuilder, results: Sequence[WeighedResult], limits: ResultLimits) -> dict[int, int]:
    """Return what results that must get shorter may keep; those behind the newest answer are fresh."""
    newest = find_newest_answer_index(builder.state, builder.state.view.first_kept)
    return allocate_result_weights(
        [result.weight for result in results], limits, sum(result.message_index > newest for result in results)
    )


def _build_cut_edit(builder: PlanBuilder, weighed: WeighedResult, max_weight: int) -> tuple[Edit, Blob | None] | None:
    """Return the edit that cuts one result, and its whole text where it can be stored away."""
    whole = get_part_text(builder.state.history.messages[weighed.message_index].parts[weighed.part_index])
    blob = Blob(hash_text(whole), whole) if builder.inputs.can_spill else None
    short_result = truncate_result_to_weight(weighed.result, max_weight, blob.hash[:HANDLE_CHARS] if blob else "")
    text, short = get_result_text(weighed.result), get_result_text(short_result)
    saves = estimate_text_tokens(text) - estimate_text_tokens(short)
    if short_result is weighed.result or saves <= 0 or len(short) >= len(text):
        return None
    why = f"{len(text):,} characters in a window of {builder.budget.window:,} tokens; {len(short):,} stay"
    span = Span(weighed.message_index, weighed.message_index + 1, weighed.part_index)
    return Edit(span, (short_result,), TRUNCATE_RULE, why, saves, blob.hash if blob else ""), blob


# -- in session: what a copied branch says instead ---------------------------------------------------------------------


def map_shown_messages(state: ConversationState) -> dict[int, Message]:
    """Return by slot the messages of which a request shows one, as it shows it; system messages are left out."""
    every = zip(list_projection_origins(state), build_projection(state), strict=True)
    replaced_indexes = {
        index for index, edits in state.view.edits.items() if any(edit.span.part is None for edit in edits)
    }
    return {
        index: sized_message.message
        for index, sized_message in every
        if index >= state.view.first_kept and index not in replaced_indexes
    }


def build_shown_entries(path: Iterable[Entry], state: ConversationState) -> Iterator[Entry]:
    """Yield the entries of ``map_shown_messages``, each saying what is shown of it; ``path`` leads to ``state``."""
    messages = map_shown_messages(state)
    for index, entry in enumerate(entry for entry in path if isinstance(entry.body, MessageEntry | BranchSummaryEntry)):
        if index in messages:
            yield replace(entry, body=MessageEntry(SizedMessage(messages[index])))


def truncate_entry_messages(entries: Iterable[Entry], limits: ResultLimits) -> dict[str, Message]:
    """Return by entry what each message with a result over its limit says instead, for ``copy_branch`` of a store."""
    entry_messages = [
        (entry.id, entry.body.sized_message.message) for entry in entries if isinstance(entry.body, MessageEntry)
    ]
    places = [
        (id_, place, weigh_result_text(part))
        for id_, message in entry_messages
        for place, part in enumerate(message.parts)
        if isinstance(part, ToolResult)
    ]
    result_budgets = allocate_result_weights([size for _, _, size in places], limits)
    cuts = {places[index][:2]: max_weight for index, max_weight in result_budgets.items()}
    short = {id_: _apply_cuts_to_message(id_, message, cuts) for id_, message in entry_messages}
    return {id_: short[id_] for id_, message in entry_messages if short[id_] is not message}


def _apply_cuts_to_message(id_: str, message: Message, cuts: dict[tuple[str, int], int]) -> Message:
    parts = [
        truncate_result_to_weight(part, cuts[id_, place])
        if isinstance(part, ToolResult) and (id_, place) in cuts
        else part
        for place, part in enumerate(message.parts)
    ]
    return replace_all_parts(message, parts)
