"""Results that are a JSON object with a status and an id, as many extensions give them (pi, plugins, MCP servers).

No client promises this form, so it is a guess, and only of tools whose name says that they start something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from holdfast.planning.open_work.conventions.claude_code import RUNNING_STATUSES
from holdfast.planning.open_work.work_events import ToolExchange, WorkEnded, WorkEvent, WorkStarted

STARTING_TOOL = re.compile(r"agent|spawn|delegate|background|subtask|job", re.IGNORECASE)
"""Names of tools that may start something. Shells are not among them: what they print is the text of any program."""
_ID_KEYS = ("sessionId", "session_id", "runId", "run_id", "taskId", "task_id", "agentId", "agent_id", "jobId", "job_id")
_MAX_CHARS = 4_000
"""Characters of a result up to which it is tried as such an object; one that only says what started is short."""


def read_status_object(exchange: ToolExchange) -> Iterator[WorkEvent]:
    """Yield the start or the end of the work that a result of this form tells of."""
    text = exchange.text
    if len(text) > _MAX_CHARS or not text.startswith("{") or '"status"' not in text:
        return
    try:
        fields = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return
    status = fields.get("status")
    id_ = next((fields[key] for key in _ID_KEYS if isinstance(fields.get(key), str) and fields[key]), "")
    if not id_ or not isinstance(status, str):
        return
    if status.lower() in RUNNING_STATUSES:
        name = exchange.get_argument("description", "label", "task", "prompt", "command", "name")
        yield WorkStarted("sub-agent", id_, name)
    else:
        yield WorkEnded(id_)
