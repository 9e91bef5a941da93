"""Which tool wrote these bytes? Decided by what they say, never by a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.formats import request_bodies as bodies
from holdfast.formats.base import Recording
from holdfast.formats.claude_code import read as claude_code
from holdfast.formats.codex import read as codex
from holdfast.formats.common.json_arrays import convert_array_to_lines, is_json_array
from holdfast.formats.common.lines import (
    BOM,
    LenientDecoder,
    LineFile,
    decode_document,
    decode_lines,
    decode_raw_fields,
)
from holdfast.formats.common.lines import split_json_lines as split_lines
from holdfast.formats.gemini_cli import read as gemini_cli
from holdfast.formats.opencode import read as opencode
from holdfast.formats.pi import read as pi
from holdfast.providers.common.json.body_fields import detect_wide_encoding

KNOWN_FORMATS_TEXT = (
    "sessions of Claude Code, Codex, Gemini CLI and pi (JSON lines), opencode's database and what it exports, and "
    "request bodies of the Messages API, Chat Completions, Responses and Gemini"
)
SQLITE_MAGIC = b"SQLite format 3\x00"
"""How a file begins that is an SQLite database."""
SNIFFED_BYTES = 1_024
"""Bytes at the start of a file that tell text from binary; a NUL byte is in no text."""
_NOT_SUPPORTED_TEXT = "is not supported yet"


class _TypeProbe(Struct):
    """The values that tell formats apart."""

    type: str = ""
    subtype: str = ""


_TYPE_PROBE = LenientDecoder(_TypeProbe)

RECORDING_READERS: Mapping[str, Callable[[bytes], Recording]] = {
    "claude-code": claude_code.read_claude_code,
    "codex": codex.read_codex,
    "gemini-cli": gemini_cli.read_gemini_cli,
    "opencode": opencode.read_opencode,
    "pi": pi.read_pi,
    "body": bodies.read_request_bodies,
}


class LineReader(Protocol):
    """A reader of a format that is one JSON object a line."""

    def __call__(self, data: bytes | LineFile) -> Recording:
        """Return the recording in ``data``; of an open file its entries are lazy."""


LAZY_LINE_READERS: Mapping[str, LineReader] = {
    "claude-code": claude_code.read_claude_code,
    "codex": codex.read_codex,
    "pi": pi.read_pi,
}
"""The readers that can read an open file line by line."""


def read_recording_lazily(lines: LineFile) -> Recording | None:
    """Return the recording in an open file, its words left there until they are asked for.

    Nothing where the file has to be held as a whole to be read, or tells only so what is wrong with it.
    """
    if b"\x00" in lines.read_at(0, SNIFFED_BYTES):
        return None
    for place, (_, line) in enumerate(split_lines(lines)):
        if not place and line.lstrip().startswith(b"["):
            return None
        kind = _recognize_fields(line, decode_raw_fields(line))
        if kind is not None:
            return LAZY_LINE_READERS[kind](lines) if kind in LAZY_LINE_READERS else None
    return None


def read_recording(data: bytes, name: str = "") -> Recording:
    """Return the recording in ``data``, recognised by its content.

    ``name`` is only for messages. Raises ``FormatError`` when the bytes are empty, binary or broken throughout, and
    ``UnrecognizedContent`` when they are no session that Holdfast understands. Damaged lines do not raise: see
    ``problems``.
    """
    try:
        _raise_if_binary(data)
        line_data = convert_array_to_lines(data, _is_session_line)
        return RECORDING_READERS[recognize_reader(line_data)](line_data)
    except FormatError as error:
        raise type(error)(f"{name}: {error}" if name else str(error)) from None


def _raise_if_binary(data: bytes) -> None:
    start = data[:SNIFFED_BYTES]
    if not data.removeprefix(BOM).strip():
        raise FormatError(f"the file is empty ({len(data):,} bytes); give a recorded session: {KNOWN_FORMATS_TEXT}")
    if start.startswith(SQLITE_MAGIC):
        raise UnrecognizedContent(
            "this is an SQLite database, as opencode keeps its sessions in; it is read where it lies: give its name to "
            f"holdfast import or holdfast replay. {_describe_known_formats()}"
        )
    raise_if_utf16_or_utf32(start)
    if b"\x00" in start:
        raise FormatError(
            f"this is a binary file (a NUL byte at {start.index(0)}), no session. {_describe_known_formats()}"
        )


def raise_if_utf16_or_utf32(start: bytes) -> None:
    """Raise ``FormatError`` for text in two or four bytes a character, as PowerShell writes it; no tool reads it."""
    if encoding := detect_wide_encoding(start):
        raise FormatError(
            f"the file is {encoding}, and sessions are UTF-8; write it anew, with `iconv -f {encoding} -t UTF-8` or "
            "`Get-Content -Raw … | Set-Content -Encoding utf8 …`"
        )


def _describe_known_formats() -> str:
    return f"Understood are {KNOWN_FORMATS_TEXT}"


def recognize_reader(data: bytes) -> str:
    """Return the name of the reader for ``data``, one of ``RECORDING_READERS``; else raise ``UnrecognizedContent``."""
    if is_json_array(data):
        return "body"
    first_fields: dict[str, Raw] = {}
    broken = 0
    for _, line in split_lines(data):
        line_fields = decode_raw_fields(line)
        kind = _recognize_fields(line, line_fields)
        if kind is not None:
            return kind
        first_fields, broken = first_fields or line_fields, broken + (not line_fields)
    return _recognize_json_document(data, first_fields, broken)


def _is_session_line(raw: Raw) -> bool:
    """Return whether an element of an array is a line of a session, or a request: neither has a role of its own."""
    line = bytes(raw)
    line_fields = decode_raw_fields(line)
    type_ = _TYPE_PROBE.decode_or_default(line).type
    return "role" not in line_fields and (type_ not in _ITEM_TYPES) and _recognize_fields(line, line_fields) is not None


def recognize_line(line: bytes) -> str | None:
    """Return the name of the reader for a file with this line, if it tells; raises for formats known by name only."""
    return _recognize_fields(line, decode_raw_fields(line))


def _recognize_json_document(data: bytes, first_fields: dict[str, Raw], broken: int) -> str:
    """Return the reader for a file that is one JSON value over several lines; else raise."""
    row = decode_document(data.removeprefix(BOM).strip(), _TYPE_PROBE)
    document_fields = decode_raw_fields(row.decodable) if row.value is not None else {}
    kind = _recognize_fields(row.decodable, document_fields) if document_fields else _recognize_fixed_lines(data)
    if kind is not None:
        return kind
    keys = sorted(document_fields or first_fields)
    if not keys:
        _raise_if_not_utf8(data[:SNIFFED_BYTES])
        raise UnrecognizedContent(
            f"{_describe_unrecognized(data.removeprefix(BOM).strip(), broken)}. {_describe_known_formats()}"
        )
    shown_keys = ", ".join(keys[:8]) + (", …" if len(keys) > 8 else "")
    raise UnrecognizedContent(
        f"this JSON, with the keys {shown_keys}, is no session that is known. {_describe_known_formats()}"
    )


def _describe_unrecognized(data: bytes, broken: int) -> str:
    """Return what a file is of which no line is a JSON object with fields, nor all of it."""
    if broken == 1 and data[:1] in (b"{", b"["):
        try:
            msgspec.json.decode(data)
        except RecursionError:
            return "the JSON in it is nested too deeply to be read"
        except msgspec.DecodeError as error:
            return f"the JSON in it cannot be read ({error})"
    subject = "its one line is" if broken == 1 else f"all its {broken:,} lines are"
    return f"no line of the file is a JSON object with fields: {subject} something else"


def _raise_if_not_utf8(start: bytes) -> None:
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4:  # else a character is cut in two
            raise FormatError(
                f"this is no UTF-8 text (byte {error.start} is none). {_describe_known_formats()}"
            ) from None


def _recognize_fixed_lines(data: bytes) -> str | None:
    """Return the reader for a file whose only good lines are ones that had to be mended."""
    for row in decode_lines(data, _TYPE_PROBE):
        if (
            row.value is not None
            and (kind := _recognize_fields(row.decodable, decode_raw_fields(row.decodable))) is not None
        ):
            return kind
    return None


def _recognize_fields(line: bytes, fields: dict[str, Raw]) -> str | None:
    """Return the reader for a file with this line, if it tells; raises for formats known by name only."""
    _raise_if_unsupported_tool(fields)
    type_ = _TYPE_PROBE.decode_or_default(line).type
    for kind, tells in _FORMAT_TESTS:
        if fields and tells(fields, type_):
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


def _is_codex_line(fields: dict[str, Raw], type_: str) -> bool:
    if "payload" in fields and type_ in _CODEX_TYPES:
        return True
    bare_header = not type_ and {"id", "timestamp", "instructions"} <= fields.keys()
    bare_item = type_ in _ITEM_TYPES or (type_ == "message" and "role" in fields and "content" in fields)
    return bare_header or bare_item


def _is_request_body(fields: dict[str, Raw], _type: str) -> bool:
    bare = "messages" in fields or "contents" in fields or ("input" in fields and "type" not in fields)
    return bare or "request" in fields or ("body" in fields and "method" in fields)


def _is_claude_code_line(fields: dict[str, Raw], type_: str) -> bool:
    has_links = "parentUuid" in fields and "uuid" in fields
    return has_links or (type_ in _CLAUDE_TYPES and bool(fields.keys() & _CLAUDE_KEYS))


def _is_gemini_cli_line(fields: dict[str, Raw], type_: str) -> bool:
    marks = {"sessionId", "projectHash"} <= fields.keys() or "$set" in fields
    return marks or (type_ == "gemini" and {"id", "timestamp", "content"} <= fields.keys())


def _is_opencode_export(fields: dict[str, Raw], _type: str) -> bool:
    return {"info", "messages"} <= fields.keys() and bytes(fields["info"]).startswith(b"{")


def _is_pi_line(fields: dict[str, Raw], type_: str) -> bool:
    return "id" in fields if type_ == "session" else type_ in _PI_TYPES and "timestamp" in fields


_FORMAT_TESTS: tuple[tuple[str, Callable[[dict[str, Raw], str], bool]], ...] = (
    ("codex", _is_codex_line),
    ("claude-code", _is_claude_code_line),
    ("gemini-cli", _is_gemini_cli_line),
    ("opencode", _is_opencode_export),
    ("body", _is_request_body),
    ("pi", _is_pi_line),
)


def _raise_if_unsupported_tool(fields: dict[str, Raw]) -> None:
    """Raise for what is a session, but of a tool that has no reader here yet."""
    keys = fields.keys()
    for tool, marks in _UNSUPPORTED_TOOLS:
        if marks <= keys:
            raise UnrecognizedContent(f"this is {tool}; it {_NOT_SUPPORTED_TEXT}. {_describe_known_formats()}")


_UNSUPPORTED_TOOLS: tuple[tuple[str, frozenset[str]], ...] = (
    ("a trajectory of SWE-agent", frozenset({"trajectory", "history"})),
    ("a trajectory of mini-swe-agent", frozenset({"trajectory_format"})),
    ("a trajectory in ATIF", frozenset({"schema_version", "steps"})),
)
