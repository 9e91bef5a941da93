"""Reader of mini-swe-agent trajectories (``*.traj.json``, of versions 1 and 2).

A file is one JSON object with ``info`` and ``messages``; a bare list of messages is read too. Messages are those that
were sent, with an ``extra`` that was not: commands, cost, time, and the whole answer of the provider, which has the
usage. Answers are of Chat Completions with tool calls, of Chat Completions with the command in a fence, or whole
answers of the Responses API. The last row has the role ``exit`` and was not sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from holdfast.errors import UnrecognizedContent
from holdfast.formats.base import Recording
from holdfast.formats.common.json_arrays import read_array_elements
from holdfast.formats.common.lines import (
    BOM,
    FileLine,
    LenientDecoder,
    decode_document,
    decode_raw_elements,
    decode_raw_fields,
    parse_millis,
)
from holdfast.formats.common.log import CallMetadata, RecordingBuilder
from holdfast.formats.swe_agent.chat_log import (
    ChatLog,
    count_unknown_fields,
    get_content_text,
    join_thinking_blocks,
    make_answer_wire,
    make_command_call,
    make_result_wire,
)
from holdfast.providers.answers.usage import parse_window_usage
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import items as openai_responses
from holdfast.state.entries import Usage

FORMAT = "mini-swe-agent"
MINI_SWE_AGENT_NOTE_PREFIX = "mini-swe-agent:"
"""Prefix of the reason of a note that keeps something of mini-swe-agent's."""
_ROW_FIELDS = frozenset(
    {"role", "content", "tool_calls", "tool_call_id", "extra", "type", "call_id", "output", "object"}
    | {"reasoning_content", "reasoning", "thinking_blocks", "cache_control"}
)
_LITELLM_FIELDS = frozenset(
    {"function_call", "provider_specific_fields", "annotations", "refusal", "audio", "images", "reasoning_details"}
)
"""Fields of an answer that LiteLLM adds; those that are null say nothing."""
_COMMAND_FENCE = re.compile(r"```(?:mswea_bash_command|bash)\s*\n(.*?)\n?```", re.DOTALL)
"""Matches the fence of a command: the word of version 2, and that of version 1."""
_OWN_FENCE = b"```mswea_bash_command"


class _Document(Struct):
    info: Raw = Raw(b"{}")
    messages: list[Raw] = []
    instance_id: str = ""


class _ModelConfig(Struct, frozen=True):
    model_name: str = ""


class _EnvironmentConfig(Struct, frozen=True):
    cwd: str = ""


class _Config(Struct, frozen=True):
    model: _ModelConfig = _ModelConfig()
    environment: _EnvironmentConfig = _EnvironmentConfig()


class _Info(Struct):
    config: Raw = Raw(b"{}")


class _Action(Struct):
    command: str = ""
    tool_call_id: str | None = None


class _Extra(Struct):
    """What a row has beside its message; any field may be missing."""

    actions: Raw = Raw()
    timestamp: float | None = None
    response: Raw = Raw()
    raw_output: Raw = Raw()
    interrupt_type: str | None = None
    exit_status: str | None = None


class _Row(Struct):
    """A row of ``messages``; any field may be missing."""

    role: str = ""
    type: str = ""
    object: str = ""
    content: Raw = Raw(b"null")
    tool_calls: Raw = Raw()
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking_blocks: Raw = Raw()
    output: Raw = Raw()
    usage: Raw = Raw()
    model: str | None = None
    status: str | None = None
    extra: Raw = Raw()


class _Choice(Struct):
    finish_reason: str | None = None


class _ChatResponse(Struct):
    model: str | None = None
    usage: Raw = Raw()
    choices: list[_Choice] = []


_DOCUMENT = LenientDecoder(_Document)
_INFO = LenientDecoder(_Info)
_CONFIG = LenientDecoder(_Config)
_ACTION = LenientDecoder(_Action)
_EXTRA = LenientDecoder(_Extra)
_ROW = LenientDecoder(_Row)
_CHAT_RESPONSE = LenientDecoder(_ChatResponse)


def read_mini_swe_agent(data: bytes) -> Recording:
    """Return the recording in ``data``; raises ``UnrecognizedContent`` if the trajectory has no messages."""
    row = _decode_file(data)
    document = row.value or _Document()
    if not document.messages:
        raise UnrecognizedContent(
            "this trajectory of mini-swe-agent has no messages; give a file of a run that has begun"
        )
    log = RecordingBuilder()
    if row.fault:
        log.report_problem(0, row.fault)
    config = _CONFIG.decode_or_default(_INFO.decode_or_default(document.info).config)
    reader = _MiniReader(log, config.model.model_name)
    fields = decode_raw_fields(row.decodable)
    others = {name: value for name, value in fields.items() if name not in ("messages", "info")}
    info = {name: value for name, value in decode_raw_fields(document.info).items() if name != "config"}
    # Without the configuration: it has the templates, which the messages show, and may have keys of an account.
    reader.chat.add_note(0, f"{MINI_SWE_AGENT_NOTE_PREFIX}info", encode_json({"info": info} | others))
    for index, raw in enumerate(document.messages):
        reader.append_row(index, raw)
    log.skipped = +log.skipped
    api = openai_responses.API_NAME if reader.has_responses else openai_chat.API_NAME
    return log.finish_recording(
        Recording(
            FORMAT,
            cwd=config.environment.cwd,
            title=document.instance_id,
            model=reader.model,
            api=api,
            leaf=reader.chat.leaf,
        )
    )


def _decode_file(data: bytes) -> FileLine[_Document]:
    """Return the file as an object; a bare list of messages becomes its ``messages``."""
    text = data.removeprefix(BOM).strip()
    if text.startswith(b"["):
        text = b'{"messages":' + text + b"}"
    return decode_document(text, _DOCUMENT)


class _MiniReader:
    """Reads the rows of a trajectory into a recording."""

    def __init__(self, log: RecordingBuilder, model: str) -> None:
        self.chat = ChatLog(log)
        self.model = model
        self.has_responses = False
        """Whether answers are of the Responses API."""
        self._pending_commands: list[str] = []
        """Ids made for the commands in the text of the newest answer that have no output yet."""

    def append_row(self, index: int, raw: Raw) -> None:
        """Append what row ``index`` says: a message, or a note if it was not sent."""
        row = _ROW.decode_or_default(raw)
        extra = _EXTRA.decode_or_default(row.extra)
        number = index + 1
        path = f"messages[{index}]"
        at = None if extra.timestamp is None else parse_millis(extra.timestamp * 1000)
        if row.object == "response":
            self._append_response(number, path, row, at)
        elif row.role == "exit" or extra.exit_status is not None:
            self.chat.log.skipped["exit"] += 1
            self.chat.add_note(number, f"{MINI_SWE_AGENT_NOTE_PREFIX}exit", bytes(raw))
        elif row.type in ("function_call_output", "message"):
            item = {name: value for name, value in decode_raw_fields(raw).items() if name != "extra"}
            self.chat.add_items(number, path, [Raw(encode_json(item))], None, at)
        elif row.role == "assistant":
            self._count_fields(raw, _ROW_FIELDS | _LITELLM_FIELDS)
            self._append_answer(number, path, row, extra, at)
        elif row.role == "tool":
            self._count_fields(raw, _ROW_FIELDS)
            content = _get_content_or_empty(row)
            self.chat.add_row(number, path, make_result_wire(row.tool_call_id or "", content), at)
        elif row.role in ("user", "system"):
            self._count_fields(raw, _ROW_FIELDS)
            self._append_words(number, path, row, extra, at)
        else:
            self.chat.add_unreadable(number, path, bytes(raw), f"the role {row.role!r} is not known")

    def _count_fields(self, raw: Raw, known: frozenset[str]) -> None:
        fields = [name for name, value in decode_raw_fields(raw).items() if bytes(value) != b"null"]
        count_unknown_fields(self.chat.log, fields, known, "messages")

    def _append_words(self, number: int, path: str, row: _Row, extra: _Extra, at: int | None) -> None:
        """Append a row of the user or the system; the output of a command in text is a result."""
        content = _get_content_or_empty(row)
        if row.role == "user" and self._pending_commands and extra.interrupt_type is None:
            self.chat.add_row(number, path, make_result_wire(self._pending_commands.pop(0), content), at)
            return
        self._pending_commands = []
        self.chat.add_row(number, path, {"role": row.role, "content": content}, at)

    def _append_answer(self, number: int, path: str, row: _Row, extra: _Extra, at: int | None) -> None:
        response = _CHAT_RESPONSE.decode_or_default(extra.response or Raw(b"{}"))
        reasoning = row.reasoning_content or row.reasoning or join_thinking_blocks(row.thinking_blocks)
        calls: list[Any] = list(decode_raw_elements(row.tool_calls))
        content: Raw | str = row.content
        self._pending_commands = []
        if not calls:
            text = get_content_text(row.content)
            commands = _find_commands(text, extra)
            for position, command in enumerate(commands):
                call_id = f"call-{number}-{position}" if position else f"call-{number}"
                calls.append(make_command_call(call_id, command))
                self._pending_commands.append(call_id)
            if calls:
                content = _COMMAND_FENCE.sub("", text).strip()
        self.model = response.model or self.model
        usage = parse_window_usage(openai_chat.API_NAME, response.usage or None)
        stop = (response.choices[0].finish_reason if response.choices else None) or ""
        call = CallMetadata(response.model or self.model, usage or Usage(), stop)
        self.chat.add_answer_row(number, path, make_answer_wire(content, calls, reasoning), call, at)

    def _append_response(self, number: int, path: str, row: _Row, at: int | None) -> None:
        """Append an answer of the Responses API: its items are what is sent again."""
        self.has_responses = True
        self._pending_commands = []
        self.model = row.model or self.model
        usage = parse_window_usage(openai_responses.API_NAME, row.usage or None)
        call = CallMetadata(row.model or self.model, usage or Usage(), row.status or "")
        items = [_drop_null_fields(item) for item in decode_raw_elements(row.output)]
        self.chat.add_items(number, path, items, call, at)


def _find_commands(text: str, extra: _Extra) -> Sequence[str]:
    """Return the commands of an answer in text: those recorded beside it, else the one in its fence.

    Both versions run a command only if it is the only one; more are refused with a message to the model.
    """
    recorded = [_ACTION.decode_or_default(raw).command for raw in decode_raw_elements(extra.actions)]
    if recorded or extra.actions:
        return [command for command in recorded if command]
    commands = _COMMAND_FENCE.findall(text)
    return commands if len(commands) == 1 else ()


def _drop_null_fields(item: Raw) -> Raw:
    """Return an item of an answer without the fields that LiteLLM fills with null: no API takes them back."""
    fields = decode_raw_fields(item)
    kept = {name: value for name, value in fields.items() if bytes(value) != b"null"}
    return item if len(kept) == len(fields) else Raw(encode_json(kept))


def _get_content_or_empty(row: _Row) -> Raw | str:
    return "" if bytes(row.content) in (b"", b"null") else row.content


def is_mini_swe_agent_file(fields: dict[str, Raw]) -> bool:
    """Return whether a JSON object with these fields is a trajectory of mini-swe-agent."""
    if "messages" not in fields:
        return False
    if "trajectory_format" in fields:
        return True
    # The first version named no format; the info of opencode's export has none of these.
    info = decode_raw_fields(fields.get("info", Raw(b"{}")))
    return bool({"model_stats", "mini_version", "exit_status"} & info.keys())


def is_mini_swe_agent_list(data: bytes) -> bool:
    """Return whether a file that is one JSON array has messages of mini-swe-agent: only it writes its own fence."""
    if _OWN_FENCE not in data:
        return False
    for raw in read_array_elements(data):
        if _OWN_FENCE in bytes(raw) and _ROW.decode_or_default(raw).role == "assistant":
            return True
    return False
