"""A log as a session of opencode: as the JSON that it imports, and as the rows of its database.

A session is one line of messages, so the way to the leaf is written. Messages that came from opencode go out as they
came, with the results that the log has; what the log cleared is marked as cleared. Every other message gets an id that
sorts behind the one before it. A compaction of ours is a request for one and its summary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.formats.base import Recording, path
from holdfast.formats.common.lines import UNREADABLE, elements, fields
from holdfast.formats.common.writing import Source, bare, redacted
from holdfast.formats.opencode.parts import ENDED, INFO, PIECE, SEALS, TOLD_IN_WORDS
from holdfast.formats.opencode.read import API, CLEARING, KEPT, SESSION, SUMMARY, Held, Stored
from holdfast.messages.message import Message, placeholder, result_text
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.user_text import first_words
from holdfast.providers.common.json.raw_json import as_object
from holdfast.providers.common.json.raw_json import write as to_json
from holdfast.state.entries import BranchSummary, Compaction, Decision, Entry, Note, Said, Usage

VERSION = "1.18.33"
"""[M] The version of opencode whose database and export were looked at; sessions from elsewhere say it made them."""
AGENT = "build"
"""[M] opencode's usual agent."""
UNKNOWN = "unknown"
"""Stands for a model or a provider that the log does not name."""
UNTITLED = "Session"
_PROVIDERS = {"anthropic": "anthropic", "openai-chat": "openai", "openai-responses": "openai", "gemini": "google"}
_STOPS = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool-calls", "toolUse": "tool-calls",
    "tool_calls": "tool-calls", "max_tokens": "length", "synthetic": "stop", "STOP": "stop",
}  # fmt: skip
"""Stop reasons of other tools in opencode's words."""
_MASK = 2**48 - 1
"""[M] Bits of the number in an id: milliseconds since 1970 times 4,096 and a count; it begins anew every 795 days.

Messages of ours count on from the one before, or from 0: so all that opencode will write sorts behind them.
"""
_INTERRUPTED = "[Tool execution was interrupted]"
"""What opencode itself tells the model of a call without a result."""


def write(recording: Recording) -> bytes:
    """Return ``recording`` as the JSON that ``opencode import`` takes; sub-agents' sessions have no place in it."""
    held = session(recording)
    return to_json({"info": Raw(held.info), "messages": [_exported(one, held.id) for one in held.messages]})


def sessions(recording: Recording) -> Iterator[Held]:
    """Yield the session of ``recording`` and those of its sub-agents."""
    first = session(recording)
    yield first
    for chain in recording.sidechains:
        yield session(chain, first.id)


def session(recording: Recording, parent: str = "") -> Held:
    """Return ``recording`` as opencode would hold it, under the session ``parent`` if there is one."""
    way = path(recording)
    writing = _Writing(Source(replace(recording, entries=tuple(way))))
    for entry in way:
        writing.take(entry)
    messages = writing.finish()
    about = _about(recording, way, writing, parent)
    return Held(about["id"], to_json(about), messages)


def _exported(stored: Stored, session_id: str) -> dict[str, Any]:
    owner = {"sessionID": session_id}
    parts = [fields(raw) | owner | {"messageID": stored.id} for _, raw in stored.parts]
    return {"info": fields(stored.info) | owner, "parts": parts}


def _about(recording: Recording, way: list[Entry], writing: _Writing, parent: str) -> dict[str, Any]:
    """Return what stands about a session."""
    notes = (entry.body for entry in way if isinstance(entry.body, Note) and entry.body.reason == SESSION)
    told: dict[str, Any] = dict(fields(next((note.raw for note in notes), b"{}")))
    first = next((entry.at for entry in way if entry.at is not None), 0)
    words = first_words(entry.body.slot.message for entry in way if isinstance(entry.body, Said)) or UNTITLED
    name = recording.session or UNTITLED
    fresh = f"ses_{~(first * 4096) & _MASK:012x}{_mark(name)}"  # the newest sort first
    about = {"id": fresh, "slug": "holdfast", "projectID": "global", "directory": recording.cwd or "/", "path": ""}
    about |= told | ({"parentID": parent} if parent else {})
    about |= {"id": _words(about["id"]), "title": recording.title or words[:80]}
    about |= {"version": about.get("version", VERSION)}
    return about | {"time": {"created": first, "updated": max(first, writing.at)}}


def _mark(text: str) -> str:
    """Return the fourteen characters that end an id: the same for the same text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).hexdigest()


class _Written:
    """A message being written."""

    __slots__ = ("id", "info", "parts", "told")

    def __init__(self, id_: str, info: Mapping[str, Any], told: str = "") -> None:
        self.id = id_
        self.told = told
        """The id that it came with, if it came from opencode."""
        self.info = dict(info)
        self.parts: list[dict[str, Any]] = []


class _Writing:
    """The fold over the way to the leaf: the messages so far, and which call waits for which result."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.messages: list[_Written] = []
        self.calls: dict[str, dict[str, Any]] = {}
        """The part of each call that has ended."""
        self.open: dict[str, dict[str, Any]] = {}
        """Those of them whose result did not come yet."""
        self.ids: set[str] = set()
        self.named: dict[str, str] = {}
        """The message that holds each entry."""
        self.at = self.number = 0
        self.user = ""
        self.provider = _provider(source.recording)

    def take(self, entry: Entry) -> None:
        """Write one entry."""
        body = entry.body
        if isinstance(body, Note) and body.reason in KEPT:
            self._as_it_came(entry, body.raw)
        elif isinstance(body, Said) and body.slot.message.role == "tool":
            self._results(entry, body.slot.message)
        elif isinstance(body, Said) and body.slot.api == API and body.origin is not None:
            self._as_it_came(entry, bytes(body.origin))
        elif isinstance(body, Said):
            self._said(entry, bare(body.slot, API))
        elif isinstance(body, BranchSummary):
            self._said(entry, Message.of("user", body.slot.message.text))
        elif isinstance(body, Compaction) and not self.source.note(entry, SUMMARY):
            self._compaction(entry, body)
        elif isinstance(body, Decision):
            self._cleared(entry, body)

    def finish(self) -> tuple[Stored, ...]:
        """Return the messages; a call that got no result was interrupted."""
        for part in self.open.values():
            part["state"] = _state(part, ToolResult("", "", (Text(_INTERRUPTED),), is_error=True), self.at)
        return tuple([_stored(message) for message in self.messages])

    # -- what opencode said --------------------------------------------------------------------------------------------

    def _as_it_came(self, entry: Entry, raw: bytes) -> None:
        """Write a message, or one more answer of the message before, that opencode made."""
        document = fields(raw)
        found = INFO.of(document["info"])
        if not self.messages or self.messages[-1].told != found.id:
            self.number = max(self.number, _number(found.id))
            own = self._own("msg", found.id, entry.id)
            self.messages.append(_Written(own, fields(document["info"]) | {"id": own}, found.id))
        self.messages[-1].info |= self.source.mark(entry)
        self.at = max(self.at, found.time.at)
        self.named[entry.id] = own = self.messages[-1].id
        self.user = own if found.role == "user" else self.user
        for part in elements(document["parts"]):
            self._part_as_it_came(part)

    def _own(self, kind: str, id_: str, text: str) -> str:
        """Return an id as it came, or another where it is taken or none."""
        free = id_ if id_ and id_ not in self.ids else self._id(kind, text)
        self.ids.add(free)
        return free

    def _part_as_it_came(self, raw: Raw) -> None:
        piece = PIECE.of(raw)
        part: dict[str, Any] = fields(raw) | {"id": self._own("prt", piece.id, piece.id)}
        self.messages[-1].parts.append(part)
        if piece.type == "tool" and piece.state.status in ENDED:
            part["state"] = dict(fields(part["state"]))
            self._called(piece.call, part)

    def _called(self, id_: str, part: dict[str, Any]) -> None:
        self.calls[id_] = self.open[id_] = part

    # -- what was said elsewhere ---------------------------------------------------------------------------------------

    def _new(self, entry: Entry, role: str) -> _Written:
        """Begin a message that sorts behind all others."""
        self.at = max(self.at + bool(self.messages), entry.at or 0)
        id_ = self._id("msg", entry.id)
        message = _Written(id_, {"id": id_, "role": role, "time": {"created": self.at}, "agent": AGENT})
        self.messages.append(message)
        self.named[entry.id] = id_
        self.user = id_ if role == "user" else self.user
        return message

    def _id(self, kind: str, text: str) -> str:
        self.number += 1
        return f"{kind}_{self.number:012x}{_mark(text)}"

    def _part(self, kind: str, /, **fields_: Any) -> dict[str, Any]:
        """Append a part to the newest message; return it."""
        message = self.messages[-1]
        part = {"id": self._id("prt", f"{message.id}-{len(message.parts)}"), "type": kind} | fields_
        message.parts.append(part)
        return part

    def _said(self, entry: Entry, message: Message) -> None:
        if message.role == "assistant":
            self._answer(entry, message)
            return
        written = self._new(entry, "user")
        written.info["model"] = self._model(entry)
        for part in message.parts:
            self._user_part(part, synthetic=message.role == "system")

    def _user_part(self, part: Part, *, synthetic: bool) -> None:
        if isinstance(part, ToolResult):
            self._result(part)
        elif isinstance(part, Media) and part.mime not in TOLD_IN_WORDS and (url := _url(part)):
            self._part("file", mime=part.mime, **({"filename": part.name} if part.name else {}), url=url)
        elif isinstance(part, Text):
            self._part("text", text=part.text, **({"synthetic": True} if synthetic else {}))
        elif isinstance(part, Media | Opaque):
            self._part("text", text=placeholder(part))

    def _model(self, entry: Entry) -> dict[str, str]:
        return {"providerID": self.provider, "modelID": self.source.model(entry) or UNKNOWN}

    def _answer(self, entry: Entry, message: Message) -> None:
        answer = self.source.answer(entry)
        stop = _STOPS.get(answer.stop, answer.stop) or ("tool-calls" if message.calls else "stop")
        self._begin(entry, answer.usage, stop)
        for part in message.parts:
            self._answer_part(part)
        self._part("step-finish", reason=stop, cost=0, tokens=_tokens(answer.usage))
        self.messages[-1].info |= self.source.mark(entry)

    def _begin(self, entry: Entry, usage: Usage, stop: str, mode: str = AGENT) -> _Written:
        """Begin a message of the model's."""
        parent = self.user
        written = self._new(entry, "assistant")
        where = self.source.recording.cwd or "/"
        written.info |= {"time": {"created": self.at, "completed": self.at}, "parentID": parent or written.id}
        written.info |= {"mode": mode, "agent": mode, "path": {"cwd": where, "root": where}}
        written.info |= self._model(entry) | {"cost": 0, "tokens": _tokens(usage), "finish": stop}
        self._part("step-start")
        return written

    def _answer_part(self, part: Part) -> None:
        span = {"start": self.at, "end": self.at}
        if isinstance(part, Text):
            self._part("text", text=part.text)
        elif isinstance(part, Thinking):
            self._part("reasoning", text=part.text, time=span, **_sealed(part))
        elif isinstance(part, ToolCall):
            state = {"status": "completed", "input": as_object(part.arguments), "time": span}
            self._called(part.id, self._part("tool", callID=part.id, tool=part.name, state=state))
        elif isinstance(part, Media | Opaque):
            self._part("text", text=placeholder(part))

    # -- results -------------------------------------------------------------------------------------------------------

    def _results(self, entry: Entry, message: Message) -> None:
        if self.messages:
            self.named[entry.id] = self.messages[-1].id
        for result in message.results:
            if result.call_id in self.open:
                self._result(result)
            else:  # of a call that is not on the way
                self._said(entry, Message.of("user", result_text(result)))

    def _result(self, result: ToolResult) -> None:
        part = self.open.pop(result.call_id, None)
        if part is None:
            self._part("text", text=result_text(result), synthetic=True)
        else:
            part["state"] = _state(part, result, self.at)

    def _cleared(self, entry: Entry, body: Decision) -> None:
        """Mark the results that opencode cleared as cleared then."""
        puts = [put for edit in body.edits if edit.rule == CLEARING for put in edit.put]
        for put in puts:
            part = self.calls.get(put.call_id) if isinstance(put, ToolResult) else None
            if part is not None and _words(part["state"]["status"]) == "completed":
                time = part["state"].get("time", {})
                time = fields(time) if isinstance(time, Raw) else time
                part["state"]["time"] = {**time, "compacted": entry.at or self.at}

    def _compaction(self, entry: Entry, body: Compaction) -> None:
        """Write a compaction as a request for one and a summary; it keeps whole messages."""
        kept = [self.named[one.id] for one in self.source.kept(entry) if one.id in self.named]
        marker = self._new(entry, "user")
        marker.info["model"] = self._model(entry)
        tail = {"tail_start_id": kept[0]} if kept else {}
        self._part("compaction", auto=body.trigger != "manual", **tail)
        self.at += 1
        summary = self._begin(replace(entry, id=f"{entry.id}+summary"), Usage(), "stop", "compaction")
        summary.info["summary"] = True
        self._part("text", text=(body.summary or Message("user")).text)


def _provider(recording: Recording) -> str:
    """Return whose API the session was held with, as far as the log or its messages tell."""
    said = (entry.body.slot.api for entry in recording.entries if isinstance(entry.body, Said))
    return next((_PROVIDERS[api] for api in (recording.api, *said) if api in _PROVIDERS), UNKNOWN)


def _stored(message: _Written) -> Stored:
    parts = tuple([(_words(part.get("id", "")), to_json(part)) for part in message.parts])
    return Stored(message.id, to_json(message.info), parts)


def _number(id_: str) -> int:
    try:
        return int(id_.partition("_")[2][:12], 16)
    except ValueError:
        return 0


def _words(value: Any) -> str:
    """Return a text, as a value or as JSON."""
    if isinstance(value, str):
        return value
    try:
        return Decoder(str).decode(value)
    except UNREADABLE:
        return ""


def _url(media: Media) -> str:
    """Return where a file is, or all of it; nothing where only one provider knows it."""
    if media.form == "base64":
        return f"data:{media.mime};base64,{media.source}"
    return media.source if media.form == "url" or media.source.startswith("file:") else ""


def _sealed(part: Thinking) -> dict[str, Any]:
    """Return where the seal of a thought stands; what stands for one that nobody is shown has a field of its own."""
    if data := redacted(part):
        return {"metadata": {"anthropic": {"redactedData": data}}}
    for provider, (api, field) in SEALS.items():
        if part.seal is not None and part.seal.api == api and part.seal.data:
            return {"metadata": {provider: {field: part.seal.data}}}
    return {}


def _tokens(usage: Usage) -> dict[str, Any]:
    cache = {"read": usage.cache_read, "write": usage.cache_write}
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    made = max(0, usage.output - usage.reasoning)
    return {"total": usage.total, "input": fresh, "output": made, "reasoning": usage.reasoning, "cache": cache}


def _state(part: dict[str, Any], result: ToolResult, at: int) -> dict[str, Any]:
    """Return how the run of a tool ended; what else is known of it stays."""
    old = part["state"]
    text, files = result_text(result), [one for one in result.content if isinstance(one, Media)]
    status = "error" if result.is_error else "completed"
    base = {"status": status, "input": old.get("input", {})}
    if _words(old["status"]) == status:
        base = {key: value for key, value in old.items() if key != "attachments" or files}
    if result.is_error:
        return base | ({} if "time" in base else {"time": {"start": at, "end": at}}) | {"error": text}
    told: dict[str, Any] = {"title": "", "metadata": {}, "time": {"start": at, "end": at}}
    told = base | {key: value for key, value in told.items() if key not in base} | {"output": text}
    return told if not files or "attachments" in base else told | {"attachments": _attached(part, files)}


def _attached(part: dict[str, Any], files: list[Media]) -> list[dict[str, Any]]:
    shown = [(file, url) for file in files if (url := _url(file))]
    return [
        {"id": f"{_words(part['id'])}{number}", "type": "file", "mime": file.mime, "url": url}
        for number, (file, url) in enumerate(shown)
    ]
