"""Reader of SWE-agent trajectories (``*.traj``, of version 0.6 to 1.1).

A file is one JSON object. ``history`` is the conversation; ``trajectory`` has one step for each answer, also for those
that were asked for again and never became part of it, and may have the last step alone (``submit``). A step of today
has the exact messages of its request (``query``; before 1.1 ``messages``, of the request after it): where these show a
result otherwise than the history, a history processor elided it, and that becomes a decision. Files with several
attempts have each in ``attempts``; the best one is the recording, the others stand beside it.

Rows marked ``is_demo`` are examples that were sent too: they are messages, but no answers of a model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent
from holdfast.formats.base import SYNTHETIC, Recording
from holdfast.formats.common.lines import (
    BOM,
    LenientDecoder,
    decode_document,
    decode_raw_elements,
    decode_raw_fields,
)
from holdfast.formats.common.log import CallMetadata, RecordingBuilder
from holdfast.formats.swe_agent.chat_log import (
    ChatLog,
    count_unknown_fields,
    get_content_text,
    join_thinking_blocks,
    make_answer_wire,
    make_command_call,
    make_result_wire,
)
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry

FORMAT = "swe-agent"
SWE_AGENT_NOTE_PREFIX = "swe-agent:"
"""Prefix of the reason of a note that keeps something of SWE-agent's."""
ELIDED_RULE = "swe-agent"
"""Rule of the edits for results that a history processor elided."""

_DOCUMENT_FIELDS = frozenset(
    {"trajectory", "history", "attempts", "info", "environment", "replay_config", "trajectory_path"}
)
_ROW_FIELDS = frozenset(
    {"role", "content", "agent", "message_type", "is_demo", "thought", "action", "tool_calls", "tool_call_ids"}
    | {"thinking_blocks", "tags", "cache_control"}
)


class _Document(Struct):
    trajectory: list[Raw] = []
    history: list[Raw] = []
    attempts: list[Raw] = []
    info: Raw = Raw(b"{}")
    environment: Raw = Raw(b"null")
    replay_config: Raw = Raw(b"null")


class _Info(Struct):
    best_attempt_idx: int | None = None


class _HistoryRow(Struct):
    """A row of the history; any field may be missing."""

    role: str = ""
    content: Raw = Raw(b"null")
    agent: str | None = None
    is_demo: bool | None = None
    thought: str | None = None
    action: str | None = None
    tool_calls: Raw = Raw(b"null")
    tool_call_ids: list[str] | None = None
    thinking_blocks: Raw = Raw(b"null")


class _Step(Struct):
    """A step of the trajectory; any field may be missing."""

    action: str = ""
    observation: str = ""
    response: str = ""
    thought: str | None = None
    query: list[Raw] = []
    messages: list[Raw] = []


class _WireCall(Struct):
    id: str = ""


class _ModelName(Struct, frozen=True):
    name: str = ""


class _AgentModel(Struct, frozen=True):
    model: _ModelName = _ModelName()


class _ReplayConfig(Struct):
    agent: _AgentModel = _AgentModel()


class _ConfigText(Struct):
    config: str = ""


_DOCUMENT = LenientDecoder(_Document)
_INFO = LenientDecoder(_Info)
_HISTORY_ROW = LenientDecoder(_HistoryRow)
_STEP = LenientDecoder(_Step)
_WIRE_CALL = LenientDecoder(_WireCall)
_REPLAY_CONFIG = LenientDecoder(_ReplayConfig)
_CONFIG_TEXT = LenientDecoder(_ConfigText)


def read_swe_agent(data: bytes) -> Recording:
    """Return the recording in ``data``; raises ``UnrecognizedContent`` if the trajectory has no messages."""
    row = decode_document(data.removeprefix(BOM).strip(), _DOCUMENT)
    document = row.value or _Document()
    log = RecordingBuilder()
    if row.fault:
        log.report_problem(0, row.fault)
    count_unknown_fields(log, decode_raw_fields(row.decodable), _DOCUMENT_FIELDS, "file")
    attempts = [
        (f"attempts[{index}].", _DOCUMENT.decode_or_default(raw)) for index, raw in enumerate(document.attempts)
    ]
    best_index = _INFO.decode_or_default(document.info).best_attempt_idx
    if document.history or document.trajectory:
        # The best attempt is copied to the top, so that attempt says nothing that is new.
        main = ("", document)
        others = [
            pair for index, pair in enumerate(attempts) if index != best_index and not _is_copy(pair[1], document)
        ]
    elif attempts:
        *others, main = attempts
    else:
        raise UnrecognizedContent(
            "this trajectory of SWE-agent has no messages: history and trajectory are empty; give a file of a run that "
            "has begun"
        )
    sidechains: list[Recording] = []
    recording = _read_attempt(log, *main, sidechains)
    for prefix, attempt in others:
        recorded = _read_attempt(RecordingBuilder(), prefix, attempt, sidechains)
        sidechains.append(replace(recorded, session=prefix.rstrip(".")))
    return replace(recording, sidechains=tuple(sidechains))


def _is_copy(attempt: _Document, document: _Document) -> bool:
    return list(map(bytes, attempt.history)) == list(map(bytes, document.history)) and bool(document.history)


class _Rows(Struct):
    """The rows of one conversation, each with its JSON path."""

    rows: list[_HistoryRow]
    paths: list[str]


def _read_attempt(
    log: RecordingBuilder,
    prefix: str,
    attempt: _Document,
    sidechains: list[Recording],
) -> Recording:
    """Return the conversation of one attempt; those of its other agents are added to ``sidechains``."""
    steps = [_STEP.decode_or_default(raw) for raw in attempt.trajectory]
    conversations = _split_by_agent(log, prefix, attempt.history)
    model = _get_model(attempt.replay_config)
    main = next(iter(conversations.values()), _Rows([], []))
    is_rebuilt = not main.rows
    if is_rebuilt:
        main = _rebuild_rows(prefix, steps)
        if steps:
            log.report_problem(0, f"{prefix}history is empty; the conversation is rebuilt from {prefix}trajectory")
    reader = _AttemptReader(log, model)
    note = {"environment": attempt.environment, "info": attempt.info}
    reader.chat.add_note(0, f"{SWE_AGENT_NOTE_PREFIX}info", encode_json(note))
    reader.read_rows(main, steps)
    if not is_rebuilt:
        reader.append_missing_steps(prefix, steps)
    for agent, conversation in list(conversations.items())[1:]:
        side = _AttemptReader(RecordingBuilder(), model)
        side.read_rows(conversation, ())
        sidechains.append(side.finish_recording(f"{prefix}{agent}"))
    return reader.finish_recording("")


def _split_by_agent(log: RecordingBuilder, prefix: str, history: Sequence[Raw]) -> dict[str, _Rows]:
    """Return the rows of each agent, the one of the first row first: an agent sends only its own rows."""
    conversations: dict[str, _Rows] = {}
    for index, raw in enumerate(history):
        count_unknown_fields(log, decode_raw_fields(raw), _ROW_FIELDS, "history")
        row = _HISTORY_ROW.decode_or_default(raw)
        agent = row.agent or next(iter(conversations), "main")
        conversation = conversations.setdefault(agent, _Rows([], []))
        conversation.rows.append(row)
        conversation.paths.append(f"{prefix}history[{index}]")
    return conversations


def _rebuild_rows(prefix: str, steps: Sequence[_Step]) -> _Rows:
    """Return the rows that a history would have: what the first request showed, then answers and observations."""
    rebuilt = _Rows([], [])
    if steps:
        for index, raw in enumerate(steps[0].query):
            rebuilt.rows.append(_HISTORY_ROW.decode_or_default(raw))
            rebuilt.paths.append(f"{prefix}trajectory[0].query[{index}]")
    for index, step in enumerate(steps):
        rebuilt.rows += _make_step_rows(step)
        rebuilt.paths += [f"{prefix}trajectory[{index}]"] * 2
    return rebuilt


def _make_step_rows(step: _Step) -> list[_HistoryRow]:
    """Return a step as the two rows that a history has of it."""
    content = Raw(encode_json(step.response))
    answer = _HistoryRow("assistant", content, thought=step.thought, action=step.action)
    return [answer, _HistoryRow("user", Raw(encode_json(step.observation)))]


def _get_model(replay_config: Raw) -> str:
    """Return the name of the model; the configuration is JSON in a string today, and was an object before."""
    config = bytes(replay_config)
    if config.startswith(b'"'):
        config = _CONFIG_TEXT.decode_or_default(b'{"config":' + config + b"}").config.encode("utf-8", "replace")
    return _REPLAY_CONFIG.decode_or_default(config).agent.model.name


class _SeenResult(Struct):
    """A result of a row: where it stands, and the text that requests show of it by now."""

    message_index: int
    result: ToolResult
    shown: str


class _AttemptReader:
    """Reads the rows of one conversation into a recording."""

    def __init__(self, log: RecordingBuilder, model: str) -> None:
        self.chat = ChatLog(log)
        self._model = model
        self._steps: Sequence[_Step] = ()
        self._step_indexes: dict[tuple[str, str, str], list[int]] = {}
        """Indexes of the steps with an answer: by its text and action, and by its thought and action."""
        self._next_step = 0
        """Index of the first step that may be the next answer's."""
        self._newest_step: int | None = None
        """The step that the newest answer came from, if it is known."""
        self._pending_calls: list[str] = []
        """Ids of the calls of the newest answer that have no result yet."""
        self._row_count = 0
        self._results: dict[int, _SeenResult] = {}
        """The results so far, by the number of their row."""
        self._has_own_calls = False
        """Whether the newest answer has tool calls, and not a command in its text."""

    def finish_recording(self, session: str) -> Recording:
        """Return the finished recording."""
        self.chat.log.skipped = +self.chat.log.skipped
        recording = Recording(FORMAT, session, model=self._model, api=openai_chat.API_NAME, leaf=self.chat.leaf)
        return self.chat.log.finish_recording(recording)

    def read_rows(self, conversation: _Rows, steps: Sequence[_Step]) -> None:
        """Append all rows; ``steps`` are those of the trajectory, to find what each request showed."""
        self._steps = steps
        for index, step in enumerate(steps):
            self._step_indexes.setdefault(("response", step.response, step.action), []).append(index)
            self._step_indexes.setdefault(("thought", step.thought or "", step.action), []).append(index)
        for row, path in zip(conversation.rows, conversation.paths, strict=True):
            self._append_row(row, path)

    def append_missing_steps(self, prefix: str, steps: Sequence[_Step]) -> None:
        """Append what the history leaves out of the end: the result of the last answer, or the last step (``submit``).

        Which it is depends on the version; no request showed it.
        """
        if not self._next_step:
            return
        if self._newest_step is not None and self._pending_calls:
            observation = Raw(encode_json(steps[self._newest_step].observation))
            path = f"{prefix}trajectory[{self._newest_step}].observation"
            self._append_row(_HistoryRow("tool", observation), path, has_step=False)
        for index in range(self._next_step, len(steps)):
            for row in _make_step_rows(steps[index]):
                self._append_row(row, f"{prefix}trajectory[{index}]", has_step=False)

    def _append_row(self, row: _HistoryRow, path: str, *, has_step: bool = True) -> None:
        number = self._row_count
        self._row_count += 1
        if row.role == "assistant":
            self._append_answer(number, row, path, has_step=has_step)
        elif row.role == "tool" or (row.role == "user" and self._pending_calls and not self._has_own_calls):
            self._append_result(number, row, path)
        elif row.role in ("user", "system"):
            self._pending_calls = []
            self.chat.add_row(number, path, {"role": row.role, "content": _get_content_or_empty(row)})
        else:
            self.chat.add_unreadable(number, path, encode_json(row), f"the role {row.role!r} is not known")

    def _append_answer(self, number: int, row: _HistoryRow, path: str, *, has_step: bool) -> None:
        reasoning = join_thinking_blocks(row.thinking_blocks)
        calls: list[object] = list(decode_raw_elements(row.tool_calls))
        content: Raw | str = row.content
        self._has_own_calls = bool(calls)
        if not calls and row.action and row.action.strip():
            calls = [make_command_call(f"call-{number}", row.action)]
            # The thought is the answer without its command.
            content = get_content_text(row.content) if row.thought is None else row.thought
        wire = make_answer_wire(content, calls, reasoning)
        call = CallMetadata(self._model)
        self._newest_step = None
        if row.is_demo:
            call = CallMetadata("", stop=SYNTHETIC)
        elif has_step:
            self._newest_step = self._find_step(row)
            self._append_elisions(number, self._newest_step)
        message = self.chat.add_answer_row(number, path, wire, call)
        self._pending_calls = [call.id for call in message.calls] if message is not None else []

    def _append_result(self, number: int, row: _HistoryRow, path: str) -> None:
        """Append a result; a row with several ids answers all these calls with one text, which the first one gets."""
        call_ids = row.tool_call_ids or self._pending_calls[:1]
        if not call_ids:
            # A result of nothing is sent as what it says.
            self.chat.add_row(number, path, {"role": "user", "content": _get_content_or_empty(row)})
            return
        for position, call_id in enumerate(call_ids):
            if call_id in self._pending_calls:
                self._pending_calls.remove(call_id)
            content = _get_content_or_empty(row) if position == 0 else ""
            message_index = self.chat.message_count
            message = self.chat.add_row(number, path, make_result_wire(call_id, content))
            if message is not None and message.results and position == 0:
                result = message.results[0]
                self._results[number] = _SeenResult(message_index, result, get_result_text(result))

    # -- what requests showed --------------------------------------------------------------------------------------

    def _find_step(self, row: _HistoryRow) -> int | None:
        """Return the step that an answer of the history came from, or None if the trajectory does not have it.

        The steps in between are answers that were asked for again.
        """
        keys = [("response", get_content_text(row.content), row.action or "")]
        if row.action:
            keys.append(("thought", row.thought or "", row.action))
        candidates = []
        for key in keys:
            indexes = self._step_indexes.get(key, [])
            candidates += indexes[bisect_left(indexes, self._next_step) :][:1]
        if not candidates:
            return None
        index = min(candidates)
        self.chat.log.skipped["answer that was asked for again"] += index - self._next_step
        self._next_step = index + 1
        return index

    def _append_elisions(self, number: int, step_index: int | None) -> None:
        """Append a decision for the results that the request of a step shows otherwise than the requests before."""
        if step_index is None:
            return
        rows = self._steps[step_index].query
        if not rows and step_index:
            rows = self._steps[step_index - 1].messages
        if len(rows) < number:
            # Without the history of this request, or from a processor that drops rows: nothing can be compared.
            return
        edits = []
        for row_number, seen in self._results.items():
            row = _HISTORY_ROW.decode_or_default(rows[row_number])
            if row.role not in ("tool", "user"):
                continue
            text = get_content_text(row.content)
            if text != seen.shown:
                edits.append(_make_elision_edit(seen, text))
                seen.shown = text
        if edits:
            self.chat.add_decision(number, DecisionEntry(tuple(edits)))


def _get_content_or_empty(row: _HistoryRow) -> Raw | str:
    return "" if bytes(row.content) in (b"", b"null") else row.content


def _make_elision_edit(seen: _SeenResult, text: str) -> Edit:
    """Return the edit that shows a result as a request did."""
    shown_result = ToolResult(seen.result.call_id, seen.result.name, (Text(text),), seen.result.is_error)
    current = replace(shown_result, content=(Text(seen.shown),))
    saved_tokens = _count_tokens(current) - _count_tokens(shown_result)
    span = Span(seen.message_index, seen.message_index + 1, 0)
    return Edit(span, (shown_result,), ELIDED_RULE, "a history processor of SWE-agent showed it so", saved_tokens)


def _count_tokens(result: ToolResult) -> int:
    return build_sized_message(Message("tool", (result,))).tokens


def iter_first_items(items: Raw) -> Iterator[dict[str, Raw]]:
    """Yield the fields of the first element of a JSON array, if it is an object."""
    for item in decode_raw_elements(items)[:1]:
        yield decode_raw_fields(item)


def is_swe_agent_file(fields: dict[str, Raw]) -> bool:
    """Return whether a JSON object with these fields is a trajectory of SWE-agent."""
    if {"trajectory", "history"} <= fields.keys():
        return True
    signs = {"trajectory": {"action", "observation"}, "history": {"role", "agent"}, "attempts": {"trajectory"}}
    for name, wanted in signs.items():
        if name in fields and any(wanted <= item.keys() for item in iter_first_items(fields[name])):
            return True
    return False
