"""End code executions that wait for results in a container that the provider no longer has, for good.

Without its container such a run cannot go on, and a request that answers its calls is refused. A line of text with the
code stands for the run; its calls become ordinary ones, and their results stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text, ToolCall
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, build_sized_message
from holdfast.normalize.parts import strip_part_signature
from holdfast.planning.builder import PlanBuilder
from holdfast.providers.common.json.lenient_json import read_json_fields, read_json_text
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.view import get_next_shown_index

END_RUNS_RULE = "container"
"""Rule of the edits that end a code execution, and of the notice about it."""
_END_REASON = "the provider no longer has the container that this code ran in"
_CALL_KIND = "server_tool_use"
_CODE_EXECUTION = "code_execution"


def end_pending_runs(builder: PlanBuilder) -> PlanBuilder:
    """End the code executions without a result in all shown answers; return the same builder if there is none."""
    return builder.add_edits(tuple(_build_edits(builder.state)))


def _build_edits(state: ConversationState) -> Iterator[Edit]:
    pending_ids = _find_pending_ids(state)
    if not pending_ids:
        return
    for index, part_index, part in _iter_answer_parts(state):
        replacement = _end_part(part, pending_ids)
        if replacement is not None:
            span = Span(index, index + 1, part_index)
            saved_tokens = _count_tokens(part) - _count_tokens(replacement)
            yield Edit(span, (replacement,), END_RUNS_RULE, _END_REASON, saved_tokens)


def _find_pending_ids(state: ConversationState) -> set[str]:
    """Return the ids of code executions whose results no later part of an answer has."""
    pending_ids: set[str] = set()
    for _, _, part in _iter_answer_parts(state):
        if not isinstance(part, Opaque) or part.raw is None:
            continue
        fields = read_json_fields(part.raw)
        if part.kind == _CALL_KIND and read_json_text(fields.get("name")).endswith(_CODE_EXECUTION):
            pending_ids.add(read_json_text(fields.get("id")))
        elif part.kind.endswith("_tool_result"):
            pending_ids.discard(read_json_text(fields.get("tool_use_id")))
    return pending_ids


def _iter_answer_parts(state: ConversationState) -> Iterator[tuple[int, int, Part]]:
    """Yield the parts of shown answers that no earlier edit replaced: index of the message, of the part, the part."""
    index = state.view.first_kept
    while index < len(state.history.sized_messages):
        edited_parts = {edit.span.part for edit in state.view.edits.get(index, ())}
        message = state.history.messages[index]
        if message.role == "assistant" and None not in edited_parts:  # None: the whole message is replaced
            for part_index, part in enumerate(message.parts):
                if part_index not in edited_parts:
                    yield index, part_index, part
        index = get_next_shown_index(state, index)


def _end_part(part: Part, pending_ids: set[str]) -> Part | None:
    """Return what stands for ``part`` once the runs are ended, or None if it stays as it is."""
    if isinstance(part, Opaque) and part.kind == _CALL_KIND and part.raw is not None:
        fields = read_json_fields(part.raw)
        if read_json_text(fields.get("id")) not in pending_ids:
            return None
        code = bytes(fields.get("input", b"{}")).decode()
        return Text(f"[{read_json_text(fields.get('name'))} was interrupted, as its container is gone: {code}]")
    if isinstance(part, ToolCall) and part.signature is not None and part.signature.data in pending_ids:
        return strip_part_signature(part)
    return None


def _count_tokens(part: Part) -> int:
    return build_sized_message(Message("assistant", (part,))).tokens - MESSAGE_OVERHEAD
