"""Writer of trajectories in ATIF 1.7, or 1.8 where there is sound.

The branch at the leaf is written. A step that came from ATIF is copied, with its number changed; everything else is
encoded anew, results in the step of their call. What ATIF has no field for stands in ``extra.holdfast``
(``document.py``). A compaction is a step of the system with the summary, between the messages before and after it; or
the file ends there and goes on in another one, as other tools write it (``write_atif_segments``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.formats.atif.document import (
    ATIF_DOCUMENT,
    ATIF_STEP,
    MARK,
    THINKING_SEPARATOR,
    RecipePart,
    Signature,
    decode_step_messages,
    encode_content_part,
    get_step_mark,
    has_audio,
)
from holdfast.formats.atif.read import COMPACTION_NOTE, TRAJECTORY_NOTE, RecordedCompaction
from holdfast.formats.base import SYNTHETIC, Recording, get_branch_entries
from holdfast.formats.common.lines import (
    decode_raw_fields,
    format_iso_time,
    replace_bad_escapes,
    set_json_fields,
)
from holdfast.formats.common.writing import (
    WritableRecording,
    get_redacted_thinking,
    split_origin_lines,
    strip_foreign_raw,
)
from holdfast.messages.message import Message, format_part_placeholder
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    Usage,
)

DEFAULT_VERSION = "ATIF-v1.7"
"""The version with the most readers that has everything but sound."""
AUDIO_VERSION = "ATIF-v1.8"
_KEPT_VERSIONS = frozenset({DEFAULT_VERSION, AUDIO_VERSION})
"""Versions that a file keeps when it is written back; older ones lack fields that are written."""
_SOURCE_OF_ROLE = {"system": "system", "user": "user", "tool": "user", "assistant": "agent"}


def write_atif(recording: Recording) -> bytes:
    """Return ``recording`` as one file, with the trajectories of its sub-agents."""
    writer = _AtifWriter(recording)
    writer.add_all_entries()
    return encode_json(writer.build_document(recording.sidechains))


def write_atif_segments(recording: Recording, file_name: str) -> list[tuple[str, bytes]]:
    """Return ``recording`` as files that go on in each other, one for each compaction, with their names.

    The first has ``file_name``; the others are named after it and lie in the same folder.
    """
    stem, dot, suffix = file_name.rpartition(".")
    if not stem:
        stem, dot, suffix = file_name, "", ""
    branch = get_branch_entries(recording)
    cuts = [index for index, entry in enumerate(branch) if isinstance(entry.body, CompactionEntry)]
    files = []
    for number, start in enumerate([0, *cuts]):
        name = f"{stem}.cont-{number}{dot}{suffix}" if number else file_name
        stop = cuts[number] if number < len(cuts) else len(branch)
        writer = _AtifWriter(recording)
        if number:
            writer.begin_continuation(number, branch, start)
        for entry in branch[start:stop]:
            writer.queue_entry(entry)
        writer.flush()
        reference = f"{stem}.cont-{number + 1}{dot}{suffix}" if number < len(cuts) else None
        # Sub-agents belong to the whole, and the first file is the one that everybody opens.
        sidechains = () if number else recording.sidechains
        files.append((name, encode_json(writer.build_document(sidechains, reference))))
    return files


class _OpenStep(Struct):
    """The newest step while results may still be added to it."""

    fields: dict[str, Any]
    open_calls: list[tuple[str, str]]
    """Own id and written id of each call without a result."""


class _AtifWriter:
    """One trajectory being written."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._source = WritableRecording(recording)
        self._header = _find_header(recording)
        self._steps: list[dict[str, Any] | bytes] = []
        self._open_step: _OpenStep | None = None
        self._queue: list[Entry] = []
        self._message_starts: list[int] = []
        """For each message of the branch so far, how many messages a reader has seen before it."""
        self._reread_count = 0
        """Messages that a reader will have of the steps so far."""
        self._has_audio = False
        self._is_copied = False
        """Whether steps repeat an earlier file."""
        self._is_exact = True
        """Whether all steps so far are those of the file that was read."""
        self._continuation = 0
        self._totals = Usage()

    # -- entries ---------------------------------------------------------------------------------------------------

    def add_all_entries(self) -> None:
        """Write every entry of the branch."""
        for entry in get_branch_entries(self._recording):
            self.queue_entry(entry)
        self.flush()

    def queue_entry(self, entry: Entry) -> None:
        """Write an entry. Messages wait for those behind them: a step that is copied has several."""
        body = entry.body
        if isinstance(body, MessageEntry):
            self._queue.append(entry)
        elif isinstance(body, BranchSummaryEntry):
            self.flush()
            self._count_message()
            if not self._copy_noted_steps(entry):
                text = body.sized_message.message.text
                self._add_text_step("user", text, entry, {"branch_summary": body.source_id})
            self._reread_count += 1
        elif isinstance(body, CompactionEntry):
            self.flush()
            if not self._continuation and not self._copy_noted_steps(entry):
                self._add_compaction_step(entry, body)

    def flush(self) -> None:
        """Write the messages that wait."""
        index = 0
        while index < len(self._queue):
            count = self._copy_step(index)
            if not count:
                self._add_message(self._queue[index])
                count = 1
            index += count
        self._queue = []

    def _count_message(self) -> None:
        self._message_starts.append(self._reread_count)

    def begin_continuation(self, number: int, branch: Sequence[Entry], index: int) -> None:
        """Write what requests showed right after the compaction at ``index``, as steps that repeat the file before."""
        self._continuation = number
        self._is_copied = True
        self._is_exact = False
        entry = branch[index]
        body = entry.body
        if not isinstance(body, CompactionEntry):
            return
        messages = [item for item in branch[:index] if isinstance(item.body, MessageEntry | BranchSummaryEntry)]
        state = ConversationState.from_entries(branch[:index])
        restated = [position for position in body.restated if position < len(messages)]
        pinned = messages[: state.view.pinned_count]
        first_kept = max(body.first_kept, len(pinned))
        for item in pinned:
            self.queue_entry(item)
        self.flush()
        place = len(self._steps)
        for position in restated:
            self.queue_entry(messages[position])
        self.flush()
        self._open_step = None
        before_tail = self._reread_count
        for item in messages[first_kept:]:
            self.queue_entry(item)
        self.flush()
        recorded = _make_recorded_compaction(body, self._reread_count - before_tail)
        # What is shown again stands between the summary and what was kept, so its indexes need not be told.
        text = (body.summary or Message("user")).text
        extra = {MARK: {"compaction": _encode_compaction(recorded)}}
        step = self._make_step("user", text, entry) | {"extra": extra}
        self._steps.insert(place, step)
        self._open_step = None
        self._is_copied = False
        self._reread_count = 0
        self._message_starts = []

    # -- steps -----------------------------------------------------------------------------------------------------

    def _copy_step(self, index: int) -> int:
        """Copy the step that the waiting message ``index`` came from; return how many messages it has.

        0 if it came from elsewhere, or if one of the messages is another by now: then it is encoded anew.
        """
        entry = self._queue[index]
        body = entry.body
        if not isinstance(body, MessageEntry) or body.recording_envelope is None:
            return 0
        line = bytes(body.recording_envelope)
        raw_fields = decode_raw_fields(replace_bad_escapes(line))
        if not raw_fields.keys() >= {"source", "message"}:
            return 0
        step = ATIF_STEP.decode_or_default(replace_bad_escapes(line))
        messages = decode_step_messages(step)
        if not messages or not _are_messages_of(self._queue[index : index + len(messages)], messages):
            return 0
        if self._is_copied and not step.is_copied_context:
            line = _mark_as_copied(line)
        stale_field = self._source.get_stale_usage_field(entry)
        is_told = get_step_mark(step).usage or (step.llm_call_count or 1) > 1
        if stale_field and not is_told:
            line = set_json_fields(line, {"extra": _add_mark(step.extra, {"usage": stale_field["holdfast"]})})
        self._steps.append(line)
        self._open_step = None
        for _ in messages:
            self._count_message()
            self._reread_count += 1
        if not self._is_copied and not step.is_copied_context:
            self._add_totals(self._source.get_writable_answer(entry).usage)
        self._has_audio = self._has_audio or has_audio(step)
        return len(messages)

    def _copy_noted_steps(self, entry: Entry) -> bool:
        """Copy the steps with which a tool recorded a compaction or a summary; return whether there are any."""
        lines = self._source.get_note_before(entry, COMPACTION_NOTE)
        if not lines:
            return False
        for line in split_origin_lines(Raw(lines)):
            self._steps.append(_mark_as_copied(line) if self._is_copied else line)
        self._open_step = None
        return True

    def _add_message(self, entry: Entry) -> None:
        """Encode a message: results into the step of their call, the rest as a step of its own."""
        body = entry.body
        if not isinstance(body, MessageEntry):
            return
        self._is_exact = False
        self._count_message()
        message = strip_foreign_raw(body.sized_message, "")
        results = message.results
        for result in results:
            self._add_result(result, entry)
        rest = [part for part in message.parts if not isinstance(part, ToolResult) and not _is_message_field(part)]
        if message.role == "assistant":
            self._add_answer(entry, rest)
        elif rest or not results:
            content = self._encode_content(rest)
            self._steps.append(self._make_step(_SOURCE_OF_ROLE[message.role], content, entry))
            self._open_step = None
            self._reread_count += 1

    def _make_step(self, source: str, message: Any, entry: Entry) -> dict[str, Any]:
        step: dict[str, Any] = {"step_id": 0}
        if entry.time_ms is not None:
            step["timestamp"] = format_iso_time(entry.time_ms)
        step |= {"source": source, "message": message}
        if self._is_copied:
            step["is_copied_context"] = True
        return step

    def _add_text_step(self, source: str, text: str, entry: Entry, mark: Mapping[str, Any]) -> None:
        self._is_exact = False
        self._steps.append(self._make_step(source, text, entry) | {"extra": {MARK: mark}})
        self._open_step = None

    def _add_answer(self, entry: Entry, parts: Sequence[Part]) -> None:
        thinking = [part for part in parts if isinstance(part, Thinking)]
        content = [part for part in parts if not isinstance(part, Thinking | ToolCall)]
        calls = [part for part in parts if isinstance(part, ToolCall)]
        answer = self._source.get_writable_answer(entry)
        step = self._make_step("agent", self._encode_content(content), entry)
        model = self._source.get_answer_model(entry)
        if model:
            step["model_name"] = model
        reasoning = THINKING_SEPARATOR.join(part.text for part in thinking)
        if reasoning:
            step["reasoning_content"] = reasoning
        open_calls: list[tuple[str, str]] = []
        if calls:
            step["tool_calls"] = []
        for call in calls:
            written_id, fields = _encode_call(call, len(self._steps) + 1, [written for _, written in open_calls])
            step["tool_calls"].append(fields)
            open_calls.append((call.id, written_id))
        mark: dict[str, Any] = {}
        recipe = _make_recipe(parts)
        if recipe:
            mark["parts"] = msgspec.to_builtins(recipe)
        if answer.stop_reason:
            mark["stop"] = answer.stop_reason
        if not self._is_copied:
            self._add_metrics(step, entry, answer)
            stale_field = self._source.get_stale_usage_field(entry)
            if stale_field:
                mark["usage"] = stale_field["holdfast"]
        if mark:
            step["extra"] = {MARK: mark}
        self._steps.append(step)
        self._open_step = _OpenStep(step, open_calls)
        self._reread_count += 1

    def _add_metrics(self, step: dict[str, Any], entry: Entry, answer: AnswerEntry) -> None:
        """Add the usage of an answer, and how many model calls it took."""
        usage = answer.usage
        if usage.total:
            step["metrics"] = _encode_metrics(usage)
            self._add_totals(usage)
        if answer.stop_reason == SYNTHETIC:
            # The version forbids both fields beside a count of 0.
            if not usage.total and "reasoning_content" not in step:
                step["llm_call_count"] = 0
            return
        request = self._source.entries_by_id.get(entry.parent or "")
        if request is not None and isinstance(request.body, RequestEntry):
            step["llm_call_count"] = 1

    def _add_totals(self, usage: Usage) -> None:
        totals = self._totals
        self._totals = Usage(
            totals.input + usage.input, totals.output + usage.output, totals.cache_read + usage.cache_read
        )

    def _add_result(self, result: ToolResult, entry: Entry) -> None:
        """Add a result to the newest step if that holds its call; else without a call, its id kept beside it."""
        step = self._open_step
        if step is None:
            # Nothing that results can stand in: a step that holds nothing else.
            fields = self._make_step("system", "", entry) | {"extra": {MARK: {"has_no_message": True}}}
            self._steps.append(fields)
            step = self._open_step = _OpenStep(fields, [])
        mark: dict[str, Any] = {"is_error": True} if result.is_error else {}
        wire: dict[str, Any] = {}
        for pair in step.open_calls:
            if pair[0] == result.call_id:
                step.open_calls.remove(pair)
                wire["source_call_id"] = pair[1]
                break
        else:
            mark |= {"call_id": result.call_id} | ({"name": result.name} if result.name else {})
        if result.content:
            wire["content"] = self._encode_content(result.content)
        if mark:
            wire["extra"] = {MARK: mark}
        step.fields.setdefault("observation", {"results": []})["results"].append(wire)
        self._reread_count += 1

    def _encode_content(self, parts: Sequence[Part]) -> Any:
        """Return parts as a message: a text where there is one or none, else a list."""
        if not parts:
            return ""
        if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
            return parts[0].text
        encoded = []
        for part in parts:
            wire = encode_content_part(part)
            if wire is None and isinstance(part, Media | Opaque):
                wire = {"type": "text", "text": format_part_placeholder(part)}
            if wire is not None:
                encoded.append(wire)
                is_audio = isinstance(part, Media | Opaque) and part.kind == "audio"
                self._has_audio = self._has_audio or (is_audio and _is_reference(wire))
        return encoded

    def _add_compaction_step(self, entry: Entry, body: CompactionEntry) -> None:
        """Write a compaction as a step between the messages that it shortened and those that followed."""
        first_kept = min(max(0, body.first_kept), len(self._message_starts))
        starts = [*self._message_starts, self._reread_count]
        recorded = _make_recorded_compaction(body, self._reread_count - starts[first_kept])
        recorded.restated = [starts[index] for index in body.restated if index < len(self._message_starts)]
        text = (body.summary or Message("user")).text
        self._add_text_step("system", text, entry, {"compaction": _encode_compaction(recorded)})

    # -- the document ----------------------------------------------------------------------------------------------

    def build_document(self, sidechains: Sequence[Recording], reference: str | None = None) -> dict[str, Any]:
        """Return the finished trajectory; ``reference`` names the file that it goes on in."""
        recording = self._recording
        header: dict[str, Any] = dict(self._header)
        known = ATIF_DOCUMENT.decode_or_default(encode_json(header))
        version = known.schema_version
        if version not in _KEPT_VERSIONS:
            version = DEFAULT_VERSION
        subagents = _build_subagents(sidechains)
        if self._has_audio or any(subagent["schema_version"] == AUDIO_VERSION for subagent in subagents):
            version = AUDIO_VERSION
        session = known.session_id if self._header else recording.session
        if self._continuation:
            session = f"{session or recording.session}-cont-{self._continuation}"
            # It names the first file.
            header.pop("trajectory_id", None)
        document: dict[str, Any] = {"schema_version": version}
        if session:
            document["session_id"] = session
        document |= {"agent": self._build_agent()} | {
            name: value for name, value in header.items() if name not in _WRITTEN_FIELDS
        }
        document["steps"] = self._number_steps()
        if self._is_exact and self._header:
            document |= {name: header[name] for name in ("final_metrics",) if name in header}
        else:
            document["final_metrics"] = _encode_final_metrics(self._totals, len(document["steps"]))
        recorded_reference = header.get("continued_trajectory_ref")
        if reference is not None:
            document["continued_trajectory_ref"] = reference
        elif self._is_exact and recorded_reference is not None and not _has_continuation(recording):
            document["continued_trajectory_ref"] = recorded_reference
        if subagents:
            document["subagent_trajectories"] = subagents
        return document

    def _build_agent(self) -> dict[str, Any]:
        recording = self._recording
        agent: dict[str, Any] = dict(decode_raw_fields(self._header.get("agent", Raw(b"{}"))))
        if not agent and recording.model:
            agent["model_name"] = recording.model
        agent = {"name": recording.format or "holdfast", "version": "unknown"} | agent
        if self._continuation:
            extra = dict(decode_raw_fields(agent.get("extra", Raw(b"{}"))))
            agent["extra"] = extra | {"continuation_index": self._continuation}
        return agent

    def _number_steps(self) -> list[Any]:
        """Return the steps with their numbers; a trajectory has at least one."""
        if not self._steps:
            empty = {"source": "system", "message": "", "extra": {MARK: {"has_no_message": True}}}
            return [{"step_id": 1} | empty]
        numbered: list[Any] = []
        for number, step in enumerate(self._steps, 1):
            if isinstance(step, bytes):
                numbered.append(Raw(set_json_fields(step, {"step_id": number})))
            else:
                numbered.append(step | {"step_id": number})
        return numbered


_WRITTEN_FIELDS = frozenset(
    {"schema_version", "session_id", "agent", "steps", "final_metrics", "continued_trajectory_ref"}
    | {"subagent_trajectories"}
)
"""Fields of a trajectory that are written anew."""


def _is_reference(wire: Any) -> bool:
    """Return whether an encoded part of a content refers to a file, and is no text in its place."""
    return isinstance(wire, Raw) or wire.get("type") != "text"


def _find_header(recording: Recording) -> dict[str, Raw]:
    """Return the fields beside the steps that the first file of a trajectory had, or none."""
    for entry in get_branch_entries(recording):
        body = entry.body
        if isinstance(body, NoteEntry) and body.reason == TRAJECTORY_NOTE:
            return decode_raw_fields(body.raw)
    return {}


def _has_continuation(recording: Recording) -> bool:
    """Return whether the recording was read from files that go on in each other."""
    headers = 0
    for entry in get_branch_entries(recording):
        headers += isinstance(entry.body, NoteEntry) and entry.body.reason == TRAJECTORY_NOTE
    return headers > 1


def _build_subagents(sidechains: Sequence[Recording]) -> list[dict[str, Any]]:
    """Return the trajectories of sub-agents, each under an id of its own."""
    subagents: list[dict[str, Any]] = []
    used_ids: set[str] = set()
    for number, sidechain in enumerate(sidechains, 1):
        writer = _AtifWriter(sidechain)
        writer.add_all_entries()
        document = writer.build_document(())
        recorded = ATIF_DOCUMENT.decode_or_default(encode_json({**document, "steps": []})).trajectory_id
        wanted_id = recorded or sidechain.session or f"sub-agent-{number}"
        unique_id = wanted_id
        while unique_id in used_ids:
            unique_id = f"{unique_id}-{number}"
        used_ids.add(unique_id)
        document["trajectory_id"] = unique_id
        subagents.append(document)
    return subagents


def _are_messages_of(entries: Sequence[Entry], messages: Sequence[Message]) -> bool:
    """Return whether the entries hold exactly these messages."""
    if len(entries) != len(messages):
        return False
    for entry, message in zip(entries, messages, strict=True):
        body = entry.body
        if not isinstance(body, MessageEntry) or body.sized_message.digest != build_sized_message(message).digest:
            return False
    return True


def _mark_as_copied(line: bytes) -> bytes:
    """Return a step as one that repeats another file: its metrics were paid for there."""
    fields: dict[str, Any] = dict(decode_raw_fields(replace_bad_escapes(line)))
    fields.pop("metrics", None)
    return encode_json(fields | {"is_copied_context": True})


def _add_mark(extra: Raw, new: dict[str, Any]) -> dict[str, Any]:
    """Return the ``extra`` of a step with more in what Holdfast keeps there."""
    fields: dict[str, Any] = dict(decode_raw_fields(extra))
    mark: dict[str, Any] = dict(decode_raw_fields(fields.get(MARK, Raw(b"{}"))))
    return fields | {MARK: mark | new}


def _is_message_field(part: Part) -> bool:
    """Return whether a part is a field of an API's message object, and no content."""
    return isinstance(part, Opaque) and part.kind.startswith("message")


def _encode_call(call: ToolCall, step_number: int, used_ids: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the id that a call is written under, and the call; ids must not be empty or repeat in a step."""
    mark: dict[str, Any] = {}
    written_id = call.id
    number = len(used_ids) + 1
    while not written_id or written_id in used_ids:
        written_id = f"{call.id or 'call'}-{step_number}-{number}"
        number += 1
    if written_id != call.id:
        mark["id"] = call.id
    arguments, is_exact = _encode_arguments(call.arguments)
    if not is_exact:
        mark["arguments"] = call.arguments
    if call.signature is not None:
        mark["signature"] = _encode_signature(call.signature)
    fields: dict[str, Any] = {"tool_call_id": written_id, "function_name": call.name, "arguments": arguments}
    if mark:
        fields["extra"] = {MARK: mark}
    return written_id, fields


def _encode_arguments(arguments: str) -> tuple[Any, bool]:
    """Return arguments as an object, which ATIF requires, and whether that says exactly the same."""
    data = arguments.encode("utf-8", "replace")
    try:
        # Decoded completely: what is raw inside would otherwise be written without a check.
        decoded = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"_raw": arguments}, False
    if not isinstance(decoded, dict):
        return {"_raw": arguments}, False
    return Raw(data), data == data.strip()


def _encode_signature(signature: ProviderSignature) -> dict[str, str]:
    return {"api": signature.api, "model": signature.model, "data": signature.data}


def _make_recipe(parts: Sequence[Part]) -> list[RecipePart]:
    """Return the order of the parts of an answer and their signatures; empty if a reader finds them without."""
    kinds = [_get_kind(part) for part in parts]
    has_signatures = False
    for part in parts:
        is_signed = isinstance(part, Thinking | Text) and part.signature is not None
        is_redacted = isinstance(part, Thinking) and (part.raw is not None or not part.text)
        has_signatures = has_signatures or is_signed or is_redacted
    if not has_signatures and kinds == sorted(kinds) and kinds.count(0) <= 1:
        return []
    recipe = []
    for part in parts:
        item = RecipePart()
        if isinstance(part, Thinking):
            item.thinking = len(part.text)
            item.redacted = get_redacted_thinking(part)
        elif isinstance(part, ToolCall):
            item.call = True
        else:
            item.content = True
        # Calls keep their signatures themselves.
        if isinstance(part, Thinking | Text) and part.signature is not None:
            item.signature = Signature(part.signature.api, part.signature.model, part.signature.data)
        recipe.append(item)
    return recipe


def _get_kind(part: Part) -> int:
    """Return the place of a part in the order that readers assume: thinking, content, calls."""
    if isinstance(part, Thinking):
        return 0
    return 2 if isinstance(part, ToolCall) else 1


def _encode_metrics(usage: Usage) -> dict[str, Any]:
    metrics: dict[str, Any] = {"prompt_tokens": usage.input, "completion_tokens": usage.output}
    if usage.cache_read:
        metrics["cached_tokens"] = usage.cache_read
    extra = {
        "reasoning_tokens": usage.reasoning,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_creation_1h_input_tokens": usage.cache_write_1h,
    }
    extra = {name: value for name, value in extra.items() if value}
    if extra:
        metrics["extra"] = extra
    return metrics


def _encode_final_metrics(totals: Usage, step_count: int) -> dict[str, Any]:
    return {
        "total_prompt_tokens": totals.input,
        "total_completion_tokens": totals.output,
        "total_cached_tokens": totals.cache_read,
        "total_steps": step_count,
    }


def _make_recorded_compaction(body: CompactionEntry, kept_messages: int) -> RecordedCompaction:
    return RecordedCompaction(
        kept_messages=kept_messages,
        has_summary=body.summary is not None,
        trigger=body.trigger,
        author=body.author,
        tokens_before=body.tokens_before,
        tokens_after=body.tokens_after,
    )


def _encode_compaction(recorded: RecordedCompaction) -> dict[str, Any]:
    """Return a compaction as its step keeps it; never empty, since it also tells that the step is one."""
    fields: dict[str, Any] = msgspec.to_builtins(recorded)
    return {"kept_messages": recorded.kept_messages} | fields
