"""``holdfast rm``: remove sessions from the store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from shlex import quote
from typing import Any

import click

from holdfast.cli.files.user_paths import is_store_missing, open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import make_json_option, print_json
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.base import SessionStore
from holdfast.store.garbage import RemovalPreview, preview_removal
from holdfast.store.location import locate_store

EXAMPLES = """\
\b
Examples:
  holdfast rm 4d56
  holdfast rm 4d56 8a01 --yes
  holdfast gc                     then frees the texts only they used
"""
_LISTED_AGENTS = 5
"""Sessions of sub-agents to list by name."""


@click.command("rm", epilog=EXAMPLES)
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; required without a terminal.")
@store_option
@make_json_option("the removed sessions")
def rm_command(sessions: tuple[str, ...], store: str | None, *, yes: bool, as_json: bool) -> None:
    """Remove sessions from the store, for good.

    SESSION is the beginning of an id. You are first shown what will be removed: the entries of all branches. Texts that
    were moved out of the entries stay until holdfast gc collects them. Sessions of sub-agents stay and are listed.
    Files that the sessions were imported from are not touched.
    """
    where = locate_store(store).url
    if is_store_missing(where):
        raise CommandError(f"there is no store at {clean_single_line(where)}; check --store")
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
        click.echo("their stored texts remain until holdfast gc removes them; holdfast gc --dry-run lists them")


def _confirm_removal(sessions: Sequence[RemovalPreview], *, as_json: bool) -> bool:
    """Return whether the user agrees. Raises ``CommandError`` if there is no terminal to ask at."""
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(
            f"nothing was removed: without a terminal, give --yes to remove {format_count(len(sessions), 'session')}"
        )
    for session in sessions:
        click.echo(_format_leaving(session))
        _print_agent_sessions(session)
    return click.confirm(f"Remove {format_count(len(sessions), 'session')} for good?")


def _remove_sessions(store: SessionStore, sessions: Sequence[RemovalPreview]) -> None:
    """Remove all sessions, or none if one of them is in use."""
    with ExitStack() as leases:
        for session in sessions:
            # All leases first: a session that is being written makes this fail before anything is removed.
            leases.enter_context(store.hold_lease(session.info.key))
        for session in sessions:
            store.remove_session(session.info.key)


def _format_leaving(session: RemovalPreview) -> str:
    count = session.info.entry_count
    noun = "entry" if count == 1 else "entries"
    text = f"{clean_single_line(session.info.key)}: {count:,} {noun}"
    text += _format_branch_count(session.branch_count)
    if session.exclusive_blobs:
        blobs = format_count(len(session.exclusive_blobs), "text")
        text += f", {blobs} of {session.bytes:,} bytes that only it uses"
    if session.info.title:
        text += f"  {clean_single_line(session.info.title, 60)}"
    return text


def _print_agent_sessions(session: RemovalPreview) -> None:
    """List the sessions of sub-agents that stay."""
    count = len(session.subagent_keys)
    if not count:
        return
    keys = " ".join(quote(clean_single_line(key)) for key in session.subagent_keys[:_LISTED_AGENTS])
    if count > _LISTED_AGENTS:
        keys += f" and {count - _LISTED_AGENTS:,} more"
    verb, pronoun = ("stays", "it") if count == 1 else ("stay", "them")
    sessions = format_count(count, "session")
    click.echo(f"{sessions} of its sub-agents {verb}; holdfast rm removes {pronoun} too: {keys}")


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
