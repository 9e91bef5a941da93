"""Detection of the tool that wrote a file, by its content and never by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.formats import request_bodies as bodies
from holdfast.formats.atif import read as atif
from holdfast.formats.atif.document import is_atif_file
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
    split_json_lines,
)
from holdfast.formats.copilot_cli import read as copilot_cli
from holdfast.formats.gemini_cli import read as gemini_cli
from holdfast.formats.goose import read as goose
from holdfast.formats.look_alikes import describe_look_alike
from holdfast.formats.mini_swe_agent import read as mini_swe_agent
from holdfast.formats.opencode import read as opencode
from holdfast.formats.pi import read as pi
from holdfast.formats.swe_agent import read as swe_agent
from holdfast.providers.common.json.body_fields import detect_wide_encoding

KNOWN_FORMATS_TEXT = (
    "sessions of Claude Code, Codex, Copilot CLI, Gemini CLI, goose and pi (JSON lines), databases of goose, OpenClaw "
    "and opencode, what goose and opencode export, trajectories in ATIF and of SWE-agent and mini-swe-agent, and "
    "request bodies of the Messages API, Chat Completions, Responses and Gemini"
)
SQLITE_MAGIC = b"SQLite format 3\x00"
"""First bytes of every SQLite database."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""First bytes of what zstd wrote."""
SNIFFED_BYTES = 1_024
"""Number of bytes at the start of a file in which a NUL byte marks it as binary.

Chosen by judgement: UTF-16 text and the usual binary formats have a NUL within far fewer bytes.
"""


class _TypeProbe(Struct):
    """The fields of a line that tell formats apart."""

    type: str = ""
    subtype: str = ""


_TYPE_PROBE = LenientDecoder(_TypeProbe)

RECORDING_READERS: Mapping[str, Callable[[bytes], Recording]] = {
    "atif": atif.read_atif,
    "claude-code": claude_code.read_claude_code,
    "codex": codex.read_codex,
    "copilot-cli": copilot_cli.read_copilot_cli,
    "gemini-cli": gemini_cli.read_gemini_cli,
    "goose": goose.read_goose,
    "mini-swe-agent": mini_swe_agent.read_mini_swe_agent,
    "opencode": opencode.read_opencode,
    "pi": pi.read_pi,
    "swe-agent": swe_agent.read_swe_agent,
    "body": bodies.read_request_bodies,
}


class LineReader(Protocol):
    """Reader of a format with one JSON object a line."""

    def __call__(self, data: bytes | LineFile) -> Recording:
        """Return the recording in ``data``; entries of an open file are lazy."""


LAZY_LINE_READERS: Mapping[str, LineReader] = {
    "claude-code": claude_code.read_claude_code,
    "codex": codex.read_codex,
    "pi": pi.read_pi,
}
"""Readers that can read an open file line by line."""


def read_recording_lazily(lines: LineFile) -> Recording | None:
    """Return the recording in an open file; its entries read their messages on demand.

    Returns None if the file has to be read as a whole: it is one JSON value, its format has no line reader, or no line
    is recognized (the other reader then says what is wrong).
    """
    # Binary and UTF-16 files: the reader of whole files names them in its error.
    if b"\x00" in lines.read_at(0, SNIFFED_BYTES):
        return None
    is_first = True
    for _, line in split_json_lines(lines):
        if is_first and line.lstrip().startswith(b"["):
            return None
        is_first = False
        name = recognize_line(line)
        if name is not None:
            return LAZY_LINE_READERS[name](lines) if name in LAZY_LINE_READERS else None
    return None


def read_recording(data: bytes, name: str = "") -> Recording:
    """Return the recording in ``data``, recognized by its content.

    ``name`` is only used in messages. Raises ``FormatError`` if the bytes are empty, binary or damaged throughout,
    and ``UnrecognizedContent`` if they are not a session that Holdfast understands. Damaged lines do not raise;
    they are in ``problems``.
    """
    try:
        _raise_if_binary(data)
        line_data = convert_array_to_lines(data, _is_session_line)
        return RECORDING_READERS[recognize_reader(line_data)](line_data)
    except FormatError as error:
        message = f"{name}: {error}" if name else str(error)
        raise type(error)(message) from None


def _raise_if_binary(data: bytes) -> None:
    start = data[:SNIFFED_BYTES]
    if not data.removeprefix(BOM).strip():
        raise FormatError(f"the file is empty ({len(data):,} bytes); give a recorded session: {KNOWN_FORMATS_TEXT}")
    if start.startswith(SQLITE_MAGIC):
        raise UnrecognizedContent(
            "this is an SQLite database, as goose, OpenClaw and opencode keep their sessions in; it is read where it "
            f"lies: give its name to holdfast import or holdfast replay. {_describe_known_formats()}"
        )
    if start.startswith(ZSTD_MAGIC):
        raise UnrecognizedContent(
            "this is compressed with zstd, as Codex keeps its older rollouts; unpack it with `zstd -d FILE` and give "
            f"what that writes. {_describe_known_formats()}"
        )
    raise_if_utf16_or_utf32(start)
    if b"\x00" in start:
        raise FormatError(
            f"this is a binary file (a NUL byte at {start.index(0)}), no session. {_describe_known_formats()}"
        )


def raise_if_utf16_or_utf32(start: bytes) -> None:
    """Raise ``FormatError`` for UTF-16 and UTF-32 text, which PowerShell writes by default and no tool reads."""
    encoding = detect_wide_encoding(start)
    if encoding:
        raise FormatError(
            f"the file is {encoding}, and sessions are UTF-8; write it anew, with `iconv -f {encoding} -t UTF-8` or "
            "`Get-Content -Raw … | Set-Content -Encoding utf8 …`"
        )


def _describe_known_formats() -> str:
    return f"Understood are {KNOWN_FORMATS_TEXT}"


def recognize_reader(data: bytes) -> str:
    """Return the name of the reader for ``data``, one of ``RECORDING_READERS``.

    Raises ``UnrecognizedContent`` if no reader fits.
    """
    # Arrays of session lines became lines before; what is left is a list of messages.
    if is_json_array(data):
        return "mini-swe-agent" if mini_swe_agent.is_mini_swe_agent_list(data) else "body"
    first_fields: dict[str, Raw] = {}
    broken_count = 0
    for _, line in split_json_lines(data):
        fields = decode_raw_fields(line)
        name = _recognize_fields(line, fields)
        if name is not None:
            return name
        first_fields = first_fields or fields  # for the error message, should no line be recognized
        if not fields:
            broken_count += 1
    return _recognize_json_document(data, first_fields, broken_count)


def _is_session_line(raw: Raw) -> bool:
    """Return whether an element of an array is a line of a session or a request, and not a message or an item."""
    line = bytes(raw)
    fields = decode_raw_fields(line)
    if "role" in fields or _TYPE_PROBE.decode_or_default(line).type in _ITEM_TYPES:
        return False
    return _recognize_fields(line, fields) is not None


def recognize_line(line: bytes) -> str | None:
    """Return the name of the reader for a file with this line, or None if the line does not tell.

    Raises ``UnrecognizedContent`` for sessions of tools without a reader.
    """
    return _recognize_fields(line, decode_raw_fields(line))


def _recognize_json_document(data: bytes, first_fields: dict[str, Raw], broken_count: int) -> str:
    """Return the name of the reader for a file that is one JSON value over several lines; raise if no reader fits.

    ``first_fields`` and ``broken_count`` describe the lines for the error message.
    """
    row = decode_document(data.removeprefix(BOM).strip(), _TYPE_PROBE)
    document_fields = decode_raw_fields(row.decodable) if row.value is not None else {}
    name = _recognize_fields(row.decodable, document_fields)
    if not document_fields:
        name = _recognize_fixed_lines(data)
    if name is not None:
        return name
    keys = sorted(document_fields or first_fields)
    if not keys:
        _raise_if_not_utf8(data[:SNIFFED_BYTES])
        raise UnrecognizedContent(
            f"{_describe_unrecognized(data.removeprefix(BOM).strip(), broken_count)}. {_describe_known_formats()}"
        )
    shown_keys = ", ".join(keys[:8])
    if len(keys) > 8:
        shown_keys += ", …"
    raise UnrecognizedContent(
        f"this JSON, with the keys {shown_keys}, is no session that is known. {_describe_known_formats()}"
    )


def _describe_unrecognized(data: bytes, broken_count: int) -> str:
    """Return the error text for a file that is no JSON object with fields, nor has a line that is one."""
    if broken_count == 1 and data[:1] in (b"{", b"["):
        try:
            msgspec.json.decode(data)
        except RecursionError:
            return "the JSON in it is nested too deeply to be read"
        except msgspec.DecodeError as error:
            return f"the JSON in it cannot be read ({error})"
    subject = "its one line is" if broken_count == 1 else f"all its {broken_count:,} lines are"
    return f"no line of the file is a JSON object with fields: {subject} something else"


def _raise_if_not_utf8(start: bytes) -> None:
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4:  # else a character is cut in two
            raise FormatError(
                f"this is not UTF-8 text (byte {error.start} is not valid). {_describe_known_formats()}"
            ) from None


def _recognize_fixed_lines(data: bytes) -> str | None:
    """Return the name of the reader for a file in which only lines with bad escapes can be read, or None."""
    for row in decode_lines(data, _TYPE_PROBE):
        if row.value is None:
            continue
        name = _recognize_fields(row.decodable, decode_raw_fields(row.decodable))
        if name is not None:
            return name
    return None


def _recognize_fields(line: bytes, fields: dict[str, Raw]) -> str | None:
    """Return the name of the reader for a file with this line, or None if the line does not tell.

    Raises ``UnrecognizedContent`` for sessions of tools without a reader.
    """
    _raise_if_unsupported_tool(line, fields)
    if not fields:
        return None
    type_ = _TYPE_PROBE.decode_or_default(line).type
    for name, matches in _FORMAT_TESTS:
        if matches(fields, type_):
            return name
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
    is_bare_header = not type_ and {"id", "timestamp", "instructions"} <= fields.keys()
    is_bare_message = type_ == "message" and "role" in fields and "content" in fields
    return is_bare_header or is_bare_message or type_ in _ITEM_TYPES


def _is_request_body(fields: dict[str, Raw], _type: str) -> bool:
    is_bare = "messages" in fields or "contents" in fields or ("input" in fields and "type" not in fields)
    is_wrapped = "request" in fields or ("body" in fields and "method" in fields)
    return is_bare or is_wrapped


def _is_claude_code_line(fields: dict[str, Raw], type_: str) -> bool:
    has_links = "parentUuid" in fields and "uuid" in fields
    return has_links or (type_ in _CLAUDE_TYPES and bool(fields.keys() & _CLAUDE_KEYS))


_COPILOT_TYPES = ("session.", "user.message", "assistant.", "tool.execution_", "system.message", "system.notification")
"""How the types of those events of Copilot CLI begin that no other tool has."""


def _is_copilot_cli_line(fields: dict[str, Raw], type_: str) -> bool:
    return "data" in fields and type_.startswith(_COPILOT_TYPES)


def _is_gemini_cli_line(fields: dict[str, Raw], type_: str) -> bool:
    is_header = {"sessionId", "projectHash"} <= fields.keys()
    is_answer = type_ == "gemini" and {"id", "timestamp", "content"} <= fields.keys()
    return is_header or is_answer or "$set" in fields


def _is_goose_line(fields: dict[str, Raw], _type: str) -> bool:
    is_export = "working_dir" in fields and "conversation" in fields
    is_header = {"working_dir", "message_count"} <= fields.keys()
    is_message = {"role", "created", "content", "metadata"} <= fields.keys() and not {"model", "object"} & fields.keys()
    return is_export or is_header or (is_message and bytes(fields["content"]).startswith(b"["))


def _is_opencode_export(fields: dict[str, Raw], _type: str) -> bool:
    return {"info", "messages"} <= fields.keys() and bytes(fields["info"]).startswith(b"{")


def _is_atif_file(fields: dict[str, Raw], _type: str) -> bool:
    return is_atif_file(fields)


def _is_mini_swe_agent_file(fields: dict[str, Raw], _type: str) -> bool:
    return mini_swe_agent.is_mini_swe_agent_file(fields)


def _is_swe_agent_file(fields: dict[str, Raw], _type: str) -> bool:
    return swe_agent.is_swe_agent_file(fields)


def _is_pi_line(fields: dict[str, Raw], type_: str) -> bool:
    if type_ == "session":
        return "id" in fields
    return type_ in _PI_TYPES and "timestamp" in fields


# The first match wins, so formats with the most specific lines come first. A Claude Code line has a ``message`` but no
# ``messages``; a mini-swe-agent file has the fields of an opencode export and more; an opencode export has ``messages``
# and would pass for a request body; pi's type ``message`` is the loosest sign of all.
_FORMAT_TESTS: tuple[tuple[str, Callable[[dict[str, Raw], str], bool]], ...] = (
    ("codex", _is_codex_line),
    ("claude-code", _is_claude_code_line),
    ("copilot-cli", _is_copilot_cli_line),
    ("gemini-cli", _is_gemini_cli_line),
    ("goose", _is_goose_line),
    ("atif", _is_atif_file),
    ("mini-swe-agent", _is_mini_swe_agent_file),
    ("swe-agent", _is_swe_agent_file),
    ("opencode", _is_opencode_export),
    ("body", _is_request_body),
    ("pi", _is_pi_line),
)


def _raise_if_unsupported_tool(line: bytes, fields: dict[str, Raw]) -> None:
    """Raise ``UnrecognizedContent`` for a session of a tool that has no reader."""
    if description := describe_look_alike(line, fields):
        raise UnrecognizedContent(f"{description}. {_describe_known_formats()}")
