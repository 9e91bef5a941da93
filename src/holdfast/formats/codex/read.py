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
from holdfast.formats.base import ABORTED, STALE_USAGE_BASIS, Recording
from holdfast.formats.codex.items import (
    API_NAME,
    decode_codex_item,
    decode_codex_message,
    decode_codex_messages,
    decode_item,
    is_model_item,
)
from holdfast.formats.common.lines import DECODE_ERRORS, FileLine, LenientDecoder, LineFile, decode_lines, parse_millis
from holdfast.formats.common.log import (
    CallMetadata,
    RecordingBuilder,
    join_origin_lines,
    make_short_digest,
    make_sized_message,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.state.entries import CompactionEntry, EntryBody, MessageEntry, NoteEntry, RequestSetup, Usage
from holdfast.state.lazy_entries import LazyBody

__all__ = ["API_NAME", "CODEX_NOTE_PREFIX", "FORMAT", "decode_codex_item", "read_codex"]

FORMAT = "codex"
CODEX_NOTE_PREFIX = "codex:"
"""How the reason of a note begins that keeps a line of a rollout."""
_IGNORED_ITEMS = frozenset({"ghost_snapshot", "compaction_trigger"})
"""Items that are no part of the conversation."""
_INJECTED_PREFIXES = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md instructions")
"""How user messages begin that Codex writes itself; they are no turn of the user's."""


class CodexLine(Struct):
    """The fields of a line, a bare header included; any may be missing."""

    timestamp: str | None = None
    type: str = ""
    payload: Raw = Raw()
    metadata: Raw = Raw()
    record_type: str = ""
    id: str | None = None
    instructions: str | None = None
    holdfast: str | None = None


class _CodexMarks(Struct):
    compaction_output: bool = False


class _BaseInstructions(Struct):
    text: str = ""


class _SessionMeta(Struct):
    id: str | None = None
    session_id: str | None = None
    cwd: str = ""
    instructions: str | None = None
    base_instructions: Raw = Raw()


class _CodexTokens(Struct):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0


class _TokenCountInfo(Struct):
    last_token_usage: Raw = Raw()
    total_token_usage: Raw = Raw()


class _CodexEvent(Struct):
    type: str = ""
    info: Raw = Raw()
    usage: Raw = Raw()
    thread_token_usage: Raw = Raw()
    num_turns: int = 0
    model: str = ""


class _CompactedPayload(Struct):
    message: str = ""
    replacement_history: list[Raw] = []


B = TypeVar("B", bound=EntryBody)
CODEX_LINE = LenientDecoder(CodexLine)
_CODEX_MARKS, _BASE_INSTRUCTIONS, _SESSION_META, _CODEX_TOKENS = (
    LenientDecoder(_CodexMarks),
    LenientDecoder(_BaseInstructions),
    LenientDecoder(_SessionMeta),
    LenientDecoder(_CodexTokens),
)
_TOKEN_COUNT_INFO, _CODEX_EVENT, _COMPACTED_PAYLOAD = (
    LenientDecoder(_TokenCountInfo),
    LenientDecoder(_CodexEvent),
    LenientDecoder(_CompactedPayload),
)


class _LinePosition(Struct, frozen=True, gc=False):
    """Where a line stands in its file."""

    number: int
    start: int
    length: int


class _CodexStep:
    """What one or several lines add to the conversation: words, a compaction, or a rollback."""

    __slots__ = (
        "at",
        "begins_turn",
        "has_stale_usage",
        "item_id",
        "kind",
        "model",
        "positions",
        "rows",
        "stop",
        "usage",
        "usage_line",
    )

    def __init__(self, kind: str, row: FileLine[CodexLine], model: str = "") -> None:
        self.kind = kind
        self.at = parse_millis((row.value or CodexLine()).timestamp)
        self.rows: list[FileLine[CodexLine]] = []
        """Its lines, where their words are held."""
        self.positions: list[_LinePosition] = []
        self.item_id = ""
        """The id of its last item."""
        self.begins_turn = False
        """Whether the user says it."""
        self.model = model
        self.usage: Usage | None = None
        self.usage_line = 0
        """The line that told the usage."""
        self.has_stale_usage = False
        """Whether that line says that the request showed other words."""
        self.stop = ""


class _CodexFile:
    """What the lines of one file say, in order; of an open file without their words."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = RecordingBuilder()
        self._lines = data if isinstance(data, LineFile) else None
        self.header: FileLine[CodexLine] | None = None
        self.meta = _SessionMeta()
        self.model = ""
        self.steps: list[_CodexStep] = []
        self.damaged: list[tuple[int, FileLine[CodexLine], str]] = []
        self._open_answer: _CodexStep | None = None
        """The answer that the next item may belong to."""
        self._last_answer: _CodexStep | None = None
        """The newest answer."""
        self._summarising = False
        self._total = b""
        for row in decode_lines(data, CODEX_LINE):
            self._add_line(row)

    def _add_line(self, row: FileLine[CodexLine]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((len(self.steps), row, row.fault))
            return
        if row.fault:
            self.log.report_problem(row.number, row.fault)
        if line.type == "response_item" or (line.type and not line.payload):
            self._add_item(row, line, line.payload or Raw(row.decodable))
        elif line.type == "compacted":
            self._open_answer, self._summarising = None, False
            self._begin_step("compacted", row)
        elif line.type == "session_meta" or (not line.type and line.id is not None):
            self._add_header(row, line)
        else:
            self._add_event(row, line)

    def _begin_step(self, kind: str, row: FileLine[CodexLine], model: str = "") -> _CodexStep:
        """Return a new move that begins with ``row``."""
        move = _CodexStep(kind, row, model)
        self.steps.append(move)
        self._extend_step(move, row)
        return move

    def _extend_step(self, move: _CodexStep, row: FileLine[CodexLine]) -> None:
        """Add a line to ``move``."""
        move.positions.append(_LinePosition(row.number, row.start, len(row.raw)))
        if self._lines is None:
            move.rows.append(row)

    def _load_lines(self, move: _CodexStep) -> list[FileLine[CodexLine]]:
        """Return the lines of ``move``, which are read again where they are not held."""
        if self._lines is None:
            return move.rows
        return [
            self._lines.reread_line(place.number, place.start, place.length, CODEX_LINE) for place in move.positions
        ]

    def make_body(
        self, kind: type[B], make: Callable[[_CodexStep, list[FileLine[CodexLine]]], B], move: _CodexStep
    ) -> B | LazyBody:
        """Return what ``make`` makes of a move: at once, or when it is asked for where its words are not held."""
        if self._lines is None:
            return make(move, move.rows)
        return LazyBody(kind, partial(self._load_body, make, move))

    def _load_body(
        self, make: Callable[[_CodexStep, list[FileLine[CodexLine]]], EntryBody], move: _CodexStep
    ) -> EntryBody:
        return make(move, self._load_lines(move))

    def get_first_line(self, move: _CodexStep) -> CodexLine:
        """Return the first line of a move."""
        return self._load_lines(move)[0].value or CodexLine()

    def _add_header(self, row: FileLine[CodexLine], line: CodexLine) -> None:
        if self.header is not None:
            self.log.skipped["session_meta (again)"] += 1
            return
        self.header = row
        self.meta = _SESSION_META.decode_or_default(line.payload or Raw(row.decodable))

    def _add_event(self, row: FileLine[CodexLine], line: CodexLine) -> None:
        event = _CODEX_EVENT.decode_or_default(line.payload)
        kind = line.type or line.record_type or "line without a type"
        self.log.skipped[f"{kind}:{event.type}" if kind == "event_msg" else kind] += 1
        if kind == "token_usage_record":
            self._assign_usage(row, event.usage, event.thread_token_usage)
        elif event.type == "token_count":
            info = _TOKEN_COUNT_INFO.decode_or_default(event.info)
            self._assign_usage(row, info.last_token_usage, info.total_token_usage)
        elif event.type == "turn_aborted" and self._open_answer is not None:
            self._open_answer.stop, self._open_answer = ABORTED, None
        elif event.type == "thread_rolled_back":
            self._open_answer = None
            self._begin_step("rollback", row)
        elif event.type in ("task_started", "task_complete", "user_message") or kind == "turn_context":
            self._open_answer = None
            self.model = event.model or self.model

    def _assign_usage(self, row: FileLine[CodexLine], last: Raw, total: Raw) -> None:
        """Give the usage to the newest answer, if it has none and this is not the summariser's or a repetition."""
        tokens = _CODEX_TOKENS.decode_or_default(last)
        if bytes(total) == self._total or self._summarising or tokens.input_tokens <= 0:
            return
        self._total, self._open_answer = bytes(total), None
        answer = self._last_answer
        if answer is not None and answer.usage is None:
            cached, cache_write = tokens.cached_input_tokens, tokens.cache_write_input_tokens
            answer.usage = Usage(tokens.input_tokens, tokens.output_tokens, cached, cache_write)
            answer.usage_line, answer.has_stale_usage = (
                row.number,
                row.value is not None and row.value.holdfast == STALE_USAGE_BASIS,
            )

    def _add_item(self, row: FileLine[CodexLine], line: CodexLine, payload: Raw) -> None:
        try:
            item = decode_item(payload)
            message = decode_codex_message([(item, payload)])
        except (FormatError, *DECODE_ERRORS) as error:
            self.log.skipped["response_item (unreadable)"] += 1
            self.damaged.append((len(self.steps), row, f"the item is kept as a note: {error}"))
            return
        if item.type in _IGNORED_ITEMS:
            self.log.skipped[item.type] += 1
        elif is_model_item(item) and _CODEX_MARKS.decode_or_default(line.metadata).compaction_output:
            self.log.skipped["item of the summariser"] += 1
            self._open_answer, self._summarising = None, True
        elif is_model_item(item) and self._open_answer is not None:
            self._extend_step(self._open_answer, row)
            self._open_answer.item_id = item.id or ""
        else:
            move = self._begin_step("answer" if is_model_item(item) else "said", row, self.model)
            move.item_id = item.id or ""
            move.begins_turn = message.role == "user" and not message.text.startswith(_INJECTED_PREFIXES)
            self._open_answer = move if move.kind == "answer" else None
            self._last_answer = self._open_answer or self._last_answer


class _CurrentBranch:
    """The path from the root to where the conversation stands."""

    def __init__(self, head: str | None) -> None:
        self.head = head
        self.steps: list[tuple[str, EntryBody | LazyBody, bool]] = []
        """For each step: the entry to go on from, what it says, whether the user begins a turn."""

    @property
    def leaf(self) -> str | None:
        return self.steps[-1][0] if self.steps else self.head

    def rewind_turns(self, turns: int) -> None:
        """Take ``turns`` turns of the user away."""
        while turns > 0 and self.steps:
            turns -= self.steps.pop()[2]


def read_codex(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``.

    Of an open file the entries are lazy: each is read from it when it is asked for, so it must stay open.
    """
    file = _CodexFile(data)
    way = _CurrentBranch(_append_codex_header(file))
    tails: list[str | None] = []
    for move in file.steps:
        _append_codex_step(file, way, move)
        tails.append(way.leaf)
    for place, row, reason in file.damaged:
        file.log.add_damaged_line(row.number, row.raw, reason, tails[place - 1] if place else way.head)
    answers = [move.model for move in file.steps if move.kind == "answer" and move.model]
    return file.log.finish_recording(
        Recording(
            format=FORMAT,
            session=file.meta.id or file.meta.session_id or "",
            cwd=file.meta.cwd,
            model=answers[-1] if answers else file.model,
            api=API_NAME,
            leaf=way.leaf,
        )
    )


def _append_codex_header(file: _CodexFile) -> str | None:
    """Append the header as a note and its instructions as a frame; return the id of the last."""
    row = file.header
    if row is None:
        file.log.report_problem(1, "the file does not begin with its session_meta; its items are read without")
        return None
    line = row.value or CodexLine()
    at = parse_millis(line.timestamp)
    head = file.log.add_entry(
        file.meta.id or "session", None, NoteEntry(f"{CODEX_NOTE_PREFIX}session_meta", row.raw), at, row.number
    )
    text = _BASE_INSTRUCTIONS.decode_or_default(file.meta.base_instructions).text or file.meta.instructions or ""
    if text:
        head = file.log.add_entry(
            f"{head}+frame", head, RequestSetup(make_short_digest(text), estimate_text_tokens(text)), at, row.number
        )
    return head


def _append_codex_step(file: _CodexFile, branch: _CurrentBranch, move: _CodexStep) -> None:
    """Append the entries of one move and go on from there."""
    log, first, last = file.log, move.positions[0].number, move.positions[-1].number
    if move.kind == "rollback":
        log.add_entry(
            f"line-{first}", branch.leaf, file.make_body(NoteEntry, _make_rollback_note, move), move.at, first
        )
        branch.rewind_turns(_CODEX_EVENT.decode_or_default(file.get_first_line(move).payload).num_turns)
        return
    if move.kind == "compacted":
        tail, body = _append_codex_compaction(file, branch, move)
        branch.steps.append((tail, body, False))
        return
    message_body = file.make_body(MessageEntry, _make_codex_entry, move)
    name = move.item_id or f"line-{last}"
    if move.kind == "answer":
        call = CallMetadata(move.model, move.usage or Usage(), move.stop, move.usage_line, move.has_stale_usage)
        tail = log.add_answer(name, branch.leaf, message_body, call, move.at, first, last)
    else:
        tail = log.add_entry(name, branch.leaf, message_body, move.at, first, last)
    branch.steps.append((tail, message_body, move.begins_turn))


def _make_rollback_note(_move: _CodexStep, rows: list[FileLine[CodexLine]]) -> NoteEntry:
    return NoteEntry(f"{CODEX_NOTE_PREFIX}thread_rolled_back", rows[0].raw)


def _make_codex_entry(move: _CodexStep, rows: list[FileLine[CodexLine]]) -> MessageEntry:
    payloads = [_get_item_payload(row) for row in rows]
    message = decode_codex_message([(decode_item(payload), payload) for payload in payloads], move.model)
    return MessageEntry(
        make_sized_message(message, API_NAME, join_origin_lines([bytes(raw) for raw in payloads])),
        join_origin_lines([row.raw for row in rows]),
    )


def _get_item_payload(row: FileLine[CodexLine]) -> Raw:
    """Return the item on a line: in old files it is the line."""
    return (row.value or CodexLine()).payload or Raw(row.decodable)


def _append_codex_compaction(
    file: _CodexFile, branch: _CurrentBranch, move: _CodexStep
) -> tuple[str, EntryBody | LazyBody]:
    """Append a recorded compaction: its line as a note, then the entry; return the entry's id and what it says."""
    log, number = file.log, move.positions[0].number
    parent = log.add_entry(
        f"line-{number}+line", branch.leaf, file.make_body(NoteEntry, _make_compacted_note, move), move.at, number
    )
    kept_count = _count_kept_tail(
        _decode_items_or_none(
            _COMPACTED_PAYLOAD.decode_or_default(file.get_first_line(move).payload).replacement_history
        ),
        branch,
    )
    body = file.make_body(
        CompactionEntry, partial(_make_codex_compaction, log.message_counts[parent] - kept_count, kept_count), move
    )
    return log.add_entry(f"line-{number}", parent, body, move.at, number), body


def _make_compacted_note(_move: _CodexStep, rows: list[FileLine[CodexLine]]) -> NoteEntry:
    return NoteEntry(f"{CODEX_NOTE_PREFIX}compacted", rows[0].raw)


def _make_codex_compaction(
    keep: int, kept_count: int, _move: _CodexStep, rows: list[FileLine[CodexLine]]
) -> CompactionEntry:
    """Return a recorded compaction that kept the last ``kept_count`` messages of the conversation, from ``keep`` on."""
    payload = _COMPACTED_PAYLOAD.decode_or_default((rows[0].value or CodexLine()).payload)
    new = _decode_items_or_none(payload.replacement_history)
    words = [message.text for message in new[: len(new) - kept_count] if message.role == "user"]
    if payload.message and payload.message not in words:
        words.append(payload.message)
    summary = Message("user", tuple([Text(text) for text in words if text]))
    return CompactionEntry(
        first_kept=keep,
        summary=summary,
        head_tokens=build_sized_message(summary).tokens,
        native=None if payload.message else _encode_native_items(payload.replacement_history),
        author="model" if payload.message else "native",
    )


def _decode_items_or_none(items: Sequence[Raw]) -> list[Message]:
    try:
        return decode_codex_messages(items)
    except (FormatError, *DECODE_ERRORS):
        return []


def _count_kept_tail(new: Sequence[Message], branch: _CurrentBranch) -> int:
    """Return how many messages at the end of ``new`` are those at the end of the way."""
    matches = 0
    for _, body, _ in reversed(branch.steps):
        message_body = body.read_body() if isinstance(body, LazyBody) and body.body_type is MessageEntry else body
        if not isinstance(message_body, MessageEntry):
            continue  # a compaction before this one
        if matches == len(new) or build_sized_message(new[-1 - matches]).digest != message_body.sized_message.digest:
            break
        matches += 1
    return matches


def _encode_native_items(items: list[Raw]) -> Raw:
    return Raw(msgspec.json.encode({"api": API_NAME, "model": "", "items": items}))
