"""A Claude Agent SDK agent that reads far more than its window holds, offline, with a scripted stand-in for Anthropic.

Run it with ``python examples/integrations/claude_agent_sdk_agent.py``; it needs ``pip install
'holdfast[claude-agent-sdk]'``, whose wheel has the program Claude Code inside (or set HOLDFAST_CLAUDE to one).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import claude_agent_sdk
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from holdfast.integrations.claude_agent_sdk import HoldfastProxy
from holdfast.testing.provider import Provider, ProviderSettings, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.server.local_server import serve_provider

STEPS = 30
WINDOW = 60_000


class ScriptedModel:
    """A model that reads one part of the log after the other."""

    def __init__(self):
        self.step = 0

    def choose_next_answer(self, request, blocks):
        """Call the tool, or end."""
        self.step += 1
        if self.step > STEPS:
            return ScriptedAnswer("Part 7 is slow.")
        command = f"seq -f 'part {self.step}, line %05g of the log' 1 1000"
        return ScriptedAnswer("", (("Bash", {"command": command, "description": "Read a part of the log"}),))


def find_program():
    """Return the path of Claude Code: the one in a variable, else the one inside the SDK."""
    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    return Path(os.environ.get("HOLDFAST_CLAUDE") or bundled)


async def ask(url, home):
    """Let the agent work at the stand-in at ``url``; return how full its context is in the end."""
    env = {
        "HOME": home,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    options = ClaudeAgentOptions(env=env, cli_path=find_program(), cwd=home, allowed_tools=["Bash"])
    async with HoldfastProxy(store=":memory:") as holdfast:
        prompt = "Which part of the log is slow? Never restart the server."
        session_id = ""
        async for message in query(prompt=prompt, options=holdfast.configure(options)):
            if isinstance(message, ResultMessage):
                print(f"The agent said after {message.num_turns} steps: {message.result}")
                session_id = message.session_id
        return holdfast.get_report(session_id)


def main():
    """Let the agent work, and print what its provider was sent."""
    if not find_program().is_file():
        print("There is no Claude Code to run: set HOLDFAST_CLAUDE to its program.")
        return
    provider = Provider(ProviderSettings(window=WINDOW), ScriptedModel())
    with TemporaryDirectory(ignore_cleanup_errors=True) as home, serve_provider(provider) as url:
        report = asyncio.run(ask(url, home))
    refused = sum(isinstance(request.reply, RefusalReply) for request in provider.requests)
    print(f"Of {len(provider.requests)} requests {refused} was refused; the agent never saw that.")
    print(f"Its next request has about {report.tokens:,} tokens of a window of {report.window:,}.")


if __name__ == "__main__":
    main()
