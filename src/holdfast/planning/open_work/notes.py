"""Notes in shortened texts: a result that says what is open keeps saying so when its text is cut, spilled or cleared.

Without the note a request could show neither the result nor a section of a summary that names the item. The end of an
item is noted too where a summary still lists it as open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.messages.message import Message, get_part_text, replace_all_parts
from holdfast.messages.parts import Part, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.open_work.find_open_work import list_open_work, read_note, read_result
from holdfast.planning.open_work.hidden_work import has_open_work_section, restate_open_work
from holdfast.planning.open_work.section import format_open_note, read_section_kinds
from holdfast.planning.open_work.work_events import OpenItem, WorkContinues, WorkEnded, WorkEvent, WorkKind, WorkStarted
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit


class _ShortenedText(NamedTuple):
    """A text that an edit of this plan shortened, and what the whole text says about open work."""

    edit: Edit
    replacement: Text | ToolResult
    events: Sequence[WorkEvent]


def keep_open_work(builder: PlanBuilder) -> PlanBuilder:
    """Return the builder with every open item named in the request, whatever the stages did.

    This runs after the stages, so that it holds for stages of callers and for policies of other tools too.
    """
    if not builder.rules.restates_open_work:
        return builder
    return _note_in_edits(_restate_in_compaction(builder))


def _restate_in_compaction(builder: PlanBuilder) -> PlanBuilder:
    """Add the section to a compaction of this plan that came without one."""
    compaction = builder.compaction
    if compaction is None or has_open_work_section(compaction):
        return builder
    summary_tokens = builder.to_estimator_tokens(builder.budget.message_tokens)
    restated = restate_open_work(builder.state, compaction, summary_tokens)
    return builder if restated is compaction else builder.add_compaction(restated)


def _note_in_edits(builder: PlanBuilder) -> PlanBuilder:
    """Add notes to the texts that this plan shortened."""
    shortened_texts = list(_find_shortened_texts(builder))
    if not shortened_texts:
        return builder
    open_items = {item.id: item for item in list_open_work(builder.state.history.messages.slice(0)) if item.id}
    listed_kinds = _read_kinds_in_summary(builder.state)
    edits: list[Edit] = []
    for shortened in shortened_texts:
        text = get_part_text(shortened.replacement)
        notes = list(_list_notes(shortened.events, text, open_items, listed_kinds))
        if notes:
            edits.append(_build_note_edit(shortened, text, notes))
    return builder.add_edits(tuple(edits))


def add_notes_to_messages(messages: Sequence[Message], shortened: Mapping[int, Message]) -> dict[int, Message]:
    """Return the ``shortened`` messages, by their index in ``messages``, with notes on what is open.

    For a copy of a branch, which holds nothing but the shortened texts.
    """
    if not shortened:
        return {}
    open_items = {item.id: item for item in list_open_work(messages) if item.id}
    noted_messages: dict[int, Message] = {}
    calls: dict[str, ToolCall] = {}
    for index, message in enumerate(messages):
        calls.update((call.id, call) for call in message.calls)
        if index in shortened:
            parts = []
            for part, short_part in zip(message.parts, shortened[index].parts, strict=True):
                parts.append(_add_notes_to_part(part, short_part, calls, open_items))
            noted_messages[index] = replace_all_parts(shortened[index], parts)
    return noted_messages


def _add_notes_to_part(
    part: Part,
    short_part: Part,
    calls: Mapping[str, ToolCall],
    open_items: Mapping[str, OpenItem],
) -> Part:
    """Return ``short_part``, which stands for ``part``, with notes if it is a result that was shortened."""
    if short_part is part or not isinstance(part, ToolResult) or not isinstance(short_part, ToolResult):
        return short_part
    call = calls.get(part.call_id)
    if call is None:
        return short_part
    text = get_part_text(short_part)
    notes = list(_list_notes(read_result(call, part), text, open_items, {}))
    return _append_notes(short_part, text, notes) if notes else short_part


def _find_shortened_texts(builder: PlanBuilder) -> Iterator[_ShortenedText]:
    """Yield the texts that edits of this plan shortened and that say something about open work."""
    edits: dict[tuple[int, int], Edit] = {}
    for edit in builder.record:
        # Where a message is replaced as a whole, which only a caller's stage does, there is no text to add a note to.
        if edit.span.part is not None and edit.span.start >= builder.state.view.first_kept:
            edits[edit.span.start, edit.span.part] = edit
    messages = builder.state.history.messages
    for (message_index, part_index), edit in edits.items():
        message = messages[message_index]
        if message.role == "assistant" or len(edit.replacement) != 1:
            continue
        replacement, part = edit.replacement[0], message.parts[part_index]
        if not isinstance(replacement, Text | ToolResult):
            continue
        events = _read_part(builder.state, message_index, part)
        if events:
            yield _ShortenedText(edit, replacement, events)


def _read_part(state: ConversationState, message_index: int, part: Part) -> Sequence[WorkEvent]:
    """Return what a part of the log says about open work."""
    if isinstance(part, Text):
        return read_note(part.text)
    if not isinstance(part, ToolResult):
        return ()
    call = _find_call(state, message_index, part.call_id)
    return () if call is None else read_result(call, part)


def _find_call(state: ConversationState, message_index: int, call_id: str) -> ToolCall | None:
    """Return the newest call of this id before a message, or None if there is none."""
    first_index = state.history.first_index_by_call_id.get(call_id, message_index)
    for index in range(message_index - 1, first_index - 1, -1):
        for call in state.history.messages[index].calls:
            if call.id == call_id:
                return call
    return None


def _read_kinds_in_summary(state: ConversationState) -> dict[str, WorkKind]:
    """Return the ids that the summary in force lists as open, each with its kind."""
    compaction = state.view.compaction
    if compaction is None or compaction.summary is None:
        return {}
    kinds: dict[str, WorkKind] = {}
    for part in compaction.summary.parts:
        if isinstance(part, Text):
            kinds.update(read_section_kinds(part.text))
    return kinds


def _list_notes(
    events: Iterable[WorkEvent],
    text: str,
    open_items: Mapping[str, OpenItem],
    listed_kinds: Mapping[str, WorkKind],
) -> Iterator[str]:
    """Yield the notes for a shortened ``text`` whose whole says ``events``; ids that it still shows need none."""
    for event in events:
        if isinstance(event, WorkStarted | WorkContinues):
            item = open_items.get(event.id)
            if item is not None and item.id not in text:
                yield format_open_note(item)
        elif isinstance(event, WorkEnded) and event.id in listed_kinds and event.id not in text:
            yield format_open_note(OpenItem(listed_kinds[event.id], event.id), has_ended=True)


def _build_note_edit(shortened: _ShortenedText, text: str, notes: Sequence[str]) -> Edit:
    edit, replacement = shortened.edit, shortened.replacement
    noted_part = _append_notes(replacement, text, notes)
    saves = estimate_text_tokens(text) - estimate_text_tokens(get_part_text(noted_part))
    # With the rule of the edit that it follows, so that the sums of what a rule saved stay right.
    return Edit(
        edit.span,
        (noted_part,),
        edit.rule,
        "a note says what is still open, or has ended",
        saves,
        edit.blob_hash,
    )


def _append_notes(part: Text | ToolResult, text: str, notes: Sequence[str]) -> Text | ToolResult:
    """Return ``part``, whose text is ``text``, with ``notes`` as its last lines."""
    noted_text = "\n".join([text, *dict.fromkeys(notes)])
    if isinstance(part, Text):
        return Text(noted_text)
    other_parts = [inner for inner in part.content if not isinstance(inner, Text)]
    return replace(part, content=(Text(noted_text), *other_parts), raw=None)
