"""Streams of LiteLLM whose request is made again with less if it is refused before anything of the answer came.

Several providers are asked only when a stream is first read (Anthropic, Bedrock), and some servers refuse inside of a
stream that has begun with status 200 (SGLang).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from holdfast.integrations.litellm.planner import CallPlanner, PlannedCall

OpenedCall: TypeAlias = tuple[PlannedCall, Any]
"""A planned call, and the stream of its answer."""


class RecoveringStream:
    """The chunks of one answer. All else that callers ask for is that of LiteLLM's stream."""

    def __init__(
        self,
        opened_call: OpenedCall,
        planner: CallPlanner,
        reopen: Callable[[PlannedCall, Exception], OpenedCall | None],
    ) -> None:
        self._call, self._stream = opened_call
        self._planner = planner
        self._reopen = reopen
        self._has_begun = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                chunk = next(self._stream)
            except StopIteration:
                raise
            except Exception as error:
                # What the caller has seen of an answer cannot be taken back.
                reopened = None if self._has_begun else self._reopen(self._call, error)
                if reopened is None:
                    raise
                self._call, self._stream = reopened
                continue
            self._has_begun = True
            self._planner.note_usage(self._call, chunk)
            return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class RecoveringAsyncStream:
    """The same for ``acompletion``."""

    def __init__(
        self,
        opened_call: OpenedCall,
        planner: CallPlanner,
        reopen: Callable[[PlannedCall, Exception], Awaitable[OpenedCall | None]],
    ) -> None:
        self._call, self._stream = opened_call
        self._planner = planner
        self._reopen = reopen
        self._has_begun = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            try:
                chunk = await anext(self._stream)
            except StopAsyncIteration:
                raise
            except Exception as error:
                reopened = None if self._has_begun else await self._reopen(self._call, error)
                if reopened is None:
                    raise
                self._call, self._stream = reopened
                continue
            self._has_begun = True
            self._planner.note_usage(self._call, chunk)
            return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
