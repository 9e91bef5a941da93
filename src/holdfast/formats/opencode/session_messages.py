"""Messages of opencode 2, as messages of opencode 1.

Version 2 keeps one row for each message in ``session_message``: the role is the column ``type``, and an answer has its
texts, thoughts and calls in ``content`` (opencode, ``packages/schema/src/session-message.ts``, September 2026). Fields
that were renamed between betas are read under each of their names. A row is read as what the model was shown of it
(``packages/core/src/session/runner/to-llm-message.ts`` there).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.formats.common.lines import DECODE_ERRORS
from holdfast.formats.opencode.read import OpencodeStoredMessage
from holdfast.providers.common.json.raw_json import encode_json

_TEXT_MIME_TYPES = ("text/plain", "application/x-directory")
"""Types of attachments whose content is sent as text."""
_UNSENT_TYPES = frozenset({"agent-switched", "model-switched", "location-switched", "idle"})
"""Types of rows that the model is not shown."""
_PROVIDER_OF_FIELD = {"signature": "anthropic", "redactedData": "anthropic", "thoughtSignature": "google"}
"""For a field of a provider's state, the provider that writes it."""
_PART_DIGITS = 5
"""Digits of the number in a part's id: parts are sorted by id."""

JsonObject = Mapping[str, Any]


class SessionMessageRow(msgspec.Struct, frozen=True):
    """A row of ``session_message``: id, type, time in ms since 1970 and the JSON of the message."""

    id: str
    type: str
    time: int
    data: bytes


def iter_stored_messages(rows: Iterator[SessionMessageRow], directory: str) -> Iterator[OpencodeStoredMessage]:
    """Yield the rows of one session, in order, as messages of opencode 1; a compaction gives two.

    ``directory`` is that of the session. Rows that the model is not shown are yielded with ``skipped``.
    """
    converter = _Converter(directory)
    for row in rows:
        yield from converter.convert_row(row)


class _Converter:
    """Converts the rows of a session one after the other."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._last_user_id = ""
        self._last_time = 0
        self._parts: list[tuple[str, bytes]] = []
        self._message_id = ""

    def convert_row(self, row: SessionMessageRow) -> Iterator[OpencodeStoredMessage]:
        """Yield the messages that a row makes."""
        data = _decode_object(row.data)
        if data is None:
            # The reader keeps bytes that are no message as a note, and reports them.
            yield OpencodeStoredMessage(row.id, row.data)
            return
        # Version 1 sorts by time first, and rows of one moment must not change places.
        self._last_time = max(self._last_time, row.time or _get_created_time(data))
        self._message_id = row.id
        self._parts = []
        if row.type == "assistant":
            yield self._convert_answer(row.id, data)
        elif row.type == "compaction":
            yield from self._convert_compaction(row.id, data)
        elif row.type in _UNSENT_TYPES:
            yield OpencodeStoredMessage(row.id, row.data, skipped=row.type)
        elif row.type in ("user", "synthetic", "system", "skill", "shell"):
            yield self._convert_user_message(row.id, row.type, data)
        else:
            info = {"role": row.type or "message without a type", "time": {"created": self._last_time}}
            yield OpencodeStoredMessage(row.id, encode_json({**data, **info}))

    def _convert_user_message(self, id_: str, type_: str, data: JsonObject) -> OpencodeStoredMessage:
        text = _get_text(data, "text")
        if type_ == "shell":
            text = f"Shell command: {_get_text(data, 'command')}\n\n{_get_shell_output(data)}"
        # Version 1 marks what the user did not type in the same way.
        mark = {} if type_ in ("user", "shell") else {"synthetic": True}
        if text:
            self._add_part("text", text=text, **mark)
        for file in _get_objects(data, "files"):
            self._add_attachment(file)
        self._last_user_id = id_
        info: dict[str, Any] = {"role": "user", "time": {"created": self._last_time}, "agent": "build"}
        return self._finish_message(info)

    def _add_attachment(self, file: JsonObject) -> None:
        mime = _get_text(file, "mime")
        uri = _get_text(file, "uri") or _get_text(_get_object(file, "source"), "uri")
        name = _get_text(file, "name")
        content = _get_text(file, "data")
        if mime in _TEXT_MIME_TYPES:
            kind = "directory" if mime == "application/x-directory" else "file"
            lines = [f"Attached {kind}: {name or uri or 'inline attachment'}"]
            if description := _get_text(file, "description"):
                lines.append(f"Description: {description}")
            if text := _decode_base64_text(content):
                lines += ["", text]
            self._add_part("text", text="\n".join(lines), synthetic=True)
            return
        url = f"data:{mime};base64,{content}" if content else uri
        self._add_part("file", mime=mime, url=url, **({"filename": name} if name else {}))

    def _convert_answer(self, id_: str, data: JsonObject) -> OpencodeStoredMessage:
        model = _get_object(data, "model")
        provider = _get_text(model, "providerID")
        self._add_part("step-start")
        for item in _get_objects(data, "content"):
            self._add_answer_part(item, provider)
        has_content = len(self._parts) > 1
        has_calls = any(item.get("type") == "tool" for item in _get_objects(data, "content"))
        tokens = _get_object(data, "tokens")
        info: dict[str, Any] = {
            "role": "assistant",
            "time": {"created": self._last_time},
            "parentID": self._last_user_id or id_,
            "modelID": _get_text(model, "id"),
            "providerID": provider,
            "mode": _get_text(data, "agent") or "build",
            "agent": _get_text(data, "agent") or "build",
            "path": {"cwd": self._directory, "root": self._directory},
            "cost": data.get("cost", 0),
            "tokens": tokens or _NO_TOKENS,
        }
        error = data.get("error")
        finish = _get_text(data, "finish")
        if isinstance(error, dict):
            # Version 2 sends an answer that failed as far as it got; version 1 does that for aborted ones alone.
            name = "MessageAbortedError" if has_content else _get_text(error, "type") or "UnknownError"
            info["error"] = {"name": name, "data": dict(error)}
        elif finish or tokens:
            reason = finish or ("tool-calls" if has_calls else "stop")
            info["finish"] = reason
            self._add_part("step-finish", reason=reason, cost=info["cost"], tokens=info["tokens"])
        return self._finish_message(info)

    def _add_answer_part(self, item: JsonObject, provider: str) -> None:
        type_ = _get_text(item, "type")
        if type_ == "tool":
            self._add_tool_part(item, provider)
            return
        metadata = _convert_provider_state(item, ("native", "state", "providerMetadata"), provider)
        if type_ == "text":
            self._add_part("text", text=_get_text(item, "text"), **metadata)
        elif type_ == "reasoning":
            self._add_part("reasoning", text=_get_text(item, "text"), time={"start": self._last_time}, **metadata)
        else:
            self._add_part(type_ or "unknown", **{name: item[name] for name in item if name not in ("id", "type")})

    def _add_tool_part(self, item: JsonObject, provider: str) -> None:
        state = _get_object(item, "state")
        time = _get_object(item, "time")
        start = time.get("ran", time.get("created", self._last_time))
        span: dict[str, Any] = {"start": start, "end": time.get("completed", start)}
        metadata = _convert_provider_state(item, ("native", "providerState", "provider"), provider)
        arguments = state.get("input")
        new_state: dict[str, Any] = {"input": arguments if isinstance(arguments, dict) else {}}
        status = _get_text(state, "status")
        if status == "completed":
            if time.get("pruned") is not None:
                span["compacted"] = time["pruned"]
            new_state |= {"status": status, "output": _join_texts(state), "title": "", "metadata": {}, "time": span}
            attachments = [_convert_file(part) for part in _get_objects(state, "content") if part.get("type") == "file"]
            if attachments:
                new_state["attachments"] = attachments
        elif status == "error":
            new_state |= {"status": status, "error": _join_error(state), "time": span}
        elif status == "running":
            new_state |= {"status": status, "time": {"start": start}}
        else:
            raw = arguments if isinstance(arguments, str) else ""
            # Of a call that is still being written the arguments are a text, whole or not.
            whole = _decode_object(raw.encode("utf-8", "surrogatepass"))
            new_state |= {"status": "pending", "input": whole or new_state["input"], "raw": raw}
        self._add_part("tool", tool=_get_text(item, "name"), callID=_get_text(item, "id"), state=new_state, **metadata)

    def _convert_compaction(self, id_: str, data: JsonObject) -> Iterator[OpencodeStoredMessage]:
        """Yield a request for a compaction and its summary; a compaction that did not end compacts nothing."""
        summary = _get_text(data, "summary")
        status = _get_text(data, "status") or "completed"
        # A provider's own checkpoint is no text. opencode then goes on from the messages if it asks another model.
        is_native = data.get("providerContext") is not None and not summary
        if status != "completed" or is_native:
            yield OpencodeStoredMessage(
                id_, encode_json(data), skipped=f"compaction:{'native' if is_native else status}"
            )
            return
        if recent := _get_text(data, "recent"):
            summary = f"{summary}\n\n<recent-context>\n{recent}\n</recent-context>"
        info: dict[str, Any] = {"role": "user", "time": {"created": self._last_time}, "agent": "build"}
        self._add_part("compaction", auto=_get_text(data, "reason") != "manual")
        yield self._finish_message(info)
        self._message_id = f"{id_}_summary"
        self._parts = []
        self._add_part("text", text=summary)
        info = {
            "role": "assistant",
            "time": {"created": self._last_time},
            "parentID": id_,
            "modelID": "",
            "providerID": "",
            "mode": "compaction",
            "agent": "compaction",
            "path": {"cwd": self._directory, "root": self._directory},
            "cost": 0,
            "tokens": _NO_TOKENS,
            "summary": True,
            "finish": "stop",
        }
        yield self._finish_message(info)

    def _add_part(self, type_: str, /, **fields: Any) -> None:
        part_id = f"prt_{self._message_id.removeprefix('msg_')}_{len(self._parts):0{_PART_DIGITS}}"
        self._parts.append((part_id, encode_json({"type": type_, **fields})))

    def _finish_message(self, info: JsonObject) -> OpencodeStoredMessage:
        return OpencodeStoredMessage(self._message_id, encode_json(info), tuple(self._parts))


_NO_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}


def _convert_provider_state(item: JsonObject, names: tuple[str, ...], provider: str) -> dict[str, Any]:
    """Return what a provider signed as the ``metadata`` of a part: an object for each provider; empty without any."""
    for name in names:
        state = item.get(name)
        if not isinstance(state, dict) or not state:
            continue
        if name == "provider":
            state = state.get("metadata")
            return {"metadata": state} if isinstance(state, dict) and state else {}
        if name == "providerMetadata" or all(isinstance(value, dict) for value in state.values()):
            return {"metadata": state}
        owners = [owner for field, owner in _PROVIDER_OF_FIELD.items() if field in state]
        return {"metadata": {owners[0] if owners else provider or "unknown": state}}
    return {}


def _convert_file(part: JsonObject) -> dict[str, Any]:
    """Return a file of a tool's output as an attachment of version 1."""
    name = _get_text(part, "name")
    url = _get_text(part, "uri")
    if content := _get_text(part, "data"):
        url = f"data:{_get_text(part, 'mime')};base64,{content}"
    return {"type": "file", "mime": _get_text(part, "mime"), "url": url, **({"filename": name} if name else {})}


def _join_texts(state: JsonObject) -> str:
    """Return the texts of a tool's output, one below the other."""
    texts = [_get_text(part, "text") for part in _get_objects(state, "content") if part.get("type") == "text"]
    return "\n".join(texts)


def _join_error(state: JsonObject) -> str:
    """Return what a tool's run failed with, and what it had written before."""
    error = state.get("error")
    message = _get_text(error, "message") if isinstance(error, dict) else error
    texts = [message if isinstance(message, str) else "", _join_texts(state)]
    return "\n".join(filter(None, texts)) or "the tool failed"


def _get_shell_output(data: JsonObject) -> str:
    """Return the output of a command that the user ran: a text in betas, an object since."""
    output = data.get("output")
    return _get_text(output, "output") if isinstance(output, dict) else _get_text(data, "output")


def _get_created_time(data: JsonObject) -> int:
    time = data.get("time")
    created = time.get("created") if isinstance(time, dict) else None
    return int(created) if isinstance(created, int | float) and 0 <= created < 2**53 else 0


def _decode_base64_text(content: str) -> str:
    try:
        return base64.b64decode(content).decode("utf-8", "replace")
    except ValueError:
        return ""


def _decode_object(raw: bytes) -> dict[str, Any] | None:
    """Return a JSON object, or None for anything else."""
    try:
        value = msgspec.json.decode(raw)
    except DECODE_ERRORS:
        return None
    return value if isinstance(value, dict) else None


def _get_text(fields: JsonObject, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _get_object(fields: JsonObject, name: str) -> dict[str, Any]:
    """Return the object in a field, or an empty one."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _get_objects(fields: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects in a list; anything else in it, or in its place, is left out."""
    value = fields.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
