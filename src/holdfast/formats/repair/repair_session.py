"""Repair of session files of other tools.

Two passes over the lines: ``survey_session_file`` finds the damage, ``rewrite_lines`` yields the repaired file.
Lines without damage are copied byte for byte, and a file without damage is not touched. Two passes, because a line
can depend on a later one, and files are too large to be held.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.formats.recognize import raise_if_utf16_or_utf32, recognize_line, recognize_reader
from holdfast.formats.repair.damaged_lines import JsonObject, inspect_lines
from holdfast.formats.repair.findings import DroppedBytes, RepairedFile, RepairSurvey
from holdfast.formats.repair.rewrite import rewrite_lines
from holdfast.formats.repair.survey import survey_session_file
from holdfast.formats.repair.tools import REPAIR_TOOLS, RepairTool

_TRAJECTORY_ADVICE = (
    "this is a trajectory, no file that its agent goes on with: import it as it is, and export it in the format of a "
    "tool that shall go on"
)
_UNREPAIRABLE_ADVICE = {
    "atif": _TRAJECTORY_ADVICE,
    "copilot-cli": "a session of Copilot CLI is read but not repaired: import it as it is, damaged lines become notes",
    "goose": "a session of goose is read but not repaired: import it as it is, damaged lines become notes",
    "body": "this is a request, no session file: `holdfast fix` repairs requests",
    "mini-swe-agent": _TRAJECTORY_ADVICE,
    "opencode": "this is what opencode exported, no file that it goes on with: export it again, or import it as it is",
    "swe-agent": _TRAJECTORY_ADVICE,
}
"""Advice for files that are understood but are not session files."""


def repair_session_file(data: bytes, format_: str = "") -> RepairedFile:
    """Return a session file after its repair; raises ``FormatError`` if it is not one that can be repaired.

    ``format_`` is the tool, one of ``REPAIR_TOOLS``, for files with lines that may all be too damaged to tell.
    """
    tool = REPAIR_TOOLS[format_] if format_ else recognize_repair_tool(BytesIO(data))
    if tool is None:
        return RepairedFile(data, make_clean_survey(data))
    survey = survey_session_file(BytesIO(data), tool)
    if survey.is_fine or survey.reason:
        return RepairedFile(data, survey)
    kept_lines: list[bytes] = []
    dropped_lines: list[DroppedBytes] = []
    for piece in rewrite_lines(BytesIO(data), tool, survey):
        if isinstance(piece, DroppedBytes):
            dropped_lines.append(piece)
        else:
            kept_lines.append(piece)
    return RepairedFile(b"".join(kept_lines), survey, tuple(dropped_lines))


def recognize_repair_tool(raws: Iterable[bytes]) -> RepairTool | None:
    """Return the tool that these lines are a session of, or None if no line tells.

    Raises ``FormatError`` for UTF-16 and UTF-32 text, and ``UnrecognizedContent`` for anything but a session file.
    """
    for line in inspect_lines(raws, _is_line_of_any_tool):
        if line.number == 1:
            raise_if_utf16_or_utf32(line.raw[:4])
        for piece in line.pieces:
            kind = recognize_line(piece.raw)
            if kind is not None:
                return _get_repair_tool(kind)
    return None


def make_clean_survey(data: bytes) -> RepairSurvey:
    """Return an empty survey for a file that is one JSON value over all its lines, as a tool writes it.

    Raises ``FormatError`` if it is not one.
    """
    if not data.strip():
        raise FormatError(f"the file is empty ({len(data):,} bytes), so there is nothing to repair")
    kind = recognize_reader(data)
    _get_repair_tool(kind)
    return RepairSurvey(kind)


def _get_repair_tool(kind: str) -> RepairTool:
    """Return the tool with this name; ``UnrecognizedContent`` has advice for other kinds of files."""
    if kind not in REPAIR_TOOLS:
        raise UnrecognizedContent(_UNREPAIRABLE_ADVICE[kind])
    return REPAIR_TOOLS[kind]


def _is_line_of_any_tool(value: JsonObject) -> bool:
    return any(tool.is_line(value) for tool in REPAIR_TOOLS.values())
