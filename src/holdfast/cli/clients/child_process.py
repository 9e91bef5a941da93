"""A program with a proxy beside it in this process: the terminal is the program's, and so are the signals."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from anyio import Event, create_task_group, open_process, open_signal_receiver
from anyio.abc import Process, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.clients.temporary_files import ClientCommand
from holdfast.proxy.server import serve_proxy

if TYPE_CHECKING:
    from holdfast.config import Configuration
    from holdfast.proxy.metrics.health import Health
    from holdfast.proxy.settings import Settings

DRAIN_SECONDS = 5.0
"""[H] Seconds that answers may take when the program that asked for them has ended: nobody waits for them."""
NOT_STARTED = -1
"""The code where nothing was started."""
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TERMINAL_SIGNALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""Signals that a terminal sends to all that it runs, so to the program as well."""


class ClientProxyOptions(Struct, frozen=True):
    """The proxy that is to stand beside the program."""

    settings: Settings
    configuration: Configuration
    store: str


class ClientOutcome(Struct, frozen=True):
    """How it ended: the program's exit code as a shell tells it, what the proxy counted, what went wrong with it."""

    code: int
    health: Health | None = None
    failure: Exception | None = None


class _ProxyTask:
    """What became of the proxy."""

    def __init__(self) -> None:
        self.health: Health | None = None
        self.failure: Exception | None = None

    async def serve_until(self, proxy: ClientProxyOptions, stop: Event, *, task_status: TaskStatus[str]) -> None:
        """Serve until ``stop``; what goes wrong is kept, for the program is to go on."""
        settings = replace(proxy.settings, drain=min(proxy.settings.drain, DRAIN_SECONDS))
        try:
            self.health = await serve_proxy(
                settings, proxy.store, on_ready=task_status.started, stop=stop, loaded_configuration=proxy.configuration
            )
        except Exception as error:  # noqa: BLE001  whatever it is, the program is not to be ended by it
            self.failure = error
            with suppress(RuntimeError):  # it had begun
                task_status.started("")


async def run_with_proxy(
    proxy: ClientProxyOptions, prepare: Callable[[str], AbstractContextManager[ClientCommand]]
) -> ClientOutcome:
    """Run a program to its end, a proxy beside it; ``prepare`` tells how it is started with the proxy's address.

    Where the proxy does not begin, nothing is started and the code is ``NOT_STARTED``.
    """
    beside, stop, code = _ProxyTask(), Event(), NOT_STARTED
    async with create_task_group() as tasks:
        address = await tasks.start(beside.serve_until, proxy, stop)
        if address:
            try:
                with prepare(address) as whole:
                    code = await _run_program(whole)
            except OSError as error:
                beside.failure = error
        stop.set()
    return ClientOutcome(code, beside.health, beside.failure)


async def run_with_existing_proxy(
    address: str, prepare: Callable[[str], AbstractContextManager[ClientCommand]]
) -> ClientOutcome:
    """Run a program to its end at the proxy that runs at ``address`` already."""
    try:
        with prepare(address) as whole:
            return ClientOutcome(await _run_program(whole))
    except OSError as error:
        return ClientOutcome(NOT_STARTED, failure=error)


async def _run_program(whole: ClientCommand) -> int:
    """Return the exit code of a program that has the terminal; signals that come here reach it."""
    with open_signal_receiver(*FORWARDED_SIGNALS) as signals:
        process = await open_process(
            [*whole.command], stdin=None, stdout=None, stderr=None, env=dict(whole.environment)
        )
        async with create_task_group() as tasks:
            tasks.start_soon(_forward_signals, signals, process)
            code = await process.wait()
            tasks.cancel_scope.cancel()
    return 128 - code if code < 0 else code


async def _forward_signals(signals: AsyncIterator[signal.Signals], process: Process) -> None:
    """Let the program have the signals that it does not get anyway."""
    async for number in signals:
        if number in _TERMINAL_SIGNALS and _has_terminal():
            continue
        with suppress(ProcessLookupError):
            process.send_signal(number)


def _has_terminal() -> bool:
    """Return whether a terminal sends its signals to this process and to all that it started."""
    for stream in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False
