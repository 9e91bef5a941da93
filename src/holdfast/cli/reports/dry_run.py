"""What a policy would have done about a session that was only looked at: its requests planned afterwards, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.output.errors import EXPECTED
from holdfast.cli.output.terminal import many
from holdfast.cli.places import opened
from holdfast.cli.reports.branches import over, refusals
from holdfast.cli.reports.history import path_to
from holdfast.cli.reports.request_size import about, target_of
from holdfast.config import Configuration
from holdfast.errors import WindowTooSmall
from holdfast.planning import budget as guard
from holdfast.planning.pipeline import Policy, plan_reductions
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.calibration.calibration import smaller
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.entries import Answer, Compaction, Decision, Entry, Failure, Request, Revoke, Usage
from holdfast.state.target import Target, World
from holdfast.store.base import SessionInfo

_OURS = (Decision, Compaction, Revoke)
"""What was done, and is planned anew."""
MOST = 32
"""[H] Sessions that are planned when a proxy ends, the last ones: nobody waits longer than some seconds for that."""


class Foreseen(Struct, frozen=True):
    """What a policy would have done. Tokens are estimates."""

    policy: str = ""
    window: int = 0
    requests: int = 0
    over: int = 0
    """Requests that were larger than the window, as their client sent them."""
    compactions: int = 0
    reduced: int = 0
    """Requests before which something would have been made shorter, without a compaction."""
    largest: int = 0
    """Tokens of the largest request as its client sent it."""
    planned: int = 0
    """Tokens of the largest that would have gone up."""

    def plus(self, other: Foreseen) -> Foreseen:
        """Return both together."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("requests", "over", "compactions")}
        most = {name: max(getattr(self, name), getattr(other, name)) for name in ("largest", "planned", "window")}
        told = [one.window for one in (self, other) if one.over]
        most["window"] = min(told) if told else most["window"]
        return Foreseen(other.policy, **sums, **most, reduced=self.reduced + other.reduced)


def foreseen(
    info: SessionInfo,
    entries: Sequence[Entry],
    known: Configuration,
    policy: str,
    branch: Branch | None = None,
    each: Callable[[], None] = lambda: None,
) -> Foreseen:
    """Return what ``policy`` would have done about the requests on all branches of a session, each once.

    Nobody is asked for a summary: an extract is planned. What a window has no room for at all ends it. ``branch`` is
    the one on which the session goes on, where it was folded already; ``each`` is called for each planned request.
    """
    if branch is None:
        branch = Branch.build(path_to({entry.id: entry for entry in entries}, info.leaf))
    target = target_of(info, branch, None, None, known.catalog)
    going = _Going(target, known.policy(policy).for_session(info.key), refusals(entries), each)
    last, others = over(entries, going, info.leaf)
    return reduce(Foreseen.plus, (one.found for one in others), last.found)


class _Going:
    """The fold behind ``foreseen``: the branch as it is in the log without decisions, and as it would have been."""

    def __init__(
        self, target: Target, policy: Policy, refusals: frozenset[str], each: Callable[[], None] = lambda: None
    ) -> None:
        self.found = Foreseen(policy.name, target.limits.window)
        self._target, self._policy, self._refusals, self._each = target, policy, refusals, each
        self._plain = self._planned = Branch()
        self._scale = 1.0
        """How much smaller the newest request would have been."""
        self._is_over = False
        """Whether that is counted as larger than the window."""
        self._most = 0, 0
        """The largest requests before it, as sent and as planned."""
        self._is_ended = False
        """Whether no request had room in the window."""

    def forget(self) -> None:
        """Go on from here, with nothing found yet."""
        self.found = Foreseen(self._policy.name, self.found.window)

    def take(self, entry: Entry) -> None:
        """Go on with ``entry``, up to where no request has room."""
        if not (self._is_ended or isinstance(entry.body, _OURS)):
            try:
                self._take(entry)
            except WindowTooSmall:
                self._is_ended = True

    def _take(self, entry: Entry) -> None:
        body, planned = entry.body, entry.body
        if isinstance(body, Failure):
            planned = replace(body, requested=0, elsewhere=True) if self._planned.law else body
        elif isinstance(body, Answer):
            usage = Usage(round(body.usage.input * self._scale), body.usage.output)
            is_its = body.basis == self._plain.basis  # else another request went up than the one in the log
            planned = Answer(self._planned.basis if is_its else body.basis, usage, body.stop)
        self._plain = extend(self._plain, entry)
        if isinstance(body, Request):
            self._is_over, self._most = False, (self.found.largest, self.found.planned)
            self._request()
            self._each()
            self.found = replace(self.found, requests=self.found.requests + 1)
            return
        self._planned = extend(self._planned, replace(entry, body=planned))
        if isinstance(body, Answer):
            self._counted()
        if entry.id in self._refusals:
            self._request(refused=True)  # it would have gone up once more, with what was learned

    def _counted(self) -> None:
        """Have the newest request the size that its answer told, as everywhere else; less where less had gone up."""
        told = self._plain.anchor
        if told is not None and told.slots == self._plain.seen:
            sent, up = self._most
            planned = max(up, round(self._scale * told.tokens))
            self.found = replace(self.found, largest=max(sent, told.tokens), planned=planned)

    def _request(self, *, refused: bool = False) -> None:
        place = replace(self._target, frame=self._plain.frame)
        # Sized as its plan is, with what was learned of the frame: else one request has two sizes, and none is right.
        size = estimate(self._plain, guard.in_force(place, self._plain, self._policy.settings))
        window = smaller(place.limits.window, self._plain.learned.limit)
        plan = plan_reductions(self._planned, place, self._policy, World())
        found, compacts = self.found, plan.compaction is not None
        is_over = (refused or size > window) and not self._is_over
        self.found = Foreseen(
            policy=found.policy,
            window=window,
            requests=found.requests,
            over=found.over + is_over,
            compactions=found.compactions + compacts,
            reduced=found.reduced + (bool(plan.record) and not compacts),
            largest=max(self._most[0], size),
            planned=max(self._most[1], plan.after),
        )
        self._is_over = self._is_over or is_over
        self._planned, self._scale = plan.branch, plan.after / max(1, size)


def of_sessions(given: str | None, keys: Sequence[str], known: Configuration, policy: str) -> Foreseen:
    """Return what ``policy`` would have done about the first of ``keys``, sessions of the store ``given``."""
    total = Foreseen(policy)
    with suppress(*EXPECTED), opened(given, readonly=True) as there:
        for key in keys[:MOST]:
            total = total.plus(foreseen(there.session(key), there.entries(key), known, policy))
    return total


def in_words(found: Foreseen) -> str:
    """Return on one line what would have been done."""
    if not (found.over or found.compactions or found.reduced):
        largest = about(found.largest)
        return f"policy {found.policy} would have changed nothing: the largest request had {largest} tokens"
    done = [f"compacted {many(found.compactions, 'time')}"] if found.compactions else []
    done += [f"shortened texts before {many(found.reduced, 'request')}"] if found.reduced else []
    would = f"policy {found.policy} would have {' and '.join(done) or 'changed nothing'}"
    over = f"{many(found.over, 'request')} over the window of {found.window:,}"
    return f"{over}; {would}: the largest request {about(found.largest)} → {about(found.planned)} tokens"
