"""``holdfast gc``: texts that no session names any more."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.commands.ls import ago
from holdfast.cli.output.ranges import Measure
from holdfast.cli.output.terminal import clean, console, json_option, many, say_json, say_line
from holdfast.cli.places import absence, opened, store_option
from holdfast.store.base import Held
from holdfast.store.garbage import GRACE, Unused, collect, unused

EXAMPLES = """\
\b
Examples:
  holdfast gc --dry-run
  holdfast gc --grace 86400
"""


@click.command("gc", epilog=EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@click.option(
    "--grace",
    type=Measure(0),
    default=GRACE,
    show_default=True,
    metavar="SECONDS",
    help="Leave alone what was stored so lately: a text is stored a moment before it is named.",
)
@store_option
@json_option("what was removed")
def command(store: str | None, grace: float, *, dry_run: bool, as_json: bool) -> None:
    """Remove texts that no session names any more, and what crashed writers left.

    Sessions are never touched; holdfast rm removes those.
    """
    why = absence(store)
    with opened(store, readonly=dry_run) as there:
        found = Unused() if why else unused(there, grace)
        gone = found if dry_run else collect(there, found)
    if why:
        click.echo(why, err=True)
    if as_json:
        say_json(_told(gone, dry_run=dry_run))
        return
    _say(gone, "would go" if dry_run else "removed")
    if gone.young:
        click.echo(f"{gone.young:,} that nothing names stay: they were stored in the last {grace:,.0f} s (--grace)")


def _say(gone: Unused, verb: str) -> None:
    from rich.text import Text

    out = console()
    for one in (*gone.blobs, *gone.drafts):
        what = "draft" if one.is_draft else "text"
        say_line(
            out, Text(f"{clean(one.name)[:40]:40}  {what:5}  {one.size:>14,} bytes  {ago(int(one.at * 1_000)):>10}")
        )
    drafts = f" and {many(len(gone.drafts), 'draft')}" if gone.drafts else ""
    click.echo(f"{verb}: {many(len(gone.blobs), 'text')}{drafts}, {gone.bytes:,} bytes; in use: {gone.used:,}")


def _told(gone: Unused, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "bytes": gone.bytes,
        "blobs": [_one(one) for one in gone.blobs],
        "drafts": [_one(one) for one in gone.drafts],
        "in_use": gone.used,
        "young": gone.young,
    }


def _one(one: Held) -> dict[str, Any]:
    return {"name": one.name, "bytes": one.size, "stored": int(one.at * 1_000)}
