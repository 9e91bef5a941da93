"""Claude Agent SDK: ``ClaudeSDKClient`` with the program Claude Code that is inside of the package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    ToolAnnotations,
    create_sdk_mcp_server,
    tool,
)
from claude_agent_sdk._cli_version import __cli_version__

from framework_agents.workload import ChildJob

MAX_TURNS = 10_000
MESSAGE_BYTES = 64_000_000
"""The SDK's reader dies of a longer message; its default of 1 MB is less than the largest result."""
ASSUMED_WINDOW = 200_000
"""Claude Code takes a window of its own for the models that it knows, whatever the provider's is."""
NO_LIMIT = 100_000_000
LARGEST_RESULT = 500_000
"""The most characters that Claude Code lets a tool ask for."""
LARGEST_OUTPUT = 4_096
"""Claude Code asks for as many tokens as the whole window here, which no provider would grant beside the input."""


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"claude-agent-sdk {version('claude-agent-sdk')} with Claude Code {__cli_version__}"


class ClaudeConversation:
    """One program for all turns."""

    def __init__(self, options: ClaudeAgentOptions) -> None:
        self._loop = asyncio.Runner()
        self._client = ClaudeSDKClient(options)
        self._loop.run(self._client.connect())

    def say(self, prompt: str) -> None:
        """Let the agent work on what the user says. Raises ``RuntimeError`` if it says that it failed."""
        self._loop.run(self._run(prompt))

    def close(self) -> None:
        """End the program."""
        self._loop.run(self._client.disconnect())

    async def _run(self, prompt: str) -> None:
        await self._client.query(prompt)
        async for message in self._client.receive_response():
            if isinstance(message, ResultMessage) and message.is_error:
                raise RuntimeError(message.result or message.subtype)


def make_tool(name: str, function: Callable[[str], str], largest_result: int | None) -> Any:
    """Return a tool for the server inside of this process; results over ``largest_result`` characters become files."""
    annotations = ToolAnnotations(maxResultSizeChars=largest_result)

    async def call(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": function(arguments["argument"])}]}

    return tool(name, function.__doc__ or "", {"argument": str}, annotations)(call)


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> ClaudeConversation:
    """Build the agent of a row."""
    work_folder = Path(job.folder, "work")
    work_folder.mkdir()
    env = {
        "HOME": job.folder,
        "CLAUDE_CONFIG_DIR": f"{job.folder}/claude",
        "ANTHROPIC_BASE_URL": job.url,
        "ANTHROPIC_API_KEY": "sk-test",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(LARGEST_OUTPUT),
    }
    own_tools: list[str] = []
    largest_result = None
    if job.remedy in ("compact", "store"):
        # Its variables for the size of a window are for unknown models, or take no less than 100,000 tokens.
        env["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"] = str(100 * job.window // 2 // ASSUMED_WINDOW)
    if job.remedy == "store":
        # A longer result is written to a file, and the model is told to read that.
        env["MAX_MCP_OUTPUT_TOKENS"] = str(job.window // 16)
        own_tools = ["Read", "Grep"]
    if job.remedy == "holdfast":
        # By default results over 25,000 tokens or 50,000 characters are files, and recall does not know those.
        env["MAX_MCP_OUTPUT_TOKENS"] = str(NO_LIMIT)
        largest_result = LARGEST_RESULT
    options = ClaudeAgentOptions(
        model=job.model,
        system_prompt="You look after a large service. Follow every rule of the user.",
        tools=own_tools,
        mcp_servers={
            "bench": create_sdk_mcp_server(
                "bench", tools=[make_tool(name, function, largest_result) for name, function in tools.items()]
            )
        },
        allowed_tools=[*own_tools, *(f"mcp__bench__{name}" for name in tools)],
        setting_sources=[],
        skills=[],
        thinking={"type": "disabled"},
        max_turns=MAX_TURNS,
        max_buffer_size=MESSAGE_BYTES,
        cwd=work_folder,
        env=env,
    )
    if job.remedy == "holdfast":
        from holdfast.integrations.claude_agent_sdk import HoldfastProxy

        proxy = HoldfastProxy(window=job.window, store=f"{job.folder}/holdfast.db")
        options = proxy.__enter__().configure(options)
    return ClaudeConversation(options)
