"""The account of a session: tokens saved by rule, the cost of answers, and cache writes after breaks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config import Catalog
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.requests.cache_misses import (
    BranchCacheJudge,
    CacheMissTotal,
    compute_miss_total,
    find_request_place,
    merge_miss_totals,
)
from holdfast.reports.requests.changed_fields import FieldChange, list_changed_fields, sum_field_changes
from holdfast.reports.requests.request_size import (
    ESTIMATOR_SIZE,
    RequestSize,
    count_omitted_tokens,
    get_counted_tokens,
    remove_all_decisions,
)
from holdfast.reports.sessions.branches import find_overflow_refusals, find_repeated_entries, fold_branches
from holdfast.reports.sessions.history import count_compacted_tokens, list_active_decisions, list_shown_edits
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
from holdfast.state.target import CacheRules, Prices
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
        nearer = max(self, other, key=lambda size: size.share)
        larger = max(self, other, key=lambda size: size.from_client)
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
    cache_misses: dict[str, CacheMissTotal] = {}
    """Requests that read less from the provider's cache than they could have, by cause."""
    spills: int = 0
    spill_bytes: int = 0
    largest: LargestRequest = LargestRequest()
    compactions: int = 0
    refusals: int = 0
    """Requests refused as too large."""
    avoided_overflows: int = 0
    """Answers to requests that fit only after a refusal or a compaction."""
    changed_fields: tuple[FieldChange, ...] = ()
    """Fields that requests of the current branch are sent with changed, because the provider refuses them."""

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
    # Repeats of entries from another branch are found before the fold, so that each overflow and compaction counts
    # once.
    refusals = find_overflow_refusals(entries)
    repeated_ids = find_repeated_entries(entries)
    start = _AccountFold(session, catalog, model, measure_state, refusals, repeated_ids)
    current_branch, abandoned_branches = fold_branches(entries, start, leaf)
    account = current_branch.make_account()
    now = measure_state(current_branch.branch)
    gain = now.scale
    if account.saved_tokens > 0:
        # The savings must add up to the growth of the next request if all decisions were undone.
        size_without_decisions = measure_state(remove_all_decisions(current_branch.branch)).tokens
        gain = max(0, size_without_decisions - now.tokens) / account.saved_tokens
    abandoned_accounts = [branch.make_abandoned_account() for branch in abandoned_branches]
    total = _scale_account(sum_savings((account, *abandoned_accounts)), now.scale, gain)
    if account.saved_tokens > 0:
        total = replace(total, said_tokens=now.tokens + total.saved_tokens)
    # A window learned on one branch holds for the model, so for the requests of all branches.
    limits = [branch.limit for branch in (current_branch, *abandoned_branches) if branch.limit]
    limit = min(limits, default=0)
    total = replace(
        total,
        session=session,
        largest=total.largest.apply_window_limit(limit),
        changed_fields=list_changed_fields(current_branch.branch),
    )
    return total, current_branch.branch


def sum_savings(accounts: Iterable[SessionSavings]) -> SessionSavings:
    """Sum the accounts of several sessions."""
    total = SessionSavings("")
    changed_fields: list[FieldChange] = []
    for account in accounts:
        changed_fields += account.changed_fields
        sums = {name: getattr(total, name) + getattr(account, name) for name in _SUMMED_FIELDS}
        rules = _add_rules(total.rules, account.rules)
        breaks = _add_counts(total.breaks, account.breaks)
        cache_misses = merge_miss_totals(total.cache_misses, account.cache_misses)
        total = replace(
            total,
            **sums,
            rules=rules,
            breaks=breaks,
            cache_misses=cache_misses,
            largest=total.largest.merge_larger(account.largest),
        )
    return replace(total, changed_fields=sum_field_changes(changed_fields))


def _scale_account(account: SessionSavings, scale: float, gain: float) -> SessionSavings:
    """Convert an account to the model's tokens: ``scale`` per estimated token, ``gain`` for saved ones."""
    rules = []
    for rule in account.rules:
        saved_tokens = round(gain * rule.saved_tokens)
        saved_in_total = round(gain * rule.saved_in_total)
        rules.append(replace(rule, saved_tokens=saved_tokens, saved_in_total=saved_in_total))
    return replace(
        account,
        rules=tuple(rules),
        said_tokens=round(scale * account.said_tokens),
        # Sums of the rounded figures, so that the total equals the lines of its table.
        saved_tokens=sum(rule.saved_tokens for rule in rules),
        saved_in_total=sum(rule.saved_in_total for rule in rules),
        saved_dollars=gain * account.saved_dollars,
        rewritten=round(scale * account.rewritten),
        rewritten_dollars=scale * account.rewritten_dollars,
    )


_EMPTY_SAVINGS = SessionSavings("")
_SUMMED_FIELDS = tuple(
    name for name in SessionSavings.__struct_fields__ if isinstance(getattr(_EMPTY_SAVINGS, name), int | float)
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
        self._branch = ConversationState()
        self._account = SessionSavings(session)
        self._refusals = refusals
        self._repeated = repeated_ids
        self._catalog = catalog
        self._model = model
        self._measure_state = measure_state
        self._last: tuple[ConversationState, int, str] | None = None
        """The branch at the last request, how many messages it covered, and the digest of these."""
        self._changes_since_request: list[str] = []
        """The names of the changes to the prefix since the last request."""
        self._saved_now: Counter[str] = Counter()
        self._saved_in_total: Counter[str] = Counter()
        self._revoked: Counter[str] = Counter()
        self._open_request_state: ConversationState | None = None
        """The branch at the newest request until its answer, its failure or a decision follows."""
        self._is_refused = False
        """Whether the newest request was refused as too large."""
        self._is_saved = False
        """Whether a compaction, or a decision after a refusal, made it fit."""
        self._rules: dict[tuple[str, str], CacheRules] = {}
        """Cache rules that were looked up, by API and model."""
        self._cache_judge = BranchCacheJudge(self._get_cache_rules)
        self._is_cached = False
        """Whether the newest answer reported tokens read from or written to the cache."""

    def start_branch(self) -> None:
        """Continue as a new branch, with an empty account."""
        self._account = SessionSavings(self._account.session)
        self._cache_judge = copy(self._cache_judge)
        self._changes_since_request = [*self._changes_since_request]
        self._saved_in_total = Counter()
        self._revoked = Counter()

    @property
    def branch(self) -> ConversationState:
        """The state of the branch."""
        return self._branch

    @property
    def limit(self) -> int:
        """The window as an overflow reported it, or 0."""
        return self._branch.usage.learned_limits.window_limit

    def _count_revoked_edits(self, body: RevokeEntry, before: ConversationState) -> None:
        """Count the edits that an undo took away; a restore gives them back."""
        holder = self._branch if body.is_restored else before
        changed = [decision for id_, decision in holder.view.active_decisions if id_ == body.revoked_id]
        if body.is_restored:
            self._revoked.subtract(_count_rule_edits(changed))
        else:
            self._revoked.update(_count_rule_edits(changed))

    def add_entry(self, entry: Entry) -> None:
        """Add one more entry to the account."""
        before, body = self._branch, entry.body
        self._branch = apply_entry(before, entry)
        has_changed = self._branch is not before
        self._add_cache_miss(entry)
        if has_changed and isinstance(body, DecisionEntry | CompactionEntry | RevokeEntry | RequestSetup):
            self._changes_since_request += _name_changes(body)
            self._saved_now = _sum_saved_tokens(self._branch)
            if isinstance(body, RevokeEntry):
                self._count_revoked_edits(body, before)
        if isinstance(body, AnswerEntry | FailureEntry | RequestEntry | DecisionEntry | CompactionEntry):
            self._account = replace(self._account, largest=self._measure_largest(entry))
            self._open_request_state = self._branch if isinstance(body, RequestEntry) else None
        if isinstance(body, RequestEntry):
            self._add_request(body)
        elif isinstance(body, MessageEntry) and body.sized_message.message.role != "assistant":
            self._is_saved = self._is_saved and not self._is_refused
            self._is_refused = False
        elif isinstance(body, DecisionEntry | CompactionEntry) and entry.id not in self._repeated:
            self._add_decision(body)
        elif isinstance(body, FailureEntry) and entry.id in self._refusals:
            self._account = replace(self._account, refusals=self._account.refusals + 1)
            self._is_refused = True
        elif isinstance(body, AnswerEntry):
            self._add_answer(body.usage)
        elif (call := read_summary_cost_note(body)) is not None:
            prices = self._catalog.get_prices(call.api, call.model)
            self._account = replace(self._account, unpriced_calls=self._account.unpriced_calls + prices.is_assumed)
            self._add_usage(call.usage, prices)

    def make_account(self) -> SessionSavings:
        """Return the account of all entries so far."""
        state = self._branch
        in_force = _count_active_edits(self._branch)
        names = dict.fromkeys((*in_force, *self._revoked, *self._saved_in_total))
        rules = []
        for name in names:
            rules.append(
                RuleSavings(
                    rule=name,
                    in_force=in_force[name],
                    revoked_edits=self._revoked[name],
                    saved_tokens=self._saved_now[name],
                    saved_in_total=self._saved_in_total[name],
                )
            )
        said_tokens = 0
        if len(state.history.sized_messages):
            said_tokens = state.history.cumulative_tokens[-1]
        return replace(
            self._account,
            said_tokens=said_tokens,
            saved_tokens=sum(self._saved_now.values()),
            saved_in_total=sum(self._saved_in_total.values()),
            rules=tuple(rules),
            largest=self._measure_largest(),
        )

    def make_abandoned_account(self) -> SessionSavings:
        """Return the account without decisions in force, for a branch that the session left."""
        account = self.make_account()
        rules = []
        for rule in account.rules:
            past_savings = replace(rule, in_force=0, saved_tokens=0)
            # A rule without past savings would be an empty line.
            if past_savings != RuleSavings(rule.rule):
                rules.append(past_savings)
        return replace(account, said_tokens=0, saved_tokens=0, rules=tuple(rules))

    def _add_decision(self, body: DecisionEntry | CompactionEntry) -> None:
        # A decision right after a refusal is what makes the next try fit.
        self._is_saved = self._is_saved or self._is_refused
        if isinstance(body, CompactionEntry):
            self._account = replace(self._account, compactions=self._account.compactions + 1)
            # A manual compaction may have had any reason, so it does not count as an avoided overflow.
            self._is_saved = self._is_saved or body.trigger != "manual"

    def _get_prices(self) -> Prices:
        """Return the prices of the model in use, or ``UNKNOWN_PRICES``."""
        place = find_request_place(self._branch, self._catalog, self._model)
        if place not in self._priced:
            prices = self._catalog.get_prices(*place)
            self._priced[place] = UNKNOWN_PRICES if prices.is_assumed else prices
        return self._priced[place]

    def _get_cache_rules(self, state: ConversationState) -> CacheRules:
        place = find_request_place(state, self._catalog, self._model)
        if place not in self._rules:
            self._rules[place] = self._catalog.get_cache_rules(*place)
        return self._rules[place]

    def _add_request(self, body: RequestEntry) -> None:
        account = self._account
        prices = self._get_prices()
        self._saved_in_total.update(self._saved_now)
        # The price of cached input: without the decisions these tokens would mostly have been read from the cache.
        saved_dollars = sum(self._saved_now.values()) * prices.cache_read / TOKENS_PER_PRICE
        account = replace(
            account,
            requests=account.requests + 1,
            unpriced_calls=account.unpriced_calls + prices.is_assumed,
            saved_dollars=account.saved_dollars + saved_dollars,
        )
        rewritten_tokens = 0
        if self._last is not None:
            rewritten_tokens = _count_rewritten_tokens(self._last, self._branch)
        if rewritten_tokens:
            # A client can rewrite its own history without any decision of ours; such a break is listed as "else".
            why = " + ".join(dict.fromkeys(self._changes_since_request)) or "else"
            account = replace(
                account,
                breaks=account.breaks | {why: account.breaks.get(why, 0) + 1},
                rewritten=account.rewritten + rewritten_tokens,
                rewritten_dollars=account.rewritten_dollars + self._price_rewrite(rewritten_tokens, prices),
            )
        self._account = account
        self._changes_since_request = []
        covered_count = min(body.message_count, len(self._branch.history.sized_messages))
        self._last = (self._branch, body.message_count, compute_prefix_digest_at(self._branch, covered_count))

    def _add_cache_miss(self, entry: Entry) -> None:
        """Count the miss of the request that ``entry`` answers, if it is an answer to one that missed the cache."""
        miss = self._cache_judge.add_entry(entry, self._branch)
        if miss is None or not isinstance(entry.body, AnswerEntry):
            return
        total = compute_miss_total(miss, entry.body.usage, self._get_prices())
        cache_misses = merge_miss_totals(self._account.cache_misses, {miss.cause: total})
        self._account = replace(self._account, cache_misses=cache_misses)

    def _price_rewrite(self, tokens: int, prices: Prices) -> float:
        """Return the extra cost of writing ``tokens`` again instead of reading them; 0 if they were never cached."""
        is_hour = self._branch.usage.learned_limits.uses_hour_cache
        if self._is_cached:
            return tokens * compute_cache_break_cost(prices, is_hour=is_hour) / TOKENS_PER_PRICE
        return 0.0

    def _add_answer(self, usage: Usage) -> None:
        self._account = replace(self._account, avoided_overflows=self._account.avoided_overflows + self._is_saved)
        self._is_saved = self._is_refused = False
        # Without usage nothing is known about the cache either, so the last known state of it stays.
        if usage.input:
            self._is_cached = usage.cache_read + usage.cache_write > 0
            self._account = replace(self._account, answers=self._account.answers + 1)
            self._add_usage(usage, self._get_prices())
        else:
            self._account = replace(self._account, answers_without_usage=self._account.answers_without_usage + 1)

    def _measure_largest(self, end: Entry | None = None) -> LargestRequest:
        """Return the largest requests, including the newest one, as ``end`` (its answer or failure) reports it."""
        if self._open_request_state is None:
            return self._account.largest
        state = self._open_request_state
        is_answered = end is not None and isinstance(end.body, AnswerEntry)
        if end is not None and isinstance(end.body, AnswerEntry | FailureEntry):
            state = apply_entry(state, end)
        size = self._measure_state(state)
        omitted_tokens = count_omitted_tokens(state)
        now = LargestRequest(
            from_client=size.tokens + size.scale_tokens(omitted_tokens),
            sent_upstream=size.tokens if is_answered else 0,
            window=min_known_size(state.last_request.configured_window, state.usage.learned_limits.window_limit),
            is_counted=size.is_counted and not omitted_tokens,
            is_upstream_counted=size.is_counted and is_answered,
        )
        return self._account.largest.merge_larger(now)

    def _add_usage(self, usage: Usage, prices: Prices) -> None:
        account = self._account
        self._account = replace(
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
    if isinstance(body, RevokeEntry):
        return ["restore" if body.is_restored else "undo"]
    return ["system prompt or tools"]


def _name_compaction(body: CompactionEntry) -> str:
    if body.trigger in {"", TRIGGER_AUTO, TRIGGER_OVERFLOW}:
        return "compaction"
    return body.trigger


def _count_rule_edits(bodies: Iterable[DecisionEntry | CompactionEntry]) -> Counter[str]:
    """Count the edits in ``bodies`` by rule; a compaction counts as one more."""
    counts: Counter[str] = Counter()
    for body in bodies:
        if isinstance(body, CompactionEntry):
            counts[_name_compaction(body)] += 1
        counts.update(edit.rule for edit in body.edits)
    return counts


def _count_active_edits(state: ConversationState) -> Counter[str]:
    """Count the edits that the next request repeats by rule; the compaction in force counts as one more."""
    counts: Counter[str] = Counter()
    for _, body in list_active_decisions(state):
        if isinstance(body, CompactionEntry) and body == state.view.compaction:
            counts[_name_compaction(body)] += 1
        counts.update(edit.rule for edit in list_shown_edits(state, body))
    return counts


def _sum_saved_tokens(state: ConversationState) -> Counter[str]:
    """Sum the tokens that a request lacks, by rule; the total is exactly the tokens not shown."""
    tokens_by_rule: Counter[str] = Counter()
    for _, edits in state.view.edits.iter_from(state.view.first_kept):
        for edit in edits:
            tokens_by_rule[edit.rule] += edit.saves
    if state.view.compaction is not None:
        tokens_by_rule[_name_compaction(state.view.compaction)] += count_compacted_tokens(state)
    return tokens_by_rule


def _count_rewritten_tokens(last: tuple[ConversationState, int, str], state: ConversationState) -> int:
    """Count the shown tokens that the next request repeats after a break of the prefix; 0 without a break."""
    before, count, last_digest = last
    if compute_prefix_digest_at(state, min(count, len(state.history.sized_messages))) == last_digest:
        return 0
    compaction = state.view.compaction
    has_new_compaction = compaction != before.view.compaction
    has_new_setup = not state.setup.has_same_content(before.setup)
    if has_new_compaction:
        first_changed = state.view.first_kept
    else:
        first_changed = _find_first_changed_message_index(before, state, count)
    tokens = sum(_iterate_shown_sizes(state, first_changed, count))
    if compaction is not None and (has_new_setup or has_new_compaction):
        tokens += measure_summary(compaction, state.last_request.model, state.last_request.api)
    if has_new_setup:
        # System prompt and tools stand before everything, so the pinned messages are written again too.
        pinned_messages = state.history.sized_messages.slice(0, state.view.pinned_count)
        tokens += state.setup.tokens + sum(sized_message.tokens for sized_message in pinned_messages)
    # 0 means no break, so a break returns at least one token.
    return max(1, tokens)


def _find_first_changed_message_index(before_state: ConversationState, state: ConversationState, count: int) -> int:
    """Find the first message that two branches show differently, by binary search: digests are chained."""
    if not before_state.setup.has_same_content(state.setup):
        return state.view.first_kept
    digests_before = before_state.history.projection_digests
    digests = state.history.projection_digests
    indexes = range(state.view.first_kept, min(count, len(state.history.sized_messages)))
    # From the first difference on all digests differ, because each includes the one before it.
    return state.view.first_kept + bisect_left(indexes, 1, key=lambda at: digests_before[at] != digests[at])


def _iterate_shown_sizes(state: ConversationState, start: int, stop: int) -> Iterator[int]:
    """Yield the sizes of the messages shown for numbers ``start`` to ``stop``."""
    index = start
    while index < stop:
        for sized_message in list_shown_sized_messages_at(state, index):
            yield sized_message.tokens or build_sized_message(sized_message.message).tokens
        # An edit of a whole message may cover those after it as well.
        stops = [edit.span.stop for edit in state.view.edits.get(index, ()) if edit.span.part is None]
        index = max(stops, default=index + 1)
