"""opencode: tasks in the background, and the background tools of two of its plugins.

From the client's source (experimental background sub-agents), and from oh-my-openagent#1302 and #6502.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.planning.open_work.conventions.claude_code import RUNNING_STATUSES
from holdfast.planning.open_work.work_events import (
    Convention,
    ToolExchange,
    WorkContinues,
    WorkEnded,
    WorkEvent,
    WorkStarted,
)

_TASK_TAG = re.compile(r'^<task id="([^"\s]+)" state="(\w+)"', re.MULTILINE)
_TASK_LINES = re.compile(r"^task_id: (\S+)[^\n]*\n(?:[^\n]*\n)?state: (\w+)", re.MULTILINE)
_STATE_LINE = re.compile(r"^state: (\w+)", re.MULTILINE)
_PLUGIN_STARTED = re.compile(r"^Task ID: (bg_\w+)", re.MULTILINE)
_PLUGIN_STATUS = re.compile(r"\bStatus[:|* ]*(\w+)")
_PLUGIN_ENDED = re.compile(r"\bbg_\w+")
_TERMINAL_STARTED = re.compile(r"\A<pty_spawned>\s*ID: (\S+)")
_TERMINAL_ENDED = re.compile(r"<pty_exited>\s*ID: (\S+)")


def _iter_task_states(text: str) -> Iterator[tuple[str, str]]:
    """Yield id and state of each task that ``text`` tells of."""
    yield from _TASK_TAG.findall(text)
    yield from _TASK_LINES.findall(text)


def _read_task_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    for id_, state in _iter_task_states(exchange.start):
        if state.lower() in RUNNING_STATUSES:
            name = exchange.get_argument("description", "prompt", "subagent_type")
            yield WorkStarted("sub-agent", id_, name)
        else:
            yield WorkEnded(id_)


def _read_task_status(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("task_id", "taskId")
    state = _STATE_LINE.search(exchange.start)
    if state is None:
        tag = _TASK_TAG.search(exchange.start)
        word = tag[2] if tag is not None else ""
    else:
        word = state[1]
    if id_ and word:
        is_running = word.lower() in RUNNING_STATUSES
        yield WorkContinues(id_) if is_running else WorkEnded(id_)


def _read_task_note(text: str) -> Iterator[WorkEvent]:
    for id_, state in _iter_task_states(text):
        if state.lower() not in RUNNING_STATUSES:
            yield WorkEnded(id_)


def _read_plugin_start(exchange: ToolExchange) -> Iterator[WorkEvent]:
    started = _PLUGIN_STARTED.search(exchange.start)
    if started is not None:
        yield WorkStarted("sub-agent", started[1], exchange.get_argument("description", "prompt"))


def _read_plugin_output(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("task_id", "taskId")
    if not id_ or exchange.result.is_error:
        return
    status = _PLUGIN_STATUS.search(exchange.start)
    # The result of a task that has ended is given without a status.
    is_running = status is not None and status[1].lower() in RUNNING_STATUSES
    yield WorkContinues(id_) if is_running else WorkEnded(id_)


def _read_plugin_cancel(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("taskId", "task_id")
    if id_ and not exchange.result.is_error:
        yield WorkEnded(id_)


def _read_plugin_note(text: str) -> Iterator[WorkEvent]:
    for id_ in _PLUGIN_ENDED.findall(text):
        yield WorkEnded(id_)


def _read_terminal_start(exchange: ToolExchange) -> Iterator[WorkEvent]:
    started = _TERMINAL_STARTED.search(exchange.start)
    if started is not None:
        yield WorkStarted("shell", started[1], exchange.get_argument("title", "command", "description"))


def _read_terminal_stop(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("id")
    if id_ and not exchange.result.is_error:
        yield WorkEnded(id_)


def _read_terminal_note(text: str) -> Iterator[WorkEvent]:
    for id_ in _TERMINAL_ENDED.findall(text):
        yield WorkEnded(id_)


OPENCODE = Convention(
    "opencode",
    {
        "task": _read_task_result,
        "subagent": _read_task_result,
        "task_status": _read_task_status,
        "background_task": _read_plugin_start,
        "delegate_task": _read_plugin_start,
        "call_omo_agent": _read_plugin_start,
        "background_output": _read_plugin_output,
        "background_cancel": _read_plugin_cancel,
        "pty_spawn": _read_terminal_start,
        "pty_kill": _read_terminal_stop,
    },
    {
        "<task id=": _read_task_note,
        "task_id: ": _read_task_note,
        "[BACKGROUND TASK COMPLETED]": _read_plugin_note,
        "[ALL BACKGROUND TASKS COMPLETE]": _read_plugin_note,
        "<pty_exited>": _read_terminal_note,
    },
)
