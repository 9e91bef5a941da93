"""Limits on new tool results: a large one is spilled with a preview, and so are the largest of many that are too much.

What may happen to a result depends on what requests have shown of it, so that this stage never breaks the cached
prefix (the names in the code of Claude Code, which has the same scheme, are in parentheses):

- No request has shown it (*fresh*): it may be replaced now.
- A request has shown it whole (*frozen*): this stage never touches it, even if the message is over its budget.
- A request has shown its replacement (*mustReapply*): the recorded decision repeats it in every request, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from math import inf
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import get_result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN
from holdfast.messages.sized_message import bound_message_chars
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.settings import ResultSettings
from holdfast.planning.stages.append_limit import is_capped_text
from holdfast.planning.stages.spill import SpillableText, estimate_preview_chars, find_spillable_texts, spill_texts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.view import apply_edits_to_parts, list_shown_indexes

OWN_SERVER_NAME = "holdfast"
"""Name of our MCP server; clients put it, with underscores, before the names of its tools."""


def spill_large_results(builder: PlanBuilder) -> PlanBuilder:
    """Spill fresh results over their limit, then the largest fresh texts of a message that is over its budget.

    A message here is everything that stands between two answers. Nothing is spilled if texts cannot be stored.
    """
    settings, budget = builder.settings.results, builder.budget
    is_enabled = bool(settings.spill_chars or settings.spill_chars_by_tool)
    if not is_enabled or not builder.inputs.can_spill:
        return builder
    max_result_tokens = 0
    if settings.spill_share:
        max_result_tokens = builder.to_estimator_tokens(budget.compute_share(settings.spill_share))
    max_message_tokens = 0
    if settings.message_share and settings.spill_chars:
        max_message_tokens = builder.to_estimator_tokens(budget.compute_share(settings.message_share))
    small_sizes = _compute_small_sizes(settings, max_result_tokens, max_message_tokens)
    groups = list(_group_fresh_messages(builder.state, small_sizes))
    if not groups:
        return builder
    get_max_chars = _build_limit_lookup(builder.state, settings)
    # Messages that an edit of a custom stage has folded away are not shown, so nothing of them is left to spill.
    shown_indexes = frozenset(list_shown_indexes(builder.state, builder.state.last_request.seen_count))
    for group in groups:
        texts = find_spillable_texts(builder.state, filter(shown_indexes.__contains__, group))
        fresh_texts = _collect_fresh_texts(texts, get_max_chars, max_result_tokens, max_message_tokens)
        extra_texts = _select_over_budget(builder, group, fresh_texts, max_message_tokens)
        sized_extra_texts = _assign_preview_tokens(
            builder,
            fresh_texts,
            extra_texts,
            max_message_tokens,
            max_result_tokens,
        )
        builder = spill_texts(builder, [*fresh_texts.large, *sized_extra_texts], "spill")
    return builder


class _FreshTexts(NamedTuple):
    """The fresh texts of one message that this stage may spill."""

    large: Sequence[SpillableText]
    """Results over their own limit: they are spilled in any case."""
    candidates: Sequence[SpillableText]
    """Smaller results and user texts: they are spilled only if the message is over its budget."""


def _collect_fresh_texts(
    texts: Iterable[SpillableText],
    get_max_chars: Callable[[SpillableText], int],
    max_result_tokens: int,
    max_message_tokens: int,
) -> _FreshTexts:
    """Sort the texts of one message into results over their limit and candidates; exempt ones are left out."""
    large: list[SpillableText] = []
    candidates: list[SpillableText] = []
    for text in texts:
        if is_capped_text(text.text):
            # It is short already and holds the only handle of the whole text.
            continue
        if not text.is_result:
            if max_message_tokens:
                candidates.append(text)
            continue
        max_chars = get_max_chars(text)
        if not max_chars:
            continue
        if _is_large_result(text, max_chars, max_result_tokens):
            large.append(text)
        else:
            candidates.append(text)
    return _FreshTexts(large, candidates)


class _SmallSizes(Struct, frozen=True):
    """Sizes so small that a message within them is within every limit, however its texts are counted."""

    tokens: float
    chars: float


def _compute_small_sizes(settings: ResultSettings, *token_limits: int) -> _SmallSizes:
    """Return sizes that are below every limit of one result and of a message; 0 among the limits means no limit.

    Of the token limits it is half: the parts of a message are rounded up one by one, so that together they may count
    for more than the message.
    """
    char_limits = (settings.spill_chars, *settings.spill_chars_by_tool.values(), settings.message_chars)
    min_token_limit = min(filter(None, token_limits), default=inf)
    min_char_limit = min(filter(None, char_limits), default=inf)
    return _SmallSizes(min_token_limit / 2, min_char_limit)


def _build_limit_lookup(state: ConversationState, settings: ResultSettings) -> Callable[[SpillableText], int]:
    """Return a function that tells how many characters a result may have; 0 if it is never spilled."""
    find_tool_name = build_tool_name_lookup(state)

    def get_max_chars(text: SpillableText) -> int:
        name = ""
        if isinstance(text.part, ToolResult):
            name = find_tool_name(text.message_index, text.part)
        if strip_mcp_prefix(name) in settings.spill_exempt_tools or name in settings.spill_exempt_tools:
            return 0
        return settings.spill_chars_by_tool.get(name, settings.spill_chars)

    return get_max_chars


def strip_mcp_prefix(name: str) -> str:
    """Return the name of a tool without the prefix that MCP clients make of our server's name."""
    return name.rpartition(f"{OWN_SERVER_NAME}_")[2].lstrip("_")


def _is_large_result(spillable: SpillableText, max_chars: int, max_tokens: int) -> bool:
    is_over_tokens = max_tokens > 0 and spillable.tokens > max_tokens
    return len(spillable.text) > max_chars or is_over_tokens


def _group_fresh_messages(state: ConversationState, small_sizes: _SmallSizes) -> Iterator[range]:
    """Yield the indexes of the fresh messages in groups: those that stand between two answers.

    Groups that are certainly within every limit are left out. Most are: without this shortcut each plan of a long new
    conversation would count the tokens of every part once more.
    """
    first_fresh = state.last_request.seen_count
    # The first group may continue a message that was shown before. What was shown counts for its budget then, so its
    # fresh part alone does not tell whether it is within.
    begins_new_message = (
        first_fresh <= state.view.first_kept or state.history.messages[first_fresh - 1].role == "assistant"
    )
    for group in _split_at_answers(state, first_fresh):
        is_whole_message = group.start > first_fresh or begins_new_message
        has_edits = any(index in state.view.edits for index in group)
        if has_edits or not is_whole_message or not _is_small_group(state, group, small_sizes):
            yield group


def _split_at_answers(state: ConversationState, start: int) -> Iterator[range]:
    """Yield the index ranges of the messages from ``start`` on that stand between answers; none is empty."""
    group_start = start
    end = len(state.history.sized_messages)
    for index, message in enumerate(state.history.messages.slice(start), start):
        if message.role != "assistant":
            continue
        if group_start < index:
            yield range(group_start, index)
        group_start = index + 1
    if group_start < end:
        yield range(group_start, end)


def _is_small_group(state: ConversationState, group: range, small_sizes: _SmallSizes) -> bool:
    tokens = chars = 0
    for sized_message in state.history.sized_messages.slice(group.start, group.stop):
        tokens += sized_message.tokens
        chars += bound_message_chars(sized_message)
    return tokens <= small_sizes.tokens and chars <= small_sizes.chars


ToolNameLookup: TypeAlias = Callable[[int, ToolResult], str]
"""Returns the name of the tool that gave a result in the message at an index; empty if the call is not known."""


def build_tool_name_lookup(state: ConversationState) -> ToolNameLookup:
    """Return a function that finds the tool of a result, by its call if the result has no name of its own.

    Each message with calls is searched once, however many results ask for it.
    """

    @cache
    def list_call_names(message_index: int) -> dict[str, str]:
        calls = state.history.sized_messages[message_index].message.calls
        # Reversed, so that of two calls with one id the first gives the name.
        return {call.id: call.name for call in reversed(calls)}

    def find_tool_name(message_index: int, result: ToolResult) -> str:
        if result.name:
            return result.name
        # The dictionary is shared with newer states: an index at or after the result belongs to one of those.
        call_index = state.history.first_index_by_call_id.get(result.call_id, message_index)
        if call_index >= message_index:
            return ""
        return list_call_names(call_index).get(result.call_id, "")

    return find_tool_name


def _select_over_budget(
    builder: PlanBuilder,
    group: range,
    fresh_texts: _FreshTexts,
    max_tokens: int,
) -> list[SpillableText]:
    """Return the candidates that must be spilled too so that the message is within its budget, the largest first.

    The limit of characters counts results only, as in Claude Code; ``max_tokens`` counts everything, 0 for no limit.
    User texts of the newest message come last: they are the task.
    """
    large, candidates = fresh_texts
    settings = builder.settings.results
    max_chars = settings.message_chars if settings.spill_chars else 0
    # Previews stay in the request, so every spilled text still counts for about this much.
    preview_chars = estimate_preview_chars(builder)
    preview_tokens = preview_chars // CHARS_PER_TOKEN

    chars = preview_chars * len(large)
    tokens = preview_tokens * len(large)
    newest_user_index = -1
    for text in candidates:
        tokens += text.tokens
        if text.is_result:
            chars += len(text.text)
        else:
            newest_user_index = max(newest_user_index, text.message_index)
    if max_chars:
        movable_parts = {(text.message_index, text.part_index) for text in (*large, *candidates)}
        chars += _count_unmovable_chars(builder.state, group, movable_parts)

    def rank(text: SpillableText) -> tuple[bool, int, int, int]:
        # Only characters tell which is largest if only they have a limit.
        size = text.tokens if max_tokens else len(text.text)
        return text.message_index == newest_user_index, -size, text.message_index, text.part_index

    selected: list[SpillableText] = []
    for text in sorted(candidates, key=rank):
        is_within_chars = not max_chars or chars <= max_chars
        is_within_tokens = not max_tokens or tokens <= max_tokens
        if is_within_chars and is_within_tokens:
            break
        selected.append(text)
        tokens -= text.tokens
        if text.is_result:
            chars -= len(text.text)
        # A text that is hardly longer than a preview leaves a single line, which is not worth counting.
        if len(text.text) > 2 * preview_chars:
            tokens += preview_tokens
            if text.is_result:
                chars += preview_chars
    return selected


def _assign_preview_tokens(
    builder: PlanBuilder,
    fresh_texts: _FreshTexts,
    extra_texts: Sequence[SpillableText],
    max_message_tokens: int,
    max_result_tokens: int,
) -> list[SpillableText]:
    """Return ``extra_texts`` with longer previews for the user texts among them.

    These share the part of the message's budget that the rest leaves, each at most as much as one result may have. A
    text that the user pasted is the task itself, so it should not shrink to the usual preview while there is room.
    """
    user_text_count = sum(not text.is_result for text in extra_texts)
    spilled_result_count = len(fresh_texts.large) + len(extra_texts) - user_text_count
    preview_tokens = estimate_preview_chars(builder) // CHARS_PER_TOKEN * spilled_result_count
    whole_tokens = _sum_text_tokens(fresh_texts.candidates) - _sum_text_tokens(extra_texts)
    remaining = max_message_tokens - (whole_tokens + preview_tokens)
    tokens_per_text = max(0, min(max_result_tokens, remaining // max(1, user_text_count)))
    return [text if text.is_result else replace(text, preview_tokens=tokens_per_text) for text in extra_texts]


def _sum_text_tokens(texts: Iterable[SpillableText]) -> int:
    return sum(text.tokens for text in texts)


def _count_unmovable_chars(state: ConversationState, group: range, movable_parts: set[tuple[int, int]]) -> int:
    """Return the characters of the results in a message that cannot be spilled: seen, exempt, or too short.

    The message may begin before its fresh ``group``; the results that were shown earlier count for the same budget.
    """
    start = group.start
    while start > state.view.first_kept and state.history.messages[start - 1].role != "assistant":
        start -= 1
    chars = 0
    for index in range(start, group.stop):
        edits = state.view.edits.get(index, ())
        parts = apply_edits_to_parts(state.history.messages[index], edits)
        for part_index, part in enumerate(parts):
            if isinstance(part, ToolResult) and (index, part_index) not in movable_parts:
                chars += len(get_result_text(part))
    return chars
