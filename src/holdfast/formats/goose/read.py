"""Reader of goose sessions: rows of its database, files of versions before 1.10, and exported sessions.

goose deletes no message. Each says whether the user sees it and whether the model gets it, and that is the record of
what was compacted: goose hides all messages from the model, then appends a summary and a word on how to go on, which
it hides from the user, and then repeats the user's newest words. The summary becomes a ``CompactionEntry``, the word a
note, and the repetition is not read as words of its own. A pair of call and result that goose replaced by a sentence
becomes a ``DecisionEntry``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.formats.base import Recording, RecordingProblem
from holdfast.formats.common.lines import (
    BOM,
    DECODE_ERRORS,
    LenientDecoder,
    decode_document,
    decode_lines,
    decode_raw_elements,
    decode_raw_fields,
    split_json_lines,
    strip_json_whitespace,
)
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_short_digest, make_sized_message
from holdfast.formats.goose.messages import (
    API_OF_PROVIDER,
    SILENT_TYPES,
    decode_goose_content,
    decode_goose_messages,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    TRIGGER_AUTO,
    TRIGGER_MANUAL,
    CompactionEntry,
    DecisionEntry,
    EntryBody,
    MessageEntry,
    NoteEntry,
)

__all__ = [
    "FORMAT",
    "GOOSE_NOTE_PREFIX",
    "GooseStoredMessage",
    "GooseStoredSession",
    "build_goose_recording",
    "read_goose",
]

FORMAT = "goose"
GOOSE_NOTE_PREFIX = "goose:"
"""Prefix of the reason of a note that keeps a message of goose."""
HIDDEN_RULE = "goose"
"""Rule of the edits for messages that goose hid from the model or replaced."""
_SECONDS_BELOW = 10_000_000_000
"""Times below are seconds: goose writes those, some of its clients ms. It is the year 2286 in seconds."""


class GooseStoredMessage(Struct, frozen=True):
    """A stored message: its id, role, the JSON of its content and metadata, and its time as stored."""

    id: str
    role: str
    content: bytes
    created: float = 0
    metadata: bytes = b""
    line: int = 0
    """Line number in a file, 0 in a database and an export."""
    fault: str = ""
    """Why the line could not be read; ``content`` is then the whole line."""


class GooseStoredSession(Struct, frozen=True):
    """A stored session; ``model_config`` is JSON."""

    id: str = ""
    title: str = ""
    folder: str = ""
    provider: str = ""
    model_config: bytes = b""
    messages: Sequence[GooseStoredMessage] = ()


class _Metadata(Struct, rename="camel"):
    user_visible: bool = True
    agent_visible: bool = True


class _ModelConfig(Struct):
    model_name: str = ""


class _FileLine(Struct):
    """A line of a session file, its first, or an exported session; any field may be missing."""

    id: str | None = None
    role: str = ""
    created: float = 0
    content: Raw = Raw()
    metadata: Raw = Raw()
    working_dir: str = ""
    description: str | None = None
    name: str | None = None
    provider_name: str | None = None
    model_config: Raw = Raw()
    conversation: Raw = Raw()


class _Conversation(Struct):
    messages: Raw = Raw()


_METADATA = LenientDecoder(_Metadata)
_MODEL_CONFIG = LenientDecoder(_ModelConfig)
_FILE_LINE = LenientDecoder(_FileLine)
_CONVERSATION = LenientDecoder(_Conversation)


class _Row(Struct, frozen=True):
    """A message of goose, decoded."""

    stored: GooseStoredMessage
    messages: tuple[Message, ...]
    """What a model was sent of it."""
    is_shown_to_user: bool
    is_sent: bool
    reason: str = ""
    """What it is if nothing was sent of it."""
    fault: str = ""
    """Why it cannot be read."""

    @property
    def role(self) -> str:
        """The role of its first message, or an empty string if nothing was sent of it."""
        return self.messages[0].role if self.messages else ""

    @property
    def at(self) -> int | None:
        """When it was written, in ms since 1970; None if the row does not say."""
        created = self.stored.created
        if not 0 < created < 2**53:
            return None
        return int(created * 1000 if created < _SECONDS_BELOW else created)

    @property
    def text(self) -> str | None:
        """Its text if it is nothing but text, else None."""
        if len(self.messages) != 1:
            return None
        parts = self.messages[0].parts
        texts = [part.text for part in parts if isinstance(part, Text)]
        return "\n".join(texts) if len(texts) == len(parts) else None

    @property
    def is_machine_text(self) -> bool:
        """Whether goose wrote it for the model, not the user or a model: text that the user never sees."""
        return not self.is_shown_to_user and self.text is not None

    def continues_with(self, other: _Row) -> bool:
        """Return whether ``other``, the next row, is another piece of the same answer."""
        is_same = self.stored.id == other.stored.id and self.is_sent == other.is_sent
        return is_same and self.role == "assistant" and other.role == "assistant"


def read_goose(data: bytes) -> Recording:
    """Return the recording in ``data``: the file of a session, or a session that goose exported."""
    first_line = next((line for _, line in split_json_lines(data)), b"")
    first_fields = decode_raw_fields(first_line)
    if not first_fields or "conversation" in first_fields:
        return _read_export(data)
    return _read_lines(data)


def _read_export(data: bytes) -> Recording:
    row = decode_document(data.removeprefix(BOM).strip(), _FILE_LINE)
    session = row.value or _FileLine()
    raw_messages = session.conversation
    if not bytes(raw_messages).startswith(b"["):
        raw_messages = _CONVERSATION.decode_or_default(raw_messages).messages
    messages = []
    for number, raw in enumerate(decode_raw_elements(raw_messages), 1):
        messages.append(_to_stored_message(_FILE_LINE.decode_or_default(raw), f"message-{number}", 0))
    recording = build_goose_recording(_to_stored_session(session, messages))
    if not row.fault:
        return recording
    return replace(recording, problems=(RecordingProblem(0, row.fault), *recording.problems))


def _read_lines(data: bytes) -> Recording:
    header = _FileLine()
    messages = []
    problems = []
    for row in decode_lines(data, _FILE_LINE):
        if row.value is None:
            messages.append(GooseStoredMessage("", "", row.raw, line=row.number, fault=row.fault))
            continue
        if row.fault:
            problems.append(RecordingProblem(row.number, row.fault))
        if row.value.role:
            messages.append(_to_stored_message(row.value, f"line-{row.number}", row.number))
        else:
            header = row.value
    recording = build_goose_recording(_to_stored_session(header, messages))
    return replace(recording, problems=tuple(sorted((*problems, *recording.problems), key=lambda item: item.line)))


def _to_stored_session(session: _FileLine, messages: Sequence[GooseStoredMessage]) -> GooseStoredSession:
    return GooseStoredSession(
        id=session.id or "",
        title=session.name or session.description or "",
        folder=session.working_dir,
        provider=session.provider_name or "",
        model_config=bytes(session.model_config),
        messages=messages,
    )


def _to_stored_message(message: _FileLine, name: str, line: int) -> GooseStoredMessage:
    return GooseStoredMessage(
        id=message.id or name,
        role=message.role,
        content=bytes(message.content),
        created=message.created,
        metadata=bytes(message.metadata),
        line=line,
    )


def build_goose_recording(session: GooseStoredSession, sidechains: tuple[Recording, ...] = ()) -> Recording:
    """Return the recording of a session; ``sidechains`` are the recordings of its sub-agents."""
    model = _MODEL_CONFIG.decode_or_default(session.model_config).model_name
    api = API_OF_PROVIDER.get(session.provider, "")
    reader = _GooseReader(model, api)
    reader.add_messages(session.messages)
    recording = Recording(
        FORMAT, session.id, session.folder, session.title, model, api, leaf=reader.leaf, sidechains=sidechains
    )
    return reader.log.finish_recording(recording)


class _Summary(Struct, frozen=True):
    """The place of a summary among the rows, and of the two rows that goose wrote behind it."""

    position: int
    continuation: int | None = None
    """The word on how to go on."""
    next_words: int | None = None
    """The next row, if it is text of the user: perhaps the repetition of the newest words."""


def _find_summaries(rows: Sequence[_Row]) -> dict[int, _Summary]:
    """Return the summaries of compactions, by their position among the rows.

    A summary is text for the model alone that a word for the model alone follows, as no model's answer is. The first
    row that is sent is one too, if all before it are hidden: then the word was left out.
    """
    spoken = [position for position, row in enumerate(rows) if row.messages]
    first_sent = next((position for position in spoken if rows[position].is_sent), -1)
    summaries = {}
    for place, position in enumerate(spoken):
        row = rows[position]
        if place == 0 or row.role != "user" or not row.is_machine_text:
            continue
        followers: list[int | None] = [*spoken[place + 1 : place + 3], None, None]
        continuation, next_words = followers[:2]
        if continuation is None or rows[continuation].role != "assistant" or not rows[continuation].is_machine_text:
            continuation, next_words = None, continuation
        if continuation is None and position != first_sent:
            continue
        if next_words is not None and (rows[next_words].role != "user" or rows[next_words].text is None):
            next_words = None
        summaries[position] = _Summary(position, continuation, next_words)
    return summaries


class _GooseReader:
    """Builds a recording from the messages of a session."""

    def __init__(self, model: str, api: str) -> None:
        self.log = RecordingBuilder()
        self.leaf: str | None = None
        self._model = model
        self._signer = (api, model)
        self._names: dict[str, str] = {}
        """The names of the tools, by call."""
        self._words: dict[str, int] = {}
        """For each text of the user, the index of the last message that is nothing but this text."""
        self._hidden: list[SizedMessage] = []
        """The newest messages, as far as goose hid them since the last compaction: a pair of call and result."""

    def add_messages(self, stored_messages: Sequence[GooseStoredMessage]) -> None:
        """Append the entries of all messages of the session."""
        rows = _join_pieces([self._decode_row(stored) for stored in stored_messages])
        summaries = _find_summaries(rows)
        last_summary = max(summaries, default=-1)
        skipped: set[int] = set()
        previous: _Row | None = None
        for position, row in enumerate(rows):
            if position in skipped:
                continue
            if position in summaries:
                skipped |= self._add_compaction(rows, summaries[position])
            elif not row.messages:
                self._add_note(row)
            elif position < last_summary:
                # Of a pair that goose had replaced before it compacted everything.
                is_sentence = row.is_machine_text and row.role == "user" and previous is not None
                if is_sentence and previous is not None and previous.role == "tool" and position + 1 not in summaries:
                    self._add_note(row, "sentence for a tool call")
                else:
                    self._add_row(row)
            else:
                self._add_current_row(row)
            if row.messages:
                previous = row
        self._end_hidden_run(None, None)

    def _decode_row(self, stored: GooseStoredMessage) -> _Row:
        """Decode a message; one of which nothing was sent, or that cannot be read, has no messages but a reason."""
        metadata = _METADATA.decode_or_default(stored.metadata)
        row = _Row(stored, (), metadata.user_visible, metadata.agent_visible)
        if stored.fault:
            return replace(row, reason="damaged", fault=stored.fault)
        try:
            # An export is indented and a database is not: without whitespace both give the same entries.
            content = decode_goose_content(strip_json_whitespace(stored.content))
            messages = decode_goose_messages(stored.role, content, self._names, self._signer)
        except DECODE_ERRORS as error:
            fault = f"the content of message {stored.id} is no list that can be read ({error}); it is kept as a note"
            return replace(row, reason="damaged", fault=fault)
        if stored.role not in ("user", "assistant"):
            fault = f"message {stored.id} has the role {stored.role!r}; it is kept as a note"
            return replace(row, reason="damaged", fault=fault)
        if messages:
            self.log.skipped.update(item.type for item, _ in content if item.type in SILENT_TYPES)
        kinds = sorted({item.type if item.type in SILENT_TYPES else "for the user alone" for item, _ in content})
        return replace(row, messages=tuple(messages), reason=", ".join(kinds) or "empty message")

    def _add_current_row(self, row: _Row) -> None:
        """Append a row behind the last compaction, where only what is sent is not hidden."""
        if row.is_sent and row.is_machine_text and row.role == "user" and self._hidden:
            self._end_hidden_run(row.messages[0], row)
            self._add_note(row, "sentence for a tool call")
            return
        if row.is_sent:
            self._end_hidden_run(None, row)
            self._add_row(row)
        elif row.text is not None:
            # No pair of call and result, so no model ever got it.
            self._add_note(row, "message that is not sent")
        else:
            self._hidden += self._add_row(row)

    def _append(self, name: str, body: EntryBody, row: _Row | None) -> None:
        at = None if row is None else row.at
        self.leaf = self.log.add_entry(name, self.leaf, body, at, 0 if row is None else row.stored.line)

    def _add_note(self, row: _Row, kind: str = "") -> None:
        """Count a row that is no message of the conversation, and keep it as a note."""
        stored = row.stored
        kind = kind or row.reason
        if row.fault:
            self.log.report_problem(stored.line, row.fault)
        self.log.skipped[kind] += 1
        note = NoteEntry(f"{GOOSE_NOTE_PREFIX}{kind}", strip_json_whitespace(stored.content))
        self._append(f"{stored.id or f'line-{stored.line}'}+note", note, row)

    def _add_row(self, row: _Row) -> list[SizedMessage]:
        """Append the messages of a row, and return them."""
        sized_messages = []
        for message in row.messages:
            sized_message = make_sized_message(message, "", None)
            sized_messages.append(sized_message)
            if message.role == "user" and row.text is not None:
                self._words[row.text] = self.log.message_counts[self.leaf]
            # goose changes messages in place; a changed one is then another entry and not a conflict.
            name = f"{row.stored.id}+{sized_message.digest.hex()[:8]}"
            body = MessageEntry(sized_message)
            if message.role == "assistant":
                call = CallMetadata(self._model)
                self.leaf = self.log.add_answer(name, self.leaf, body, call, row.at, row.stored.line)
            else:
                self._append(name, body, row)
        return sized_messages

    def _add_compaction(self, rows: Sequence[_Row], summary: _Summary) -> set[int]:
        """Append a compaction, and return the positions of the rows that it consists of beside the summary."""
        self._end_hidden_run(None, None)
        parts = set()
        if summary.continuation is not None:
            self._add_note(rows[summary.continuation], "word after a summary")
            parts.add(summary.continuation)
        message_count = self.log.message_counts[self.leaf]
        kept_index = None
        if summary.next_words is not None:
            kept_index = self._words.get(rows[summary.next_words].text or "")
        if summary.next_words is not None and kept_index is not None:
            self.log.skipped["repetition of the newest words"] += 1
            parts.add(summary.next_words)
        is_newest = kept_index == message_count - 1
        row = rows[summary.position]
        sized_summary = make_sized_message(Message.from_text("user", row.text or ""), "", None)
        body = CompactionEntry(
            first_kept=message_count - 1 if is_newest else message_count,
            summary=sized_summary.message,
            head_tokens=sized_summary.tokens,
            # The newest words are repeated unless the user asked for the compaction.
            trigger=TRIGGER_MANUAL if kept_index is None else TRIGGER_AUTO,
            author="model",
            restated=() if kept_index is None or is_newest else (kept_index,),
        )
        self._append(f"{row.stored.id}+compaction", body, row)
        return parts

    def _end_hidden_run(self, replacement: Message | None, row: _Row | None) -> None:
        """Record that the newest messages are hidden, or replaced by a sentence."""
        if not self._hidden:
            return
        stop = self.log.message_counts[self.leaf]
        saved_tokens = sum(sized_message.tokens for sized_message in self._hidden)
        replacements: tuple[Message, ...] = ()
        why = "goose hid it from the model"
        if replacement is not None:
            saved_tokens -= build_sized_message(replacement).tokens
            replacements = (replacement,)
            why = "goose replaced it by a sentence"
        span = Span(stop - len(self._hidden), stop)
        edit = Edit(span, replacements, HIDDEN_RULE, why, saved_tokens)
        self._hidden = []
        self._append(f"hidden-{make_short_digest(f'{self.leaf}|{replacement}')}", DecisionEntry((edit,)), row)


def _join_pieces(rows: Sequence[_Row]) -> list[_Row]:
    """Join answers that are stored in several rows with one id, as some clients store what was streamed."""
    joined: list[_Row] = []
    for row in rows:
        last = joined[-1] if joined else None
        if last is not None and row.stored.id and last.continues_with(row):
            parts = last.messages[0].parts + row.messages[0].parts
            joined[-1] = replace(last, messages=(Message("assistant", parts),))
        else:
            joined.append(row)
    return joined
