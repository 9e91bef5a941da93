"""``holdfast repair``: repair damaged session files of other tools, or the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from holdfast.cli.files.repair_session_file import FILE_MISSING, SessionFileRepair, repair_file_on_disk
from holdfast.cli.files.user_paths import store_option, suggest_export_for_session
from holdfast.cli.output.errors import EXPECTED_ERRORS, WRONG_USE, CommandError, describe_error, prefix_file_name
from holdfast.cli.output.terminal import ProgressBar, make_console, make_json_option, print_json, print_wrapped
from holdfast.formats.repair.findings import RepairFinding
from holdfast.formats.repair.survey import NO_HEADER_REASON
from holdfast.formats.repair.tools import REPAIR_TOOLS
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.foreign.open_database import recognize_database
from holdfast.store.foreign.opencode import FORMAT as OPENCODE_FORMAT
from holdfast.store.foreign.repair_opencode import repair_opencode_database
from holdfast.store.location import find_store_file, locate_store
from holdfast.store.repair.findings import StoreRepairFinding, StoreRepairReport
from holdfast.store.repair.repair_store import repair_store
from holdfast.store.sql.migrations import MIGRATIONS

EXAMPLES = """\
\b
Examples:
  holdfast repair                                 the store
  holdfast repair session.jsonl --dry-run         what would be done
  holdfast repair ~/.claude/projects/*/*.jsonl
  holdfast repair ~/.local/share/opencode/opencode.db
"""
EXIT_DAMAGE_FOUND = 1
LISTED_FINDINGS = 20
"""Findings listed per file. Chosen by judgement: one screen."""
_UNCHANGED_TEXT = "nothing was changed"
_SQLITE_MAGIC = b"SQLite format 3\x00"


class RepairFailure(Struct, frozen=True):
    """A file that could not be repaired and is unchanged."""

    file: str
    error: str


class StoreRepair(Struct, frozen=True):
    """The result of checking a store."""

    repair: StoreRepairReport
    schema_before: int
    schema_after: int
    """The versions of its tables before and after; tables of an older Holdfast are migrated."""

    @property
    def file(self) -> str:
        """The store's file."""
        return self.repair.file


RepairOutcome = SessionFileRepair | StoreRepair | RepairFailure


@click.command("repair", epilog=EXAMPLES)
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option("--dry-run", is_flag=True, help="Show what would be done and change nothing; exit code 1 if anything.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(REPAIR_TOOLS)),
    help="The tool that wrote the files. [default: recognized from them]",
)
@store_option
@make_json_option("an array with an object for each file")
@click.pass_context
def repair_command(
    ctx: click.Context,
    files: tuple[str, ...],
    format_: str | None,
    store: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Repair damaged session files of other tools, or the store.

    FILE is a session file of Claude Code, Codex, Gemini CLI or pi, a database of opencode, or a store; without FILE the
    store in use is checked. Undamaged files are not touched. For a repaired file the original is kept beside it
    (.bak-…), and so is everything that had to be left out (.left-out-…, one JSON object per line). First close the tool
    that writes the file.
    """
    if files and store is not None:
        raise CommandError("--store and FILE cannot be combined; give one of the two")
    if "" in files:
        raise CommandError("the file name is empty; give the name of a file")
    # With --format the file is one of another tool, whatever its first bytes are.
    if files:
        paths = [(Path(file), not format_ and _is_sqlite_file(file)) for file in files]
    else:
        paths = [(_locate_store_file(store), True)]
    outcomes = list(_repair_files(paths, format_ or "", is_own_store=not files, dry_run=dry_run, quiet=as_json))
    if as_json:
        print_json([_encode_repair(outcome, dry_run=dry_run) for outcome in outcomes])
    else:
        for outcome in outcomes:
            _print_repair(outcome, dry_run=dry_run)
    if any(map(_is_unrepaired, outcomes)):
        ctx.exit(WRONG_USE)
    if dry_run and any(map(_has_findings, outcomes)):
        ctx.exit(EXIT_DAMAGE_FOUND)


def _locate_store_file(option: str | None) -> Path:
    """Return the file of the store in use. Raises ``CommandError`` for a store that is no file."""
    place = locate_store(option)
    path = find_store_file(place.url)
    if path is None:
        if place.url == ":memory:":
            raise CommandError("a store in memory has no file to repair; give a file's path")
        raise CommandError(f"{place.name} is no file; check and restore it with the database's own tools")
    return path


def _is_sqlite_file(file: str) -> bool:
    """Return whether a file begins like an SQLite database."""
    try:
        if not Path(file).is_file():
            return False
        with Path(file).open("rb") as content:
            return content.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        # Reading the file later reports the error.
        return False


def _repair_files(
    paths: Iterable[tuple[Path, bool]],
    format_: str,
    *,
    is_own_store: bool,
    dry_run: bool,
    quiet: bool,
) -> Iterator[RepairOutcome]:
    """Repair each path, of which the second value says whether it is a database; ``is_own_store``: it is ours."""
    with ProgressBar(is_wanted=not quiet) as waiting:
        for path, is_store in paths:
            # A file that cannot be repaired must not keep the others from it.
            try:
                if is_store and path.is_dir():
                    yield RepairFailure(str(path), "this is a folder; give a file's path with --store")
                elif is_store and not is_own_store and (kind := recognize_database(path)):
                    yield _repair_foreign_database(path, kind, dry_run=dry_run)
                elif is_store:
                    yield _repair_store_file(path, waiting, dry_run=dry_run)
                else:
                    yield _repair_session_path(path, format_, waiting, dry_run=dry_run)
            except EXPECTED_ERRORS as error:
                yield RepairFailure(str(path), describe_error(error))


def _repair_foreign_database(path: Path, kind: str, *, dry_run: bool) -> SessionFileRepair | RepairFailure:
    """Repair the database of another tool; ``kind`` is its format, or what else it is and what to do."""
    if kind != OPENCODE_FORMAT:
        return RepairFailure(str(path), kind)
    repair = repair_opencode_database(path, dry_run=dry_run)
    return SessionFileRepair(str(path), kind, repair.findings, repair.reason, repair.backup, repair.left_out)


def _repair_store_file(path: Path, waiting: ProgressBar, *, dry_run: bool) -> StoreRepair:
    before = _read_schema_version(path)
    repair = repair_store(path, dry_run=dry_run, tick=_ProgressSteps(waiting, f"looking through {path.name}"))
    return StoreRepair(repair, before, _read_schema_version(path))


def _read_schema_version(path: Path) -> int:
    """Return the version of a store's tables, or 0 if it cannot be read."""
    # Read-only, so that a check changes nothing.
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    return 0


def _repair_session_path(
    path: Path,
    format_: str,
    waiting: ProgressBar,
    *,
    dry_run: bool,
) -> SessionFileRepair:
    size = path.stat().st_size if path.is_file() else 0
    steps = _ProgressSteps(waiting, f"reading {path.name}")
    return repair_file_on_disk(
        path,
        format_=format_,
        dry_run=dry_run,
        on_line=lambda byte_count: steps(size, byte_count),
    )


class _ProgressSteps:
    """Steps of a progress bar in hundredths of the whole, so that millions of entries do not redraw it each time."""

    def __init__(self, waiting: ProgressBar, label: str) -> None:
        self._waiting = waiting
        self._label = label
        self._done = 0
        self._shown = -1

    def __call__(self, total: int, amount: int = 1) -> None:
        self._done += amount
        now = 100 * self._done // max(1, total)
        if self._shown < 0:
            self._waiting.begin_part(self._label, 100)
            self._shown = 0
        for _ in range(self._shown, now):
            self._waiting.advance()
        self._shown = max(self._shown, now)


# -- output ------------------------------------------------------------------------------------------------------


def _has_findings(outcome: RepairOutcome) -> bool:
    """Return whether anything was wrong with the file."""
    if isinstance(outcome, RepairFailure):
        return True
    if isinstance(outcome, SessionFileRepair):
        return bool(outcome.findings)
    return not outcome.repair.is_undamaged


def _is_unrepaired(outcome: RepairOutcome) -> bool:
    """Return whether the file could not be repaired."""
    return isinstance(outcome, RepairFailure) or (isinstance(outcome, SessionFileRepair) and bool(outcome.reason))


def _print_repair(outcome: RepairOutcome, *, dry_run: bool) -> None:
    if isinstance(outcome, RepairFailure):
        message = clean_single_line(prefix_file_name(outcome.file, outcome.error))
        # Some errors already say that the file is unchanged.
        if _UNCHANGED_TEXT not in message:
            message = f"{message}; {_UNCHANGED_TEXT}"
        click.echo(message, err=True)
    elif isinstance(outcome, SessionFileRepair):
        _print_file_repair(outcome, dry_run=dry_run)
    else:
        _print_store_repair(outcome, dry_run=dry_run)


def _print_file_repair(repair: SessionFileRepair, *, dry_run: bool) -> None:
    name = clean_single_line(repair.file)
    if not repair.findings and not repair.reason:
        click.echo(f"{name}: {repair.format}: no damage found")
        return
    if repair.findings:
        click.echo(f"{name}: {repair.format}: {_format_thing_count(len(repair.findings))}")
        lines = []
        for finding in repair.findings:
            place = f"line {finding.line}: " if finding.line else ""
            lines.append(f"{place}{finding.description}: {finding.repair}")
        _print_finding_lines(lines)
    if repair.reason:
        why = suggest_export_for_session(repair.file) if repair.reason == FILE_MISSING else ""
        click.echo(f"{name}: {why or _REASON_TEXTS.get(repair.reason, repair.reason)}; nothing was changed", err=True)
    elif dry_run:
        click.echo("  nothing was changed; run it without --dry-run to repair")
    else:
        click.echo(f"  repaired; the original is kept as {clean_single_line(repair.backup)}")
        if repair.left_out:
            click.echo(f"  left-out lines are kept in {clean_single_line(repair.left_out)}")


_REASON_TEXTS = {
    NO_HEADER_REASON: f"{NO_HEADER_REASON}, and its tool cannot open it without one; restore the header from a copy"
}


def _print_store_repair(store: StoreRepair, *, dry_run: bool) -> None:
    repair = store.repair
    name = clean_single_line(store.repair.file)
    if repair.is_undamaged:
        summary = "it is empty"
        if repair.entry_count:
            summary = f"{repair.entry_count:,} entries, no damage found"
        click.echo(f"{name}: {summary}{_describe_migration(store)}")
        return
    problems = _format_thing_count(len(repair.findings))
    click.echo(f"{name}: {repair.entry_count:,} entries, {problems}{_describe_migration(store)}")
    lines = [f"{_format_location(finding)}{finding.problem}: {finding.action}" for finding in repair.findings]
    _print_finding_lines(lines)
    if dry_run:
        click.echo("  nothing was changed; run it without --dry-run to repair")
    elif repair.backup:
        click.echo(f"  repaired; the original is kept as {clean_single_line(repair.backup)}")


def _describe_migration(store: StoreRepair) -> str:
    """Describe the migration of an older Holdfast's tables, done or due; empty for current tables."""
    if store.schema_after != store.schema_before:
        return f"; its tables were migrated from schema {store.schema_before} to {store.schema_after}"
    if 0 < store.schema_after < len(MIGRATIONS):
        return f"; its tables have schema {store.schema_after}; the first write migrates them to {len(MIGRATIONS)}"
    return ""


def _print_finding_lines(lines: list[str]) -> None:
    from rich.text import Text

    out = make_console()
    for line in lines[:LISTED_FINDINGS]:
        print_wrapped(out, Text(f"  {clean_single_line(line)}"))
    if len(lines) > LISTED_FINDINGS:
        click.echo(f"  and {len(lines) - LISTED_FINDINGS:,} more; --json lists them all")


def _format_thing_count(count: int) -> str:
    return f"{format_count(count, 'problem')} found"


def _format_location(finding: StoreRepairFinding) -> str:
    # A fault of the whole database belongs to no session.
    if not finding.session_key:
        return ""
    entry = f", entry {finding.entry_id}" if finding.entry_id else ""
    return f"session {finding.session_key}{entry}: "


def _encode_repair(outcome: RepairOutcome, *, dry_run: bool) -> dict[str, Any]:
    if isinstance(outcome, RepairFailure):
        return {"file": outcome.file, "error": outcome.error}
    record: dict[str, Any] = {
        "file": outcome.file,
        "dry_run": dry_run,
        "fine": not _has_findings(outcome) and not _is_unrepaired(outcome),
    }
    if isinstance(outcome, StoreRepair):
        findings = []
        for repair_step in outcome.repair.findings:
            findings.append({name: getattr(repair_step, name) for name in StoreRepairFinding.__struct_fields__})
        record |= {
            "format": "holdfast",
            "entries": outcome.repair.entry_count,
            "found": findings,
            "backup": outcome.repair.backup or None,
        }
        return record | {"schema_before": outcome.schema_before, "schema": outcome.schema_after}
    findings = []
    for finding in outcome.findings:
        findings.append({name: getattr(finding, name) for name in RepairFinding.__struct_fields__})
    outcome_record = {
        "reason": outcome.reason or None,
        "backup": outcome.backup or None,
        "left_out": outcome.left_out or None,
    }
    return record | {"format": outcome.format, "found": findings} | outcome_record
