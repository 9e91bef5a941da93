"""``holdfast repair``: session files of other tools, and the store, put right where they are damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from holdfast.cli.output.errors import EXPECTED, WRONG_USE, Stopped, of_file, reason
from holdfast.cli.output.terminal import Waiting, clean, console, json_option, many, say_json, say_whole
from holdfast.cli.places import file_of, store_option, store_place, stored
from holdfast.cli.session_file import MISSING, FileRepaired, repair_file
from holdfast.formats.repair import HEADER, TOOLS, Finding
from holdfast.store.repair import Mended, Repaired, repair_store
from holdfast.store.sql.migrations import MIGRATIONS

EXAMPLES = """\
\b
Examples:
  holdfast repair                                 the store
  holdfast repair session.jsonl --dry-run         what would be done
  holdfast repair ~/.claude/projects/*/*.jsonl
"""
FOUND = 1
SHOWN = 20
"""Findings of a file that are listed."""
_UNCHANGED = "nothing was changed"
_STORE = b"SQLite format 3\x00"


class Failed(Struct, frozen=True):
    """A file that could not be repaired: it is as it was."""

    file: str
    error: str


class StoreRepaired(Struct, frozen=True):
    """A store that was looked through."""

    found: Repaired
    before: int
    after: int
    """The versions of its tables before and after: those of an older Holdfast are brought up to date."""

    @property
    def file(self) -> str:
        """Its file."""
        return self.found.file


Outcome = FileRepaired | StoreRepaired | Failed


@click.command("repair", epilog=EXAMPLES)
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option("--dry-run", is_flag=True, help="Tell what would be done, and change nothing; exit code 1 if anything.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(TOOLS)),
    help="The tool that wrote the files. [default: told from them]",
)
@store_option
@json_option("an object for each file, in one array,")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    format_: str | None,
    store: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Mend damaged session files of other tools, or the store.

    FILE is a session file of Claude Code, Codex, Gemini CLI or pi, or a store; without one the store in use is looked
    through. A file with nothing wrong is not touched. One that is mended stays beside itself as it was (.bak-…), and
    so does what had to be left out of it (.left-out-…, a JSON object a line). Close the tool that writes it first.
    """
    if files and store is not None:
        raise Stopped("--store names the store to look through, and there are files too; give one of the two")
    if "" in files:
        raise Stopped("an empty text is no file's name; give the name of a file")
    wanted = [(Path(file), not format_ and _is_store(file)) for file in files] or [(_store(store), True)]
    outcomes = list(_outcomes(wanted, format_ or "", dry_run=dry_run, quiet=as_json))
    if as_json:
        say_json([_record(one, dry_run=dry_run) for one in outcomes])
    else:
        for one in outcomes:
            _say(one, dry_run=dry_run)
    if any(map(_is_stuck, outcomes)):
        ctx.exit(WRONG_USE)
    if dry_run and any(map(_found, outcomes)):
        ctx.exit(FOUND)


def _store(given: str | None) -> Path:
    """Return the file of the store in use."""
    where = store_place(given).where
    if where == ":memory:":
        raise Stopped("a store in memory ends with its process, so there is nothing to repair; give a file's path")
    return file_of(where)


def _is_store(file: str) -> bool:
    """Return whether a file begins as a store does."""
    try:
        if not Path(file).is_file():
            return False
        with Path(file).open("rb") as content:
            return content.read(len(_STORE)) == _STORE
    except OSError:  # said where it is read
        return False


def _outcomes(wanted: Iterable[tuple[Path, bool]], format_: str, *, dry_run: bool, quiet: bool) -> Iterator[Outcome]:
    with Waiting(wanted=not quiet) as waiting:
        for path, is_store in wanted:
            try:
                if is_store and path.is_dir():
                    yield Failed(str(path), "it is a folder; give a file's path with --store")
                elif is_store:
                    yield _looked_through(path, waiting, dry_run=dry_run)
                else:
                    yield _file(path, format_, waiting, dry_run=dry_run)
            except EXPECTED as error:
                yield Failed(str(path), reason(error))


def _looked_through(path: Path, waiting: Waiting, *, dry_run: bool) -> StoreRepaired:
    before = _schema(path)
    found = repair_store(path, dry_run=dry_run, tick=_Steps(waiting, f"looking through {path.name}"))
    return StoreRepaired(found, before, _schema(path))


def _schema(path: Path) -> int:
    """Return the version of a store's tables; 0 where it cannot be read."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    return 0


def _file(path: Path, format_: str, waiting: Waiting, *, dry_run: bool) -> FileRepaired:
    size = path.stat().st_size if path.is_file() else 0
    steps = _Steps(waiting, f"reading {path.name}")
    return repair_file(path, format_=format_, dry_run=dry_run, read=lambda held: steps(size, held))


class _Steps:
    """The steps of a bar: entries of a store, or a hundredth of a file."""

    def __init__(self, waiting: Waiting, label: str) -> None:
        self._waiting, self._label = waiting, label
        self._done, self._shown = 0, -1

    def __call__(self, total: int, more: int = 1) -> None:
        self._done += more
        now = 100 * self._done // max(1, total)
        if self._shown < 0:
            self._waiting.begin(self._label, 100)
            self._shown = 0
        for _ in range(self._shown, now):
            self._waiting.tick()
        self._shown = max(self._shown, now)


# -- what is told ------------------------------------------------------------------------------------------------------


def _found(one: Outcome) -> bool:
    """Return whether something was wrong."""
    if isinstance(one, Failed):
        return True
    return bool(one.findings) if isinstance(one, FileRepaired) else not one.found.is_fine


def _is_stuck(one: Outcome) -> bool:
    """Return whether a file could not be repaired."""
    return isinstance(one, Failed) or (isinstance(one, FileRepaired) and bool(one.reason))


def _say(one: Outcome, *, dry_run: bool) -> None:
    if isinstance(one, Failed):
        told = clean(of_file(one.file, one.error))
        click.echo(told if _UNCHANGED in told else f"{told}; {_UNCHANGED}", err=True)
    elif isinstance(one, FileRepaired):
        _say_file(one, dry_run=dry_run)
    else:
        _say_store(one, dry_run=dry_run)


def _say_file(one: FileRepaired, *, dry_run: bool) -> None:
    name = clean(one.file)
    if not one.findings and not one.reason:
        click.echo(f"{name}: {one.format}: nothing is wrong")
        return
    if one.findings:
        click.echo(f"{name}: {one.format}: {_count(len(one.findings))}")
        _say_lines(f"line {finding.line}: {finding.what}: {finding.done}" for finding in one.findings)
    if one.reason:
        why = stored(one.file) if one.reason == MISSING else ""
        click.echo(f"{name}: {why or _REASONS.get(one.reason, one.reason)}; nothing was changed", err=True)
    elif dry_run:
        click.echo("  nothing was changed; without --dry-run this is done")
    else:
        click.echo(f"  mended; as it was: {clean(one.backup)}")
        if one.left_out:
            click.echo(f"  what was left out: {clean(one.left_out)}")


_REASONS = {HEADER: f"{HEADER}, and its tool opens no file without one; put back the header from a copy"}


def _say_store(store: StoreRepaired, *, dry_run: bool) -> None:
    one, name = store.found, clean(store.found.file)
    if one.is_fine:
        told = f"{one.entries:,} entries, and nothing is wrong" if one.entries else "there is nothing in it yet"
        click.echo(f"{name}: {told}{_renewed(store)}")
        return
    click.echo(f"{name}: {one.entries:,} entries, {_count(len(one.found))}{_renewed(store)}")
    _say_lines(f"{_where(mended)}{mended.what}: {mended.done}" for mended in one.found)
    if dry_run:
        click.echo("  nothing was changed; without --dry-run this is done")
    elif one.backup:
        click.echo(f"  as it was: {clean(one.backup)}")


def _renewed(store: StoreRepaired) -> str:
    """Return that the tables of an older Holdfast were brought up to date, or will be, where they are such."""
    if store.after != store.before:
        return f"; its tables were of schema {store.before} and are of {store.after} now"
    if 0 < store.after < len(MIGRATIONS):
        return f"; its tables are of schema {store.after}, which the first write makes {len(MIGRATIONS)}"
    return ""


def _say_lines(lines: Iterable[str]) -> None:
    from rich.text import Text

    told, out = list(lines), console()
    for line in told[:SHOWN]:
        say_whole(out, Text(f"  {clean(line)}"))
    if len(told) > SHOWN:
        click.echo(f"  and {len(told) - SHOWN:,} more; --json lists them all")


def _count(found: int) -> str:
    return f"{many(found, 'thing')} {'is' if found == 1 else 'are'} wrong"


def _where(one: Mended) -> str:
    entry = f", entry {one.entry}" if one.entry else ""
    return f"session {one.session}{entry}: " if one.session else ""


def _record(one: Outcome, *, dry_run: bool) -> dict[str, Any]:
    if isinstance(one, Failed):
        return {"file": one.file, "error": one.error}
    told: dict[str, Any] = {"file": one.file, "dry_run": dry_run, "fine": not _found(one) and not _is_stuck(one)}
    if isinstance(one, StoreRepaired):
        found = [{name: getattr(mended, name) for name in Mended.__struct_fields__} for mended in one.found.found]
        told |= {"format": "holdfast", "entries": one.found.entries, "found": found, "backup": one.found.backup or None}
        return told | {"schema_before": one.before, "schema": one.after}
    found = [{name: getattr(finding, name) for name in Finding.__struct_fields__} for finding in one.findings]
    left = {"reason": one.reason or None, "backup": one.backup or None, "left_out": one.left_out or None}
    return told | {"format": one.format, "found": found} | left
