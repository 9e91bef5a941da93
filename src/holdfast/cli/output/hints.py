"""Hints for a file of many lines that was given to a command for a single request or error."""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.providers.common.json.body_fields import detect_wide_encoding

_TOOL_TITLES = {"claude-code": "Claude Code", "codex": "Codex", "gemini-cli": "Gemini CLI", "pi": "pi"}
"""Formats with one object per line, and the names of their tools."""


def recognize_session_tool(data: bytes) -> str:
    """Return the tool that wrote a session file of many lines, or an empty string."""
    from holdfast.formats.recognize import recognize_reader

    if has_many_lines(data):
        with suppress(HoldfastError, RecursionError):
            return _TOOL_TITLES.get(recognize_reader(data), "")
    return ""


_TRAJECTORY_TITLES = {
    "atif": "a trajectory in ATIF",
    "mini-swe-agent": "a trajectory of mini-swe-agent",
    "swe-agent": "a trajectory of SWE-agent",
}
"""Formats that are one JSON object for a whole session, and what such a file is."""


def recognize_trajectory(data: bytes) -> str:
    """Return what kind of trajectory a file is, or an empty string."""
    from holdfast.formats.recognize import recognize_reader

    with suppress(HoldfastError, RecursionError):
        return _TRAJECTORY_TITLES.get(recognize_reader(data), "")
    return ""


def suggest_right_command(data: bytes) -> str:
    """Suggest the command for ``data``, which is not a single request; empty if it has one line only."""
    from holdfast.formats.recognize import SQLITE_MAGIC

    if data.startswith(SQLITE_MAGIC):
        return "this is a database: add its sessions to the store with holdfast import, or measure one with replay"
    if trajectory := recognize_trajectory(data):
        return f"this is {trajectory}: add it to the store with holdfast import, or measure it with holdfast replay"
    tool = recognize_session_tool(data)
    if tool and detect_wide_encoding(data):
        # Repair works on UTF-8 lines; the import error explains how to convert the file.
        return f"this is a session of {tool}: run holdfast import to see how to convert it"
    if tool:
        return (
            f"this is a session of {tool}: repair it with holdfast repair, or add it to the store with holdfast import"
        )
    return "for one request per line, give --jsonl" if has_many_lines(data) else ""


def has_many_lines(data: bytes) -> bool:
    """Return whether there is more than one line."""
    return b"\n" in data.strip()
