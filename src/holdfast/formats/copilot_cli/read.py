"""Reader of GitHub Copilot CLI sessions (``~/.copilot/session-state/*/events.jsonl``).

A file is a sequence of events. Prompts, answers, results of tools and the client's notifications are messages; a
finished compaction is a ``CompactionEntry``. The file does not say which messages stay after a compaction, only how
many, so the kept tail is an estimate. Events of sub-agents stand between those of the main conversation and become
conversations of their own. The client writes no prompt sizes, only the tokens of its answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast.formats.base import Recording
from holdfast.formats.common.lines import FileLine, decode_lines, parse_millis
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_short_digest, make_sized_message
from holdfast.formats.copilot_cli.events import (
    COPILOT_DATA,
    COPILOT_EVENT,
    CopilotData,
    CopilotEvent,
    decode_agent_prompt,
    decode_answer_parts,
    decode_prompt_parts,
    decode_result,
    decode_working_folder,
)
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Part, Text
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.state.entries import (
    TRIGGER_AUTO,
    TRIGGER_MANUAL,
    TRIGGER_OVERFLOW,
    CompactionEntry,
    EntryBody,
    MessageEntry,
    NoteEntry,
    RequestSetup,
    Usage,
)

__all__ = ["COPILOT_NOTE_PREFIX", "FORMAT", "read_copilot_cli"]

FORMAT = "copilot-cli"
COPILOT_NOTE_PREFIX = "copilot-cli:"
"""Prefix of the reason of a note that keeps an event."""
_TRIGGERS = {"manual": TRIGGER_MANUAL, "context_limit_retry": TRIGGER_OVERFLOW}
_KEPT_TYPES = frozenset({"session.truncation", "session.error", "abort"})
"""Events that say why the conversation looks as it does; they are kept as notes and not only counted."""
_REPEATING_PROMPTS = 3
"""Number of prompts after a notification in which its text is looked for.

Newer versions write a notification that starts a turn a second time, as the prompt of that turn. Chosen by judgement:
the turn follows at once, unless the user's own words come first.
"""


class _Event(Struct, frozen=True):
    """An event with its line."""

    row: FileLine[CopilotEvent]
    event: CopilotEvent
    data: CopilotData

    @property
    def name(self) -> str:
        """The id of the entry that the event becomes."""
        return self.event.id or f"line-{self.row.number}"

    @property
    def at(self) -> int | None:
        """When it was written, in ms since 1970; None if it does not say."""
        return parse_millis(self.event.timestamp)


def read_copilot_cli(data: bytes) -> Recording:
    """Return the recording in ``data``, the ``events.jsonl`` of a session."""
    events, damaged = _decode_events(data)
    repeated = _find_repeated_notifications(events)
    session = _CopilotSession()
    for number in sorted({*events, *damaged}):
        if number in damaged:
            session.main.add_damaged_line(damaged[number])
        elif number in repeated:
            session.main.log.skipped["system.notification (repeated as a prompt)"] += 1
        else:
            session.add_event(events[number])
    return session.finish_recording()


def _decode_events(data: bytes) -> tuple[dict[int, _Event], dict[int, FileLine[CopilotEvent]]]:
    """Return the events and the damaged lines of a file, by line number."""
    events = {}
    damaged = {}
    for row in decode_lines(data, COPILOT_EVENT):
        if row.value is None:
            damaged[row.number] = row
        else:
            events[row.number] = _Event(row, row.value, COPILOT_DATA.decode_or_default(row.value.data))
    return events, damaged


def _find_repeated_notifications(events: dict[int, _Event]) -> set[int]:
    """Return the lines of the notifications whose text one of the next prompts has too."""
    repeated = set()
    waiting: list[tuple[int, str, int]] = []
    for number, item in events.items():
        if item.event.type == "system.notification" and item.data.content:
            waiting.append((number, item.data.content, _REPEATING_PROMPTS))
        elif item.event.type == "user.message":
            prompt = f"{item.data.content}\n{item.data.transformed_content or ''}"
            repeated |= {line for line, text, _ in waiting if text in prompt}
            waiting = [(line, text, left - 1) for line, text, left in waiting if left > 1 and text not in prompt]
    return repeated


class _CopilotSession:
    """The main conversation of a file and those of its sub-agents."""

    def __init__(self) -> None:
        self.main = _CopilotConversation()
        self._agents: dict[str, _CopilotConversation] = {}
        """The conversations of sub-agents, by the call that started them, or by their own id if none is named."""
        self._agent_calls: dict[str, str] = {}
        """For the id of each sub-agent, the call that started it."""
        self._agent_titles: dict[str, str] = {}

    def add_event(self, item: _Event) -> None:
        """Add an event to the conversation that it belongs to."""
        data = item.data
        if item.event.type.startswith("subagent."):
            if item.event.agent_id and data.tool_call_id:
                self._agent_calls.setdefault(item.event.agent_id, data.tool_call_id)
            key = data.tool_call_id or item.event.agent_id or ""
            self._agent_titles.setdefault(key, data.agent_display_name or data.agent_name or "")
            self.main.log.skipped[item.event.type] += 1
            return
        agent_id = item.event.agent_id or ""
        key = data.parent_tool_call_id or self._agent_calls.get(agent_id, agent_id)
        if not key:
            self.main.add_event(item)
            return
        if agent_id and data.parent_tool_call_id:
            self._agent_calls.setdefault(agent_id, data.parent_tool_call_id)
        if key not in self._agents:
            self._agents[key] = self._begin_agent(key, item)
        self._agents[key].add_event(item)

    def _begin_agent(self, key: str, item: _Event) -> _CopilotConversation:
        """Return the conversation of a new sub-agent; the prompt in the call that started it is its first message."""
        conversation = _CopilotConversation()
        conversation.model = self.main.model
        conversation.cwd = self.main.cwd
        prompt = ""
        for caller in (self.main, *self._agents.values()):
            caller.finish_answer()
            if key in caller.calls:
                prompt = decode_agent_prompt(caller.calls[key][1])
        if prompt and item.event.type != "user.message":
            conversation.append_message("user", f"{key}+prompt", (Text(prompt),), item)
        return conversation

    def finish_recording(self) -> Recording:
        """Return the recording of the main conversation with its sub-agents."""
        sidechains = []
        for key, conversation in self._agents.items():
            sidechains.append(conversation.finish_recording(key, self._agent_titles.get(key, "")))
        return self.main.finish_recording(self.main.session_id, "", tuple(sidechains))


class _CopilotConversation:
    """Builds one conversation from its events."""

    def __init__(self) -> None:
        self.log = RecordingBuilder()
        self.leaf: str | None = None
        self.session_id = self.cwd = self.model = ""
        self.calls: dict[str, tuple[str, str]] = {}
        """Name and arguments of each call, by its id."""
        self._roles: list[Role] = []
        """The role of each message."""
        self._answer: list[_Event] = []
        """The pieces of the answer that is being read."""
        self._commands: set[str] = set()
        """Ids of the tools that the user ran; the model asked for none of them."""
        self._setup_digest = ""
        self._count_at_start: int | None = None
        """Number of messages when the compaction that is running began."""
        self._first_kept = 0
        self._waiting_permissions: dict[str, _Event] = {}

    def add_event(self, item: _Event) -> None:
        """Append the entries of an event."""
        kind = item.event.type
        if item.row.fault:
            self.log.report_problem(item.row.number, item.row.fault)
        if self._answer and not (kind == "assistant.message" and self._continues_answer(item.data)):
            self.finish_answer()
        match kind:
            case "session.start" | "session.resume":
                self._add_session_start(item)
            case "system.message":
                self._add_system_prompt(item)
            case "user.message" | "system.notification":
                self._add_prompt(item)
            case "assistant.message":
                self._answer.append(item)
            case "tool.execution_complete":
                self._add_result(item)
            case "session.compaction_complete":
                self._add_compaction(item)
            case _:
                self._note_other_event(item)

    def add_damaged_line(self, row: FileLine[CopilotEvent]) -> None:
        """Keep a line that could not be read as a note."""
        self.finish_answer()
        self.log.add_damaged_line(row.number, row.raw, row.fault, self.leaf)

    def finish_recording(self, session: str, title: str, sidechains: tuple[Recording, ...] = ()) -> Recording:
        """Return the finished recording; permissions that nobody gave or refused are notes at its end."""
        self.finish_answer()
        for item in self._waiting_permissions.values():
            note = NoteEntry(f"{COPILOT_NOTE_PREFIX}{item.event.type}", item.row.raw)
            self._append(f"{item.name}+line", note, item)
        return self.log.finish_recording(
            Recording(FORMAT, session, self.cwd, title, self.model, leaf=self.leaf, sidechains=sidechains)
        )

    def append_message(self, role: Role, name: str, parts: Sequence[Part], item: _Event) -> None:
        """Append a message that no model wrote."""
        body = MessageEntry(make_sized_message(Message(role, tuple(parts)), "", None))
        self._append(name, body, item)
        self._roles.append(role)

    def _append(self, name: str, body: EntryBody, item: _Event) -> None:
        self.leaf = self.log.add_entry(name, self.leaf, body, item.at, item.row.number)

    def _append_note(self, item: _Event, kind: str = "") -> None:
        """Count an event and keep it as a note."""
        kind = kind or item.event.type
        self.log.skipped[kind] += 1
        self._append(f"{item.name}+line", NoteEntry(f"{COPILOT_NOTE_PREFIX}{kind}", item.row.raw), item)

    def _add_session_start(self, item: _Event) -> None:
        data = item.data
        self.session_id = self.session_id or data.session_id
        self.cwd = decode_working_folder(data) or self.cwd
        self.model = data.selected_model or self.model
        self._append_note(item)

    def _add_prompt(self, item: _Event) -> None:
        """Append what the user or the client said; an empty notification is only counted."""
        if item.event.type == "system.notification" and not item.data.content:
            self.log.skipped["system.notification (empty)"] += 1
            return
        self.append_message("user", item.name, decode_prompt_parts(item.data), item)

    def _add_system_prompt(self, item: _Event) -> None:
        """Append the system prompt as a setup, unless it is the one in force: newer versions repeat it."""
        text = item.data.content
        digest = make_short_digest(text)
        if digest == self._setup_digest:
            self.log.skipped["system.message (repeated)"] += 1
            return
        self._setup_digest = digest
        self._append_note(item)
        self._append(item.name, RequestSetup(digest, estimate_text_tokens(text)), item)

    def _continues_answer(self, data: CopilotData) -> bool:
        message_id = self._answer[-1].data.message_id
        is_piece = (data.chunk_count or 0) > 1
        return is_piece and bool(message_id) and data.message_id == message_id

    def finish_answer(self) -> None:
        """Append the answer that is being read, if there is one; its calls are then known."""
        if not self._answer:
            return
        first, last = self._answer[0], self._answer[-1]
        pieces = [item.data for item in self._answer]
        self._answer = []
        message = Message("assistant", decode_answer_parts(pieces))
        if not message.parts:
            self.log.skipped["assistant.message (empty)"] += 1
            return
        for call in message.calls:
            self.calls[call.id] = (call.name, call.arguments)
        self.model = last.data.model or self.model
        # The same count stands in each piece of a long answer.
        output_tokens = max(piece.output_tokens or 0 for piece in pieces)
        call_metadata = CallMetadata(self.model, Usage(output=max(0, output_tokens)))
        body = MessageEntry(make_sized_message(message, "", None))
        self.leaf = self.log.add_answer(
            first.name, self.leaf, body, call_metadata, first.at, first.row.number, last.row.number
        )
        self._roles.append("assistant")

    def _add_result(self, item: _Event) -> None:
        call_id = item.data.tool_call_id
        if call_id in self._commands:
            self._append_note(item, "tool.execution_complete (of a tool that the user ran)")
            return
        result = decode_result(item.data, self.calls.get(call_id, (item.data.tool_name, ""))[0])
        self.append_message("tool", item.name, (result,), item)

    def _add_compaction(self, item: _Event) -> None:
        data = item.data
        started_at, self._count_at_start = self._count_at_start, None
        if not data.success or not data.summary_content:
            kind = "without a summary" if data.success else "failed"
            self._append_note(item, f"session.compaction_complete ({kind})")
            return
        self._append_note(item)
        summary = make_sized_message(Message.from_text("user", data.summary_content), "", None)
        body = CompactionEntry(
            first_kept=self._estimate_first_kept(data, len(self._roles) if started_at is None else started_at),
            summary=summary.message,
            head_tokens=summary.tokens,
            tokens_before=max(0, data.pre_compaction_tokens or 0),
            tokens_after=max(0, data.post_compaction_tokens or 0),
            trigger=_TRIGGERS.get(data.trigger or "", TRIGGER_AUTO),
            author="model",
        )
        self._append(item.name, body, item)
        self._first_kept = body.first_kept

    def _estimate_first_kept(self, data: CopilotData, count_before: int) -> int:
        """Return the index of the first message that a compaction kept: the last ones that it did not remove.

        ``count_before`` is the number of messages when it began; what came later stayed.
        """
        kept = 0
        if data.pre_compaction_messages_length is not None and data.messages_removed is not None:
            kept = max(0, data.pre_compaction_messages_length - data.messages_removed)
        first_kept = max(self._first_kept, count_before - kept)
        # A result stays with its call.
        while self._first_kept < first_kept < len(self._roles) and self._roles[first_kept] == "tool":
            first_kept -= 1
        return first_kept

    def _clear_context(self, item: _Event) -> None:
        """Hide everything before, as the client does when the user starts over in the same session."""
        self._append_note(item)
        self._first_kept = len(self._roles)
        self._append(item.name, CompactionEntry(first_kept=self._first_kept, trigger=TRIGGER_MANUAL), item)

    def _note_other_event(self, item: _Event) -> None:
        kind = item.event.type
        if kind == "session.context_cleared":
            self._clear_context(item)
            return
        if kind in _KEPT_TYPES:
            self._append_note(item)
            return
        self.log.skipped[kind or "line without a type"] += 1
        if kind == "session.compaction_start":
            self._count_at_start = len(self._roles)
        elif kind == "session.model_change":
            self.model = item.data.new_model or self.model
        elif kind == "tool.user_requested":
            self._commands.add(item.data.tool_call_id)
        elif kind == "permission.requested":
            self._waiting_permissions[item.data.request_id] = item
        elif kind == "permission.completed":
            self._waiting_permissions.pop(item.data.request_id, None)
