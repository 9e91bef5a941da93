"""``holdfast watch``: a live view in the terminal of the sessions that pass."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from holdfast import config
from holdfast.cli.always_on.user_instances import load_instances
from holdfast.cli.clients.client_check import probe_url
from holdfast.cli.files.user_paths import is_store_missing, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.live_view import iterate_looks, show_live_view
from holdfast.cli.output.ranges import FloatParamType
from holdfast.cli.output.terminal import encode_printable_json, make_console, make_json_option
from holdfast.cli.proxy_options import get_proxy_token
from holdfast.config.addresses import is_base_url, is_local_url
from holdfast.errors import StoreLocked
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.sessions.watched_sessions import StoreFollower, WatchedSession
from holdfast.store.location import hide_password, locate_store
from holdfast.store.open_store import open_store

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from holdfast.store.base import SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast watch
  holdfast watch --url http://127.0.0.1:8642
  holdfast watch --once --json
"""
DEFAULT_INTERVAL = 1.0
"""Seconds between two looks into the store."""
MIN_INTERVAL, MAX_INTERVAL = 0.1, 3_600.0
PROBE_INTERVAL = 5.0
"""Seconds between two questions to the proxy of --url. Chosen by judgement: a proxy that ended is seen soon enough."""


@click.command("watch", epilog=EXAMPLES)
@click.option(
    "--url",
    metavar="URL",
    help="A proxy on this machine: show whether it runs, and watch its store if holdfast enable keeps it.",
)
@click.option("--once", is_flag=True, help="Print the sessions as they are now, and end.")
@click.option(
    "--interval",
    type=FloatParamType(MIN_INTERVAL, MAX_INTERVAL),
    default=DEFAULT_INTERVAL,
    show_default=True,
    help="Seconds between two looks into the store.",
)
@store_option
@make_json_option("one object a line for each session, and again whenever one changes,")
def watch_command(url: str | None, store: str | None, interval: float, *, once: bool, as_json: bool) -> None:
    """Watch the sessions that pass: how full each is, what it cost, and what was decided last.

    For each of the 20 most recently changed sessions: its name, client and model, a bar of its window, its cost so far,
    the share of its input that was read from the provider's cache, the last cache miss with its cause and tokens, the
    number of compactions, the last decision, and the time since its last request. The newest stands first; sessions
    without a request for five minutes are dimmed. A ~ marks an estimate, and a + a cost that leaves out models without
    a known price. In a narrow terminal some columns are left out.

    The view reads the store, so it shows the sessions of every proxy that records there, and it asks no model. Ctrl-C
    ends it. Where there is no terminal, one view is printed.
    """
    try:
        _watch_store(store, url, interval, once=once, as_json=as_json)
    except KeyboardInterrupt:
        # The way to end the view, so no error.
        return


def _watch_store(store: str | None, url: str | None, interval: float, *, once: bool, as_json: bool) -> None:
    """Show the sessions in the way that was asked for, or that the output allows."""
    store_url = _find_store(store, url)
    configuration = config.load_configuration()
    proxy = _ProxyStatus(url, get_proxy_token(configuration))
    console = make_console()
    # Opened once and not for each look, so that a look costs only what is new.
    with closing(_WatchedStore(store_url, configuration)) as watched:
        if as_json:
            _print_changes(watched, interval, once=once)
        elif once or not console.is_terminal:
            watched.read_changes()
            console.print(_build_view(watched, proxy, console))
        else:
            _show_live(watched, proxy, console, interval)


def _find_store(store: str | None, url: str | None) -> str:
    """Return the store to watch: that of --store, else that of the enabled proxy at ``url``, else the usual one."""
    if url is not None and not is_base_url(url):
        raise CommandError(f"--url {url!r} is not an address; give one like http://127.0.0.1:8642")
    if url is not None and not is_local_url(url):
        raise CommandError(
            f"--url {url} is not on this machine, and a proxy shows its sessions to nobody; run holdfast watch there"
        )
    if store is None and url is not None:
        for instance in load_instances():
            if instance.url.rstrip("/") == url.rstrip("/"):
                return instance.store
    return locate_store(store).url


class _ProxyStatus:
    """Whether the proxy of --url runs, asked again every few seconds."""

    def __init__(self, url: str | None, token: str) -> None:
        self._url = url
        self._token = token
        self._text = ""
        self._asked_at = -PROBE_INTERVAL

    def describe(self) -> str:
        """Return what answers at the address on one line; empty without one."""
        if self._url is not None and time.monotonic() - self._asked_at >= PROBE_INTERVAL:
            self._asked_at = time.monotonic()
            answer = probe_url(self._url, self._token, online=False)
            self._text = clean_single_line(f"{self._url}: {answer.text}")
        return self._text


class _WatchedStore:
    """The store, opened as soon as it exists, and its sessions."""

    def __init__(self, url: str, configuration: config.Configuration) -> None:
        # A location that can never be a store is an error now; it would be waited for otherwise.
        open_store(url, readonly=True).close()
        self.url = url
        self._follower = StoreFollower(configuration)
        self._store: SessionStore | None = None

    @property
    def sessions(self) -> tuple[WatchedSession, ...]:
        """The sessions as of the last look, the newest first."""
        return self._follower.sessions

    def read_changes(self) -> tuple[WatchedSession, ...]:
        """Look into the store; return the sessions that changed. A store that does not exist yet has none."""
        if self._store is None:
            if is_store_missing(self.url):
                return ()
            self._store = open_store(self.url, readonly=True)
        try:
            return self._follower.read_changes(self._store)
        except StoreLocked:
            # A long write of another process; the next look finds it done.
            return ()

    def describe_emptiness(self) -> str:
        """Say why nothing is shown and what to do; empty if there are sessions."""
        if self.sessions:
            return ""
        where = clean_single_line(hide_password(self.url))
        what = f"no sessions in {where} yet" if self._store is not None else f"there is no store at {where} yet"
        return f"{what}; start a client with holdfast run -- claude, or import one with holdfast import FILE"

    def close(self) -> None:
        """Close the store, if it was opened."""
        if self._store is not None:
            self._store.close()


def _build_view(
    watched: _WatchedStore, proxy: _ProxyStatus, console: Console, *, is_live: bool = False
) -> RenderableType:
    """Return the whole view: the proxy if one was named, then the table or why there is none."""
    from rich.console import Group
    from rich.text import Text

    from holdfast.cli.reports.watch_table import limit_sessions, render_watch

    lines: list[RenderableType] = []
    if status := proxy.describe():
        lines.append(Text(status, "dim"))
    if why := watched.describe_emptiness():
        waiting = " · waiting: sessions are shown as they come, Ctrl-C ends" if is_live else ""
        return Group(*lines, Text(f"{why}{waiting}"))
    sessions = watched.sessions
    shown = sessions
    if is_live:
        shown = limit_sessions(sessions, console.height, console.width)
    lines.append(render_watch(shown, time.time(), console.width))
    if len(shown) < len(sessions):
        lines.append(Text(f"… and {len(sessions) - len(shown):,} more; a higher terminal shows them", "dim"))
    return Group(*lines)


def _print_changes(watched: _WatchedStore, interval: float, *, once: bool) -> None:
    """Print one JSON object a line for each session, and again when it changed."""
    for look, _ in enumerate(iterate_looks(interval, once=once)):
        for shown in watched.read_changes():
            click.echo(encode_printable_json(shown.to_record()))
        if not look and (why := watched.describe_emptiness()):
            click.echo(why, err=True)


def _show_live(watched: _WatchedStore, proxy: _ProxyStatus, console: Console, interval: float) -> None:
    """Show the view until it is interrupted; the last one stays on the screen."""

    def build_view() -> RenderableType:
        watched.read_changes()
        return _build_view(watched, proxy, console, is_live=True)

    show_live_view(console, build_view, interval)
