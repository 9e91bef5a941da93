"""``holdfast run``: run a client with a proxy of its own, which exists as long as the client runs."""

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

from holdfast.cli.clients.client_check import UrlCheck, find_existing_proxy
from holdfast.cli.clients.launch import get_command_client
from holdfast.cli.clients.temporary_files import ClientCommand, prepare_client
from holdfast.cli.files.user_paths import is_store_missing, open_named_store, store_option
from holdfast.cli.output.errors import EXPECTED_ERRORS, CommandError, cut_long_words, describe_error
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import encode_printable_json, make_json_option
from holdfast.cli.proxy_options import (
    MAX_PORT,
    add_proxy_options,
    count_proxy_requests,
    describe_proxy_mode,
    describe_recording_problem,
    forecast_observed_sessions,
    get_option_settings,
    get_proxy_token,
    get_upstream_urls,
    load_effective_settings,
    summarize_run,
    translate_bind_error,
)
from holdfast.config.providers import ADDRESS_VARIABLES
from holdfast.errors import FormatError
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.proxy.modes import get_bypass_file, get_proxy_mode
from holdfast.reports.describe import shorten_session_keys
from holdfast.store.location import locate_store
from holdfast.telemetry.switch import export_telemetry

if TYPE_CHECKING:
    from holdfast.cli.clients.child_process import ClientOutcome, ClientProxyOptions
    from holdfast.reports.requests.dry_run import PolicyForecast

ClientPreparation: TypeAlias = Callable[[str], AbstractContextManager[ClientCommand]]
"""Prepares a client to start with a proxy at the given address."""
EXAMPLES = """\
\b
Examples:
  holdfast run -- claude
  holdfast run --observe -- codex exec "Tidy the notes"
  holdfast run --window 64000 --upstream-openai http://127.0.0.1:8080/v1 -- llm "Hello"
"""
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126
"""Exit codes that shells use for a program that does not exist, or cannot be executed."""
PRIVATE_PROXY_SETTINGS = {"host": "127.0.0.1", "token": ""}
"""Settings of a proxy that only its own client uses."""


@click.command("run", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@add_proxy_options
@click.option("--port", type=IntegerParamType(0, MAX_PORT), help="The port of the proxy. [default: a free one]")
@store_option
@make_json_option("the final counts, on standard error,")
@click.argument("client", nargs=-1, required=True, metavar="CLIENT [ARGS]...")
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    client: tuple[str, ...],
    store: str | None,
    *,
    as_json: bool,
    **given: Any,
) -> None:
    """Start CLIENT with a proxy of its own, so that it never outgrows its window.

    Made for claude, codex, opencode, pi, gemini, aider and llm, which keep their settings and logins; other programs
    get the variables of the SDKs. If the client was pointed at a server of your own, the proxy forwards to it. The
    client has the terminal, and its exit code is returned. A summary line on standard error ends the run. A client that
    is pointed at a running Holdfast proxy uses that one; the line then counts all clients of that proxy.
    """
    import anyio

    from holdfast.cli.clients.child_process import NOT_STARTED, ClientProxyOptions, run_with_proxy
    from holdfast.proxy.server import get_loop_options

    path = _find_program(ctx, client[0])
    effective_settings = load_effective_settings(
        given | PRIVATE_PROXY_SETTINGS | {"port": given["port"] or 0}, _drop_url_variables(os.environ)
    )
    prepare = partial(_prepare_with_notes, client, path, effective_settings.explicit_upstreams, sys.stderr)
    token = get_proxy_token(effective_settings.configuration)
    # Two proxies in a row would record and reduce every request twice.
    running = find_existing_proxy(get_command_client(client[0]), get_upstream_urls(effective_settings.settings), token)
    if running is not None:
        # The token goes only to a client of a proxy that accepted it.
        proxy_token = token if running[1].was_sent_token else ""
        _run_at_existing_proxy(
            ctx,
            client[0],
            *running,
            partial(prepare, token=proxy_token),
            proxy_token,
            is_plain=not (get_option_settings(given) or store or as_json),
        )
    proxy = ClientProxyOptions(effective_settings.settings, effective_settings.configuration, locate_store(store).url)
    switch = get_bypass_file(proxy.store)
    if get_proxy_mode(effective_settings.settings, switch) == "bypass":
        _print_note(describe_proxy_mode(effective_settings.settings, switch))
    elif why := describe_recording_problem(proxy.store):
        _print_note(why)
    # Logs of the proxy would be written across the client's screen.
    telemetry_problems: list[str] = []
    exports = export_telemetry(
        proxy.settings.telemetry, telemetry_problems.append, content=proxy.settings.telemetry_content
    )
    with _silence_stderr(), exports as telemetry:
        outcome = anyio.run(run_with_proxy, proxy, prepare, telemetry, backend_options=get_loop_options())
    if outcome.code == NOT_STARTED:
        _exit_proxy_failed(ctx, outcome, effective_settings.settings.port, client[0])
    for problem in telemetry_problems:
        _print_note(problem)
    _print_run_summary(outcome, proxy, store, as_json=as_json)
    ctx.exit(outcome.code)


def _find_program(ctx: click.Context, client: str) -> str:
    """Return the path of the program ``client``; if it is missing, exit with a shell's exit code."""
    path = shutil.which(client)
    # Shells tell a file that cannot be executed (126) from a missing one (127), and scripts rely on it.
    if path is None and os.sep in client and Path(client).exists():
        _print_note(f"{client} is not an executable program; give the path of one")
        ctx.exit(EXIT_NOT_EXECUTABLE)
    if path is None:
        _print_note(f"{client or 'an empty name'} is not installed or not in PATH; install it, or give its path")
        ctx.exit(EXIT_NOT_FOUND)
    return path


def _run_at_existing_proxy(
    ctx: click.Context,
    client: str,
    description: str,
    check: UrlCheck,
    prepare: ClientPreparation,
    token: str,
    *,
    is_plain: bool,
) -> NoReturn:
    """Run ``client`` at the proxy that ``description`` points at; a second proxy would record and reduce twice."""
    import anyio

    from holdfast.cli.clients.child_process import NOT_STARTED, run_with_existing_proxy
    from holdfast.cli.clients.shared_proxy import ProxyStats, describe_shared_run, fetch_proxy_stats

    where = f"{description} points at {check.proxy}, {check.text}"
    if check.needs_other_token:
        raise CommandError(f"{where}, so that {client} can use it; or unset {description}")
    if not is_plain:
        raise CommandError(
            f"{where}; options of holdfast run do not apply to it: leave them out, or unset {description}"
        )
    _print_note(f"{where}; {client} uses it, and no second proxy is started")
    before: ProxyStats | FormatError
    try:
        before = fetch_proxy_stats(check.proxy, token)
    except FormatError as error:
        before = error
    outcome = anyio.run(run_with_existing_proxy, check.proxy, prepare)
    if outcome.code == NOT_STARTED and outcome.failure is not None:
        _exit_client_failed(ctx, client, outcome.failure)
    _print_note(describe_shared_run(client, check.proxy, token, before))
    ctx.exit(outcome.code)


def _drop_url_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop the variables that set addresses: they are the client's, and its requests carry them in their paths."""
    return {name: value for name, value in environment.items() if name not in ADDRESS_VARIABLES}


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Discard our standard error while the terminal is the client's; problems are reported at the end."""
    # Programs without a console have no standard error.
    if sys.stderr is None:
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _prepare_with_notes(
    client: Sequence[str],
    path: str,
    explicit_upstreams: frozenset[str],
    to: TextIO | None,
    proxy: str,
    token: str = "",
) -> Iterator[ClientCommand]:
    """Prepare the client, and first print the notes on requests that bypass the proxy."""
    with prepare_client(client, path, proxy, explicit_upstreams, token) as ready:
        for note in ready.notes:
            _print_note(note, to)
        yield ready


def _exit_proxy_failed(ctx: click.Context, outcome: ClientOutcome, port: int, client: str) -> None:
    """Exit with an error: the proxy or the client could not start."""
    error = outcome.failure
    assert error is not None
    if outcome.health is None:
        raise translate_bind_error(error, port)
    _exit_client_failed(ctx, client, error)


def _exit_client_failed(ctx: click.Context, client: str, error: Exception) -> NoReturn:
    """Exit with an error: the program exists but cannot be executed."""
    _print_note(f"{client} cannot be started: {describe_error(error)}")
    ctx.exit(EXIT_NOT_EXECUTABLE)


# -- the summary at the end -------------------------------------------------------------------------------------------


def _shorten_stored_keys(keys: Sequence[str], store: str | None) -> list[str]:
    """Return the shortened keys of those sessions that are in the store."""
    with suppress(*EXPECTED_ERRORS):
        if not is_store_missing(locate_store(store).url):
            with open_named_store(store, readonly=True) as there:
                short = shorten_session_keys([info.key for info in there.list_sessions()])
            return [short[key] for key in keys if key in short]
    return []


def _print_run_summary(
    outcome: ClientOutcome,
    proxy: ClientProxyOptions,
    store: str | None,
    *,
    as_json: bool,
) -> None:
    """Print on standard error the number of requests, and the decisions about them."""
    if outcome.health is None:
        why = describe_error(outcome.failure) if outcome.failure else "unknown reason"
        _print_note(f"the proxy ended before the client: {why}; start again")
        return
    stats = outcome.health.build_stats()
    keys = outcome.health.sessions.session_keys
    sessions = _shorten_stored_keys(keys, store)
    dry_run = forecast_observed_sessions(proxy.settings, store, keys, proxy.configuration)
    if as_json:
        record = {"exit": outcome.code, "sessions": sessions, "stats": stats}
        if dry_run is not None:
            record["foreseen"] = to_builtins(dry_run)
        _write_to_stderr(encode_printable_json(record))
        return
    livez = outcome.health.build_livez()
    for trouble in livez["troubles"]:
        _print_note(f"{trouble['what']}, {format_count(trouble['times'], 'time')}: {trouble['why']}")
    for note in livez["notes"]:
        _print_note(note)
    _print_note(format_run_summary(stats, dry_run, sessions, store))


def format_run_summary(
    stats: Mapping[str, Any],
    dry_run: PolicyForecast | None,
    sessions: Sequence[str],
    store: str | None = None,
) -> str:
    """Format the final counts on one line: requests, actions or a forecast, and a command to look further."""
    count = count_proxy_requests(stats)
    if not count:
        return "the proxy received no request; docs/clients.md explains how to point this client at it"
    parts = [format_count(count, "request"), *summarize_run(stats, dry_run)]
    if sessions:
        command_line = f"holdfast show {sessions[0]}"
        if store:
            command_line += f" --store {shlex.quote(store)}"
        if len(sessions) > 1:
            command_line += f" (and {len(sessions) - 1} more)"
        parts.append(command_line)
    return " · ".join(parts)


def _print_note(line: str, to: TextIO | None = None) -> None:
    _write_to_stderr(f"holdfast: {clean_single_line(cut_long_words(line))}", to)


def _write_to_stderr(line: str | bytes, to: TextIO | None = None) -> None:
    """Write ``line`` to standard error, or to ``to``; a closed stream must not change the client's exit code."""
    with suppress(OSError):
        click.echo(line, to, err=True)
