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

OUTPUT_BYTES = 4_000_000
"""[H] Bytes of output that are kept: the first half and the last; the log takes them, a request shows a preview."""
GRACE = 1.0
"""[H] Seconds that a program has to end by itself when it is told to."""
BEHIND = 0.5
"""[H] Seconds that are waited for output behind a program's end."""


class Ran(Struct, frozen=True):
    """How a program ended: ``code`` as its system tells it, nothing where its time was over."""

    output: str
    code: int | None


class _Kept:
    """The beginning and the end of an output."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
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
            gone = len(self._tail.popleft())
            self._length -= gone
            self._gone += gone

    def text(self) -> str:
        notice = f"\n[{self._gone:,} bytes of output are left out here]\n".encode() if self._gone else b""
        return (bytes(self._head) + notice + b"".join(self._tail)).decode("utf-8", "replace")


async def ran(
    command: Sequence[str], folder: Path, seconds: float, environment: Mapping[str, str] | None = None
) -> Ran:
    """Return what ``command`` printed, both streams as they came, and how it ended. ``OSError`` where it cannot start.

    It has no input. When it ends, when its time is over, and when the caller is cancelled, all that it started ends.
    """
    with CancelScope(shield=True):  # one that began while its caller was cancelled would be known to nobody, and go on
        process = await open_process(
            command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd=folder, env=environment, start_new_session=True
        )
    kept = _Kept(OUTPUT_BYTES)
    try:
        with move_on_after(seconds) as limit:
            await _followed(process, kept)
    finally:
        with CancelScope(shield=True):
            await _end(process)
    return Ran(kept.text(), None if limit.cancelled_caught else process.returncode)


async def _followed(process: Process, kept: _Kept) -> None:
    """Read until the program ends, and a moment longer."""
    assert process.stdout is not None
    ended = Event()
    async with create_task_group() as group:
        group.start_soon(_read, process.stdout, kept, ended)
        await process.wait()
        _signal(process, signal.SIGKILL)  # what it left behind
        with move_on_after(BEHIND):
            await ended.wait()
        group.cancel_scope.cancel()


async def _read(stream: ByteReceiveStream, kept: _Kept, ended: Event) -> None:
    with suppress(EndOfStream, ClosedResourceError):
        while True:
            kept.add(await stream.receive())
    ended.set()


async def _end(process: Process) -> None:
    """End the program and all that it started, politely first."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with move_on_after(GRACE):
            await process.wait()
    _signal(process, signal.SIGKILL)  # what it left behind, also where it ended just when the caller was cancelled
    await process.aclose()


def _signal(process: Process, number: int) -> None:
    """Send a signal to the group of the program, if there is anybody in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
