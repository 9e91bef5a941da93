"""``holdfast mcp``: serve recall and search over the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec import Struct

from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import EXPECTED_ERRORS, CommandError, describe_error
from holdfast.cli.output.terminal import make_json_option, print_json
from holdfast.engine.recall import (
    MAX_SEARCH_HITS,
    RECALL_DESCRIPTION,
    RECALL_PARAMETERS,
    RECALL_TOOL_NAME,
    RecallAnswer,
    answer_recall,
    search_history,
)
from holdfast.errors import FormatError, UnknownId
from holdfast.state.codec.reading import convert_value
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
MCP_INSTALL_HINT = (
    'holdfast mcp needs the package "mcp", which is not installed; '
    'in the checkout of Holdfast: uv tool install ".[mcp]", or pip install ".[mcp]"'
)
MAX_SEARCH_LIMIT = 100
"""Messages that one search may return. Chosen by judgement: more would fill the model's context with snippets."""
SEARCH_DESCRIPTION = """\
Finds messages in the whole history of this conversation, also those that were summarized or are no longer shown: \
what the user said, what you said, results of tools. Each comes with the id that recall takes."""
SEARCH_PARAMETERS: dict[str, dict[str, Any]] = {
    "query": {"type": "string", "description": 'Words that must all be there; "a b" in double quotes is one.'},
    "limit": {
        "type": "integer",
        "description": f"How many at most, 1 to {MAX_SEARCH_LIMIT}; {MAX_SEARCH_HITS} if it is not said.",
    },
}
SERVER_INSTRUCTIONS = """\
Text of this conversation may be shown as a preview, a placeholder or a summary. Nothing was lost: use recall with the \
id that stands there, or search to find it."""


CLIENT_SESSION_FIELDS = ("threadId", "sessionId")
"""Fields of a call's ``_meta`` with the id of the conversation that makes it: of the agent itself, then of the one that
started it. Codex sends both (seen in 0.171.0); sessions imported from it have these ids as their keys."""
LARGE_RESULT_META = {"anthropic/maxResultSizeChars": 50_000}
"""Claude Code writes a larger tool result to a file of its own; with this field it shows a page of recall directly."""


class McpSource(NamedTuple):
    """The sources of answers: the store, the session if one was named, and the server's working folder."""

    store: str | None
    session: str | None
    folder: Path


class _SearchArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a search."""

    query: str
    limit: int = MAX_SEARCH_HITS


@click.command("mcp", epilog=EXAMPLES)
@click.option(
    "--session",
    metavar="ID",
    help="The session to read. [default: the newest of this folder, else the newest of all]",
)
@store_option
@make_json_option("what it would serve, without serving,")
def mcp_command(session: str | None, store: str | None, *, as_json: bool) -> None:
    """Serve recall and search to a client of the Model Context Protocol, over standard input and output.

    The client starts this by itself, see docs/recall.md. The model can then read back texts that are no longer shown to
    it, by the ids in previews and notices, and search the whole conversation. Nothing is ever written.
    """
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise CommandError(MCP_INSTALL_HINT) from None
    place = McpSource(store, session, Path.cwd())
    if as_json:
        _print_offered_tools(place)
        return
    import anyio

    # ^C must end it, and the thread that waits for input ignores a cancellation.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(_run_mcp_server, place)


def _print_offered_tools(environment: McpSource) -> None:
    with open_named_store(environment.store, readonly=True) as store:
        info, note = choose_session(store, environment)
    tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in _list_mcp_tools()]
    print_json({"session": info.key, "title": info.title, "note": note, "tools": tools})


async def _run_mcp_server(environment: McpSource) -> None:
    """Serve until standard input ends; the transport redirects other output to standard error."""
    from holdfast.cli.mcp_stdio import serve_mcp_stdio

    await serve_mcp_stdio(make_mcp_server(environment))


def make_mcp_server(environment: McpSource) -> Server[Any]:
    """Return a server that answers from ``environment`` and is not connected yet."""
    from importlib.metadata import version

    from anyio import to_thread
    from mcp import types
    from mcp.server.lowlevel import Server

    async def list_tools(
        _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_list_mcp_tools())

    async def call_tool(_: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        run_call = partial(
            answer_tool_call,
            environment,
            params.name,
            params.arguments or {},
            client_sessions=list_client_sessions(params.meta or {}),
        )
        # In a thread, because searching a long session would hold up the server's other messages.
        answer = await to_thread.run_sync(run_call)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=answer.text)], is_error=answer.is_error
        )

    return Server(
        "holdfast",
        version=version("holdfast"),
        instructions=SERVER_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _list_mcp_tools() -> list[types.Tool]:
    return [
        _make_mcp_tool(RECALL_TOOL_NAME, RECALL_DESCRIPTION, RECALL_PARAMETERS),
        _make_mcp_tool("search", SEARCH_DESCRIPTION, SEARCH_PARAMETERS, "query"),
    ]


def _make_mcp_tool(name: str, about: str, parameters: Mapping[str, Any], *required: str) -> types.Tool:
    from mcp import types

    hints = types.ToolAnnotations(
        read_only_hint=True,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=False,
    )
    schema = {
        "type": "object",
        "properties": dict(parameters),
        "required": list(required),
        "additionalProperties": False,
    }
    return types.Tool(
        name=name,
        description=about,
        input_schema=schema,
        annotations=hints,
        _meta=dict(LARGE_RESULT_META),
    )


def list_client_sessions(meta: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calling conversation in the metadata of a call, the best first; most clients send none."""
    ids = [meta.get(name) for name in CLIENT_SESSION_FIELDS]
    return [id_ for id_ in ids if isinstance(id_, str)]


def answer_tool_call(
    environment: McpSource,
    tool: str,
    arguments: Mapping[str, Any],
    client_sessions: Sequence[str] = (),
) -> RecallAnswer:
    """Run a call of ``tool`` and return its answer; errors are answers too."""
    # Opened for each call, because others write to the store while this server is running.
    try:
        with open_named_store(environment.store, readonly=True) as store:
            info, note = choose_session(store, environment, client_sessions)
            answer = _run_tool(store, info.key, tool, arguments)
    except EXPECTED_ERRORS as error:
        return RecallAnswer(describe_error(error), is_error=True)
    if not note:
        return answer
    return RecallAnswer(f"{note}\n{answer.text}", answer.is_error)


def choose_session(
    store: SessionStore, environment: McpSource, client_sessions: Sequence[str] = ()
) -> tuple[SessionInfo, str]:
    """Choose the session to read, with a remark if it may not be the one that was meant.

    ``client_sessions`` are the ids that the client gave with the call, the best first.
    """
    if environment.session is not None:
        return store.get_session(environment.session), ""
    sessions = store.list_sessions()
    infos_by_key = {info.key: info for info in sessions}
    for key in client_sessions:
        if key in infos_by_key:
            return infos_by_key[key], ""
    keys = infos_by_key.keys()
    # The key of a sub-agent's session ends with an @ and its parent's key; the parent is the one that was meant.
    main_sessions = [info for info in sessions if info.key.partition("@")[2] not in keys]
    if not main_sessions:
        raise UnknownId("there is no session in the store yet; add one with `holdfast import FILE`")
    for info in main_sessions:
        if info.cwd and Path(info.cwd) == environment.folder:
            return info, ""
    newest = main_sessions[0]
    return newest, f"[no session of {environment.folder} is in the store; this is the newest of all, {newest.key}]"


def _run_tool(store: SessionStore, key: str, tool: str, arguments: Mapping[str, Any]) -> RecallAnswer:
    if tool == RECALL_TOOL_NAME:
        return answer_recall(store, key, arguments)
    if tool != "search":
        raise FormatError(f"there is no tool {tool[:40]!r}; the tools are {RECALL_TOOL_NAME} and search")
    try:
        search_arguments = convert_value(dict(arguments), _SearchArguments, strict=False)
    except msgspec.ValidationError as error:
        raise FormatError(f"invalid arguments for search: {error}; give query, and optionally limit") from None
    if not search_arguments.query.strip():
        raise FormatError("the query has no words in it; give a word to look for")
    if not 1 <= search_arguments.limit <= MAX_SEARCH_LIMIT:
        raise FormatError(
            f"a limit of {search_arguments.limit} is not from 1 to {MAX_SEARCH_LIMIT}; leave it out for "
            f"{MAX_SEARCH_HITS}"
        )
    return RecallAnswer(search_history(store, key, search_arguments.query, limit=search_arguments.limit))
