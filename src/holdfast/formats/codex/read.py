"""Reader of Codex rollouts (``~/.codex/sessions/**/rollout-*.jsonl``).

Adjacent items of the model are one answer, and the next usage report belongs to it. ``compacted`` lines become
compactions; a rollback of turns starts a branch. Older files hold bare items after a bare header and are read too.
Items that the summarizer made are not part of the conversation.

Since mid-2026 lines are numbered (``ordinal``), and the file of a fork holds only what came after its ``history_base``;
``lineage.py`` finds what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

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
"""Prefix of the reason of a note that keeps a line of a rollout."""
MAX_RECORDED_WINDOW = 1_000_000_000
"""Tokens: a hundred times the largest window of any model. A larger number comes from a damaged line."""
_IGNORED_ITEMS = frozenset({"ghost_snapshot", "compaction_trigger"})
"""Types of items that are not part of the conversation."""
_INJECTED_PREFIXES = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md instructions")
"""Beginnings of user messages that Codex writes itself. They begin no turn, so a rollback does not count them."""


class CodexLine(Struct):
    """The fields of a line, or of a bare header, that the reader uses; any may be missing."""

    timestamp: str | None = None
    type: str = ""
    payload: Raw = Raw()
    metadata: Raw = Raw()
    record_type: str = ""
    id: str | None = None
    instructions: str | None = None
    holdfast: str | None = None
    ordinal: int | None = None


class _CodexMarks(Struct):
    compaction_output: bool = False


class _BaseInstructions(Struct):
    text: str = ""


class HistoryBase(Struct, frozen=True):
    """The part of another rollout that a fork goes on from: all lines of a thread before an ordinal."""

    thread_id: str = ""
    rollout_id: str = ""
    end_ordinal_exclusive: int = 0


class SessionMeta(Struct):
    """The payload of a header line."""

    id: str | None = None
    session_id: str | None = None
    cwd: str = ""
    instructions: str | None = None
    base_instructions: Raw = Raw()
    history_base: HistoryBase | None = None


class _CodexTokens(Struct):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0


class _TokenCountInfo(Struct):
    last_token_usage: Raw = Raw()
    total_token_usage: Raw = Raw()
    model_context_window: int | None = None


class _CodexEvent(Struct):
    type: str = ""
    info: Raw = Raw()
    usage: Raw = Raw()
    thread_token_usage: Raw = Raw()
    num_turns: int = 0
    model: str = ""
    model_context_window: int | None = None


class _CompactedPayload(Struct):
    message: str = ""
    replacement_history: list[Raw] = []


B = TypeVar("B", bound=EntryBody)
CODEX_LINE = LenientDecoder(CodexLine)
_CODEX_MARKS = LenientDecoder(_CodexMarks)
_BASE_INSTRUCTIONS = LenientDecoder(_BaseInstructions)
SESSION_META = LenientDecoder(SessionMeta)
_CODEX_TOKENS = LenientDecoder(_CodexTokens)
_TOKEN_COUNT_INFO = LenientDecoder(_TokenCountInfo)
_CODEX_EVENT = LenientDecoder(_CodexEvent)
_COMPACTED_PAYLOAD = LenientDecoder(_CompactedPayload)


class _LinePosition(Struct, frozen=True, gc=False):
    """Number, offset and length (in bytes) of a line in its file."""

    number: int
    start: int
    length: int


class _CodexStep:
    """What one or more lines add to the conversation: an answer, another message, a compaction or a rollback."""

    __slots__ = (
        "at",
        "begins_turn",
        "has_calls",
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
        """Its lines, empty if they can be read again from the file."""
        self.positions: list[_LinePosition] = []
        self.item_id = ""
        """Id of its last item."""
        self.has_calls = False
        self.begins_turn = False
        """Whether it is a message of the user, and not one that Codex injected."""
        self.model = model
        self.usage: Usage | None = None
        self.usage_line = 0
        """Number of the line that reported the usage."""
        self.has_stale_usage = False
        """Whether that line marks the usage as stale (``STALE_USAGE_BASIS``)."""
        self.stop = ""


class _CodexFile:
    """The decoded lines of one file as steps, in order; without their content if the file can be read again."""

    def __init__(self, data: bytes | LineFile) -> None:
        self.log = RecordingBuilder()
        self._lines = data if isinstance(data, LineFile) else None
        self.header: FileLine[CodexLine] | None = None
        self.first_ordinal: int | None = None
        """Ordinal of the first line after the header that has one."""
        self.meta = SessionMeta()
        self.model = ""
        self.window: int | None = None
        """The newest window that a line states."""
        self.steps: list[_CodexStep] = []
        self.damaged: list[tuple[int, FileLine[CodexLine], str]] = []
        self._open_answer: _CodexStep | None = None
        """The answer that the next item of the model would continue, None after anything that ends an answer."""
        self._last_answer: _CodexStep | None = None
        """The answer that the next usage report belongs to."""
        self._is_summarizing = False
        """Whether the newest items are the summarizer's, so the next usage report is too."""
        self._total_usage = b""
        """Total of the newest usage report, to recognize a repeated one."""
        for row in decode_lines(data, CODEX_LINE):
            self._add_line(row)

    def _add_line(self, row: FileLine[CodexLine]) -> None:
        line = row.value
        if line is None:
            self.damaged.append((len(self.steps), row, row.fault))
            return
        if row.fault:
            self.log.report_problem(row.number, row.fault)
        if self.header is not None and self.first_ordinal is None:
            self.first_ordinal = line.ordinal
        # Files of mid-2025 have bare items, whose type is the item's own, after a bare header without a type.
        if line.type == "response_item" or (line.type and not line.payload):
            self._add_item(row, line, line.payload or Raw(row.decodable))
        elif line.type == "compacted":
            self._open_answer = None
            self._is_summarizing = False
            self._begin_step("compacted", row)
        elif line.type == "session_meta" or (not line.type and line.id is not None):
            self._add_header(row, line)
        else:
            self._add_event(row, line)

    def _begin_step(self, kind: str, row: FileLine[CodexLine], model: str = "") -> _CodexStep:
        """Append a new step that begins with ``row``, and return it."""
        step = _CodexStep(kind, row, model)
        self.steps.append(step)
        self._extend_step(step, row)
        return step

    def _extend_step(self, step: _CodexStep, row: FileLine[CodexLine]) -> None:
        step.positions.append(_LinePosition(row.number, row.start, len(row.raw)))
        if self._lines is None:
            step.rows.append(row)

    def _load_lines(self, step: _CodexStep) -> list[FileLine[CodexLine]]:
        """Return the lines of ``step``, read again from the file if they are not in memory."""
        if self._lines is None:
            return step.rows
        lines = self._lines
        return [
            lines.reread_line(
                place.number,
                place.start,
                place.length,
                CODEX_LINE,
            )
            for place in step.positions
        ]

    def make_body(
        self,
        kind: type[B],
        make: Callable[[_CodexStep, list[FileLine[CodexLine]]], B],
        step: _CodexStep,
    ) -> B | LazyBody:
        """Return the body that ``make`` builds from a step: now, or lazily if its lines are not in memory."""
        if self._lines is None:
            return make(step, step.rows)
        return LazyBody(kind, partial(self._load_body, make, step))

    def _load_body(
        self,
        make: Callable[[_CodexStep, list[FileLine[CodexLine]]], EntryBody],
        step: _CodexStep,
    ) -> EntryBody:
        return make(step, self._load_lines(step))

    def get_first_line(self, step: _CodexStep) -> CodexLine:
        """Return the first line of a step."""
        return self._load_lines(step)[0].value or CodexLine()

    def _add_header(self, row: FileLine[CodexLine], line: CodexLine) -> None:
        if self.header is not None:
            # The first header names the session. Later ones, as after a resume, are only counted.
            self.log.skipped["session_meta (again)"] += 1
            return
        self.header = row
        self.meta = SESSION_META.decode_or_default(line.payload or Raw(row.decodable))

    def _add_event(self, row: FileLine[CodexLine], line: CodexLine) -> None:
        event = _CODEX_EVENT.decode_or_default(line.payload)
        kind = line.type or line.record_type or "line without a type"
        counted_kind = f"{kind}:{event.type}" if kind == "event_msg" else kind
        self.log.skipped[counted_kind] += 1
        if kind == "token_usage_record":
            self._assign_usage(row, event.usage, event.thread_token_usage)
        elif event.type == "token_count":
            info = _TOKEN_COUNT_INFO.decode_or_default(event.info)
            self._note_window(info.model_context_window)
            self._assign_usage(row, info.last_token_usage, info.total_token_usage)
        elif event.type == "turn_aborted" and self._open_answer is not None:
            # Its items stay in the history, but no model finished it, so it is no measure of anything. A call is
            # recorded only when it is complete and then started: what was aborted is its run.
            if not self._open_answer.has_calls:
                self._open_answer.stop = ABORTED
            self._open_answer = None
        elif event.type == "thread_rolled_back":
            self._open_answer = None
            self._begin_step("rollback", row)
        elif event.type in ("task_started", "task_complete", "user_message") or kind == "turn_context":
            # Items of the next turn must not be joined to an answer of this one.
            self._open_answer = None
            self.model = event.model or self.model
            self._note_window(event.model_context_window)

    def _note_window(self, window: int | None) -> None:
        """Keep ``window`` as the newest one, unless the line has none that a model can have."""
        if window is not None and 0 < window <= MAX_RECORDED_WINDOW:
            self.window = window

    def _assign_usage(self, row: FileLine[CodexLine], last: Raw, total: Raw) -> None:
        """Assign reported usage to the newest answer, unless it has some or the report is not about it.

        A report with an unchanged total repeats the one before. The summarizer's calls are reported in the same way as
        those of the conversation.
        """
        tokens = _CODEX_TOKENS.decode_or_default(last)
        is_repeated = bytes(total) == self._total_usage
        if is_repeated or self._is_summarizing or tokens.input_tokens <= 0:
            return
        self._total_usage = bytes(total)
        # A usage report ends an answer: the next items are another call's.
        self._open_answer = None
        answer = self._last_answer
        if answer is None or answer.usage is not None:
            return
        answer.usage = Usage(
            tokens.input_tokens,
            tokens.output_tokens,
            tokens.cached_input_tokens,
            tokens.cache_write_input_tokens,
        )
        answer.usage_line = row.number
        answer.has_stale_usage = row.value is not None and row.value.holdfast == STALE_USAGE_BASIS

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
            return
        is_from_model = is_model_item(item)
        if is_from_model and _CODEX_MARKS.decode_or_default(line.metadata).compaction_output:
            self.log.skipped["item of the summariser"] += 1
            self._open_answer = None
            self._is_summarizing = True
        elif is_from_model and self._open_answer is not None:
            self._extend_step(self._open_answer, row)
            self._open_answer.item_id = item.id or ""
            self._open_answer.has_calls = self._open_answer.has_calls or bool(message.calls)
        elif is_from_model:
            step = self._begin_step("answer", row, self.model)
            step.item_id = item.id or ""
            step.has_calls = bool(message.calls)
            self._open_answer = self._last_answer = step
        else:
            step = self._begin_step("message", row, self.model)
            step.item_id = item.id or ""
            step.begins_turn = message.role == "user" and not message.text.startswith(_INJECTED_PREFIXES)
            self._open_answer = None


class _BranchStep(NamedTuple):
    """A step on the current branch: its last entry, the body of that step, and whether it begins a turn."""

    last_entry_id: str
    body: EntryBody | LazyBody
    begins_turn: bool


class _CurrentBranch:
    """The path from the root to the point where the conversation stands."""

    def __init__(self, root: str | None) -> None:
        self.root = root
        self.steps: list[_BranchStep] = []

    @property
    def leaf(self) -> str | None:
        return self.steps[-1].last_entry_id if self.steps else self.root

    def rewind_turns(self, turns: int) -> None:
        """Remove the last ``turns`` turns of the user with everything after them."""
        while turns > 0 and self.steps:
            if self.steps.pop().begins_turn:
                turns -= 1


def read_codex(data: bytes | LineFile) -> Recording:
    """Return the recording in ``data``.

    Entries of an open file are lazy: each is read from it on demand, so the file must stay open.
    """
    file = _CodexFile(data)
    branch = _CurrentBranch(_append_codex_header(file))
    _report_missing_history(file)
    model = file.model
    leaves: list[str | None] = []  # after each step
    for step in file.steps:
        _append_codex_step(file, branch, step)
        leaves.append(branch.leaf)
        if step.kind == "answer" and step.model:
            model = step.model
    for step_count, row, reason in file.damaged:
        parent = leaves[step_count - 1] if step_count else branch.root
        file.log.add_damaged_line(row.number, row.raw, reason, parent)
    return file.log.finish_recording(
        Recording(
            format=FORMAT,
            session=file.meta.id or file.meta.session_id or "",
            cwd=file.meta.cwd,
            model=model,
            api=API_NAME,
            window=file.window,
            leaf=branch.leaf,
        )
    )


def _report_missing_history(file: _CodexFile) -> None:
    """Report that the file is a fork's, and that what it goes on from is not in front of its lines."""
    base = file.meta.history_base
    if base is None or not base.end_ordinal_exclusive:
        return
    if file.first_ordinal is not None and file.first_ordinal < base.end_ordinal_exclusive:
        return
    file.log.report_problem(
        1,
        f"this is a fork that goes on from ordinal {base.end_ordinal_exclusive:,} of thread {base.thread_id}, whose "
        "rollout was not found beside it: the conversation is read without its beginning; put that rollout into the "
        "same folder and read the file again",
    )


def _append_codex_header(file: _CodexFile) -> str | None:
    """Append the header as a note and its instructions as a setup; return the id of the last entry, None without."""
    row = file.header
    if row is None:
        file.log.report_problem(1, "the file does not begin with its session_meta; its items are read without")
        return None
    line = row.value or CodexLine()
    at = parse_millis(line.timestamp)
    note = NoteEntry(f"{CODEX_NOTE_PREFIX}session_meta", row.raw)
    root = file.log.add_entry(file.meta.id or "session", None, note, at, row.number)
    # Newer versions record the system prompt as ``base_instructions``, older ones as ``instructions``.
    text = _BASE_INSTRUCTIONS.decode_or_default(file.meta.base_instructions).text or file.meta.instructions or ""
    if not text:
        return root
    setup = RequestSetup(make_short_digest(text), estimate_text_tokens(text))
    return file.log.add_entry(f"{root}+frame", root, setup, at, row.number)


def _append_codex_step(file: _CodexFile, branch: _CurrentBranch, step: _CodexStep) -> None:
    """Append the entries of one step, and move the branch on (or, for a rollback, back)."""
    log = file.log
    first = step.positions[0].number
    last = step.positions[-1].number
    if step.kind == "rollback":
        # The note goes to the branch that is left: the file's own record of why it ends.
        note = file.make_body(NoteEntry, _make_rollback_note, step)
        log.add_entry(f"line-{first}", branch.leaf, note, step.at, first)
        event = _CODEX_EVENT.decode_or_default(file.get_first_line(step).payload)
        branch.rewind_turns(event.num_turns)
        return
    if step.kind == "compacted":
        last_entry_id, body = _append_codex_compaction(file, branch, step)
        branch.steps.append(_BranchStep(last_entry_id, body, begins_turn=False))
        return
    message_body = file.make_body(MessageEntry, _make_codex_entry, step)
    name = step.item_id or f"line-{last}"
    if step.kind == "answer":
        call = CallMetadata(
            step.model,
            step.usage or Usage(),
            step.stop,
            step.usage_line,
            step.has_stale_usage,
        )
        last_entry_id = log.add_answer(name, branch.leaf, message_body, call, step.at, first, last)
    else:
        last_entry_id = log.add_entry(name, branch.leaf, message_body, step.at, first, last)
    branch.steps.append(_BranchStep(last_entry_id, message_body, step.begins_turn))


def _make_rollback_note(_step: _CodexStep, rows: list[FileLine[CodexLine]]) -> NoteEntry:
    return NoteEntry(f"{CODEX_NOTE_PREFIX}thread_rolled_back", rows[0].raw)


def _make_codex_entry(step: _CodexStep, rows: list[FileLine[CodexLine]]) -> MessageEntry:
    payloads = [_get_item_payload(row) for row in rows]
    items = [(decode_item(payload), payload) for payload in payloads]
    message = decode_codex_message(items, step.model)
    wire = join_origin_lines([bytes(payload) for payload in payloads])
    origin = join_origin_lines([row.raw for row in rows])
    return MessageEntry(make_sized_message(message, API_NAME, wire), origin)


def _get_item_payload(row: FileLine[CodexLine]) -> Raw:
    """Return the item on a line; in old files the line itself is the item."""
    return (row.value or CodexLine()).payload or Raw(row.decodable)


def _append_codex_compaction(
    file: _CodexFile,
    branch: _CurrentBranch,
    step: _CodexStep,
) -> tuple[str, EntryBody | LazyBody]:
    """Append a recorded compaction: its line as a note, then the entry. Return the entry's id and body."""
    log = file.log
    number = step.positions[0].number
    note = file.make_body(NoteEntry, _make_compacted_note, step)
    parent = log.add_entry(f"line-{number}+line", branch.leaf, note, step.at, number)
    payload = _COMPACTED_PAYLOAD.decode_or_default(file.get_first_line(step).payload)
    new_history = _decode_items_or_none(payload.replacement_history)
    # The line has the new history but does not say which of it was kept, so the messages are compared.
    kept_count = _count_kept_tail(new_history, branch)
    first_kept = log.message_counts[parent] - kept_count
    body = file.make_body(CompactionEntry, partial(_make_codex_compaction, first_kept, kept_count), step)
    return log.add_entry(f"line-{number}", parent, body, step.at, number), body


def _make_compacted_note(_step: _CodexStep, rows: list[FileLine[CodexLine]]) -> NoteEntry:
    return NoteEntry(f"{CODEX_NOTE_PREFIX}compacted", rows[0].raw)


def _make_codex_compaction(
    first_kept: int,
    kept_count: int,
    _step: _CodexStep,
    rows: list[FileLine[CodexLine]],
) -> CompactionEntry:
    """Return a recorded compaction that kept the last ``kept_count`` messages, from index ``first_kept`` on.

    Codex writes the whole new history: user messages, the summary, and the kept messages at its end. Everything before
    the kept ones that is the user's counts as the summary.
    """
    payload = _COMPACTED_PAYLOAD.decode_or_default((rows[0].value or CodexLine()).payload)
    new_history = _decode_items_or_none(payload.replacement_history)
    head = new_history[: len(new_history) - kept_count]
    # Remote compactions have no ``message``: their readable words are only in the new history.
    texts = [message.text for message in head if message.role == "user"]
    if payload.message and payload.message not in texts:
        texts.append(payload.message)
    summary = Message("user", tuple([Text(text) for text in texts if text]))
    # Without a text the provider compacted: its items are encrypted, and only they can be sent again.
    is_native = not payload.message
    return CompactionEntry(
        first_kept=first_kept,
        summary=summary,
        head_tokens=build_sized_message(summary).tokens,
        native=_encode_native_items(payload.replacement_history) if is_native else None,
        author="native" if is_native else "model",
    )


def _decode_items_or_none(items: Sequence[Raw]) -> list[Message]:
    """Return the messages in an array of items, or an empty list if one of them cannot be read."""
    try:
        return decode_codex_messages(items)
    except (FormatError, *DECODE_ERRORS):
        return []


def _count_kept_tail(new_history: Sequence[Message], branch: _CurrentBranch) -> int:
    """Return how many messages at the end of ``new_history`` are also the last ones on the branch."""
    matches = 0
    for step in reversed(branch.steps):
        body = step.body
        if isinstance(body, LazyBody) and body.body_type is MessageEntry:
            body = body.read_body()
        if not isinstance(body, MessageEntry):
            continue  # a compaction before this one
        if matches == len(new_history):
            break
        if build_sized_message(new_history[-1 - matches]).digest != body.sized_message.digest:
            break
        matches += 1
    return matches


def _encode_native_items(items: list[Raw]) -> Raw:
    return Raw(msgspec.json.encode({"api": API_NAME, "model": "", "items": items}))
