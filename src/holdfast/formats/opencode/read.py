"""Sessions of opencode as a line of entries.

opencode keeps them as rows of a database and exports them as one JSON object; both are the same messages here. What is
read names each entry by the message, and by all that stands before it: where opencode changed a message later, a
branch begins there. The output of a tool stands in the result alone; its place in the origin is ``null``.

Not said, and kept as notes: the request for a compaction and its summary (which become a ``CompactionEntry``), answers
that failed, parts of an unknown type. Results that opencode cleared are a ``DecisionEntry``. What was reverted is a
branch.
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
    ENDED_STATUSES,
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
)
from holdfast.formats.opencode.parts import to_safe_int as whole_number
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
"""How the reason of a note begins that keeps something of opencode's."""
CLEARED_RULE = "opencode"
"""The rule of the edits that say what opencode cleared."""
SESSION_NOTE, MARKER_NOTE, SUMMARY_NOTE, MESSAGE_NOTE = (
    f"{OPENCODE_NOTE_PREFIX}{kind}" for kind in ("session", "compaction", "summary", "message")
)
MESSAGE_NOTES = frozenset({MARKER_NOTE, SUMMARY_NOTE, MESSAGE_NOTE})
"""Reasons of the notes that are messages."""
API_OF_PROVIDER = {"anthropic": "anthropic", "openai": "openai-responses", "google": "gemini"}
"""opencode's names of providers whose API is known by them."""


class OpencodeStoredMessage(Struct, frozen=True):
    """A message as it is kept: an id, and the JSON of what stands about it and of its parts with theirs."""

    id: str
    info: bytes
    parts: tuple[tuple[str, bytes], ...] = ()


class OpencodeStoredSession(Struct, frozen=True):
    """A session as it is kept; ``info`` as opencode exports it. ``messages`` are asked for once, in order."""

    id: str
    info: bytes
    messages: Iterable[OpencodeStoredMessage]


class _RevertPoint(Struct, frozen=True, rename={"message": "messageID", "part": "partID"}):
    message: str = ""
    part: str = ""


class OpencodeSessionInfo(Struct, rename={"parent": "parentID"}):
    """What is needed of what stands about a session."""

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
_EXPORT_DOCUMENT, _EXPORT_MESSAGE, _ID_FIELD = (
    LenientDecoder(_ExportDocument),
    LenientDecoder(_ExportMessage),
    LenientDecoder(_IdField),
)
_STABLE_FIELDS = ("id", "slug", "version")
"""Fields about a session that nothing changes later."""
_OWNER_FIELDS = ("sessionID", "messageID")
"""Fields that name what a message or a part lies in."""


def read_opencode(data: bytes) -> Recording:
    """Return the recording in ``data``, a session that opencode exported."""
    row = decode_document(data.removeprefix(BOM).strip(), _EXPORT_DOCUMENT)
    document = row.value or _ExportDocument()
    about = SESSION_INFO.decode_or_default(document.info)
    if not about.id:
        raise UnrecognizedContent("the session has no id in its `info`; give what `opencode export` wrote")
    session_recording = build_opencode_recording(
        OpencodeStoredSession(about.id, bytes(document.info), map(_to_stored_message, document.messages))
    )
    faults = (RecordingProblem(0, row.fault),) if row.fault else ()
    return replace(session_recording, problems=(*faults, *session_recording.problems))


def _to_stored_message(raw: Raw) -> OpencodeStoredMessage:
    message = _EXPORT_MESSAGE.decode_or_default(raw)
    parts = tuple((_ID_FIELD.decode_or_default(part).id, bytes(part)) for part in message.parts)
    return OpencodeStoredMessage(_ID_FIELD.decode_or_default(message.info).id, bytes(message.info or raw), parts)


def build_opencode_recording(session: OpencodeStoredSession, sidechains: tuple[Recording, ...] = ()) -> Recording:
    """Return the recording of a session; ``sidechains`` are those of its sub-agents."""
    reading = _OpencodeReader(replace(session, info=strip_json_whitespace(session.info)))
    for message in session.messages:
        parts = tuple([(id_, strip_json_whitespace(raw)) for id_, raw in message.parts])
        reading.add_message(OpencodeStoredMessage(message.id, strip_json_whitespace(message.info), parts))
    return replace(reading.finish_recording(), sidechains=sidechains)


class _OpencodeReader:
    """The fold over the messages of a session: a log in the making, and where it stands."""

    def __init__(self, session: OpencodeStoredSession) -> None:
        self.about = SESSION_INFO.decode_or_default(session.info)
        self.log = RecordingBuilder()
        stable_fields = {key: value for key, value in decode_raw_fields(session.info).items() if key in _STABLE_FIELDS}
        at = self.about.time.created_ms or None
        self.last_entry_id = self.log.add_entry(
            session.id, None, NoteEntry(SESSION_NOTE, encode_json(stable_fields | {"id": session.id})), at
        )
        self.leaf: str | None = None
        """Where the conversation stood before what was reverted."""
        self.id = session.id
        self.model = self.api = ""
        self.markers: dict[str, OpencodePart] = {}
        """Requests for a compaction, by the id of their message."""
        self.first_message_index: dict[str, int] = {}
        """The first slot of each message."""
        self.cleared: list[tuple[int, Edit]] = []
        """Results that were cleared, and when: not yet told."""

    def add_message(self, message: OpencodeStoredMessage) -> None:
        """Append what one message says."""
        if not decode_raw_fields(message.info):
            self._append_damaged(f"message {message.id}", message.info)
            return
        info = OPENCODE_INFO.decode_or_default(message.info)
        self._append_clearings(info.time.created_ms)
        revert = self.about.revert
        if revert is not None and self.leaf is None and message.id == revert.message:
            self._set_reverted_leaf(message, info, revert.part)
        self._append_message(message, info)

    def _append_message(self, message: OpencodeStoredMessage, info: OpencodeMessageInfo) -> None:
        pieces = [OPENCODE_PART.decode_or_default(raw) for _, raw in message.parts]
        self.first_message_index.setdefault(message.id, self.log.message_counts[self.last_entry_id])
        for (id_, raw), piece in zip(message.parts, pieces, strict=True):
            self._check_part(message, id_, raw, piece)
        if info.role == "user":
            self._append_user_message(message, info, pieces)
        elif info.role == "assistant":
            self._append_assistant_message(message, info, pieces)
        else:
            self.log.report_problem(0, f"message {message.id} has the role {info.role!r}; it is kept as a note")
            self._append_note(MESSAGE_NOTE, message, info)

    def finish_recording(self) -> Recording:
        """Return what was collected."""
        self._append_clearings(None)
        self.log.skipped = +self.log.skipped
        about = self.about
        leaf = self.last_entry_id if self.leaf is None else self.leaf
        return self.log.finish_recording(
            Recording(FORMAT, self.id, about.directory, about.title, self.model, self.api, leaf=leaf)
        )

    def _set_reverted_leaf(self, message: OpencodeStoredMessage, info: OpencodeMessageInfo, part: str) -> None:
        """Take the leaf to what stands before a message, or before a part of it, that was reverted."""
        before = tuple([pair for pair in message.parts if part and pair[0] < part])
        tip = self.last_entry_id
        if before:
            self._append_message(replace(message, parts=before), info)
        self.leaf, self.last_entry_id = self.last_entry_id, tip

    def _append_entry(
        self,
        name: str,
        body: NoteEntry | MessageEntry | CompactionEntry | DecisionEntry,
        content: bytes | str,
        at: int = 0,
    ) -> None:
        """Append an entry named after ``name`` and all that stands before it."""
        text = content if isinstance(content, str) else content.decode(errors="replace")
        self.last_entry_id = self.log.add_entry(
            f"{name}+{make_short_digest(f'{self.last_entry_id}|{text}')}", self.last_entry_id, body, at or None
        )

    def _append_note(self, reason: str, message: OpencodeStoredMessage, info: OpencodeMessageInfo) -> None:
        """Append a message that is not said."""
        raw = _encode_stored_message(message, message.parts, drop=("summary",) if info.role == "user" else ())
        self.log.skipped[reason.removeprefix(OPENCODE_NOTE_PREFIX)] += 1
        self._append_entry(message.id, NoteEntry(reason, raw), raw, info.time.created_ms)

    def _append_damaged(self, description: str, raw: bytes) -> None:
        self.log.report_problem(0, f"{description} is no JSON object; it is kept as a note")
        self._append_entry("damaged", NoteEntry(f"{OPENCODE_NOTE_PREFIX}damaged", raw, {"what": description}), raw)

    def _check_part(self, message: OpencodeStoredMessage, id_: str, raw: bytes, piece: OpencodePart) -> None:
        """Count a part that nobody said, and keep one of an unknown type."""
        if not decode_raw_fields(raw):
            self._append_damaged(f"part {id_} of message {message.id}", raw)
        elif piece.type in SILENT_PART_TYPES or piece.mime in INLINED_MIME_TYPES or piece.ignored:
            self.log.skipped[piece.type] += piece.type != "compaction"  # its message is counted
        elif piece.type not in ("text", "reasoning", "tool", "file"):
            self.log.skipped[piece.type or "part without a type"] += 1
            self._append_entry(id_ or message.id, NoteEntry(f"{OPENCODE_NOTE_PREFIX}{piece.type}", raw), raw)

    def _append_user_message(
        self, message: OpencodeStoredMessage, info: OpencodeMessageInfo, pieces: Sequence[OpencodePart]
    ) -> None:
        self.model = info.model.model or self.model
        marker = next((piece for piece in pieces if piece.type == "compaction"), None)
        if marker is not None:
            self.markers[message.id] = marker
            self._append_note(MARKER_NOTE, message, info)
            return
        sized_message = make_sized_message(Message("user", decode_opencode_parts(pieces)), API, None)
        self._append_message_entry(message.id, sized_message, _encode_stored_message(message, message.parts), info)

    def _append_message_entry(
        self, name: str, message: SizedMessage, origin: bytes | None, info: OpencodeMessageInfo
    ) -> None:
        body = MessageEntry(message, None if origin is None else Raw(origin))
        self._append_entry(name, body, message.digest.hex(), info.time.created_ms)

    def _append_assistant_message(
        self, message: OpencodeStoredMessage, info: OpencodeMessageInfo, pieces: Sequence[OpencodePart]
    ) -> None:
        self.model = info.model_id or self.model
        self.api = API_OF_PROVIDER.get(info.provider, self.api)
        is_summary = bytes(info.summary) == b"true"
        is_failed = info.error is not None and not (
            info.error.name == "MessageAbortedError" and decode_opencode_parts(pieces)
        )
        if is_summary and not is_failed and info.finish and info.parent in self.markers:
            self._append_note(SUMMARY_NOTE, message, info)
            self._append_compaction(message, info, pieces)
        elif is_summary or is_failed:
            self._append_note(MESSAGE_NOTE, message, info)
        else:
            for number, places in enumerate(split_answer_steps(pieces)):
                own = replace(message, parts=tuple([message.parts[at] for at in places]))
                self._append_answer(own, info, [pieces[at] for at in places], number)

    def _append_compaction(
        self, message: OpencodeStoredMessage, info: OpencodeMessageInfo, pieces: Sequence[OpencodePart]
    ) -> None:
        marker = self.markers[info.parent]
        summary = build_sized_message(
            Message.from_text("user", "\n\n".join(piece.text for piece in pieces if piece.type == "text"))
        )
        depth = self.log.message_counts[self.last_entry_id]
        body = CompactionEntry(
            first_kept=self.first_message_index.get(marker.tail or "", depth),
            summary=summary.message,
            head_tokens=summary.tokens,
            trigger="auto" if marker.auto else "manual",
            author="model",
        )
        self._append_entry(f"{message.id}+compaction", body, f"{body.first_kept}", info.time.created_ms)

    def _append_answer(
        self, message: OpencodeStoredMessage, info: OpencodeMessageInfo, pieces: Sequence[OpencodePart], number: int
    ) -> None:
        """Append one answer of the model and what its calls gave."""
        parts = decode_opencode_parts(pieces, info.model_id)
        tool_pieces = [piece for piece in pieces if piece.type == "tool" and piece.state.status in ENDED_STATUSES]
        sized_message = make_sized_message(Message("assistant", parts), API, None)
        call = _get_opencode_call(info, pieces)
        name = f"{message.id}-{number}" if number else message.id
        name = f"{name}+{make_short_digest(f'{self.last_entry_id}|{sized_message.digest.hex()}|{call}')}"
        emptied_parts = [
            (id_, _drop_tool_output(raw, piece)) for (id_, raw), piece in zip(message.parts, pieces, strict=True)
        ]
        body = MessageEntry(sized_message, Raw(_encode_stored_message(message, emptied_parts)))
        self.last_entry_id = self.log.add_answer(name, self.last_entry_id, body, call, info.time.created_ms or None)
        if tool_pieces:
            self._append_results(name, info, tool_pieces)

    def _append_results(self, name: str, info: OpencodeMessageInfo, tool_pieces: Sequence[OpencodePart]) -> None:
        results = tuple([decode_tool_result(piece) for piece in tool_pieces])
        place = self.log.message_counts[self.last_entry_id]
        self._append_message_entry(
            f"{name}+results", make_sized_message(Message("tool", results), API, None), None, info
        )
        for number, (piece, result) in enumerate(zip(tool_pieces, results, strict=True)):
            at = piece.state.time.compacted
            if at is not None:
                self.cleared.append((whole_number(at), _make_clearing_edit(place, number, result)))

    def _append_clearings(self, now: int | None) -> None:
        """Append what was cleared before ``now``, as decisions: one for each moment."""
        due = sorted((pair for pair in self.cleared if now is None or pair[0] < now), key=lambda pair: pair[0])
        self.cleared = [pair for pair in self.cleared if pair not in due]
        for at in dict.fromkeys(at for at, _ in due):
            edits = tuple([edit for when, edit in due if when == at])
            spans = " ".join(f"{edit.span.start}.{edit.span.part}" for edit in edits)
            self._append_entry("cleared", DecisionEntry(edits), spans, at)


def _make_clearing_edit(message_index: int, part: int, result: ToolResult) -> Edit:
    """Return the edit that shows what opencode shows of a result that it cleared."""
    short_ = ToolResult(result.call_id, result.name, (Text(CLEARED_RESULT_TEXT),), result.is_error)
    saves = (
        build_sized_message(Message("tool", (result,))).tokens - build_sized_message(Message("tool", (short_,))).tokens
    )
    return Edit(Span(message_index, message_index + 1, part), (short_,), CLEARED_RULE, "opencode cleared it", saves)


def _get_opencode_call(info: OpencodeMessageInfo, pieces: Sequence[OpencodePart]) -> CallMetadata:
    """Return what is recorded of a model call: by its last ``step-finish``, else by the message."""
    ends = [piece for piece in pieces if piece.type == "step-finish"]
    if info.error is not None or not (ends or info.finish):
        return CallMetadata(info.model_id, Usage(), ABORTED)
    usage = decode_opencode_usage(ends[-1].tokens if ends else info.tokens)
    stop = ends[-1].reason if ends else info.finish
    return CallMetadata(info.model_id, usage, stop, has_stale_usage=info.holdfast == STALE_USAGE_BASIS)


def _encode_stored_message(
    message: OpencodeStoredMessage, parts: Sequence[tuple[str, bytes]], drop: tuple[str, ...] = ()
) -> bytes:
    """Return a message as one object; who owns it is left out, and parts that are no JSON."""
    info = _normalize_fields(message.info, message.id, (*_OWNER_FIELDS, *drop))
    return encode_json(
        {
            "info": info,
            "parts": [_normalize_fields(raw, id_, _OWNER_FIELDS) for id_, raw in parts if decode_raw_fields(raw)],
        }
    )


def _normalize_fields(raw: bytes, id_: str, drop: tuple[str, ...]) -> dict[str, object]:
    """Return the fields of an object without those of ``drop``, its id the last: so a database and an export agree."""
    raw_fields: dict[str, object] = {key: value for key, value in decode_raw_fields(raw).items() if key not in drop}
    own_id = raw_fields.pop("id", id_)
    return raw_fields | ({"id": own_id} if own_id else {})


def _drop_tool_output(raw: bytes, piece: OpencodePart) -> bytes:
    """Return a part without the output of its tool, which stands in the result."""
    if piece.type != "tool" or piece.state.output is None:
        return raw
    part_fields = decode_raw_fields(raw)
    return encode_json(part_fields | {"state": decode_raw_fields(part_fields["state"]) | {"output": None}})
