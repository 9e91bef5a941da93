"""Sessions of Gemini CLI (``~/.gemini/tmp/**/chats/session-*``) as a line of entries.

A header, then messages and ``$set`` lines that change fields of the session. A later line with an ``id`` takes the
place of the earlier one, ``$set.messages`` that of all messages; ``$rewindTo`` takes back a message and all behind it.
Older files are one JSON object with ``messages``. What the tool wrote is made into ``contents`` of the API as they were
sent; results stand on lines of their own, or beside their calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.formats.base import PAID, Recording
from holdfast.formats.common.lines import BOM, UNREADABLE, Row, Shape, elements, fields, millis, rows, whole
from holdfast.formats.common.log import Call, Log, origin_of, short, slot_of
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.gemini import messages as gemini
from holdfast.state.entries import Note, Said, Usage

__all__ = ["FORMAT", "NOTE", "read"]

FORMAT = "gemini-cli"
NOTE = "gemini-cli:"
"""How the reason of a note begins that keeps a line of a session."""


_SPELT = {
    "session": "sessionId",
    "start": "startTime",
    "calls": "toolCalls",
    "patch": "$set",
    "rewind": "$rewindTo",
}


class Line(Struct, rename=_SPELT):
    """The fields of a line, header and whole file included; any may be missing."""

    session: str | None = None
    start: str | None = None
    messages: Raw = Raw()
    patch: Raw = Raw()
    rewind: str | None = None
    id: str | None = None
    timestamp: str | None = None
    type: str = ""
    content: Raw = Raw()
    calls: Raw = Raw()
    tokens: Raw = Raw()
    model: str = ""
    holdfast: str | None = None


class _Patch(Struct):
    messages: Raw = Raw()


class ToolCall(Struct):
    """A call as a file has it, with what came of it; any field may be missing."""

    id: str | None = None
    name: str = ""
    args: Raw = Raw(b"{}")
    result: Raw = Raw(b"null")


class _Tokens(Struct):
    input: int = 0
    output: int = 0
    cached: int = 0
    thoughts: int = 0
    tool: int = 0


LINE = Shape(Line)
CALL, _PATCH, _TOKENS = Shape(ToolCall), Shape(_Patch), Shape(_Tokens)
_LIST = Decoder(list[Raw])
_ROLES = {"user": "user", "gemini": "model"}
_PREFIXED = b"__"
_CALLS_OR_THINKS = re.compile(rb'"(?:functionCall|thought)"\s*:')
"""What in a content says that all of the answer stands there, its calls too."""


class _Record:
    """A message, and the lines that told it: each takes the place of the one before."""

    __slots__ = ("first", "is_paid", "last", "line", "name", "raws", "tail")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.first = self.last = number
        self.line = Line()
        self.is_paid = False
        """Whether its usage is of a request that showed other words than stand before it now."""
        self.raws: list[bytes] = []
        self.tail: str | None = None
        """Id of its last entry."""

    @property
    def version(self) -> str:
        """The id of the message as it was told last: a file that grew tells it anew under the same name."""
        once = len(self.raws) == 1 and self.first > 1
        return self.name if once else f"{self.name}+{short(self.raws[-1].decode(errors='replace'))}"


class _File:
    """What the lines of one file say, before there are entries."""

    def __init__(self, data: bytes) -> None:
        self.log = Log()
        self.header: Row[Line] | None = None
        self.records: dict[str, _Record] = {}
        self.replaced: list[_Record] = []
        """Messages that a later list of all messages does not hold."""
        self.damaged: list[tuple[_Record | None, Row[Line]]] = []
        self._last: _Record | None = None
        for row in _rows(data):
            self._take(row)

    def _take(self, row: Row[Line]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((self._last, row))
            return
        if row.fault:
            self.log.problem(row.number, row.fault)
        if line.patch:
            self.log.skipped["$set"] += 1
            self._all(row.number, _PATCH.of(line.patch).messages)
        elif line.rewind is not None:
            self.log.skipped["$rewindTo"] += 1
            self._rewind(row.number, line.rewind)
        elif line.session is not None and not line.type:
            self.log.skipped["header (again)"] += self.header is not None
            self.header = self.header or row
            self._all(row.number, line.messages)
        else:
            self._message(row.number, line, row.raw)

    def _all(self, number: int, messages: Raw) -> None:
        """Take a list of all messages, if it is one."""
        try:
            raws = _LIST.decode(messages)
        except UNREADABLE:
            if bytes(messages) not in (b"", b"null"):
                self.log.problem(number, "what should be a list of all messages is none; it changes nothing")
            return
        before, self.records = self.records, {}
        there, same = [*before.values()], True
        for place, raw in enumerate(raws):
            line = LINE.of(raw)
            if line.id in before:
                self.records[line.id] = before.pop(line.id)
            record = self._message(number, line, bytes(raw))
            record.is_paid |= not same
            same &= place >= len(there) or (there[place] is record and record.last < number)
        self.replaced += before.values()

    def _rewind(self, number: int, name: str) -> None:
        """Take back message ``name`` and all behind it; all there are where it is not known, as the tool does."""
        names = list(self.records)
        if name not in self.records:
            self.log.problem(number, f"it takes back to message {name}, which is not there: all are taken back")
        gone = names[names.index(name) if name in self.records else 0 :]
        self.replaced += [self.records.pop(one) for one in gone]

    def _message(self, number: int, line: Line, raw: bytes) -> _Record:
        name = line.id or f"line-{number}-{len(self.records)}"
        record = self.records.setdefault(name, _Record(name, number))
        self._last = record
        if record.raws[-1:] != [raw]:
            record.line, record.last = line, number
            record.raws.append(raw)
        return record


def _rows(data: bytes) -> Iterator[Row[Line]]:
    """Yield the whole file if it is one JSON value, else its lines."""
    row = whole(data.removeprefix(BOM).strip(), LINE)
    if row.value is not None:
        yield row
    else:
        yield from rows(data, LINE)


def read(data: bytes) -> Recording:
    """Return the recording in ``data``."""
    file = _File(data)
    head = tip = _header(file)
    answered = _answered(file)
    for record in file.records.values():
        tip = record.tail = _emit(file.log, record, answered, tip)
    for record in file.replaced:
        file.log.skipped["message (replaced)"] += 1
        file.log.add(record.name, head, Note(f"{NOTE}replaced", bytes(origin_of(record.raws))), None, record.last)
    for before, row in file.damaged:
        file.log.damage(row.number, row.raw, row.fault, before.tail if before is not None else head)
    line = file.header.value if file.header is not None and file.header.value is not None else Line()
    models = [record.line.model for record in file.records.values() if record.line.model]
    file.log.skipped = +file.log.skipped
    return file.log.finish(
        Recording(
            format=FORMAT,
            session=line.session or "",
            model=models[-1] if models else "",
            api=gemini.API,
            leaf=tip,
        )
    )


def _header(file: _File) -> str | None:
    """Append the header as a note, the root of all; return its id."""
    row = file.header
    if row is None or row.value is None:
        file.log.problem(1, "the file does not begin with a session header; its messages are read without")
        return None
    kept = write(fields(row.clean) | {"messages": None}) if row.value.messages else row.raw
    name = row.value.session or "session"
    return file.log.add(name, None, Note(f"{NOTE}session", kept), millis(row.value.start), row.number)


def _answered(file: _File) -> set[str]:
    """Return the ids of the calls whose results stand in lines of the user's."""
    out: set[str] = set()
    for record in file.records.values():
        if record.line.type == "user":
            content = gemini.decode(_content("user", _parts(record.line.content)))
            out.update(result.call_id for result in content.results)
    return out


def _emit(log: Log, record: _Record, answered: set[str], parent: str | None) -> str:
    """Append the entries of one message behind ``parent``; return the id of the last."""
    line, name, at = record.line, record.version, millis(record.line.timestamp)
    role = _ROLES.get(line.type)
    if role is None:
        kind = line.type or "line without a type"
        log.skipped[kind] += 1
        return log.add(name, parent, Note(f"{NOTE}{kind}", record.raws[-1]), at, record.first, record.last)
    parts = _parts(line.content)
    calls = [CALL.of(raw) for raw in elements(line.calls)] if role == "model" else []
    asked = [] if any(_CALLS_OR_THINKS.search(bytes(part)) for part in parts) else map(_called, calls)
    said = _said(_content(role, [*parts, *asked]), record.raws)
    if role == "user":
        return log.add(name, parent, said, at, record.first, record.last)
    is_paid = record.is_paid or line.holdfast == PAID
    call = Call(line.model, _usage(line), "", record.last if line.tokens else 0, is_paid)
    tip = log.answer(name, parent, said, call, at, record.first, record.last)
    results = [part for one in calls if _sent(one) not in answered for part in _results(one)]
    if not results:
        return tip
    return log.add(f"{name}+results", tip, _said(_content("user", results), record.raws), at, record.last)


def _said(content: Raw, lines: Sequence[bytes]) -> Said:
    return Said(slot_of(gemini.decode(content), gemini.API, content), origin_of(lines))


def _content(role: str, parts: Sequence[Any]) -> Raw:
    return Raw(write({"role": role, "parts": parts}))


def _parts(content: Raw) -> list[Raw]:
    """Return what was said as parts of the API: a list of them, one of them, or a text; none for an empty text."""
    data = bytes(content)
    if data.startswith(b'"'):
        return [Raw(write({"text": content}))] if len(data) > len(b'""') else []
    return [_sent_part(part) for part in ([content] if data.startswith(b"{") else elements(content))]


def _sent_part(part: Raw) -> Raw:
    """Return a part as it was sent: a file has the name of the tool before the ids of calls and results."""
    if _PREFIXED not in bytes(part):
        return part
    found = fields(part)
    for kind in ("functionCall", "functionResponse"):
        call = CALL.of(found[kind]) if kind in found else ToolCall()
        if call.id and _sent(call) != call.id:
            return Raw(write(found | {kind: fields(found[kind]) | {"id": _sent(call)}}))
    return part


def in_file(name: str, id_: str) -> str:
    """Return the id of a call as a file has it: with the name of its tool before it."""
    prefix = f"{name}{_PREFIXED.decode()}"
    return id_ if id_.startswith(prefix) else prefix + id_


def _sent(call: ToolCall) -> str | None:
    """Return the id of a call as the API got it."""
    return call.id and call.id.removeprefix(f"{call.name}{_PREFIXED.decode()}")


def _called(call: ToolCall) -> dict[str, Any]:
    named = {"id": _sent(call)} if call.id else {}
    return {"functionCall": named | {"name": call.name, "args": call.args}}


def _results(call: ToolCall) -> list[Any]:
    """Return the parts that answer ``call``; words alone become a response."""
    if not bytes(call.result).startswith(b'"'):
        return _parts(call.result)
    named = {"id": _sent(call)} if call.id else {}
    return [{"functionResponse": named | {"name": call.name, "response": {"output": call.result}}}]


def _usage(line: Line) -> Usage:
    tokens = _TOKENS.of(line.tokens)
    made = tokens.output + tokens.thoughts
    return Usage(tokens.input + tokens.tool, made, tokens.cached, reasoning=tokens.thoughts)
