"""The account of a session: tokens saved by rule, the cost of answers, and cache writes after breaks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.reports.branches import find_overflow_refusals, find_repeated_entries, fold_branches
from holdfast.cli.reports.history import count_compacted_tokens, list_active_decisions, list_shown_edits
from holdfast.cli.reports.request_size import (
    ESTIMATOR_SIZE,
    RequestSize,
    count_omitted_tokens,
    get_counted_tokens,
    remove_all_decisions,
)
from holdfast.config import Catalog
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.registry import API_NAMES
from holdfast.state.calibration.calibration import min_known_size
from holdfast.state.conversation_state import ConversationState
from holdfast.state.costs import (
    TOKENS_PER_PRICE,
    compute_cache_break_cost,
    compute_known_cost,
    divide_or_zero,
    read_summary_cost_note,
)
from holdfast.state.entries import (
    TRIGGER_AUTO,
    TRIGGER_OVERFLOW,
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import Prices
from holdfast.state.view import compute_prefix_digest_at, list_shown_sized_messages_at, measure_summary

UNKNOWN_PRICES = Prices(0.0, 0.0, 0.0, 0.0, is_assumed=True)
"""Stands for prices that are not known."""


class RuleSavings(Struct, frozen=True):
    """The effect of one rule: its edits in force, its undone edits, and the tokens it saved."""

    rule: str
    in_force: int = 0
    revoked_edits: int = 0
    saved_tokens: int = 0
    """In the next request."""
    saved_in_total: int = 0
    """Over all requests so far."""


class LargestRequest(Struct, frozen=True):
    """The largest requests, in tokens as ``holdfast why`` shows them; 0 if there was none."""

    from_client: int = 0
    """The largest from the client: the request as sent plus an estimate of the omitted messages."""
    sent_upstream: int = 0
    """The largest that was sent and answered."""
    window: int = 0
    """The window of the request that filled most of it; smaller if a later overflow showed a smaller one."""
    is_counted: bool = False
    """Whether the provider counted ``from_client`` itself: nothing was omitted."""
    is_upstream_counted: bool = False
    """Whether the provider counted ``sent_upstream``; otherwise it is an estimate."""

    @property
    def share(self) -> float:
        """The share of the window that the largest sent request took."""
        return divide_or_zero(self.sent_upstream, self.window)

    def merge_larger(self, other: LargestRequest) -> LargestRequest:
        """Return the larger sizes of both, with the window of the one that filled more of it."""
        nearer, larger = (
            max(self, other, key=lambda size: size.share),
            max(self, other, key=lambda size: size.from_client),
        )
        largest_upstream = max(self, other, key=lambda size: size.sent_upstream)
        return LargestRequest(
            larger.from_client,
            largest_upstream.sent_upstream,
            nearer.window,
            larger.is_counted,
            largest_upstream.is_upstream_counted,
        )

    def apply_window_limit(self, limit: int) -> LargestRequest:
        """Return this with the window ``limit``, unless a counted request was larger than that."""
        is_larger = self.is_upstream_counted and self.sent_upstream > limit
        return self if is_larger else replace(self, window=min_known_size(self.window, limit))


class SessionSavings(Struct, frozen=True):
    """The tokens saved in a session, and its cost.

    Messages' tokens, saved and rewritten ones are estimates, others as reported; ``input`` is 0 if no usage was.
    """

    session: str
    requests: int = 0
    answers: int = 0
    """Answers with usage."""
    answers_without_usage: int = 0
    """Answers without usage."""
    unpriced_calls: int = 0
    """Calls of models without known prices; ``dollars`` do not include them."""
    said_tokens: int = 0
    saved_tokens: int = 0
    saved_in_total: int = 0
    saved_dollars: float = 0.0
    rules: tuple[RuleSavings, ...] = ()
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    dollars: float = 0.0
    breaks: dict[str, int] = {}
    """Requests that did not begin like the one before, by the change in between."""
    rewritten: int = 0
    """Tokens that had to be written to the cache again."""
    rewritten_dollars: float = 0.0
    """The extra cost compared with reading them."""
    spills: int = 0
    spill_bytes: int = 0
    largest: LargestRequest = LargestRequest()
    compactions: int = 0
    refusals: int = 0
    """Requests refused as too large."""
    avoided_overflows: int = 0
    """Answers to requests that fit only after a refusal or a compaction."""

    @property
    def cache_hit(self) -> float:
        """The share of the input that was read from the cache."""
        return divide_or_zero(self.cache_read, self.input)


def _measure_uncalibrated(state: ConversationState) -> RequestSize:
    """Measure a request in the estimator's tokens, unless the provider counted it."""
    counted_tokens = get_counted_tokens(state)
    return replace(
        ESTIMATOR_SIZE,
        tokens=counted_tokens or state.view.shown_tokens + state.setup.tokens,
        is_counted=counted_tokens > 0,
    )


def compute_savings_and_state(
    session: str,
    entries: Sequence[Entry],
    leaf: str | None,
    catalog: Catalog,
    model: str = "",
    measure_state: Callable[[ConversationState], RequestSize] = _measure_uncalibrated,
) -> tuple[SessionSavings, ConversationState]:
    """Compute the account over all branches of a session, and return it with the state at ``leaf``.

    Each entry counts once; the tokens saved now are those at ``leaf``. ``measure_state`` measures a branch's request.
    """
    # What an overflow or compaction repeats from another branch is known before the fold, so each counts once.
    last, other_tellings = fold_branches(
        entries,
        _AccountFold(
            session, catalog, model, measure_state, find_overflow_refusals(entries), find_repeated_entries(entries)
        ),
        leaf,
    )
    account = last.make_account()
    now = measure_state(last.branch)
    gain = now.scale
    if account.saved_tokens > 0:  # savings must add up to the growth of the next request if all were undone
        gain = max(0, measure_state(remove_all_decisions(last.branch)).tokens - now.tokens) / account.saved_tokens
    total = _scale_account(
        sum_savings((account, *(telling.make_abandoned_account() for telling in other_tellings))), now.scale, gain
    )
    if account.saved_tokens > 0:
        total = replace(total, said_tokens=now.tokens + total.saved_tokens)
    # A window learned on one branch holds for the model, so for the requests of all branches.
    limit = min((telling.limit for telling in (last, *other_tellings) if telling.limit), default=0)
    return replace(total, session=session, largest=total.largest.apply_window_limit(limit)), last.branch


def sum_savings(accounts: Iterable[SessionSavings]) -> SessionSavings:
    """Sum the accounts of several sessions."""
    total = SessionSavings("")
    for account in accounts:
        sums = {name: getattr(total, name) + getattr(account, name) for name in _SUMMED_FIELDS}
        rules, breaks = _add_rules(total.rules, account.rules), _add_counts(total.breaks, account.breaks)
        total = replace(total, **sums, rules=rules, breaks=breaks, largest=total.largest.merge_larger(account.largest))
    return total


def _scale_account(account: SessionSavings, scale: float, gain: float) -> SessionSavings:
    """Convert an account to the model's tokens: ``scale`` per estimated token, ``gain`` for saved ones."""
    rules = tuple(
        replace(rule, saved_tokens=round(gain * rule.saved_tokens), saved_in_total=round(gain * rule.saved_in_total))
        for rule in account.rules
    )
    tokens = {name: round(scale * getattr(account, name)) for name in ("said_tokens", "rewritten")}
    dollars = {"saved_dollars": gain * account.saved_dollars, "rewritten_dollars": scale * account.rewritten_dollars}
    saved_tokens, since = sum(rule.saved_tokens for rule in rules), sum(rule.saved_in_total for rule in rules)
    return replace(account, rules=rules, saved_tokens=saved_tokens, saved_in_total=since, **tokens, **dollars)


_SUMMED_FIELDS = tuple(
    name for name in SessionSavings.__struct_fields__ if isinstance(getattr(SessionSavings(""), name), int | float)
)


def _add_rules(rules: Iterable[RuleSavings], other_rules: Iterable[RuleSavings]) -> tuple[RuleSavings, ...]:
    """Add up savings by rule, in the order in which rules first appear."""
    rules_by_name = {rule.rule: rule for rule in rules}
    for rule in other_rules:
        total = rules_by_name.get(rule.rule, RuleSavings(rule.rule))
        rules_by_name[rule.rule] = RuleSavings(
            rule=rule.rule,
            in_force=total.in_force + rule.in_force,
            revoked_edits=total.revoked_edits + rule.revoked_edits,
            saved_tokens=total.saved_tokens + rule.saved_tokens,
            saved_in_total=total.saved_in_total + rule.saved_in_total,
        )
    return tuple(rules_by_name.values())


def _add_counts(counts: dict[str, int], other_counts: dict[str, int]) -> dict[str, int]:
    return dict(Counter(counts) + Counter(other_counts))


class _AccountFold:
    """The fold behind ``compute_savings_and_state``, for one branch."""

    def __init__(
        self,
        session: str,
        catalog: Catalog,
        model: str,
        measure_state: Callable[[ConversationState], RequestSize],
        refusals: frozenset[str],
        repeated_ids: frozenset[str],
    ) -> None:
        self._priced: dict[tuple[str, str], Prices] = {}
        """Prices that were looked up, by API and model."""
        self._branch, self._found = ConversationState(), SessionSavings(session)
        self._refusals, self._repeated = refusals, repeated_ids
        self._catalog, self._model, self._sized = catalog, model, measure_state
        self._last: tuple[ConversationState, int, str] | None = None
        """The branch at the last request, how many slots that covered, and the digest of those."""
        self._changes_since_request: list[str] = []
        """What was done since the last request."""
        self._saved_now: Counter[str] = Counter()
        self._saved_in_total: Counter[str] = Counter()
        self._revoked: Counter[str] = Counter()
        self._open_request_state: ConversationState | None = None
        """The branch of the newest request as long as nothing tells its end."""
        self._is_refused = False
        """Whether the newest words were refused as too large."""
        self._is_saved = False
        """Whether a compaction made it fit, or what was decided after it was refused."""
        self._is_cached = False
        """Whether the newest answer told of a cache."""

    def start_branch(self) -> None:
        """Continue as a new branch, with an empty account."""
        self._found, self._changes_since_request = SessionSavings(self._found.session), [*self._changes_since_request]
        self._saved_in_total, self._revoked = Counter(), Counter()

    @property
    def branch(self) -> ConversationState:
        """The state of the branch."""
        return self._branch

    @property
    def limit(self) -> int:
        """The window as an overflow reported it, or 0."""
        return self._branch.usage.learned_limits.window_limit

    def add_entry(self, entry: Entry) -> None:
        """Add one more entry to the account."""
        before, body = self._branch, entry.body
        self._branch = apply_entry(before, entry)
        if (
            isinstance(body, DecisionEntry | CompactionEntry | RevokeEntry | RequestSetup)
            and self._branch is not before
        ):
            self._changes_since_request += _name_changes(body)
            self._saved_now = _sum_saved_tokens(self._branch)
            if isinstance(body, RevokeEntry):
                self._revoked.update(
                    _count_rule_edits(
                        decision for id_, decision in before.view.active_decisions if id_ == body.revoked_id
                    )
                )
        if isinstance(body, AnswerEntry | FailureEntry | RequestEntry | DecisionEntry | CompactionEntry):
            self._found = replace(self._found, largest=self._measure_largest(entry))
            self._open_request_state = self._branch if isinstance(body, RequestEntry) else None
        if isinstance(body, RequestEntry):
            self._add_request(body)
        elif isinstance(body, MessageEntry) and body.sized_message.message.role != "assistant":
            self._is_saved, self._is_refused = self._is_saved and not self._is_refused, False
        elif isinstance(body, DecisionEntry | CompactionEntry) and entry.id not in self._repeated:
            self._add_decision(body)
        elif isinstance(body, FailureEntry) and entry.id in self._refusals:
            self._found = replace(self._found, refusals=self._found.refusals + 1)
            self._is_refused = True
        elif isinstance(body, AnswerEntry):
            self._add_answer(body.usage)
        elif (call := read_summary_cost_note(body)) is not None:
            prices = self._catalog.get_prices(call.api, call.model)
            self._found = replace(self._found, unpriced_calls=self._found.unpriced_calls + prices.is_assumed)
            self._add_usage(call.usage, prices)

    def make_account(self) -> SessionSavings:
        """Return the account of all entries so far."""
        state, in_force = self._branch, _count_active_edits(self._branch)
        names = dict.fromkeys((*in_force, *self._revoked, *self._saved_in_total))
        rules = tuple(
            RuleSavings(name, in_force[name], self._revoked[name], self._saved_now[name], self._saved_in_total[name])
            for name in names
        )
        said_tokens = state.history.cumulative_tokens[-1] if len(state.history.sized_messages) else 0
        saved_tokens, since = sum(self._saved_now.values()), sum(self._saved_in_total.values())
        return replace(
            self._found,
            said_tokens=said_tokens,
            saved_tokens=saved_tokens,
            saved_in_total=since,
            rules=rules,
            largest=self._measure_largest(),
        )

    def make_abandoned_account(self) -> SessionSavings:
        """Return the account without decisions in force, for a branch that the session left."""
        account = self.make_account()
        rules = tuple(replace(rule, in_force=0, saved_tokens=0) for rule in account.rules)
        return replace(
            account,
            said_tokens=0,
            saved_tokens=0,
            rules=tuple(rule for rule in rules if rule != RuleSavings(rule.rule)),
        )

    def _add_decision(self, body: DecisionEntry | CompactionEntry) -> None:
        # A decision right after a refusal is what makes the next try fit.
        self._is_saved = self._is_saved or self._is_refused
        if isinstance(body, CompactionEntry):
            self._found = replace(self._found, compactions=self._found.compactions + 1)
            # A manual compaction may have had any reason, so it does not count as an avoided overflow.
            self._is_saved = self._is_saved or body.trigger != "manual"

    def _get_prices(self) -> Prices:
        """Return the prices of the model in use, or ``UNKNOWN_PRICES``."""
        model = self._branch.last_request.model or self._model
        apis = [
            sized_message.api
            for sized_message in self._branch.history.sized_messages.slice(0, 1)
            if sized_message.api in API_NAMES
        ]
        api = apis[0] if apis else ""
        if (api, model) not in self._priced:
            prices = self._catalog.get_prices(api or self._catalog.find_api(model) or API_NAMES[0], model)
            self._priced[api, model] = UNKNOWN_PRICES if prices.is_assumed else prices
        return self._priced[api, model]

    def _add_request(self, body: RequestEntry) -> None:
        account, prices = self._found, self._get_prices()
        self._saved_in_total.update(self._saved_now)
        money = sum(self._saved_now.values()) * prices.cache_read / TOKENS_PER_PRICE
        unpriced_calls = account.unpriced_calls + prices.is_assumed
        account = replace(
            account,
            requests=account.requests + 1,
            unpriced_calls=unpriced_calls,
            saved_dollars=account.saved_dollars + money,
        )
        if self._last is not None and (again := _count_rewritten_tokens(self._last, self._branch)):
            # A client can rewrite its own history without any decision of ours; such a break is listed as "else".
            why = " + ".join(dict.fromkeys(self._changes_since_request)) or "else"
            account = replace(
                account,
                breaks=account.breaks | {why: account.breaks.get(why, 0) + 1},
                rewritten=account.rewritten + again,
                rewritten_dollars=account.rewritten_dollars + self._price_rewrite(again, prices),
            )
        self._found, self._changes_since_request = account, []
        self._last = (
            self._branch,
            body.message_count,
            compute_prefix_digest_at(self._branch, min(body.message_count, len(self._branch.history.sized_messages))),
        )

    def _price_rewrite(self, tokens: int, prices: Prices) -> float:
        """Return the extra cost of writing ``tokens`` again instead of reading them; 0 if they were never cached."""
        is_hour = self._branch.usage.learned_limits.uses_hour_cache
        return tokens * compute_cache_break_cost(prices, is_hour=is_hour) / TOKENS_PER_PRICE if self._is_cached else 0.0

    def _add_answer(self, usage: Usage) -> None:
        self._found = replace(self._found, avoided_overflows=self._found.avoided_overflows + self._is_saved)
        self._is_saved = self._is_refused = False
        # Without usage nothing is known about the cache either, so the last known state of it stays.
        if usage.input:
            self._is_cached = usage.cache_read + usage.cache_write > 0
            self._found = replace(self._found, answers=self._found.answers + 1)
            self._add_usage(usage, self._get_prices())
        else:
            self._found = replace(self._found, answers_without_usage=self._found.answers_without_usage + 1)

    def _measure_largest(self, end: Entry | None = None) -> LargestRequest:
        """Return the largest requests, including the newest one, as ``end`` (its answer or failure) reports it."""
        if self._open_request_state is None:
            return self._found.largest
        state, is_answered = self._open_request_state, end is not None and isinstance(end.body, AnswerEntry)
        if end is not None and isinstance(end.body, AnswerEntry | FailureEntry):
            state = apply_entry(state, end)
        size, omitted_tokens = self._sized(state), count_omitted_tokens(state)
        now = LargestRequest(
            size.tokens + size.scale_tokens(omitted_tokens),
            size.tokens if is_answered else 0,
            min_known_size(state.last_request.configured_window, state.usage.learned_limits.window_limit),
            size.is_counted and not omitted_tokens,
            size.is_counted and is_answered,
        )
        return self._found.largest.merge_larger(now)

    def _add_usage(self, usage: Usage, prices: Prices) -> None:
        account = self._found
        self._found = replace(
            account,
            input=account.input + usage.input,
            output=account.output + usage.output,
            cache_read=account.cache_read + usage.cache_read,
            cache_write=account.cache_write + usage.cache_write,
            dollars=account.dollars + (compute_known_cost(usage, prices) or 0.0),
        )


def _name_changes(body: DecisionEntry | CompactionEntry | RevokeEntry | RequestSetup) -> list[str]:
    """Return the names of an entry's changes to the prefix."""
    if isinstance(body, DecisionEntry):
        return [edit.rule for edit in body.edits]
    if isinstance(body, CompactionEntry):
        return [_name_compaction(body)]
    return ["undo" if isinstance(body, RevokeEntry) else "system prompt or tools"]


def _name_compaction(body: CompactionEntry) -> str:
    return "compaction" if body.trigger in {"", TRIGGER_AUTO, TRIGGER_OVERFLOW} else body.trigger


def _count_rule_edits(bodies: Iterable[DecisionEntry | CompactionEntry]) -> Counter[str]:
    """Count the edits in ``bodies`` by rule; a compaction counts as one more."""
    counts: Counter[str] = Counter()
    for body in bodies:
        counts.update([_name_compaction(body)] if isinstance(body, CompactionEntry) else [])
        counts.update(edit.rule for edit in body.edits)
    return counts


def _count_active_edits(state: ConversationState) -> Counter[str]:
    """Count the edits that the next request repeats by rule; the compaction in force counts as one more."""
    counts: Counter[str] = Counter()
    for _, body in list_active_decisions(state):
        counts.update(
            [_name_compaction(body)] if isinstance(body, CompactionEntry) and body == state.view.compaction else []
        )
        counts.update(edit.rule for edit in list_shown_edits(state, body))
    return counts


def _sum_saved_tokens(state: ConversationState) -> Counter[str]:
    """Sum the tokens that a request lacks, by rule; the total is exactly the tokens not shown."""
    tokens_by_rule: Counter[str] = Counter()
    for _, edits in state.view.edits.iter_from(state.view.first_kept):
        tokens_by_rule.update({edit.rule: 0 for edit in edits})
        for edit in edits:
            tokens_by_rule[edit.rule] += edit.saves
    if state.view.compaction is not None:
        tokens_by_rule[_name_compaction(state.view.compaction)] += count_compacted_tokens(state)
    return tokens_by_rule


def _count_rewritten_tokens(last: tuple[ConversationState, int, str], state: ConversationState) -> int:
    """Count the shown tokens that the next request repeats after a break of the prefix; 0 without a break."""
    before, count, basis = last
    if compute_prefix_digest_at(state, min(count, len(state.history.sized_messages))) == basis:
        return 0
    unchanged_count = (
        _find_first_changed_message_index(before, state, count)
        if state.view.compaction == before.view.compaction
        else state.view.first_kept
    )
    anew = sum(_iterate_shown_sizes(state, unchanged_count, count))
    has_new_setup = state.setup != before.setup
    if state.view.compaction is not None and (has_new_setup or state.view.compaction != before.view.compaction):
        anew += measure_summary(state.view.compaction, state.last_request.model, state.last_request.api)
    if has_new_setup:
        anew += state.setup.tokens + sum(
            sized_message.tokens for sized_message in state.history.sized_messages.slice(0, state.view.pinned_count)
        )
    # 0 means no break, so a break returns at least one token.
    return max(1, anew)


def _find_first_changed_message_index(before_state: ConversationState, state: ConversationState, count: int) -> int:
    """Find the first message that two branches show differently, by binary search: digests are chained."""
    if before_state.setup != state.setup:
        return state.view.first_kept
    every = range(state.view.first_kept, min(count, len(state.history.sized_messages)))
    return state.view.first_kept + bisect_left(
        every, 1, key=lambda at: before_state.history.projection_digests[at] != state.history.projection_digests[at]
    )


def _iterate_shown_sizes(state: ConversationState, start: int, stop: int) -> Iterator[int]:
    """Yield the sizes of the messages shown for numbers ``start`` to ``stop``."""
    index = start
    while index < stop:
        edits = [edit for edit in state.view.edits.get(index, ()) if edit.span.part is None]
        yield from (
            sized_message.tokens or build_sized_message(sized_message.message).tokens
            for sized_message in list_shown_sized_messages_at(state, index)
        )
        index = max([edit.span.stop for edit in edits], default=index + 1)
