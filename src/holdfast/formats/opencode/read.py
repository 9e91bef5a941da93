"""Reader of opencode sessions.

opencode keeps sessions as database rows and exports them as one JSON object; both have the same messages. The id of
an entry names the message and a digest of everything before it, so a message that opencode changed later begins a
branch. Tool output is kept only in the result entry; in the origin of the call it is ``null``.

Notes, and not messages, are: the request for a compaction and its summary (which become a ``CompactionEntry``),
failed answers, and parts of unknown types. Results that opencode cleared become a ``DecisionEntry``. Reverted
messages become a branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent
from holdfast.formats.base import ABORTED, STALE_USAGE_BASIS, Recording, RecordingProblem
from holdfast.formats.common.lines import BOM, LenientDecoder, decode_document, decode_raw_fields, strip_json_whitespace
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_short_digest, make_sized_message
from holdfast.formats.opencode.parts import (
    INLINED_MIME_TYPES,
    OPENCODE_INFO,
    OPENCODE_PART,
    SILENT_PART_TYPES,
    OpencodeMessageInfo,
    OpencodePart,
    OpencodeTime,
    decode_opencode_parts,
    decode_opencode_usage,
    decode_tool_result,
    split_answer_steps,
    to_safe_int,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, MessageEntry, NoteEntry, Usage

FORMAT = API = "opencode"
OPENCODE_NOTE_PREFIX = "opencode:"
"""Prefix of the reason of a note that keeps something of opencode's."""
CLEARED_RULE = "opencode"
"""Rule of the edits for results that opencode cleared."""
SESSION_NOTE = f"{OPENCODE_NOTE_PREFIX}session"
MARKER_NOTE = f"{OPENCODE_NOTE_PREFIX}compaction"
SUMMARY_NOTE = f"{OPENCODE_NOTE_PREFIX}summary"
MESSAGE_NOTE = f"{OPENCODE_NOTE_PREFIX}message"
MESSAGE_NOTES = frozenset({MARKER_NOTE, SUMMARY_NOTE, MESSAGE_NOTE})
"""Reasons of the notes that keep a whole message."""
API_OF_PROVIDER = {"anthropic": "anthropic", "openai": "openai-responses", "google": "gemini"}
"""The API of each provider, by opencode's name, that has only one."""


class OpencodeStoredMessage(Struct, frozen=True):
    """A stored message: its id, the JSON of its ``info``, and the id and JSON of each part."""

    id: str
    info: bytes
    parts: tuple[tuple[str, bytes], ...] = ()
    skipped: str = ""
    """Kind of a row that is no part of the conversation; empty for a message."""


class OpencodeStoredSession(Struct, frozen=True):
    """A stored session; ``info`` is as exported. ``messages`` is iterated once, in order, so it may be a generator."""

    id: str
    info: bytes
    messages: Iterable[OpencodeStoredMessage]


class _RevertPoint(Struct, frozen=True, rename={"message": "messageID", "part": "partID"}):
    message: str = ""
    part: str = ""


class OpencodeSessionInfo(Struct, rename={"parent": "parentID"}):
    """The fields of a session's ``info`` that the reader uses."""

    id: str = ""
    parent: str = ""
    directory: str = ""
    title: str = ""
    time: OpencodeTime = OpencodeTime()
    revert: _RevertPoint | None = None


class _ExportDocument(Struct):
    info: Raw = Raw()
    messages: list[Raw] = []


class _ExportMessage(Struct):
    info: Raw = Raw()
    parts: list[Raw] = []


class _IdField(Struct):
    id: str = ""


SESSION_INFO = LenientDecoder(OpencodeSessionInfo)
_EXPORT_DOCUMENT = LenientDecoder(_ExportDocument)
_EXPORT_MESSAGE = LenientDecoder(_ExportMessage)
_ID_FIELD = LenientDecoder(_IdField)
_STABLE_FIELDS = ("id", "slug", "version")
"""Fields of a session that never change; only these are kept, so the root entry stays the same on every import."""
_OWNER_FIELDS = ("sessionID", "messageID")
"""Fields that name the session of a message, or the message of a part. A database has them as columns."""


def read_opencode(data: bytes) -> Recording:
    """Return the recording in ``data``, a session that opencode exported."""
    row = decode_document(data.removeprefix(BOM).strip(), _EXPORT_DOCUMENT)
    document = row.value or _ExportDocument()
    session_info = SESSION_INFO.decode_or_default(document.info)
    if not session_info.id:
        raise UnrecognizedContent("the session has no id in its `info`; give what `opencode export` wrote")
    messages = map(_to_stored_message, document.messages)
    session = OpencodeStoredSession(session_info.id, bytes(document.info), messages)
    recording = build_opencode_recording(session)
    if not row.fault:
        return recording
    return replace(recording, problems=(RecordingProblem(0, row.fault), *recording.problems))


def _to_stored_message(raw: Raw) -> OpencodeStoredMessage:
    message = _EXPORT_MESSAGE.decode_or_default(raw)
    parts = []
    for part in message.parts:
        part_id = _ID_FIELD.decode_or_default(part).id
        parts.append((part_id, bytes(part)))
    message_id = _ID_FIELD.decode_or_default(message.info).id
    # Without ``info`` it is no message; the whole object is kept then, and reported.
    return OpencodeStoredMessage(message_id, bytes(message.info or raw), tuple(parts))


def build_opencode_recording(session: OpencodeStoredSession, sidechains: tuple[Recording, ...] = ()) -> Recording:
    """Return the recording of a session; ``sidechains`` are the recordings of its sub-agents."""
    # An export is indented and a database is not: without whitespace both give the same entries.
    reader = _OpencodeReader(replace(session, info=strip_json_whitespace(session.info)))
    for message in session.messages:
        parts = tuple([(part_id, strip_json_whitespace(raw)) for part_id, raw in message.parts])
        reader.add_message(replace(message, info=strip_json_whitespace(message.info), parts=parts))
    return replace(reader.finish_recording(), sidechains=sidechains)


class _OpencodeReader:
    """Builds a recording from the messages of a session, one after the other."""

    def __init__(self, session: OpencodeStoredSession) -> None:
        self.session_info = SESSION_INFO.decode_or_default(session.info)
        self.log = RecordingBuilder()
        session_fields = {}
        for name, value in decode_raw_fields(session.info).items():
            if name in _STABLE_FIELDS:
                session_fields[name] = value
        note = NoteEntry(SESSION_NOTE, encode_json(session_fields | {"id": session.id}))
        at = self.session_info.time.created_ms or None
        self.last_entry_id = self.log.add_entry(session.id, None, note, at)
        self.leaf: str | None = None
        """Where the conversation stands if its end was reverted, else None."""
        self.id = session.id
        self.model = ""
        self.api = ""
        self.markers: dict[str, OpencodePart] = {}
        """Requests for a compaction, by message id."""
        self.first_message_index: dict[str, int] = {}
        """Index in the history of the first of our messages that each message became, by its id."""
        self.pending_clearings: list[tuple[int, Edit]] = []
        """Results that opencode cleared, each with the time, whose decisions are not written yet."""

    def add_message(self, message: OpencodeStoredMessage) -> None:
        """Append the entries of one message."""
        if message.skipped:
            self.log.skipped[message.skipped] += 1
            return
        if not decode_raw_fields(message.info):
            self._append_damaged(f"message {message.id}", message.info)
            return
        info = OPENCODE_INFO.decode_or_default(message.info)
        # Before the message: a clearing is a decision that its request already showed.
        self._append_clearings(info.time.created_ms)
        revert = self.session_info.revert
        if revert is not None and self.leaf is None and message.id == revert.message:
            self._set_reverted_leaf(message, info, revert.part)
        self._append_message(message, info)

    def _append_message(self, message: OpencodeStoredMessage, info: OpencodeMessageInfo) -> None:
        message_count = self.log.message_counts[self.last_entry_id]
        self.first_message_index.setdefault(message.id, message_count)
        pieces = []
        for part_id, raw in message.parts:
            piece = OPENCODE_PART.decode_or_default(raw)
            self._check_part(message, part_id, raw, piece)
            pieces.append(piece)
        if info.role == "user":
            self._append_user_message(message, info, pieces)
        elif info.role == "assistant":
            self._append_assistant_message(message, info, pieces)
        else:
            self.log.report_problem(0, f"message {message.id} has the role {info.role!r}; it is kept as a note")
            self._append_note(MESSAGE_NOTE, message, info)

    def finish_recording(self) -> Recording:
        """Return the finished recording."""
        self._append_clearings(None)
        # Drops the kinds that were counted zero times.
        self.log.skipped = +self.log.skipped
        info = self.session_info
        leaf = self.last_entry_id if self.leaf is None else self.leaf
        return self.log.finish_recording(
            Recording(FORMAT, self.id, info.directory, info.title, self.model, self.api, leaf=leaf)
        )

    def _set_reverted_leaf(
        self,
        message: OpencodeStoredMessage,
        info: OpencodeMessageInfo,
        part: str,
    ) -> None:
        """Set the leaf before a reverted message, or, if only its parts from ``part`` on were, after the parts before.

        opencode keeps reverted messages until the user goes on, so they are read too, as a branch.
        """
        # opencode's ids sort in the order in which the parts were made.
        kept_parts = []
        if part:
            kept_parts = [(part_id, raw) for part_id, raw in message.parts if part_id < part]
        previous_entry_id = self.last_entry_id
        if kept_parts:
            self._append_message(replace(message, parts=tuple(kept_parts)), info)
        self.leaf = self.last_entry_id
        self.last_entry_id = previous_entry_id

    def _append_entry(
        self,
        name: str,
        body: NoteEntry | MessageEntry | CompactionEntry | DecisionEntry,
        content: bytes | str,
        at: int = 0,
    ) -> None:
        """Append an entry; its id is ``name`` and a digest of its content and of all entries before it."""
        text = content if isinstance(content, str) else content.decode(errors="replace")
        digest = make_short_digest(f"{self.last_entry_id}|{text}")
        self.last_entry_id = self.log.add_entry(f"{name}+{digest}", self.last_entry_id, body, at or None)

    def _append_note(self, reason: str, message: OpencodeStoredMessage, info: OpencodeMessageInfo) -> None:
        """Append a message that is not part of the conversation as a note."""
        # opencode fills in the ``summary`` of user messages later, which must not look like a changed message.
        dropped_fields = ("summary",) if info.role == "user" else ()
        raw = _encode_stored_message(message, message.parts, drop=dropped_fields)
        self.log.skipped[reason.removeprefix(OPENCODE_NOTE_PREFIX)] += 1
        self._append_entry(message.id, NoteEntry(reason, raw), raw, info.time.created_ms)

    def _append_damaged(self, description: str, raw: bytes) -> None:
        self.log.report_problem(0, f"{description} is no JSON object; it is kept as a note")
        self._append_entry("damaged", NoteEntry(f"{OPENCODE_NOTE_PREFIX}damaged", raw, {"what": description}), raw)

    def _check_part(
        self,
        message: OpencodeStoredMessage,
        part_id: str,
        raw: bytes,
        piece: OpencodePart,
    ) -> None:
        """Count a part that the model does not see, and keep one of an unknown type as a note."""
        is_silent = piece.type in SILENT_PART_TYPES or piece.mime in INLINED_MIME_TYPES or piece.ignored
        if not decode_raw_fields(raw):
            self._append_damaged(f"part {part_id} of message {message.id}", raw)
        elif is_silent:
            self.log.skipped[piece.type] += piece.type != "compaction"  # its message is counted
        elif piece.type not in ("text", "reasoning", "tool", "file"):
            self.log.skipped[piece.type or "part without a type"] += 1
            note = NoteEntry(f"{OPENCODE_NOTE_PREFIX}{piece.type}", raw)
            self._append_entry(part_id or message.id, note, raw)

    def _append_user_message(
        self,
        message: OpencodeStoredMessage,
        info: OpencodeMessageInfo,
        pieces: Sequence[OpencodePart],
    ) -> None:
        self.model = info.model.model or self.model
        for piece in pieces:
            if piece.type == "compaction":
                # A user message with this part is opencode's request for a compaction, not something the user said.
                self.markers[message.id] = piece
                self._append_note(MARKER_NOTE, message, info)
                return
        content = decode_opencode_parts(pieces)
        sized_message = make_sized_message(Message("user", content), API, None)
        origin = _encode_stored_message(message, message.parts)
        self._append_message_entry(message.id, sized_message, origin, info)

    def _append_message_entry(
        self,
        name: str,
        message: SizedMessage,
        origin: bytes | None,
        info: OpencodeMessageInfo,
    ) -> None:
        body = MessageEntry(message, None if origin is None else Raw(origin))
        self._append_entry(name, body, message.digest.hex(), info.time.created_ms)

    def _append_assistant_message(
        self,
        message: OpencodeStoredMessage,
        info: OpencodeMessageInfo,
        pieces: Sequence[OpencodePart],
    ) -> None:
        self.model = info.model_id or self.model
        self.api = API_OF_PROVIDER.get(info.provider, self.api)
        is_summary = bytes(info.summary) == b"true"
        # An answer that the user interrupted is sent on as far as it got; other failed answers never are.
        is_interrupted = info.error is not None and info.error.name == "MessageAbortedError"
        is_failed = info.error is not None and not (is_interrupted and decode_opencode_parts(pieces))
        is_finished_summary = is_summary and not is_failed and bool(info.finish)
        if is_finished_summary and info.parent in self.markers:
            # A summary that failed, was not finished, or that nobody asked for compacts nothing.
            self._append_note(SUMMARY_NOTE, message, info)
            self._append_compaction(message, info, pieces)
        elif is_summary or is_failed:
            self._append_note(MESSAGE_NOTE, message, info)
        else:
            for number, indexes in enumerate(split_answer_steps(pieces)):
                step_parts = [message.parts[index] for index in indexes]
                step_pieces = [pieces[index] for index in indexes]
                step_message = replace(message, parts=tuple(step_parts))
                self._append_answer(step_message, info, step_pieces, number)

    def _append_compaction(
        self,
        message: OpencodeStoredMessage,
        info: OpencodeMessageInfo,
        pieces: Sequence[OpencodePart],
    ) -> None:
        marker = self.markers[info.parent]
        text = "\n\n".join(piece.text for piece in pieces if piece.type == "text")
        summary = build_sized_message(Message.from_text("user", text))
        # Without a kept tail the summary stands for all messages so far.
        message_count = self.log.message_counts[self.last_entry_id]
        body = CompactionEntry(
            first_kept=self.first_message_index.get(marker.tail or "", message_count),
            summary=summary.message,
            head_tokens=summary.tokens,
            trigger="auto" if marker.auto else "manual",
            author="model",
        )
        self._append_entry(f"{message.id}+compaction", body, f"{body.first_kept}", info.time.created_ms)

    def _append_answer(
        self,
        message: OpencodeStoredMessage,
        info: OpencodeMessageInfo,
        pieces: Sequence[OpencodePart],
        number: int,
    ) -> None:
        """Append one answer of the model and the results of its calls."""
        content = decode_opencode_parts(pieces, info.model_id)
        sized_message = make_sized_message(Message("assistant", content), API, None)
        call = _get_opencode_call(info, pieces)
        name = f"{message.id}-{number}" if number else message.id
        # The call is in the digest too: its usage is written when the message is there already, and a session may be
        # imported in between.
        digest = make_short_digest(f"{self.last_entry_id}|{sized_message.digest.hex()}|{call}")
        name = f"{name}+{digest}"
        parts = []
        for (part_id, raw), piece in zip(message.parts, pieces, strict=True):
            parts.append((part_id, _drop_tool_output(raw, piece)))
        origin = Raw(_encode_stored_message(message, parts))
        body = MessageEntry(sized_message, origin)
        at = info.time.created_ms or None
        self.last_entry_id = self.log.add_answer(name, self.last_entry_id, body, call, at)
        tool_pieces = [piece for piece in pieces if piece.type == "tool"]
        if tool_pieces:
            self._append_results(name, info, tool_pieces)

    def _append_results(
        self,
        name: str,
        info: OpencodeMessageInfo,
        tool_pieces: Sequence[OpencodePart],
    ) -> None:
        results = tuple([decode_tool_result(piece) for piece in tool_pieces])
        message_index = self.log.message_counts[self.last_entry_id]
        sized_message = make_sized_message(Message("tool", results), API, None)
        self._append_message_entry(f"{name}+results", sized_message, None, info)
        for number, (piece, result) in enumerate(zip(tool_pieces, results, strict=True)):
            cleared_at = piece.state.time.compacted
            if cleared_at is not None:
                edit = _make_clearing_edit(message_index, number, result)
                self.pending_clearings.append((to_safe_int(cleared_at), edit))

    def _append_clearings(self, now: int | None) -> None:
        """Append decisions for the results cleared before ``now`` (None: all of them), one for each moment.

        A message must not show the clearing before the moment at which opencode did it, or a replay of the session
        would see a shorter request than was sent.
        """
        due: dict[int, list[Edit]] = {}
        pending = []
        for cleared_at, edit in self.pending_clearings:
            if now is None or cleared_at < now:
                due.setdefault(cleared_at, []).append(edit)
            else:
                pending.append((cleared_at, edit))
        self.pending_clearings = pending
        for cleared_at in sorted(due):
            edits = tuple(due[cleared_at])
            spans = [f"{edit.span.start}.{edit.span.part}" for edit in edits]
            self._append_entry("cleared", DecisionEntry(edits), " ".join(spans), cleared_at)


def _make_clearing_edit(message_index: int, part: int, result: ToolResult) -> Edit:
    """Return the edit that replaces a cleared result by the text that opencode shows in its place."""
    cleared_text = Text(CLEARED_RESULT_TEXT)
    cleared_result = ToolResult(result.call_id, result.name, (cleared_text,), result.is_error)
    tokens_before = _count_result_tokens(result)
    saved_tokens = tokens_before - _count_result_tokens(cleared_result)
    span = Span(message_index, message_index + 1, part)
    return Edit(span, (cleared_result,), CLEARED_RULE, "opencode cleared it", saved_tokens)


def _count_result_tokens(result: ToolResult) -> int:
    return build_sized_message(Message("tool", (result,))).tokens


def _get_opencode_call(info: OpencodeMessageInfo, pieces: Sequence[OpencodePart]) -> CallMetadata:
    """Return model, usage and stop reason of an answer: from its last ``step-finish``, else from the message."""
    tokens = info.tokens
    stop = info.finish
    is_finished = bool(info.finish)
    for piece in pieces:
        if piece.type == "step-finish":
            tokens = piece.tokens
            stop = piece.reason
            is_finished = True
    if info.error is not None or not is_finished:
        return CallMetadata(info.model_id, Usage(), ABORTED)
    has_stale_usage = info.holdfast == STALE_USAGE_BASIS
    return CallMetadata(info.model_id, decode_opencode_usage(tokens), stop, has_stale_usage=has_stale_usage)


def _encode_stored_message(
    message: OpencodeStoredMessage,
    parts: Sequence[tuple[str, bytes]],
    drop: tuple[str, ...] = (),
) -> bytes:
    """Return a message as one object, without owner fields, the fields in ``drop``, and parts that are not JSON."""
    info = _normalize_fields(message.info, message.id, (*_OWNER_FIELDS, *drop))
    normalized_parts = []
    for part_id, raw in parts:
        if decode_raw_fields(raw):
            normalized_parts.append(_normalize_fields(raw, part_id, _OWNER_FIELDS))
    return encode_json({"info": info, "parts": normalized_parts})


def _normalize_fields(raw: bytes, id_: str, drop: tuple[str, ...]) -> dict[str, object]:
    """Return an object's fields without ``drop``, the id last.

    A database has the id in a column and an export in the object; in one order both give the same bytes.
    """
    fields: dict[str, object] = dict(decode_raw_fields(raw))
    for name in drop:
        fields.pop(name, None)
    own_id = fields.pop("id", id_)
    if own_id:
        fields["id"] = own_id
    return fields


def _drop_tool_output(raw: bytes, piece: OpencodePart) -> bytes:
    """Return a part without its tool's output, which is kept in the result entry."""
    if piece.type != "tool" or piece.state.output is None:
        return raw
    part_fields = decode_raw_fields(raw)
    state_fields = decode_raw_fields(part_fields["state"])
    return encode_json(part_fields | {"state": state_fields | {"output": None}})
