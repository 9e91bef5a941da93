"""Run programs for the agent: in a process group of their own, for a limited time, with limited output."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

from anyio import (
    CancelScope,
    ClosedResourceError,
    EndOfStream,
    Event,
    create_task_group,
    move_on_after,
    open_process,
)
from anyio.abc import ByteReceiveStream, Process
from msgspec import Struct

MAX_OUTPUT_BYTES = 4_000_000
"""Bytes of output that are kept, half from the beginning and half from the end; a request shows a preview of them."""
TERMINATE_SECONDS = 1.0
"""Seconds between asking a program to end and killing it. Chosen by judgement."""
TRAILING_OUTPUT_SECONDS = 0.5
"""Seconds to wait for the rest of the output after a program ended. Chosen by judgement."""


class ProcessResult(Struct, frozen=True):
    """The output of a program and its exit code; None if it was ended because its time was over."""

    output: str
    exit_code: int | None


class _OutputBuffer:
    """Keeps the beginning and the end of an output."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped_bytes = 0

    def add(self, data: bytes) -> None:
        free_bytes = max(0, self._half - len(self._head))
        self._head += data[:free_bytes]
        tail_data = data[free_bytes:]
        if tail_data:
            self._tail.append(tail_data)
            self._tail_bytes += len(tail_data)
        # Whole pieces are dropped, as long as what remains is still more than half.
        while self._tail and self._tail_bytes - len(self._tail[0]) > self._half:
            dropped_bytes = len(self._tail.popleft())
            self._tail_bytes -= dropped_bytes
            self._dropped_bytes += dropped_bytes

    def text(self) -> str:
        notice = b""
        if self._dropped_bytes:
            notice = f"\n[{self._dropped_bytes:,} bytes of output are left out here]\n".encode()
        output = bytes(self._head) + notice + b"".join(self._tail)
        return output.decode("utf-8", "replace")


async def run_process(
    command: Sequence[str],
    folder: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> ProcessResult:
    """Run ``command`` and return its output, both streams as they came, and its exit code.

    It has no input. When it ends, when its time is over or the caller is cancelled, everything that it started is ended
    too. Raises ``OSError`` if it cannot be started.
    """
    # Shielded: a process that started while its caller was cancelled would be known to nobody, and never end.
    with CancelScope(shield=True):
        process = await open_process(
            command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    output = _OutputBuffer(MAX_OUTPUT_BYTES)
    try:
        with move_on_after(seconds) as limit:
            await _read_until_exit(process, output)
    finally:
        with CancelScope(shield=True):
            await _end_process(process)
    exit_code = process.returncode
    if limit.cancelled_caught:
        exit_code = None
    return ProcessResult(output.text(), exit_code)


async def _read_until_exit(process: Process, output: _OutputBuffer) -> None:
    """Read output until the program ends, and a moment longer for the bytes that are still in the pipe."""
    assert process.stdout is not None
    end_of_output = Event()
    async with create_task_group() as group:
        group.start_soon(_read_output, process.stdout, output, end_of_output)
        await process.wait()
        # Background processes that it left behind may hold the pipe open, so they are killed first.
        _signal_group(process, signal.SIGKILL)
        with move_on_after(TRAILING_OUTPUT_SECONDS):
            await end_of_output.wait()
        group.cancel_scope.cancel()


async def _read_output(stream: ByteReceiveStream, output: _OutputBuffer, end_of_output: Event) -> None:
    with suppress(EndOfStream, ClosedResourceError):
        while True:
            output.add(await stream.receive())
    end_of_output.set()


async def _end_process(process: Process) -> None:
    """End the program and everything it started: first ask, then kill."""
    if process.returncode is None:
        _signal_group(process, signal.SIGTERM)
        with move_on_after(TERMINATE_SECONDS):
            await process.wait()
    # Also if it ended by itself just when the caller was cancelled: it may have left processes behind.
    _signal_group(process, signal.SIGKILL)
    await process.aclose()


def _signal_group(process: Process, number: int) -> None:
    """Send a signal to the program's process group, if there are any processes left in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
