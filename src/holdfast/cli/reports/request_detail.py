"""One request of a session: what its client sent, what went up in its place, what was decided for it, what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from holdfast.cli.commands.show import describe_entry_body
from holdfast.cli.output.terminal import clean_single_line, format_count, print_command, print_wrapped
from holdfast.cli.reports.branches import find_overflow_refusals
from holdfast.cli.reports.describe import format_time
from holdfast.cli.reports.history import (
    SHORT_ID,
    BranchHistory,
    count_compacted_tokens,
    list_active_decisions,
    list_shown_edits,
)
from holdfast.cli.reports.request_size import (
    RequestSize,
    build_state_at_request,
    count_omitted_tokens,
    find_answer_or_failure,
    format_tokens,
    get_target_and_settings,
    measure_request,
)
from holdfast.config import Configuration
from holdfast.errors import UnknownId
from holdfast.planning import budget as guard
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
"""Entries that are a request, or what became of one."""


class RepeatedDecision(Struct, frozen=True, omit_defaults=True):
    """A decision or compaction that a request repeats, and the tokens that its request lacks by it."""

    entry: str
    kind: str
    rules: dict[str, int]
    """How many edits of each rule are of messages that the request shows."""
    saves: int
    description: str


class RequestDetail(Struct, frozen=True, omit_defaults=True):
    """A request. Tokens are as the provider counted what went up, where that is believed, else estimates."""

    session: str
    request: str
    at: int | None
    model: str
    policy: str
    window: int
    """0 where it was sent to nobody."""
    messages: int
    tokens: int
    """As its client sent it: what went up and an estimate of what that lacked; of its messages, where none went up."""
    shown_messages: int
    shown_tokens: int
    """Messages and tokens that went up; none where it was sent to nobody."""
    usage: Usage | None
    """What the provider told of it; nothing where it told nothing."""
    dollars: float | None
    """Nothing where ``usage`` is."""
    new_decisions: tuple[RepeatedDecision, ...] = ()
    """What was decided for it."""
    earlier_decisions: tuple[RepeatedDecision, ...] = ()
    """What had been decided before, and was done again."""
    refusals: tuple[str, ...] = ()
    """How requests before it, with the same words, were refused as too large."""
    stop: str = ""
    failure: str = ""
    """Why it was not answered."""
    is_counted: bool = False
    """Whether the provider counted what went up, and is believed."""


def find_request_position(log: BranchHistory, entry: Entry) -> int:
    """Return where in ``log`` the request is that ``entry`` is, or that it tells the end of.

    That is where ``entry`` itself is, where it tells why what was said behind the last answer was sent to nobody.
    """
    at = log.entries.index(entry)
    request_index = next(
        (place for place in range(at, -1, -1) if isinstance(log.entries[place].body, RequestEntry)), None
    )
    since = log.entries[at if request_index is None else request_index + 1 : at]
    if _is_unanswered_failure(entry) and (
        request_index is None or any(isinstance(log_entry.body, MessageEntry | AnswerEntry) for log_entry in since)
    ):
        return at
    if request_index is None:
        raise UnknownId(f"no request is recorded before entry {entry.id[:SHORT_ID]}; holdfast show --all lists the log")
    return request_index


def _is_unanswered_failure(entry: Entry) -> bool:
    return isinstance(entry.body, FailureEntry) and entry.body.kind == FAILURE_UNANSWERED


def describe_request(info: SessionInfo, log: BranchHistory, at: int, configuration: Configuration) -> RequestDetail:
    """Return the request at place ``at`` of ``log``."""
    entry, state, end = (
        log.entries[at],
        build_state_at_request(log.entries, at),
        find_answer_or_failure(log.entries[at + 1 :]),
    )
    if not isinstance(entry.body, RequestEntry):
        return _describe_unsent_request(info, entry, state)
    answer = end.body if end is not None and isinstance(end.body, AnswerEntry) else None
    usage = answer.usage if answer is not None and answer.usage.input else None
    place, settings = get_target_and_settings(info, state, configuration)
    size = measure_request(state, place, settings)
    before = {
        id_
        for id_, _ in ConversationState.from_entries(
            log.entries[: _find_request_start(log.entries, at)]
        ).view.active_decisions
    }
    law = tuple(_iterate_repeated_decisions(state, size))
    return RequestDetail(
        session=info.key,
        request=entry.id,
        at=entry.time_ms,
        model=entry.body.model,
        policy=state.policy_name or "holdfast",
        window=guard.compute_effective_target(place, state, settings).limits.window,
        messages=len(state.history.sized_messages),
        tokens=size.tokens + size.scale_tokens(count_omitted_tokens(state)),
        shown_messages=len(build_projection(state)),
        shown_tokens=size.tokens,
        new_decisions=tuple(decision for decision in law if decision.entry not in before),
        earlier_decisions=tuple(decision for decision in law if decision.entry in before),
        refusals=tuple(_list_refusal_reasons(log.entries, _find_request_start(log.entries, at), at)),
        usage=usage,
        dollars=None if usage is None else compute_known_cost(usage, place.prices),
        stop=answer.stop_reason if answer is not None else "",
        failure=_explain_no_answer(end),
        is_counted=size.is_counted,
    )


def _describe_unsent_request(info: SessionInfo, entry: Entry, state: ConversationState) -> RequestDetail:
    """Return a request that was sent to nobody, which ``entry`` tells of: its messages are what is known of it."""
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
    """Yield what the request repeats, the oldest first; of compactions the newest stands for all."""
    for id_, body in list_active_decisions(state):
        there = list_shown_edits(state, body)
        rules, edits = Counter(edit.rule for edit in there), size.scale_tokens(sum(edit.saves for edit in there))
        if isinstance(body, DecisionEntry):
            words = ", ".join(f"{rule} {count:,}" for rule, count in rules.items())
            yield RepeatedDecision(id_, "decision", dict(rules), edits, f"{words}: {format_tokens(edits)} tokens less")
        elif body == state.view.compaction:
            yield RepeatedDecision(
                id_,
                "compaction",
                dict(rules),
                edits + size.scale_tokens(count_compacted_tokens(state)),
                describe_entry_body(body, size),
            )


def _find_request_start(entries: Sequence[Entry], at: int) -> int:
    """Return the first entry behind the answer before the request at ``at``."""
    return next((place + 1 for place in range(at - 1, -1, -1) if isinstance(entries[place].body, AnswerEntry)), 0)


def _explain_no_answer(end: Entry | None) -> str:
    """Return why a request that ended so was not answered; empty where it was."""
    if end is None:
        return "nothing tells that it was answered"
    return f"{end.body.kind}: {end.body.reason}" if isinstance(end.body, FailureEntry) else ""


def _list_refusal_reasons(entries: Sequence[Entry], start: int, stop: int) -> list[str]:
    """Return how a provider refused the requests from ``start`` to ``stop``; what only teaches is no refusal."""
    refusal_ids = find_overflow_refusals(entries)
    return [
        entry.body.reason
        for entry in entries[start:stop]
        if isinstance(entry.body, FailureEntry) and entry.id in refusal_ids
    ]


# -- in words ----------------------------------------------------------------------------------------------------------


def print_request_detail(console: Any, request_detail: RequestDetail, session: str) -> None:
    """Print ``request_detail``; ``session`` is how its session is called in commands."""
    from rich.text import Text

    head = (
        f"request {clean_single_line(request_detail.request)[:SHORT_ID]} {format_time(request_detail.at)} to "
        f"{clean_single_line(request_detail.model) or 'an unnamed model'}"
    )
    console.print(Text(" ".join(head.split()), "bold"))
    came = (
        f"as its client sent it: {format_count(request_detail.messages, 'message')}, "
        f"{format_client_size(request_detail)} tokens"
    )
    if not request_detail.window:
        print_wrapped(console, Text(f"{came} without system and tools"))
        print_wrapped(console, Text(f"sent to nobody: {clean_single_line(request_detail.failure)}", "red"))
        return
    share = request_detail.shown_tokens / max(1, request_detail.window)
    print_wrapped(console, Text(came))
    upstream_text = (
        f"as it went up: {format_count(request_detail.shown_messages, 'message')}, "
        f"{format_upstream_size(request_detail)} tokens"
    )
    print_wrapped(console, Text(f"{upstream_text}, {share:.1%} of a window of {request_detail.window:,}"))
    for why in request_detail.refusals:
        print_wrapped(console, Text(f"refused before: {clean_single_line(why)}", "red"))
    _print_decisions(
        console, f"decided for it by policy {clean_single_line(request_detail.policy)}", request_detail.new_decisions
    )
    _print_decisions(console, "decided before, and done again", request_detail.earlier_decisions)
    if not (request_detail.new_decisions or request_detail.earlier_decisions):
        console.print("nothing was done to it: it went up as it came")
    print_wrapped(console, Text(_format_cost(request_detail)))
    if request_detail.new_decisions or request_detail.earlier_decisions:
        request = clean_single_line(request_detail.request)[:SHORT_ID]
        print_command(console, Text(f"the whole change: holdfast diff {request}", style="dim"))
        print_command(console, Text(f"what it held: holdfast context {request}", style="dim"))
        print_command(console, Text(f"undo one: holdfast undo {session} ID", style="dim"))


def format_client_size(request: RequestDetail) -> str:
    """Return how large a request was as its client sent it: what was taken from it nobody counted."""
    return format_tokens(request.tokens, is_counted=request.is_counted and request.tokens == request.shown_tokens)


def format_upstream_size(request: RequestDetail) -> str:
    """Return how large a request was as it went up."""
    return format_tokens(request.shown_tokens, is_counted=request.is_counted)


def _print_decisions(console: Any, head: str, decisions: Sequence[RepeatedDecision]) -> None:
    from rich.text import Text

    if decisions:
        console.print(Text(f"{head}:"))
    for decision in decisions:
        print_wrapped(
            console,
            Text(
                f"  {clean_single_line(decision.entry)[:SHORT_ID]} {clean_single_line(decision.description)}", "yellow"
            ),
        )


def _format_cost(request: RequestDetail) -> str:
    if request.failure:
        return f"not answered: {clean_single_line(request.failure)}"
    used, stop_text = request.usage, f", ended with {clean_single_line(request.stop, 40)}" if request.stop else ""
    if used is None:
        return f"what it cost is not known: its answer tells no usage{stop_text}"
    cached = f" ({used.cache_read:,} from the cache, {used.cache_write:,} written to it)"
    money = "no price of the model is known" if request.dollars is None else f"${request.dollars:,.4f}"
    doubt = "" if request.is_counted else ", by a count that is not taken for its size"
    return f"what it cost{doubt}: {used.input:,} tokens in{cached}, {used.output:,} out, {money}{stop_text}"
