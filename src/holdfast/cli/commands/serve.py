"""``holdfast serve``: the proxy on a port of this machine, for any client that is pointed there."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, to_builtins

from holdfast.cli.output.errors import Interrupted, reason
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import as_json_bytes, clean, json_option, many
from holdfast.cli.places import Place, store_option, store_place
from holdfast.cli.proxy_options import (
    MOST_PORTS,
    check_place,
    done,
    in_force,
    looked_on,
    mode,
    proxy_options,
    refused,
    total,
    unrecorded,
    upstreams_of,
)
from holdfast.config import Configuration
from holdfast.config.addresses import from_elsewhere
from holdfast.config.providers import PROVIDERS, leading_to
from holdfast.errors import ConfigError
from holdfast.proxy.modes import mode_of, switch_of
from holdfast.proxy.settings import Settings

if TYPE_CHECKING:
    from anyio import CancelScope, Event
    from anyio.abc import TaskStatus
    from anyio.streams.memory import MemoryObjectSendStream

    from holdfast.proxy.metrics.health import Health

EXAMPLES = """\
\b
Examples:
  holdfast serve --observe
  holdfast serve --port 4141 --upstream-openai http://127.0.0.1:8080/v1
  ANTHROPIC_BASE_URL=http://127.0.0.1:8642 claude
"""


class Serving(Struct, frozen=True):
    """A proxy that is to be served."""

    settings: Settings
    known: Configuration
    store: Place
    given: Mapping[str, Any] = {}
    """What the command line says; it stays stronger than files that are read again."""
    as_json: bool = False


@click.command("serve", epilog=EXAMPLES)
@click.option(
    "--host", metavar="HOST", help="Where it listens; beyond this machine it wants a token. [default: 127.0.0.1]"
)
@click.option("--port", type=Whole(0, MOST_PORTS), help="Its port, 0 for a free one. [default: 8642]")
@click.option(
    "--token", metavar="TOKEN", help="What clients must send in x-holdfast-token; better in $HOLDFAST_TOKEN, unseen."
)
@proxy_options
@store_option
@json_option("where it listens, and in the end what it counted,")
def command(store: str | None, *, as_json: bool, **given: Any) -> None:
    """Serve the proxy: clients that are pointed at it never outgrow their window.

    It speaks Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini; all else is passed through. Keys
    and logins of clients are passed on and never stored. For one client alone holdfast run does the same, with nothing
    to set. Ends with ^C, when answers under way have ended; a second ^C ends it at once. The signal HUP lets it read
    holdfast.toml again.
    """
    import anyio

    from holdfast.proxy.server import backend

    found = in_force(given)
    serving = Serving(found.settings, found.known, store_place(store), given, as_json)
    if mode_of(found.settings, switch_of(serving.store.where)) != "bypass":
        check_place(serving.store.where)
    health = anyio.run(_served, serving, backend_options=backend())
    if health is None:
        raise Interrupted("ended at once: answers under way were cut off, and nothing was left half-written")
    _farewell(health, serving)


async def _served(serving: Serving) -> Health | None:
    """Serve until a signal; return what was counted, or nothing where it was ended at once."""
    from anyio import Event, create_memory_object_stream, create_task_group

    from holdfast.proxy.server import serve

    health, failure, stop = None, None, Event()
    sends, changes = create_memory_object_stream[tuple[Settings, Configuration]](1)
    async with create_task_group() as tasks, sends, changes:
        await tasks.start(_until_told, stop, tasks.cancel_scope)
        await tasks.start(_reread, serving, sends)
        try:
            health = await serve(
                serving.settings,
                serving.store.where,
                ready=lambda address: _greet(address, serving),
                stop=stop,
                known=serving.known,
                changes=changes,
            )
        except Exception as error:  # noqa: BLE001  a task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise refused(failure, serving.settings.port)
    return health


def _look_behind(settings: Settings) -> None:
    """Tell which upstreams are proxies of ours, once they said so: nobody waits for one that says nothing."""
    from holdfast.cli.clients.survey import chained

    for name, there in chained(upstreams_of(settings), settings.token).items():
        twice = f"what goes there is recorded and reduced twice; use that one, or give --upstream-{name}"
        _say(clean(f"upstream {name} leads to {there.proxy}, {there.text}: {twice}"))


async def _until_told(stop: Event, scope: CancelScope, *, task_status: TaskStatus[None]) -> None:
    """Set ``stop`` at the first signal, and cancel ``scope`` at the second."""
    from anyio import open_signal_receiver

    with open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                scope.cancel()
            stop.set()


async def _reread(
    serving: Serving, changed: MemoryObjectSendStream[tuple[Settings, Configuration]], *, task_status: TaskStatus[None]
) -> None:
    """Send what the files say whenever the signal HUP asks for it; what they say wrong is told, and changes nothing."""
    from anyio import open_signal_receiver

    with open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            try:
                found = in_force(serving.given)
                found.known.policy(found.settings.policy)
            except ConfigError as error:
                _say(f"nothing was changed: {error}")
                continue
            await changed.send((found.settings, found.known))
            told = mode(found.settings, switch_of(serving.store.where))
            is_same = found.settings.token == serving.settings.token
            _say(f"read again: {clean(told)}{'' if is_same else '; another token counts from the next start on'}")


# -- what it says ------------------------------------------------------------------------------------------------------


@contextmanager
def _heard(otherwise: str = "") -> Iterator[None]:
    """Let what is said in the block end nothing where nobody takes it; ``otherwise`` is said on standard error then.

    A terminal that is gone ends the proxy.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise
        if otherwise:
            _say(f"{otherwise}; standard output takes nothing ({reason(error)})")


def _say(line: str) -> None:
    """Say ``line`` on standard error, if anybody takes it."""
    with _heard():
        click.echo(f"holdfast: {line}", err=True)


def _greet(address: str, serving: Serving) -> None:
    """Tell where the proxy is, where it leads, and how clients get there; and whether nothing can be recorded."""
    switch = switch_of(serving.store.where)
    if mode_of(serving.settings, switch) != "bypass":
        Thread(target=_look_behind, args=(serving.settings,), daemon=True).start()
        if why := unrecorded(serving.store.where):
            _say(clean(why))
    with _heard(f"proxy at {address}"):
        _lead(address, serving)


def _lead(address: str, serving: Serving) -> None:
    """Write on standard output where the proxy is and leads."""
    switch = switch_of(serving.store.where)
    if serving.as_json:
        click.echo(as_json_bytes(record(address, serving)))
        return
    settings, store, reached = serving.settings, serving.store, from_elsewhere(address)
    click.echo(f"proxy at {address}, {clean(mode(settings, switch))}; ends with ^C\n")
    for name, url in upstreams_of(settings).items():
        click.echo(f"  {PROVIDERS[name].answers:32} {clean(url)}")
    other = "" if reached == address else ", with another name where it knows this machine by one"
    click.echo(f"\nstore: {clean(store.where)} ({store.origin})")
    click.echo(f"\nA client comes here with the variable of its SDK{other}:\n")
    for name, value in leading_to(reached).items():
        click.echo(f"  export {name}={value}")
    click.echo(f"\nAny other upstream: {reached}/u/https://… · each client by itself: holdfast run -- CLIENT")
    if settings.token:
        click.echo("Clients must send the token in the header x-holdfast-token.")


def record(address: str, serving: Serving) -> dict[str, Any]:
    """Return the same for programs."""
    settings = serving.settings
    return {
        "url": address,
        "mode": mode_of(settings, switch_of(serving.store.where)),
        "policy": settings.policy,
        "upstreams": upstreams_of(settings),
        "environment": leading_to(from_elsewhere(address)),
        "store": serving.store.where,
    }


def _farewell(health: Health, serving: Serving) -> None:
    """Tell what was counted and, of a proxy that only looked on, what would have been done."""
    stats = health.stats()
    found = looked_on(serving.settings, serving.store.where, health.sessions.keys, serving.known)
    told = f"stopped after {many(total(stats), 'request')}"
    with _heard(told if serving.as_json else ""):
        if serving.as_json:
            click.echo(as_json_bytes(stats | ({} if found is None else {"foreseen": to_builtins(found)})))
        else:
            click.echo(" · ".join([told, *done(stats, found)]), err=True)
