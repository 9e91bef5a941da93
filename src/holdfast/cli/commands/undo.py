"""``holdfast undo``: undo a decision, so that the messages it reduced are shown in full again, or restore one."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import (
    ProgressBar,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_more_hint,
    print_wrapped,
)
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning import budget as guard
from holdfast.reports.describe import format_time, shorten_entry_ids
from holdfast.reports.messages.decision_undo import (
    UndoableDecision,
    UndoOutcome,
    change_decisions,
    list_restorable,
    list_undoable,
)
from holdfast.reports.requests.request_size import format_tokens, get_target_and_settings
from holdfast.reports.sessions.history import list_active_decisions, load_branch_history
from holdfast.reports.sessions.session_lock import open_journal_at_leaf
from holdfast.state.conversation_state import ConversationState
from holdfast.state.target import ModelLimits
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast undo 4d56 --list
  holdfast undo 4d56
  holdfast undo 4d56 e77b
  holdfast undo 4d56 e77b 9c8f
  holdfast undo 4d56 --restore
  holdfast undo 4d56 --restore --list
  holdfast undo 4d56 --window
"""
DEFAULT_UNDO_LIMIT = 20
"""Decisions listed without --limit. Chosen by judgement: one screen."""


class UndoList(Struct, frozen=True):
    """The decisions in force in a session, the newest first."""

    session: str
    in_force: tuple[UndoableDecision, ...]


class RestoreList(Struct, frozen=True):
    """The undone decisions of a session, the last undone first."""

    session: str
    undone: tuple[UndoableDecision, ...]


class WindowChange(Struct, frozen=True):
    """The window assumed for a session before and after, in tokens."""

    session: str
    before: int
    after: int
    origin: str
    """The source of ``after``."""


@click.command("undo", epilog=EXAMPLES)
@click.argument("session")
@click.argument("decisions", metavar="[DECISION...]", nargs=-1)
@click.option("--window", is_flag=True, help="Forget the window learned from refusals, and use the configured one.")
@click.option("--restore", "restores", is_flag=True, help="Put an undone decision in force again.")
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="Only list the decisions in force, the newest first; with --restore the undone ones.",
)
@click.option(
    "-n",
    "--limit",
    type=IntegerParamType(1),
    default=DEFAULT_UNDO_LIMIT,
    show_default=True,
    help="Number of decisions --list shows.",
)
@store_option
@make_json_option("the revoked or restored decisions, or the list,")
def undo_command(
    session: str,
    decisions: tuple[str, ...],
    limit: int,
    store: str | None,
    *,
    window: bool,
    restores: bool,
    listed: bool,
    as_json: bool,
) -> None:
    """Undo a decision: the messages it had reduced are shown in full again.

    SESSION and DECISION are the beginnings of ids; without DECISION it is the newest decision or compaction in force.
    Of several, all are undone or none. The log gets an entry that revokes the decision: later messages stay where they
    are, and the messages it had reduced or hidden are shown again. Running undo again undoes the decision before that.

    --restore puts the decision that was undone last, or DECISION, in force again, in its old place among the others:
    the next request is what it would be without the undo. It can be undone again.

    A request that was refused as too large teaches Holdfast the size of the window, until another window is configured
    or a larger request is accepted. If the provider accepts more by now, --window forgets that size.
    """
    if listed and decisions:
        raise CommandError("--list lists all of them; leave DECISION out")
    if window and (listed or restores or decisions):
        raise CommandError("--window only forgets the learned window; give it without --list, --restore and DECISION")
    # Listing writes nothing, so it also works on a store that cannot be written.
    with open_named_store(store, readonly=listed) as there:
        info = there.get_session(session)
        if listed:
            _list_decisions(there, info, limit, restores=restores, as_json=as_json)
            return
        with ProgressBar("restoring" if restores else "undoing", is_wanted=not as_json):
            outcome: UndoOutcome | WindowChange
            if window:
                outcome = forget_window(there, info)
            else:
                outcome = change_decisions(there, info, *decisions, is_restored=restores)
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        _print_undo(info, outcome)


def _list_decisions(store: SessionStore, info: SessionInfo, limit: int, *, restores: bool, as_json: bool) -> None:
    """Print the decisions in force, or with ``restores`` those that can be put in force again."""
    shown_limit = None if as_json else limit
    listed: UndoList | RestoreList
    with ProgressBar("reading", is_wanted=not as_json):
        log = load_branch_history(store, info.key)
        if restores:
            decisions = list_restorable(info, log, shown_limit)
            count = len(log.state.view.revoked_decisions)
            listed = RestoreList(info.key, tuple(decisions))
        else:
            decisions = list_undoable(info, log, shown_limit)
            count = len(list_active_decisions(log.state))
            listed = UndoList(info.key, tuple(decisions))
    if as_json:
        print_json(msgspec.to_builtins(listed))
    else:
        _print_decisions(info, decisions, count, restores=restores)


def forget_window(store: SessionStore, info: SessionInfo) -> WindowChange:
    """Forget the window that overflows taught for a session, and return the change."""
    with open_journal_at_leaf(store, info.key) as journal:
        before = _get_effective_limits(info, journal.state)
        if before.window_source != guard.LEARNED_ORIGIN:
            raise CommandError(
                f"no refusal told of a smaller window: it is {before.window:,} tokens ({before.window_source})"
            )
        journal.forget_learned_window()
    after = _get_effective_limits(info, journal.state)
    return WindowChange(info.key, before.window, after.window, after.window_source)


def _get_effective_limits(info: SessionInfo, state: ConversationState) -> ModelLimits:
    place, settings = get_target_and_settings(info, state, config.load_configuration())
    return guard.compute_effective_target(place, state, settings).limits


# -- in words ----------------------------------------------------------------------------------------------------------


def _print_undo(info: SessionInfo, outcome: UndoOutcome | WindowChange) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    if isinstance(outcome, WindowChange):
        text = (
            f"the window is {outcome.after:,} tokens again ({outcome.origin}); the forgotten one was {outcome.before:,}"
        )
        print_wrapped(out, Text(text, "green"))
        return
    changed = (outcome.decision, *outcome.also)
    ids = shorten_entry_ids(decision.id for decision in changed)
    verb = "restored" if outcome.is_restored else "undone"
    for decision in changed:
        line = f"{_name_decision(decision, ids[decision.id])} {verb}: {_format_undo_effect(decision)}"
        print_wrapped(out, Text(line, "green"))
    print_wrapped(
        out,
        Text(f"the next request holds {format_tokens(outcome.after)} tokens; it was {format_tokens(outcome.before)}"),
    )


def _name_decision(decision: UndoableDecision, id_: str) -> str:
    # A compaction is its own rule, which would only repeat the word.
    if decision.rules == (decision.kind,):
        rules = ""
    else:
        rules = f" ({', '.join(map(clean_single_line, decision.rules))})"
    return f"{decision.kind} {clean_single_line(id_)}{rules}"


def _format_undo_effect(decision: UndoableDecision) -> str:
    subject = "message is" if decision.messages == 1 else "messages are"
    tokens = format_tokens(abs(decision.token_growth))
    direction = "more" if decision.token_growth >= 0 else "fewer"
    return f"{tokens} tokens {direction}, {decision.messages:,} {subject} shown differently"


def _print_decisions(info: SessionInfo, decisions: Sequence[UndoableDecision], count: int, *, restores: bool) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    if not decisions:
        out.print(
            "nothing is undone that could be restored" if restores else "nothing is in force that could be undone"
        )
    ids = shorten_entry_ids(decision.id for decision in decisions)
    for decision in decisions:
        condition = "with it" if restores else "without it"
        effect = f"{condition} {_format_undo_effect(decision)}: {_name_decision(decision, ids[decision.id])}"
        print_wrapped(out, Text.assemble((f"{format_time(decision.at):14} ", "dim"), effect))
    print_more_hint(count - len(decisions), "older decision", "--limit")
