"""``holdfast import``: import recorded sessions of other tools into the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import click
from msgspec import Struct

from holdfast.cli.files.recordings import ReadProgress, RecordingSource, iter_recordings
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import EXPECTED_ERRORS, WRONG_USE, CommandError, describe_error, prefix_file_name
from holdfast.cli.output.terminal import ProgressBar, make_json_option, print_json
from holdfast.errors import FormatError, UnknownId
from holdfast.formats import Recording, RecordingProblem, select_new_entries
from holdfast.messages.text.single_line import clean_single_line
from holdfast.messages.text.user_text import find_first_user_text
from holdfast.state.entries import Entry, MessageEntry
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.location import locate_store

MAX_TITLE = 80
"""Characters of the user's first words that are used as the title of a session without one."""
_LISTED_DAMAGE = 10
"""Damaged lines to list per file. Chosen by judgement: a few show the kind of damage."""
EXAMPLES = """\
\b
Examples:
  holdfast import session.jsonl
  holdfast import ~/.claude/projects/*/*.jsonl --json
  holdfast import ~/.local/share/opencode/opencode.db
"""


class ImportedSession(Struct, frozen=True):
    """The result of importing one file; ``added`` and ``already_there`` count entries over all its sessions."""

    file: str
    session: str
    format: str
    added: int
    already_there: int
    sidechains: tuple[str, ...]
    skipped_lines: dict[str, int]
    """Lines that are not part of the conversation, by kind."""
    problems: tuple[RecordingProblem, ...]


class ImportFailure(Struct, frozen=True):
    """A file that could not be imported; the store has nothing of it."""

    file: str
    error: str


@click.command("import", epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--as", "name", metavar="ID", help="The id of the session. [default: the one in the file]")
@click.option(
    "--session",
    default="",
    metavar="ID",
    help="Only this session of a database; the beginning of its id is enough.",
)
@store_option
@make_json_option("an array with an object for each session")
@click.pass_context
def import_command(
    ctx: click.Context,
    files: tuple[str, ...],
    name: str | None,
    session: str,
    store: str | None,
    *,
    as_json: bool,
) -> None:
    """Import recorded sessions of other tools into the store.

    Files are sessions of Claude Code, Codex, Copilot CLI (also the folder of one), Gemini CLI or pi, a database or
    export of opencode or goose, a database of OpenClaw, trajectories in ATIF or of SWE-agent or mini-swe-agent, or
    request bodies; they are recognized by their content. All sessions of a database are imported. Importing a file
    again adds only new entries, and a session is imported completely or not at all. Damaged lines are kept as notes and
    listed. Exit code 2 if a file could not be imported.
    """
    if name is not None and len(files) > 1:
        raise CommandError(f"--as names one session, but there are {len(files)} files; give one file")
    with open_named_store(store) as there, ProgressBar(is_wanted=not as_json) as waiting:
        outcomes: list[ImportedSession | ImportFailure] = []
        for number, file in enumerate(files, 1):
            label = f"file {number:,} of {len(files):,}" if len(files) > 1 else "reading"
            waiting.begin_part(label)
            outcomes += import_file(
                there,
                file,
                name,
                session,
                partial(_show_import_progress, waiting, label),
            )
    if as_json:
        print_json([_encode_import_outcome(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            _print_import_outcome(outcome)
        if any(isinstance(outcome, ImportedSession) for outcome in outcomes):
            click.echo(f"store: {clean_single_line(locate_store(store).url)}")
    if any(isinstance(outcome, ImportFailure) for outcome in outcomes):
        ctx.exit(WRONG_USE)


def _show_import_progress(waiting: ProgressBar, label: str, bytes_read: int, size: int) -> None:
    """Move the bar by the bytes read; sorting and storing cannot be measured."""
    if bytes_read < size:
        waiting.set_progress(label, bytes_read, size)
    else:
        waiting.begin_part(f"{label}: storing")


def import_file(
    store: SessionStore,
    file: str,
    name: str | None,
    session: str,
    progress: ReadProgress,
) -> Iterator[ImportedSession | ImportFailure]:
    """Import each session in a file and yield the results."""
    try:
        for source in iter_recordings(file, session, single=name is not None, progress=progress):
            yield _import_source(store, source, name)
    except EXPECTED_ERRORS as error:
        yield ImportFailure(file, describe_error(error))


def _import_source(store: SessionStore, source: RecordingSource, name: str | None) -> ImportedSession | ImportFailure:
    try:
        recording = source.read()
        return _import_recording(store, source.name, recording, name or recording.session)
    except EXPECTED_ERRORS as error:
        return ImportFailure(source.name, describe_error(error))


def _import_recording(store: SessionStore, file: str, recording: Recording, key: str) -> ImportedSession:
    """Import a session and, as sessions of their own, those of its sub-agents."""
    _check_same_format(store, key, recording.format)
    parts = {key: recording}
    for number, part in enumerate(recording.sidechains, 1):
        own = part.session
        # A sub-agent may have no id of its own, or that of its parent.
        if not own or own == recording.session:
            own = f"sidechain-{number}"
        parts[f"{own}@{key}"] = part
    added = already_there = 0
    for name, part in parts.items():
        # One lease a session: without it a second import could append the same entries in between.
        with store.hold_lease(name):
            stored_entries = _load_entries(store, name)
            new = select_new_entries(part, stored_entries)
            info = _make_session_info(name, new, chain(stored_entries, new.entries))
            store.import_entries(name, new.entries, leaf=new.leaf, info=info)
        added += len(new.entries)
        already_there += len(part.entries) - len(new.entries)
    problems: list[RecordingProblem] = []
    for part in parts.values():
        problems += part.problems
    return ImportedSession(
        file=file,
        session=key,
        format=recording.format,
        added=added,
        already_there=already_there,
        sidechains=tuple(parts)[1:],
        skipped_lines=recording.skipped_counts,
        problems=tuple(problems),
    )


def _load_entries(store: SessionStore, key: str) -> Sequence[Entry]:
    """Return the entries of session ``key``, or none if it does not exist."""
    try:
        return store.read_lazy_entries(key)
    except UnknownId:
        return ()


def _check_same_format(store: SessionStore, key: str, tool: str) -> None:
    """Raise ``FormatError`` if session ``key`` exists and belongs to another tool: the two would be mixed."""
    with suppress(UnknownId):
        there = store.get_session(key)
        # The store accepts the beginning of a key, and then returns another session.
        if there.key == key and there.format != tool:
            owner = there.format or "Holdfast itself"
            raise FormatError(
                f"session {key!r} is from {owner}, and this one is from {tool}; give another id with --as"
            )


def _make_session_info(key: str, recording: Recording, entries: Iterable[Entry]) -> SessionInfo:
    """Describe ``recording`` for the list of sessions; without a title, the user's first words are used."""
    # A generator, because the first user text is near the start and texts may still be in the file.
    messages = (entry.body.sized_message.message for entry in entries if isinstance(entry.body, MessageEntry))
    return SessionInfo(
        key=key,
        title=clean_single_line(recording.title or find_first_user_text(messages), MAX_TITLE),
        format=recording.format,
        cwd=recording.cwd,
        model=recording.model,
        recorded_window=recording.window,
    )


def _encode_import_outcome(outcome: ImportedSession | ImportFailure) -> dict[str, Any]:
    if isinstance(outcome, ImportFailure):
        return {"file": outcome.file, "error": outcome.error}
    record = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    return record | {"problems": [{"line": problem.line, "reason": problem.reason} for problem in outcome.problems]}


def _print_import_outcome(outcome: ImportedSession | ImportFailure) -> None:
    if isinstance(outcome, ImportFailure):
        message = clean_single_line(prefix_file_name(outcome.file, outcome.error))
        click.echo(f"{message}; nothing was imported from it", err=True)
        return
    added = "nothing new"
    if outcome.added:
        noun = "entry" if outcome.added == 1 else "entries"
        added = f"{outcome.added:,} {noun} added"
    if outcome.already_there:
        added += f", {outcome.already_there:,} already present"
    file = clean_single_line(outcome.file)
    session = clean_single_line(outcome.session)
    click.echo(f"{file}: {outcome.format} session {session}: {added}")
    if outcome.skipped_lines:
        kinds = sorted(outcome.skipped_lines.items())
        lines = ", ".join(f"{count:,} {clean_single_line(kind)}" for kind, count in kinds)
        click.echo(f"  skipped lines (not part of the conversation): {lines}")
    for name in outcome.sidechains:
        click.echo(f"  with the sub-agent's session {clean_single_line(name)}")
    for problem in outcome.problems[:_LISTED_DAMAGE]:
        click.echo(f"  {clean_single_line(problem.message)}")
    if len(outcome.problems) > _LISTED_DAMAGE:
        click.echo(f"  and {len(outcome.problems) - _LISTED_DAMAGE:,} more lines; --json lists them all")
