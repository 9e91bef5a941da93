"""The account of a session: tokens saved by rule, what answers cost, and what was written anew into the cache."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.reports.branches import over, refusals, repeated
from holdfast.cli.reports.history import acting, edits_shown, folded
from holdfast.cli.reports.request_size import PLAIN, Measured, counted, lacking, take_all_back
from holdfast.config import Catalog
from holdfast.messages.size.tokens import measure
from holdfast.providers.recognize import APIS
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import basis_at, shown, summary_size
from holdfast.state.calibration.calibration import smaller
from holdfast.state.costs import MILLION, broken, known_dollars, paid, share
from holdfast.state.entries import (
    AUTO,
    OVERFLOW,
    Answer,
    Compaction,
    Decision,
    Entry,
    Failure,
    Frame,
    Request,
    Revoke,
    Said,
    Usage,
)
from holdfast.state.target import Prices

UNPRICED = Prices(0.0, 0.0, 0.0, 0.0, assumed=True)
"""Stands for prices that nobody told."""


class Rule(Struct, frozen=True):
    """What one rule did: how many of its edits are in force or were taken back, and the tokens it saved."""

    rule: str
    in_force: int = 0
    revoked: int = 0
    saved: int = 0
    """In the next request."""
    saved_since: int = 0
    """Over all requests so far."""


class Size(Struct, frozen=True):
    """How large requests got, in tokens as ``holdfast why`` says them of each; 0 where there was none."""

    sent: int = 0
    """The largest as its client sent it: what went up and an estimate of what that lacked."""
    up: int = 0
    """The largest that went up and was answered."""
    window: int = 0
    """Of the request that took most of it; smaller where an overflow told so since."""
    is_counted: bool = False
    """Whether ``sent`` is just what the provider counted: it lacked nothing."""
    is_up_counted: bool = False
    """Whether ``up`` is what the provider counted; else it is an estimate."""

    @property
    def share(self) -> float:
        """How much of the window the largest that went up took."""
        return share(self.up, self.window)

    def beside(self, other: Size) -> Size:
        """Return the larger of both; the window is of the one that is nearer to it."""
        nearer, larger = max(self, other, key=lambda one: one.share), max(self, other, key=lambda one: one.sent)
        most = max(self, other, key=lambda one: one.up)
        return Size(larger.sent, most.up, nearer.window, larger.is_counted, most.is_up_counted)

    def limited(self, limit: int) -> Size:
        """Return this in the window of ``limit``, where that was told and no count disproves it."""
        is_larger = self.is_up_counted and self.up > limit
        return self if is_larger else replace(self, window=smaller(self.window, limit))


class Account(Struct, frozen=True):
    """What was saved in a session and what it cost.

    Tokens said, saved and rewritten are estimates, the others as reported: without any ``input`` nobody told them.
    """

    session: str
    requests: int = 0
    answers: int = 0
    """Those whose usage is known."""
    untold: int = 0
    """Those whose usage nobody told."""
    unpriced: int = 0
    """Calls of models whose prices nobody told: no dollars are of them."""
    said: int = 0
    saved: int = 0
    saved_since: int = 0
    saved_dollars: float = 0.0
    rules: tuple[Rule, ...] = ()
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    dollars: float = 0.0
    breaks: dict[str, int] = {}
    """Requests that did not begin as the one before, by what was done in between."""
    rewritten: int = 0
    """Tokens that they had to write into the cache again."""
    rewritten_dollars: float = 0.0
    """What that cost more than reading them."""
    spills: int = 0
    spill_bytes: int = 0
    largest: Size = Size()
    compactions: int = 0
    refused: int = 0
    """Requests that the provider refused as too large."""
    avoided: int = 0
    """Answers to a request that had been refused so, or that a compaction made fit before it was sent."""

    @property
    def cache_hit(self) -> float:
        """The share of the input that came out of the cache."""
        return share(self.cache_read, self.input)


def _plain(branch: Branch) -> Measured:
    """Return how large a request is, in the estimator's tokens where nobody counted it."""
    told = counted(branch)
    return replace(PLAIN, tokens=told or branch.held + branch.frame.tokens, is_counted=told > 0)


def account_and_branch(
    session: str,
    entries: Sequence[Entry],
    leaf: str | None,
    catalog: Catalog,
    model: str = "",
    sized: Callable[[Branch], Measured] = _plain,
) -> tuple[Account, Branch]:
    """Return the account of all branches of a session, and the branch at ``leaf``, which is folded for it anyway.

    Each entry counts once; what is saved now is that of ``leaf``. ``sized`` says how large the request is that a branch
    makes.
    """
    last, others = over(entries, _Telling(session, catalog, model, sized, refusals(entries), repeated(entries)), leaf)
    found = last.account()
    now = sized(last.branch)
    gain = now.scale
    if found.saved > 0:  # as much as the next request grows by once all of it is undone
        gain = max(0, sized(take_all_back(last.branch)).tokens - now.tokens) / found.saved
    total = _scaled(together((found, *(one.told_before() for one in others))), now.scale, gain)
    if found.saved > 0:
        total = replace(total, said=now.tokens + total.saved)
    limit = min((one.limit for one in (last, *others) if one.limit), default=0)
    return replace(total, session=session, largest=total.largest.limited(limit)), last.branch


def together(accounts: Iterable[Account]) -> Account:
    """Return the account of all sessions as one."""
    total = Account("")
    for one in accounts:
        sums = {name: getattr(total, name) + getattr(one, name) for name in _SUMMED}
        rules, breaks = _added(total.rules, one.rules), _merged(total.breaks, one.breaks)
        total = replace(total, **sums, rules=rules, breaks=breaks, largest=total.largest.beside(one.largest))
    return total


def _scaled(one: Account, scale: float, gain: float) -> Account:
    """Return an account in the estimator's tokens with ``scale`` of the model's for each, ``gain`` for those saved."""
    rules = tuple(
        replace(rule, saved=round(gain * rule.saved), saved_since=round(gain * rule.saved_since)) for rule in one.rules
    )
    tokens = {name: round(scale * getattr(one, name)) for name in ("said", "rewritten")}
    dollars = {"saved_dollars": gain * one.saved_dollars, "rewritten_dollars": scale * one.rewritten_dollars}
    saved, since = sum(rule.saved for rule in rules), sum(rule.saved_since for rule in rules)
    return replace(one, rules=rules, saved=saved, saved_since=since, **tokens, **dollars)


_SUMMED = tuple(name for name in Account.__struct_fields__ if isinstance(getattr(Account(""), name), int | float))


def _added(some: Iterable[Rule], more: Iterable[Rule]) -> tuple[Rule, ...]:
    found = {one.rule: one for one in some}
    for one in more:
        old = found.get(one.rule, Rule(one.rule))
        counts = {name: getattr(old, name) + getattr(one, name) for name in Rule.__struct_fields__[1:]}
        found[one.rule] = Rule(one.rule, **counts)
    return tuple(found.values())


def _merged(some: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return dict(Counter(some) + Counter(more))


class _Telling:
    """The fold behind ``account``, of one branch."""

    def __init__(
        self,
        session: str,
        catalog: Catalog,
        model: str,
        sized: Callable[[Branch], Measured],
        refusals: frozenset[str],
        repeated: frozenset[str],
    ) -> None:
        self._priced: dict[tuple[str, str], Prices] = {}
        """Prices that were looked up, by API and model."""
        self._branch, self._found = Branch(), Account(session)
        self._refusals, self._repeated = refusals, repeated
        self._catalog, self._model, self._sized = catalog, model, sized
        self._last: tuple[Branch, int, str] | None = None
        """The branch at the last request, how many slots that covered, and the digest of those."""
        self._done: list[str] = []
        """What was done since the last request."""
        self._now: Counter[str] = Counter()
        self._since: Counter[str] = Counter()
        self._revoked: Counter[str] = Counter()
        self._asked: Branch | None = None
        """The branch of the newest request as long as nothing tells its end."""
        self._is_refused = False
        """Whether the newest words were refused as too large."""
        self._is_saved = False
        """Whether a compaction made it fit, or what was decided after it was refused."""
        self._is_cached = False
        """Whether the newest answer told of a cache."""

    def forget(self) -> None:
        """Go on from here, with nothing told yet."""
        self._found, self._done = Account(self._found.session), [*self._done]
        self._since, self._revoked = Counter(), Counter()

    @property
    def branch(self) -> Branch:
        """The branch of all that was taken."""
        return self._branch

    @property
    def limit(self) -> int:
        """The window as an overflow told it; 0 where none did."""
        return self._branch.learned.limit

    def take(self, entry: Entry) -> None:
        """Take one more entry into account."""
        before, body = self._branch, entry.body
        self._branch = extend(before, entry)
        if isinstance(body, Decision | Compaction | Revoke | Frame) and self._branch is not before:
            self._done += _names(body)
            self._now = _saved(self._branch)
            if isinstance(body, Revoke):
                self._revoked.update(_count(body_ for id_, body_ in before.law if id_ == body.id))
        if isinstance(body, Answer | Failure | Request | Decision | Compaction):
            self._found = replace(self._found, largest=self._largest(entry))
            self._asked = self._branch if isinstance(body, Request) else None
        if isinstance(body, Request):
            self._request(body)
        elif isinstance(body, Said) and body.slot.message.role != "assistant":
            self._is_saved, self._is_refused = self._is_saved and not self._is_refused, False
        elif isinstance(body, Decision | Compaction) and entry.id not in self._repeated:
            self._decided(body)
        elif isinstance(body, Failure) and entry.id in self._refusals:
            self._found = replace(self._found, refused=self._found.refused + 1)
            self._is_refused = True
        elif isinstance(body, Answer):
            self._answered(body.usage)
        elif (call := paid(body)) is not None:
            prices = self._catalog.prices(call.api, call.model)
            self._found = replace(self._found, unpriced=self._found.unpriced + prices.assumed)
            self._paid(call.usage, prices)

    def account(self) -> Account:
        """Return the account of all that was taken."""
        branch, in_force = self._branch, _in_force(self._branch)
        names = dict.fromkeys((*in_force, *self._revoked, *self._since))
        rules = tuple(
            Rule(name, in_force[name], self._revoked[name], self._now[name], self._since[name]) for name in names
        )
        said = branch.sums[-1] if len(branch.slots) else 0
        saved, since = sum(self._now.values()), sum(self._since.values())
        return replace(self._found, said=said, saved=saved, saved_since=since, rules=rules, largest=self._largest())

    def told_before(self) -> Account:
        """Return the account of all that was taken, but for what is in force: it is of a branch that does not go on."""
        found = self.account()
        rules = tuple(replace(one, in_force=0, saved=0) for one in found.rules)
        return replace(found, said=0, saved=0, rules=tuple(one for one in rules if one != Rule(one.rule)))

    def _decided(self, body: Decision | Compaction) -> None:
        self._is_saved = self._is_saved or self._is_refused
        if isinstance(body, Compaction):
            self._found = replace(self._found, compactions=self._found.compactions + 1)
            self._is_saved = self._is_saved or body.trigger != "manual"

    def _prices(self) -> Prices:
        """Return the prices of the model that is talked to; all nothing where nobody told them."""
        model = self._branch.model or self._model
        apis = [slot.api for slot in self._branch.slots.slice(0, 1) if slot.api in APIS]
        api = apis[0] if apis else ""
        if (api, model) not in self._priced:
            found = self._catalog.prices(api or self._catalog.api(model) or APIS[0], model)
            self._priced[api, model] = UNPRICED if found.assumed else found
        return self._priced[api, model]

    def _request(self, body: Request) -> None:
        found, prices = self._found, self._prices()
        self._since.update(self._now)
        money = sum(self._now.values()) * prices.read / MILLION
        unpriced = found.unpriced + prices.assumed
        found = replace(
            found, requests=found.requests + 1, unpriced=unpriced, saved_dollars=found.saved_dollars + money
        )
        if self._last is not None and (again := _written_anew(self._last, self._branch)):
            why = " + ".join(dict.fromkeys(self._done)) or "else"
            found = replace(
                found,
                breaks=found.breaks | {why: found.breaks.get(why, 0) + 1},
                rewritten=found.rewritten + again,
                rewritten_dollars=found.rewritten_dollars + self._lost(again, prices),
            )
        self._found, self._done = found, []
        self._last = self._branch, body.slots, basis_at(self._branch, min(body.slots, len(self._branch.slots)))

    def _lost(self, tokens: int, prices: Prices) -> float:
        """Return what writing ``tokens`` again costs more than reading them would; nothing where no cache had them."""
        is_hour = self._branch.learned.hour
        return tokens * broken(prices, is_hour=is_hour) / MILLION if self._is_cached else 0.0

    def _answered(self, usage: Usage) -> None:
        self._found = replace(self._found, avoided=self._found.avoided + self._is_saved)
        self._is_saved = self._is_refused = False
        if usage.input:
            self._is_cached = usage.cache_read + usage.cache_write > 0
            self._found = replace(self._found, answers=self._found.answers + 1)
            self._paid(usage, self._prices())
        else:
            self._found = replace(self._found, untold=self._found.untold + 1)

    def _largest(self, end: Entry | None = None) -> Size:
        """Return how large requests got, with the newest one as its ``end`` tells it, if that does."""
        if self._asked is None:
            return self._found.largest
        told, is_answered = self._asked, end is not None and isinstance(end.body, Answer)
        if end is not None and isinstance(end.body, Answer | Failure):
            told = extend(told, end)
        size, lacked = self._sized(told), lacking(told)
        now = Size(
            size.tokens + size.of(lacked),
            size.tokens if is_answered else 0,
            smaller(told.window, told.learned.limit),
            size.is_counted and not lacked,
            size.is_counted and is_answered,
        )
        return self._found.largest.beside(now)

    def _paid(self, usage: Usage, prices: Prices) -> None:
        found = self._found
        self._found = replace(
            found,
            input=found.input + usage.input,
            output=found.output + usage.output,
            cache_read=found.cache_read + usage.cache_read,
            cache_write=found.cache_write + usage.cache_write,
            dollars=found.dollars + (known_dollars(usage, prices) or 0.0),
        )


def _names(body: Decision | Compaction | Revoke | Frame) -> list[str]:
    """Return the words for what an entry did to the prefix."""
    if isinstance(body, Decision):
        return [edit.rule for edit in body.edits]
    if isinstance(body, Compaction):
        return [_name(body)]
    return ["undo" if isinstance(body, Revoke) else "system prompt or tools"]


def _name(body: Compaction) -> str:
    return "compaction" if body.trigger in {"", AUTO, OVERFLOW} else body.trigger


def _count(bodies: Iterable[Decision | Compaction]) -> Counter[str]:
    """Return how many edits of each rule stand in ``bodies``; a compaction counts as one more."""
    found: Counter[str] = Counter()
    for body in bodies:
        found.update([_name(body)] if isinstance(body, Compaction) else [])
        found.update(edit.rule for edit in body.edits)
    return found


def _in_force(branch: Branch) -> Counter[str]:
    """Return how many edits of each rule the next request repeats; a compaction counts as one more."""
    found: Counter[str] = Counter()
    for _, body in acting(branch):
        found.update([_name(body)] if isinstance(body, Compaction) and body == branch.compaction else [])
        found.update(edit.rule for edit in edits_shown(branch, body))
    return found


def _saved(branch: Branch) -> Counter[str]:
    """Return the tokens that a request lacks beside what was said, by rule; they add up to just that."""
    found: Counter[str] = Counter()
    for _, edits in branch.edits.find_from(branch.keep):
        found.update({edit.rule: 0 for edit in edits})
        for edit in edits:
            found[edit.rule] += edit.saves
    if branch.compaction is not None:
        found[_name(branch.compaction)] += folded(branch)
    return found


def _written_anew(last: tuple[Branch, int, str], branch: Branch) -> int:
    """Return the tokens of what a request had shown already and the next one shows behind a break; 0 without one."""
    before, count, basis = last
    if basis_at(branch, min(count, len(branch.slots))) == basis:
        return 0
    same = _common(before, branch, count) if branch.compaction == before.compaction else branch.keep
    anew = sum(_sizes(branch, same, count))
    reframed = branch.frame != before.frame
    if branch.compaction is not None and (reframed or branch.compaction != before.compaction):
        anew += summary_size(branch.compaction, branch.model, branch.api)
    if reframed:
        anew += branch.frame.tokens + sum(slot.size for slot in branch.slots.slice(0, branch.pinned))
    return max(1, anew)


def _common(before: Branch, branch: Branch, count: int) -> int:
    """Return the first slot that two branches show otherwise: their digests are chained, so all behind it differ."""
    if before.frame != branch.frame:
        return branch.keep
    every = range(branch.keep, min(count, len(branch.slots)))
    return branch.keep + bisect_left(every, 1, key=lambda at: before.marks[at] != branch.marks[at])


def _sizes(branch: Branch, start: int, stop: int) -> Iterator[int]:
    """Yield the sizes of what is shown of slots ``start`` to ``stop``."""
    index = start
    while index < stop:
        edits = [edit for edit in branch.edits.get(index, ()) if edit.span.part is None]
        yield from (slot.size or measure(slot.message).size for slot in shown(branch, index))
        index = max([edit.span.stop for edit in edits], default=index + 1)
