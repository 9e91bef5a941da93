"""goose: delegates in the background, and its to-do text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.planning.open_work.work_events import (
    Convention,
    TodoItem,
    TodosReplaced,
    ToolExchange,
    WorkContinues,
    WorkEnded,
    WorkEvent,
    WorkStarted,
)

_DELEGATE_STARTED = re.compile(r"^Task (\S+) started in background", re.MULTILINE)
_STILL_RUNNING = re.compile(r"\bstill running\b|\bin progress\b", re.IGNORECASE)
_CHECKBOX = re.compile(r"^\s*[-*] \[([ xX])\] (.+)$", re.MULTILINE)


def _read_delegate(exchange: ToolExchange) -> Iterator[WorkEvent]:
    started = _DELEGATE_STARTED.search(exchange.start)
    if started is not None:
        yield WorkStarted("sub-agent", started[1], exchange.get_argument("instructions", "task", "source"))


def _read_loaded_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("source")
    if id_ and not exchange.result.is_error:
        is_running = _STILL_RUNNING.search(exchange.start) is not None
        yield WorkContinues(id_) if is_running else WorkEnded(id_)


def _read_todo_text(exchange: ToolExchange) -> Iterator[WorkEvent]:
    content = exchange.arguments.get("content")
    if exchange.result.is_error or not isinstance(content, str):
        return
    items = [TodoItem(text, "open" if mark == " " else "done") for mark, text in _CHECKBOX.findall(content)]
    if items or not content.strip():
        yield TodosReplaced(tuple(items))


GOOSE = Convention(
    "goose",
    {"delegate": _read_delegate, "load": _read_loaded_result, "todo_write": _read_todo_text},
)
