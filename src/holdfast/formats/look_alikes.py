"""Files of other tools that resemble a format that is read: recognized by what only they write, and refused by name.

Read as the format that they resemble, they would give messages without words, or none. Where each mark comes from is
said at its row; the files were described in public between 2025-12 and 2026-09.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw, Struct

from holdfast.formats.common.lines import LenientDecoder, decode_raw_fields

_ADVICE = "to bring its conversation over, save the messages as JSON with `messages` (role, content) and import that"
"""What to do with the session of a tool that has no reader."""


class _Probe(Struct):
    """The small fields of a line that tell tools apart."""

    type: str = ""
    role: str = ""
    kind: str = ""
    id: str = ""


_PROBE = LenientDecoder(_Probe)
Fields = Mapping[str, Raw]


class LookAlike(Struct, frozen=True):
    """A kind of file that is not read: what it is, what to do, and the test of one of its lines."""

    title: str
    advice: str
    matches: Callable[[Fields, _Probe], bool]


def describe_look_alike(line: bytes, fields: Fields) -> str:
    """Return which tool's file has this line and what to do with it, or an empty string if it is none of these."""
    if not fields:
        return ""
    probe = _PROBE.decode_or_default(line)
    for look_alike in LOOK_ALIKES:
        if look_alike.matches(fields, probe):
            return f"this is {look_alike.title}; {look_alike.advice}"
    return ""


def _has_inner(fields: Fields, name: str, *inner: str) -> bool:
    """Return whether a field holds an object that has all the ``inner`` fields."""
    raw = fields.get(name)
    return raw is not None and bytes(raw).startswith(b"{") and set(inner) <= decode_raw_fields(raw).keys()


def _is_text(fields: Fields, name: str) -> bool:
    return name in fields and bytes(fields[name]).startswith(b'"')


def _is_list(fields: Fields, name: str) -> bool:
    return name in fields and bytes(fields[name]).startswith(b"[")


def _is_qwen_code(fields: Fields, probe: _Probe) -> bool:
    # The links of Claude Code around the messages of Gemini: role and parts, no content.
    has_links = {"uuid", "parentUuid", "sessionId"} <= fields.keys()
    has_parts = _has_inner(fields, "message", "parts") and not _has_inner(fields, "message", "content")
    return has_links and (has_parts or probe.type == "tool_result")


def _is_gemini_log(fields: Fields, _probe: _Probe) -> bool:
    return {"sessionId", "messageId", "type", "timestamp"} <= fields.keys() and _is_text(fields, "message")


def _is_droid(fields: Fields, probe: _Probe) -> bool:
    return probe.type == "session_start" and "id" in fields and bool({"owner", "cwd", "title"} & fields.keys())


def _is_copilot_chat(fields: Fields, _probe: _Probe) -> bool:
    return {"requests", "responderUsername"} <= fields.keys() or (
        {"kind", "v"} == fields.keys() and _has_inner(fields, "v", "requests")
    )


def _is_cursor(fields: Fields, probe: _Probe) -> bool:
    return (
        probe.role in ("user", "assistant")
        and fields.keys() <= {"role", "message", "timestamp"}
        and (_has_inner(fields, "message", "content"))
    )


def _is_kimi(fields: Fields, probe: _Probe) -> bool:
    is_context = probe.role in ("_checkpoint", "_usage", "_system_prompt")
    is_wire = _has_inner(fields, "message", "type", "payload") and "timestamp" in fields
    return is_context or is_wire


def _is_amp(fields: Fields, probe: _Probe) -> bool:
    return probe.id.startswith("T-") and "created" in fields and _is_list(fields, "messages")


def _is_cline_screen(fields: Fields, probe: _Probe) -> bool:
    return probe.type in ("say", "ask") and "ts" in fields and bool({"say", "ask"} & fields.keys())


def _is_continue(fields: Fields, _probe: _Probe) -> bool:
    return {"sessionId", "workspaceDirectory"} <= fields.keys() and _is_list(fields, "history")


def _is_kiro(fields: Fields, probe: _Probe) -> bool:
    kinds = ("Prompt", "AssistantMessage", "ToolResults", "Compaction")
    return probe.kind in kinds and "data" in fields


def _is_antigravity(fields: Fields, _probe: _Probe) -> bool:
    return {"step_index", "source", "type"} <= fields.keys()


def _is_augment(fields: Fields, _probe: _Probe) -> bool:
    return "sessionId" in fields and _is_list(fields, "chatHistory")


def _is_openhands(fields: Fields, _probe: _Probe) -> bool:
    return {"id", "timestamp", "source"} <= fields.keys() and bool({"action", "observation"} & fields.keys())


_SESSION_ADVICE = "it holds no answers; the sessions are in"

LOOK_ALIKES: tuple[LookAlike, ...] = (
    # qwen-code, packages/core/src/services/chatRecordingService.ts (~/.qwen/projects/*/chats/*.jsonl)
    LookAlike("a session of Qwen Code, which resembles one of Claude Code and is not read", _ADVICE, _is_qwen_code),
    # gemini-cli, packages/core/src/core/logger.ts
    LookAlike(
        "the list of prompts of Gemini CLI (logs.json)", f"{_SESSION_ADVICE} the folder chats beside it", _is_gemini_log
    ),
    # coding_agent_session_search#22, 2025-12-30 (~/.factory/sessions/**/*.jsonl)
    LookAlike("a session of Factory Droid, which resembles one of pi and is not read", _ADVICE, _is_droid),
    LookAlike("a chat session of GitHub Copilot in VS Code, which is not read", _ADVICE, _is_copilot_chat),
    # agi-cli#1724, 2026-08-02 (~/.cursor/projects/*/agent-transcripts/*.jsonl)
    LookAlike("a transcript of Cursor, which is not read", _ADVICE, _is_cursor),
    # deja-vu#248, 2026-07-21 (~/.kimi/sessions, ~/.kimi-code/sessions)
    LookAlike("a session of Kimi CLI, which is not read", _ADVICE, _is_kimi),
    LookAlike("a thread of Amp, which is not read", _ADVICE, _is_amp),
    LookAlike(
        "what Cline or Roo Code showed on the screen (ui_messages.json)",
        "import api_conversation_history.json beside it: that has the messages",
        _is_cline_screen,
    ),
    LookAlike("a session of Continue, which is not read", _ADVICE, _is_continue),
    LookAlike("a session of Kiro CLI, which is not read", _ADVICE, _is_kiro),
    LookAlike("a transcript of Antigravity, which is not read", _ADVICE, _is_antigravity),
    LookAlike("a session of Augment, which is not read", _ADVICE, _is_augment),
    LookAlike("an event of OpenHands, which is not read", _ADVICE, _is_openhands),
    LookAlike(
        "the list of prompts of Claude Code (history.jsonl)",
        f"{_SESSION_ADVICE} the folder projects beside it",
        lambda fields, _probe: {"display", "pastedContents"} <= fields.keys(),
    ),
    LookAlike(
        "the list of prompts of Codex (history.jsonl)",
        f"{_SESSION_ADVICE} the folder sessions beside it",
        lambda fields, _probe: fields.keys() == {"session_id", "ts", "text"},
    ),
    LookAlike(
        "the list of threads of Codex (session_index.jsonl)",
        f"{_SESSION_ADVICE} the folder sessions beside it",
        lambda fields, _probe: {"id", "thread_name", "updated_at"} <= fields.keys(),
    ),
    LookAlike(
        "the list of prompts of opencode (prompt-history.jsonl)",
        f"{_SESSION_ADVICE} opencode.db, in the data folder of opencode",
        lambda fields, _probe: _is_text(fields, "input") and _is_list(fields, "parts"),
    ),
    LookAlike(
        "an export of ChatGPT, which is not read",
        _ADVICE,
        lambda fields, _probe: {"mapping", "current_node"} <= fields.keys(),
    ),
    LookAlike(
        "an export of claude.ai, which is not read",
        _ADVICE,
        lambda fields, _probe: {"uuid", "chat_messages"} <= fields.keys(),
    ),
)
"""The kinds of files that are refused by name; the first that matches counts."""
