"""Find the requests of a session that missed the provider's prompt cache, from its log alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from msgspec import Struct

from holdfast.config import Catalog
from holdfast.formats.base import STALE_USAGE_BASIS
from holdfast.providers.registry import API_NAMES
from holdfast.reports.sessions.branches import fold_branches
from holdfast.state.cache_misses import AnsweredRequest, CacheHistory, CacheMiss, judge_cache_use
from holdfast.state.conversation_state import ConversationState
from holdfast.state.costs import TOKENS_PER_PRICE, compute_cache_break_cost
from holdfast.state.entries import AnswerEntry, Entry, RequestEntry, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import CacheRules, Prices


class CacheMissTotal(Struct, frozen=True):
    """The requests that missed the cache for one cause."""

    count: int = 0
    tokens: int = 0
    """Tokens that were processed again; estimates for misses after a change of the prefix."""
    dollars: float | None = None
    """What that cost more than reading them from the cache; None if no price is known."""

    def add(self, other: CacheMissTotal) -> CacheMissTotal:
        """Return the sum of both; requests without a known price add no dollars."""
        known_dollars = [total.dollars for total in (self, other) if total.dollars is not None]
        return CacheMissTotal(
            self.count + other.count,
            self.tokens + other.tokens,
            sum(known_dollars) if known_dollars else None,
        )


def compute_miss_total(miss: CacheMiss, usage: Usage, prices: Prices) -> CacheMissTotal:
    """Return ``miss`` as a total of one request with ``usage``.

    The tokens cost the price of a cache write if the request wrote to the cache, else that of fresh input.
    """
    if prices.is_assumed:
        return CacheMissTotal(1, miss.missed_tokens)
    extra_price = prices.input - prices.cache_read
    if usage.cache_write:
        extra_price = compute_cache_break_cost(prices, is_hour=usage.cache_write_1h > 0)
    return CacheMissTotal(1, miss.missed_tokens, miss.missed_tokens * extra_price / TOKENS_PER_PRICE)


def merge_miss_totals(
    totals: dict[str, CacheMissTotal], other_totals: dict[str, CacheMissTotal]
) -> dict[str, CacheMissTotal]:
    """Return the sums by cause."""
    merged = dict(totals)
    for cause, total in other_totals.items():
        merged[cause] = merged.get(cause, CacheMissTotal()).add(total)
    return merged


def find_request_place(state: ConversationState, catalog: Catalog, model: str = "") -> tuple[str, str]:
    """Return the API and the model of the last request of ``state``; ``model`` is the session's, if it names none."""
    model = state.last_request.model or model
    api = ""
    for sized_message in state.history.sized_messages.slice(0, 1):
        if sized_message.api in API_NAMES:
            api = sized_message.api
    return api or catalog.find_api(model) or API_NAMES[0], model


class BranchCacheJudge:
    """Judges the requests along one branch of a log. Copies for other branches share what is known of all requests.

    The entries of all branches must come in the order of the log.
    """

    def __init__(self, find_rules: Callable[[ConversationState], CacheRules]) -> None:
        self._find_rules = find_rules
        self._session = _SessionCacheHistory()
        self._previous: AnsweredRequest | None = None
        """The newest judged request of this branch."""
        self._open_request: tuple[Entry, ConversationState] | None = None
        """The newest request and the state at it, until its answer follows."""

    def add_entry(self, entry: Entry, state: ConversationState) -> CacheMiss | None:
        """Add ``entry``, after which the branch has ``state``; return the miss if it answers a request that missed."""
        body = entry.body
        if isinstance(body, RequestEntry):
            self._open_request = entry, state
        if not isinstance(body, AnswerEntry) or self._open_request is None:
            return None
        request_entry, request_state = self._open_request
        self._open_request = None
        # Such a usage belongs to another request of the recording.
        if body.prefix_digest == STALE_USAGE_BASIS:
            return None
        # Recordings of other tools have only the time of the answer, which is as good for the time between two.
        sent_at = request_entry.time_ms or entry.time_ms
        request = AnsweredRequest(request_entry.id, request_state, sent_at, body.usage)
        rules = self._find_rules(request_state)
        miss, self._session.history = judge_cache_use(self._session.history, request, rules, self._previous)
        self._previous = request
        return miss


class _SessionCacheHistory:
    """The one thing that the judges of all branches share."""

    def __init__(self) -> None:
        self.history = CacheHistory()


class _MissFold:
    """A ``BranchFold`` that collects the misses of all branches, by the id of the request."""

    def __init__(self, judge: BranchCacheJudge) -> None:
        self.misses: dict[str, CacheMiss] = {}
        self._state = ConversationState()
        self._judge = judge
        self._request_id = ""

    def start_branch(self) -> None:
        self._judge = copy(self._judge)

    def add_entry(self, entry: Entry) -> None:
        self._state = apply_entry(self._state, entry)
        if isinstance(entry.body, RequestEntry):
            self._request_id = entry.id
        miss = self._judge.add_entry(entry, self._state)
        if miss is not None:
            self.misses[self._request_id] = miss


def find_session_misses(entries: Sequence[Entry], catalog: Catalog, model: str = "") -> dict[str, CacheMiss]:
    """Return the misses of a session by the id of their request; ``entries`` are those of all branches.

    ``model`` is the session's own, for requests that name none.
    """
    found_rules: dict[tuple[str, str], CacheRules] = {}

    def find_rules(state: ConversationState) -> CacheRules:
        place = find_request_place(state, catalog, model)
        if place not in found_rules:
            found_rules[place] = catalog.get_cache_rules(*place)
        return found_rules[place]

    fold = _MissFold(BranchCacheJudge(find_rules))
    fold_branches(entries, fold, None)
    return fold.misses
