"""A small reference agent built on the engine: a loop, nine tools, skills.

The names in ``__all__`` are those that a program needs to run the agent; ``docs/agent.md`` shows one.
"""

from holdfast.agent.agent import load_agent_environment, make_session_workspace
from holdfast.agent.loop import AgentListener, AgentStopReason, TaskOutcome, ToolFinished, run_agent
from holdfast.agent.workspace import PermissionCallback, Workspace, allow_command

__all__ = [
    "AgentListener",
    "AgentStopReason",
    "PermissionCallback",
    "TaskOutcome",
    "ToolFinished",
    "Workspace",
    "allow_command",
    "load_agent_environment",
    "make_session_workspace",
    "run_agent",
]
