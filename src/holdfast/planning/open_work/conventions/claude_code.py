"""Claude Code: agents and shells in the background, notifications of their end, and the task list.

Seen in recordings of 2.1.7 to 2.1.49; the forms of later versions are from public reports (claude-code#29263, #90036).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.open_work.work_events import (
    Convention,
    TodoChanged,
    TodoItem,
    TodosReplaced,
    ToolExchange,
    WorkContinues,
    WorkEnded,
    WorkEvent,
    WorkStarted,
)

RUNNING_STATUSES = frozenset({"running", "pending", "in_progress", "queued", "started", "idle"})
"""Words for work that has not ended."""

_AGENT_STARTED = re.compile(r"\AAsync agent launched[^\n]*\n\s*agentId: ([\w@.:-]+)")
_AGENT_RESUMED = re.compile(r"\bresumed\b[^\n]*\bin the background\b")
# Output of the command until then may stand before the line, so it counts at the start or as one of the last lines.
_SHELL_STARTED = re.compile(
    r"^Command (?:running in background|was [^\n]{0,60}?|[^\n]{0,80}? moved to background)"
    r" with ID: ([\w-]+)",
    re.MULTILINE,
)
_STATUS = re.compile(r"<status>\s*(\w+)\s*</status>")
_TASK_ID = re.compile(r"<task[-_]id>\s*([^<\s]+)\s*</task[-_]id>")
_GONE = re.compile(
    r"\bNo (?:task|shell|agent)\b[^\n]* found|\bis not running\b|\balready (?:completed|stopped)\b", re.IGNORECASE
)
_NOTIFICATION = re.compile(r"^<task-notification>(.*?)(?:</task-notification>|\Z)", re.DOTALL | re.MULTILINE)
_REMINDED_SHELL = re.compile(
    r"^(?:Background (?:Bash|Agent|Task)|Task) ([\w-]+) \((?:command|description): (.*?)\) \(status: (\w+)\)",
    re.MULTILINE,
)
_TASK_CREATED = re.compile(r"\ATask #(\w+) created")
_LISTED_TASK = re.compile(r"^#(\w+)\.? \[(\w+)\] (.*?)(?: \(.*\))?$", re.MULTILINE)


def _read_agent_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    started = _AGENT_STARTED.search(exchange.start)
    if started is not None:
        name = exchange.get_argument("description", "name", "prompt", "subagent_type")
        yield WorkStarted("sub-agent", started[1], name)


def _read_message_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    agent = exchange.get_argument("to", "agentId", "recipient")
    if agent and not exchange.result.is_error and _AGENT_RESUMED.search(exchange.start):
        yield WorkStarted("sub-agent", agent, exchange.get_argument("summary", "description"))


def _read_shell_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    text = exchange.text
    started = _SHELL_STARTED.match(text)
    if started is None:
        matches = list(_SHELL_STARTED.finditer(exchange.end))
        is_asked_for = bool(matches) and exchange.arguments.get("run_in_background") is True
        is_last_line = bool(matches) and "\n" not in exchange.end[matches[-1].end() :].strip()
        started = matches[-1] if is_asked_for or is_last_line else None
    if started is not None:
        yield WorkStarted("shell", started[1], exchange.get_argument("command", "description"))


def _read_output_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    """Read the answer to a question about the state of a task, whose id stands among the arguments."""
    id_ = exchange.get_argument("task_id", "bash_id", "shell_id", "agentId", "id")
    if not id_:
        return
    status = _STATUS.search(exchange.start)
    if status is not None:
        is_running = status[1].lower() in RUNNING_STATUSES
        yield WorkContinues(id_) if is_running else WorkEnded(id_)
    elif _GONE.search(exchange.start):
        yield WorkEnded(id_)


def _read_stop_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("task_id", "shell_id", "bash_id", "agentId", "id")
    if id_ and (not exchange.result.is_error or _GONE.search(exchange.start)):
        yield WorkEnded(id_)


def _read_created_task(exchange: ToolExchange) -> Iterator[WorkEvent]:
    created = _TASK_CREATED.search(exchange.start)
    if created is not None:
        yield TodoChanged(TodoItem(exchange.get_argument("subject", "description"), "pending", created[1]))


def _read_updated_task(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("taskId", "task_id", "id")
    if id_ and not exchange.result.is_error:
        item = TodoItem(exchange.get_argument("subject"), exchange.get_argument("status"), id_)
        yield TodoChanged(item)


def _read_listed_tasks(exchange: ToolExchange) -> Iterator[WorkEvent]:
    items = [TodoItem(text, status, id_) for id_, status, text in _LISTED_TASK.findall(exchange.text)]
    if items or exchange.start.startswith("No tasks"):
        yield TodosReplaced(tuple(items))


def _read_notification(text: str) -> Iterator[WorkEvent]:
    for notification in _NOTIFICATION.findall(text):
        # The result of an agent may quote anything, so only what stands before it is read.
        header = notification.partition("<result>")[0]
        id_ = _TASK_ID.search(header)
        status = _STATUS.search(header)
        if id_ is None or status is None:
            continue
        is_running = status[1].lower() in RUNNING_STATUSES
        yield WorkContinues(id_[1]) if is_running else WorkEnded(id_[1])


def _read_reminder(text: str) -> Iterator[WorkEvent]:
    for id_, name, status in _REMINDED_SHELL.findall(split_client_notes(text).notes):
        if status.lower() in RUNNING_STATUSES:
            yield WorkStarted("shell", id_, name)
        else:
            yield WorkEnded(id_)


CLAUDE_CODE = Convention(
    "claude-code",
    {
        "task": _read_agent_result,
        "agent": _read_agent_result,
        "sendmessage": _read_message_result,
        "bash": _read_shell_result,
        "powershell": _read_shell_result,
        "bashoutput": _read_output_result,
        "taskoutput": _read_output_result,
        "agentoutputtool": _read_output_result,
        "killshell": _read_stop_result,
        "killbash": _read_stop_result,
        "taskstop": _read_stop_result,
        "taskcreate": _read_created_task,
        "taskupdate": _read_updated_task,
        "tasklist": _read_listed_tasks,
    },
    {"<task-notification>": _read_notification, ") (status: ": _read_reminder},
)
