"""Session files of other tools, mended so that the tool can go on with them.

Two walks over the lines: ``survey`` tells what is wrong, ``mended`` yields the file as it should be. Lines with nothing
wrong leave as they came; a file with nothing wrong is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO

from holdfast.errors import FormatError, Unrecognised
from holdfast.formats.recognize import reader_of, refuse_wide, told_by
from holdfast.formats.repair.pieces import Object, lines_of
from holdfast.formats.repair.rewrite import mended
from holdfast.formats.repair.survey import HEADER, survey
from holdfast.formats.repair.tools import TOOLS, Tool
from holdfast.formats.repair.values import Dropped, Finding, Repaired, Survey

__all__ = [
    "HEADER",
    "TOOLS",
    "Dropped",
    "Finding",
    "Repaired",
    "Survey",
    "mended",
    "repair",
    "survey",
    "tool_of",
    "whole",
]

_OTHERS = {
    "body": "this is a request, no session file: `holdfast fix` repairs requests",
    "opencode": "this is what opencode exported, no file that it goes on with: export it again, or import it as it is",
}
"""What to do with a file that is understood and is no tool's session file."""


def repair(data: bytes, format_: str = "") -> Repaired:
    """Return a session file after its repair; ``FormatError`` where it is none that can be repaired.

    ``format_`` is its tool, one of ``TOOLS``, where no line of it may tell.
    """
    tool = TOOLS[format_] if format_ else tool_of(BytesIO(data))
    if tool is None:
        return Repaired(data, whole(data))
    found = survey(BytesIO(data), tool)
    if found.is_fine or found.reason:
        return Repaired(data, found)
    out = list(mended(BytesIO(data), tool, found))
    dropped = tuple(one for one in out if isinstance(one, Dropped))
    return Repaired(b"".join(one for one in out if isinstance(one, bytes)), found, dropped)


def tool_of(raws: Iterable[bytes]) -> Tool | None:
    """Return the tool whose session lies on these lines; nothing where no line tells.

    Raises ``FormatError`` for text in another encoding than the tools'.
    """
    for line in lines_of(raws, _fits_any):
        if line.number == 1:
            refuse_wide(line.raw[:4])
        for piece in line.pieces:
            kind = told_by(piece.raw)
            if kind is not None:
                return _tool(kind)
    return None


def whole(data: bytes) -> Survey:
    """Return that a file is fine which is one JSON value over all its lines; ``FormatError`` if it is none."""
    if not data.strip():
        raise FormatError(f"the file is empty ({len(data):,} bytes), so there is nothing to repair")
    kind = reader_of(data)
    _tool(kind)
    return Survey(kind)


def _tool(kind: str) -> Tool:
    """Return the tool called ``kind``; ``Unrecognised`` says what else it is."""
    if kind not in TOOLS:
        raise Unrecognised(_OTHERS[kind])
    return TOOLS[kind]


def _fits_any(said: Object) -> bool:
    return any(tool.fits(said) for tool in TOOLS.values())
