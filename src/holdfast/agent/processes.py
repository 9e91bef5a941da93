"""Programs that are run for the agent: in a group of their own, for a limited time, with a limited output."""

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
"""[H] Bytes of output that are kept: the first half and the last; the log takes them, a request shows a preview."""
TERMINATE_SECONDS = 1.0
"""[H] Seconds that a program has to end by itself when it is told to."""
TRAILING_OUTPUT_SECONDS = 0.5
"""[H] Seconds that are waited for output behind a program's end."""


class ProcessResult(Struct, frozen=True):
    """How a program ended: ``exit_code`` as its system tells it, nothing where its time was over."""

    output: str
    exit_code: int | None


class _OutputBuffer:
    """The beginning and the end of an output."""

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._length = 0
        self._gone = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        if data := data[room:] if room > 0 else data:
            self._tail.append(data)
            self._length += len(data)
        while self._length - len(self._tail[0] if self._tail else b"") > self._half:
            dropped_bytes = len(self._tail.popleft())
            self._length -= dropped_bytes
            self._gone += dropped_bytes

    def text(self) -> str:
        notice = f"\n[{self._gone:,} bytes of output are left out here]\n".encode() if self._gone else b""
        return (bytes(self._head) + notice + b"".join(self._tail)).decode("utf-8", "replace")


async def run_process(
    command: Sequence[str], folder: Path, seconds: float, environment: Mapping[str, str] | None = None
) -> ProcessResult:
    """Return what ``command`` printed, both streams as they came, and how it ended. ``OSError`` where it cannot start.

    It has no input. When it ends, when its time is over, and when the caller is cancelled, all that it started ends.
    """
    with CancelScope(shield=True):  # one that began while its caller was cancelled would be known to nobody, and go on
        process = await open_process(
            command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd=folder, env=environment, start_new_session=True
        )
    output = _OutputBuffer(MAX_OUTPUT_BYTES)
    try:
        with move_on_after(seconds) as limit:
            await _read_until_exit(process, output)
    finally:
        with CancelScope(shield=True):
            await _end_process(process)
    return ProcessResult(output.text(), None if limit.cancelled_caught else process.returncode)


async def _read_until_exit(process: Process, output: _OutputBuffer) -> None:
    """Read until the program ends, and a moment longer."""
    assert process.stdout is not None
    end_of_output = Event()
    async with create_task_group() as group:
        group.start_soon(_read_output, process.stdout, output, end_of_output)
        await process.wait()
        _signal_group(process, signal.SIGKILL)  # what it left behind
        with move_on_after(TRAILING_OUTPUT_SECONDS):
            await end_of_output.wait()
        group.cancel_scope.cancel()


async def _read_output(stream: ByteReceiveStream, output: _OutputBuffer, end_of_output: Event) -> None:
    with suppress(EndOfStream, ClosedResourceError):
        while True:
            output.add(await stream.receive())
    end_of_output.set()


async def _end_process(process: Process) -> None:
    """End the program and all that it started, politely first."""
    if process.returncode is None:
        _signal_group(process, signal.SIGTERM)
        with move_on_after(TERMINATE_SECONDS):
            await process.wait()
    _signal_group(
        process, signal.SIGKILL
    )  # what it left behind, also where it ended just when the caller was cancelled
    await process.aclose()


def _signal_group(process: Process, number: int) -> None:
    """Send a signal to the group of the program, if there is anybody in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
