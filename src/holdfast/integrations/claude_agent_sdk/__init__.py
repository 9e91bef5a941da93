"""Claude Agent SDK: agents whose conversations stay inside the window, and a store for their transcripts.

::

    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient
    from holdfast.integrations.claude_agent_sdk import HoldfastProxy

    async with HoldfastProxy() as holdfast:
        async with ClaudeSDKClient(holdfast.configure(ClaudeAgentOptions())) as client:
            ...

The SDK runs the program Claude Code, which keeps the whole conversation. Its requests go through a proxy of Holdfast in
this process, so the model sees a reduced view, and the tool ``recall`` reads back what that leaves out.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework(
    "Claude Agent SDK", distribution="claude-agent-sdk", oldest_version="0.2.189", extra="claude-agent-sdk"
):
    from holdfast.integrations.claude_agent_sdk.holdfast_proxy import HoldfastProxy
    from holdfast.integrations.claude_agent_sdk.session_store import HoldfastSessionStore

__all__ = ["HoldfastProxy", "HoldfastSessionStore"]
