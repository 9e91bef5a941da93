"""The ledger of an extract: which files were read and edited, which commands ran and how they ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.messages.references import decode_argument_text
from holdfast.messages.text.memo import cache_by_text
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.planning.extract.constants import MAX_COMMAND_CHARS

# Names that the tools of different agents give to the arguments that a line of the ledger shows; the first that holds a
# text counts.
PATH_KEYS = ("file_path", "path", "filename", "file", "notebook_path", "filePath")
COMMAND_KEYS = ("command", "cmd", "script")
QUERY_KEYS = ("pattern", "query", "url", "regex", "prompt", "description")
# A tool that takes a path reads it, unless its name says that it changes it.
_FILE_EDIT_TOOL_NAME = re.compile(r"edit|write|patch|replace|create|insert|apply|move|delete", re.IGNORECASE)
# Not every API can mark a result as an error, so the text of a result is searched as well.
_FAILURE_WORDS = re.compile(
    r"\b\w*(?:error|exception)\b|\b(?:traceback|failed|failure|fatal|panic|errno|not found|denied|exit code [1-9])\b",
    re.IGNORECASE,
)
_SUBJECT_BYTES = 128
"""Bytes in memory of a subject beside its text. They bound the memo."""


class ToolAction(Struct, frozen=True):
    """One call and how it ended."""

    verb: str
    """``read``, ``edit``, ``run`` or ``ask``."""
    tool: str
    subject: str
    """A path, a command or a query."""
    call_id: str
    has_failed: bool = False
    error: str = ""
    """The first line of the result that names an error, if it failed and there is one."""

    @property
    def is_file_action(self) -> bool:
        """Whether ``subject`` is a path."""
        return self.verb in {"read", "edit"}


def list_tool_actions(messages: Iterable[Message]) -> Iterator[ToolAction]:
    """Yield the answered calls of ``messages`` in the order of their results, then the calls without a result."""
    open_calls: dict[str, ToolCall] = {}
    for message in messages:
        for call in message.calls:
            open_calls[call.id] = call
        for result in message.results:
            call_of_result = open_calls.pop(result.call_id, None)
            if call_of_result is not None:
                yield describe_tool_call(call_of_result, result)
    for call in open_calls.values():
        yield describe_tool_call(call)


def describe_tool_call(call: ToolCall, result: ToolResult | None = None) -> ToolAction:
    """Return the action that ``call`` stands for and, if it has a ``result``, its outcome."""
    verb, subject = find_subject(call.arguments)
    has_failed = False
    error = ""
    if result is not None:
        text = get_result_text(result)
        # The text of a file may be about errors, so only the end of other results is searched: it says how they ended.
        has_failed = result.is_error or (verb != "read" and ends_with_failure(text))
        error = find_first_error(text) if has_failed else ""
    if verb == "read" and _FILE_EDIT_TOOL_NAME.search(call.name):
        verb = "edit"
    return ToolAction(verb, call.name, subject, call.id, has_failed, error)


# The functions below are memoized by the text that they read: each compaction asks for the actions of the whole head
# again, and all but the newest were there the last time.


def _estimate_subject_memory(found_subject: tuple[str, str]) -> int:
    return _SUBJECT_BYTES + len(found_subject[1])


def _estimate_line_memory(line: str) -> int:
    return len(line)


@cache_by_text(_estimate_subject_memory)
def find_subject(arguments: str) -> tuple[str, str]:
    """Return what a call with ``arguments`` is about: ``read`` and a path, ``run`` and a command, or ``ask`` and more.

    Whether a file is only read is for the tool's name to say.
    """
    values = decode_argument_text(arguments)
    path = _get_first_text(values, PATH_KEYS)
    if path:
        return "read", path
    verb = "run"
    subject = _get_first_text(values, COMMAND_KEYS)
    if not subject:
        verb = "ask"
        subject = _get_first_text(values, QUERY_KEYS)
    return verb, flatten_to_line(subject, MAX_COMMAND_CHARS)


@cache_by_text(lambda _: 0)
def ends_with_failure(text: str) -> bool:
    """Return whether the end of a result names an error."""
    return _FAILURE_WORDS.search(text[-2000:]) is not None


@cache_by_text(_estimate_line_memory)
def find_first_error(text: str) -> str:
    """Return the first line that names an error, cut to ``MAX_COMMAND_CHARS``, or an empty string if none does."""
    for line in text.splitlines():
        if _FAILURE_WORDS.search(line):
            return flatten_to_line(line, MAX_COMMAND_CHARS)
    return ""


def _get_first_text(arguments: Any, keys: tuple[str, ...]) -> str:
    """Return the first text in ``arguments`` under one of ``keys``; a list of words (an argv) is joined."""
    if not isinstance(arguments, dict):
        return ""
    for key in keys:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return " ".join(value)
    return ""


def format_file_lines(actions: Iterable[ToolAction]) -> list[str]:
    """Return a line for each file, the last touched first: ``src/main.py: edit x2, read x3``."""
    counts_by_path: dict[str, dict[str, int]] = {}
    for action in actions:
        if action.is_file_action:
            # Removed and put back, so that the dict is in the order of the last touch.
            verb_counts = counts_by_path.pop(action.subject, {})
            verb_counts[action.verb] = verb_counts.get(action.verb, 0) + 1
            counts_by_path[action.subject] = verb_counts
    lines: list[str] = []
    for path, verb_counts in reversed(counts_by_path.items()):
        verbs = []
        for verb, count in sorted(verb_counts.items()):
            verbs.append(f"{verb} x{count}" if count > 1 else verb)
        lines.append(f"{path}: {', '.join(verbs)}")
    return lines


def format_command_lines(actions: Iterable[ToolAction]) -> list[str]:
    """Return a line for each distinct command, newest first, with its error if its last run failed."""
    last_runs: dict[str, ToolAction] = {}
    for action in actions:
        if action.verb == "run":
            last_runs.pop(action.subject, None)
            last_runs[action.subject] = action
    lines: list[str] = []
    for action in reversed(last_runs.values()):
        failure = f" -> FAILED {action.error}" if action.has_failed else ""
        lines.append(f"$ {action.subject}{failure}")
    return lines
