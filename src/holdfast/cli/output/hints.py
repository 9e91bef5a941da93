"""What to do instead with a file of many lines that was given to a command for one request, or for one error."""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.providers.recognize import wide

_TOOLS = {"claude-code": "Claude Code", "codex": "Codex", "gemini-cli": "Gemini CLI", "pi": "pi"}
"""Readers of files with an object on each line, by the names of their tools."""


def session_of(data: bytes) -> str:
    """Return the tool that a file of many lines is a session of; nothing where it is none."""
    from holdfast.formats.recognize import reader_of

    if has_lines(data):
        with suppress(HoldfastError, RecursionError):
            return _TOOLS.get(reader_of(data), "")
    return ""


def instead(data: bytes) -> str:
    """Return what to do with ``data``, which is no request; nothing where it is not of many lines."""
    tool = session_of(data)
    if tool:
        done = "mends it, holdfast import takes it into the store"
        return f"it is a session of {tool}: holdfast {'import tells how' if wide(data) else f'repair {done}'}"
    return "for a request on every line, give --jsonl" if has_lines(data) else ""


def has_lines(data: bytes) -> bool:
    """Return whether there is more than one line."""
    return b"\n" in data.strip()
