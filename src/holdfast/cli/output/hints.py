"""What to do instead with a file of many lines that was given to a command for one request, or for one error."""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.providers.common.json.body_fields import detect_wide_encoding

_TOOL_TITLES = {"claude-code": "Claude Code", "codex": "Codex", "gemini-cli": "Gemini CLI", "pi": "pi"}
"""Readers of files with an object on each line, by the names of their tools."""


def recognize_session_tool(data: bytes) -> str:
    """Return the tool that a file of many lines is a session of; nothing where it is none."""
    from holdfast.formats.recognize import recognize_reader

    if has_many_lines(data):
        with suppress(HoldfastError, RecursionError):
            return _TOOL_TITLES.get(recognize_reader(data), "")
    return ""


def suggest_right_command(data: bytes) -> str:
    """Return what to do with ``data``, which is no request; nothing where it is not of many lines."""
    tool = recognize_session_tool(data)
    if tool:
        repair_help = "mends it, holdfast import takes it into the store"
        return (
            f"it is a session of {tool}: holdfast "
            f"{'import tells how' if detect_wide_encoding(data) else f'repair {repair_help}'}"
        )
    return "for a request on every line, give --jsonl" if has_many_lines(data) else ""


def has_many_lines(data: bytes) -> bool:
    """Return whether there is more than one line."""
    return b"\n" in data.strip()
