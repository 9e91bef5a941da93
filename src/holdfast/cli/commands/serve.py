"""``holdfast serve``: serve the proxy on a port of this machine, for any client pointed at it."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, to_builtins

from holdfast import events
from holdfast.cli.files.user_paths import store_option
from holdfast.cli.output.errors import CommandInterrupted, describe_error
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import encode_printable_json, make_json_option
from holdfast.cli.proxy_options import (
    MAX_PORT,
    add_proxy_options,
    check_store_url,
    count_proxy_requests,
    describe_proxy_mode,
    describe_recording_problem,
    forecast_observed_sessions,
    get_upstream_urls,
    load_effective_settings,
    summarize_run,
    translate_bind_error,
)
from holdfast.config import Configuration
from holdfast.config.addresses import get_external_address
from holdfast.config.providers import PROVIDERS, build_sdk_variables
from holdfast.errors import ConfigError
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.proxy.modes import get_bypass_file, get_proxy_mode
from holdfast.proxy.settings import Settings
from holdfast.store.location import StoreLocation, locate_store
from holdfast.telemetry.switch import export_telemetry

if TYPE_CHECKING:
    from anyio import CancelScope, Event
    from anyio.abc import TaskStatus
    from anyio.streams.memory import MemoryObjectSendStream

    from holdfast.proxy.metrics.health import Health
    from holdfast.telemetry.telemetry import Telemetry

EXAMPLES = """\
\b
Examples:
  holdfast serve --observe
  holdfast serve --port 4141 --upstream-openai http://127.0.0.1:8080/v1
  ANTHROPIC_BASE_URL=http://127.0.0.1:8642 claude
"""


MAX_PRINTED_CHANGES = 100
"""Changed fields that are printed while the proxy runs; it bounds the memory and the log. Chosen by judgement."""


class ProxyServeOptions(Struct, frozen=True):
    """The configuration of a proxy to serve."""

    settings: Settings
    configuration: Configuration
    store: StoreLocation
    options: Mapping[str, Any] = {}
    """The command-line options; they override files that are reloaded."""
    as_json: bool = False


@click.command("serve", epilog=EXAMPLES)
@click.option(
    "--host",
    metavar="HOST",
    help="The address to listen on; beyond this machine a token is required. [default: 127.0.0.1]",
)
@click.option("--port", type=IntegerParamType(0, MAX_PORT), help="The port, 0 for a free one. [default: 8642]")
@click.option(
    "--token",
    metavar="TOKEN",
    help="The token clients must send in x-holdfast-token; better kept in $HOLDFAST_TOKEN.",
)
@add_proxy_options
@store_option
@make_json_option("the address and, at the end, the counts")
def serve_command(store: str | None, *, as_json: bool, **given: Any) -> None:
    """Serve the proxy: clients that are pointed at it never outgrow their window.

    It speaks Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini; everything else is passed through.
    Keys and logins of clients are passed on and never stored. For a single client holdfast run does the same with
    nothing to set up. Plugins of coding agents and LLM gateways ask it at /v1/plan, /v1/compact, /v1/recall and
    /v1/compress, for which no provider is asked.

    ^C ends it once running answers are finished; a second ^C ends it at once. The signal HUP reloads holdfast.toml. A
    field that is left out or changed because the provider refuses it is told on standard error, once.
    """
    import anyio

    from holdfast.proxy.server import get_loop_options

    effective_settings = load_effective_settings(given)
    serving = ProxyServeOptions(
        effective_settings.settings,
        effective_settings.configuration,
        locate_store(store),
        given,
        as_json,
    )
    # A plain relay records nothing, so it needs no store.
    if get_proxy_mode(effective_settings.settings, get_bypass_file(serving.store.url)) != "bypass":
        check_store_url(serving.store.url)
    settings = effective_settings.settings
    with export_telemetry(
        settings.telemetry, _print_telemetry_problem, content=settings.telemetry_content
    ) as telemetry:
        health = anyio.run(_serve_proxy, serving, telemetry, backend_options=get_loop_options())
    if health is None:
        raise CommandInterrupted("ended at once: running answers were cut off, and nothing was left half-written")
    _print_final_counts(health, serving)


async def _serve_proxy(serving: ProxyServeOptions, telemetry: Telemetry | None) -> Health | None:
    """Serve until a signal, and return the health counters, or None if it was ended at once."""
    from anyio import Event, create_memory_object_stream, create_task_group

    from holdfast.proxy.server import serve_proxy

    health = None
    failure = None
    stop = Event()
    sends, changes = create_memory_object_stream[tuple[Settings, Configuration]](1)
    async with create_task_group() as tasks, sends, changes:
        # Both must listen before the proxy starts, because until then a signal ends the process at once.
        await tasks.start(_wait_for_signals, stop, tasks.cancel_scope)
        await tasks.start(_reload_on_hangup, serving, sends)
        try:
            health = await serve_proxy(
                serving.settings,
                serving.store.url,
                on_ready=lambda address: _announce_proxy(address, serving),
                stop=stop,
                loaded_configuration=serving.configuration,
                changes=changes,
                on_event=_ChangePrinter().print_change,
                telemetry=telemetry,
            )
        except Exception as error:  # noqa: BLE001  a task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    # Raised outside of the task group, so that callers get the plain error and not an exception group.
    if failure is not None:
        raise translate_bind_error(failure, serving.settings.port)
    return health


def _warn_chained_proxies(settings: Settings) -> None:
    """Warn about upstreams that are Holdfast proxies, once they answer; startup does not wait for this."""
    from holdfast.cli.clients.client_check import find_chained_proxies

    for name, there in find_chained_proxies(get_upstream_urls(settings), settings.token).items():
        twice = f"its requests are recorded and reduced twice; use that proxy, or give --upstream-{name}"
        _print_notice(clean_single_line(f"upstream {name} points at {there.proxy}, {there.text}: {twice}"))


async def _wait_for_signals(stop: Event, scope: CancelScope, *, task_status: TaskStatus[None]) -> None:
    """Set ``stop`` at the first signal, and cancel ``scope`` at the second."""
    from anyio import open_signal_receiver

    with open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                scope.cancel()
            stop.set()


async def _reload_on_hangup(
    serving: ProxyServeOptions,
    updates: MemoryObjectSendStream[tuple[Settings, Configuration]],
    *,
    task_status: TaskStatus[None],
) -> None:
    """Send the reloaded settings at each SIGHUP; invalid ones are reported and change nothing."""
    from anyio import open_signal_receiver

    with open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            try:
                effective_settings = load_effective_settings(serving.options)
                # Built only to check it: the error must be reported here and not by the running proxy.
                effective_settings.configuration.build_policy(effective_settings.settings.policy)
            except ConfigError as error:
                _print_notice(f"not reloaded: {error}")
                continue
            await updates.send((effective_settings.settings, effective_settings.configuration))
            mode_text = describe_proxy_mode(effective_settings.settings, get_bypass_file(serving.store.url))
            notice = f"reloaded: {clean_single_line(mode_text)}"
            # Clients know the old token, so it is kept until a restart.
            if effective_settings.settings.token != serving.settings.token:
                notice += "; the new token takes effect at the next start"
            if _get_telemetry_switches(effective_settings.settings) != _get_telemetry_switches(serving.settings):
                notice += "; telemetry is switched at the next start"
            _print_notice(notice)


def _get_telemetry_switches(settings: Settings) -> tuple[bool, bool]:
    return settings.telemetry, settings.telemetry_content


# -- output ------------------------------------------------------------------------------------------------------


@contextmanager
def _ignore_closed_output(otherwise: str = "") -> Iterator[None]:
    """Ignore errors of printing in the block; then print ``otherwise`` on standard error.

    A terminal that is gone (EIO) still ends the proxy.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise
        if otherwise:
            _print_notice(f"{otherwise}; standard output cannot be written ({describe_error(error)})")


def _print_notice(line: str) -> None:
    """Print ``line`` on standard error, if that is open."""
    with _ignore_closed_output():
        click.echo(f"holdfast: {line}", err=True)


def _print_telemetry_problem(problem: str) -> None:
    _print_notice(clean_single_line(problem))


class _ChangePrinter:
    """Prints each field that requests are sent with changed once, and not again for every session."""

    def __init__(self) -> None:
        self._printed: set[tuple[str, str]] = set()

    def print_change(self, event: events.Event) -> None:
        """Print a notice about a changed field on standard error, unless it is known or there were too many."""
        if not isinstance(event, events.NoticeGiven) or not event.path:
            return
        key = (event.rule, event.why)
        if key in self._printed or len(self._printed) >= MAX_PRINTED_CHANGES:
            return
        self._printed.add(key)
        session = clean_single_line(event.session)
        _print_notice(f"session {session}: {clean_single_line(event.why)} ({clean_single_line(event.rule)})")
        if len(self._printed) == MAX_PRINTED_CHANGES:
            _print_notice("further changes of fields are not printed; holdfast stats lists them")


def _announce_proxy(address: str, serving: ProxyServeOptions) -> None:
    """Print the proxy's address and upstreams, and warn if nothing can be recorded."""
    switch = get_bypass_file(serving.store.url)
    if get_proxy_mode(serving.settings, switch) != "bypass":
        # In a thread, because an upstream that does not answer would delay the start by its timeout.
        Thread(target=_warn_chained_proxies, args=(serving.settings,), daemon=True).start()
        if why := describe_recording_problem(serving.store.url):
            _print_notice(clean_single_line(why))
    with _ignore_closed_output(f"proxy at {address}"):
        _print_directions(address, serving)


def _print_directions(address: str, serving: ProxyServeOptions) -> None:
    """Print on standard output the proxy's address and upstreams, and how clients reach it."""
    switch = get_bypass_file(serving.store.url)
    if serving.as_json:
        click.echo(encode_printable_json(encode_proxy_start(address, serving)))
        return
    settings = serving.settings
    store = serving.store
    external_address = get_external_address(address)
    click.echo(f"proxy at {address}, {clean_single_line(describe_proxy_mode(settings, switch))}; stop with ^C\n")
    for name, url in get_upstream_urls(settings).items():
        click.echo(f"  {PROVIDERS[name].answers:32} {clean_single_line(url)}")
    host_note = ""
    if external_address != address:
        host_note = " (replace the host name if clients know this machine by another)"
    click.echo(f"\nstore: {clean_single_line(store.name)} ({store.origin})")
    click.echo(f"\nPoint a client here with the variable of its SDK{host_note}:\n")
    for name, value in build_sdk_variables(external_address).items():
        click.echo(f"  export {name}={value}")
    click.echo(
        f"\nAny other upstream: {external_address}/u/https://… · one client with its own proxy: holdfast run -- CLIENT"
    )
    if settings.token:
        click.echo("Clients must send the token in the header x-holdfast-token.")


def encode_proxy_start(address: str, serving: ProxyServeOptions) -> dict[str, Any]:
    """Return the startup record that ``--json`` prints."""
    settings = serving.settings
    return {
        "url": address,
        "mode": get_proxy_mode(settings, get_bypass_file(serving.store.url)),
        "policy": settings.policy,
        "upstreams": get_upstream_urls(settings),
        "environment": build_sdk_variables(get_external_address(address)),
        "store": serving.store.name,
    }


def _print_final_counts(health: Health, serving: ProxyServeOptions) -> None:
    """Print the final counts and, for a proxy that only observed, the forecast."""
    stats = health.build_stats()
    dry_run = forecast_observed_sessions(
        serving.settings,
        serving.store.url,
        health.sessions.session_keys,
        serving.configuration,
    )
    summary = f"stopped after {format_count(count_proxy_requests(stats), 'request')}"
    with _ignore_closed_output(summary if serving.as_json else ""):
        if serving.as_json:
            foresight = {} if dry_run is None else {"foreseen": to_builtins(dry_run)}
            click.echo(encode_printable_json(stats | foresight))
        else:
            click.echo(" · ".join([summary, *summarize_run(stats, dry_run)]), err=True)
