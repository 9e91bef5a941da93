"""Signs of life: what a client is sent while nobody says anything, so that it does not give the answer up.

Only until the first item comes, for until then the wait is ours: a compaction, another try. From there on the
provider's own pace is passed through, its own pings too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Generic, TypeVar

from anyio import Event, create_task_group, move_on_after
from msgspec import Struct

T = TypeVar("T")

_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_COMMENT = b": keep-alive\n\n"
_BLANK = b"\n\n"
_SIGNS = {"anthropic": _PING, "openai-chat": _COMMENT, "openai-responses": _COMMENT, "gemini": _BLANK}
"""What the clients of an API read over. [M] google-genai 3.4 takes every line that is neither blank nor ``data:`` for
JSON and dies of a comment; a blank line it skips, and before the array that Gemini streams otherwise it is a space."""


class Alive(Struct, frozen=True):
    """A sign of life: ``raw`` are its bytes, as those of an event are."""

    raw: bytes


def sign_of(api: str, *, stream: bool) -> bytes:
    """Return the bytes by which a client of ``api`` knows that its answer is still worked on; none without a stream."""
    return _SIGNS.get(api, b"") if stream else b""


async def kept_alive(events: AsyncIterator[T], sign: bytes, patience: float) -> AsyncGenerator[T | Alive]:
    """Yield the items of ``events``, and before the first of them an ``Alive`` after every ``patience`` seconds.

    Nothing is read ahead, no waiting item is given up for a sign, and an error of ``events`` comes out as it is.
    ``events`` are closed at the end, and where the reader leaves early. Without a sign or with no patience (0) they
    are passed on alone. Read it in one task, inside of ``aclosing``.
    """
    try:
        if sign and patience > 0:
            first = _First(events)
            async with aclosing(_until(first, Alive(sign), patience)) as signs:
                async for alive in signs:
                    yield alive
            if first.is_last:
                return
            yield first.taken()
        async for item in events:
            yield item
    finally:
        await _close(events)


class _First(Generic[T]):
    """The first item, awaited in a task of its own: an item, the error that came instead, or the end."""

    def __init__(self, events: AsyncIterator[T]) -> None:
        self._events = events
        self._items: list[T] = []
        self._error: BaseException | None = None
        self._came = Event()

    @property
    def is_last(self) -> bool:
        """Whether the end came, before any item."""
        return isinstance(self._error, StopAsyncIteration)

    async def come(self) -> None:
        """Wait for it; whatever comes is kept, so that it comes out where the reader is."""
        try:
            self._items.append(await anext(self._events))
        except BaseException as error:  # noqa: BLE001 -- a task group would put it into a group
            self._error = error
        finally:
            self._came.set()

    async def within(self, seconds: float) -> bool:
        """Return whether it came, after so many seconds at the latest."""
        with move_on_after(seconds):
            await self._came.wait()
        return self._came.is_set()

    def taken(self) -> T:
        """Return it; raises what came instead."""
        if self._error is not None:
            raise self._error
        return self._items.pop()


async def _until(first: _First[T], alive: Alive, patience: float) -> AsyncGenerator[Alive]:
    """Yield ``alive`` after every ``patience`` seconds until ``first`` came; who leaves before that gives it up."""
    left: BaseException | None = None
    async with create_task_group() as group:
        group.start_soon(first.come)
        try:
            while not await first.within(patience):
                yield alive
        except (GeneratorExit, Exception) as error:  # noqa: BLE001 -- it too
            left = error
            group.cancel_scope.cancel()
    if left is not None:
        raise left


async def _close(events: AsyncIterator[T]) -> None:
    """Close ``events``, where they can be closed."""
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
