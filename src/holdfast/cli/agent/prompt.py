"""The interactive mode of the agent: a prompt, and its slash commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import click
from rich.text import Text

from holdfast.agent.loop import TaskOutcome, is_conversation_answered
from holdfast.cli.agent.agent_thread import AgentTerminal
from holdfast.cli.agent.meter import format_window_fill
from holdfast.cli.output.errors import describe_error
from holdfast.cli.output.terminal import make_console, print_line
from holdfast.engine.recall import format_spill_line, list_spilled_texts
from holdfast.errors import FormatError, HoldfastError
from holdfast.events import CompactionEnded
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import summarize_message
from holdfast.reports.requests.request_size import format_tokens
from holdfast.reports.sessions.history import (
    SHORT_ID,
    BranchHistory,
    find_continuation_leaf,
    find_entry,
    load_branch_history,
)

LISTED_MESSAGES = 20
"""How many messages ``/branch`` lists. Chosen by judgement: they fit on one screen."""
_PROMPT = "> "


def run_interactive_prompt(agent_terminal: AgentTerminal) -> None:
    """Read and run lines until ``/quit``, the end of the input, ^C twice, or a signal to terminate."""
    _print_greeting(agent_terminal)
    leaving = False
    while not agent_terminal.end.signal_number:
        try:
            line = input(_PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            if leaving or agent_terminal.end.signal_number:
                return
            leaving = True
            agent_terminal.screen.print_note("^C again leaves, as /quit does")
            continue
        leaving = False
        if line.strip() in ("/quit", "/exit"):
            return
        _handle_line(agent_terminal, line.strip())


def _print_greeting(agent_terminal: AgentTerminal) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  importing it gives input() line editing and history
    state = agent_terminal.session.journal.state
    start = "begins"
    if state.history.sized_messages:
        start = f"continues after {format_count(len(state.history.sized_messages), 'message')}"
    agent_terminal.screen.print_note(
        f"session {agent_terminal.session.key} {start}; works in {agent_terminal.order.folder}; /help lists the "
        "commands"
    )
    if not is_conversation_answered(state):
        agent_terminal.screen.print_note(
            "its last task was not finished: press Enter on an empty line to resume it", "yellow"
        )


def _handle_line(agent_terminal: AgentTerminal, line: str) -> None:
    """Run one line; an error is printed and changes nothing."""
    name, _, arguments = line.partition(" ")
    try:
        if line.startswith("/"):
            _run_slash_command(agent_terminal, name, arguments.strip())
        elif line or not is_conversation_answered(agent_terminal.session.journal.state):
            print_outcome(agent_terminal, agent_terminal.run_task(line))
    except HoldfastError as error:
        agent_terminal.screen.print_note(describe_error(error), "red")


def print_outcome(agent_terminal: AgentTerminal, outcome: TaskOutcome) -> None:
    """Print how the work ended, and how full the context is."""
    if outcome.reason:
        style = "red" if outcome.stop == "error" else "yellow"
        agent_terminal.screen.print_note(f"{outcome.stop}: {outcome.reason}", style)
    agent_terminal.screen.print_note(agent_terminal.format_status())


# -- commands ----------------------------------------------------------------------------------------------------------


def _run_slash_command(agent_terminal: AgentTerminal, name: str, arguments: str) -> None:
    handler = _SLASH_COMMANDS.get(name)
    if handler is None:
        raise FormatError(f"there is no {name}; the commands are {', '.join(_SLASH_COMMANDS)}, /quit")
    handler(agent_terminal, arguments)


def _run_help_command(agent_terminal: AgentTerminal, _: str) -> None:
    """Show this list."""
    for name, handler in _SLASH_COMMANDS.items():
        click.echo(f"  {name:10}{handler.__doc__}")
    click.echo(
        f"  {'/quit':10}Leave; resume the session later with: {clean_single_line(agent_terminal.order.resume_command)}"
    )


def _run_context_command(agent_terminal: AgentTerminal, _: str) -> None:
    """Show what the next request would hold."""
    report = agent_terminal.session.report()
    reserve = report.window - report.usable_tokens
    free_tokens = max(0, report.usable_tokens - report.tokens)
    compactions = format_count(report.compaction_count, "compaction")
    decisions = format_count(report.decision_count, "other decision")
    rows = {
        "next request": f"{format_tokens(report.tokens)} tokens ({format_window_fill(report)})",
        "window": f"{report.window:,} tokens ({report.window_source})",
        "system, tools": f"{format_tokens(report.setup_tokens)} tokens",
        "reserved": f"{reserve:,} tokens for the answer",
        "free": f"{format_tokens(free_tokens)} tokens",
        "messages": format_count(report.message_count, "message"),
        "in force": f"{compactions}, {decisions}",
        "policy": report.policy,
    }
    for name, value in rows.items():
        click.echo(f"  {name:14} {value}")
    click.echo(f"  {agent_terminal.format_status()}")


def _run_compact_command(agent_terminal: AgentTerminal, focus: str) -> None:
    """Compact now; /compact FOCUS tells the summary what matters most."""
    result = agent_terminal.run_stoppable(lambda: agent_terminal.session.compact(focus))
    if isinstance(result, CompactionEnded) and result.outcome != "compacted":
        agent_terminal.screen.print_note(f"not compacted: {result.why}", "yellow")
    agent_terminal.screen.print_note(agent_terminal.format_status())


def _run_branch_command(agent_terminal: AgentTerminal, entry: str) -> None:
    """List the newest messages; /branch ID continues after one of them (a number, or the beginning of an id)."""
    store = agent_terminal.store
    key = agent_terminal.session.key
    log = load_branch_history(store, key, agent_terminal.session.journal.leaf)
    if not entry:
        _print_newest_messages(log)
        return
    place = find_continuation_leaf(store, key, find_entry(store, key, log, entry))
    with store.hold_lease(key):
        store.set_leaf(key, place.id)
    new_session = agent_terminal.run_stoppable(lambda: agent_terminal.session.branch(place.id))
    if new_session is not None:
        new_session.journal.take_session_leaf()
        agent_terminal.session = new_session
        count = format_count(len(new_session.journal.state.history.sized_messages), "message")
        agent_terminal.screen.print_note(f"continues after {count}; the later ones stay in the log")


def _print_newest_messages(log: BranchHistory) -> None:
    out = make_console()
    if not log.message_entries:
        click.echo("there are no messages yet")
    first = max(0, len(log.message_entries) - LISTED_MESSAGES)
    for number, message_entry in enumerate(log.message_entries[first:], first):
        head = f"#{number:<4} {clean_single_line(message_entry.id)[:SHORT_ID]} "
        summary = summarize_message(log.state.history.messages[number])
        print_line(out, Text.assemble((head, "dim"), summary))


def _run_undo_command(agent_terminal: AgentTerminal, entry: str) -> None:
    """Undo the newest decision or compaction; /undo ID undoes that one."""
    revoked_id = agent_terminal.run_stoppable(lambda: agent_terminal.session.undo(entry or None))
    if revoked_id is not None:
        agent_terminal.screen.print_note(f"undone: {clean_single_line(revoked_id)[:SHORT_ID]}")
    agent_terminal.screen.print_note(agent_terminal.format_status())


def _run_recall_command(agent_terminal: AgentTerminal, arguments: str) -> None:
    """List the texts stored away; /recall ID [A-B] reads one back, or its lines A to B."""
    id_, _, lines = arguments.partition(" ")
    if not id_:
        spills = list_spilled_texts(agent_terminal.store, agent_terminal.session.key)
        for spill in spills:
            click.echo(clean_single_line(format_spill_line(spill)))
        if not spills:
            click.echo("nothing was stored away yet")
        return
    page = agent_terminal.run_stoppable(lambda: agent_terminal.session.recall(id_, lines=lines.strip()))
    if page is not None:
        agent_terminal.screen.print_text(page.text)
        hint = ""
        if page.last_line < page.total_lines and page.next_arguments:
            hint = f"; /recall {id_} {page.last_line + 1}- continues"
        agent_terminal.screen.print_note(
            f"lines {page.first_line}-{page.last_line} of {page.total_lines}, {page.total_chars:,} characters in "
            f"all{hint}"
        )


_SLASH_COMMANDS: Mapping[str, Callable[[AgentTerminal, str], None]] = {
    "/context": _run_context_command,
    "/compact": _run_compact_command,
    "/branch": _run_branch_command,
    "/undo": _run_undo_command,
    "/recall": _run_recall_command,
    "/help": _run_help_command,
}
