"""Describe one request of a session: from the client, as sent to the provider, its decisions, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from holdfast.config import Configuration
from holdfast.errors import UnknownId
from holdfast.planning import budget as guard
from holdfast.reports.entry_lines import describe_entry_body
from holdfast.reports.requests.changed_fields import FieldChange, list_changed_fields
from holdfast.reports.requests.request_size import (
    RequestSize,
    build_state_at_request,
    count_omitted_tokens,
    find_answer_or_failure,
    format_tokens,
    get_target_and_settings,
    measure_request,
)
from holdfast.reports.sessions.branches import find_overflow_refusals
from holdfast.reports.sessions.history import (
    SHORT_ID,
    BranchHistory,
    count_compacted_tokens,
    list_active_decisions,
    list_shown_edits,
)
from holdfast.state.cache_misses import CacheMiss, describe_cache_miss
from holdfast.state.conversation_state import ConversationState
from holdfast.state.costs import compute_known_cost
from holdfast.state.entries import (
    FAILURE_UNANSWERED,
    AnswerEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    Usage,
)
from holdfast.state.view import build_projection
from holdfast.store.base import SessionInfo

REQUEST_BODIES = (RequestEntry, AnswerEntry, FailureEntry)
"""Entries that are a request, or its answer or failure."""


class RepeatedDecision(Struct, frozen=True, omit_defaults=True):
    """A decision or compaction that a request repeats, and the tokens it saves there."""

    entry: str
    kind: str
    rules: dict[str, int]
    """The number of edits on shown messages, by rule."""
    saves: int
    description: str


class RequestDetail(Struct, frozen=True, omit_defaults=True):
    """A request. Tokens are the provider's count of the request as sent, if it is plausible, else estimates."""

    session: str
    request: str
    at: int | None
    model: str
    policy: str
    window: int
    """0 if it was never sent."""
    messages: int
    tokens: int
    """Size from the client: the request as sent plus an estimate of the omitted messages; of its messages alone, if it
    was never sent."""
    shown_messages: int
    shown_tokens: int
    """Messages and tokens as sent to the provider; 0 if it was never sent."""
    usage: Usage | None
    """The usage that the provider reported, or None."""
    dollars: float | None
    """None without ``usage`` or without known prices."""
    new_decisions: tuple[RepeatedDecision, ...] = ()
    """Decisions made for this request."""
    earlier_decisions: tuple[RepeatedDecision, ...] = ()
    """Decisions made before, which it repeats."""
    changed_fields: tuple[FieldChange, ...] = ()
    """Fields that requests to its model were sent with changed, as the log knew when it was answered."""
    refusals: tuple[str, ...] = ()
    """The reasons why earlier requests with the same messages were refused as too large."""
    stop: str = ""
    failure: str = ""
    """Why it was not answered, or an empty string."""
    is_counted: bool = False
    """Whether the provider counted the request as sent, plausibly."""
    cache_miss: CacheMiss | None = None
    """Why the provider read less of it from its cache than it could have; None if it read all, or is the first."""
    cache_miss_text: str = ""
    """The same in a sentence."""


def find_request_position(log: BranchHistory, entry: Entry) -> int:
    """Return the index in ``log`` of the request that ``entry`` is, or that it answers or fails.

    A failure that explains why new messages were never sent has no request; its own index is returned. Raises
    ``UnknownId`` if no request comes before ``entry``.
    """
    at = log.entries.index(entry)
    request_index = None
    for place in range(at, -1, -1):
        if isinstance(log.entries[place].body, RequestEntry):
            request_index = place
            break
    is_unanswered = _is_unanswered_failure(entry)
    if request_index is None:
        if is_unanswered:
            return at
        raise UnknownId(f"no request is recorded before entry {entry.id[:SHORT_ID]}; holdfast show --all lists the log")
    # Messages after the last request belong to a request that was never sent, and this failure says why.
    later_entries = log.entries[request_index + 1 : at]
    has_new_messages = any(isinstance(log_entry.body, MessageEntry | AnswerEntry) for log_entry in later_entries)
    if is_unanswered and has_new_messages:
        return at
    return request_index


def _is_unanswered_failure(entry: Entry) -> bool:
    return isinstance(entry.body, FailureEntry) and entry.body.kind == FAILURE_UNANSWERED


def describe_request(
    info: SessionInfo,
    log: BranchHistory,
    at: int,
    configuration: Configuration,
    cache_misses: Mapping[str, CacheMiss] = MappingProxyType({}),
) -> RequestDetail:
    """Describe the request at index ``at`` of ``log``; ``cache_misses`` are those of its session, by request."""
    entry = log.entries[at]
    state = build_state_at_request(log.entries, at)
    end = find_answer_or_failure(log.entries[at + 1 :])
    if not isinstance(entry.body, RequestEntry):
        return _describe_unsent_request(info, entry, state)
    answer = None
    usage = None
    if end is not None and isinstance(end.body, AnswerEntry):
        answer = end.body
        # A provider that reports no usage leaves 0, which is no count.
        if answer.usage.input:
            usage = answer.usage
    target, settings = get_target_and_settings(info, state, configuration)
    size = measure_request(state, target, settings)

    # Decisions since the last answer were made for this request.
    start = _find_request_start(log.entries, at)
    state_before = ConversationState.from_entries(log.entries[:start])
    earlier_ids = {id_ for id_, _ in state_before.view.active_decisions}
    new_decisions = []
    earlier_decisions = []
    for decision in _iterate_repeated_decisions(state, size):
        if decision.entry in earlier_ids:
            earlier_decisions.append(decision)
        else:
            new_decisions.append(decision)
    cache_miss = cache_misses.get(entry.id)
    return RequestDetail(
        session=info.key,
        request=entry.id,
        at=entry.time_ms,
        model=entry.body.model,
        policy=state.policy_name or "holdfast",
        window=guard.compute_effective_target(target, state, settings).limits.window,
        messages=len(state.history.sized_messages),
        tokens=size.tokens + size.scale_tokens(count_omitted_tokens(state)),
        shown_messages=len(build_projection(state)),
        shown_tokens=size.tokens,
        new_decisions=tuple(new_decisions),
        earlier_decisions=tuple(earlier_decisions),
        changed_fields=_list_changed_fields(log.entries, at),
        refusals=tuple(_list_refusal_reasons(log.entries, start, at)),
        usage=usage,
        dollars=None if usage is None else compute_known_cost(usage, target.prices),
        stop=answer.stop_reason if answer is not None else "",
        failure=_explain_no_answer(end),
        is_counted=size.is_counted,
        cache_miss=cache_miss,
        cache_miss_text="" if cache_miss is None else describe_cache_miss(cache_miss),
    )


def _describe_unsent_request(info: SessionInfo, entry: Entry, state: ConversationState) -> RequestDetail:
    """Describe a request that was never sent, as the failure ``entry`` explains; only its messages are known."""
    return RequestDetail(
        session=info.key,
        request=entry.id,
        at=entry.time_ms,
        model=state.last_request.model or info.model or "",
        policy=state.policy_name or "holdfast",
        window=0,
        messages=len(state.history.sized_messages),
        tokens=state.history.cumulative_tokens[-1] if len(state.history.sized_messages) else 0,
        shown_messages=0,
        shown_tokens=0,
        usage=None,
        dollars=None,
        failure=entry.body.reason if isinstance(entry.body, FailureEntry) else "",
    )


def _iterate_repeated_decisions(state: ConversationState, size: RequestSize) -> Iterator[RepeatedDecision]:
    """Yield the decisions that the request repeats, oldest first; the newest compaction covers the earlier ones."""
    for id_, body in list_active_decisions(state):
        there = list_shown_edits(state, body)
        rules = Counter(edit.rule for edit in there)
        edits = size.scale_tokens(sum(edit.saves for edit in there))
        if isinstance(body, DecisionEntry):
            words = ", ".join(f"{rule} {count:,}" for rule, count in rules.items())
            yield RepeatedDecision(
                id_,
                "decision",
                dict(rules),
                edits,
                f"{words}: {format_tokens(edits)} tokens less",
            )
        elif body == state.view.compaction:
            yield RepeatedDecision(
                id_,
                "compaction",
                dict(rules),
                edits + size.scale_tokens(count_compacted_tokens(state)),
                describe_entry_body(body, size),
            )


def _find_request_start(entries: Sequence[Entry], at: int) -> int:
    """Return the index of the first entry after the last answer before the request at ``at``."""
    for place in range(at - 1, -1, -1):
        if isinstance(entries[place].body, AnswerEntry):
            return place + 1
    return 0


def _list_changed_fields(entries: Sequence[Entry], at: int) -> tuple[FieldChange, ...]:
    """List the fields that were changed in the request at ``at``: the log says so before its answer."""
    stop = at + 1
    while stop < len(entries) and not isinstance(entries[stop].body, RequestEntry | MessageEntry):
        stop += 1
    state = ConversationState.from_entries(entries[:stop])
    model = state.last_request.model
    return tuple([change for change in list_changed_fields(state) if change.model == model])


def _explain_no_answer(end: Entry | None) -> str:
    """Explain why a request was not answered; empty if it was."""
    if end is None:
        return "no answer is recorded"
    if not isinstance(end.body, FailureEntry):
        return ""
    return f"{end.body.kind}: {end.body.reason}"


def _list_refusal_reasons(entries: Sequence[Entry], start: int, stop: int) -> list[str]:
    """List the reasons of refusals between ``start`` and ``stop``, without overflows that only adjusted a limit."""
    refusal_ids = find_overflow_refusals(entries)
    refusal_reasons = []
    for entry in entries[start:stop]:
        if isinstance(entry.body, FailureEntry) and entry.id in refusal_ids:
            refusal_reasons.append(entry.body.reason)
    return refusal_reasons


# -- in words ----------------------------------------------------------------------------------------------------------
