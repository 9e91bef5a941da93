"""``holdfast store``: copy, check, measure or migrate a whole store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.files.user_paths import (
    describe_missing_store,
    is_store_missing,
    load_store_settings,
    open_named_store,
    store_option,
)
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import ProgressBar, make_console, make_json_option, print_json, print_table
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.base import MigratableStore, Quota, SchemaVersions, SessionStore
from holdfast.store.location import find_store_file, hide_password
from holdfast.store.maintenance.check_store import StoreCheck, WrongBlob, check_store
from holdfast.store.maintenance.copy_store import SessionCopy, iter_session_copies
from holdfast.store.maintenance.measure_store import LargeThing, StoreSize, measure_store
from holdfast.store.open_store import open_store

if TYPE_CHECKING:
    from rich.table import Table

COPY_EXAMPLES = """\
\b
Examples:
  holdfast store copy agent.db backup.db
  holdfast store copy agent.db new.db --to-blobs s3://my-bucket/holdfast
  holdfast store copy agent.db other.db --session 4d56
"""
CHECK_EXAMPLES = """\
\b
Examples:
  holdfast store check
  holdfast store check --store backup.db --json
"""
STATS_EXAMPLES = """\
\b
Examples:
  holdfast store stats
  holdfast store stats --json
"""
MIGRATE_EXAMPLES = """\
\b
Examples:
  holdfast store migrate --dry-run
  holdfast store migrate --store agent.db
  holdfast store migrate --store postgresql://me@db.example.com/agents
"""
EXIT_FOUND = 1
MAX_LISTED = 20
"""Lines of one kind of fault that are printed; ``--json`` has all. Chosen by judgement: a screen."""


@click.group("store", invoke_without_command=True, epilog=COPY_EXAMPLES)
@click.pass_context
def store_command(ctx: click.Context) -> None:
    """Copy, check, measure or migrate a whole store."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


# -- copy --------------------------------------------------------------------------------------------------------------


@store_command.command("copy", epilog=COPY_EXAMPLES)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--session",
    "prefixes",
    multiple=True,
    metavar="ID",
    help="Copy only this session: its id or the beginning of it. May be given several times.",
)
@click.option(
    "--to-blobs",
    metavar="URL",
    help="Where the texts of TO go if it has none yet: s3://BUCKET/PREFIX. Without it, beside its file.",
)
@make_json_option("what became of each session")
@click.pass_context
def copy_command(
    ctx: click.Context,
    source: str,
    target: str,
    prefixes: tuple[str, ...],
    to_blobs: str | None,
    *,
    as_json: bool,
) -> None:
    """Copy all sessions of the store FROM into the store TO, and verify the copy.

    FROM and TO are stores as for --store, of any kind. All branches, decisions, labels and texts are copied; each entry
    and each text is then read from TO and compared. FROM is not changed and may be in use: each session is copied as it
    is at one moment. A copy that was interrupted goes on when it is made again, and one that is made again later adds
    what is new. Exit code 1 if something could not be copied.
    """
    if is_store_missing(source):
        raise CommandError(f"there is no store at {clean_single_line(hide_password(source))}; check FROM")
    if to_blobs is not None and find_store_file(target) is None:
        raise CommandError("--to-blobs is for a store in a file; TO keeps its texts itself: leave the option out")
    quota = Quota(**load_store_settings().set_limits)
    if _is_same_store(source, target):
        raise CommandError("FROM and TO are the same store; give another place for TO")
    copies: list[SessionCopy] = []
    with (
        open_store(source, readonly=True) as source_store,
        open_store(target, quota=quota, blobs=to_blobs) as target_store,
        ProgressBar(is_wanted=not as_json) as waiting,
    ):
        keys = _list_keys(source_store, prefixes)
        waiting.begin_part("copying sessions", len(keys))
        for copy in iter_session_copies(source_store, target_store, keys):
            copies.append(copy)
            waiting.advance()
    if as_json:
        print_json({"sessions": msgspec.to_builtins(copies), "sum": _sum_copies(copies)})
    else:
        _print_copies(copies)
    if any(copy.problems for copy in copies):
        ctx.exit(EXIT_FOUND)


def _is_same_store(source: str, target: str) -> bool:
    """Return whether both names are of the same file, also by a link, or the same address of a server."""
    if source == target:
        return True
    first, second = find_store_file(source), find_store_file(target)
    if first is None or second is None:
        return False
    return first.exists() and second.exists() and first.samefile(second)


def _list_keys(store: SessionStore, prefixes: Sequence[str]) -> list[str]:
    """Return the keys of the wanted sessions, or of all, the oldest first."""
    if prefixes:
        return list(dict.fromkeys(store.get_session(prefix).key for prefix in prefixes))
    return [info.key for info in reversed(store.list_sessions())]


def _sum_copies(copies: Sequence[SessionCopy]) -> dict[str, int]:
    outcomes = [copy.outcome for copy in copies]
    return {
        "copied": outcomes.count("copied"),
        "extended": outcomes.count("extended"),
        "unchanged": outcomes.count("unchanged"),
        "failed": outcomes.count("failed"),
        "entries": sum(copy.entry_count for copy in copies),
        "added_entries": sum(copy.added_count for copy in copies),
        "blobs": sum(copy.blob_count for copy in copies),
        "stored_blobs": sum(copy.stored_blob_count for copy in copies),
        "stored_bytes": sum(copy.stored_bytes for copy in copies),
        "problems": sum(len(copy.problems) for copy in copies),
    }


def _print_copies(copies: Sequence[SessionCopy]) -> None:
    for copy in copies:
        for problem in copy.problems:
            click.echo(f"session {clean_single_line(copy.key)}: {clean_single_line(problem)}", err=True)
    total = _sum_copies(copies)
    click.echo(
        f"{format_count(total['copied'], 'session')} copied, {total['extended']:,} extended, "
        f"{total['unchanged']:,} unchanged, {total['failed']:,} failed"
    )
    click.echo(
        f"{_format_entries(total['added_entries'])} and {format_count(total['stored_blobs'], 'text')} "
        f"({total['stored_bytes']:,} bytes) added; {total['entries']:,} entries and {total['blobs']:,} texts verified"
    )


# -- check -------------------------------------------------------------------------------------------------------------


@store_command.command("check", epilog=CHECK_EXAMPLES)
@store_option
@make_json_option("what was read and what is wrong")
@click.pass_context
def check_command(ctx: click.Context, store: str | None, *, as_json: bool) -> None:
    """Read every entry and every stored text, and name what is damaged, missing or altered.

    Nothing is changed. Texts that no session uses are no fault; holdfast gc removes them. Exit code 1 if something is
    wrong.
    """
    if why := describe_missing_store(store):
        raise CommandError(why)
    with open_named_store(store, readonly=True) as there, ProgressBar(is_wanted=not as_json) as waiting:
        check = check_store(
            there,
            tick_sessions=lambda done, total: waiting.set_progress("reading sessions", done, total),
            tick_blobs=lambda done, total: waiting.set_progress("reading texts", done, total),
        )
    if as_json:
        print_json({"is_sound": check.is_sound, **msgspec.to_builtins(check)})
    else:
        _print_check(check)
    if not check.is_sound:
        ctx.exit(EXIT_FOUND)


def _print_check(check: StoreCheck) -> None:
    faults = []
    for session in check.damaged_sessions:
        for problem in session.problems:
            faults.append(f"session {session.key}: {problem}")
    _print_faults(faults)
    _print_faults([f"missing: {_describe_blob(blob)}; restore it from a backup" for blob in check.missing_blobs])
    _print_faults([f"altered: {_describe_blob(blob)}; restore it from a backup" for blob in check.altered_blobs])
    click.echo(
        f"{format_count(check.session_count, 'session')} with {_format_entries(check.entry_count)}: "
        f"{_describe_number(sum(len(session.problems) for session in check.damaged_sessions))} damaged"
    )
    click.echo(
        f"{format_count(check.blob_count, 'text')}, {check.blob_bytes:,} bytes: "
        f"{_describe_number(len(check.missing_blobs))} missing, {_describe_number(len(check.altered_blobs))} altered"
    )
    if check.unnamed_count or check.draft_count:
        drafts = f" and {format_count(check.draft_count, 'draft')}" if check.draft_count else ""
        owner = "of no session"
        remedy = "holdfast gc removes them"
        if check.damaged_sessions:
            owner = "that no readable session names"
            remedy = "a damaged one may: holdfast gc removes nothing until it is repaired"
        click.echo(
            f"{format_count(check.unnamed_count, 'text')}{drafts} {owner}, {check.unnamed_bytes:,} bytes; {remedy}"
        )


def _print_faults(lines: Sequence[str]) -> None:
    for line in lines[:MAX_LISTED]:
        click.echo(clean_single_line(line))
    if len(lines) > MAX_LISTED:
        click.echo(f"… {len(lines) - MAX_LISTED:,} more; --json lists all")


def _describe_blob(blob: WrongBlob) -> str:
    if not blob.session:
        return f"text {blob.hash}, which no session uses"
    return f"text {blob.hash} of entry {blob.entry_id} in session {blob.session}"


def _format_entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _describe_number(count: int) -> str:
    return f"{count:,}" if count else "none"


# -- stats -------------------------------------------------------------------------------------------------------------


@store_command.command("stats", epilog=STATS_EXAMPLES)
@store_option
@make_json_option("all figures")
def stats_command(store: str | None, *, as_json: bool) -> None:
    """Show how large the store is: entries and bytes by kind, stored texts, and the largest of each.

    What was saved and what it cost is reported by holdfast stats.
    """
    if why := describe_missing_store(store):
        raise CommandError(why)
    with open_named_store(store, readonly=True) as there, ProgressBar(is_wanted=not as_json) as waiting:
        size = measure_store(there, tick=lambda done, total: waiting.set_progress("reading sessions", done, total))
    if as_json:
        print_json(msgspec.to_builtins(size))
    else:
        _print_size(size)


def _print_size(size: StoreSize) -> None:
    out = make_console()
    click.echo(
        f"{format_count(size.session_count, 'session')}, {_format_entries(size.entry_count)} "
        f"({size.entry_bytes:,} bytes), {format_count(size.blob_count, 'text')} ({size.blob_bytes:,} bytes)"
    )
    if size.kinds:
        click.echo()
        rows = [(kind.kind, f"{kind.count:,}", f"{kind.bytes:,}") for kind in size.kinds]
        print_table(out, _make_table(("kind", "entries", "bytes"), rows))
    for title, things in (
        ("largest sessions", size.largest_sessions),
        ("largest entries", size.largest_entries),
        ("largest texts", size.largest_blobs),
    ):
        if things:
            click.echo()
            print_table(out, _make_table((title, "bytes"), _make_rows(things)))
    for key in size.unreadable_sessions:
        click.echo(f"session {clean_single_line(key)} is damaged and was counted in part; run holdfast store check")


def _make_rows(things: Sequence[LargeThing]) -> list[tuple[str, ...]]:
    return [(clean_single_line(thing.name), f"{thing.bytes:,}") for thing in things]


def _make_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    return table


# -- migrate -----------------------------------------------------------------------------------------------------------


@store_command.command("migrate", epilog=MIGRATE_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Show the versions, and change nothing. Exit code 1 if there is work.")
@store_option
@make_json_option("the versions")
@click.pass_context
def migrate_command(ctx: click.Context, store: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Bring the store's schema to the version of this program, all of it or nothing.

    To a file the first write of a newer holdfast does this by itself; the command does it at a time of your choice. An
    older holdfast refuses a migrated file and does not touch it, so make a copy first if you may want to go back.

    On PostgreSQL others go on reading and writing meanwhile, also programs of the version before, and only this command
    changes tables that are there. It makes the partitions of this month and the next too: run it each month if the role
    of the service may not.
    """
    if why := describe_missing_store(store):
        raise CommandError(why)
    with open_named_store(store, readonly=dry_run) as there:
        if not isinstance(there, MigratableStore):
            raise CommandError("this store has no schema to migrate; give another with --store")
        before = there.get_schema_versions()
        if not dry_run:
            there.migrate_schema()
        after = there.get_schema_versions()
    if as_json:
        print_json(_encode_versions(before, after, dry_run=dry_run))
    else:
        _print_versions(before, after)
    if after.current < after.newest:
        ctx.exit(EXIT_FOUND)


def _encode_versions(before: SchemaVersions, after: SchemaVersions, *, dry_run: bool) -> dict[str, Any]:
    return {"dry_run": dry_run, "before": before.current, "after": after.current, "newest": after.newest}


def _print_versions(before: SchemaVersions, after: SchemaVersions) -> None:
    if after.current < after.newest:
        click.echo(f"the schema is version {after.current}, and {after.newest} is the newest; nothing was changed")
    elif before.current < after.current:
        click.echo(f"the schema was version {before.current} and is now {after.current}, the newest")
    else:
        click.echo(f"the schema is version {after.current}, the newest")
