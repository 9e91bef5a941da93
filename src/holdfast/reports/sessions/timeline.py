"""The requests of a session in order: how large each was, what it cost, and what was decided before it.

Made from the small entries of the log alone. Messages, which are nearly all of its bytes, are only counted, so a log of
hundreds of megabytes takes milliseconds. What a request was made of needs its messages: ``read_request_contents`` reads
those of a few requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config import Catalog
from holdfast.formats.base import STALE_USAGE_BASIS
from holdfast.messages.text.single_line import clean_single_line
from holdfast.providers.registry import API_NAMES
from holdfast.reports.entry_lines import describe_entry_body
from holdfast.reports.requests.context_parts import RequestKindCounter
from holdfast.state.cache_misses import (
    UNREPORTED,
    AnsweredRequest,
    CacheHistory,
    CacheMiss,
    format_idle_time,
    judge_cache_use,
)
from holdfast.state.calibration.usage import HOUR_CACHE_SECONDS
from holdfast.state.conversation_state import ConversationState
from holdfast.state.costs import compute_known_cost
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.lazy_entries import get_entry_headers, get_entry_type
from holdfast.state.target import Prices
from holdfast.store.base import SessionInfo, SessionStore

MarkKind: TypeAlias = Literal["compaction", "decision", "overflow", "failure", "undo", "pause"]
_SMALL_KINDS = ("request", "answer", "decision", "compaction", "failure", "revoke")
"""Kinds of entries that a timeline reads; their bodies have no messages, but for the summary of a compaction."""


_MESSAGE_TYPES = (MessageEntry, BranchSummaryEntry)


class TimelineMark(Struct, frozen=True):
    """Something that happened before a request: a decision, a refusal, an undo, or nothing for a long time."""

    kind: MarkKind
    entry: str
    """Id of its entry; of a pause, that of the request that ends it."""
    text: str
    """What happened, on one line."""
    saves: int = 0
    """Estimated tokens that it takes out of the request."""


class TimelineRequest(Struct, frozen=True):
    """One request of a branch. Tokens are the provider's count; 0 where it gave none."""

    number: int
    """Counted from 1 along the branch."""
    request: str
    """Id of its entry."""
    at: int | None
    """When it was sent, or answered if only that is recorded; ms since 1970."""
    model: str
    window: int
    """0 if it is not known."""
    messages: int
    """Messages of the conversation when it was sent."""
    first_kept: int
    """Number of the first message that no compaction hid from it; 0 without a compaction."""
    usage: Usage
    is_answered: bool
    dollars: float | None
    """None without usage or without known prices."""
    stop: str = ""
    marks: tuple[TimelineMark, ...] = ()
    api: str = ""
    """The API that the log names, or else the model's."""
    answer_seconds: float | None = None
    """Time until its answer ended; None if the log does not say."""
    pause_seconds: float | None = None
    """Time since the end of the request before; None for the first one, and if the log does not say."""


class Timeline(Struct, frozen=True):
    """The requests of the branch that ends at a session's leaf."""

    requests: tuple[TimelineRequest, ...]
    pending_marks: tuple[TimelineMark, ...] = ()
    """What happened after the last request."""
    message_ids: tuple[str, ...] = ()
    """Ids of the entries of its messages, by number."""
    path_ids: frozenset[str] = frozenset()
    """Ids of all entries of the branch."""

    @property
    def window(self) -> int:
        """The largest window of any request; 0 if none is known."""
        return max((request.window for request in self.requests), default=0)

    @property
    def largest(self) -> int:
        """Tokens of the largest counted request."""
        return max((request.usage.input for request in self.requests), default=0)


def load_timeline(store: SessionStore, info: SessionInfo, catalog: Catalog, leaf: str | None = None) -> Timeline:
    """Load the timeline of the branch that ends at ``leaf``, or at the session's own.

    Raises ``StoreCorrupt`` if one of the entries that it reads is damaged.
    """
    parents: dict[str, str | None] = {}
    message_ids: list[str] = []
    for header in get_entry_headers(store.read_lazy_entries(info.key)):
        parents[header.id] = header.parent
        if get_entry_type(header) in _MESSAGE_TYPES:
            message_ids.append(header.id)
    path_ids: set[str] = set()
    at = leaf or info.leaf_id
    while at is not None and at not in path_ids:
        path_ids.add(at)
        at = parents.get(at)
    small_entries: list[Entry] = []
    for kind in _SMALL_KINDS:
        small_entries += [entry for entry in store.read_entries(info.key, kind) if entry.id in path_ids]
    small_entries.sort(key=lambda entry: entry.seq)
    timeline = build_timeline(small_entries, info, catalog)
    messages = tuple([id_ for id_ in message_ids if id_ in path_ids])
    return replace(timeline, message_ids=messages, path_ids=frozenset(path_ids))


class _KnownModel(Struct, frozen=True):
    """What the catalog says of a model."""

    api: str
    prices: Prices
    cache_seconds: float
    """How long the provider's cache keeps what it holds."""


class _KnownModels:
    """Looks models up in the catalog, each once: a session has many requests and few models."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[tuple[str, str], _KnownModel] = {}

    def look_up(self, api: str, model: str) -> _KnownModel:
        """Return what is known of ``model``; an empty ``api`` is the model's own."""
        known = self._known.get((api, model))
        if known is None:
            named_api = api or self._catalog.find_api(model) or API_NAMES[0]
            prices = self._catalog.get_prices(named_api, model)
            known = _KnownModel(named_api, prices, self._catalog.get_cache_rules(named_api, model).ttl_seconds)
            self._known[api, model] = known
        return known


def build_timeline(entries: Iterable[Entry], info: SessionInfo, catalog: Catalog) -> Timeline:
    """Build a timeline from the small entries of one branch, in order."""
    models = _KnownModels(catalog)
    requests: list[TimelineRequest] = []
    marks: list[TimelineMark] = []
    open_request: Entry | None = None
    open_marks: tuple[TimelineMark, ...] = ()
    compactions: dict[str, int] = {}
    undone_ids: set[str] = set()
    first_kept = 0
    pauses = _PauseFinder(models)

    def close_request(end: Entry | None) -> None:
        nonlocal open_request
        if open_request is not None:
            request = _make_request(len(requests) + 1, open_request, end, open_marks, info, models)
            request = pauses.add_pause(request, end)
            requests.append(replace(request, first_kept=first_kept))
        open_request = None

    for entry in entries:
        body = entry.body
        if isinstance(body, RequestEntry):
            close_request(None)
            open_request, open_marks = entry, tuple(marks)
            marks = []
        elif isinstance(body, AnswerEntry):
            close_request(entry)
        else:
            if isinstance(body, CompactionEntry):
                compactions[entry.id] = body.first_kept
                first_kept = max(first_kept, body.first_kept)
            elif isinstance(body, RevokeEntry):
                if body.is_restored:
                    undone_ids.discard(body.revoked_id)
                else:
                    undone_ids.add(body.revoked_id)
                in_force = [kept for id_, kept in compactions.items() if id_ not in undone_ids]
                first_kept = max(in_force, default=0)
            mark = _make_mark(entry)
            if mark is not None:
                marks.append(mark)
    close_request(None)
    return Timeline(tuple(requests), tuple(marks))


def _make_request(
    number: int,
    entry: Entry,
    end: Entry | None,
    marks: tuple[TimelineMark, ...],
    info: SessionInfo,
    models: _KnownModels,
) -> TimelineRequest:
    body = entry.body
    assert isinstance(body, RequestEntry)
    usage, stop = Usage(), ""
    if end is not None and isinstance(end.body, AnswerEntry):
        stop = end.body.stop_reason
        # Such a usage belongs to another request of the recording.
        if end.body.prefix_digest != STALE_USAGE_BASIS:
            usage = end.body.usage
    model = body.model or info.model
    known = models.look_up(body.api, model)
    return TimelineRequest(
        number=number,
        request=entry.id,
        at=entry.time_ms or (end.time_ms if end is not None else None),
        model=model,
        window=body.window or info.recorded_window or 0,
        messages=body.message_count,
        first_kept=0,
        usage=usage,
        is_answered=end is not None,
        dollars=compute_known_cost(usage, known.prices) if usage.total else None,
        stop=stop,
        marks=marks,
        api=known.api,
        answer_seconds=_measure_seconds(entry.time_ms, end.time_ms if end is not None else None),
    )


def _measure_seconds(start: int | None, end: int | None) -> float | None:
    """Return the time between two times in ms; None if one is not known, or if the clock was set back."""
    if start is None or end is None or end < start:
        return None
    return (end - start) / 1_000


class _PauseFinder:
    """Finds how long nothing was sent before each request, and whether the provider's cache outlived that."""

    def __init__(self, models: _KnownModels) -> None:
        self._models = models
        self._last_at: int | None = None
        self._last_usage = Usage()
        """That of the newest request that wrote to a cache or read from one."""

    def add_pause(self, request: TimelineRequest, end: Entry | None) -> TimelineRequest:
        """Return ``request``, which ``end`` answered, with the pause before it, and a mark if it was a long one."""
        seconds = _measure_seconds(self._last_at, request.at)
        lifetime = self._models.look_up(request.api, request.model).cache_seconds
        if self._last_usage.cache_write_1h:
            lifetime = max(lifetime, HOUR_CACHE_SECONDS)
        uses_cache = bool(self._last_usage.cache_read or self._last_usage.cache_write)
        self._last_at = request.at
        if end is not None and end.time_ms is not None:
            self._last_at = end.time_ms
        if request.usage.cache_read or request.usage.cache_write:
            self._last_usage = request.usage
        if seconds is None or seconds <= lifetime or not uses_cache:
            return replace(request, pause_seconds=seconds)
        pause, kept = format_idle_time(seconds), format_idle_time(lifetime)
        mark = TimelineMark("pause", request.request, f"{pause} passed, and the cache keeps what it holds for {kept}")
        return replace(request, pause_seconds=seconds, marks=(*request.marks, mark))


def _make_mark(entry: Entry) -> TimelineMark | None:
    """Return what the timeline says of an entry; None for one that is no event of it."""
    body = entry.body
    if isinstance(body, CompactionEntry):
        saves = max(0, body.tokens_before - body.tokens_after)
        return TimelineMark("compaction", entry.id, describe_entry_body(body), saves)
    if isinstance(body, DecisionEntry):
        return TimelineMark("decision", entry.id, _count_rules(body), sum(edit.saves for edit in body.edits))
    if isinstance(body, FailureEntry):
        kind: MarkKind = "overflow" if body.kind == FAILURE_OVERFLOW else "failure"
        return TimelineMark(kind, entry.id, describe_entry_body(body))
    if isinstance(body, RevokeEntry):
        return TimelineMark("undo", entry.id, describe_entry_body(body))
    return None


def _count_rules(body: DecisionEntry) -> str:
    """Return the rules of a decision with how often each applies: ``spill 3, prune 12``."""
    counts: dict[str, int] = {}
    for edit in body.edits:
        counts[edit.rule] = counts.get(edit.rule, 0) + 1
    return ", ".join(f"{clean_single_line(rule, 40)} {count:,}" for rule, count in counts.items())


# -- what requests are made of -----------------------------------------------------------------------------------------


class RequestContents(Struct, frozen=True):
    """What a request was made of, and what became of the cache."""

    kinds: dict[str, int]
    """Estimated tokens by kind of content, scaled to the provider's count where there is one; kinds are those of
    ``context_parts``."""
    cache_miss: CacheMiss | None = None
    """Why the provider read less from its cache than it could have; None if it did not, or reports nothing."""


def read_request_contents(
    store: SessionStore,
    info: SessionInfo,
    requests: Sequence[TimelineRequest],
    catalog: Catalog,
    previous: TimelineRequest | None = None,
) -> dict[str, RequestContents]:
    """Return the contents of each of ``requests``, neighbors on one branch, by the request's id.

    ``previous`` is the request before them, with whose cache the first one is compared. A request whose messages cannot
    be read any more is left out.
    """
    if not requests:
        return {}
    contents: dict[str, RequestContents] = {}
    counter = RequestKindCounter()
    judge = _MissJudge(catalog)
    wanted = {request.request: request for request in requests}
    first = previous or requests[0]
    for entry, state in iterate_request_states(store, info.key, first.request, requests[-1].request):
        if previous is not None and entry.id == previous.request:
            judge.judge_request(previous, state)
        request = wanted.get(entry.id)
        if request is not None:
            miss = judge.judge_request(request, state)
            contents[entry.id] = RequestContents(counter.count(state, request.usage.input), miss)
    return contents


class _MissJudge:
    """Judges the requests of one branch in order, as ``cache_misses`` does those of a whole session."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._history = CacheHistory()
        self._previous: AnsweredRequest | None = None

    def judge_request(self, request: TimelineRequest, state: ConversationState) -> CacheMiss | None:
        """Return why ``request``, at which the branch had ``state``, missed the cache; None if it did not."""
        if not request.usage.input:
            return None
        answered = AnsweredRequest(request.request, state, request.at, request.usage)
        rules = self._catalog.get_cache_rules(request.api, request.model)
        try:
            miss, self._history = judge_cache_use(self._history, answered, rules, self._previous)
        except LookupError:
            # The reason lies in messages that a compaction hid, which are not read here.
            miss = None
        self._previous = answered
        return None if miss is None or miss.cause == UNREPORTED else miss


def iterate_request_states(
    store: SessionStore, key: str, first: str, last: str
) -> Iterator[tuple[Entry, ConversationState]]:
    """Yield each request from entry ``first`` to entry ``last`` with the state at it.

    The state at the first is read like that of a request to be sent: a compaction before it spares what is older.
    """
    state = store.open_state(key, first)
    entry = store.get_entry(key, first)
    yield entry, state
    later: list[Entry] = []
    at: str | None = last
    while at is not None and at != first:
        entry = store.get_entry(key, at)
        later.append(entry)
        at = entry.parent
    for entry in reversed(later):
        state = apply_entry(state, entry)
        if isinstance(entry.body, RequestEntry):
            yield entry, state
