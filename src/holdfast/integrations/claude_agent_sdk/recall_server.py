"""The tool ``recall`` as an MCP server inside this process: it answers from the conversation that calls it."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import to_thread

from holdfast.engine.recall import (
    RECALL_DESCRIPTION,
    RECALL_PARAMETERS,
    RECALL_TOOL_NAME,
    RecallAnswer,
    answer_recall,
)
from holdfast.errors import ConfigError, HoldfastError
from holdfast.integrations.claude_agent_sdk.stored_sessions import StoredSessions

if TYPE_CHECKING:
    from claude_agent_sdk import HookContext, HookInput, HookJSONOutput, McpSdkServerConfig
    from mcp import types
    from mcp.server.context import ServerRequestContext

SERVER_NAME = "holdfast"
RECALL_TOOL = f"mcp__{SERVER_NAME}__{RECALL_TOOL_NAME}"
"""The tool's name in Claude Code."""
CALL_ID_FIELD = "claudecode/toolUseId"
"""The field of a call's ``_meta`` with the id of the model's tool call (seen in Claude Code 2.1.332)."""
TOOL_META = {"anthropic/alwaysLoad": True, "anthropic/maxResultSizeChars": 50_000}
"""Claude Code offers the tool without a search for it, and shows a page of it directly."""
MAX_CALLERS = 256
"""Calls whose caller is remembered until the tool runs. Chosen by judgement: more are never under way at once."""


class Caller(NamedTuple):
    """The conversation that calls the tool: the id of its session, and of its sub-agent or an empty string."""

    session_id: str
    agent_id: str = ""


class RecallServer:
    """The server of one agent's options.

    An MCP call names no session, and a client may have several, with sub-agents. So a hook before the tool notes which
    conversation the call belongs to.
    """

    def __init__(self, sessions: StoredSessions) -> None:
        self._sessions = sessions
        self._callers: OrderedDict[str, Caller] = OrderedDict()
        """By the id of the tool call; the newest is last."""

    async def note_caller(self, hook_input: HookInput, tool_use_id: str | None, context: HookContext) -> HookJSONOutput:
        """Note which conversation calls the tool, and have no opinion about the call."""
        del context
        values: dict[str, Any] = dict(hook_input)
        caller = Caller(values.get("session_id", ""), values.get("agent_id") or "")
        self._callers[tool_use_id or values.get("tool_use_id", "")] = caller
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return {}

    def make_config(self) -> McpSdkServerConfig:
        """Return the server for ``mcp_servers``. Raises ``ConfigError`` if the package ``mcp`` is too old for it."""
        from importlib.metadata import version

        from mcp.server.lowlevel import Server

        try:
            server: Server[Any] = Server(
                SERVER_NAME,
                version=version("holdfast"),
                on_list_tools=self._list_tools,
                on_call_tool=self._call_tool,
            )
        except TypeError:
            advice = "install it: pip install 'holdfast[claude-agent-sdk]'"
            raise ConfigError(f"the tool recall needs the package mcp 2.0 or newer; {advice}") from None
        return {"type": "sdk", "name": SERVER_NAME, "instance": server}

    async def _list_tools(
        self, _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        from mcp import types

        tool = types.Tool(
            name=RECALL_TOOL_NAME,
            description=RECALL_DESCRIPTION,
            input_schema={"type": "object", "properties": RECALL_PARAMETERS, "additionalProperties": False},
            annotations=types.ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False),
            _meta=dict(TOOL_META),
        )
        return types.ListToolsResult(tools=[tool])

    async def _call_tool(
        self, _: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        from mcp import types

        call_id = str((params.meta or {}).get(CALL_ID_FIELD, ""))
        caller = self._callers.pop(call_id, None)
        # In a thread: searching a long session would hold up the agent's loop.
        answer = await to_thread.run_sync(partial(self._answer, caller, params.arguments or {}))
        content = types.TextContent(type="text", text=answer.text)
        return types.CallToolResult(content=[content], is_error=answer.is_error)

    def _answer(self, caller: Caller | None, arguments: dict[str, Any]) -> RecallAnswer:
        """Return the answer from the first conversation of the caller that has one."""
        if caller is None:
            return RecallAnswer("Claude Code did not say which conversation this call belongs to", is_error=True)
        answer = RecallAnswer("nothing of this conversation was recorded yet", is_error=True)
        try:
            with self._sessions.open() as store:
                # After a compaction by Claude Code itself the same session begins anew in the log.
                for key in self._sessions.list_keys(store, caller.session_id, caller.agent_id):
                    answer = answer_recall(store, key, arguments)
                    if not answer.is_error:
                        return answer
        except HoldfastError as error:
            return RecallAnswer(str(error), is_error=True)
        return answer
