"""The ledger: which files were read and edited, which commands ran and how they ended. No model is needed for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.messages.references import arguments
from holdfast.messages.text.cutting import one_line
from holdfast.planning.settings import COMMAND_CHARS

PATH_KEYS = ("file_path", "path", "filename", "file", "notebook_path", "filePath")
COMMAND_KEYS = ("command", "cmd", "script")
QUERY_KEYS = ("pattern", "query", "url", "regex", "prompt", "description")
_EDITS = re.compile(r"edit|write|patch|replace|create|insert|apply|move|delete", re.IGNORECASE)
_FAILED = re.compile(
    r"\b\w*(?:error|exception)\b|\b(?:traceback|failed|failure|fatal|panic|errno|not found|denied|exit code [1-9])\b",
    re.IGNORECASE,
)


class Deed(Struct, frozen=True):
    """One call and how it ended: ``verb`` is read, edit, run or ask; ``what`` is a path, a command or a query."""

    verb: str
    tool: str
    what: str
    call_id: str
    failed: bool = False
    error: str = ""

    @property
    def is_of_file(self) -> bool:
        """Whether ``what`` is a path."""
        return self.verb in {"read", "edit"}


def deeds(messages: Iterable[Message]) -> Iterator[Deed]:
    """Yield what was done, in order."""
    waiting: dict[str, ToolCall] = {}
    for message in messages:
        waiting.update((call.id, call) for call in message.calls)
        for result in message.results:
            found = waiting.pop(result.call_id, None)
            if found is not None:
                yield deed(found, result)
    yield from map(deed, waiting.values())


def deed(call: ToolCall, result: ToolResult | None = None) -> Deed:
    """Return what ``call`` did and how ``result`` says it ended, if it has."""
    values = arguments(call)
    path = _first(values, PATH_KEYS)
    command = _first(values, COMMAND_KEYS)
    text = "" if result is None else result_text(result)
    failed = result is not None and (result.is_error or (not path and _FAILED.search(text[-2000:]) is not None))
    error = first_error(text) if failed else ""
    if path:
        verb = "edit" if _EDITS.search(call.name) else "read"
        return Deed(verb, call.name, path, call.id, failed, error)
    verb, what = ("run", command) if command else ("ask", _first(values, QUERY_KEYS))
    return Deed(verb, call.name, one_line(what, COMMAND_CHARS), call.id, failed, error)


def first_error(text: str) -> str:
    """Return the first line that names an error, on one line of at most 160 characters."""
    for line in text.splitlines():
        if _FAILED.search(line):
            return one_line(line, COMMAND_CHARS)
    return ""


def _first(values: Any, keys: tuple[str, ...]) -> str:
    if not isinstance(values, dict):
        return ""
    for key in keys:
        value = values.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return " ".join(value)
    return ""


def file_lines(done: Iterable[Deed]) -> list[str]:
    """Return a line for each file, last touched first: ``src/main.py: read x3, edit x2``."""
    counts: dict[str, dict[str, int]] = {}
    for one in done:
        if one.is_of_file:
            held = counts.pop(one.what, {})
            held[one.verb] = held.get(one.verb, 0) + 1
            counts[one.what] = held
    lines = []
    for path, verbs in reversed(counts.items()):
        told = ", ".join(f"{verb} x{times}" if times > 1 else verb for verb, times in sorted(verbs.items()))
        lines.append(f"{path}: {told}")
    return lines


def command_lines(done: Iterable[Deed]) -> list[str]:
    """Return a line for each distinct command, newest first, with its error if it failed the last time."""
    newest: dict[str, Deed] = {}
    for one in done:
        if one.verb == "run":
            newest.pop(one.what, None)
            newest[one.what] = one
    return [f"$ {one.what}" + (f" -> FAILED {one.error}" if one.failed else "") for one in reversed(newest.values())]
