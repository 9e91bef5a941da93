"""Put the agent together: its prompt and tools, its workspace, and how its tools read back from the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.agent.tools import TOOL_DEFINITIONS
from holdfast.agent.workspace import PermissionCallback, Workspace, open_workspace
from holdfast.engine.environment.environment import Environment, load_environment
from holdfast.engine.environment.skills import Skill
from holdfast.engine.recall import RecallAnswer, answer_recall, compute_page_chars
from holdfast.engine.session import Session

AGENT_PROMPT = """\
You work on the user's task in one folder of their machine, with tools. Paths are relative to that folder, and nothing \
outside of it can be read or written.

- Look before you change: read what you edit, and search before you guess.
- Do one step at a time and check it: run the tests where there are any and commands are allowed.
- A task with several steps gets a plan (todo), kept up to date.
- A tool that fails says why. Do not call it again with the same arguments.
- Older results may be shown as previews, and older turns as a summary. Nothing is lost: fetch_result reads it back.
- When the task is done, say in a few sentences what you did and what is left, without calling a tool."""


def load_agent_environment(folder: str | Path, *, skills: Sequence[str | Path] = ()) -> Environment:
    """Load the environment of an agent in ``folder``: its prompt, the nine tools, the folder's rules and skills."""
    return load_environment(folder, system=AGENT_PROMPT, tools=TOOL_DEFINITIONS, skills=skills)


def make_session_workspace(
    session: Session,
    folder: str | Path,
    *,
    allow: PermissionCallback,
    hidden: frozenset[str] = frozenset(),
) -> Workspace:
    """Make the workspace of an agent in ``folder``; its tool ``fetch_result`` reads back from ``session``."""
    resources = session.resources

    async def recall(arguments: Mapping[str, Any]) -> RecallAnswer:
        # A page must fit into what is left of the window, or reading it back would be spilled again.
        report = session.report()
        max_chars = compute_page_chars(report.usable_tokens - report.setup_tokens)
        read_back = partial(answer_recall, resources.store, session.key, arguments, max_chars)
        return await resources.run_in_worker(read_back)

    skills: tuple[Skill, ...] = ()
    if resources.environment is not None:
        skills = resources.environment.skills
    return open_workspace(
        folder,
        skills=skills,
        recall=recall,
        ask_permission=allow,
        hidden_variables=hidden,
    )
