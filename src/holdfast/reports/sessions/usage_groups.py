"""Usage, cost and savings of all sessions by day, week, month, project, model, tool or session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import Literal, TypeAlias, get_args

from msgspec import Struct, field

from holdfast.config import Catalog
from holdfast.errors import HoldfastError, StoreLocked
from holdfast.planning.settings import Settings
from holdfast.reports.requests.request_size import TargetCache, measure_request, remove_all_decisions
from holdfast.reports.sessions.recorded_calls import RecordedCall, read_recorded_calls
from holdfast.reports.sessions.session_filter import SessionFilter
from holdfast.reports.sessions.watched_sessions import find_session_client
from holdfast.state.costs import TOKENS_PER_PRICE, split_cost
from holdfast.state.target import Prices, Target
from holdfast.store.base import SessionInfo, SessionStore

GroupKind: TypeAlias = Literal["day", "week", "month", "project", "model", "tool", "session"]
GROUP_KINDS: tuple[GroupKind, ...] = get_args(GroupKind)
TIME_GROUP_KINDS: frozenset[GroupKind] = frozenset({"day", "week", "month"})


class UsageTotal(Struct):
    """Usage, cost and savings of some calls. It is added to in place: a store may have millions of calls."""

    sessions: int = 0
    requests: int = 0
    answers: int = 0
    """Answers with usage."""
    answers_without_usage: int = 0
    input: int = 0
    """All input tokens, cached or not."""
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    fresh_input_dollars: float = 0.0
    """Cost of the input that was neither read from the cache nor written to it."""
    cache_read_dollars: float = 0.0
    cache_write_dollars: float = 0.0
    output_dollars: float = 0.0
    unpriced_calls: int = 0
    """Calls of models without known prices; no dollars include them."""
    saved_tokens: float = 0.0
    """Tokens that requests left out: an estimate, in the model's tokens."""
    saved_dollars: float = 0.0
    """What they would have cost at the price of cached input."""

    @property
    def dollars(self) -> float:
        """The cost of all calls with known prices."""
        return self.fresh_input_dollars + self.cache_read_dollars + self.cache_write_dollars + self.output_dollars

    def add_total(self, other: UsageTotal) -> None:
        """Add the figures of ``other``; whoever adds counts the sessions."""
        for name in _SUMMED_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_call(self, call: RecordedCall, prices: Prices) -> None:
        """Add a call; its savings are still in the estimator's tokens."""
        if call.is_request:
            self.requests += 1
            self.saved_tokens += call.saved_tokens
        if call.is_request or call.is_summary:
            # An answer is the end of a call that its request began.
            self.unpriced_calls += prices.is_assumed
        if call.is_request and not prices.is_assumed:
            self.saved_dollars += call.saved_tokens * prices.cache_read / TOKENS_PER_PRICE
        if not call.is_request and not call.is_summary:
            self.answers += call.usage is not None
            self.answers_without_usage += call.usage is None
        if call.usage is None:
            return
        self.input += call.usage.input
        self.output += call.usage.output
        self.cache_read += call.usage.cache_read
        self.cache_write += call.usage.cache_write
        if not prices.is_assumed:
            cost = split_cost(call.usage, prices)
            self.fresh_input_dollars += cost.fresh_input
            self.cache_read_dollars += cost.cache_read
            self.cache_write_dollars += cost.cache_write
            self.output_dollars += cost.output

    def scale_savings(self, gain: float) -> None:
        """Convert the savings to the model's tokens: ``gain`` for one of the estimator's."""
        self.saved_tokens *= gain
        self.saved_dollars *= gain


_SUMMED_FIELDS = tuple([name for name in UsageTotal.__struct_fields__ if name != "sessions"])


class CallFilter(Struct, frozen=True):
    """Which calls are counted, and to which group each belongs."""

    by: GroupKind = "day"
    since: date | None = None
    """The first day that counts; None for all."""
    until: date | None = None
    """The last day that counts; None for all."""
    time_zone: tzinfo | None = None
    """Where days begin and end; None is the time zone of this machine."""
    sessions: SessionFilter = SessionFilter()

    def find_group(self, info: SessionInfo, call: RecordedCall) -> str | None:
        """Return the name of the call's group, empty if the log does not say; None if the call does not count."""
        if not self.sessions.matches_model(call.model):
            return None
        day = None
        if self.by in TIME_GROUP_KINDS or self.since is not None or self.until is not None:
            day = find_day(call.time_ms, self.time_zone)
            if not is_day_within(day, self.since, self.until):
                return None
        match self.by:
            case "day" | "week" | "month":
                return name_time_group(self.by, day)
            case "project":
                return info.cwd
            case "model":
                return call.model
            case "tool":
                return find_session_client(info)
            case "session":
                return info.key

    def can_have_calls(self, info: SessionInfo) -> bool:
        """Return whether calls of the session may count, by its list entry alone."""
        if not self.sessions.matches_session(info):
            return False
        changed = find_day(info.updated_at, self.time_zone)
        if self.since is None or changed is None:
            return True
        # A session's last change is never before its last call; one day more for clocks that differ. As a difference,
        # since the calendar has no day before its first.
        return (self.since - changed).days <= 1


def find_day(time_ms: int | None, time_zone: tzinfo | None) -> date | None:
    """Return the day of a time in ms since 1970, in this machine's zone without another; None if it is unknown."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1_000, time_zone).date()
    except (ValueError, OverflowError, OSError):
        return None


def is_day_within(day: date | None, since: date | None, until: date | None) -> bool:
    """Return whether ``day`` is not before ``since`` nor after ``until``; an unknown day is only within no bounds."""
    if day is None:
        return since is None and until is None
    return (since is None or since <= day) and (until is None or day <= until)


def name_time_group(by: GroupKind, day: date | None) -> str:
    """Return the day, the Monday of its week, or its month; an empty string if it is unknown."""
    if day is None:
        return ""
    if by == "week":
        # Not strftime's week number: it needs a year of its own, and nobody knows the date of week 48.
        return (day - timedelta(days=day.weekday())).isoformat()
    return day.isoformat()[:7] if by == "month" else day.isoformat()


class LeftOutSession(Struct, frozen=True):
    """A session that could not be read, and why."""

    session: str
    reason: str


class UsageReport(Struct, frozen=True):
    """The groups with their totals, and the total of all."""

    by: GroupKind
    groups: dict[str, UsageTotal]
    """By name: a day, the Monday of a week, a month, a folder, a model, a tool, a session. Newest or dearest first;
    an empty name is that of calls of which the log does not say it."""
    total: UsageTotal
    left_out: tuple[LeftOutSession, ...] = ()


class _SessionUsage(Struct, frozen=True):
    info: SessionInfo
    groups: dict[str, UsageTotal] = field(default_factory=dict)
    problem: str = ""


class UsageReader:
    """Reads the usage of a store by group; a second reading reads only the sessions that changed since."""

    def __init__(self, catalog: Catalog, find_target: TargetCache) -> None:
        self._catalog = catalog
        self._find_target = find_target
        self._prices: dict[tuple[str, str], Prices] = {}
        self._filter = CallFilter()
        self._sessions: dict[str, _SessionUsage] = {}

    def read_session(self, store: SessionStore, info: SessionInfo, call_filter: CallFilter) -> None:
        """Read a session unless it was read like this before. One that cannot be read is remembered as left out."""
        if call_filter != self._filter:
            self._filter = call_filter
            self._sessions.clear()
        known = self._sessions.get(info.key)
        if known is not None and known.info == info:
            return
        try:
            groups = self._sum_session(store, info)
        except StoreLocked:
            # Another process writes; what is known stays, and the next reading tries again.
            if known is None:
                raise
        except HoldfastError as error:
            self._sessions[info.key] = _SessionUsage(info, problem=str(error))
        else:
            self._sessions[info.key] = _SessionUsage(info, groups)

    def build_report(self, infos: Sequence[SessionInfo]) -> UsageReport:
        """Return the groups of the sessions ``infos``, as far as they were read."""
        groups: dict[str, UsageTotal] = {}
        total = UsageTotal()
        left_out = []
        for info in infos:
            usage = self._sessions.get(info.key)
            if usage is None:
                continue
            if usage.problem:
                left_out.append(LeftOutSession(info.key, usage.problem))
            for name, session_total in usage.groups.items():
                group = groups.setdefault(name, UsageTotal())
                group.add_total(session_total)
                group.sessions += 1
                total.add_total(session_total)
            total.sessions += bool(usage.groups)
        by = self._filter.by
        return UsageReport(by, _sort_groups(groups, by), total, tuple(left_out))

    def _sum_session(self, store: SessionStore, info: SessionInfo) -> dict[str, UsageTotal]:
        recorded = read_recorded_calls(store, info, self._catalog)
        groups: dict[str, UsageTotal] = {}
        for call in recorded.calls:
            name = self._filter.find_group(info, call)
            if name is not None:
                groups.setdefault(name, UsageTotal()).add_call(call, self._get_prices(call))
        if any(group.saved_tokens for group in groups.values()):
            gain = self._compute_gain(store, info, recorded.saved_now)
            for group in groups.values():
                group.scale_savings(gain)
        return groups

    def _get_prices(self, call: RecordedCall) -> Prices:
        place = (call.api, call.model)
        if place not in self._prices:
            self._prices[place] = self._catalog.get_prices(*place)
        return self._prices[place]

    def _compute_gain(self, store: SessionStore, info: SessionInfo, saved_now: int) -> float:
        """Return the model's tokens for a saved one of the estimator's, as ``holdfast stats`` scales them."""
        state = store.open_state(info.key)
        place: tuple[Target, Settings] = self._find_target(info, state)
        size = measure_request(state, *place)
        if saved_now <= 0:
            return size.scale
        tokens_without_decisions = measure_request(remove_all_decisions(state), *place).tokens
        return max(0, tokens_without_decisions - size.tokens) / saved_now


def read_usage(store: SessionStore, catalog: Catalog, find_target: TargetCache, call_filter: CallFilter) -> UsageReport:
    """Read the usage of all sessions of ``store`` by group."""
    reader = UsageReader(catalog, find_target)
    infos = [info for info in store.list_sessions() if call_filter.can_have_calls(info)]
    for info in infos:
        reader.read_session(store, info, call_filter)
    return reader.build_report(infos)


def _sort_groups(groups: dict[str, UsageTotal], by: GroupKind) -> dict[str, UsageTotal]:
    """Return times with the newest first, and other groups with the dearest first; the unknown one is the last."""
    if by in TIME_GROUP_KINDS:
        names = sorted(groups, reverse=True)
    else:
        names = sorted(groups, key=lambda name: (not name, -groups[name].dollars, -groups[name].input, name))
    return {name: groups[name] for name in names}
