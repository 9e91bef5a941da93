"""Codex rollouts (``~/.codex/sessions/**/rollout-*.jsonl``) as a tree of entries.

What the model said without a break is one answer; the usage that is reported next is its own. ``compacted`` lines
become compactions; a rollback of turns starts a branch. Older files hold bare items behind a bare header; they are
read too. Items that the summariser made are no part of the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import FormatError
from holdfast.formats.base import ABORTED, PAID, Recording
from holdfast.formats.codex.items import API, decode_item, grouped, is_answer, item_of, message_of
from holdfast.formats.common.lines import UNREADABLE, LineFile, Row, Shape, millis, rows
from holdfast.formats.common.log import Call, Log, origin_of, short, slot_of
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import count, measure
from holdfast.state.entries import Body, Compaction, Frame, Note, Said, Usage
from holdfast.state.lazy_entries import LazyBody

__all__ = ["API", "FORMAT", "NOTE", "decode_item", "read"]

FORMAT = "codex"
NOTE = "codex:"
"""How the reason of a note begins that keeps a line of a rollout."""
_PASSED = frozenset({"ghost_snapshot", "compaction_trigger"})
"""Items that are no part of the conversation."""
_INJECTED = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md instructions")
"""How user messages begin that Codex writes itself; they are no turn of the user's."""


class Line(Struct):
    """The fields of a line, a bare header included; any may be missing."""

    timestamp: str | None = None
    type: str = ""
    payload: Raw = Raw()
    metadata: Raw = Raw()
    record_type: str = ""
    id: str | None = None
    instructions: str | None = None
    holdfast: str | None = None


class _Mark(Struct):
    compaction_output: bool = False


class _Base(Struct):
    text: str = ""


class _Meta(Struct):
    id: str | None = None
    session_id: str | None = None
    cwd: str = ""
    instructions: str | None = None
    base_instructions: Raw = Raw()


class _Tokens(Struct):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0


class _Info(Struct):
    last_token_usage: Raw = Raw()
    total_token_usage: Raw = Raw()


class _Event(Struct):
    type: str = ""
    info: Raw = Raw()
    usage: Raw = Raw()
    thread_token_usage: Raw = Raw()
    num_turns: int = 0
    model: str = ""


class _Compacted(Struct):
    message: str = ""
    replacement_history: list[Raw] = []


B = TypeVar("B", bound=Body)
LINE = Shape(Line)
_MARK, _BASE, _META, _TOKENS = Shape(_Mark), Shape(_Base), Shape(_Meta), Shape(_Tokens)
_INFO, _EVENT, _COMPACTED = Shape(_Info), Shape(_Event), Shape(_Compacted)


class _Place(Struct, frozen=True, gc=False):
    """Where a line stands in its file."""

    number: int
    start: int
    length: int


class _Move:
    """What one or several lines add to the conversation: words, a compaction, or a rollback."""

    __slots__ = (
        "at",
        "begins_turn",
        "is_paid",
        "kind",
        "model",
        "name",
        "places",
        "rows",
        "stop",
        "told",
        "usage",
    )

    def __init__(self, kind: str, row: Row[Line], model: str = "") -> None:
        self.kind = kind
        self.at = millis((row.value or Line()).timestamp)
        self.rows: list[Row[Line]] = []
        """Its lines, where their words are held."""
        self.places: list[_Place] = []
        self.name = ""
        """The id of its last item."""
        self.begins_turn = False
        """Whether the user says it."""
        self.model = model
        self.usage: Usage | None = None
        self.told = 0
        """The line that told the usage."""
        self.is_paid = False
        """Whether that line says that the request showed other words."""
        self.stop = ""


class _File:
    """What the lines of one file say, in order; of an open file without their words."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = Log()
        self._lines = data if isinstance(data, LineFile) else None
        self.header: Row[Line] | None = None
        self.meta = _Meta()
        self.model = ""
        self.moves: list[_Move] = []
        self.damaged: list[tuple[int, Row[Line], str]] = []
        self._open: _Move | None = None
        """The answer that the next item may belong to."""
        self._last: _Move | None = None
        """The newest answer."""
        self._summarising = False
        self._total = b""
        for row in rows(data, LINE):
            self._take(row)

    def _take(self, row: Row[Line]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((len(self.moves), row, row.fault))
            return
        if row.fault:
            self.log.problem(row.number, row.fault)
        if line.type == "response_item" or (line.type and not line.payload):
            self._item(row, line, line.payload or Raw(row.clean))
        elif line.type == "compacted":
            self._open, self._summarising = None, False
            self._begin("compacted", row)
        elif line.type == "session_meta" or (not line.type and line.id is not None):
            self._meta(row, line)
        else:
            self._event(row, line)

    def _begin(self, kind: str, row: Row[Line], model: str = "") -> _Move:
        """Return a new move that begins with ``row``."""
        move = _Move(kind, row, model)
        self.moves.append(move)
        self._go_on(move, row)
        return move

    def _go_on(self, move: _Move, row: Row[Line]) -> None:
        """Add a line to ``move``."""
        move.places.append(_Place(row.number, row.start, len(row.raw)))
        if self._lines is None:
            move.rows.append(row)

    def _rows(self, move: _Move) -> list[Row[Line]]:
        """Return the lines of ``move``, which are read again where they are not held."""
        if self._lines is None:
            return move.rows
        return [self._lines.read_again(one.number, one.start, one.length, LINE) for one in move.places]

    def body(self, kind: type[B], make: Callable[[_Move, list[Row[Line]]], B], move: _Move) -> B | LazyBody:
        """Return what ``make`` makes of a move: at once, or when it is asked for where its words are not held."""
        if self._lines is None:
            return make(move, move.rows)
        return LazyBody(kind, partial(self._made, make, move))

    def _made(self, make: Callable[[_Move, list[Row[Line]]], Body], move: _Move) -> Body:
        return make(move, self._rows(move))

    def first_line(self, move: _Move) -> Line:
        """Return the first line of a move."""
        return self._rows(move)[0].value or Line()

    def _meta(self, row: Row[Line], line: Line) -> None:
        if self.header is not None:
            self.log.skipped["session_meta (again)"] += 1
            return
        self.header = row
        self.meta = _META.of(line.payload or Raw(row.clean))

    def _event(self, row: Row[Line], line: Line) -> None:
        event = _EVENT.of(line.payload)
        kind = line.type or line.record_type or "line without a type"
        self.log.skipped[f"{kind}:{event.type}" if kind == "event_msg" else kind] += 1
        if kind == "token_usage_record":
            self._usage(row, event.usage, event.thread_token_usage)
        elif event.type == "token_count":
            info = _INFO.of(event.info)
            self._usage(row, info.last_token_usage, info.total_token_usage)
        elif event.type == "turn_aborted" and self._open is not None:
            self._open.stop, self._open = ABORTED, None
        elif event.type == "thread_rolled_back":
            self._open = None
            self._begin("rollback", row)
        elif event.type in ("task_started", "task_complete", "user_message") or kind == "turn_context":
            self._open = None
            self.model = event.model or self.model

    def _usage(self, row: Row[Line], last: Raw, total: Raw) -> None:
        """Give the usage to the newest answer, if it has none and this is not the summariser's or a repetition."""
        tokens = _TOKENS.of(last)
        if bytes(total) == self._total or self._summarising or tokens.input_tokens <= 0:
            return
        self._total, self._open = bytes(total), None
        answer = self._last
        if answer is not None and answer.usage is None:
            cached, written = tokens.cached_input_tokens, tokens.cache_write_input_tokens
            answer.usage = Usage(tokens.input_tokens, tokens.output_tokens, cached, written)
            answer.told, answer.is_paid = row.number, row.value is not None and row.value.holdfast == PAID

    def _item(self, row: Row[Line], line: Line, payload: Raw) -> None:
        try:
            item = item_of(payload)
            message = message_of([(item, payload)])
        except (FormatError, *UNREADABLE) as error:
            self.log.skipped["response_item (unreadable)"] += 1
            self.damaged.append((len(self.moves), row, f"the item is kept as a note: {error}"))
            return
        if item.type in _PASSED:
            self.log.skipped[item.type] += 1
        elif is_answer(item) and _MARK.of(line.metadata).compaction_output:
            self.log.skipped["item of the summariser"] += 1
            self._open, self._summarising = None, True
        elif is_answer(item) and self._open is not None:
            self._go_on(self._open, row)
            self._open.name = item.id or ""
        else:
            move = self._begin("answer" if is_answer(item) else "said", row, self.model)
            move.name = item.id or ""
            move.begins_turn = message.role == "user" and not message.text.startswith(_INJECTED)
            self._open = move if move.kind == "answer" else None
            self._last = self._open or self._last


class _Way:
    """The path from the root to where the conversation stands."""

    def __init__(self, head: str | None) -> None:
        self.head = head
        self.spots: list[tuple[str, Body | LazyBody, bool]] = []
        """For each step: the entry to go on from, what it says, whether the user begins a turn."""

    @property
    def tip(self) -> str | None:
        return self.spots[-1][0] if self.spots else self.head

    def back(self, turns: int) -> None:
        """Take ``turns`` turns of the user away."""
        while turns > 0 and self.spots:
            turns -= self.spots.pop()[2]


def read(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``.

    Of an open file the entries are lazy: each is read from it when it is asked for, so it must stay open.
    """
    file = _File(data)
    way = _Way(_header(file))
    tails: list[str | None] = []
    for move in file.moves:
        _emit(file, way, move)
        tails.append(way.tip)
    for place, row, reason in file.damaged:
        file.log.damage(row.number, row.raw, reason, tails[place - 1] if place else way.head)
    answers = [move.model for move in file.moves if move.kind == "answer" and move.model]
    return file.log.finish(
        Recording(
            format=FORMAT,
            session=file.meta.id or file.meta.session_id or "",
            cwd=file.meta.cwd,
            model=answers[-1] if answers else file.model,
            api=API,
            leaf=way.tip,
        )
    )


def _header(file: _File) -> str | None:
    """Append the header as a note and its instructions as a frame; return the id of the last."""
    row = file.header
    if row is None:
        file.log.problem(1, "the file does not begin with its session_meta; its items are read without")
        return None
    line = row.value or Line()
    at = millis(line.timestamp)
    head = file.log.add(file.meta.id or "session", None, Note(f"{NOTE}session_meta", row.raw), at, row.number)
    text = _BASE.of(file.meta.base_instructions).text or file.meta.instructions or ""
    if text:
        head = file.log.add(f"{head}+frame", head, Frame(short(text), count(text)), at, row.number)
    return head


def _emit(file: _File, way: _Way, move: _Move) -> None:
    """Append the entries of one move and go on from there."""
    log, first, last = file.log, move.places[0].number, move.places[-1].number
    if move.kind == "rollback":
        log.add(f"line-{first}", way.tip, file.body(Note, _rollback, move), move.at, first)
        way.back(_EVENT.of(file.first_line(move).payload).num_turns)
        return
    if move.kind == "compacted":
        tail, body = _emit_compaction(file, way, move)
        way.spots.append((tail, body, False))
        return
    said = file.body(Said, _said, move)
    name = move.name or f"line-{last}"
    if move.kind == "answer":
        call = Call(move.model, move.usage or Usage(), move.stop, move.told, move.is_paid)
        tail = log.answer(name, way.tip, said, call, move.at, first, last)
    else:
        tail = log.add(name, way.tip, said, move.at, first, last)
    way.spots.append((tail, said, move.begins_turn))


def _rollback(_move: _Move, rows: list[Row[Line]]) -> Note:
    return Note(f"{NOTE}thread_rolled_back", rows[0].raw)


def _said(move: _Move, rows: list[Row[Line]]) -> Said:
    payloads = [_payload(row) for row in rows]
    message = message_of([(item_of(payload), payload) for payload in payloads], move.model)
    return Said(
        slot_of(message, API, origin_of([bytes(raw) for raw in payloads])), origin_of([row.raw for row in rows])
    )


def _payload(row: Row[Line]) -> Raw:
    """Return the item on a line: in old files it is the line."""
    return (row.value or Line()).payload or Raw(row.clean)


def _emit_compaction(file: _File, way: _Way, move: _Move) -> tuple[str, Body | LazyBody]:
    """Append a recorded compaction: its line as a note, then the entry; return the entry's id and what it says."""
    log, number = file.log, move.places[0].number
    parent = log.add(f"line-{number}+line", way.tip, file.body(Note, _line_of_compaction, move), move.at, number)
    kept = _tail(_messages(_COMPACTED.of(file.first_line(move).payload).replacement_history), way)
    body = file.body(Compaction, partial(_compaction, log.depth[parent] - kept, kept), move)
    return log.add(f"line-{number}", parent, body, move.at, number), body


def _line_of_compaction(_move: _Move, rows: list[Row[Line]]) -> Note:
    return Note(f"{NOTE}compacted", rows[0].raw)


def _compaction(keep: int, kept: int, _move: _Move, rows: list[Row[Line]]) -> Compaction:
    """Return a recorded compaction that kept the last ``kept`` messages of the conversation, from ``keep`` on."""
    found = _COMPACTED.of((rows[0].value or Line()).payload)
    new = _messages(found.replacement_history)
    words = [message.text for message in new[: len(new) - kept] if message.role == "user"]
    if found.message and found.message not in words:
        words.append(found.message)
    summary = Message("user", tuple([Text(text) for text in words if text]))
    return Compaction(
        keep=keep,
        summary=summary,
        size=measure(summary).size,
        native=None if found.message else _native(found.replacement_history),
        by="model" if found.message else "native",
    )


def _messages(items: Sequence[Raw]) -> list[Message]:
    try:
        return grouped(items)
    except (FormatError, *UNREADABLE):
        return []


def _tail(new: Sequence[Message], way: _Way) -> int:
    """Return how many messages at the end of ``new`` are those at the end of the way."""
    same = 0
    for _, body, _ in reversed(way.spots):
        said = body.read() if isinstance(body, LazyBody) and body.kind is Said else body
        if not isinstance(said, Said):
            continue  # a compaction before this one
        if same == len(new) or measure(new[-1 - same]).digest != said.slot.digest:
            break
        same += 1
    return same


def _native(items: list[Raw]) -> Raw:
    return Raw(msgspec.json.encode({"api": API, "model": "", "items": items}))
