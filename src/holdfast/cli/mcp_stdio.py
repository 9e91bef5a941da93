"""Standard input and output as a connection of the Model Context Protocol on which every request gets its answer.

The package's own transport hands on a line that it cannot read as an exception, of which the client hears nothing; it
takes a request with an odd id for a notification; its server drops what is being answered when the input ends. So what
comes in is read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from io import TextIOWrapper
from math import isfinite
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from holdfast.cli.files import standard_input

PATIENCE = 30.0
"""[H] Seconds that running calls may take when the input has ended: a search of 100 MB takes less than one."""
LONGEST_NUMBER = 1_000
"""[H] Digits of a whole number that is read as one; its float is infinite."""
_HALF = re.compile(r"[\ud800-\udfff]")


class Refused(types.JSONRPCError):
    """An error in answer to what is no request of the protocol; it names the id that came, if that was a number."""

    id: int | str | float | None  # type: ignore[assignment]


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
    lines: Any = anyio.wrap_file(TextIOWrapper(standard_input(), encoding="utf-8", errors="replace"))
    nothing: Any = _nothing()
    async with stdio_server(stdin=nothing) as (_, out), anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_in, lines, to_server, out, unanswered)
        tasks.start_soon(_pass_out, from_server, out, unanswered)
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _nothing() -> AsyncIterator[str]:
    """Yield no line: what comes is read here, the package writes only."""
    for line in list[str]():
        yield line


async def _pass_in(
    lines: AsyncIterator[str],
    to_server: MemoryObjectSendStream[SessionMessage | Exception],
    out: Any,
    unanswered: Unanswered,
) -> None:
    """Give the server every message; answer what is none."""
    async with to_server:
        async for line in lines:
            found = understood(line)
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


def understood(line: str) -> SessionMessage | Refused | None:
    """Return the message on a line, the answer to one that is none, or nothing for an empty line.

    Half a character is JSON, so a model can write it; it becomes U+FFFD.
    """
    if not line.strip():
        return None
    try:
        value = json.loads(line, parse_int=_number)
        return _message(value)
    except (ValueError, RecursionError) as wrong:
        return _refused(types.PARSE_ERROR, f"this line is no JSON ({wrong}); give one message a line")


def _message(value: object) -> SessionMessage | Refused:
    """Return the message that ``value`` is, or the answer to what is none."""
    if isinstance(value, dict) and "method" in value and "id" in value:
        id_ = value["id"]
        if isinstance(id_, float) and id_.is_integer():
            value = {**value, "id": int(id_)}  # 2.0 is 2
        elif isinstance(id_, bool) or not isinstance(id_, int | str):
            why = f"the id is {json.dumps(id_)[:40]}; give a string or a whole number"
            return _refused(types.INVALID_REQUEST, why, id_ if isinstance(id_, float) and isfinite(id_) else None)
    text = _HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False))
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValidationError:
        known = value.get("id") if isinstance(value, dict) else None
        why = "this is no message that can be read; give an object with jsonrpc, id, method and params"
        if isinstance(value, list):
            why = "MCP has no batches any more; give each message a line of its own"
        return _refused(types.INVALID_REQUEST, why, known if isinstance(known, str) or type(known) is int else None)


def _number(digits: str) -> int | float:
    """Return a whole number; one that nothing here takes becomes infinite, so that it is refused where it is used."""
    return int(digits) if len(digits) <= LONGEST_NUMBER else float(digits)


def _refused(code: int, why: str, id_: types.RequestId | float | None = None) -> Refused:
    return Refused(jsonrpc="2.0", id=id_, error=types.ErrorData(code=code, message=why))
