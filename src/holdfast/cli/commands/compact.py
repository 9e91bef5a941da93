"""``holdfast compact``: the older turns of a stored session give way to a summary now, whatever its size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from shlex import quote

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import clean, console, json_option, many, say_command, say_json, say_line, say_whole
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.describe import session_line, shortest
from holdfast.cli.reports.history import SHORT, read_log
from holdfast.cli.reports.next_plan import world_of
from holdfast.cli.reports.request_size import about, target_of
from holdfast.cli.reports.session_lock import at_leaf, decided_behind
from holdfast.planning.pipeline import Policy
from holdfast.state.plan import Plan, asked_for
from holdfast.state.target import Target, World
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.reading import read_repaired

EXAMPLES = """\
\b
Examples:
  holdfast compact 4d56
  holdfast compact 4d56 --window 64000
  holdfast compact 4d56 --policy pi --json
"""


class Made(Struct, frozen=True, omit_defaults=True):
    """What became of it. Tokens are estimates of the next request."""

    session: str
    policy: str
    compacted: bool
    before: int
    after: int
    why: str = ""
    """Why nothing was compacted."""
    entry: str = ""
    """The entry that records it."""
    beside: tuple[str, ...] = ()
    """Decisions that came with it; ``holdfast undo`` of these and it takes all back."""
    keep: int = 0
    """The first message that is still shown as it was said; how many there are, where none is."""
    repaired: tuple[str, ...] = ()
    """What was damaged in the session and repaired before, a line for each thing."""


@click.command("compact", epilog=EXAMPLES)
@click.argument("session")
@click.option("--policy", default="holdfast", show_default=True, help="Whose compaction.")
@click.option("--model", help="The model it goes to. [default: the recorded one]")
@click.option("--window", type=Whole(1), help="Its window in tokens. [default: the model's]")
@store_option
@json_option("what became of it")
def command(
    session: str, policy: str, model: str | None, window: int | None, store: str | None, *, as_json: bool
) -> None:
    """Compact a session now: its older turns give way to a summary.

    SESSION is the beginning of an id. The summary is made without a model, from the log. Nothing that was said is
    deleted: the messages stay in the log, the model can read them back with recall, and holdfast undo brings them all
    back. Where a compaction would not make the next request smaller nothing is written, and that is said. A damaged
    session is repaired first where that loses nothing, and what was done is said; else holdfast repair is named.
    """
    known = config.configuration()
    with opened(store) as there:
        info = there.session(session)
        repaired: list[str] = []
        log = read_repaired(there, info.key, partial(read_log, there, info.key), repaired.extend)
        if not as_json:
            _say_repaired(repaired)
        place = target_of(info, log.branch, model, window, known.catalog)
        world = world_of(log, place)
        chosen = known.policy(policy).for_session(info.key)
        made = compacted(there, info.key, chosen, place, replace(world, force=True))
        made = replace(made, repaired=tuple(repaired))
        short = shortest([one.key for one in there.sessions()])[info.key]
    if as_json:
        say_json(msgspec.to_builtins(made))
    else:
        _say(info, made, quote(clean(short)), len(log.said))
        if place.limits.origin.startswith("default"):
            click.echo(f"for {place.limits.window:,} tokens ({clean(place.limits.origin)}); --window says it", err=True)


def compacted(store: SessionStore, key: str, policy: Policy, place: Target, world: World) -> Made:
    """Compact session ``key`` and return what became of it."""
    with at_leaf(store, key, policy) as journal:
        before = journal.leaf
        plan = asked_for(journal.plan(place, world))
        plan = (plan.compaction and journal.decide(plan, place, world)) or plan
        made = plan.compaction
        if made is None:
            why = "; ".join(_why_not(plan, policy)) or "there is nothing to compact"
            return Made(key, policy.name, compacted=False, before=plan.before, after=plan.before, why=why)
    entry, *beside = decided_behind(journal, before)
    told = Made(key, policy.name, compacted=True, before=plan.before, after=plan.after)
    return replace(told, entry=entry, beside=tuple(beside), keep=made.keep)


def _why_not(plan: Plan, policy: Policy) -> Iterator[str]:
    """Yield why ``plan`` compacts nothing, and what else it reckons with, which nobody writes now."""
    if policy.settings.compact != "summary":
        yield f"policy {policy.name} makes no summaries; give one with --policy that does"
    yield from (notice.why for notice in plan.notices)
    if plan.record:
        shorter = many(len({edit.span.start for edit in plan.record}), "message")
        sizes = f"{about(plan.before)} → {about(plan.after)} tokens"
        yield f"policy {policy.name} makes {shorter} shorter anyway, right before the next request ({sizes})"


def _say_repaired(repaired: list[str]) -> None:
    """Say on standard error what was repaired: it is done, also where the compaction comes to nothing."""
    for line in repaired:
        click.echo(f"repaired: {clean(line)}", err=True)


def _say(info: SessionInfo, made: Made, session: str, messages: int) -> None:
    """Print what became of it; ``session`` is how its session, of so many messages, is called in commands."""
    from rich.text import Text

    out = console()
    say_line(out, session_line(info))
    if not made.compacted:
        say_whole(out, Text(f"nothing was compacted: {made.why}", "yellow"))
        return
    sizes = f"{about(made.before)} → {about(made.after)} tokens"
    first = f"message {made.keep} is the first that" if made.keep < messages else "no message"
    say_whole(out, Text(f"compacted: {sizes}, {first} is shown as it was said", "green"))
    ids = " ".join(one[:SHORT] for one in (made.entry, *made.beside))
    say_command(out, Text(f"to take it back: holdfast undo {session} {ids}", style="dim"))
