"""The agent put together: what it is told, what it works in, and what its tools reach of the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.tools import TOOLS
from holdfast.agent.workspace import Allow, Workplace, workplace
from holdfast.engine.environment.environment import Environment, environment
from holdfast.engine.recall import Told, answer_recall, page_chars
from holdfast.engine.session import Session

SYSTEM = """\
You work on the user's task in one folder of their machine, with tools. Paths are relative to that folder, and nothing \
outside of it can be read or written.

- Look before you change: read what you edit, and search before you guess.
- Do one step at a time and check it: run the tests where there are any and commands are allowed.
- A task with several steps gets a plan (todo), kept up to date.
- A tool that fails says why. Do not call it again with the same arguments.
- Older results may be shown as previews, and older turns as a summary. Nothing is lost: fetch_result reads it back.
- When the task is done, say in a few sentences what you did and what is left, without calling a tool."""


def surroundings(folder: str | Path, *, skills: Sequence[str | Path] = ()) -> Environment:
    """Return the environment of the agent in ``folder``: its words, nine tools, the folder's rules and skills."""
    return environment(folder, system=SYSTEM, tools=TOOLS, skills=skills)


def place_for(session: Session, folder: str | Path, *, allow: Allow, hidden: frozenset[str] = frozenset()) -> Workplace:
    """Return the workplace of the agent in ``folder``, whose ``fetch_result`` reads back from ``session``."""
    means = session.means

    async def recall(arguments: Mapping[str, Any]) -> Told:
        report = session.report()
        most = page_chars(report.usable - report.frame)
        return await means.in_worker(lambda: answer_recall(means.store, session.key, arguments, most))

    skills = () if means.environment is None else means.environment.skills
    return workplace(folder, skills=skills, recall=recall, allow=allow, hidden=hidden)
