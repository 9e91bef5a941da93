"""The interactive mode of the agent: a prompt, and the words that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import click
from rich.text import Text

from holdfast.agent.loop import Outcome, is_answered
from holdfast.cli.agent.desk import Desk
from holdfast.cli.agent.meter import filled
from holdfast.cli.output.errors import reason
from holdfast.cli.output.terminal import clean, console, many, say_line
from holdfast.cli.reports.describe import in_short
from holdfast.cli.reports.history import SHORT, end_of, entry_named, read_log
from holdfast.cli.reports.request_size import about
from holdfast.engine.recall import line_of, reachable
from holdfast.errors import FormatError, HoldfastError
from holdfast.events import Compacted

LISTED = 20
"""Messages that ``/branch`` lists, the newest."""
_PROMPT = "> "


def talk(desk: Desk) -> None:
    """Answer what is typed until ``/quit``, the end of the input, ^C twice, or the end of the program."""
    _greet(desk)
    leaving = False
    while not desk.end.number:
        try:
            line = input(_PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            if leaving or desk.end.number:
                return
            leaving = True
            desk.screen.note("^C again leaves, as /quit does")
            continue
        leaving = False
        if line.strip() in ("/quit", "/exit"):
            return
        _answer(desk, line.strip())


def _greet(desk: Desk) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401 -- the prompt can then be edited, and knows what was typed before
    branch = desk.session.journal.branch
    told = f"goes on behind {many(len(branch.slots), 'message')}" if branch.slots else "begins"
    desk.screen.note(f"session {desk.session.key} {told}; works in {desk.order.folder}; /help tells what can be typed")
    if not is_answered(branch):
        desk.screen.note("its work was not finished: an empty line goes on with it", "yellow")


def _answer(desk: Desk, line: str) -> None:
    """Do what one line says; what goes wrong is told and changes nothing."""
    name, _, rest = line.partition(" ")
    try:
        if line.startswith("/"):
            _command(desk, name, rest.strip())
        elif line or not is_answered(desk.session.journal.branch):
            ended(desk, desk.work(line))
    except HoldfastError as error:
        desk.screen.note(reason(error), "red")


def ended(desk: Desk, outcome: Outcome) -> None:
    """Tell how the work ended, and how full the context is."""
    if outcome.why:
        desk.screen.note(f"{outcome.stop}: {outcome.why}", "red" if outcome.stop == "error" else "yellow")
    desk.screen.note(desk.status())


# -- commands ----------------------------------------------------------------------------------------------------------


def _command(desk: Desk, name: str, rest: str) -> None:
    found = _COMMANDS.get(name)
    if found is None:
        raise FormatError(f"there is no {name}; there are {', '.join(_COMMANDS)}, /quit")
    found(desk, rest)


def _help(desk: Desk, _: str) -> None:
    """Show this list."""
    for name, found in _COMMANDS.items():
        click.echo(f"  {name:10}{found.__doc__}")
    click.echo(f"  {'/quit':10}Leave; the session stays: {clean(desk.order.again)}")


def _context(desk: Desk, _: str) -> None:
    """Tell what the next request would hold."""
    report = desk.session.report()
    kept = report.window - report.usable
    rows = {
        "next request": f"{about(report.tokens)} tokens ({filled(report)})",
        "window": f"{report.window:,} tokens ({report.origin})",
        "system, tools": f"{about(report.frame)} tokens",
        "kept free": f"{kept:,} tokens for the answer",
        "room left": f"{about(max(0, report.usable - report.tokens))} tokens",
        "said": many(report.messages, "message"),
        "in force": f"{many(report.compactions, 'compaction')}, {many(report.decisions, 'other decision')}",
        "policy": report.policy,
    }
    for name, value in rows.items():
        click.echo(f"  {name:14} {value}")
    click.echo(f"  {desk.status()}")


def _compact(desk: Desk, focus: str) -> None:
    """Compact now; /compact FOCUS says what a summary looks at above all."""
    made = desk.stopped(lambda: desk.session.compact(focus))
    if isinstance(made, Compacted) and made.outcome != "compacted":
        desk.screen.note(f"not compacted: {made.why}", "yellow")
    desk.screen.note(desk.status())


def _branch(desk: Desk, entry: str) -> None:
    """List the newest messages; /branch ID goes on behind one: a number, or the beginning of an id."""
    store, key = desk.store, desk.session.key
    log = read_log(store, key, desk.session.journal.leaf)
    if not entry:
        out = console()
        first = max(0, len(log.said) - LISTED)
        if not log.said:
            click.echo("nothing was said yet")
        for number, one in enumerate(log.said[first:], first):
            message = log.branch.messages[number]
            say_line(out, Text.assemble((f"#{number:<4} {clean(one.id)[:SHORT]} ", "dim"), in_short(message)))
        return
    place = end_of(store, key, entry_named(store, key, log, entry))
    with store.writing(key):
        store.set_leaf(key, place.id)
    forked = desk.stopped(lambda: desk.session.branch(place.id))
    if forked is not None:
        forked.journal.lead()
        desk.session = forked
        told = many(len(forked.journal.branch.slots), "message")
        desk.screen.note(f"goes on behind {told}; what came after it stays in the log")


def _undo(desk: Desk, entry: str) -> None:
    """Take back the newest decision or compaction; /undo ID takes back that one."""
    revoked = desk.stopped(lambda: desk.session.undo(entry or None))
    if revoked is not None:
        desk.screen.note(f"took back {clean(revoked)[:SHORT]}")
    desk.screen.note(desk.status())


def _recall(desk: Desk, rest: str) -> None:
    """List what was stored away; /recall ID [A-B] reads it back, or its lines A to B."""
    id_, _, lines = rest.partition(" ")
    if not id_:
        spills = reachable(desk.store, desk.session.key)
        click.echo("\n".join(clean(line_of(one)) for one in spills) or "nothing was stored away yet")
        return
    page = desk.stopped(lambda: desk.session.recall(id_, lines=lines.strip()))
    if page is not None:
        desk.screen.text(page.text)
        more = f"; /recall {id_} {page.last + 1}- goes on" if page.last < page.lines and page.next else ""
        desk.screen.note(f"lines {page.first}-{page.last} of {page.lines}, {page.chars:,} characters in all{more}")


_COMMANDS: Mapping[str, Callable[[Desk, str], None]] = {
    "/context": _context,
    "/compact": _compact,
    "/branch": _branch,
    "/undo": _undo,
    "/recall": _recall,
    "/help": _help,
}
