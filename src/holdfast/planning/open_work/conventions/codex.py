"""Codex: commands that outlive their call (unified exec), and sub-agents.

Commands are from recordings of 0.140 to 0.142. Sub-agents are from the client's source and codex#26728: a finished
agent still holds its slot until it is closed, so it stays listed with that state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.planning.open_work.work_events import (
    Convention,
    ToolExchange,
    WorkContinues,
    WorkEnded,
    WorkEvent,
    WorkStarted,
)

FINISHED_STATE = "finished, not closed"
_RUNNING = re.compile(r"^Process running with session ID (\d+)", re.MULTILINE)
_EXITED = re.compile(r"^Process exited with code ", re.MULTILINE)
_UNKNOWN_PROCESS = re.compile(r"unknown (?:process|session)", re.IGNORECASE)
_NOTIFICATION = re.compile(r"<subagent_notification>\s*(\{.*?\})\s*</subagent_notification>", re.DOTALL | re.IGNORECASE)
_LISTED_AGENTS = re.compile(r"<subagents>(.*?)</subagents>", re.DOTALL)
_LISTED_AGENT = re.compile(r"^\s*- ([^\s:]+)(?:: *(.*))?$", re.MULTILINE)
_FINAL_SENDER = re.compile(r"^Sender: *(\S+)", re.MULTILINE)
_HEADER_LINES = 6
"""Lines before the output of a command; the output itself may quote the same words."""


def _get_header(exchange: ToolExchange) -> str:
    header, _, _ = exchange.start.partition("\nOutput:")
    return "\n".join(header.split("\n")[:_HEADER_LINES])


def _read_command_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    running = _RUNNING.search(_get_header(exchange))
    if running is not None:
        yield WorkStarted("shell", running[1], exchange.get_argument("cmd", "command"))


def _read_input_result(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("session_id")
    header = _get_header(exchange)
    if not id_:
        return
    if _RUNNING.search(header):
        yield WorkContinues(id_)
    elif _EXITED.search(header) or _UNKNOWN_PROCESS.search(header):
        yield WorkEnded(id_)


def _decode_object(text: str) -> Mapping[str, Any]:
    """Return the JSON object that ``text`` is; empty if it is none."""
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_spawned_agent(exchange: ToolExchange) -> Iterator[WorkEvent]:
    if exchange.result.is_error:
        return
    fields = _decode_object(exchange.text)
    id_ = fields.get("agent_id") or fields.get("task_name")
    if isinstance(id_, str) and id_:
        nickname = fields.get("nickname")
        about = exchange.get_argument("task_name", "agent_type", "message")
        name = f"{nickname}, {about}" if isinstance(nickname, str) and nickname else about
        yield WorkStarted("sub-agent", id_, name)


def _read_closed_agent(exchange: ToolExchange) -> Iterator[WorkEvent]:
    id_ = exchange.get_argument("target", "id", "agent_id")
    if id_ and not exchange.result.is_error:
        yield WorkEnded(id_)


def _read_resumed_agent(exchange: ToolExchange) -> Iterator[WorkEvent]:
    """Read that an agent got more to do: a finished one runs again."""
    id_ = exchange.get_argument("target", "id", "agent_id")
    if id_ and not exchange.result.is_error:
        yield WorkContinues(id_)


def _read_waited_agents(exchange: ToolExchange) -> Iterator[WorkEvent]:
    statuses = _decode_object(exchange.text).get("status")
    if isinstance(statuses, dict):
        for id_, status in statuses.items():
            yield _read_agent_status(str(id_), status)


def _read_listed_agents(exchange: ToolExchange) -> Iterator[WorkEvent]:
    agents = _decode_object(exchange.text).get("agents")
    for agent in agents if isinstance(agents, list) else ():
        if isinstance(agent, dict) and isinstance(agent.get("agent_name"), str):
            yield _read_agent_status(agent["agent_name"], agent.get("agent_status"))


def _read_agent_status(id_: str, status: object) -> WorkEvent:
    """Return what a status says: a word, or an object with one word as its key."""
    word = next(iter(status), "") if isinstance(status, dict) else status
    if word in ("shutdown", "not_found", "interrupted"):
        return WorkEnded(id_)
    if word in ("completed", "errored"):
        return WorkContinues(id_, FINISHED_STATE)
    return WorkContinues(id_)


def _read_notification(text: str) -> Iterator[WorkEvent]:
    for body in _NOTIFICATION.findall(text):
        fields = _decode_object(body)
        id_ = fields.get("agent_id") or fields.get("agent_path")
        if not isinstance(id_, str):
            continue
        event = _read_agent_status(id_, fields.get("status"))
        # An agent with a path has no call that closes it: it is over when it has answered.
        is_over = "agent_path" in fields and isinstance(event, WorkContinues) and event.state == FINISHED_STATE
        yield WorkEnded(id_) if is_over else event


def _read_environment(text: str) -> Iterator[WorkEvent]:
    for block in _LISTED_AGENTS.findall(text):
        for id_, name in _LISTED_AGENT.findall(block):
            yield WorkStarted("sub-agent", id_, name)


def _read_final_answer(text: str) -> Iterator[WorkEvent]:
    header = text.partition("\n\n")[0]
    sender = _FINAL_SENDER.search(header)
    if sender is not None:
        yield WorkEnded(sender[1])


CODEX = Convention(
    "codex",
    {
        "exec_command": _read_command_result,
        "write_stdin": _read_input_result,
        "spawn_agent": _read_spawned_agent,
        "close_agent": _read_closed_agent,
        "interrupt_agent": _read_closed_agent,
        "send_input": _read_resumed_agent,
        "resume_agent": _read_resumed_agent,
        "followup_task": _read_resumed_agent,
        "wait": _read_waited_agents,
        "wait_agent": _read_waited_agents,
        "list_agents": _read_listed_agents,
    },
    {
        "<subagent_notification>": _read_notification,
        "<subagents>": _read_environment,
        "Message Type: FINAL_ANSWER": _read_final_answer,
    },
)
