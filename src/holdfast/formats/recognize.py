"""Which tool wrote these bytes? Decided by what they say, never by a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import FormatError, Unrecognised
from holdfast.formats import request_bodies as bodies
from holdfast.formats.base import Recording
from holdfast.formats.claude_code import read as claude_code
from holdfast.formats.codex import read as codex
from holdfast.formats.common.json_arrays import as_lines, is_list
from holdfast.formats.common.lines import BOM, LineFile, Shape, fields, rows, whole
from holdfast.formats.common.lines import split as split_lines
from holdfast.formats.gemini_cli import read as gemini_cli
from holdfast.formats.opencode import read as opencode
from holdfast.formats.pi import read as pi
from holdfast.providers.recognize import wide

UNDERSTOOD = (
    "sessions of Claude Code, Codex, Gemini CLI and pi (JSON lines), opencode's database and what it exports, and "
    "request bodies of the Messages API, Chat Completions, Responses and Gemini"
)
DATABASE = b"SQLite format 3\x00"
"""How a file begins that is an SQLite database."""
LOOKED_AT = 1_024
"""Bytes at the start of a file that tell text from binary; a NUL byte is in no text."""
_LATER = "is not supported yet"


class _Probe(Struct):
    """The values that tell formats apart."""

    type: str = ""
    subtype: str = ""


_PROBE = Shape(_Probe)

READERS: Mapping[str, Callable[[bytes], Recording]] = {
    "claude-code": claude_code.read,
    "codex": codex.read,
    "gemini-cli": gemini_cli.read,
    "opencode": opencode.read,
    "pi": pi.read,
    "body": bodies.read,
}


class LineReader(Protocol):
    """A reader of a format that is one JSON object a line."""

    def __call__(self, data: bytes | LineFile) -> Recording:
        """Return the recording in ``data``; of an open file its entries are lazy."""


LINE_READERS: Mapping[str, LineReader] = {
    "claude-code": claude_code.read,
    "codex": codex.read,
    "pi": pi.read,
}
"""The readers that can read an open file line by line."""


def read_lazily(lines: LineFile) -> Recording | None:
    """Return the recording in an open file, its words left there until they are asked for.

    Nothing where the file has to be held as a whole to be read, or tells only so what is wrong with it.
    """
    if b"\x00" in lines.read_at(0, LOOKED_AT):
        return None
    for place, (_, line) in enumerate(split_lines(lines)):
        if not place and line.lstrip().startswith(b"["):
            return None
        kind = _kind(line, fields(line))
        if kind is not None:
            return LINE_READERS[kind](lines) if kind in LINE_READERS else None
    return None


def read(data: bytes, name: str = "") -> Recording:
    """Return the recording in ``data``, recognised by its content.

    ``name`` is only for messages. Raises ``FormatError`` when the bytes are empty, binary or broken throughout, and
    ``Unrecognised`` when they are no session that Holdfast understands. Damaged lines do not raise: see ``problems``.
    """
    try:
        _refuse_binary(data)
        told = as_lines(data, _is_line)
        return READERS[reader_of(told)](told)
    except FormatError as error:
        raise type(error)(f"{name}: {error}" if name else str(error)) from None


def _refuse_binary(data: bytes) -> None:
    start = data[:LOOKED_AT]
    if not data.removeprefix(BOM).strip():
        raise FormatError(f"the file is empty ({len(data):,} bytes); give a recorded session: {UNDERSTOOD}")
    if start.startswith(DATABASE):
        raise Unrecognised(
            "this is an SQLite database, as opencode keeps its sessions in; it is read where it lies: give its name to "
            f"holdfast import or holdfast replay. {_known()}"
        )
    refuse_wide(start)
    if b"\x00" in start:
        raise FormatError(f"this is a binary file (a NUL byte at {start.index(0)}), no session. {_known()}")


def refuse_wide(start: bytes) -> None:
    """Raise ``FormatError`` for text in two or four bytes a character, as PowerShell writes it; no tool reads it."""
    if coded := wide(start):
        raise FormatError(
            f"the file is {coded}, and sessions are UTF-8; write it anew, with `iconv -f {coded} -t UTF-8` or "
            "`Get-Content -Raw … | Set-Content -Encoding utf8 …`"
        )


def _known() -> str:
    return f"Understood are {UNDERSTOOD}"


def reader_of(data: bytes) -> str:
    """Return the name of the reader for ``data``, one of ``READERS``; else raise ``Unrecognised``."""
    if is_list(data):
        return "body"
    seen: dict[str, Raw] = {}
    broken = 0
    for _, line in split_lines(data):
        found = fields(line)
        kind = _kind(line, found)
        if kind is not None:
            return kind
        seen, broken = seen or found, broken + (not found)
    return _whole(data, seen, broken)


def _is_line(raw: Raw) -> bool:
    """Return whether an element of an array is a line of a session, or a request: neither has a role of its own."""
    line = bytes(raw)
    found = fields(line)
    type_ = _PROBE.of(line).type
    return "role" not in found and (type_ not in _ITEM_TYPES) and _kind(line, found) is not None


def told_by(line: bytes) -> str | None:
    """Return the name of the reader for a file with this line, if it tells; raises for formats known by name only."""
    return _kind(line, fields(line))


def _whole(data: bytes, seen: dict[str, Raw], broken: int) -> str:
    """Return the reader for a file that is one JSON value over several lines; else raise."""
    row = whole(data.removeprefix(BOM).strip(), _PROBE)
    found = fields(row.clean) if row.value is not None else {}
    kind = _kind(row.clean, found) if found else _mended_kind(data)
    if kind is not None:
        return kind
    keys = sorted(found or seen)
    if not keys:
        _refuse_other_encodings(data[:LOOKED_AT])
        raise Unrecognised(f"{_what_else(data.removeprefix(BOM).strip(), broken)}. {_known()}")
    shown = ", ".join(keys[:8]) + (", …" if len(keys) > 8 else "")
    raise Unrecognised(f"this JSON, with the keys {shown}, is no session that is known. {_known()}")


def _what_else(data: bytes, broken: int) -> str:
    """Return what a file is of which no line is a JSON object with fields, nor all of it."""
    if broken == 1 and data[:1] in (b"{", b"["):
        try:
            msgspec.json.decode(data)
        except RecursionError:
            return "the JSON in it is nested too deeply to be read"
        except msgspec.DecodeError as error:
            return f"the JSON in it cannot be read ({error})"
    those = "its one line is" if broken == 1 else f"all its {broken:,} lines are"
    return f"no line of the file is a JSON object with fields: {those} something else"


def _refuse_other_encodings(start: bytes) -> None:
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4:  # else a character is cut in two
            raise FormatError(f"this is no UTF-8 text (byte {error.start} is none). {_known()}") from None


def _mended_kind(data: bytes) -> str | None:
    """Return the reader for a file whose only good lines are ones that had to be mended."""
    for row in rows(data, _PROBE):
        if row.value is not None and (kind := _kind(row.clean, fields(row.clean))) is not None:
            return kind
    return None


def _kind(line: bytes, found: dict[str, Raw]) -> str | None:
    """Return the reader for a file with this line, if it tells; raises for formats known by name only."""
    _refuse_known(found)
    type_ = _PROBE.of(line).type
    for kind, tells in _TELLS:
        if found and tells(found, type_):
            return kind
    return None


_CLAUDE_TYPES = frozenset(
    {"user", "assistant", "system", "progress", "attachment", "summary", "queue-operation", "file-history-snapshot"}
    | {"last-prompt", "mode", "custom-title", "ai-title", "content-replacement", "worktree-state", "pr-link"}
)
_CLAUDE_KEYS = frozenset({"sessionId", "uuid", "parentUuid", "leafUuid", "messageId"})
_PI_TYPES = frozenset(
    {"message", "compaction", "branch_summary", "custom", "custom_message", "label", "session_info"}
    | {"model_change", "thinking_level_change", "context_edit", "usage"}
)
_CODEX_TYPES = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted", "token_usage_record", "world_state"}
)
_ITEM_TYPES = frozenset(
    {"reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
    | {"local_shell_call", "local_shell_call_output", "web_search_call"}
)


def _is_codex(found: dict[str, Raw], type_: str) -> bool:
    if "payload" in found and type_ in _CODEX_TYPES:
        return True
    bare_header = not type_ and {"id", "timestamp", "instructions"} <= found.keys()
    bare_item = type_ in _ITEM_TYPES or (type_ == "message" and "role" in found and "content" in found)
    return bare_header or bare_item


def _is_body(found: dict[str, Raw], _type: str) -> bool:
    bare = "messages" in found or "contents" in found or ("input" in found and "type" not in found)
    return bare or "request" in found or ("body" in found and "method" in found)


def _is_claude(found: dict[str, Raw], type_: str) -> bool:
    linked = "parentUuid" in found and "uuid" in found
    return linked or (type_ in _CLAUDE_TYPES and bool(found.keys() & _CLAUDE_KEYS))


def _is_gemini_cli(found: dict[str, Raw], type_: str) -> bool:
    marks = {"sessionId", "projectHash"} <= found.keys() or "$set" in found
    return marks or (type_ == "gemini" and {"id", "timestamp", "content"} <= found.keys())


def _is_opencode(found: dict[str, Raw], _type: str) -> bool:
    return {"info", "messages"} <= found.keys() and bytes(found["info"]).startswith(b"{")


def _is_pi(found: dict[str, Raw], type_: str) -> bool:
    return "id" in found if type_ == "session" else type_ in _PI_TYPES and "timestamp" in found


_TELLS: tuple[tuple[str, Callable[[dict[str, Raw], str], bool]], ...] = (
    ("codex", _is_codex),
    ("claude-code", _is_claude),
    ("gemini-cli", _is_gemini_cli),
    ("opencode", _is_opencode),
    ("body", _is_body),
    ("pi", _is_pi),
)


def _refuse_known(found: dict[str, Raw]) -> None:
    """Raise for what is a session, but of a tool that has no reader here yet."""
    keys = found.keys()
    for tool, marks in _OTHERS:
        if marks <= keys:
            raise Unrecognised(f"this is {tool}; it {_LATER}. {_known()}")


_OTHERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("a trajectory of SWE-agent", frozenset({"trajectory", "history"})),
    ("a trajectory of mini-swe-agent", frozenset({"trajectory_format"})),
    ("a trajectory in ATIF", frozenset({"schema_version", "steps"})),
)
