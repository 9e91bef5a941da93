"""What the next request of a session is made of: its parts by kind, with their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning import budget as guard
from holdfast.planning.settings import Settings
from holdfast.replay.tokenizer import count_part_tokens
from holdfast.reports.describe import summarize_part
from holdfast.reports.requests.next_plan import (
    ActiveDecision,
    NextPlan,
    describe_active_decisions,
)
from holdfast.reports.requests.request_size import measure_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import RequestSetup
from holdfast.state.target import Target
from holdfast.state.view import build_projection, get_valid_measured_request, list_projection_origins

UNEXPLAINED = "rest"
"""Tokens that the provider reported beyond the messages: system prompt and tools, if the recording lacks them."""

KIND_ORDER = (
    "setup",
    "system",
    "summary",
    "user",
    "assistant",
    "thinking",
    "calls",
    "results",
    "stubs",
    "media",
    "other",
)
"""Kinds of content in the order in which a report names them."""


class ContextPart(Struct, frozen=True):
    """A part of a message in the request; ``message`` is the message's number, -1 for the summary."""

    message: int
    kind: str
    tokens: int
    text: str


class ContextBreakdown(Struct, frozen=True):
    """The contents of a request. Tokens are estimates, except ``tokens`` if ``is_counted``."""

    session: str
    model: str
    window: int
    origin: str
    """The source of the window's size."""
    usable: int
    tokens: int
    messages: int
    kinds: dict[str, int]
    largest: tuple[ContextPart, ...]
    active_decisions: tuple[ActiveDecision, ...] = ()
    next_plan: NextPlan | None = None
    """The decisions of the policy that was asked for, planned or recorded."""
    is_counted: bool = False
    """Whether the provider counted exactly this request."""


def describe_context(
    session: str,
    state: ConversationState,
    target: Target,
    top: int,
    settings: Settings,
    next_plan: NextPlan | None = None,
) -> ContextBreakdown:
    """Describe the request that ``state`` makes to ``target``, in the window learned from overflows."""
    size = measure_request(state, target, settings)
    target = guard.compute_effective_target(target, state, settings)
    is_measured = get_valid_measured_request(state) is not None and state.last_request.model in {"", target.model}
    message_tokens = size.tokens - size.setup_tokens
    pieces = list(_iterate_context_parts(state, size.scale))
    pieces = _fit_parts_to_total(pieces, message_tokens, exact=not is_measured)
    kinds: Counter[str] = Counter()
    # Without a recorded system prompt, the tokens beyond the messages were only measured, so they are unexplained.
    kinds[UNEXPLAINED if state.setup == RequestSetup() else "setup"] = size.setup_tokens
    for piece in pieces:
        kinds[piece.kind] += piece.tokens
    if is_measured:
        kinds[UNEXPLAINED] += max(0, size.tokens - sum(kinds.values()))
    shown_kinds = {}
    for kind in (*KIND_ORDER, UNEXPLAINED):
        if kinds[kind]:
            shown_kinds[kind] = kinds[kind]
    budget = guard.compute_budget(target, settings)
    return ContextBreakdown(
        session=session,
        model=target.model,
        window=budget.window,
        origin=target.limits.window_source,
        usable=max(0, budget.usable),
        tokens=size.tokens,
        messages=len(build_projection(state)),
        kinds=shown_kinds,
        largest=tuple(sorted(pieces, key=lambda piece: -piece.tokens)[:top]),
        active_decisions=describe_active_decisions(state),
        next_plan=next_plan,
        is_counted=size.is_counted,
    )


class RequestKindCounter:
    """Counts the tokens of requests by kind of content. Messages that several requests show are measured once."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, bool], tuple[SizedMessage, Counter[str]]] = {}
        """By the identity of a message and whether it is a summary; the message is kept, so that it stays unique."""

    def count(self, state: ConversationState, counted_tokens: int = 0) -> dict[str, int]:
        """Return the tokens of the request that ``state`` makes, by kind, in the order of a report.

        Estimates; if the provider counted the request, they are scaled so that they add up to ``counted_tokens``.
        """
        kinds: Counter[str] = Counter({"setup": state.setup.tokens})
        for sized_message, origin in zip(build_projection(state), list_projection_origins(state), strict=True):
            kinds.update(self._count_message(sized_message, origin))
        total = sum(kinds.values())
        scale = counted_tokens / total if counted_tokens and total else 1.0
        return {kind: round(scale * kinds[kind]) for kind in KIND_ORDER if kinds[kind]}

    def _count_message(self, message: SizedMessage, origin: int) -> Counter[str]:
        key = (id(message), origin < 0)
        if key not in self._counts:
            counts: Counter[str] = Counter()
            for part, tokens in _divide_message_tokens(message):
                counts[_classify_part(message, origin, part)] += round(tokens)
            self._counts[key] = message, counts
        return self._counts[key][1]


def _divide_message_tokens(message: SizedMessage) -> Iterator[tuple[Part, float]]:
    """Yield each part with its share of the message's tokens; the overhead of a message is shared by its parts."""
    parts = message.message.parts
    sizes = [count_part_tokens(part, estimate_text_tokens) for part in parts]
    scale = max(message.tokens, sum(sizes)) / (sum(sizes) or 1)
    for part, size in zip(parts, sizes, strict=True):
        yield part, scale * size


def _iterate_context_parts(state: ConversationState, scale: float) -> Iterator[ContextPart]:
    """Yield the parts of the request; a message's tokens are divided among its parts by their size."""
    tool_names: dict[str, str] = {}
    for sized_message, origin in zip(build_projection(state), list_projection_origins(state), strict=True):
        message = sized_message.message
        # A result names only the id of its call, and its line shows the tool.
        for call in message.calls:
            tool_names[call.id] = call.name
        for part, tokens in _divide_message_tokens(sized_message):
            tool_name = ""
            if isinstance(part, ToolResult):
                tool_name = tool_names.get(part.call_id, "")
            kind = _classify_part(sized_message, origin, part)
            yield ContextPart(origin, kind, round(scale * tokens), summarize_part(part, tool_name))


def _fit_parts_to_total(pieces: list[ContextPart], budget: int, *, exact: bool) -> list[ContextPart]:
    """Scale ``pieces`` down to ``budget`` tokens in total; with ``exact`` scale them up to it as well."""
    total = sum(piece.tokens for piece in pieces)
    if not total or total == budget:
        return pieces
    # A measured total above the parts is not theirs: it becomes the unexplained rest.
    if total < budget and not exact:
        return pieces
    # Each piece ends at its scaled running total, so that rounding errors do not add up.
    scaled_pieces = []
    running_total = scaled_start = 0
    for piece in pieces:
        running_total += piece.tokens
        scaled_end = running_total * budget // total
        scaled_pieces.append(replace(piece, tokens=scaled_end - scaled_start))
        scaled_start = scaled_end
    return scaled_pieces


def _classify_part(message: SizedMessage, origin: int, part: Part) -> str:
    """Return the kind of a part, as the table names it."""
    if origin < 0:
        return "summary"
    if isinstance(part, Text):
        return "results" if message.message.role == "tool" else message.message.role
    if isinstance(part, ToolResult):
        # A reduced message no longer has the bytes it arrived with.
        is_reduced = message.raw is None and message.base_raw is not None
        return "stubs" if is_reduced else "results"
    if isinstance(part, Thinking):
        return "thinking"
    if isinstance(part, ToolCall):
        return "calls"
    if isinstance(part, Media):
        return "media"
    return "other"
