"""``holdfast gc``: remove stored texts that no session uses any more."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.files.user_paths import describe_missing_store, open_named_store, store_option
from holdfast.cli.output.ranges import FloatParamType
from holdfast.cli.output.terminal import make_console, make_json_option, print_json, print_line
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.sessions.session_list import format_age
from holdfast.store.base import BlobItem
from holdfast.store.garbage import GRACE_SECONDS, UnusedBlobs, find_unused_blobs, remove_unused_blobs

EXAMPLES = """\
\b
Examples:
  holdfast gc --dry-run
  holdfast gc --grace 86400
"""


@click.command("gc", epilog=EXAMPLES)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@click.option(
    "--grace",
    type=FloatParamType(0),
    default=GRACE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Keep texts stored more recently than this: a session refers to a text only after storing it.",
)
@store_option
@make_json_option("the removed texts")
def gc_command(store: str | None, grace: float, *, dry_run: bool, as_json: bool) -> None:
    """Remove stored texts that no session uses any more, and leftovers of crashed writers.

    Sessions are never touched; holdfast rm removes those.
    """
    why = describe_missing_store(store)
    with open_named_store(store, readonly=dry_run) as there:
        unused_blobs = UnusedBlobs() if why else find_unused_blobs(there, grace)
        removed_blobs = unused_blobs if dry_run else remove_unused_blobs(there, unused_blobs)
    if why:
        click.echo(why, err=True)
    if as_json:
        print_json(_encode_collected(removed_blobs, dry_run=dry_run))
        return
    _print_collected(removed_blobs, "would be removed" if dry_run else "removed")
    if removed_blobs.young_count:
        click.echo(
            f"{removed_blobs.young_count:,} more unused, kept because they were stored in the last {grace:,.0f} s "
            "(--grace)"
        )


def _print_collected(unused_blobs: UnusedBlobs, verb: str) -> None:
    from rich.text import Text

    out = make_console()
    for blob in (*unused_blobs.blobs, *unused_blobs.drafts):
        name = clean_single_line(blob.name)[:40]
        kind = "draft" if blob.is_draft else "text"
        age = format_age(int(blob.stored_at * 1_000))
        print_line(out, Text(f"{name:40}  {kind:5}  {blob.size:>14,} bytes  {age:>10}"))
    drafts = ""
    if unused_blobs.drafts:
        drafts = f" and {format_count(len(unused_blobs.drafts), 'draft')}"
    click.echo(
        f"{verb}: {format_count(len(unused_blobs.blobs), 'text')}{drafts}, {unused_blobs.bytes:,} bytes; in use: "
        f"{unused_blobs.named_count:,}"
    )


def _encode_collected(unused_blobs: UnusedBlobs, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "bytes": unused_blobs.bytes,
        "blobs": [_encode_blob(blob) for blob in unused_blobs.blobs],
        "drafts": [_encode_blob(blob) for blob in unused_blobs.drafts],
        "in_use": unused_blobs.named_count,
        "young": unused_blobs.young_count,
    }


def _encode_blob(blob: BlobItem) -> dict[str, Any]:
    return {"name": blob.name, "bytes": blob.size, "stored": int(blob.stored_at * 1_000)}
