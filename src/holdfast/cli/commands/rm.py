"""``holdfast rm``: sessions removed, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from shlex import quote
from typing import Any

import click

from holdfast.cli.files.user_paths import is_store_missing, locate_store, open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import clean_single_line, format_count, make_json_option, print_json
from holdfast.store.base import SessionStore
from holdfast.store.garbage import RemovalPreview, preview_removal

EXAMPLES = """\
\b
Examples:
  holdfast rm 4d56
  holdfast rm 4d56 8a01 --yes
  holdfast gc                     then frees what only they named
"""
_LISTED_AGENTS = 5
"""Sessions of sub-agents that are named."""


@click.command("rm", epilog=EXAMPLES)
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@store_option
@make_json_option("what was removed")
def command(sessions: tuple[str, ...], store: str | None, *, yes: bool, as_json: bool) -> None:
    """Remove sessions from the store, for good.

    SESSION is the beginning of an id. What goes is shown first: the entries of all branches. Texts that were moved out
    of them stay until holdfast gc collects them; sessions of their sub-agents stay and are named; files that the
    sessions were imported from are not touched.
    """
    where = locate_store(store).url
    if is_store_missing(where):
        raise CommandError(
            f"there is no store at {clean_single_line(where)}, so there is nothing to remove; check --store"
        )
    with open_named_store(store) as there:
        going = preview_removal(there, [there.get_session(prefix) for prefix in sessions])
        if not yes and not _confirm_removal(going, as_json=as_json):
            click.echo("nothing was removed")
            return
        _remove_sessions(there, going)
    if as_json:
        print_json([_encode_removed(session) for session in going])
        return
    for session in going:
        click.echo(f"removed {_format_leaving(session)}")
    for session in going:
        _print_agent_sessions(session)
    if any(session.exclusive_blobs for session in going):
        click.echo("their texts stay until they are collected: holdfast gc --dry-run shows them")


def _confirm_removal(sessions: Sequence[RemovalPreview], *, as_json: bool) -> bool:
    """Return whether the user agrees at a terminal; elsewhere nobody can, which is an error."""
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(
            "nothing was removed: there is nobody to ask; give --yes to remove "
            f"{format_count(len(sessions), 'session')}"
        )
    for session in sessions:
        click.echo(_format_leaving(session))
        _print_agent_sessions(session)
    return click.confirm(f"Remove {format_count(len(sessions), 'session')} for good?")


def _remove_sessions(store: SessionStore, sessions: Sequence[RemovalPreview]) -> None:
    """Remove all of them, or none if one is being written."""
    with ExitStack() as leases:
        for session in sessions:
            leases.enter_context(store.hold_lease(session.info.key))
        for session in sessions:
            store.remove_session(session.info.key)


def _format_leaving(session: RemovalPreview) -> str:
    entries = f"{session.info.entry_count:,} {'entry' if session.info.entry_count == 1 else 'entries'}"
    blobs = (
        f", {format_count(len(session.exclusive_blobs), 'text')} of {session.bytes:,} bytes that only it names"
        if session.exclusive_blobs
        else ""
    )
    title = f"  {clean_single_line(session.info.title, 60)}" if session.info.title else ""
    return f"{clean_single_line(session.info.key)}: {entries}{_format_branch_count(session.branch_count)}{blobs}{title}"


def _print_agent_sessions(session: RemovalPreview) -> None:
    """Tell which sessions of sub-agents stay behind."""
    count = len(session.subagent_keys)
    if not count:
        return
    stay, pronoun = ("stays", "it") if count == 1 else ("stay", "them")
    agent_keys = " ".join(quote(clean_single_line(key)) for key in session.subagent_keys[:_LISTED_AGENTS])
    suffix = f" and {count - _LISTED_AGENTS:,} more" if count > _LISTED_AGENTS else ""
    text = (
        f"{format_count(count, 'session')} of its sub-agents {stay}; holdfast rm removes {pronoun} too: "
        f"{agent_keys}{suffix}"
    )
    click.echo(text)


def _format_branch_count(count: int | None) -> str:
    if count is None:
        return ", damaged"
    return f" on {count:,} {'branch' if count == 1 else 'branches'}"


def _encode_removed(session: RemovalPreview) -> dict[str, Any]:
    return {
        "session": session.info.key,
        "title": session.info.title,
        "entries": session.info.entry_count,
        "branches": session.branch_count,
        "blobs": list(session.exclusive_blobs),
        "blob_bytes": session.bytes,
        "sub_agents_left": list(session.subagent_keys),
    }
