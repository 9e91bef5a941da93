"""GitHub Copilot CLI: agents and shells in the background, and its notices of their end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.planning.open_work.work_events import (
    Convention,
    NamedWorkEnded,
    ToolExchange,
    WorkContinues,
    WorkEnded,
    WorkEvent,
    WorkStarted,
)

# The client also shows results as JSON, where the text is a field: so the words need not begin a line.
_AGENT_STARTED = re.compile(r"\bAgent started in background with agent_id: ([\w@:/-]+(?:\.[\w-]+)*)")
_SHELL_STARTED = re.compile(r"<command started in (?:detached )?background with shellId: ([\w@:/-]+)")
_SHELL_RUNNING = re.compile(r"<command with (?:shellId|id): ([\w@:/-]+) is still running")
_SHELL_ENDED = re.compile(
    r"<(?:command with (?:shellId|id)|shellId): ([\w@:/-]+) (?:exited|completed|was stopped|stopped)"
)
_AGENT_STATUS = re.compile(r"\bstatus: (\w+)")
_ENDED_STATUSES = frozenset({"completed", "failed", "cancelled", "canceled", "killed", "error"})
_NOTICE = re.compile(r"<system_notification>(.*?)</system_notification>", re.DOTALL)
_END_WORDS = re.compile(r"\b(?:completed|finished|failed|exited|cancelled|stopped)\b", re.IGNORECASE)
_NOTICE_CHARS = 300
"""Characters of a notice that are read: its first sentence says what ended."""


def _read_agent_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    started = _AGENT_STARTED.search(exchange.start)
    if started is not None:
        yield WorkStarted("sub-agent", started[1], exchange.get_argument("description", "name", "prompt"))


def _read_agent_status(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("agent_id", "agentId")
    status = _AGENT_STATUS.search(exchange.start)
    if not id_ or status is None:
        return
    word = status[1].lower()
    if word in _ENDED_STATUSES:
        yield WorkEnded(id_)
    else:
        yield WorkContinues(id_, "waits for input" if word == "idle" else "")


def _read_shell_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    name = exchange.get_argument("description", "command")
    for text in dict.fromkeys((exchange.start, exchange.end)):
        for id_ in _SHELL_STARTED.findall(text):
            yield WorkStarted("shell", id_, name)
        for id_ in _SHELL_RUNNING.findall(text):
            # A command that outlived its wait is told of in this way first.
            yield WorkStarted("shell", id_, exchange.get_argument("command"))
        for id_ in _SHELL_ENDED.findall(text):
            yield WorkEnded(id_)


def _read_stop_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("shellId", "shell_id")
    if id_ and not exchange.result.is_error:
        yield WorkEnded(id_)


def _read_notice(text: str) -> Iterator[WorkEvent]:
    for notice in _NOTICE.findall(text):
        if _END_WORDS.search(notice[:_NOTICE_CHARS]):
            yield NamedWorkEnded(notice[:_NOTICE_CHARS])


_SHELL_TOOLS = ("bash", "powershell", "read_bash", "read_powershell", "write_bash", "write_powershell")

COPILOT_CLI = Convention(
    "copilot-cli",
    {
        "task": _read_agent_result,
        "read_agent": _read_agent_status,
        **dict.fromkeys(_SHELL_TOOLS, _read_shell_result),
        "stop_bash": _read_stop_result,
        "stop_powershell": _read_stop_result,
    },
    {"<system_notification>": _read_notice},
)
