"""``holdfast import``: recorded sessions of other tools into the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import click
from msgspec import Struct

from holdfast.cli.output.errors import EXPECTED, WRONG_USE, Stopped, of_file, reason
from holdfast.cli.output.terminal import Waiting, clean, json_option, say_json
from holdfast.cli.places import opened, store_option, store_place
from holdfast.cli.recordings import Progress, Source, sources
from holdfast.errors import FormatError, UnknownId
from holdfast.formats import Problem, Recording, again
from holdfast.messages.user_text import first_words
from holdfast.state.entries import Entry, Said
from holdfast.store.base import SessionInfo, SessionStore

TITLE = 80
"""Characters of the first words of the user that stand for a missing title."""
_MANY = 10
"""Damaged lines of a file that are listed."""
EXAMPLES = """\
\b
Examples:
  holdfast import session.jsonl
  holdfast import ~/.claude/projects/*/*.jsonl --json
  holdfast import ~/.local/share/opencode/opencode.db
"""


class Taken(Struct, frozen=True):
    """What importing one file did. ``added`` and ``kept`` count entries over all its sessions."""

    file: str
    session: str
    format: str
    added: int
    kept: int
    sidechains: tuple[str, ...]
    skipped: dict[str, int]
    """Lines that are no part of the conversation, by kind."""
    problems: tuple[Problem, ...]


class Refused(Struct, frozen=True):
    """A file that could not be imported: nothing of it is in the store."""

    file: str
    error: str


@click.command("import", epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--as", "name", metavar="ID", help="The id of the session. [default: the one in the file]")
@click.option("--session", default="", metavar="ID", help="Of a database this session alone; the beginning is enough.")
@store_option
@json_option("an object for each session, in one array,")
@click.pass_context
def command(
    ctx: click.Context, files: tuple[str, ...], name: str | None, session: str, store: str | None, *, as_json: bool
) -> None:
    """Take recorded sessions of other tools into the store.

    Files are sessions of Claude Code, Codex, Gemini CLI or pi, the database of opencode or what it exported, or request
    bodies, recognised by their content. Of a database all sessions are taken. Importing a file again adds only what is
    new; a session is taken whole or not at all. Damaged lines are kept as notes and listed.
    """
    if name is not None and len(files) > 1:
        raise Stopped(f"--as names one session, and there are {len(files)} files; give one file")
    with opened(store) as there, Waiting(wanted=not as_json) as waiting:
        outcomes: list[Taken | Refused] = []
        for number, file in enumerate(files, 1):
            label = f"file {number:,} of {len(files):,}" if len(files) > 1 else "reading"
            waiting.begin(label)
            outcomes += _outcomes(there, file, name, session, partial(_show_progress, waiting, label))
    if as_json:
        say_json([_record(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            _say(outcome)
        if any(isinstance(outcome, Taken) for outcome in outcomes):
            click.echo(f"store: {clean(store_place(store).where)}")
    if any(isinstance(outcome, Refused) for outcome in outcomes):
        ctx.exit(WRONG_USE)


def _show_progress(waiting: Waiting, label: str, done: int, size: int) -> None:
    """Move the bar by the bytes of a file that are read; sorting and storing them has no measure."""
    if done < size:
        waiting.reach(label, done, size)
    else:
        waiting.begin(f"{label}: storing")


def _outcomes(
    store: SessionStore, file: str, name: str | None, session: str, progress: Progress
) -> Iterator[Taken | Refused]:
    """Yield what importing each session of a file did."""
    try:
        for source in sources(file, session, single=name is not None, lazily=progress):
            yield _outcome(store, source, name)
    except EXPECTED as error:
        yield Refused(file, reason(error))


def _outcome(store: SessionStore, source: Source, name: str | None) -> Taken | Refused:
    try:
        recording = source.read()
        return _take(store, source.name, recording, name or recording.session)
    except EXPECTED as error:
        return Refused(source.name, reason(error))


def _take(store: SessionStore, file: str, recording: Recording, key: str) -> Taken:
    """Import the session of a file, and those of its sub-agents as sessions of their own."""
    _check_same_tool(store, key, recording.format)
    parts = {key: recording}
    for number, part in enumerate(recording.sidechains, 1):
        own = part.session if part.session and part.session != recording.session else f"sidechain-{number}"
        parts[f"{own}@{key}"] = part
    added = kept = 0
    for name, part in parts.items():
        with store.writing(name):
            there = _entries(store, name)
            new = again(part, there)
            store.put(name, new.entries, leaf=new.leaf, info=_info_of(name, new, chain(there, new.entries)))
        added, kept = added + len(new.entries), kept + len(part.entries) - len(new.entries)
    problems = tuple(problem for part in parts.values() for problem in part.problems)
    return Taken(file, key, recording.format, added, kept, tuple(parts)[1:], recording.skipped, problems)


def _entries(store: SessionStore, key: str) -> Sequence[Entry]:
    """Return what the log of session ``key`` has; nothing where there is no such session."""
    try:
        return store.lazy_entries(key)
    except UnknownId:
        return ()


def _check_same_tool(store: SessionStore, key: str, tool: str) -> None:
    """Raise ``FormatError`` where session ``key`` is there and is not of ``tool``: it would be mixed up."""
    with suppress(UnknownId):
        there = store.session(key)
        if there.key == key and there.format != tool:
            whose = there.format or "Holdfast itself"
            raise FormatError(
                f"session {key!r} is one of {whose}, and this is one of {tool}; give another id with --as"
            )


def _info_of(key: str, recording: Recording, entries: Iterable[Entry]) -> SessionInfo:
    """Return what the list of sessions says of ``recording``; without a title, the user's first words."""
    said = (entry.body.slot.message for entry in entries if isinstance(entry.body, Said))
    return SessionInfo(
        key=key,
        title=clean(recording.title or first_words(said), TITLE),
        format=recording.format,
        cwd=recording.cwd,
        model=recording.model,
    )


def _record(outcome: Taken | Refused) -> dict[str, Any]:
    if isinstance(outcome, Refused):
        return {"file": outcome.file, "error": outcome.error}
    told = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    return told | {"problems": [{"line": problem.line, "reason": problem.reason} for problem in outcome.problems]}


def _say(outcome: Taken | Refused) -> None:
    if isinstance(outcome, Refused):
        click.echo(f"{clean(of_file(outcome.file, outcome.error))}; nothing of it was imported", err=True)
        return
    what = f"{outcome.added:,} {'entry' if outcome.added == 1 else 'entries'} added" if outcome.added else "nothing new"
    known = f", {outcome.kept:,} were there already" if outcome.kept else ""
    click.echo(f"{clean(outcome.file)}: {outcome.format} session {clean(outcome.session)}: {what}{known}")
    if outcome.skipped:
        lines = ", ".join(f"{count:,} {clean(kind)}" for kind, count in sorted(outcome.skipped.items()))
        click.echo(f"  lines that are no part of the conversation: {lines}")
    for name in outcome.sidechains:
        click.echo(f"  with the sub-agent's session {clean(name)}")
    for problem in outcome.problems[:_MANY]:
        click.echo(f"  {clean(problem.told)}")
    if len(outcome.problems) > _MANY:
        click.echo(f"  and {len(outcome.problems) - _MANY:,} more lines; --json lists them all")
