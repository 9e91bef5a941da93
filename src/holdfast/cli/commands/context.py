"""``holdfast context``: show the contents of a session's next request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from shlex import quote
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import (
    COLUMN_GAP,
    ProgressBar,
    clean_single_line,
    make_console,
    make_json_option,
    print_command,
    print_json,
    print_line,
    print_table,
    print_wrapped,
)
from holdfast.cli.reports.describe import format_session_line, shorten_entry_ids, summarize_part
from holdfast.cli.reports.history import (
    SHORT_ID,
    BranchHistory,
    build_state_at_entry,
    find_session_or_entry,
    load_branch_history,
)
from holdfast.cli.reports.next_plan import (
    ActiveDecision,
    NextPlan,
    describe_active_decisions,
    describe_next_plan,
    make_session_plan_inputs,
    preview_next_plan,
    record_next_plan,
)
from holdfast.cli.reports.request_size import format_tokens, get_session_settings, get_session_target, measure_request
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning import budget as guard
from holdfast.planning.pipeline import Policy
from holdfast.planning.settings import Settings
from holdfast.replay.tokenizer import count_part_tokens
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import RequestSetup
from holdfast.state.target import Target
from holdfast.state.view import build_projection, get_valid_measured_request, list_projection_origins
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast context 4d56
  holdfast context 4d56 --window 200000 --top 20
  holdfast context 4d56 --policy holdfast
  holdfast context 4d56 --policy holdfast --window 96000 --record
"""
UNEXPLAINED = "rest"
"""Tokens that the provider reported beyond the messages: system prompt and tools, if the recording lacks them."""
_MAX_BAR = 40
"""Columns of a bar for the whole window, in a wide terminal."""
_LISTED_DECISIONS = 10
"""How many of the newest decisions are listed. Chosen by judgement, so that they do not push the table off a screen."""
_KIND_ORDER = (
    "setup",
    "system",
    "summary",
    "user",
    "assistant",
    "thinking",
    "calls",
    "results",
    "stubs",
    "media",
    "other",
)


class ContextPart(Struct, frozen=True):
    """A part of a message in the request; ``message`` is the message's number, -1 for the summary."""

    message: int
    kind: str
    tokens: int
    text: str


class ContextBreakdown(Struct, frozen=True):
    """The contents of a request. Tokens are estimates, except ``tokens`` if ``is_counted``."""

    session: str
    model: str
    window: int
    origin: str
    """The source of the window's size."""
    usable: int
    tokens: int
    messages: int
    kinds: dict[str, int]
    largest: tuple[ContextPart, ...]
    active_decisions: tuple[ActiveDecision, ...] = ()
    next_plan: NextPlan | None = None
    """The decisions of the policy that was asked for, planned or recorded."""
    is_counted: bool = False
    """Whether the provider counted exactly this request."""


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


def describe_context(
    session: str,
    state: ConversationState,
    target: Target,
    top: int,
    settings: Settings,
    next_plan: NextPlan | None = None,
) -> ContextBreakdown:
    """Describe the request that ``state`` makes to ``target``, in the window learned from overflows."""
    size = measure_request(state, target, settings)
    target = guard.compute_effective_target(target, state, settings)
    is_measured = get_valid_measured_request(state) is not None and state.last_request.model in {"", target.model}
    message_tokens = size.tokens - size.setup_tokens
    pieces = list(_iterate_context_parts(state, size.scale))
    pieces = _fit_parts_to_total(pieces, message_tokens, exact=not is_measured)
    kinds: Counter[str] = Counter()
    # Without a recorded system prompt, the tokens beyond the messages were only measured, so they are unexplained.
    kinds[UNEXPLAINED if state.setup == RequestSetup() else "setup"] = size.setup_tokens
    for piece in pieces:
        kinds[piece.kind] += piece.tokens
    if is_measured:
        kinds[UNEXPLAINED] += max(0, size.tokens - sum(kinds.values()))
    shown_kinds = {}
    for kind in (*_KIND_ORDER, UNEXPLAINED):
        if kinds[kind]:
            shown_kinds[kind] = kinds[kind]
    budget = guard.compute_budget(target, settings)
    return ContextBreakdown(
        session=session,
        model=target.model,
        window=budget.window,
        origin=target.limits.window_source,
        usable=max(0, budget.usable),
        tokens=size.tokens,
        messages=len(build_projection(state)),
        kinds=shown_kinds,
        largest=tuple(sorted(pieces, key=lambda piece: -piece.tokens)[:top]),
        active_decisions=describe_active_decisions(state),
        next_plan=next_plan,
        is_counted=size.is_counted,
    )


def _iterate_context_parts(state: ConversationState, scale: float) -> Iterator[ContextPart]:
    """Yield the parts of the request; a message's tokens are divided among its parts by their size."""
    tool_names: dict[str, str] = {}
    for sized_message, origin in zip(build_projection(state), list_projection_origins(state), strict=True):
        message = sized_message.message
        # A result names only the id of its call, and its line shows the tool.
        for call in message.calls:
            tool_names[call.id] = call.name
        sizes = [count_part_tokens(part, estimate_text_tokens) for part in message.parts]
        # A message has overhead beside its parts, which the parts share.
        part_scale = scale * max(sized_message.tokens, sum(sizes)) / (sum(sizes) or 1)
        for part, size in zip(message.parts, sizes, strict=True):
            tool_name = ""
            if isinstance(part, ToolResult):
                tool_name = tool_names.get(part.call_id, "")
            kind = _classify_part(sized_message, origin, part)
            yield ContextPart(origin, kind, round(part_scale * size), summarize_part(part, tool_name))


def _fit_parts_to_total(pieces: list[ContextPart], budget: int, *, exact: bool) -> list[ContextPart]:
    """Scale ``pieces`` down to ``budget`` tokens in total; with ``exact`` scale them up to it as well."""
    total = sum(piece.tokens for piece in pieces)
    if not total or total == budget:
        return pieces
    # A measured total above the parts is not theirs: it becomes the unexplained rest.
    if total < budget and not exact:
        return pieces
    # Each piece ends at its scaled running total, so that rounding errors do not add up.
    scaled_pieces = []
    running_total = scaled_start = 0
    for piece in pieces:
        running_total += piece.tokens
        scaled_end = running_total * budget // total
        scaled_pieces.append(replace(piece, tokens=scaled_end - scaled_start))
        scaled_start = scaled_end
    return scaled_pieces


def _classify_part(message: SizedMessage, origin: int, part: Part) -> str:
    """Return the kind of a part, as the table names it."""
    if origin < 0:
        return "summary"
    if isinstance(part, Text):
        return "results" if message.message.role == "tool" else message.message.role
    if isinstance(part, ToolResult):
        # A reduced message no longer has the bytes it arrived with.
        is_reduced = message.raw is None and message.base_raw is not None
        return "stubs" if is_reduced else "results"
    if isinstance(part, Thinking):
        return "thinking"
    if isinstance(part, ToolCall):
        return "calls"
    if isinstance(part, Media):
        return "media"
    return "other"


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
