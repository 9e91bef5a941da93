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

from holdfast.cli.clients.temporary_files import Started
from holdfast.proxy.server import serve

if TYPE_CHECKING:
    from holdfast.config import Configuration
    from holdfast.proxy.metrics.health import Health
    from holdfast.proxy.settings import Settings

DRAIN = 5.0
"""[H] Seconds that answers may take when the program that asked for them has ended: nobody waits for them."""
NOT_BEGUN = -1
"""The code where nothing was started."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""Signals that a terminal sends to all that it runs, so to the program as well."""


class Served(Struct, frozen=True):
    """The proxy that is to stand beside the program."""

    settings: Settings
    known: Configuration
    store: str


class Ended(Struct, frozen=True):
    """How it ended: the program's exit code as a shell tells it, what the proxy counted, what went wrong with it."""

    code: int
    health: Health | None = None
    failure: Exception | None = None


class _Beside:
    """What became of the proxy."""

    def __init__(self) -> None:
        self.health: Health | None = None
        self.failure: Exception | None = None

    async def serve(self, served: Served, stop: Event, *, task_status: TaskStatus[str]) -> None:
        """Serve until ``stop``; what goes wrong is kept, for the program is to go on."""
        settings = replace(served.settings, drain=min(served.settings.drain, DRAIN))
        try:
            self.health = await serve(settings, served.store, ready=task_status.started, stop=stop, known=served.known)
        except Exception as error:  # noqa: BLE001  whatever it is, the program is not to be ended by it
            self.failure = error
            with suppress(RuntimeError):  # it had begun
                task_status.started("")


async def accompanied(served: Served, prepared: Callable[[str], AbstractContextManager[Started]]) -> Ended:
    """Run a program to its end, a proxy beside it; ``prepared`` tells how it is started with the proxy's address.

    Where the proxy does not begin, nothing is started and the code is ``NOT_BEGUN``.
    """
    beside, stop, code = _Beside(), Event(), NOT_BEGUN
    async with create_task_group() as tasks:
        address = await tasks.start(beside.serve, served, stop)
        if address:
            try:
                with prepared(address) as whole:
                    code = await _run(whole)
            except OSError as error:
                beside.failure = error
        stop.set()
    return Ended(code, beside.health, beside.failure)


async def alone(address: str, prepared: Callable[[str], AbstractContextManager[Started]]) -> Ended:
    """Run a program to its end at the proxy that runs at ``address`` already."""
    try:
        with prepared(address) as whole:
            return Ended(await _run(whole))
    except OSError as error:
        return Ended(NOT_BEGUN, failure=error)


async def _run(whole: Started) -> int:
    """Return the exit code of a program that has the terminal; signals that come here reach it."""
    with open_signal_receiver(*PASSED_ON) as signals:
        process = await open_process(
            [*whole.command], stdin=None, stdout=None, stderr=None, env=dict(whole.environment)
        )
        async with create_task_group() as tasks:
            tasks.start_soon(_pass_on, signals, process)
            code = await process.wait()
            tasks.cancel_scope.cancel()
    return 128 - code if code < 0 else code


async def _pass_on(signals: AsyncIterator[signal.Signals], process: Process) -> None:
    """Let the program have the signals that it does not get anyway."""
    async for number in signals:
        if number in _OF_TERMINAL and _is_at_terminal():
            continue
        with suppress(ProcessLookupError):
            process.send_signal(number)


def _is_at_terminal() -> bool:
    """Return whether a terminal sends its signals to this process and to all that it started."""
    for stream in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False
