"""Standard input and output as a connection of the Model Context Protocol on which every request gets its answer.

The package's own transport hands on a line that it cannot read as an exception, of which the client hears nothing, and
its server drops what is being answered when the input ends. Both are mended between the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

T = TypeVar("T")

PATIENCE = 30.0
"""[H] Seconds that running calls may take when the input has ended: a search of 100 MB takes less than one."""
LONGEST_NUMBER = 1_000
"""[H] Digits of a whole number that is read as one; its float is infinite."""
_HALF = re.compile(r"[\ud800-\udfff]")


class Unanswered:
    """The ids of requests that came and have no answer yet."""

    def __init__(self) -> None:
        self._ids: set[types.RequestId] = set()
        self._changed = anyio.Event()

    def came(self, message: types.JSONRPCMessage) -> None:
        """Take down a request; one that the client gave up gets no answer."""
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._drop((message.params or {}).get("requestId"))

    def went(self, message: types.JSONRPCMessage) -> None:
        """Strike out the request that ``message`` answers."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._drop(message.id)

    async def none(self) -> None:
        """Return when there is none."""
        while self._ids:
            self._changed = anyio.Event()
            await self._changed.wait()

    def _drop(self, id_: Any) -> None:
        self._ids = {one for one in self._ids if one != id_}
        self._changed.set()


async def serve(server: Server[Any]) -> None:
    """Answer until standard input has ended and what was asked is answered."""
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage]()
    unanswered = Unanswered()
    async with stdio_server() as (lines, out), anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_in, lines, to_server, out, unanswered)
        tasks.start_soon(_pass_out, from_server, out, unanswered)
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _pass_in(
    lines: Any, to_server: MemoryObjectSendStream[SessionMessage | Exception], out: Any, unanswered: Unanswered
) -> None:
    """Give the server every message; answer what is none."""
    async with to_server:
        async for item in lines:
            found = understood(item) if isinstance(item, Exception) else item
            if isinstance(found, SessionMessage):
                unanswered.came(found.message)
                await to_server.send(found)
            elif found is not None:
                await out.send(SessionMessage(found))
        with anyio.move_on_after(PATIENCE):
            await unanswered.none()


async def _pass_out(from_server: MemoryObjectReceiveStream[SessionMessage], out: Any, unanswered: Unanswered) -> None:
    async with out, from_server:
        async for answer in from_server:
            await out.send(answer)
            unanswered.went(answer.message)


def understood(error: Exception) -> SessionMessage | types.JSONRPCError | None:
    """Return the message on a line that the transport did not read, the answer to one that is none, or nothing.

    Half a character is JSON, so a model can write it; it becomes U+FFFD. An empty line is nothing.
    """
    told = error.errors(include_url=False) if isinstance(error, ValidationError) else []
    line = _input(told, "json_invalid", str)
    if line is None:
        return _invalid(_input(told, "missing", dict))
    if not line.strip():
        return None
    try:
        value = json.loads(line, parse_int=_number)
        text = _HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError) as wrong:
        return _refused(types.PARSE_ERROR, f"this line is no JSON ({wrong}); give one message a line")
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValidationError:
        return _invalid(value)


def _number(digits: str) -> int | float:
    """Return a whole number; one that nothing here takes becomes infinite, so that it is refused where it is used."""
    return int(digits) if len(digits) <= LONGEST_NUMBER else float(digits)


def _input(told: Iterable[Mapping[str, Any]], what: str, kind: type[T]) -> T | None:
    """Return what the first error of type ``what`` was found in."""
    return next((one["input"] for one in told if one["type"] == what and isinstance(one["input"], kind)), None)


def _invalid(value: object) -> types.JSONRPCError:
    id_ = value.get("id") if isinstance(value, dict) else None
    known = id_ if isinstance(id_, str) or type(id_) is int else None
    why = "this is no message that can be read; give an object with jsonrpc, id, method and params"
    return _refused(types.INVALID_REQUEST, why, known)


def _refused(code: int, why: str, id_: types.RequestId | None = None) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=id_, error=types.ErrorData(code=code, message=why))
