"""Reader of trajectories in ATIF, versions 1.0 to 1.8.

A file is one JSON object with ``steps``. A step of the agent becomes an answer and one result for each of its results;
the step itself stays with the answer, so that it can be written back. Steps marked ``is_copied_context`` repeat an
earlier file or session: they are messages, but no model call of this one. Embedded sub-agents are conversations of
their own. What is not known is never an error: objects with more fields than the version allows are read.

A file may go on in another one (``continued_trajectory_ref``), which begins with the context after a compaction. The
caller finds these files (``segments.py`` says which), since nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent
from holdfast.formats.atif.document import (
    ATIF_DOCUMENT,
    ATIF_STEP,
    FORMAT,
    AtifDocument,
    AtifStep,
    StepMark,
    decode_step_messages,
    get_step_mark,
)
from holdfast.formats.base import STALE_USAGE_BASIS, SYNTHETIC, Recording
from holdfast.formats.common.lines import BOM, LenientDecoder, decode_document, decode_raw_fields, parse_millis
from holdfast.formats.common.log import (
    CallMetadata,
    RecordingBuilder,
    join_origin_lines,
    make_short_digest,
    make_sized_message,
)
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.requests.parsed_request import measure_request_setup
from holdfast.state.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    EntryBody,
    MessageEntry,
    NoteEntry,
    Usage,
)

__all__ = ["FORMAT", "TRAJECTORY_NOTE", "read_atif", "read_atif_segments"]

TRAJECTORY_NOTE = "atif:trajectory"
"""Reason of the note that keeps a file without its steps and sub-agents."""
COMPACTION_NOTE = "atif:compaction"
"""Reason of the note that keeps the steps with which a tool recorded a compaction or the summary of a branch."""
_DOCUMENT_FIELDS = frozenset(
    {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics", "extra"}
    | {"continued_trajectory_ref", "subagent_trajectories"}
)
_STEP_FIELDS = frozenset(
    {"step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content", "tool_calls"}
    | {"observation", "metrics", "extra", "llm_call_count", "is_copied_context"}
)


class _MetricsExtra(Struct, frozen=True):
    reasoning_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0


class _Metrics(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    extra: _MetricsExtra | None = None


class _ContextManagement(Struct, frozen=True):
    type: str = ""


class _ToolExtra(Struct):
    """What tools keep in ``extra`` of a step: events of pi, compactions of Terminus and Vibe, Claude Code's agents."""

    pi_event_type: str = ""
    tokens_before: int = 0
    context_management: _ContextManagement = _ContextManagement()
    is_sidechain: bool = False
    agent_id: str = ""


class RecordedCompaction(Struct, omit_defaults=True):
    """A compaction as ``extra.holdfast.compaction`` of the step with its summary has it.

    What only a provider can read of it is not in there: a trajectory is for everybody.
    """

    kept_messages: int = 0
    """Messages before the step that stay; in a file that goes on after the compaction, those behind it."""
    restated: list[int] = []
    """Indexes of hidden messages that are shown again."""
    has_summary: bool = True
    trigger: str = "auto"
    author: str = ""
    tokens_before: int = 0
    tokens_after: int = 0


_METRICS = LenientDecoder(_Metrics)
_TOOL_EXTRA = LenientDecoder(_ToolExtra)
RECORDED_COMPACTION = LenientDecoder(RecordedCompaction)


def read_atif(data: bytes) -> Recording:
    """Return the recording in one file; raises ``UnrecognizedContent`` if it has no steps."""
    return read_atif_segments([data])


def read_atif_segments(segments: Sequence[bytes]) -> Recording:
    """Return the recording in files that go on in each other, in order.

    Raises ``UnrecognizedContent`` if the first has no steps.
    """
    log = RecordingBuilder()
    sidechains: list[Recording] = []
    documents = []
    raws = []
    for number, data in enumerate(segments):
        row = decode_document(data.removeprefix(BOM).strip(), ATIF_DOCUMENT)
        if row.fault:
            log.report_problem(0, f"file {number + 1}: {row.fault}" if number else row.fault)
        documents.append(row.value or AtifDocument())
        raws.append(row.decodable)
    if not documents[0].steps:
        raise UnrecognizedContent("this trajectory in ATIF has no steps; give a file of a run that has begun")
    reader = _AtifReader(log, sidechains)
    reader.read_document(documents[0], raws[0], "")
    for number, document in enumerate(documents[1:], 2):
        reader.read_continuation(document, raws[number - 1], f"file {number}: ")
    reference = documents[-1].continued_trajectory_ref
    if reference:
        log.report_problem(0, f"the trajectory goes on in {reference!r}, which was not read: keep it beside this file")
    recording = reader.finish_recording(documents[0].session_id or documents[0].trajectory_id or "")
    return replace(recording, sidechains=tuple(sidechains))


class _AtifReader:
    """Reads the steps of a trajectory, and of those that it goes on in, into a recording."""

    def __init__(self, log: RecordingBuilder, sidechains: list[Recording], default_model: str = "") -> None:
        self.log = log
        self.model = ""
        self._sidechains = sidechains
        self._leaf: str | None = None
        self._history: list[SizedMessage] = []
        """All messages so far."""
        self._default_model = default_model

    def finish_recording(self, session: str) -> Recording:
        """Return the finished recording."""
        self.log.skipped = +self.log.skipped
        return self.log.finish_recording(Recording(FORMAT, session, model=self.model, leaf=self._leaf))

    def read_document(self, document: AtifDocument, raw: bytes, path: str) -> None:
        """Append everything in a file; ``path`` begins the places in its problems."""
        self._append_header(document, raw)
        main: list[tuple[str, Raw]] = []
        sides: dict[str, list[tuple[str, Raw]]] = {}
        for index, step in enumerate(document.steps):
            place = (f"{path}steps[{index}]", step)
            # Harbor puts the steps of Claude Code's sub-agents among the others, in the order of time.
            agent_id = _get_sidechain_id(step)
            (sides.setdefault(agent_id, []) if agent_id else main).append(place)
        self._append_steps(main)
        for agent_id, steps in sides.items():
            reader = _AtifReader(RecordingBuilder(), [], self._default_model)
            reader._append_steps(steps)
            self._sidechains.append(reader.finish_recording(agent_id))
        self._read_subagents(document, path)

    def read_continuation(self, document: AtifDocument, raw: bytes, path: str) -> None:
        """Append a file that goes on after a compaction: the steps copied to its beginning tell what that left."""
        self._append_header(document, raw)
        steps = [ATIF_STEP.decode_or_default(step) for step in document.steps]
        copied_count = 0
        while copied_count < len(steps) and steps[copied_count].is_copied_context:
            copied_count += 1
        self._append_copied_context(steps[:copied_count])
        rest = [(f"{path}steps[{index}]", document.steps[index]) for index in range(copied_count, len(steps))]
        self._append_steps(rest)
        self._read_subagents(document, path)

    def _append_header(self, document: AtifDocument, raw: bytes) -> None:
        """Append the fields beside the steps as a note, and the size of the tools."""
        fields = decode_raw_fields(raw)
        self._count_unknown(fields, _DOCUMENT_FIELDS, "trajectory")
        header = {name: value for name, value in fields.items() if name not in ("steps", "subagent_trajectories")}
        self._append("trajectory", encode_json(header), NoteEntry(TRAJECTORY_NOTE, encode_json(header)))
        self._default_model = document.agent.model_name or self._default_model
        self.model = self.model or self._default_model
        setup = measure_request_setup(openai_chat.API_NAME, {"tools": document.agent.tool_definitions})
        if setup.digest:
            self._append("tools", setup.digest.encode(), setup)

    def _read_subagents(self, document: AtifDocument, path: str) -> None:
        """Read embedded sub-agents, and theirs, as conversations of their own."""
        for index, raw in enumerate(document.subagent_trajectories):
            embedded = ATIF_DOCUMENT.decode_or_default(raw)
            place = f"{path}subagent_trajectories[{index}]"
            if not embedded.steps:
                self.log.report_problem(0, f"{place} has no steps; it is left out")
                continue
            log = RecordingBuilder()
            nested: list[Recording] = []
            reader = _AtifReader(log, nested)
            reader.read_document(embedded, bytes(raw), f"{place}.")
            session = embedded.trajectory_id or embedded.session_id or f"sub-agent-{index + 1}"
            self._sidechains.append(reader.finish_recording(session))
            self._sidechains += nested

    def _count_unknown(self, fields: dict[str, Raw], known: frozenset[str], where: str) -> None:
        for name in fields:
            if name not in known:
                self.log.skipped[f"{where}.{name}"] += 1

    # -- steps -----------------------------------------------------------------------------------------------------

    def _append_steps(self, steps: Sequence[tuple[str, Raw]]) -> None:
        """Append steps, each with its place; a compaction takes the step behind it, which has its summary."""
        index = 0
        while index < len(steps):
            path, raw = steps[index]
            following = steps[index + 1][1] if index + 1 < len(steps) else None
            index += self._append_step(path, raw, following)

    def _append_step(self, path: str, raw: Raw, following: Raw | None) -> int:
        """Append a step; return 2 if it took the one behind it too, else 1."""
        self._count_unknown(decode_raw_fields(raw), _STEP_FIELDS, "step")
        step = ATIF_STEP.decode_or_default(raw)
        mark = get_step_mark(step)
        at = parse_millis(step.timestamp)
        extra = _TOOL_EXTRA.decode_or_default(step.extra)
        if bytes(mark.compaction) != b"null":
            self._append_recorded_compaction(step, mark, at)
        elif mark.branch_summary is not None:
            self._append_branch_summary(step, mark.branch_summary, at)
        elif extra.pi_event_type == "branch_summary":
            self._append_steps_as_note(raw)
            self._append_branch_summary(step, "", at)
        elif extra.pi_event_type == "compaction":
            self._append_steps_as_note(raw)
            recorded = RecordedCompaction(author="model", tokens_before=extra.tokens_before)
            self._append_tool_compaction(path, recorded, _get_text(step), at)
        elif extra.context_management.type == "compaction" and step.source == "system":
            return self._append_replacing_compaction(path, raw, following, at)
        else:
            self._append_step_messages(path, raw, step, mark)
        return 1

    def _append_step_messages(self, path: str, raw: Raw, step: AtifStep, mark: StepMark) -> None:
        messages = decode_step_messages(step)
        if not messages:
            reason = f"its source {step.source!r} is not known" if decode_raw_fields(raw) else "it is no object"
            if step.source in ("system", "user", "agent"):
                self.log.skipped["step without content"] += 1
                return
            self.log.report_problem(0, f"{path} is kept as a note: {reason}")
            self._append("unreadable", bytes(raw), NoteEntry("step that cannot be read", bytes(raw)))
            return
        for index, message in enumerate(messages):
            # The step stays with its first message, which is the answer if it has one.
            self._append_message(message, step, mark, Raw(bytes(raw)) if index == 0 else None)

    def _append_message(
        self,
        message: Message,
        step: AtifStep,
        mark: StepMark,
        envelope: Raw | None,
    ) -> None:
        at = parse_millis(step.timestamp)
        sized_message = make_sized_message(message, "", None)
        body = MessageEntry(sized_message, envelope)
        is_model_call = message.role == "assistant" and not step.is_copied_context
        if is_model_call:
            name = self._make_name("step", sized_message.digest)
            call = self._get_call(step, mark)
            self.model = call.model or self.model
            self._leaf = self.log.add_answer(name, self._leaf, body, call, at)
        else:
            self._append("step", sized_message.digest, body, at)
        self._history.append(sized_message)

    def _get_call(self, step: AtifStep, mark: StepMark) -> CallMetadata:
        """Return model, usage and stop reason of an answer; steps that no model was called for say so."""
        if step.llm_call_count == 0:
            return CallMetadata("", Usage(), SYNTHETIC)
        metrics = _METRICS.decode_or_default(step.metrics)
        extra = metrics.extra or _MetricsExtra()
        usage = Usage(
            input=max(0, metrics.prompt_tokens),
            output=max(0, metrics.completion_tokens),
            cache_read=max(0, metrics.cached_tokens),
            cache_write=max(0, extra.cache_creation_input_tokens),
            reasoning=max(0, extra.reasoning_tokens),
            cache_write_1h=max(0, extra.cache_creation_1h_input_tokens),
        )
        # Metrics of several calls are sums: what was paid, but not the size of a request.
        is_sum = (step.llm_call_count or 1) > 1
        model = step.model_name or self._default_model
        has_stale_usage = is_sum or mark.usage == STALE_USAGE_BASIS
        return CallMetadata(model, usage, mark.stop, has_stale_usage=has_stale_usage)

    def _append_branch_summary(self, step: AtifStep, source_id: str, at: int | None) -> None:
        sized_message = make_sized_message(Message.from_text("user", _get_text(step)), "", None)
        self._append("branch-summary", sized_message.digest, BranchSummaryEntry(sized_message, source_id), at)
        self._history.append(sized_message)

    # -- compactions -----------------------------------------------------------------------------------------------

    def _append_recorded_compaction(self, step: AtifStep, mark: StepMark, at: int | None) -> None:
        """Append a compaction that Holdfast wrote into the file in which the conversation went on."""
        recorded = RECORDED_COMPACTION.decode_or_default(mark.compaction)
        message_count = len(self._history)
        first_kept = message_count - min(max(0, recorded.kept_messages), message_count)
        restated = tuple([index for index in recorded.restated if 0 <= index < first_kept])
        self._append_compaction(recorded, _get_text(step), first_kept, restated, at)

    def _append_replacing_compaction(self, path: str, raw: Raw, following: Raw | None, at: int | None) -> int:
        """Append a compaction after which the message behind its step stands for everything before.

        Terminus and Vibe write it so. Return how many steps that were.
        """
        next_step = ATIF_STEP.decode_or_default(following or Raw(b"{}"))
        recorded = RecordedCompaction(author="model")
        if following is None or next_step.source != "user":
            self._append_steps_as_note(raw)
            recorded.has_summary = False
            self._append_tool_compaction(path, recorded, "", at)
            return 1
        self._append_steps_as_note(raw, following)
        self._append_compaction(recorded, _get_text(next_step), len(self._history), (), at)
        return 2

    def _append_tool_compaction(self, path: str, recorded: RecordedCompaction, text: str, at: int | None) -> None:
        """Append a compaction of a tool whose step does not say what stayed beside the summary."""
        self.log.report_problem(0, f"{path} is a compaction that does not say what it kept; it is read as keeping none")
        self._append_compaction(recorded, text, len(self._history), (), at)

    def _append_steps_as_note(self, *steps: Raw) -> None:
        """Keep the steps of a compaction, so that they can be written back."""
        lines = [bytes(step) for step in steps]
        self._append("lines", lines[0], NoteEntry(COMPACTION_NOTE, bytes(join_origin_lines(lines))))

    def _append_compaction(
        self,
        recorded: RecordedCompaction,
        text: str,
        first_kept: int,
        restated: tuple[int, ...],
        at: int | None,
    ) -> None:
        summary = make_sized_message(Message.from_text("user", text), "", None)
        body = CompactionEntry(
            first_kept=first_kept,
            summary=summary.message if recorded.has_summary else None,
            head_tokens=summary.tokens if recorded.has_summary else 0,
            tokens_before=recorded.tokens_before,
            tokens_after=recorded.tokens_after,
            trigger=recorded.trigger or "auto",
            author=recorded.author,
            restated=restated,
        )
        self._append("compaction", f"{first_kept} {text}".encode("utf-8", "replace"), body, at)

    def _append_copied_context(self, steps: Sequence[AtifStep]) -> None:
        """Append the compaction between two files, as the steps copied to the beginning of the second one show it.

        The copied messages that end the first file were kept, and those that begin it are shown again. What stands
        between is new, so it is the summary. A file of Holdfast says which step is the summary and how much was kept.
        """
        if not steps:
            return
        recorded: RecordedCompaction | None = None
        copied: list[SizedMessage] = []
        behind_summary = 0
        summary_text = ""
        for step in steps:
            mark = get_step_mark(step)
            if bytes(mark.compaction) != b"null":
                recorded = RECORDED_COMPACTION.decode_or_default(mark.compaction)
                summary_text = _get_text(step)
                behind_summary = len(copied)
                continue
            copied += [make_sized_message(message, "", None) for message in decode_step_messages(step)]
        at = parse_millis(steps[0].timestamp)
        if recorded is None:
            self._append_found_compaction(copied, at)
            return
        message_count = len(self._history)
        first_kept = message_count - min(max(0, recorded.kept_messages), message_count)
        # Between the summary and what was kept stand older messages that are shown again.
        repeated = copied[behind_summary : max(behind_summary, len(copied) - recorded.kept_messages)]
        places = {message.digest: index for index, message in enumerate(self._history[:first_kept])}
        restated = [places[message.digest] for message in repeated if message.digest in places]
        self._append_compaction(recorded, summary_text, first_kept, tuple(restated), at)

    def _append_found_compaction(self, copied: Sequence[SizedMessage], at: int | None) -> None:
        """Append the compaction that copied messages show by where they repeat the history and where they do not."""
        digests = [message.digest for message in self._history]
        copied_digests = [message.digest for message in copied]
        kept_count = _count_common_tail(digests, copied_digests)
        first_kept = len(digests) - kept_count
        head = copied[: len(copied) - kept_count]
        repeated_count = _count_common_head(digests[:first_kept], copied_digests[: len(head)])
        restated: list[int] = []
        for index in range(repeated_count):
            # System messages at the beginning always stay.
            if restated or self._history[index].message.role != "system":
                restated.append(index)
        text = "\n\n".join(message.message.text for message in head[repeated_count:])
        recorded = RecordedCompaction(author="model", has_summary=bool(text))
        self._append_compaction(recorded, text, first_kept, tuple(restated), at)

    # -- entries ---------------------------------------------------------------------------------------------------

    def _make_name(self, kind: str, content: bytes) -> str:
        """Return an id made of the place and the content, so that a file that has grown repeats it."""
        return f"{kind}-{len(self.log.entries):06}-{make_short_digest(content.hex())}"

    def _append(self, kind: str, content: bytes, body: EntryBody, at: int | None = None) -> None:
        self._leaf = self.log.add_entry(self._make_name(kind, content), self._leaf, body, at)


def _get_sidechain_id(raw: Raw) -> str:
    """Return the sub-agent that a step belongs to, or an empty string for one of the main conversation."""
    if b'"is_sidechain"' not in bytes(raw):
        return ""
    extra = _TOOL_EXTRA.decode_or_default(ATIF_STEP.decode_or_default(raw).extra)
    return (extra.agent_id or "sidechain") if extra.is_sidechain else ""


def _get_text(step: AtifStep) -> str:
    """Return the text of a step, without its results."""
    for message in decode_step_messages(step)[:1]:
        return message.text
    return ""


def _count_common_tail(history: Sequence[bytes], copied: Sequence[bytes]) -> int:
    """Return how many of the last messages are the same in both."""
    count = 0
    while count < min(len(history), len(copied)) and history[-1 - count] == copied[-1 - count]:
        count += 1
    return count


def _count_common_head(history: Sequence[bytes], copied: Sequence[bytes]) -> int:
    """Return how many of the first messages are the same in both."""
    count = 0
    while count < min(len(history), len(copied)) and history[count] == copied[count]:
        count += 1
    return count
