"""What ``holdfast watch`` shows of each session, kept up to date by reading only what is new in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.config import Configuration
from holdfast.errors import HoldfastError, StoreLocked
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning import budget as guard
from holdfast.planning.settings import Settings
from holdfast.reports.describe import get_client_name
from holdfast.reports.requests.cache_misses import BranchCacheJudge, find_request_place
from holdfast.reports.requests.request_size import TargetCache, format_tokens, measure_request
from holdfast.state.cache_misses import UNREPORTED, CacheMiss, describe_cache_miss
from holdfast.state.codec.packing import pack_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.costs import compute_known_cost, divide_or_zero, read_summary_cost_note
from holdfast.state.entries import (
    TRIGGER_AUTO,
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import CacheRules, Target
from holdfast.store.base import SessionInfo, SessionStore

DEFAULT_SESSION_COUNT = 20
"""Sessions that are followed, the most recently changed first. Chosen by judgement: more do not fit a screen, and each
one's log is read once when it appears."""
KEPT_STATES = 256
"""Entries of a session behind which a branch can begin without reading its path from the store. Chosen by judgement:
clients fork a few messages back (a title, a subagent, an edited prompt), and a state shares most of its memory with the
one before it."""


class WatchedSession(Struct, frozen=True):
    """A session as ``holdfast watch`` shows it. Texts are clean and on one line; unknown numbers are None."""

    session: str
    """The session's id."""
    name: str
    """Its title, or its id if it has none."""
    client: str
    """The client, API or tool that it comes from; empty if the store does not say."""
    model: str = ""
    """The model of the newest request."""
    tokens: int = 0
    """Tokens of the next request, as the provider counted it or as we estimate it."""
    is_counted: bool = False
    """Whether the provider counted ``tokens``."""
    window: int = 0
    """The window of the model in tokens, as it is planned for; 0 if no request was made."""
    requests: int = 0
    dollars: float | None = None
    """Cost of all answers and summaries so far; None if no price is known."""
    unpriced_calls: int = 0
    """Calls that ``dollars`` leaves out, because their model has no known price."""
    cache_share: float | None = None
    """Share of all input that was read from the provider's cache; None if no answer reported its usage."""
    miss_cause: str = ""
    """The cause of the newest cache miss; empty if there was none."""
    missed_tokens: int = 0
    """The tokens that were processed again because of it."""
    miss: str = ""
    """The newest miss in a sentence."""
    compactions: int = 0
    decision: str = ""
    """The newest decision in words; empty if there was none."""
    last_request_at: int | None = None
    """When the newest request was sent, in ms since 1970."""
    problem: str = ""
    """Why the session cannot be read; empty if it can."""

    def to_record(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record


def describe_decision(body: EntryBody) -> str:
    """Describe a decision, compaction or undo in a few words; return an empty string for other entries."""
    if isinstance(body, CompactionEntry):
        words = "compacted"
        if body.trigger not in {"", TRIGGER_AUTO}:
            words += f" ({clean_single_line(body.trigger, 40)})"
        if body.tokens_before:
            words += f" {format_tokens(body.tokens_before)} → {format_tokens(body.tokens_after)}"
        return words
    if isinstance(body, RevokeEntry):
        verb = "restored" if body.is_restored else "undid"
        return f"{verb} {clean_single_line(body.revoked_id, 9)}"
    if isinstance(body, DecisionEntry):
        rules = Counter(edit.rule for edit in body.edits)
        counts = [f"{clean_single_line(rule, 40)} {count:,}" for rule, count in rules.items()]
        saved_tokens = sum(edit.saves for edit in body.edits)
        return f"{', '.join(counts)}: {format_tokens(saved_tokens)} less"
    return ""


class _BranchEnd(NamedTuple):
    """The state after an entry, and the judge that has seen the requests before it."""

    state: ConversationState
    judge: BranchCacheJudge


class _SessionFollower:
    """Follows one session: takes its new entries and keeps the figures of what is shown."""

    def __init__(self, info: SessionInfo, configuration: Configuration) -> None:
        self.info = info
        self.last_seq = 0
        """The newest entry that was taken."""
        self._catalog = configuration.catalog
        self._find_target = TargetCache(configuration)
        self._targets: dict[tuple[str, int, RequestSetup, str, int | None], tuple[Target, Settings]] = {}
        self._cache_rules: dict[tuple[str, str], CacheRules] = {}
        self._first_judge = BranchCacheJudge(self._get_cache_rules)
        self._ends: dict[str | None, _BranchEnd] = {}
        """The newest entries by id, in the order of the log: where new entries may continue."""
        self._newest_id: str | None = None
        self._compactions: set[bytes] = set()
        """Contents, because a fork copies the compactions of the branch that it leaves."""
        self._requests = 0
        self._dollars = 0.0
        self._priced_calls = self._unpriced_calls = 0
        self._input = self._cache_read = 0
        self._miss: CacheMiss | None = None
        self._decision = ""
        self._last_request_at: int | None = None
        self._is_request_timed = False

    def add_entries(self, store: SessionStore, entries: Sequence[Entry]) -> None:
        """Take ``entries``, the ones after ``last_seq``. ``store`` is read only where a branch begins far back."""
        for entry in entries:
            before = self._find_branch_end(store, entry.parent)
            state = apply_entry(before.state, entry)
            # A copy, because another branch may begin at the same entry.
            judge = copy(before.judge)
            miss = judge.add_entry(entry, state)
            if miss is not None and miss.cause != UNREPORTED:
                self._miss = miss
            self._add_figures(entry, state)
            self._ends[entry.id] = _BranchEnd(state, judge)
            if len(self._ends) > KEPT_STATES:
                del self._ends[next(iter(self._ends))]
            self._newest_id = entry.id
            self.last_seq = entry.seq

    def describe(self) -> WatchedSession:
        """Return what is shown of the session now."""
        info = self.info
        state = self._get_current_state()
        tokens, window, is_counted = 0, 0, False
        if self._newest_id is not None:
            target, settings = self._get_target(state)
            size = measure_request(state, target, settings)
            tokens, is_counted = size.tokens, size.is_counted
            window = guard.compute_effective_target(target, state, settings).limits.window
        dollars = self._dollars if self._priced_calls else None
        return WatchedSession(
            session=info.key,
            name=clean_single_line(info.title) or clean_single_line(info.key),
            client=find_session_client(info),
            model=clean_single_line(state.last_request.model or info.model),
            tokens=tokens,
            is_counted=is_counted,
            window=window,
            requests=self._requests,
            dollars=dollars,
            unpriced_calls=self._unpriced_calls,
            cache_share=divide_or_zero(self._cache_read, self._input) if self._input else None,
            miss_cause=self._miss.cause if self._miss else "",
            missed_tokens=self._miss.missed_tokens if self._miss else 0,
            miss=clean_single_line(describe_cache_miss(self._miss)) if self._miss else "",
            compactions=len(self._compactions),
            decision=self._decision,
            last_request_at=self._last_request_at,
        )

    def _find_branch_end(self, store: SessionStore, parent: str | None) -> _BranchEnd:
        """Return the branch that an entry with ``parent`` continues."""
        if parent is None:
            return _BranchEnd(ConversationState(), self._first_judge)
        if parent in self._ends:
            return self._ends[parent]
        state = ConversationState.from_entries(store.read_path(self.info.key, parent))
        return _BranchEnd(state, self._first_judge)

    def _get_current_state(self) -> ConversationState:
        """Return the state at the session's leaf, or at its newest entry if the leaf lies far back."""
        for entry_id in (self.info.leaf_id, self._newest_id):
            if entry_id is not None and entry_id in self._ends:
                return self._ends[entry_id].state
        return ConversationState()

    def _add_figures(self, entry: Entry, state: ConversationState) -> None:
        body = entry.body
        self._decision = describe_decision(body) or self._decision
        if isinstance(body, RequestEntry):
            self._requests += 1
            self._is_request_timed = entry.time_ms is not None
            self._last_request_at = entry.time_ms or self._last_request_at
        elif isinstance(body, CompactionEntry):
            self._compactions.add(pack_value(body))
        elif isinstance(body, AnswerEntry):
            # Recordings of other tools have only the time of the answer.
            if not self._is_request_timed:
                self._last_request_at = entry.time_ms or self._last_request_at
            self._input += body.usage.input
            self._cache_read += body.usage.cache_read
            if body.usage.input:
                self._add_cost(body.usage, *find_request_place(state, self._catalog, self.info.model))
        elif (call := read_summary_cost_note(body)) is not None:
            self._add_cost(call.usage, call.api, call.model)
            self._input += call.usage.input
            self._cache_read += call.usage.cache_read

    def _add_cost(self, usage: Usage, api: str, model: str) -> None:
        dollars = compute_known_cost(usage, self._catalog.get_prices(api, model))
        if dollars is None:
            self._unpriced_calls += 1
            return
        self._priced_calls += 1
        self._dollars += dollars

    def _get_target(self, state: ConversationState) -> tuple[Target, Settings]:
        """Return the target of the next request. Finding one costs a pass over the messages, hence the cache."""
        key = (
            state.last_request.model,
            state.last_request.configured_window,
            state.setup,
            state.policy_name,
            self.info.recorded_window,
        )
        if key not in self._targets:
            self._targets[key] = self._find_target(self.info, state)
        return self._targets[key]

    def _get_cache_rules(self, state: ConversationState) -> CacheRules:
        place = find_request_place(state, self._catalog, self.info.model)
        if place not in self._cache_rules:
            self._cache_rules[place] = self._catalog.get_cache_rules(*place)
        return self._cache_rules[place]


def find_session_client(info: SessionInfo) -> str:
    """Return the tool that a session was recorded from, else the client in the id of a proxy session, else nothing."""
    return clean_single_line(info.format) or get_client_name(info.key)


class StoreFollower:
    """Follows the sessions of a store: each call of ``read_changes`` reads only entries that came since the last."""

    def __init__(self, configuration: Configuration, session_count: int = DEFAULT_SESSION_COUNT) -> None:
        self._configuration = configuration
        self._session_count = session_count
        self._followers: dict[str, _SessionFollower] = {}
        self._shown: dict[str, WatchedSession] = {}

    @property
    def sessions(self) -> tuple[WatchedSession, ...]:
        """The sessions as of the last ``read_changes``, the one with the newest request first."""
        newest_first = sorted(self._shown.values(), key=lambda shown: (-(shown.last_request_at or 0), shown.session))
        return tuple(newest_first)

    def read_changes(self, store: SessionStore) -> tuple[WatchedSession, ...]:
        """Read what is new in ``store``; return the sessions that changed, in the order of ``sessions``.

        A session that cannot be read stays, with its ``problem``. Raises the store's error if there is no list.
        """
        infos = store.list_sessions()[: self._session_count]
        current_keys = {info.key for info in infos}
        for key in [key for key in self._shown if key not in current_keys]:
            del self._shown[key]
            self._followers.pop(key, None)
        shown_before = dict(self._shown)
        for info in infos:
            self._follow_session(store, info)
        return tuple(shown for shown in self.sessions if shown_before.get(shown.session) != shown)

    def _follow_session(self, store: SessionStore, info: SessionInfo) -> None:
        follower = self._followers.get(info.key)
        if follower is not None and follower.info == info:
            return
        # A session that was removed and made again begins anew.
        is_other_session = follower is not None and (
            follower.info.created_at != info.created_at or follower.info.entry_count > info.entry_count
        )
        if follower is None or is_other_session:
            follower = _SessionFollower(info, self._configuration)
        try:
            follower.add_entries(store, store.read_entries(info.key, after=follower.last_seq))
        except StoreLocked:
            # Another process holds the file; the next refresh tries again.
            return
        except HoldfastError as error:
            # Read again only when the session changes.
            follower.info = info
            self._followers[info.key] = follower
            self._shown[info.key] = WatchedSession(
                session=info.key,
                name=clean_single_line(info.title) or clean_single_line(info.key),
                client=find_session_client(info),
                problem=clean_single_line(str(error), 200),
            )
            return
        follower.info = info
        self._followers[info.key] = follower
        self._shown[info.key] = follower.describe()
