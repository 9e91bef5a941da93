"""The pipeline: stages in order, from a branch to the plan of its next request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import UnknownPolicy
from holdfast.model.branch import Branch, Settled, extend, patched, prefix_basis, project, shown
from holdfast.model.dialect import Dialect
from holdfast.model.edits import Edit
from holdfast.model.entries import Compaction, Decision, Entry, Request, Said
from holdfast.model.messages import Message
from holdfast.model.plan import Plan
from holdfast.model.slots import Slot
from holdfast.model.target import Target, World
from holdfast.policy.compaction import compact
from holdfast.policy.draft import Draft
from holdfast.policy.guard import guard
from holdfast.policy.history import limit_history, slide
from holdfast.policy.hygiene import repairs
from holdfast.policy.markers import breakpoints
from holdfast.policy.presets import PRESETS
from holdfast.policy.prune import prune
from holdfast.policy.results import limit_results
from holdfast.policy.settings import Settings
from holdfast.view.boundaries import legal_cuts
from holdfast.view.tokens import measure

Stage: TypeAlias = Callable[[Draft], Draft]
"""A pure step of planning: takes a draft and returns it with decisions added (``draft.decide``, ``draft.compact``)."""


class Policy(Struct, frozen=True):
    """Settings and ordered, named stages. ``replace`` and ``before`` return changed copies."""

    name: str = "holdfast"
    settings: Settings = Settings()
    stages: tuple[tuple[str, Stage], ...] = (
        ("history", limit_history),
        ("results", limit_results),
        ("prune", prune),
        ("slide", slide),
        ("compaction", compact),
    )

    @classmethod
    def preset(cls, name: str) -> Policy:
        """Return the policy called ``name``; raises ``UnknownPolicy`` with the list."""
        settings = PRESETS.get(name)
        if settings is None:
            raise UnknownPolicy(f"no policy is called {name!r}; there are: {', '.join(PRESETS)}")
        return cls(name, settings)

    def replace(self, name: str, stage: Stage) -> Policy:
        """Return the policy with ``stage`` in place of the one called ``name``."""
        self._place(name)
        return replace(self, stages=tuple((old, stage if old == name else kept) for old, kept in self.stages))

    def before(self, name: str, new: str, stage: Stage) -> Policy:
        """Return the policy with ``stage``, called ``new``, in front of the one called ``name``."""
        at = self._place(name)
        return replace(self, stages=(*self.stages[:at], (new, stage), *self.stages[at:]))

    def with_settings(self, **changes: Any) -> Policy:
        """Return the policy with some of its settings changed; names and numbers are in ``Settings``."""
        return replace(self, settings=replace(self.settings, **changes))

    def _place(self, name: str) -> int:
        names = [known for known, _ in self.stages]
        if name not in names:
            raise UnknownPolicy(f"policy {self.name!r} has no stage {name!r}; it has: {', '.join(names)}")
        return names.index(name)


def advance(branch: Branch, target: Target, policy: Policy = Policy(), world: World = World()) -> Plan:
    """Return the plan of the next request of ``branch``. Costs what is new since the last one."""
    settings = policy.settings
    room, notices = guard(target, settings)
    branch = extend(branch, Entry("frame", None, target.frame))
    draft = Draft(branch, target, settings, world, room, notices=notices)
    before = draft.estimate
    for _name, stage in policy.stages:
        draft = stage(draft)
    repair, settled = _repair(draft.branch, target.dialect)
    basis = prefix_basis(draft.branch)
    final = _recorded(branch, draft, Request(basis, len(branch.slots), target.model))
    return Plan(
        branch=replace(final, settled=settled),
        record=draft.record,
        compaction=draft.compaction,
        repair=repair,
        options=breakpoints(draft.branch, repair, target, settings, branch.seen),
        blobs=draft.blobs,
        before=before,
        after=draft.estimate,
        notices=draft.notices,
    )


def _recorded(branch: Branch, draft: Draft, request: Request) -> Branch:
    """Return ``branch`` with what the draft decided as the log will hold it: a decision, a compaction, a request."""
    if draft.record:
        branch = extend(branch, Entry(f"decision:{len(branch.law)}", None, Decision(draft.record)))
    if draft.compaction is not None:
        branch = extend(branch, Entry(f"compaction:{len(branch.law)}", None, draft.compaction))
    return extend(branch, Entry("request", None, request))


def _repair(branch: Branch, dialect: Dialect) -> tuple[tuple[Edit, ...], Settled | None]:
    """Return the repairs of the projection, and how much of it is settled for the next time."""
    settled = branch.settled
    if settled is None or settled.dialect != dialect or branch.reused:
        settled = None
    if settled is not None:
        slots = [one for index in range(settled.slot, len(branch.slots)) for one in shown(branch, index)]
        if not _has_strangers(slots):
            return _settle(branch, settled, slots, 0)
    lead = branch.pinned + (branch.compaction is not None and branch.compaction.summary is not None)
    return _settle(branch, Settled(dialect, branch.keep, 0), project(branch), lead)


def _has_strangers(slots: Sequence[Slot]) -> bool:
    """Whether a result stands here whose call does not: it may belong to what is settled already."""
    calls: set[str] = set()
    for slot in slots:
        calls.update(call.id for call in slot.message.calls)
        if any(result.call_id not in calls for result in slot.message.results):
            return True
    return False


def _settle(
    branch: Branch, settled: Settled, slots: Sequence[Slot], lead: int
) -> tuple[tuple[Edit, ...], Settled | None]:
    """Return all repairs, and the settled prefix grown up to the last place where it may end.

    ``lead`` counts the slots at the front that are no slots of the kept tail.
    """
    messages = [slot.message for slot in slots]
    fresh = repairs(messages, settled.dialect, settled.position)
    cut = _last_break(messages)
    edge = settled.position + cut
    regular = len(slots) - lead == len(branch.slots) - settled.slot
    if cut <= lead or not regular or any(edit.span.start < edge < edit.span.stop for edit in fresh):
        return settled.repairs + fresh, settled if settled.position else None
    done = tuple(edit for edit in fresh if edit.span.start < edge)
    return settled.repairs + fresh, Settled(settled.dialect, settled.slot + cut - lead, edge, settled.repairs + done)


def _last_break(messages: Sequence[Message]) -> int:
    """Return the last place where nothing on one side depends on the other: the agent answers a finished group."""
    for cut in reversed(legal_cuts(messages)):
        if 0 < cut < len(messages) and messages[cut].role == "assistant" != messages[cut - 1].role:
            return cut
    return 0


def plan(
    messages: Sequence[Message],
    target: Target,
    policy: Policy = Policy(),
    *,
    branch: Branch | None = None,
    world: World = World(),
) -> Plan:
    """Return what to do before the next request over ``messages``; nothing is sent, stored or waited for.

    ``messages`` is the whole conversation, oldest first. Pass ``plan.branch`` of the call before as ``branch``: then
    only what is new is looked at. Raises ``WindowTooSmall`` where the window cannot hold what must be sent.
    """
    return advance(reconcile(branch or Branch(), messages), target, policy, world)


def apply(messages: Sequence[Message], plan: Plan) -> list[Message]:
    """Return the messages to send for ``messages``: the plan's decisions and repairs applied.

    Raises ``ValueError`` where the plan was made for another number of messages.
    """
    if len(messages) != len(plan.branch.slots):
        raise ValueError(
            f"the plan was made for {len(plan.branch.slots)} messages and {len(messages)} were given; "
            "apply it to the list that was planned"
        )
    return [slot.message for slot in send_slots(plan)]


def send_slots(plan: Plan) -> list[Slot]:
    """Return the slots to send: the projection of the plan's branch with its repairs applied."""
    return patched(project(plan.branch), plan.repair)


def reconcile(branch: Branch, messages: Sequence[Message]) -> Branch:
    """Return ``branch`` grown to ``messages``; where they part, the past was edited and a fork is made."""
    count = len(branch.slots)
    if count > len(messages) or not branch.messages.same_as(messages, count):
        branch = fork(branch, _common(branch, messages))
        count = len(branch.slots)
    for message in messages[count:]:
        branch = extend(branch, Entry("", None, Said(measure(message))))
    return branch


def _common(branch: Branch, messages: Sequence[Message]) -> int:
    """Return how many messages the branch and ``messages`` have in common from the start, by their digests."""
    for index, (slot, message) in enumerate(zip(branch.slots, messages, strict=False)):
        if slot.message is not message and slot.digest != measure(message).digest:
            return index
    return min(len(branch.slots), len(messages))


def fork(branch: Branch, count: int) -> Branch:
    """Return the branch as if it ended after ``count`` slots, with the decisions about those slots still in force."""
    forked = Branch.build(Entry("", None, Said(slot)) for slot in branch.slots.slice(0, count))
    for id_, what in branch.law:
        stops = [edit.span.stop for edit in what.edits]
        if isinstance(what, Compaction):
            stops.append(what.keep)
        if max(stops, default=0) <= count:
            forked = extend(forked, Entry(id_, None, what))
    return replace(forked, seen=min(branch.seen, count), frame=branch.frame, compactions=0)
