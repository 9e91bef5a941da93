"""What a policy would decide before the next request of a session, and the recording of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.cli.output.terminal import many
from holdfast.cli.reports.history import SHORT, Log, acting, edits_shown, read_log
from holdfast.cli.reports.request_size import Measured, about, measured
from holdfast.cli.reports.session_lock import at_leaf, decided_behind
from holdfast.planning.pipeline import Policy, advance
from holdfast.state.branch.branch import Branch
from holdfast.state.calibration.usage import cache_lives
from holdfast.state.entries import Answer, BranchSummary, Compaction, Decision, Request, Said
from holdfast.state.plan import Plan
from holdfast.state.target import Target, World
from holdfast.store.base import SessionStore
from holdfast.store.tree.tree import now_ms

_LARGEST = 4
"""How many texts of a rule are told to a person."""


class Would(Struct, frozen=True, omit_defaults=True):
    """One thing that is decided. Tokens are estimates."""

    kind: str
    message: int
    """The message it is about; of a compaction the first that stays."""
    rule: str
    why: str
    saves: int = 0


class Prospect(Struct, frozen=True, omit_defaults=True):
    """What a policy decides before the next request, and whether that is in the log now."""

    policy: str
    cache: str
    idle: int
    """Seconds since something was said or sent."""
    before: int
    after: int
    """Estimated tokens of the request without and with what is decided."""
    would: tuple[Would, ...]
    notices: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    """The entries that record it."""


class InForce(Struct, frozen=True, omit_defaults=True):
    """A decision or compaction that the next request repeats."""

    id: str
    kind: str
    rules: dict[str, int]
    """How many edits of each rule are of messages that it shows."""


def in_force(branch: Branch) -> tuple[InForce, ...]:
    """Return what the next request repeats, oldest first."""
    return tuple(_standing(branch, id_, body) for id_, body in acting(branch))


def _standing(branch: Branch, id_: str, body: Decision | Compaction) -> InForce:
    rules = Counter(edit.rule for edit in edits_shown(branch, body))
    return InForce(id_, "compaction" if isinstance(body, Compaction) else "decision", dict(rules))


def world_of(log: Log, place: Target) -> World:
    """Return how the world is for a session: its cache is cold when what was said or sent last is older than it lives.

    What a person decided since warmed nothing.
    """
    talk = (entry for entry in log.entries if isinstance(entry.body, Said | BranchSummary | Request | Answer))
    newest = max((entry.at for entry in talk if entry.at is not None), default=None)
    idle = 0 if newest is None else max(0, now_ms() - newest) // 1_000
    return World(cache="cold" if idle > cache_lives(log.branch, place.cache) else "warm", idle=idle)


def prospect(log: Log, place: Target, policy: Policy, world: World) -> Prospect:
    """Return what ``policy`` would decide; nothing is recorded."""
    size = measured(log.branch, place, policy.settings)
    return _prospect(advance(log.branch, place, policy, world), policy, world, size)


def recorded(
    store: SessionStore, key: str, log: Log, place: Target, policy: Policy, world: World
) -> tuple[Prospect, Branch]:
    """Return what ``policy`` decided behind ``log``, which is in the store now, and the branch with it."""
    with at_leaf(store, key, policy) as journal:
        before = journal.leaf
        plan = journal.prepare(place, world).plan
    ids = tuple(reversed(decided_behind(journal, before)))
    size = measured(log.branch, place, policy.settings)
    return _prospect(plan, policy, world, size, ids), read_log(store, key).branch


def _prospect(plan: Plan, policy: Policy, world: World, size: Measured, ids: tuple[str, ...] = ()) -> Prospect:
    made = plan.compaction
    would = [Would("decision", edit.span.start, edit.rule, edit.why, size.of(edit.saves)) for edit in plan.record]
    if made is not None:
        told = f"a summary of {about(size.of(made.size))} tokens stands" if made.summary else "nothing stands"
        sizes = f"{about(made.before)} → {about(made.after)} tokens: " if made.after else ""
        why = f"{sizes}{told} for what came before"
        would.append(Would("compaction", made.keep, made.trigger, why, max(0, made.before - made.after)))
    notices = tuple(f"{one.rule}: {one.why}" for one in plan.notices)
    return Prospect(policy.name, world.cache, int(world.idle), plan.before, plan.after, tuple(would), notices, ids)


def in_words(found: Prospect) -> list[str]:
    """Return the lines that tell a person what is decided."""
    cache = "cold" if found.cache == "cold" else "warm"
    what = "decided and recorded" if found.recorded else "would decide"
    ids = f" ({', '.join(one[:SHORT] for one in found.recorded)})" if found.recorded else ""
    if not found.would:
        lines = [f"{found.policy} (cache {cache}): nothing is to be decided; {about(found.before)} tokens"]
    else:
        lines = [f"{found.policy} (cache {cache}) {what}{ids}: {about(found.before)} → {about(found.after)} tokens"]
    return [*lines, *_by_rule(found.would), *(f"  note: {one}" for one in found.notices)]


def _by_rule(would: Iterable[Would]) -> Iterator[str]:
    """Yield a line for each rule: how much it takes, and the largest of that."""
    groups: dict[tuple[str, str], list[Would]] = {}
    for one in would:
        groups.setdefault((one.kind, one.rule), []).append(one)
    for (kind, rule), every in groups.items():
        if kind == "compaction":
            yield from (f"  compaction ({one.rule}) before #{one.message}: {one.why}" for one in every)
            continue
        largest = sorted(every, key=lambda one: -one.saves)[:_LARGEST]
        told = ", ".join(f"#{one.message} ({one.saves:,})" for one in largest)
        saves, more = about(sum(one.saves for one in every)), ", …" if len(every) > _LARGEST else ""
        yield f"  {rule}: {many(len(every), 'text')}, {saves} tokens less: {told}{more}"
