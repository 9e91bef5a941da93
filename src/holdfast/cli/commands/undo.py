"""``holdfast undo``: undo a decision, so that the messages it reduced are shown in full again."""

from __future__ import annotations

from collections.abc import Container

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

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
from holdfast.planning.settings import Settings
from holdfast.reports.describe import format_time, shorten_entry_ids
from holdfast.reports.history import (
    BranchHistory,
    MessageState,
    build_branch_history,
    list_active_decisions,
    list_message_visibility,
    list_shown_edits,
    load_branch_history,
)
from holdfast.reports.request_size import format_tokens, get_target_and_settings, measure_request
from holdfast.reports.session_lock import open_journal_at_leaf
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, RevokeEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import ModelLimits, Target
from holdfast.state.view import (
    get_next_shown_index,
    get_valid_measured_request,
    list_shown_indexes,
    list_shown_sized_messages_at,
)
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast undo 4d56 --list
  holdfast undo 4d56
  holdfast undo 4d56 e77b
  holdfast undo 4d56 e77b 9c8f
  holdfast undo 4d56 --window
"""
DEFAULT_UNDO_LIMIT = 20
"""Decisions listed without --limit. Chosen by judgement: one screen."""


class UndoableDecision(Struct, frozen=True):
    """A decision or compaction in force, and the effect of undoing it. Tokens are estimates."""

    id: str
    kind: str
    rules: tuple[str, ...]
    at: int | None
    messages: int
    """Messages that would be shown in full, or less reduced."""
    token_growth: int
    """Tokens by which the next request would grow."""


class UndoList(Struct, frozen=True):
    """The decisions in force in a session, the newest first."""

    session: str
    in_force: tuple[UndoableDecision, ...]


class UndoOutcome(Struct, frozen=True, omit_defaults=True):
    """The revoked decisions, and the effect on the next request."""

    session: str
    decision: UndoableDecision
    before: int
    after: int
    """Tokens of the next request, as ``holdfast context`` shows them."""
    also: tuple[UndoableDecision, ...] = ()
    """Further decisions revoked, each described as it stood at that moment."""


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
@click.option("--list", "listed", is_flag=True, help="Only list the decisions in force, the newest first.")
@click.option(
    "-n",
    "--limit",
    type=IntegerParamType(1),
    default=DEFAULT_UNDO_LIMIT,
    show_default=True,
    help="Number of decisions --list shows.",
)
@store_option
@make_json_option("the revoked decisions, or all in force,")
def undo_command(
    session: str,
    decisions: tuple[str, ...],
    limit: int,
    store: str | None,
    *,
    window: bool,
    listed: bool,
    as_json: bool,
) -> None:
    """Undo a decision: the messages it had reduced are shown in full again.

    SESSION and DECISION are the beginnings of ids; without DECISION it is the newest decision or compaction in force.
    Of several, all are undone or none. The log gets an entry that revokes the decision: later messages stay where they
    are, and the messages it had reduced or hidden are shown again. Running undo again undoes the decision before that.

    A request that was refused as too large teaches Holdfast the size of the window, until another window is configured
    or a larger request is accepted. If the provider accepts more by now, --window forgets that size.
    """
    if listed and decisions:
        raise CommandError("--list lists all decisions in force; leave DECISION out")
    if window and (listed or decisions):
        raise CommandError("--window only forgets the learned window; give it without --list and DECISION")
    # Listing writes nothing, so it also works on a store that cannot be written.
    with open_named_store(store, readonly=listed) as there:
        info = there.get_session(session)
        if listed:
            with ProgressBar("reading", is_wanted=not as_json):
                log = load_branch_history(there, info.key)
                undoable = list_undoable(info, log, None if as_json else limit)
            count = len(list_active_decisions(log.state))
            _print_undoable(info, UndoList(info.key, tuple(undoable)), count, as_json=as_json)
            return
        with ProgressBar("undoing", is_wanted=not as_json):
            outcome: UndoOutcome | WindowChange
            if window:
                outcome = forget_window(there, info)
            else:
                outcome = undo_decisions(there, info, *decisions)
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        _print_undo(info, outcome)


def list_undoable(info: SessionInfo, log: BranchHistory, limit: int | None = None) -> list[UndoableDecision]:
    """List up to ``limit`` decisions in force, the newest first, each with the effect of undoing it alone."""
    state = log.state
    times = _map_entry_times(log)
    target_and_settings = get_target_and_settings(info, state, config.load_configuration())
    newest = list(reversed(list_active_decisions(state)))
    shown_indexes = set(list_shown_indexes(state, state.view.first_kept))
    # Only this one needs a full fold: without it the provider's count may be valid again, and with it the exact size.
    measured_id = _find_measured_decision(state, newest, shown_indexes)
    undoable_decisions = []
    for decision in newest[:limit]:
        id_, body = decision
        without = _remove_decision(state, id_, body, shown_indexes, fold=id_ == measured_id)
        undoable_decisions.append(_describe_undo(times, decision, target_and_settings, state, without))
    return undoable_decisions


def _map_entry_times(log: BranchHistory) -> dict[str, int | None]:
    return {entry.id: entry.time_ms for entry in log.entries}


def _describe_undo(
    times: dict[str, int | None],
    decision: tuple[str, DecisionEntry | CompactionEntry],
    target_and_settings: tuple[Target, Settings],
    state: ConversationState,
    without: ConversationState,
) -> UndoableDecision:
    """Describe the effect of undoing ``decision``: ``state`` without it is ``without``."""
    id_, body = decision
    tokens = measure_request(state, *target_and_settings).tokens
    growth = measure_request(without, *target_and_settings).tokens - tokens
    # The edits of a decision name their messages; for a compaction both states must be compared.
    if isinstance(body, DecisionEntry):
        rules = tuple(dict.fromkeys(edit.rule for edit in body.edits))
        # Several edits may concern one message, for example its parts.
        covered_numbers: set[int] = set()
        for edit in list_shown_edits(state, body):
            covered_numbers.update(range(edit.span.start, edit.span.stop))
        return UndoableDecision(id_, "decision", rules, times[id_], len(covered_numbers), growth)
    changed_count = 0
    for old, new in zip(_list_message_fates(state), _list_message_fates(without), strict=True):
        if old != new:
            changed_count += 1
    return UndoableDecision(id_, "compaction", ("compaction",), times[id_], changed_count, growth)


def _fold_revoke(state: ConversationState, id_: str) -> ConversationState:
    return apply_entry(state, Entry("", None, RevokeEntry(id_)))


def _remove_decision(
    state: ConversationState,
    id_: str,
    body: DecisionEntry | CompactionEntry,
    shown_indexes: Container[int],
    *,
    fold: bool,
) -> ConversationState:
    """Return ``state`` without ``body``; unless ``fold``, only its size is right.

    Folding costs as much as all that is in force, and a decision's saving is known, so most sizes need no fold.
    """
    if fold or isinstance(body, CompactionEntry):
        return _fold_revoke(state, id_)
    measurement = state.usage.measured_request
    if measurement is not None and _find_first_changed_message(state, body, shown_indexes) < measurement.message_count:
        # The request that the provider counted had the decision, so its count does not hold without it.
        measurement = replace(measurement, projection_digest=b"")
    saved_tokens = sum(edit.saves for edit in list_shown_edits(state, body))
    return replace(
        state,
        view=replace(state.view, shown_tokens=state.view.shown_tokens + saved_tokens),
        usage=replace(state.usage, measured_request=measurement),
    )


def _find_measured_decision(
    state: ConversationState,
    newest: list[tuple[str, DecisionEntry | CompactionEntry]],
    shown_indexes: Container[int],
) -> str:
    """Return the id of the decision without which the last counted request may be valid again, or an empty string.

    Every change came after the count, so only the newest decision about the counted messages can be the one.
    """
    measurement = state.usage.measured_request
    if measurement is None or get_valid_measured_request(state) is not None:
        return ""
    for id_, body in newest:
        if _find_first_changed_message(state, body, shown_indexes) < measurement.message_count:
            return id_
    return ""


def _find_first_changed_message(
    state: ConversationState,
    body: DecisionEntry | CompactionEntry,
    shown_indexes: Container[int],
) -> int:
    """Return the first of ``shown_indexes`` that would look different without ``body``, else the message count."""
    edits_by_index: dict[int, list[Edit]] = {}
    for edit in list_shown_edits(state, body):
        edits_by_index.setdefault(edit.span.start, []).append(edit)
    for index in sorted(edits_by_index):
        if index in shown_indexes and _is_shown_differently(state, index, edits_by_index[index]):
            return index
    return len(state.history.sized_messages)


def _is_shown_differently(state: ConversationState, at: int, edits: list[Edit]) -> bool:
    """Return whether message ``at`` would look different without ``edits``; other edits may cover it as well."""
    # Removed one by one: an equal edit of another decision stays.
    other_edits = list(state.view.edits[at])
    for edit in edits:
        other_edits.remove(edit)
    # Only this message is looked at, so a view with its edits alone is enough.
    edits_there = {at: tuple(other_edits)} if other_edits else {}
    without = replace(state, view=replace(state.view, edits=edits_there))
    if get_next_shown_index(state, at) != get_next_shown_index(without, at):
        return True
    digests = [sized_message.digest for sized_message in list_shown_sized_messages_at(state, at)]
    digests_without = [sized_message.digest for sized_message in list_shown_sized_messages_at(without, at)]
    return digests != digests_without


def _list_message_fates(conversation_state: ConversationState) -> list[tuple[MessageState, tuple[Edit, ...]]]:
    """Return how each message is shown, and by which edits."""
    message_fates: list[tuple[MessageState, tuple[Edit, ...]]] = []
    for index, state in enumerate(list_message_visibility(conversation_state)):
        edits: tuple[Edit, ...] = ()
        # Edits of a hidden message change nothing that is shown.
        if state != "hidden":
            edits = conversation_state.view.edits.get(index, ())
        message_fates.append((state, edits))
    return message_fates


def undo_decisions(store: SessionStore, info: SessionInfo, *decisions: str) -> UndoOutcome:
    """Revoke decisions of a session, by default the newest, and return the effect."""
    key = info.key
    with open_journal_at_leaf(store, key) as journal:
        revoked_ids = journal.revoke_decisions(*decisions or (None,))
    path = store.read_path(key, journal.leaf)
    count_before = len(path) - len(revoked_ids)
    state_before = build_branch_history(path[:count_before]).state
    target_and_settings = get_target_and_settings(info, state_before, config.load_configuration())
    undone: list[UndoableDecision] = []
    # Each revocation is one entry at the end of the log, so the log just before it ends one entry earlier.
    for number, id_ in enumerate(revoked_ids):
        log = build_branch_history(path[: count_before + number])
        decision = (id_, dict(log.state.view.active_decisions)[id_])
        without = _fold_revoke(log.state, id_)
        undone.append(_describe_undo(_map_entry_times(log), decision, target_and_settings, log.state, without))
    first, *also = undone
    before = measure_request(state_before, *target_and_settings).tokens
    after = measure_request(journal.state, *target_and_settings).tokens
    return UndoOutcome(key, first, before, after, tuple(also))


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
    undone = (outcome.decision, *outcome.also)
    ids = shorten_entry_ids(decision.id for decision in undone)
    for decision in undone:
        print_wrapped(
            out,
            Text(
                f"{_name_decision(decision, ids[decision.id])} undone: {_format_undo_effect(decision)}",
                "green",
            ),
        )
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


def _print_undoable(info: SessionInfo, decisions: UndoList, count: int, *, as_json: bool) -> None:
    from rich.text import Text

    if as_json:
        print_json(msgspec.to_builtins(decisions))
        return
    out = make_console()
    print_line(out, format_session_line(info))
    if not decisions.in_force:
        out.print("nothing is in force that could be undone")
    ids = shorten_entry_ids(decision.id for decision in decisions.in_force)
    for decision in decisions.in_force:
        effect = f"without it {_format_undo_effect(decision)}: {_name_decision(decision, ids[decision.id])}"
        print_wrapped(out, Text.assemble((f"{format_time(decision.at):14} ", "dim"), effect))
    print_more_hint(count - len(decisions.in_force), "older decision", "--limit")
