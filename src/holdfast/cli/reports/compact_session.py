"""Compact a session of the store now, whatever its size: what ``holdfast compact SESSION`` does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from shlex import quote

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import make_console, print_command, print_json, print_line, print_wrapped
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.pipeline import Policy
from holdfast.reports.describe import shorten_session_keys
from holdfast.reports.requests.next_plan import make_session_plan_inputs
from holdfast.reports.requests.request_size import format_tokens, get_session_target
from holdfast.reports.sessions.history import SHORT_ID, load_branch_history
from holdfast.reports.sessions.session_lock import list_decisions_after, open_journal_at_leaf
from holdfast.state.plan import Plan, mark_compaction_manual
from holdfast.state.target import PlanInputs, Target
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.repair.repair_on_read import read_with_repair


class CompactionReport(Struct, frozen=True, omit_defaults=True):
    """The outcome of a compaction. Tokens are estimates of the next request."""

    session: str
    policy: str
    is_compacted: bool
    before: int
    after: int
    why: str = ""
    """Why nothing was compacted."""
    entry: str = ""
    """The entry that records the compaction."""
    other_decisions: tuple[str, ...] = ()
    """Decisions recorded together with it; ``holdfast undo`` of all of them restores everything."""
    keep: int = 0
    """The number of the first message still shown in full; the number of messages if there is none."""
    repairs: tuple[str, ...] = ()
    """The damage that was repaired in the session first, one line each."""


def run_stored_compaction(
    session: str,
    policy: str,
    model: str | None,
    window: int | None,
    store: str | None,
    *,
    as_json: bool,
) -> None:
    """Compact the session of the store whose id begins with ``session``, and print the outcome."""
    configuration = config.load_configuration()
    with open_named_store(store) as there:
        info = there.get_session(session)
        repairs: list[str] = []
        log = read_with_repair(
            there,
            info.key,
            partial(load_branch_history, there, info.key),
            repairs.extend,
        )
        if not as_json:
            _print_repairs(repairs)
        place = get_session_target(info, log.state, model, window, configuration.catalog)
        inputs = make_session_plan_inputs(log, place)
        chosen = configuration.build_policy(policy).for_session(info.key)
        outcome = compact_session(there, info.key, chosen, place, replace(inputs, force_compaction=True))
        outcome = replace(outcome, repairs=tuple(repairs))
        keys = [session_info.key for session_info in there.list_sessions()]
        short = shorten_session_keys(keys)[info.key]
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        _print_compaction(info, outcome, quote(clean_single_line(short)), len(log.message_entries))
        if place.limits.window_source.startswith("default"):
            click.echo(
                f"planned for a window of {place.limits.window:,} tokens "
                f"({clean_single_line(place.limits.window_source)}); set another with --window",
                err=True,
            )


def compact_session(
    store: SessionStore,
    key: str,
    policy: Policy,
    target: Target,
    inputs: PlanInputs,
) -> CompactionReport:
    """Compact session ``key`` and return the outcome."""
    with open_journal_at_leaf(store, key, policy) as journal:
        before = journal.leaf
        plan = mark_compaction_manual(journal.plan_next(target, inputs))
        if plan.compaction is not None:
            # The written plan differs from the planned one if some text could not be stored.
            plan = journal.write_decision(plan, target, inputs) or plan
        compaction = plan.compaction
        if compaction is None:
            why = "; ".join(_explain_no_compaction(plan, policy)) or "there is nothing to compact"
            return CompactionReport(
                key,
                policy.name,
                is_compacted=False,
                before=plan.before,
                after=plan.before,
                why=why,
            )
    entry, *beside = list_decisions_after(journal, before)
    outcome = CompactionReport(key, policy.name, is_compacted=True, before=plan.before, after=plan.after)
    return replace(outcome, entry=entry, other_decisions=tuple(beside), keep=compaction.first_kept)


def _explain_no_compaction(plan: Plan, policy: Policy) -> Iterator[str]:
    """Yield the reasons why ``plan`` compacts nothing, and the edits it plans that are not written now."""
    if not policy.settings.compaction.enabled:
        yield f"policy {policy.name} does not compact; choose one that does with --policy"
    yield from (notice.why for notice in plan.notices)
    if plan.record:
        shorter = format_count(len({edit.span.start for edit in plan.record}), "message")
        sizes = f"{format_tokens(plan.before)} → {format_tokens(plan.after)} tokens"
        yield f"policy {policy.name} makes {shorter} shorter anyway, right before the next request ({sizes})"


def _print_repairs(repairs: list[str]) -> None:
    """Print the repairs on standard error; they stay done even if the compaction comes to nothing."""
    for line in repairs:
        click.echo(f"repaired: {clean_single_line(line)}", err=True)


def _print_compaction(info: SessionInfo, outcome: CompactionReport, session: str, messages: int) -> None:
    """Print the outcome; ``session`` is the session's name in commands, and ``messages`` counts its messages."""
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    if not outcome.is_compacted:
        print_wrapped(out, Text(f"nothing was compacted: {outcome.why}", "yellow"))
        return
    sizes = f"{format_tokens(outcome.before)} → {format_tokens(outcome.after)} tokens"
    first = "no message is"
    if outcome.keep < messages:
        first = f"messages from #{outcome.keep} on are"
    print_wrapped(out, Text(f"compacted: {sizes}, {first} shown in full", "green"))
    ids = " ".join(entry_id[:SHORT_ID] for entry_id in (outcome.entry, *outcome.other_decisions))
    print_command(out, Text(f"to undo it: holdfast undo {session} {ids}", style="dim"))
