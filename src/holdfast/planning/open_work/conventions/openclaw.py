"""OpenClaw: spawned sessions, commands that go on, and approvals of commands (openclaw#116015, #79284)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.planning.open_work.work_events import (
    Convention,
    NamedWorkEnded,
    ToolExchange,
    WorkContinues,
    WorkEnded,
    WorkEvent,
    WorkStarted,
)

_RUNNING = re.compile(r"^Command still running \(session ([^\s,)]+)", re.MULTILINE)
_APPROVAL = re.compile(r"^Approval required \(id ([^\s,)]+)(?:, full ([^\s,)]+))?\)", re.MULTILINE)
_STILL_RUNNING = re.compile(r"^(?:Process|Command) still running", re.MULTILINE)
_EXITED = re.compile(r"^(?:Process|Command) exited with (?:code|signal)", re.MULTILINE)
_NO_SESSION = re.compile(r"^No (?:active |running )?session found", re.MULTILINE)
_ENDING_ACTIONS = frozenset({"kill", "remove"})
_COMPLETED_RUN = re.compile(r"\bExec (?:completed|failed|killed) \(([\w-]+),")
_DECIDED_RUN = re.compile(r"\bExec (?:finished|denied|running) \([^)\n]*\)")
_CHILD_RESULT = "\nResult (untrusted"


def _read_command_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    name = exchange.get_argument("command", "cmd")
    approval = _APPROVAL.search(exchange.start)
    if approval is not None:
        # The short id is the one that the user and the model name; the long one stands in the decision.
        aliases = (approval[2],) if approval[2] else ()
        yield WorkStarted("approval", approval[1], name, aliases=aliases)
        return
    running = _RUNNING.search(exchange.start) or _RUNNING.search(exchange.end)
    if running is not None:
        yield WorkStarted("shell", running[1], name)


def _read_process_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("sessionId", "session_id", "id")
    if not id_:
        return
    if _NO_SESSION.search(exchange.start) or _EXITED.search(exchange.end):
        yield WorkEnded(id_)
    elif exchange.get_argument("action") in _ENDING_ACTIONS:
        if not exchange.result.is_error:
            yield WorkEnded(id_)
    elif _STILL_RUNNING.search(exchange.end) or _RUNNING.search(exchange.start):
        yield WorkContinues(id_)


def _read_spawned_session(exchange: ToolExchange) -> Iterator[WorkEvent]:
    fields = _decode_object(exchange.text)
    key = fields.get("childSessionKey")
    if fields.get("status") != "accepted" or not isinstance(key, str) or not key:
        return
    run_id = fields.get("runId")
    aliases = (run_id,) if isinstance(run_id, str) and run_id else ()
    name = exchange.get_argument("label", "taskName", "task")
    yield WorkStarted("sub-agent", key, name, aliases=aliases)


def _read_agents_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    """Read the answer to ``subagents`` with the action ``kill``; its target is a key, a run or a label."""
    target = exchange.get_argument("target", "sessionKey", "runId")
    if target and exchange.get_argument("action") == "kill" and not exchange.result.is_error:
        yield NamedWorkEnded(f"{target}\n{exchange.start}")


def _decode_object(text: str) -> Mapping[str, Any]:
    """Return the JSON object that ``text`` is; empty if it is none."""
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_completion(text: str) -> Iterator[WorkEvent]:
    for event in text.split(_COMPLETION_MARKER)[1:]:
        # What the child answered may name other runs, so only the fields before it count.
        yield NamedWorkEnded(event.partition(_CHILD_RESULT)[0])


def _read_finished_run(text: str) -> Iterator[WorkEvent]:
    for id_ in _COMPLETED_RUN.findall(text):
        yield WorkEnded(id_, is_prefix=True)
    for event in _DECIDED_RUN.findall(text):
        yield NamedWorkEnded(event)


_COMPLETION_MARKER = "[Internal task completion event]"

OPENCLAW = Convention(
    "openclaw",
    {
        "exec": _read_command_result,
        "bash": _read_command_result,
        "process": _read_process_result,
        "sessions_spawn": _read_spawned_session,
        "subagents": _read_agents_result,
    },
    {_COMPLETION_MARKER: _read_completion, "Exec ": _read_finished_run},
)
