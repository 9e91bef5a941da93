"""``holdfast run``: a client with a proxy of its own, which is there as long as the client is."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeAlias

import click
from msgspec import to_builtins

from holdfast.cli.clients.launch import program
from holdfast.cli.clients.survey import Answer, led
from holdfast.cli.clients.temporary_files import Started, started
from holdfast.cli.output.errors import EXPECTED, Stopped, brief, reason
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import as_json_bytes, clean, json_option, many
from holdfast.cli.places import is_missing, opened, store_option, store_place
from holdfast.cli.proxy_options import (
    MOST_PORTS,
    asked,
    done,
    in_force,
    looked_on,
    mode,
    proxy_options,
    refused,
    token_of,
    total,
    unrecorded,
    upstreams_of,
)
from holdfast.cli.reports.describe import shortest
from holdfast.config.providers import VARIABLES
from holdfast.proxy.modes import mode_of, switch_of

if TYPE_CHECKING:
    from holdfast.cli.clients.child_process import Ended, Served
    from holdfast.cli.reports.dry_run import Foreseen

Prepared: TypeAlias = Callable[[str], AbstractContextManager[Started]]
"""Tells how a client is started with a proxy at an address."""
EXAMPLES = """\
\b
Examples:
  holdfast run -- claude
  holdfast run --observe -- codex exec "Tidy the notes"
  holdfast run --window 64000 --upstream-openai http://127.0.0.1:8080/v1 -- llm "Hello"
"""
NOT_FOUND, NOT_STARTED = 127, 126
"""Exit codes that shells have for a program that is not there, or is none."""
OF_OUR_OWN = {"host": "127.0.0.1", "token": ""}
"""Settings of a proxy that only its client knows of."""


@click.command("run", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@proxy_options
@click.option("--port", type=Whole(0, MOST_PORTS), help="The port of the proxy. [default: a free one]")
@store_option
@json_option("what was counted in the end, on standard error,")
@click.argument("client", nargs=-1, required=True, metavar="CLIENT [ARGS]...")
@click.pass_context
def command(ctx: click.Context, /, client: tuple[str, ...], store: str | None, *, as_json: bool, **given: Any) -> None:
    """Start CLIENT with a proxy of its own, so that it never outgrows its window.

    Made for claude, codex, opencode, pi, gemini, aider and llm, which keep their settings and logins; any other program
    has the variables of the SDKs. Where it was pointed at a server of your own, the proxy sends its requests there.
    The terminal is the client's, and the exit code too. In the end a line on standard error tells what was done.
    One that is pointed at a proxy that runs already is started there.
    """
    import anyio

    from holdfast.cli.clients.child_process import NOT_BEGUN, Served, accompanied
    from holdfast.proxy.server import backend

    path = _path(ctx, client[0])
    found = in_force(given | OF_OUR_OWN | {"port": given["port"] or 0}, _unpointed(os.environ))
    prepared = partial(_prepared, client, path, found.fixed, sys.stderr)
    token = token_of(found.known)
    running = led(program(client[0]), upstreams_of(found.settings), token)
    if running is not None:
        joined = partial(prepared, token=token if running[1].wants_token else "")
        _join(ctx, client[0], *running, joined, is_plain=not (asked(given) or store or as_json))
    served = Served(found.settings, found.known, store_place(store).where)
    switch = switch_of(served.store)
    if mode_of(found.settings, switch) == "bypass":
        _say(mode(found.settings, switch))
    elif why := unrecorded(served.store):
        _say(why)
    with _quiet():
        ended = anyio.run(accompanied, served, prepared, backend_options=backend())
    if ended.code == NOT_BEGUN:
        _not_begun(ctx, ended, found.settings.port, client[0])
    _tell(ended, served, store, as_json=as_json)
    ctx.exit(ended.code)


def _path(ctx: click.Context, client: str) -> str:
    """Return where the program called ``client`` is; without one the command ends as a shell does."""
    path = shutil.which(client)
    if path is None and os.sep in client and Path(client).exists():
        _say(f"{client} is no program; give the path of one")
        ctx.exit(NOT_STARTED)
    if path is None:
        _say(f"{client or 'an empty name'} is not installed, or not in PATH; install it, or give its path")
        ctx.exit(NOT_FOUND)
    return path


def _join(ctx: click.Context, client: str, what: str, told: Answer, prepared: Prepared, *, is_plain: bool) -> NoReturn:
    """Have ``client`` at the proxy that ``what`` leads to: a second one before it would do and record all twice."""
    import anyio

    from holdfast.cli.clients.child_process import NOT_BEGUN, alone

    where = f"{what} leads to {told.proxy}, {told.text}"
    if told.is_closed:
        raise Stopped(f"{where}, and {client} is started there; or unset {what}")
    if not is_plain:
        raise Stopped(f"{where}; leave out the options of holdfast run, for they are not that proxy's, or unset {what}")
    _say(f"{where}; {client} is started there, with no second proxy before it")
    ended = anyio.run(alone, told.proxy, prepared)
    if ended.code == NOT_BEGUN and ended.failure is not None:
        _not_started(ctx, client, ended.failure)
    ctx.exit(ended.code)


def _unpointed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that point a client somewhere: its requests name that address themselves."""
    return {name: value for name, value in environment.items() if name not in VARIABLES}


@contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing of ours reach the terminal while it is the client's; what went wrong is told in the end."""
    if sys.stderr is None:
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _prepared(
    client: Sequence[str], path: str, fixed: frozenset[str], to: TextIO | None, proxy: str, token: str = ""
) -> Iterator[Started]:
    """Yield how the client is started; what it does past the proxy is told before."""
    with started(client, path, proxy, fixed, token) as ready:
        for note in ready.notes:
            _say(note, to)
        yield ready


def _not_begun(ctx: click.Context, ended: Ended, port: int, client: str) -> None:
    """End with an error: the proxy, or the client, did not begin."""
    error = ended.failure
    assert error is not None
    if ended.health is None:
        raise refused(error, port)
    _not_started(ctx, client, error)


def _not_started(ctx: click.Context, client: str, error: Exception) -> NoReturn:
    """End with an error: the program is there, and cannot be run."""
    _say(f"{client} cannot be started: {reason(error)}")
    ctx.exit(NOT_STARTED)


# -- what it says in the end -------------------------------------------------------------------------------------------


def _sessions(keys: Sequence[str], store: str | None) -> list[str]:
    """Return how the sessions of ``keys`` are called that are in the store."""
    with suppress(*EXPECTED):
        if not is_missing(store_place(store).where):
            with opened(store, readonly=True) as there:
                short = shortest([info.key for info in there.sessions()])
            return [short[key] for key in keys if key in short]
    return []


def _tell(ended: Ended, served: Served, store: str | None, *, as_json: bool) -> None:
    """Tell on standard error what was done for the client."""
    if ended.health is None:
        error = ended.failure
        _say(f"the proxy ended before the client: {reason(error) if error else 'nobody knows why'}; start again")
        return
    stats, keys = ended.health.stats(), ended.health.sessions.keys
    sessions = _sessions(keys, store)
    found = looked_on(served.settings, store, keys, served.known)
    if as_json:
        told = {"exit": ended.code, "sessions": sessions, "stats": stats}
        _write(as_json_bytes(told | ({} if found is None else {"foreseen": to_builtins(found)})))
        return
    livez = ended.health.livez()
    for trouble in livez["troubles"]:
        _say(f"{trouble['what']}, {many(trouble['times'], 'time')}: {trouble['why']}")
    for note in livez["notes"]:
        _say(note)
    _say(in_short(stats, found, sessions, store))


def in_short(
    stats: Mapping[str, Any], found: Foreseen | None, sessions: Sequence[str], store: str | None = None
) -> str:
    """Return on one line what was counted: requests, what was done about them or would have been, and where to look."""
    count = total(stats)
    if not count:
        return "no request came to the proxy; docs/clients.md tells how this client is pointed there"
    parts = [many(count, "request"), *done(stats, found)]
    if sessions:
        behind = f" --store {shlex.quote(store)}" if store else ""
        others = f" (and {len(sessions) - 1} more)" if len(sessions) > 1 else ""
        parts.append(f"holdfast show {sessions[0]}{behind}{others}")
    return " · ".join(parts)


def _say(line: str, to: TextIO | None = None) -> None:
    _write(f"holdfast: {clean(brief(line))}", to)


def _write(line: str | bytes, to: TextIO | None = None) -> None:
    """Write ``line`` on standard error, or on ``to``; where nobody takes it the client ends as it does."""
    with suppress(OSError):
        click.echo(line, to, err=True)
