"""Session files of other tools, mended so that the tool can go on with them.

Two walks over the lines: ``survey_session_file`` tells what is wrong, ``rewrite_lines`` yields the file as it should
be. Lines with nothing wrong leave as they came; a file with nothing wrong is not touched.
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

_UNREPAIRABLE_ADVICE = {
    "body": "this is a request, no session file: `holdfast fix` repairs requests",
    "opencode": "this is what opencode exported, no file that it goes on with: export it again, or import it as it is",
}
"""What to do with a file that is understood and is no tool's session file."""


def repair_session_file(data: bytes, format_: str = "") -> RepairedFile:
    """Return a session file after its repair; ``FormatError`` where it is none that can be repaired.

    ``format_`` is its tool, one of ``REPAIR_TOOLS``, where no line of it may tell.
    """
    tool = REPAIR_TOOLS[format_] if format_ else recognize_repair_tool(BytesIO(data))
    if tool is None:
        return RepairedFile(data, make_clean_survey(data))
    findings = survey_session_file(BytesIO(data), tool)
    if findings.is_fine or findings.reason:
        return RepairedFile(data, findings)
    out = list(rewrite_lines(BytesIO(data), tool, findings))
    dropped_lines = tuple(piece for piece in out if isinstance(piece, DroppedBytes))
    return RepairedFile(b"".join(piece for piece in out if isinstance(piece, bytes)), findings, dropped_lines)


def recognize_repair_tool(raws: Iterable[bytes]) -> RepairTool | None:
    """Return the tool whose session lies on these lines; nothing where no line tells.

    Raises ``FormatError`` for text in another encoding than the tools'.
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
    """Return that a file is fine which is one JSON value over all its lines; ``FormatError`` if it is none."""
    if not data.strip():
        raise FormatError(f"the file is empty ({len(data):,} bytes), so there is nothing to repair")
    kind = recognize_reader(data)
    _get_repair_tool(kind)
    return RepairSurvey(kind)


def _get_repair_tool(kind: str) -> RepairTool:
    """Return the tool called ``kind``; ``UnrecognizedContent`` says what else it is."""
    if kind not in REPAIR_TOOLS:
        raise UnrecognizedContent(_UNREPAIRABLE_ADVICE[kind])
    return REPAIR_TOOLS[kind]


def _is_line_of_any_tool(value: JsonObject) -> bool:
    return any(tool.is_line(value) for tool in REPAIR_TOOLS.values())
