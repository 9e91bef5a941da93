"""The calls of a stored session with their cost and savings, read without its messages.

A session may be a hundred megabytes of messages, and what its calls cost stands in a few small entries. Which request
an answer belongs to, and what each request left out, depends on the branch, so the tree is walked by the headers of its
entries: ids, parents, kinds, times and sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config import Catalog
from holdfast.providers.registry import API_NAMES
from holdfast.state.costs import read_summary_cost_note
from holdfast.state.edits import Edit
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.lazy_entries import LazyEntry, get_entry_headers, get_entry_type, load_entry
from holdfast.state.view import measure_summary
from holdfast.store.base import SessionInfo, SessionStore

SMALL_KINDS = ("request", "answer", "decision", "compaction", "revoke", "frame", "note")
"""Kinds of entries that are read whole; of all others only the headers are."""


class RecordedCall(Struct, frozen=True, gc=False):
    """A request, an answer, or a call for a summary. A request and its answer have the same place and time."""

    api: str
    model: str
    """Empty if the log does not say."""
    time_ms: int | None
    """When it was answered, or when it was sent if it was not, in ms since 1970; None if the log does not say."""
    is_request: bool = False
    is_summary: bool = False
    usage: Usage | None = None
    """None for a request, and for an answer that reported no usage."""
    saved_tokens: int = 0
    """Tokens that a request left out of what was said, in the estimator's tokens."""


class RecordedCalls(Struct, frozen=True):
    """The calls of all branches of a session."""

    calls: tuple[RecordedCall, ...] = ()
    saved_now: int = 0
    """Tokens that a request at the session's leaf leaves out, in the estimator's tokens."""


def read_recorded_calls(store: SessionStore, info: SessionInfo, catalog: Catalog) -> RecordedCalls:
    """Read the calls of a session, each once; the places are those whose prices ``holdfast stats`` uses.

    Raises ``StoreCorrupt`` if an entry that is needed cannot be read.
    """
    # Headers first: an entry that another process appends in between is then read without being known, and left out.
    headers = get_entry_headers(store.read_lazy_entries(info.key))
    bodies: dict[str, EntryBody] = {}
    for kind in SMALL_KINDS:
        for entry in store.read_entries(info.key, kind):
            bodies[entry.id] = entry.body
    walk = _CallWalk(info, catalog)
    for header in headers:
        walk.add_entry(header, bodies.get(header.id))
    return walk.collect_calls(info.leaf_id)


class _PathMessage(Struct, frozen=True):
    """A message on a path."""

    index: int
    tokens_through: int
    """Estimated tokens of the messages up to and including this one."""
    previous: _PathMessage | None


class _SentRequest(Struct, gc=False):
    """A request, and when it was answered."""

    api: str
    model: str
    sent_ms: int | None
    saved_tokens: int
    answered_ms: int | None = None


class _PathState(Struct, frozen=True, gc=False):
    """What the path to an entry says of the next call."""

    message: _PathMessage | None = None
    """The newest message."""
    api: str = ""
    """The API of the first message; empty if it came through none."""
    pinned_count: int = 0
    """How many system messages stand before everything else; no compaction hides them."""
    pinned_tokens: int = 0
    request: _SentRequest | None = None
    """The newest request."""
    model: str = ""
    request_api: str = ""
    """The model and API that the newest request names."""
    time_ms: int | None = None
    """The newest time on the path."""
    setup: RequestSetup = RequestSetup()
    decisions: tuple[tuple[str, DecisionEntry | CompactionEntry], ...] = ()
    """The decisions with their ids, in order, also those that are undone."""
    undone_ids: frozenset[str] = frozenset()
    """Ids of those that are not in force."""
    compaction: CompactionEntry | None = None
    """The compaction in force: the newest of ``decisions`` that is not undone."""
    edit_savings: int = 0
    """Tokens that the edits of shown messages free."""
    hidden_tokens: int = 0
    """Tokens of the messages that the compaction hides."""
    saved_tokens: int = 0
    """Tokens that the next request leaves out: those of the edits and of hidden messages, less the summary."""

    @property
    def message_count(self) -> int:
        """The number of messages on the path."""
        return self.message.index + 1 if self.message is not None else 0

    @property
    def first_kept(self) -> int:
        """The index of the first message that is not hidden, apart from pinned ones."""
        return self.pinned_count if self.compaction is None else self.compaction.first_kept


class _CallWalk:
    """Walks the tree of a session, parents first, and collects its calls."""

    def __init__(self, info: SessionInfo, catalog: Catalog) -> None:
        self._model = info.model
        self._catalog = catalog
        self._api_by_model: dict[str, str] = {}
        self._states: dict[str | None, _PathState] = {None: _PathState()}
        self._requests: list[_SentRequest] = []
        self._calls: list[RecordedCall] = []

    def add_entry(self, header: Entry | LazyEntry, body: EntryBody | None) -> None:
        """Add an entry; ``body`` is None if its kind is not read."""
        state = self._states.get(header.parent, self._states[None])
        if header.time_ms is not None:
            state = replace(state, time_ms=header.time_ms)
        kind = get_entry_type(header)
        if kind is MessageEntry or kind is BranchSummaryEntry:
            state = _add_message(state, header)
        elif isinstance(body, RequestEntry):
            state = self._add_request(state, body)
        elif isinstance(body, AnswerEntry):
            self._add_answer(state, body)
        elif isinstance(body, NoteEntry):
            self._add_note(state, body)
        elif body is not None:
            state = _add_decision(state, header.id, body)
        self._states[header.id] = state

    def collect_calls(self, leaf: str | None) -> RecordedCalls:
        """Return all calls so far, and the savings at the entry ``leaf``."""
        requests = []
        for request in self._requests:
            time_ms = request.sent_ms if request.answered_ms is None else request.answered_ms
            requests.append(
                RecordedCall(request.api, request.model, time_ms, is_request=True, saved_tokens=request.saved_tokens)
            )
        leaf_state = self._states.get(leaf, self._states[None])
        return RecordedCalls((*requests, *self._calls), leaf_state.saved_tokens)

    def _add_request(self, state: _PathState, body: RequestEntry) -> _PathState:
        model = body.model or self._model
        # Imported requests have no time of their own; if nobody answered, the entry before it is the nearest one.
        request = _SentRequest(self._find_api(state, model), model, state.time_ms, state.saved_tokens)
        self._requests.append(request)
        return replace(state, request=request, model=body.model, request_api=body.api)

    def _add_answer(self, state: _PathState, body: AnswerEntry) -> None:
        request = state.request
        if request is not None and request.answered_ms is None:
            request.answered_ms = state.time_ms
        model = state.model or self._model
        usage = body.usage if body.usage.input else None
        self._calls.append(RecordedCall(self._find_api(state, model), model, state.time_ms, usage=usage))

    def _add_note(self, state: _PathState, body: NoteEntry) -> None:
        call = read_summary_cost_note(body)
        if call is not None:
            self._calls.append(RecordedCall(call.api, call.model, state.time_ms, is_summary=True, usage=call.usage))

    def _find_api(self, state: _PathState, model: str) -> str:
        """Return the API whose prices count, as ``find_request_place`` does for a state with messages."""
        if state.api:
            return state.api
        if model not in self._api_by_model:
            self._api_by_model[model] = self._catalog.find_api(model) or API_NAMES[0]
        return self._api_by_model[model]


def _add_message(state: _PathState, header: Entry | LazyEntry) -> _PathState:
    tokens = _get_message_tokens(header)
    before = state.message
    tokens_before = before.tokens_through if before is not None else 0
    message = _PathMessage(state.message_count, tokens_before + tokens, before)
    state = replace(state, message=message)
    # Only the first messages of a path are read whole: the API comes from the first, and system messages are pinned.
    if state.pinned_count < message.index or state.compaction is not None:
        return state
    body = load_entry(header).body
    assert isinstance(body, MessageEntry | BranchSummaryEntry)
    sized_message = body.sized_message
    if before is None and sized_message.api in API_NAMES:
        state = replace(state, api=sized_message.api)
    if sized_message.message.role == "system":
        state = replace(
            state, pinned_count=state.pinned_count + 1, pinned_tokens=state.pinned_tokens + sized_message.tokens
        )
    return state


def _get_message_tokens(header: Entry | LazyEntry) -> int:
    if isinstance(header, LazyEntry):
        return header.tokens
    assert isinstance(header.body, MessageEntry | BranchSummaryEntry)
    return header.body.sized_message.tokens


def _add_decision(state: _PathState, entry_id: str, body: EntryBody) -> _PathState:
    """Return the state with a decision, compaction, undo or setup added, and the savings measured anew."""
    if isinstance(body, DecisionEntry):
        # Only the new edits are counted: with all of them a long session would take quadratic time.
        edit_savings = state.edit_savings + _sum_savings(body.edits, state.first_kept)
        state = replace(state, decisions=(*state.decisions, (entry_id, body)), edit_savings=edit_savings)
    elif isinstance(body, CompactionEntry):
        state = _count_savings(replace(state, decisions=(*state.decisions, (entry_id, body))))
    elif isinstance(body, RevokeEntry):
        is_undone = body.revoked_id in state.undone_ids
        is_known = body.revoked_id in dict(state.decisions)
        # An undo of what is undone, like a restore of what is in force, changes nothing.
        if not is_known or is_undone != body.is_restored:
            return state
        state = _count_savings(replace(state, undone_ids=state.undone_ids ^ {body.revoked_id}))
    elif isinstance(body, RequestSetup) and body != state.setup:
        state = replace(state, setup=body)
    else:
        return state
    summary_tokens = 0
    if state.compaction is not None:
        summary_tokens = measure_summary(state.compaction, state.model, state.request_api)
    return replace(state, saved_tokens=state.edit_savings + state.hidden_tokens - summary_tokens)


def _count_savings(state: _PathState) -> _PathState:
    """Return the state with what its decisions save counted anew."""
    active = [body for id_, body in state.decisions if id_ not in state.undone_ids]
    compactions = [body for body in active if isinstance(body, CompactionEntry)]
    compaction = compactions[-1] if compactions else None
    state = replace(state, compaction=compaction)
    edit_savings = sum(_sum_savings(body.edits, state.first_kept) for body in active)
    hidden_tokens = 0
    if compaction is not None:
        hidden_tokens = _sum_first_messages(state.message, compaction.first_kept) - state.pinned_tokens
    return replace(state, edit_savings=edit_savings, hidden_tokens=hidden_tokens)


def _sum_savings(edits: Iterable[Edit], first_kept: int) -> int:
    return sum(edit.saves for edit in edits if edit.span.start >= first_kept)


def _sum_first_messages(message: _PathMessage | None, count: int) -> int:
    """Return the tokens of the first ``count`` messages of the path that ends at ``message``."""
    while message is not None and message.index >= count:
        message = message.previous
    return message.tokens_through if message is not None else 0
