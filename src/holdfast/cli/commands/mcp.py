"""``holdfast mcp``: recall and search for any client of the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec import Struct

from holdfast.cli.output.errors import EXPECTED, Stopped, reason
from holdfast.cli.output.terminal import json_option, say_json
from holdfast.cli.places import opened, store_option
from holdfast.engine.recall import ABOUT, HITS, NAME, PARAMETERS, Told, answer_recall, searched
from holdfast.errors import FormatError, UnknownId
from holdfast.state.codec.reading import convert
from holdfast.store.base import SessionInfo, SessionStore

if TYPE_CHECKING:
    from mcp import types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server

EXAMPLES = """\
\b
Examples:
  holdfast mcp
  holdfast mcp --session 4d56
  claude mcp add holdfast -- holdfast mcp
"""
INSTALL = (
    'holdfast mcp speaks through the package "mcp", which is not installed; '
    'in the checkout of Holdfast: uv tool install ".[mcp]", or pip install ".[mcp]"'
)
MOST = 100
"""[H] Messages that one search may ask for."""
ABOUT_SEARCH = """\
Finds messages in the whole history of this conversation, also those that were summarised or are no longer shown: \
what the user said, what you said, results of tools. Each comes with the id that recall takes."""
SEARCH_PARAMETERS: dict[str, dict[str, Any]] = {
    "query": {"type": "string", "description": 'Words that must all be there; "a b" in double quotes is one.'},
    "limit": {"type": "integer", "description": f"How many at most, 1 to {MOST}; {HITS} if it is not said."},
}
INSTRUCTIONS = """\
Text of this conversation may be shown as a preview, a placeholder or a summary. Nothing was lost: use recall with the \
id that stands there, or search to find it."""


WHOLE = {"anthropic/maxResultSizeChars": 50_000}
"""[K] Claude Code then shows a page as it is, and does not put it into a file of its own."""


class Place(NamedTuple):
    """What a call is answered from: the store, the session if one was named, and the folder that the server is in."""

    store: str | None
    session: str | None
    folder: Path


class _Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a search."""

    query: str
    limit: int = HITS


@click.command("mcp", epilog=EXAMPLES)
@click.option(
    "--session", metavar="ID", help="The session to read. [default: the newest of this folder, else the newest of all]"
)
@store_option
@json_option("what it would serve, without serving it,")
def command(session: str | None, store: str | None, *, as_json: bool) -> None:
    """Serve recall and search to a client of the Model Context Protocol, over standard input and output.

    A client starts this by itself, see docs/recall.md. The model then reads back what is no longer shown to it, with
    the ids in previews and notices, and searches everything that was said. Nothing is ever written.
    """
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise Stopped(INSTALL) from None
    place = Place(store, session, Path.cwd())
    if as_json:
        _say(place)
        return
    import anyio

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ^C ends it at once: the thread that waits for input cannot be told
    anyio.run(_serve, place)


def _say(place: Place) -> None:
    with opened(place.store, readonly=True) as store:
        info, note = session_of(store, place)
    offered = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in _tools()]
    say_json({"session": info.key, "title": info.title, "note": note, "tools": offered})


async def _serve(place: Place) -> None:
    """Answer until standard input ends; the transport sends whatever else is printed to standard error."""
    from holdfast.cli.mcp_stdio import serve

    await serve(server_at(place))


def server_at(place: Place) -> Server[Any]:
    """Return a server that answers from ``place``, not yet connected to anybody."""
    from importlib.metadata import version

    from anyio import to_thread
    from mcp import types
    from mcp.server.lowlevel import Server

    async def listed(_: ServerRequestContext[Any], __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_tools())

    async def called(_: ServerRequestContext[Any], asked: types.CallToolRequestParams) -> types.CallToolResult:
        told = await to_thread.run_sync(partial(answered, place, asked.name, asked.arguments or {}))
        return types.CallToolResult(content=[types.TextContent(type="text", text=told.text)], is_error=told.is_error)

    return Server(
        "holdfast", version=version("holdfast"), instructions=INSTRUCTIONS, on_list_tools=listed, on_call_tool=called
    )


def _tools() -> list[types.Tool]:
    return [_tool(NAME, ABOUT, PARAMETERS), _tool("search", ABOUT_SEARCH, SEARCH_PARAMETERS, "query")]


def _tool(name: str, about: str, parameters: Mapping[str, Any], *required: str) -> types.Tool:
    from mcp import types

    hints = types.ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    schema = {
        "type": "object",
        "properties": dict(parameters),
        "required": list(required),
        "additionalProperties": False,
    }
    return types.Tool(name=name, description=about, input_schema=schema, annotations=hints, _meta=dict(WHOLE))


def answered(place: Place, tool: str, arguments: Mapping[str, Any]) -> Told:
    """Return what a call of ``tool`` answers; what goes wrong is an answer too."""
    try:
        with opened(place.store, readonly=True) as store:
            info, note = session_of(store, place)
            told = _told(store, info.key, tool, arguments)
    except EXPECTED as error:
        return Told(reason(error), is_error=True)
    return Told(f"{note}\n{told.text}", told.is_error) if note else told


def session_of(store: SessionStore, place: Place) -> tuple[SessionInfo, str]:
    """Return the session that is read, and a remark where it may not be the one that is meant."""
    if place.session is not None:
        return store.session(place.session), ""
    every = store.sessions()
    keys = {info.key for info in every}
    own = [info for info in every if info.key.partition("@")[2] not in keys]  # those of sub-agents are left out
    if not own:
        raise UnknownId("there is no session in the store yet; `holdfast import FILE` takes one in")
    here = [info for info in own if info.cwd and Path(info.cwd) == place.folder]
    if here:
        return here[0], ""
    return own[0], f"[no session of {place.folder} is in the store; this is the newest of all, {own[0].key}]"


def _told(store: SessionStore, key: str, tool: str, arguments: Mapping[str, Any]) -> Told:
    if tool == NAME:
        return answer_recall(store, key, arguments)
    if tool != "search":
        raise FormatError(f"no tool is called {tool[:40]!r}; there are {NAME} and search")
    try:
        wanted = convert(dict(arguments), _Wanted, strict=False)
    except msgspec.ValidationError as error:
        raise FormatError(f"these are no arguments of search: {error}; give query, and limit if you want") from None
    if not wanted.query.strip():
        raise FormatError("the query has no words in it; give a word to look for")
    if not 1 <= wanted.limit <= MOST:
        raise FormatError(f"a limit of {wanted.limit} is not from 1 to {MOST}; leave it out for {HITS}")
    return Told(searched(store, key, wanted.query, limit=wanted.limit))
