"""A program with a proxy in this process: the program has the terminal and receives its signals."""

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
    from holdfast.telemetry.telemetry import Telemetry

DRAIN_SECONDS = 5.0
"""Seconds that running answers may take after the program has ended. Chosen by judgement: nobody reads these answers
any more, but a little time lets them be recorded."""
NOT_STARTED = -1
"""The exit code if the program was never started."""
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TERMINAL_SIGNALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""Signals that a terminal sends to its whole process group, so the program receives them by itself."""


class ClientProxyOptions(Struct, frozen=True):
    """The proxy to run beside the program."""

    settings: Settings
    configuration: Configuration
    store: str


class ClientOutcome(Struct, frozen=True):
    """The program's exit code as a shell reports it, the proxy's health counters, and the error that ended either."""

    code: int
    health: Health | None = None
    failure: Exception | None = None


class _ProxyTask:
    """The task that runs the proxy, and its result."""

    def __init__(self) -> None:
        self.health: Health | None = None
        self.failure: Exception | None = None

    async def serve_until(
        self,
        proxy: ClientProxyOptions,
        stop: Event,
        telemetry: Telemetry | None,
        *,
        task_status: TaskStatus[str],
    ) -> None:
        """Serve until ``stop`` is set; an error is kept in ``failure``, so that the program can go on."""
        settings = replace(proxy.settings, drain=min(proxy.settings.drain, DRAIN_SECONDS))
        try:
            self.health = await serve_proxy(
                settings,
                proxy.store,
                on_ready=task_status.started,
                stop=stop,
                loaded_configuration=proxy.configuration,
                telemetry=telemetry,
            )
        except Exception as error:  # noqa: BLE001  no fault of the proxy may end the program
            self.failure = error
            # Raised if the proxy had already started.
            with suppress(RuntimeError):
                task_status.started("")


async def run_with_proxy(
    proxy: ClientProxyOptions,
    prepare: Callable[[str], AbstractContextManager[ClientCommand]],
    telemetry: Telemetry | None = None,
) -> ClientOutcome:
    """Run a program to its end with a proxy beside it; ``prepare`` takes the proxy's address and yields the command.

    If the proxy cannot start, nothing is started and the code is ``NOT_STARTED``.
    """
    proxy_task = _ProxyTask()
    stop = Event()
    code = NOT_STARTED
    async with create_task_group() as tasks:
        # An empty address means that the proxy could not start; ``failure`` then holds the error.
        address = await tasks.start(proxy_task.serve_until, proxy, stop, telemetry)
        if address:
            try:
                with prepare(address) as client_command:
                    code = await _run_program(client_command)
            except OSError as error:
                proxy_task.failure = error
        stop.set()
    return ClientOutcome(code, proxy_task.health, proxy_task.failure)


async def run_with_existing_proxy(
    address: str, prepare: Callable[[str], AbstractContextManager[ClientCommand]]
) -> ClientOutcome:
    """Run a program to its end at the proxy that already runs at ``address``."""
    try:
        with prepare(address) as client_command:
            return ClientOutcome(await _run_program(client_command))
    except OSError as error:
        return ClientOutcome(NOT_STARTED, failure=error)


async def _run_program(client_command: ClientCommand) -> int:
    """Run a program that owns the terminal, forward signals to it, and return its exit code."""
    # The receiver comes first: a signal between the start of the program and the receiver would end this process.
    with open_signal_receiver(*FORWARDED_SIGNALS) as signals:
        process = await open_process(
            [*client_command.command],
            stdin=None,
            stdout=None,
            stderr=None,
            env=dict(client_command.environment),
        )
        async with create_task_group() as tasks:
            tasks.start_soon(_forward_signals, signals, process)
            code = await process.wait()
            tasks.cancel_scope.cancel()
    # -N means ended by signal N, which shells report as 128 + N
    if code < 0:
        return 128 - code
    return code


async def _forward_signals(signals: AsyncIterator[signal.Signals], process: Process) -> None:
    """Forward the signals that the program does not receive from the terminal."""
    async for number in signals:
        # The program got this one from the terminal; a second copy would count as a second ^C.
        if number in _TERMINAL_SIGNALS and _has_terminal():
            continue
        with suppress(ProcessLookupError):
            process.send_signal(number)


def _has_terminal() -> bool:
    """Return whether a terminal sends its signals to this process group."""
    for stream in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False
