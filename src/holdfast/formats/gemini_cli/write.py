"""A log as a session of Gemini CLI: JSON lines of messages, of which the way to the leaf is written.

Lines that came from the tool go out as they came. There a result stands twice, on a line of its own and beside its
call, and the tool sends both when it resumes; ours stand beside their calls alone. A compaction of ours is a ``$set``
of all messages: the summary, and what was kept.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.formats.base import NO_STEP, Recording, path
from holdfast.formats.common.lines import clean, edited, elements, fields, iso
from holdfast.formats.common.writing import Source, bare, lines_of, uuid_of
from holdfast.formats.gemini_cli.read import CALL, LINE, NOTE, in_file
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Part, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.json.raw_json import as_object
from holdfast.providers.common.json.raw_json import write as to_json
from holdfast.providers.gemini import messages as gemini
from holdfast.state.entries import BranchSummary, Compaction, Entry, Note, Said, Usage


def write(recording: Recording) -> bytes:
    """Return ``recording`` as JSON lines, the header first; sub-agents' conversations have no place in the file."""
    way = path(recording)
    writing = _Writing(Source(replace(recording, entries=tuple(way))))
    for entry in way:
        writing.take(entry)
    lines = [line for one in writing.lines for line in one.lines]
    return b"".join(line + b"\n" for line in (_header(recording, way), *lines))


def _header(recording: Recording, way: list[Entry]) -> bytes:
    for entry in way:
        if isinstance(entry.body, Note) and entry.body.reason == f"{NOTE}session":
            return _without_messages(entry.body.raw)
    at = iso(next((entry.at for entry in way if entry.at is not None), None))
    told = {"sessionId": uuid_of(recording.session), "projectHash": sha256(recording.cwd.encode()).hexdigest()}
    return to_json(told | {"startTime": at, "lastUpdated": at, "kind": "main"})


def _without_messages(line: bytes) -> bytes:
    found = fields(line)
    return line if "messages" not in found else to_json({key: found[key] for key in found if key != "messages"})


class _Message:
    """A message, as the lines that tell it, each taking the place of the one before; or a ``$set`` of several."""

    __slots__ = ("_kept", "_lines")

    def __init__(self, *lines: bytes, kept: tuple[_Message, ...] = ()) -> None:
        self._lines = list(lines)
        self._kept = kept

    @property
    def last(self) -> bytes:
        """What the message is in the end."""
        return self._lines[-1]

    @property
    def lines(self) -> list[bytes]:
        """The lines to be written."""
        if not self._kept:
            return self._lines
        messages = [Raw(clean(one.last)) for one in self._kept]
        return [to_json({"$set": {"messages": messages, "lastUpdated": Raw(self.last)}})]

    def answered(self, results: dict[str, list[Any]]) -> set[str]:
        """Put results beside the calls that they answer; return the ids of those calls."""
        calls = elements(fields(clean(self.last)).get("toolCalls", Raw()))
        ids = [CALL.of(call).id or "" for call in calls]
        mine = results.keys() & set(ids) - {""}
        told = [
            fields(call) | {"result": results[id_]} if id_ in mine else call
            for id_, call in zip(ids, calls, strict=True)
        ]
        self._lines[-1] = edited(self.last, {"toolCalls": told}) if mine else self.last
        return mine


class _Writing:
    """The fold over the way to the leaf: the lines so far, and which of them is which entry."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.lines: list[_Message] = []
        self.of: dict[str, _Message] = {}
        """The message that tells an entry."""
        self.origin = b""
        """The lines that told the entry before."""
        self.answer: _Message | None = None
        self.names: dict[str, str] = {}
        """The tool of each call."""

    def take(self, entry: Entry) -> None:
        """Write one entry."""
        body = entry.body
        if isinstance(body, Note) and body.reason.startswith(NOTE) and LINE.of(clean(body.raw)).id is not None:
            self.lines.append(_Message(body.raw))
        elif isinstance(body, Said) and body.origin is not None and _is_own(bytes(body.origin)):
            self._as_it_came(entry, bytes(body.origin))
        elif isinstance(body, Said | BranchSummary):
            self._said(entry, body.slot)
        elif isinstance(body, Compaction):
            self._compaction(entry, body)

    def _as_it_came(self, entry: Entry, origin: bytes) -> None:
        if origin != self.origin:  # results beside their calls come from the same lines
            mark = self.source.mark(entry)
            self._keep(entry, _Message(*[edited(line, mark) for line in lines_of(Raw(origin))]))
        self.origin = origin

    def _keep(self, entry: Entry, message: _Message) -> None:
        self.lines.append(message)
        self.of[entry.id] = message
        if LINE.of(clean(message.last)).type == "gemini":
            self.answer = message

    def _said(self, entry: Entry, slot: Slot) -> None:
        message = self._named(bare(slot, gemini.API))
        if not message.parts and self.source.answer(entry).stop in NO_STEP:
            return
        head = {"id": uuid_of(entry.id), "timestamp": iso(entry.at)}
        parts = _parts(message)
        if message.role == "assistant":
            told = head | {"type": "gemini"} | _answer(self.source, entry, message, parts, iso(entry.at))
            told |= self.source.mark(entry)
        else:
            parts = self._put_beside(parts)
            told = head | {"type": "user", "content": parts}
        if parts or message.role == "assistant" or self.answer is None:
            self._keep(entry, _Message(to_json(told)))
        else:
            self.of[entry.id] = self.answer

    def _named(self, message: Message) -> Message:
        """Return ``message`` with the name of its tool in every result."""
        self.names |= {call.id: call.name for call in message.calls}
        return Message(message.role, tuple([self._with_name(part) for part in message.parts]))

    def _with_name(self, part: Part) -> Part:
        if not isinstance(part, ToolResult) or part.name:
            return part
        return replace(part, name=self.names.get(part.call_id, ""))

    def _put_beside(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Put results beside the calls of the newest answer; return the parts that are none of those."""
        found: dict[str, list[Any]] = {}
        for part in parts:
            found.setdefault(_answers(part), []).append(part)
        put = self.answer.answered(found) if self.answer is not None else set()
        return [part for part in parts if _answers(part) not in put]

    def _compaction(self, entry: Entry, body: Compaction) -> None:
        words = (body.summary or Message("user")).text
        told = {"id": uuid_of(entry.id), "timestamp": iso(entry.at), "type": "user", "content": [{"text": words}]}
        kept = [self.of[one.id] for one in self.source.kept(entry) if one.id in self.of]
        summary = _Message(to_json(told))
        self.lines.append(_Message(to_json(iso(entry.at)), kept=(summary, *dict.fromkeys(kept))))


def _answers(part: dict[str, Any]) -> str:
    """Return the id of the call that a part answers, if it answers one."""
    found = part.get("functionResponse")
    return str(found.get("id", "")) if isinstance(found, dict) else ""


def _is_own(origin: bytes) -> bool:
    line = LINE.of(clean(lines_of(Raw(origin))[-1]))
    return line.id is not None and line.type in ("user", "gemini")


def _parts(message: Message) -> list[dict[str, Any]]:
    """Return a message as parts of the API, calls and results under the ids that they have in a file."""
    return [told for part in message.parts for told in _told(message.role, part)]


def _told(role: Role, part: Part) -> list[dict[str, Any]]:
    """Return one part as the API has it, none where it has no form for it, or is no object."""
    own = isinstance(part, ToolCall | ToolResult)
    contents = gemini.dicts([Message(role, (replace(part, raw=None) if own else part,))])
    out = [one for content in contents for one in content.get("parts") or () if isinstance(one, dict)]
    if isinstance(part, ToolCall | ToolResult):
        kind, id_ = ("functionCall", part.id) if isinstance(part, ToolCall) else ("functionResponse", part.call_id)
        for one in out:
            one[kind]["id"] = in_file(one[kind]["name"], id_)
    return out


def _answer(source: Source, entry: Entry, message: Message, parts: list[dict[str, Any]], at: str) -> dict[str, Any]:
    """Return what the tool records of an answer; calls stand in the content too where something there is signed."""
    sealed = any("thoughtSignature" in part or part.get("thought") for part in parts)
    said = parts if sealed else [part for part in parts if "functionCall" not in part]
    content: Any = said[0]["text"] if len(said) == 1 and said[0].keys() == {"text"} else said
    thoughts = [part.text for part in message.parts if isinstance(part, Thinking) and part.text and not sealed]
    calls = [
        {"id": in_file(call.name, call.id), "name": call.name, "args": as_object(call.arguments)}
        | {"status": "success", "timestamp": at}
        for call in message.calls
    ]
    told: dict[str, Any] = {
        "content": content or "",
        "thoughts": [{"subject": "", "description": one} for one in thoughts],
    }
    told |= {"tokens": _tokens(source.answer(entry).usage), "model": source.model(entry)}
    return told | ({"toolCalls": calls} if calls else {})


def _tokens(usage: Usage) -> dict[str, int]:
    made = max(0, usage.output - usage.reasoning)
    told = {"input": usage.input, "output": made, "cached": usage.cache_read, "thoughts": usage.reasoning}
    return told | {"tool": 0, "total": usage.total}
