"""``holdfast rm``: sessions removed, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from shlex import quote
from typing import Any

import click

from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.terminal import clean, json_option, many, say_json
from holdfast.cli.places import is_missing, opened, store_option, store_place
from holdfast.store.base import SessionStore
from holdfast.store.garbage import Leaving, leaving

EXAMPLES = """\
\b
Examples:
  holdfast rm 4d56
  holdfast rm 4d56 8a01 --yes
  holdfast gc                     then frees what only they named
"""
_NAMED = 5
"""Sessions of sub-agents that are named."""


@click.command("rm", epilog=EXAMPLES)
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@store_option
@json_option("what was removed")
def command(sessions: tuple[str, ...], store: str | None, *, yes: bool, as_json: bool) -> None:
    """Remove sessions from the store, for good.

    SESSION is the beginning of an id. What goes is shown first: the entries of all branches. Texts that were moved out
    of them stay until holdfast gc collects them; sessions of their sub-agents stay and are named; files that the
    sessions were imported from are not touched.
    """
    where = store_place(store).where
    if is_missing(where):
        raise Stopped(f"there is no store at {clean(where)}, so there is nothing to remove; check --store")
    with opened(store) as there:
        going = leaving(there, [there.session(prefix) for prefix in sessions])
        if not yes and not _agreed(going, as_json=as_json):
            click.echo("nothing was removed")
            return
        _remove(there, going)
    if as_json:
        say_json([_told(one) for one in going])
        return
    for one in going:
        click.echo(f"removed {_line(one)}")
    for one in going:
        _say_agents(one)
    if any(one.blobs for one in going):
        click.echo("their texts stay until they are collected: holdfast gc --dry-run shows them")


def _agreed(going: Sequence[Leaving], *, as_json: bool) -> bool:
    """Return whether the user agrees at a terminal; elsewhere nobody can, which is an error."""
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise Stopped(
            f"nothing was removed: there is nobody to ask; give --yes to remove {many(len(going), 'session')}"
        )
    for one in going:
        click.echo(_line(one))
        _say_agents(one)
    return click.confirm(f"Remove {many(len(going), 'session')} for good?")


def _remove(store: SessionStore, going: Sequence[Leaving]) -> None:
    """Remove all of them, or none if one is being written."""
    with ExitStack() as leases:
        for one in going:
            leases.enter_context(store.writing(one.info.key))
        for one in going:
            store.remove(one.info.key)


def _line(one: Leaving) -> str:
    entries = f"{one.info.entries:,} {'entry' if one.info.entries == 1 else 'entries'}"
    blobs = f", {many(len(one.blobs), 'text')} of {one.bytes:,} bytes that only it names" if one.blobs else ""
    title = f"  {clean(one.info.title, 60)}" if one.info.title else ""
    return f"{clean(one.info.key)}: {entries}{_branches(one.branches)}{blobs}{title}"


def _say_agents(one: Leaving) -> None:
    """Tell which sessions of sub-agents stay behind."""
    count = len(one.agents)
    if not count:
        return
    stay, them = ("stays", "it") if count == 1 else ("stay", "them")
    named = " ".join(quote(clean(key)) for key in one.agents[:_NAMED])
    more = f" and {count - _NAMED:,} more" if count > _NAMED else ""
    told = f"{many(count, 'session')} of its sub-agents {stay}; holdfast rm removes {them} too: {named}{more}"
    click.echo(told)


def _branches(count: int | None) -> str:
    if count is None:
        return ", damaged"
    return f" on {count:,} {'branch' if count == 1 else 'branches'}"


def _told(one: Leaving) -> dict[str, Any]:
    return {
        "session": one.info.key,
        "title": one.info.title,
        "entries": one.info.entries,
        "branches": one.branches,
        "blobs": list(one.blobs),
        "blob_bytes": one.bytes,
        "sub_agents_left": list(one.agents),
    }
