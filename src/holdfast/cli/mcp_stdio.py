"""Standard input and output as a connection of the Model Context Protocol on which every request gets an answer.

The ``mcp`` package does the writing. Reading is done here, because the reader of mcp 2.3.0 loses requests: it gives no
answer at all to a line that is not JSON, a batch, half a surrogate pair, or an id that is null or a fraction, so the
client waits forever, and it answers "Connection closed" to a call that is still running when the input ends. When a
release answers all of these, use ``stdio_server`` alone and delete this module.
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

from holdfast.cli.files.input_files import get_standard_input

CALL_DRAIN_TIMEOUT = 30.0
"""Seconds that running calls may take after the input has ended. Chosen by judgement: a search of 100 MB takes less
than one second, so only a call that hangs is cut off."""
MAX_INTEGER_DIGITS = 1_000
"""Longer whole numbers are read as a float, which is infinite at that size. Python limits the conversion of very long
digit strings (4,300 by default) and would fail with an error of its own."""
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class JsonRpcErrorReply(types.JSONRPCError):
    """An error reply to a line that is not a valid request; its id is the one received, if that was a number."""

    id: int | str | float | None  # type: ignore[assignment]


class PendingRequests:
    """The ids of requests that have no answer yet."""

    def __init__(self) -> None:
        self._ids: set[types.RequestId] = set()
        self._changed = anyio.Event()

    def add_request(self, message: types.JSONRPCMessage) -> None:
        """Remember a request; forget it when the client cancels it, since it then gets no answer."""
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._remove_id((message.params or {}).get("requestId"))

    def remove_answered(self, message: types.JSONRPCMessage) -> None:
        """Forget the request that ``message`` answers."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._remove_id(message.id)

    async def wait_until_empty(self) -> None:
        """Wait until every request has its answer."""
        while self._ids:
            self._changed = anyio.Event()
            await self._changed.wait()

    def _remove_id(self, id_: Any) -> None:
        self._ids = {request_id for request_id in self._ids if request_id != id_}
        self._changed.set()


async def serve_mcp_stdio(server: Server[Any]) -> None:
    """Serve until standard input has ended and every request is answered."""
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage]()
    pending_requests = PendingRequests()
    lines: Any = anyio.wrap_file(TextIOWrapper(get_standard_input(), encoding="utf-8", errors="replace"))
    empty_input: Any = _empty_input()
    async with stdio_server(stdin=empty_input) as (_, out), anyio.create_task_group() as tasks:
        tasks.start_soon(_forward_input, lines, to_server, out, pending_requests)
        tasks.start_soon(_forward_output, from_server, out, pending_requests)
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _empty_input() -> AsyncIterator[str]:
    """Yield no line: the package only writes, and ``_forward_input`` reads."""
    for line in list[str]():
        yield line


async def _forward_input(
    lines: AsyncIterator[str],
    to_server: MemoryObjectSendStream[SessionMessage | Exception],
    console: Any,
    pending_requests: PendingRequests,
) -> None:
    """Pass every valid message to the server, and answer the others with an error."""
    async with to_server:
        async for line in lines:
            message = parse_mcp_line(line)
            if isinstance(message, SessionMessage):
                pending_requests.add_request(message.message)
                await to_server.send(message)
            elif message is not None:
                await console.send(SessionMessage(message))
        with anyio.move_on_after(CALL_DRAIN_TIMEOUT):
            await pending_requests.wait_until_empty()


async def _forward_output(
    from_server: MemoryObjectReceiveStream[SessionMessage],
    console: Any,
    pending_requests: PendingRequests,
) -> None:
    async with console, from_server:
        async for answer in from_server:
            await console.send(answer)
            pending_requests.remove_answered(answer.message)


def parse_mcp_line(line: str) -> SessionMessage | JsonRpcErrorReply | None:
    """Parse a line into a message, an error reply for an invalid one, or None for an empty line.

    Half a surrogate pair is valid JSON that a model can produce; it becomes U+FFFD.
    """
    if not line.strip():
        return None
    try:
        value = json.loads(line, parse_int=_parse_integer)
        return _validate_message(value)
    except (ValueError, RecursionError) as wrong:
        return _make_error_answer(types.PARSE_ERROR, f"this line is not JSON ({wrong}); send one message per line")


def _validate_message(value: object) -> SessionMessage | JsonRpcErrorReply:
    """Return ``value`` as a message, or the error reply if it is not a valid one."""
    if isinstance(value, dict) and "method" in value and "id" in value:
        id_ = value["id"]
        if isinstance(id_, float) and id_.is_integer():
            value = {**value, "id": int(id_)}  # 2.0 is 2
        elif isinstance(id_, bool) or not isinstance(id_, int | str):
            why = f"the id is {json.dumps(id_)[:40]}; give a string or a whole number"
            # An infinite number cannot be written back as JSON.
            reply_id = id_ if isinstance(id_, float) and isfinite(id_) else None
            return _make_error_answer(types.INVALID_REQUEST, why, reply_id)
    text = _LONE_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False))
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValidationError:
        why = "this is not a valid message; send an object with jsonrpc, id, method and params"
        if isinstance(value, list):
            why = "MCP no longer has batches; send each message on its own line"
        reply_id = value.get("id") if isinstance(value, dict) else None
        # The exact type of a number, because True is an int to ``isinstance``.
        if not isinstance(reply_id, str) and type(reply_id) is not int:
            reply_id = None
        return _make_error_answer(types.INVALID_REQUEST, why, reply_id)


def _parse_integer(digits: str) -> int | float:
    """Parse a whole number; a huge one becomes infinite, so that validation refuses it where it is used."""
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else float(digits)


def _make_error_answer(code: int, why: str, id_: types.RequestId | float | None = None) -> JsonRpcErrorReply:
    return JsonRpcErrorReply(jsonrpc="2.0", id=id_, error=types.ErrorData(code=code, message=why))
