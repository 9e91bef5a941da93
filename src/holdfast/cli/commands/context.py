"""``holdfast context``: show the contents of a session's next request."""

from __future__ import annotations

from shlex import quote
from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import (
    COLUMN_GAP,
    ProgressBar,
    make_console,
    make_json_option,
    print_command,
    print_json,
    print_line,
    print_table,
    print_wrapped,
)
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.pipeline import Policy
from holdfast.reports.describe import shorten_entry_ids
from holdfast.reports.requests.context_parts import UNEXPLAINED, ContextBreakdown, describe_context
from holdfast.reports.requests.next_plan import (
    NextPlan,
    describe_next_plan,
    make_session_plan_inputs,
    preview_next_plan,
    record_next_plan,
)
from holdfast.reports.requests.request_size import format_tokens, get_session_settings, get_session_target
from holdfast.reports.sessions.history import (
    SHORT_ID,
    BranchHistory,
    build_state_at_entry,
    find_session_or_entry,
    load_branch_history,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.target import Target
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast context 4d56
  holdfast context 4d56 --window 200000 --top 20
  holdfast context 4d56 --policy holdfast
  holdfast context 4d56 --policy holdfast --window 96000 --record
"""
_MAX_BAR = 40
"""Columns of a bar for the whole window, in a wide terminal."""
_LISTED_DECISIONS = 10
"""How many of the newest decisions are listed. Chosen by judgement, so that they do not push the table off a screen."""


class ContextOptions(Struct, frozen=True):
    """The options of the command line."""

    session: str
    model: str | None
    window: int | None
    top: int
    policy: str | None
    record: bool
    store: str | None
    as_json: bool


@click.command("context", epilog=EXAMPLES)
@click.argument("session")
@click.option("--model", help="The model of the next request. [default: the recorded one]")
@click.option("--window", type=IntegerParamType(1), help="Its window in tokens. [default: the model's]")
@click.option(
    "--top",
    type=IntegerParamType(0),
    default=10,
    show_default=True,
    help="Number of large parts to list.",
)
@click.option("--policy", metavar="NAME", help="Show what this policy would decide before the request.")
@click.option("--record", is_flag=True, help="Record these decisions (spills, edits, compaction) in the log.")
@store_option
@make_json_option("the figures")
def context_command(**given: Any) -> None:
    """Show what the next request of a session would hold: tokens by kind, and the largest parts.

    SESSION is the beginning of an id; the id of an entry, for example from x-holdfast-request, shows what that request
    held. Recorded compactions and decisions are applied. Tokens are our estimate, calibrated by the usage of requests
    that Holdfast sent itself.

    With --policy, the command lists what that policy would decide before the request, if it were made now. With
    --record as well, these decisions are recorded, as a real request would do, so that holdfast export --reduced writes
    the reduced session. Nothing is sent, and holdfast undo reverts it.
    """
    options = ContextOptions(**given)
    if options.record and options.policy is None:
        raise CommandError("--record needs a policy whose decisions to record; give --policy NAME")
    with ProgressBar("reading", is_wanted=not options.as_json):
        context, info = _load_context(options)
    if options.as_json:
        print_json(msgspec.to_builtins(context))
    else:
        _print_context(context, info)


def _load_context(options: ContextOptions) -> tuple[ContextBreakdown, SessionInfo]:
    """Load the request's contents, after recording decisions if asked to."""
    configuration = config.load_configuration()
    # Only recording needs a store that can be written.
    with open_named_store(options.store, readonly=not options.record) as there:
        info, entry = find_session_or_entry(there, options.session)
        leaf = entry.id if entry is not None else None
        if leaf is not None and options.record:
            raise CommandError(
                f"{options.session} is an entry, and decisions are recorded only at a session's end; name the session"
            )
        if options.policy is None:
            state = build_state_at_entry(there, info.key, entry)
            next_plan = None
            settings = get_session_settings(state, configuration)
            place = get_session_target(info, state, options.model, options.window, configuration.catalog)
        else:
            log = load_branch_history(there, info.key, leaf)
            place = get_session_target(
                info,
                log.state,
                options.model,
                options.window,
                configuration.catalog,
            )
            policy = configuration.build_policy(options.policy).for_session(info.key)
            settings = policy.settings
            next_plan, state = _preview_or_record(
                there,
                info.key,
                log,
                place,
                policy,
                record=options.record,
            )
    return describe_context(info.key, state, place, options.top, settings, next_plan), info


def _preview_or_record(
    store: SessionStore,
    key: str,
    log: BranchHistory,
    target: Target,
    policy: Policy,
    *,
    record: bool,
) -> tuple[NextPlan, ConversationState]:
    """Plan the decisions, record them if asked to and there are any, and return them with the resulting state."""
    inputs = make_session_plan_inputs(log, target)
    next_plan = preview_next_plan(log, target, policy, inputs)
    # An empty decision in the log would be listed as one that can be undone.
    if record and next_plan.changes:
        return record_next_plan(store, key, log, target, policy, inputs)
    return next_plan, log.state


def _print_context(context: ContextBreakdown, info: SessionInfo) -> None:
    from rich.text import Text

    out = make_console()
    size = format_tokens(context.tokens, is_counted=context.is_counted)
    share = context.tokens / context.window
    head = f"{size} of {context.window:,} tokens ({share:.0%})"
    print_line(out, format_session_line(info))
    head_style = "red" if context.tokens > context.usable else "green"
    model = clean_single_line(context.model) or "no model"
    where = f"{model}, window: {context.origin}; usable {context.usable:,}"
    print_wrapped(out, Text.assemble((head, head_style), (f"  {where}", "dim")))
    out.print()
    print_table(out, _make_context_table(context, out.width))
    if UNEXPLAINED in context.kinds:
        print_wrapped(out, Text("rest: reported by the provider beyond these messages (system prompt, tools)", "dim"))
    if context.largest:
        out.print()
        out.print(Text("the largest parts", style="dim"))
    for piece in context.largest:
        number = "summary" if piece.message < 0 else f"#{piece.message}"
        print_line(out, Text(f"{piece.tokens:>9,}  {number:>7}  {piece.kind:9}  {clean_single_line(piece.text)}"))
    _print_decisions_in_force(out, context)


def _print_decisions_in_force(console: Any, context: ContextBreakdown) -> None:
    """Print the decisions in force, and those of the policy that was asked for."""
    from rich.text import Text

    if context.active_decisions:
        count = len(context.active_decisions)
        console.print()
        console.print(Text(f"in force: {count:,} {'entry' if count == 1 else 'entries'}", style="dim"))
    short = shorten_entry_ids(decision.id for decision in context.active_decisions)
    for decision in context.active_decisions[-_LISTED_DECISIONS:]:
        rules = ", ".join(f"{clean_single_line(rule)} {count:,}" for rule, count in decision.rules.items())
        print_wrapped(console, Text(f"  {decision.kind:10} {clean_single_line(short[decision.id])} {rules}".rstrip()))
    if context.next_plan is not None:
        console.print()
        for line in describe_next_plan(context.next_plan):
            # Cleaning merges blanks, so the indent of a line is added again.
            indent = "  " if line.startswith(" ") else ""
            print_wrapped(console, Text(f"{indent}{clean_single_line(line)}"))
        if context.next_plan.entry_ids:
            ids = " ".join(decision[:SHORT_ID] for decision in reversed(context.next_plan.entry_ids))
            session = quote(clean_single_line(context.session))
            print_command(console, Text(f"to undo it: holdfast undo {session} {ids}", style="dim"))


def _make_context_table(context: ContextBreakdown, width: int) -> Any:
    """Return a table of the kinds with tokens, shares and bars; the bars take the rest of ``width``."""
    from rich.table import Table

    table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False, show_header=False)
    table.add_column("kind", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    free_tokens = max(0, context.window - context.tokens)
    parts = (*context.kinds.items(), ("free", free_tokens))
    rows = [(kind, f"{tokens:,}", f"{tokens / context.window:.1%}") for kind, tokens in parts]
    text_width = sum(max(map(len, column)) + COLUMN_GAP for column in zip(*rows, strict=True))
    longest = max(0, min(_MAX_BAR, width - text_width))
    for row, (_, tokens) in zip(rows, parts, strict=True):
        # A request over the window would have a bar longer than its column.
        length = min(longest, round(longest * tokens / context.window))
        table.add_row(*row, "█" * length)
    return table
