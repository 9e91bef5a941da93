"""Results at creation: a big one is spilled, with a preview left behind; so are the biggest of a big message.

Only *fresh* texts are candidates, those no request has shown. What the model has seen whole is *frozen*; what was
replaced keeps its replacement byte for byte, because the decision is in the log (*mustReapply*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from math import inf
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import get_result_text
from holdfast.messages.parts import ToolResult
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
    """Return the draft with every fresh result, and all that came between two answers, within their limits.

    Where texts cannot be stored away every result stays whole.
    """
    settings, room = builder.settings.results, builder.budget
    if not (settings.spill_chars or settings.spill_chars_by_tool) or not builder.inputs.can_spill:
        return builder
    max_tokens = builder.to_estimator_tokens(room.compute_share(settings.spill_share)) if settings.spill_share else 0
    budget = (
        builder.to_estimator_tokens(room.compute_share(settings.message_share))
        if settings.message_share and settings.spill_chars
        else 0
    )
    groups = list(_group_fresh_messages(builder.state, _compute_small_sizes(settings, max_tokens, budget)))
    if not groups:
        return builder
    limit = _build_limit_lookup(builder.state, settings)
    own = frozenset(list_shown_indexes(builder.state, builder.state.last_request.seen_count))
    for group in groups:
        big: list[SpillableText] = []
        candidates: list[SpillableText] = []
        for text in find_spillable_texts(builder.state, filter(own.__contains__, group)):
            if is_capped_text(text.text):
                continue
            chars = limit(text)
            if text.is_result and chars:
                (big if _is_large_result(text, chars, max_tokens) else candidates).append(text)
            elif budget and not text.is_result:
                candidates.append(text)
        extra_texts = _select_over_budget(builder, group, big, candidates, budget)
        builder = spill_texts(
            builder, [*big, *_assign_preview_tokens(builder, big, candidates, extra_texts, budget, max_tokens)], "spill"
        )
    return builder


class _SmallSizes(Struct, frozen=True):
    """So few tokens and characters that they are within every limit, however they are counted."""

    tokens: float
    chars: float


def _compute_small_sizes(settings: ResultSettings, *tokens: int) -> _SmallSizes:
    """Return what is few beside the limits of ``tokens``, of one result and of all: sizes of parts are rounded."""
    chars = (
        settings.spill_chars,
        *settings.spill_chars_by_tool.values(),
        settings.message_chars,
    )
    return _SmallSizes(min(filter(None, tokens), default=inf) / 2, min(filter(None, chars), default=inf))


def _build_limit_lookup(state: ConversationState, settings: ResultSettings) -> Callable[[SpillableText], int]:
    """Return the question how many characters a result may have; 0 where it is never spilled."""
    names = build_tool_name_lookup(state)

    def limit(text: SpillableText) -> int:
        name = names(text.message_index, text.part) if isinstance(text.part, ToolResult) else ""
        if strip_mcp_prefix(name) in settings.spill_exempt_tools or name in settings.spill_exempt_tools:
            return 0
        return settings.spill_chars_by_tool.get(name, settings.spill_chars)

    return limit


def strip_mcp_prefix(name: str) -> str:
    """Return the name of a tool without that of our server, which MCP clients put before it."""
    return name.rpartition(f"{OWN_SERVER_NAME}_")[2].lstrip("_")


def _is_large_result(spillable: SpillableText, chars: int, tokens: int) -> bool:
    return len(spillable.text) > chars or bool(tokens and spillable.tokens > tokens)


def _group_fresh_messages(state: ConversationState, small_sizes: _SmallSizes) -> Iterator[range]:
    """Yield the fresh slots, those of one message to the API together: what stands between two answers.

    Those that hold so few, all together, that nobody need look at each of their texts are left out, where nothing in
    their message was shown and nothing in them decided about.
    """
    first, fresh, edits_by_message = (
        state.last_request.seen_count,
        state.history.sized_messages.slice(state.last_request.seen_count),
        state.view.edits,
    )
    begins = first <= state.view.first_kept or state.history.messages[first - 1].role == "assistant"
    tokens = [0, *accumulate([sized_message.tokens for sized_message in fresh])]
    chars = [0, *accumulate([bound_message_chars(sized_message) for sized_message in fresh])]
    answers = [at for at, sized_message in enumerate(fresh) if sized_message.message.role == "assistant"]
    for start, stop in zip([0, *[at + 1 for at in answers]], [*answers, len(fresh)], strict=True):
        is_few = tokens[stop] - tokens[start] <= small_sizes.tokens and chars[stop] - chars[start] <= small_sizes.chars
        is_new = (start or begins) and not any(at in edits_by_message for at in range(first + start, first + stop))
        if start < stop and not (is_few and is_new):
            yield range(first + start, first + stop)


ToolNameLookup: TypeAlias = Callable[[int, ToolResult], str]
"""The name of the tool that gave a result, which stands in a slot."""


def build_tool_name_lookup(state: ConversationState) -> ToolNameLookup:
    """Return what tells the tool of a result of ``state``, looked up at its call where the result does not say.

    Each message of calls is looked through once.
    """

    @cache
    def called(home: int) -> dict[str, str]:
        return {call.id: call.name for call in reversed(state.history.sized_messages[home].message.calls)}

    def name(index: int, result: ToolResult) -> str:
        home = index if result.name else state.history.first_index_by_call_id.get(result.call_id, index)
        return called(home).get(result.call_id, "") if home < index else result.name

    return name


def _select_over_budget(
    builder: PlanBuilder,
    group: range,
    spilled: Sequence[SpillableText],
    candidates: Sequence[SpillableText],
    tokens: int,
) -> list[SpillableText]:
    """Return the largest of ``candidates`` that must go too so that the message is within its budget.

    Characters are of results alone, tokens of everything; the newest words of the user go last. The largest are those
    of most tokens, or of most characters where only these have a budget.
    """

    def size(text: SpillableText) -> int:
        return text.tokens if tokens else len(text.text)

    small = estimate_preview_chars(builder)
    chars = builder.settings.results.message_chars if builder.settings.results.spill_chars else 0
    held_chars = sum(len(text.text) for text in candidates if text.is_result) + small * len(spilled)
    held_chars += (
        _count_unmovable_chars(
            builder.state, group, {(text.message_index, text.part_index) for text in (*spilled, *candidates)}
        )
        if chars
        else 0
    )
    held_tokens = sum(text.tokens for text in candidates) + small // 4 * len(spilled)
    newest = max((text.message_index for text in candidates if not text.is_result), default=-1)
    extra_texts: list[SpillableText] = []
    for text in sorted(
        candidates, key=lambda text: (text.message_index == newest, -size(text), text.message_index, text.part_index)
    ):
        if (not chars or held_chars <= chars) and (not tokens or held_tokens <= tokens):
            break
        stays = small if len(text.text) > 2 * small else 0
        extra_texts.append(text)
        held_chars -= len(text.text) - stays if text.is_result else 0
        held_tokens -= text.tokens - stays // 4
    return extra_texts


def _assign_preview_tokens(
    builder: PlanBuilder,
    spilled: Sequence[SpillableText],
    candidates: Sequence[SpillableText],
    extra_texts: Sequence[SpillableText],
    tokens: int,
    max_tokens: int,
) -> list[SpillableText]:
    """Return ``extra_texts`` of ``candidates``, the user's words with the room there is: a fair share of what all else
    leaves.

    That is at most as much as one result may have.
    """
    words = [text for text in extra_texts if not text.is_result]
    previews = estimate_preview_chars(builder) // 4 * (len(spilled) + len(extra_texts) - len(words))
    stays = sum(text.tokens for text in candidates) - sum(text.tokens for text in extra_texts) + previews
    tokens_per_text = min(max_tokens, (tokens - stays) // max(1, len(words)))
    return [text if text.is_result else replace(text, preview_tokens=max(0, tokens_per_text)) for text in extra_texts]


def _count_unmovable_chars(state: ConversationState, group: range, candidate_parts: set[tuple[int, int]]) -> int:
    """Return the characters of the results that count and cannot go: seen before, exempt, or too short to give way."""
    start = group.start
    while start > state.view.first_kept and state.history.messages[start - 1].role != "assistant":
        start -= 1
    return sum(
        len(get_result_text(part))
        for index in range(start, group.stop)
        for place, part in enumerate(
            apply_edits_to_parts(state.history.messages[index], state.view.edits.get(index, ()))
        )
        if isinstance(part, ToolResult) and (index, place) not in candidate_parts
    )
