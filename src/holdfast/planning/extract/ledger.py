"""The ledger: which files were read and edited, which commands ran and how they ended. No model is needed for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.messages.references import decode_call_arguments
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.planning.extract.constants import MAX_COMMAND_CHARS

PATH_KEYS = ("file_path", "path", "filename", "file", "notebook_path", "filePath")
COMMAND_KEYS = ("command", "cmd", "script")
QUERY_KEYS = ("pattern", "query", "url", "regex", "prompt", "description")
_FILE_EDIT_TOOL_NAME = re.compile(r"edit|write|patch|replace|create|insert|apply|move|delete", re.IGNORECASE)
_FAILURE_WORDS = re.compile(
    r"\b\w*(?:error|exception)\b|\b(?:traceback|failed|failure|fatal|panic|errno|not found|denied|exit code [1-9])\b",
    re.IGNORECASE,
)


class ToolAction(Struct, frozen=True):
    """One call and how it ended: ``verb`` is read, edit, run or ask; ``subject`` is a path, a command or a query."""

    verb: str
    tool: str
    subject: str
    call_id: str
    has_failed: bool = False
    error: str = ""

    @property
    def is_file_action(self) -> bool:
        """Whether ``subject`` is a path."""
        return self.verb in {"read", "edit"}


def list_tool_actions(messages: Iterable[Message]) -> Iterator[ToolAction]:
    """Yield what was done, in order."""
    waiting: dict[str, ToolCall] = {}
    for message in messages:
        waiting.update((call.id, call) for call in message.calls)
        for result in message.results:
            matching_call = waiting.pop(result.call_id, None)
            if matching_call is not None:
                yield describe_tool_call(matching_call, result)
    yield from map(describe_tool_call, waiting.values())


def describe_tool_call(call: ToolCall, result: ToolResult | None = None) -> ToolAction:
    """Return what ``call`` did and how ``result`` says it ended, if it has."""
    values = decode_call_arguments(call)
    path = _get_first_text(values, PATH_KEYS)
    command = _get_first_text(values, COMMAND_KEYS)
    text = "" if result is None else get_result_text(result)
    has_failed = result is not None and (
        result.is_error or (not path and _FAILURE_WORDS.search(text[-2000:]) is not None)
    )
    error = find_first_error(text) if has_failed else ""
    if path:
        verb = "edit" if _FILE_EDIT_TOOL_NAME.search(call.name) else "read"
        return ToolAction(verb, call.name, path, call.id, has_failed, error)
    verb, subject = ("run", command) if command else ("ask", _get_first_text(values, QUERY_KEYS))
    return ToolAction(verb, call.name, flatten_to_line(subject, MAX_COMMAND_CHARS), call.id, has_failed, error)


def find_first_error(text: str) -> str:
    """Return the first line that names an error, on one line of at most 160 characters."""
    for line in text.splitlines():
        if _FAILURE_WORDS.search(line):
            return flatten_to_line(line, MAX_COMMAND_CHARS)
    return ""


def _get_first_text(values: Any, keys: tuple[str, ...]) -> str:
    if not isinstance(values, dict):
        return ""
    for key in keys:
        value = values.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return " ".join(value)
    return ""


def format_file_lines(actions: Iterable[ToolAction]) -> list[str]:
    """Return a line for each file, last touched first: ``src/main.py: read x3, edit x2``."""
    counts: dict[str, dict[str, int]] = {}
    for action in actions:
        if action.is_file_action:
            verb_counts = counts.pop(action.subject, {})
            verb_counts[action.verb] = verb_counts.get(action.verb, 0) + 1
            counts[action.subject] = verb_counts
    lines = []
    for path, verbs in reversed(counts.items()):
        verb_list = ", ".join(f"{verb} x{times}" if times > 1 else verb for verb, times in sorted(verbs.items()))
        lines.append(f"{path}: {verb_list}")
    return lines


def format_command_lines(actions: Iterable[ToolAction]) -> list[str]:
    """Return a line for each distinct command, newest first, with its error if it failed the last time."""
    newest: dict[str, ToolAction] = {}
    for action in actions:
        if action.verb == "run":
            newest.pop(action.subject, None)
            newest[action.subject] = action
    return [
        f"$ {action.subject}" + (f" -> FAILED {action.error}" if action.has_failed else "")
        for action in reversed(newest.values())
    ]
